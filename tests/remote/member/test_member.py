"""A member by itself, with a server that says what a test makes it say."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedhql.errors import MemberRefused
from fedhql.remote.member.member import Member
from fedhql.remote.wire import join_handler, pack, pack_improvement
from fedhql.remote.wire_pb2 import (
    FromMember,
    FromServer,
    Goodbye,
    Improvement,
    Learn,
    Order,
    OrderId,
    Query,
    Report,
    Task,
    Welcome,
)
from tests.remote.federating import Hasty
from tests.remote.recording import Recorder, fingerprints, told

TASK = Task(environment="FrozenLake-v1", state_dtype="int64", state_shape=[], actions=4)
STATES = np.arange(3)


class Line:
    """One connection, seen from the server."""

    def __init__(self, requests: Any, context: Any) -> None:
        self._requests, self._context, self._orders = requests, context, 0

    async def hear(self) -> FromMember:
        message: FromMember = await asyncio.wait_for(anext(self._requests), 10)
        return message

    async def say(self, message: FromServer) -> None:
        await self._context.write(message.SerializeToString())

    async def welcome(self, **fields: Any) -> None:
        assert (await self.hear()).HasField("hello")
        said: dict[str, Any] = {"federation": "f", "task": TASK, "most_states": 8} | fields
        await self.say(FromServer(welcome=Welcome(**said)))

    async def order(self, *improvements: Improvement, **work: Any) -> None:
        self._orders += 1
        number = OrderId(epoch=1, number=self._orders)
        await self.say(FromServer(order=Order(id=number, improvements=improvements, **work)))

    async def report(self, *improvements: Improvement, **work: Any) -> Report:
        """What it answers to an order; a question, if nothing else is said."""
        await self.order(*improvements, **(work or {"query": Query(states=pack(STATES))}))
        return (await self.hear()).report

    async def dismiss(self) -> None:
        await self.say(FromServer(goodbye=Goodbye(reason=Goodbye.FINISHED)))
        assert (await self.hear()).goodbye.reason == Goodbye.FINISHED


Script = Callable[[Line], Awaitable[None]]


def improvement(number: int, **changes: Any) -> Improvement:
    rows = {"states": STATES, "actions": STATES, "targets": STATES + number} | changes
    return pack_improvement(number, **rows)


def run(
    home: Path, *scripts: Script, agent: Recorder | None = None, secure_aggregation: bool = False
) -> Recorder:
    """A member that finds a server with each of these scripts, one connection after the other."""
    acting, left, wrong = agent or Recorder(seed=0), list(scripts), list[BaseException]()

    async def join(requests: Any, context: Any) -> None:
        try:
            await left.pop(0)(Line(requests, context))
        except BaseException as error:  # gRPC would only log it
            wrong.append(error)
            raise

    async def meet() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((join_handler(join),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        member = Member("ann", f"127.0.0.1:{port}", home, lambda task: acting, credentials=None,
                        rng=Hasty(0), clock=time.monotonic,
                        secure_aggregation=secure_aggregation)  # fmt: skip
        try:
            await asyncio.wait_for(member.run(), 20)
        finally:
            await server.stop(0)

    home.mkdir(exist_ok=True)
    asyncio.run(meet())
    assert not wrong
    assert not left
    return acting


def test_each_improvement_once_whatever_is_sent_again(tmp_path: Path) -> None:
    first, second, third, fourth = (improvement(number) for number in range(1, 5))

    async def script(line: Line) -> None:
        await line.welcome()
        assert (await line.report(first, second)).applied_improvements == 2
        report = await line.report(first, second, third)
        assert (report.applied_improvements, report.skipped_improvements) == (3, 0)
        assert (await line.report(second)).applied_improvements == 3
        await line.order(fourth)  # the last
        assert (await line.hear()).report.applied_improvements == 4
        await line.dismiss()

    run(tmp_path, script)
    assert told(tmp_path) == fingerprints([first, second, third, fourth])


def test_what_cannot_be_had_is_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(line: Line) -> None:
        await line.welcome(improvements=10)  # it comes late: nothing is missing
        assert (await line.report()).applied_improvements == 10
        query = Query(states=pack(STATES))
        report = await line.report(improvement(14), query=query, skip_through=13)
        assert (report.applied_improvements, report.skipped_improvements) == (14, 3)
        report = await line.report(query=query, skip_through=12)  # of long ago
        assert (report.applied_improvements, report.skipped_improvements) == (14, 3)
        await line.dismiss()

    run(tmp_path, script)
    assert told(tmp_path) == fingerprints([improvement(14)])
    assert "ann: 3 improvements are lost to it" in caplog.text


def test_a_phase_is_learned_once_however_often_it_is_ordered(tmp_path: Path) -> None:
    def phase(number: int) -> dict[str, Learn]:
        return {"learn": Learn(phase=number, env_steps=25, chunk_env_steps=10)}

    async def until_cut(line: Line) -> None:
        await line.welcome()
        assert (await line.report(**phase(1))).phase_env_steps == 10
        assert (await line.hear()).report.phase_env_steps == 20

    async def again(line: Line) -> None:
        await line.welcome()
        report = await line.report(**phase(1))
        assert (report.phase, report.phase_env_steps) == (1, 25)
        assert (await line.report(**phase(1))).phase_env_steps == 25
        assert (await line.report(**phase(2))).phase_env_steps == 10
        await line.order()
        while (message := await line.hear()).report.phase:
            pass
        assert message.report.id.number == 4
        await line.dismiss()

    agent = run(tmp_path, until_cut, again)
    assert agent.told[:3] == ["learn 10", "learn 10", "learn 5"]
    assert agent.told[3] == "learn 10"


WRONG = {
    "one is missing": improvement(2),
    "targets that are no numbers": improvement(1, targets=STATES * np.nan),
    "an action that does not exist": improvement(1, actions=STATES + 2),
    "more states than agreed": improvement(1, **dict.fromkeys(("states", "actions", "targets"),
                                                              np.zeros(9, dtype=np.int64))),
    "other states": improvement(1, states=STATES.astype(np.float32)),
    "fewer actions": improvement(1, actions=STATES[:2]),
    "nothing": Improvement(number=1),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_improvements_that_cannot_be_are_refused_aloud(kind: str, tmp_path: Path) -> None:
    heard = []

    async def script(line: Line) -> None:
        await line.welcome()
        await line.order(WRONG[kind], query=Query(states=pack(STATES)))
        heard.append((await line.hear()).goodbye)

    with pytest.raises(MemberRefused, match="sent what it should not"):
        run(tmp_path, script)
    assert heard[0].reason == Goodbye.REFUSED
    assert told(tmp_path) == []


def test_goodbyes_of_a_server(tmp_path: Path) -> None:
    async def stops(line: Line) -> None:
        await line.welcome()
        await line.say(FromServer(goodbye=Goodbye(reason=Goodbye.STOPPED, detail="later")))

    async def refuses(line: Line) -> None:
        await line.hear()
        goodbye = Goodbye(reason=Goodbye.REFUSED, detail="not you")
        await line.say(FromServer(goodbye=goodbye))

    with pytest.raises(MemberRefused, match="refuses ann: not you"):
        run(tmp_path, stops, stops, refuses)


@pytest.mark.parametrize("connection", [1, 2])
@pytest.mark.parametrize("secure_aggregation", [False, True])
def test_an_order_before_a_welcome_is_refused(
    secure_aggregation: bool, connection: int, tmp_path: Path
) -> None:
    async def welcomes(line: Line) -> None:
        await line.welcome(secure_value_bound=float(secure_aggregation))

    async def script(line: Line) -> None:
        await line.hear()
        await line.order(improvement(1), query=Query(states=pack(STATES)))
        assert (await line.hear()).goodbye.reason == Goodbye.REFUSED

    agent, before = Recorder(seed=0), [welcomes] * (connection - 1)
    with pytest.raises(MemberRefused, match="an order before a welcome"):
        run(tmp_path, *before, script, agent=agent, secure_aggregation=secure_aggregation)
    assert agent.told == []


def test_another_federation_is_refused_also_after_a_reconnect(tmp_path: Path) -> None:
    async def welcomes(line: Line) -> None:
        await line.welcome()

    async def is_another(line: Line) -> None:
        await line.welcome(federation="g")

    with pytest.raises(MemberRefused, match=r"is federation g, .* belongs to f; a member needs"):
        run(tmp_path, welcomes, is_another)
