"""A member against a server whose messages are scripted by the test."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from fedhql.contract import BlackBoxAgent
from fedhql.errors import MemberRefused
from fedhql.remote.member.kept_agent import KeptAgent
from fedhql.remote.member.member import Member
from fedhql.remote.wire import join_handler, pack, pack_improvement, unpack
from fedhql.remote.wire_pb2 import (
    Cause,
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


class ServerStream:
    """The server's end of one connection."""

    def __init__(self, requests: Any, context: Any) -> None:
        self._requests, self._context, self._orders = requests, context, 0

    async def hear(self) -> FromMember:
        return await asyncio.wait_for(anext(self._requests), 10)

    async def say(self, message: FromServer) -> None:
        await self._context.write(message.SerializeToString())

    async def welcome(self, **fields: Any) -> None:
        assert (await self.hear()).HasField("hello")
        defaults: dict[str, Any] = {"federation": "f", "task": TASK, "most_states": 8}
        await self.say(FromServer(welcome=Welcome(**(defaults | fields))))

    async def order(self, *improvements: Improvement, **work: Any) -> None:
        self._orders += 1
        number = OrderId(epoch=1, number=self._orders)
        await self.say(FromServer(order=Order(id=number, improvements=improvements, **work)))

    async def report(self, *improvements: Improvement, **work: Any) -> Report:
        """Send an order, by default a query, and return the member's report."""
        await self.order(*improvements, **(work or {"query": Query(states=pack(STATES))}))
        return (await self.hear()).report

    async def dismiss(self) -> Report:
        """Say Goodbye; return the report that the member sends before its own, if any."""
        await self.say(FromServer(goodbye=Goodbye(reason=Goodbye.FINISHED)))
        report = Report()
        while (message := await self.hear()).HasField("report"):
            report = message.report
        assert message.goodbye.reason == Goodbye.FINISHED
        return report


Script = Callable[[ServerStream], Awaitable[None]]


def improvement(number: int, **changes: Any) -> Improvement:
    rows = {"states": STATES, "actions": STATES, "targets": STATES + number} | changes
    return pack_improvement(number, **rows)


def run(
    home: Path, *scripts: Script, agent: Recorder | None = None, secure_aggregation: bool = False
) -> Recorder:
    """Run a member against a server that plays one script for each connection."""
    used, left, errors = agent or Recorder(seed=0), list(scripts), list[BaseException]()

    async def join(requests: Any, context: Any) -> None:
        try:
            await left.pop(0)(ServerStream(requests, context))
        except BaseException as error:  # gRPC would only log it
            errors.append(error)
            raise

    async def federate() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((join_handler(join, 10**6),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        member = Member("ann", f"127.0.0.1:{port}", home, lambda task: used, credentials=None,
                        rng=Hasty(0), clock=time.monotonic,
                        secure_aggregation=secure_aggregation)  # fmt: skip
        try:
            await asyncio.wait_for(member.run(), 20)
        finally:
            await server.stop(0)

    home.mkdir(exist_ok=True)
    asyncio.run(federate())
    assert not errors
    assert not left
    return used


def test_a_repeated_improvement_is_applied_once(tmp_path: Path) -> None:
    first, second, third, fourth = (improvement(number) for number in range(1, 5))

    async def script(stream: ServerStream) -> None:
        await stream.welcome()
        assert (await stream.report(first, second)).applied_improvements == 2
        report = await stream.report(first, second, third)
        assert (report.applied_improvements, report.skipped_improvements) == (3, 0)
        assert (await stream.report(second)).applied_improvements == 3
        await stream.order(fourth)  # an order without work is the last
        assert (await stream.hear()).report.applied_improvements == 4
        await stream.dismiss()

    run(tmp_path, script)
    assert told(tmp_path) == fingerprints([first, second, third, fourth])


class SelfWilled(Recorder):
    """Acts by a rule of its own."""

    def act(self, states: Any) -> Any:
        return states % 4


@pytest.mark.parametrize(
    ("agent", "act", "said"),
    [(SelfWilled(0), True, [0, 1, 2]), (SelfWilled(0), False, None), (Recorder(0), True, None)],
)
def test_a_member_says_how_it_acts_if_it_is_asked_and_its_agent_has_a_rule(
    agent: Recorder, act: bool, said: list[int] | None, tmp_path: Path
) -> None:
    async def script(stream: ServerStream) -> None:
        await stream.welcome()
        report = await stream.report(query=Query(states=pack(STATES), act=act))
        assert unpack(report.values).shape == (3, 4)
        assert (unpack(report.actions).tolist() if report.HasField("actions") else None) == said
        await stream.dismiss()

    run(tmp_path, script, agent=agent)


def test_a_member_that_masks_its_values_does_not_say_how_it_acts(tmp_path: Path) -> None:
    agent = SelfWilled(0)
    member = Member("ann", "", tmp_path, lambda task: agent, credentials=None,
                    rng=Hasty(0), clock=time.monotonic, secure_aggregation=True)  # fmt: skip
    member._agent.begin(Welcome(federation="f", task=TASK, most_states=8))
    order = Order(query=Query(states=pack(STATES), act=True))
    assert member._answer(order).HasField("actions")
    masking: Any = SimpleNamespace(answer=lambda order, values: pack(values))
    member._masking = masking
    report = member._answer(order)
    assert report.HasField("values")
    assert not report.HasField("actions")


def test_improvements_that_are_no_longer_kept_are_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(stream: ServerStream) -> None:
        await stream.welcome(improvements=10)  # it joins late, so it misses nothing
        assert (await stream.report()).applied_improvements == 10
        query = Query(states=pack(STATES))
        report = await stream.report(improvement(14), query=query, skip_through=13)
        assert (report.applied_improvements, report.skipped_improvements) == (14, 3)
        report = await stream.report(query=query, skip_through=12)  # already passed
        assert (report.applied_improvements, report.skipped_improvements) == (14, 3)
        await stream.dismiss()

    run(tmp_path, script)
    assert told(tmp_path) == fingerprints([improvement(14)])
    assert "ann: skipped 3 improvements that the server no longer keeps" in caplog.text


def test_a_phase_that_is_ordered_again_is_learned_once(tmp_path: Path) -> None:
    def phase(number: int) -> dict[str, Learn]:
        return {"learn": Learn(phase=number, env_steps=25, chunk_env_steps=10)}

    async def first_connection(stream: ServerStream) -> None:
        await stream.welcome()
        assert (await stream.report(**phase(1))).phase_env_steps == 10
        assert (await stream.hear()).report.phase_env_steps == 20

    async def second_connection(stream: ServerStream) -> None:
        await stream.welcome()
        report = await stream.report(**phase(1))
        assert (report.phase, report.phase_env_steps) == (1, 25)
        assert (await stream.report(**phase(1))).phase_env_steps == 25
        assert (await stream.report(**phase(2))).phase_env_steps == 10
        await stream.order()
        while (message := await stream.hear()).report.phase:
            pass
        assert message.report.id.number == 4
        await stream.dismiss()

    agent = run(tmp_path, first_connection, second_connection)
    assert agent.told[:3] == ["learn 10", "learn 10", "learn 5"]
    assert agent.told[3] == "learn 10"


def test_what_was_learned_without_a_report_is_reported_before_the_goodbye(tmp_path: Path) -> None:
    agent = Recorder(seed=0)

    async def first_connection(stream: ServerStream) -> None:
        await stream.welcome()
        await stream.order(learn=Learn(phase=7, env_steps=25, chunk_env_steps=25))
        while not agent.told:  # then the server is gone
            await asyncio.sleep(0.01)

    async def second_connection(stream: ServerStream) -> None:
        await stream.welcome()
        report = await stream.dismiss()
        assert (report.phase, report.phase_env_steps) == (7, 25)

    run(tmp_path, first_connection, second_connection, agent=agent)
    assert agent.told == ["learn 25"]


class Failing(Recorder):
    """Raises an error when the server asks it, though not when it is built."""

    def __init__(self, error: Exception) -> None:
        super().__init__(seed=0)
        self.error, self.asked = error, 0

    def q_values(self, states: Any) -> Any:
        self.asked += 1
        if self.asked > 1:
            raise self.error
        return super().q_values(states)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a secret"),
        TimeoutError("a secret"),  # the others are also raised where a connection breaks
        asyncio.InvalidStateError("a secret"),
        grpc.aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "a secret"
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_member_whose_agent_fails_says_so_before_it_leaves(
    error: Exception, tmp_path: Path
) -> None:
    """Otherwise the server would have to guess why the connection broke."""
    heard = []

    async def script(stream: ServerStream) -> None:
        await stream.welcome()
        await stream.order(query=Query(states=pack(STATES)))
        heard.append((await stream.hear()).goodbye)

    with pytest.raises(type(error), match="a secret"):
        run(tmp_path, script, agent=Failing(error))
    assert [(each.reason, each.detail, each.cause) for each in heard] == [
        (Goodbye.STOPPED, "its agent raised an error", Cause.OWNER)
    ]


def test_a_member_of_another_federation_says_so_before_it_leaves(tmp_path: Path) -> None:
    heard = []

    async def first(stream: ServerStream) -> None:
        await stream.welcome()
        await stream.dismiss()

    async def second(stream: ServerStream) -> None:
        await stream.welcome(federation="another")
        heard.append((await stream.hear()).goodbye)

    run(tmp_path, first)
    with pytest.raises(MemberRefused, match="use a separate --home for each federation"):
        run(tmp_path, second)
    assert [(each.reason, each.detail) for each in heard] == [
        (Goodbye.REFUSED, "its home belongs to another federation")
    ]


def test_a_member_that_has_finished_does_not_look_for_its_server_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def script(stream: ServerStream) -> None:
        await stream.welcome()
        await stream.dismiss()

    run(tmp_path, script)
    run(tmp_path, script)  # while the server is there, it says the same again
    port = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{port.getsockname()[1]}"
    port.close()
    again = Member(
        "ann",
        address,
        tmp_path,
        lambda task: Recorder(seed=0),
        credentials=None,
        rng=Hasty(0),
        clock=time.monotonic,
    )
    asyncio.run(asyncio.wait_for(again.run(), 20))
    assert caplog.messages[-1].startswith(f"ann: has finished, and {address} cannot be reached (")
    assert "Connection refused" in caplog.messages[-1]


class Unsaved:
    """Only the three methods."""

    def __init__(self) -> None:
        whole = Recorder(seed=0)
        self.self_learn, self.q_values, self.improve = (
            whole.self_learn,
            whole.q_values,
            whole.improve,
        )


@pytest.mark.parametrize(
    ("agent", "told"),
    [(Recorder(seed=0), "all is saved"), (Unsaved(), "its agent has no save and restore")],
)
def test_a_goodbye_says_that_all_is_saved_only_if_it_is(
    agent: BlackBoxAgent, told: str, tmp_path: Path
) -> None:
    kept = KeptAgent("ann", tmp_path, lambda task: agent, time.monotonic)
    kept.begin(Welcome(federation="f", task=TASK))
    assert kept.save_last() == told


class Tracked:
    """A tool that keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, float], int]] = []
        self.closed = False

    def write(self, part: str, figures: Mapping[str, float], step: int) -> None:
        self.written.append((part, dict(figures), step))

    def close(self) -> None:
        self.closed = True


class Diagnosed(Recorder):
    def diagnostics(self) -> dict[str, float]:
        return {"train/loss": float(len(self.told))}


def test_an_agents_diagnostics_are_tracked_after_each_phase(tmp_path: Path) -> None:
    for phases in ((1, 2), (3,)):  # the second process counts on
        tool = Tracked()
        kept = KeptAgent(
            "ann", tmp_path, lambda task: Diagnosed(seed=0), time.monotonic, trackers=[tool]
        )
        kept.begin(Welcome(federation="f", task=TASK))
        for phase in phases:
            learn = Learn(phase=phase, env_steps=25, chunk_env_steps=20)
            while kept.learn(learn).phase_env_steps < 25:
                pass
        kept.close()
        assert [(part, step) for part, _, step in tool.written] == [
            ("ann", 25 * phase) for phase in phases
        ]
        assert all(figures["train/loss"] > 0 for _, figures, _ in tool.written)
        assert tool.closed


def test_an_agent_without_diagnostics_is_not_tracked_and_the_owner_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tool = Tracked()
    kept = KeptAgent("ann", tmp_path, lambda task: Unsaved(), time.monotonic, trackers=[tool])
    kept.begin(Welcome(federation="f", task=TASK))
    kept.learn(Learn(phase=1, env_steps=5, chunk_env_steps=5))
    assert tool.written == []
    assert "ann: nothing to track: its agent has no diagnostics()" in caplog.text


WRONG = {
    "improvement 1 is missing": improvement(2),
    "targets that are NaN": improvement(1, targets=STATES * np.nan),
    "an action that does not exist": improvement(1, actions=STATES + 2),
    "more states than allowed": improvement(1, **dict.fromkeys(("states", "actions", "targets"),
                                                              np.zeros(9, dtype=np.int64))),
    "states of another dtype": improvement(1, states=STATES.astype(np.float32)),
    "fewer actions than states": improvement(1, actions=STATES[:2]),
    "no arrays": Improvement(number=1),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_an_invalid_improvement_is_refused_with_a_goodbye(kind: str, tmp_path: Path) -> None:
    heard = []

    async def script(stream: ServerStream) -> None:
        await stream.welcome()
        await stream.order(WRONG[kind], query=Query(states=pack(STATES)))
        heard.append((await stream.hear()).goodbye)

    with pytest.raises(MemberRefused, match="sent an invalid message"):
        run(tmp_path, script)
    assert heard[0].reason == Goodbye.REFUSED
    assert told(tmp_path) == []


def test_a_member_reconnects_when_stopped_and_ends_when_refused(tmp_path: Path) -> None:
    async def stops(stream: ServerStream) -> None:
        await stream.welcome()
        await stream.say(FromServer(goodbye=Goodbye(reason=Goodbye.STOPPED, detail="later")))

    async def refuses(stream: ServerStream) -> None:
        await stream.hear()
        goodbye = Goodbye(reason=Goodbye.REFUSED, detail="not you")
        await stream.say(FromServer(goodbye=goodbye))

    with pytest.raises(MemberRefused, match="refuses ann: not you"):
        run(tmp_path, stops, stops, refuses)


@pytest.mark.parametrize("connection", [1, 2])
@pytest.mark.parametrize("secure_aggregation", [False, True])
def test_an_order_before_a_welcome_is_refused(
    secure_aggregation: bool, connection: int, tmp_path: Path
) -> None:
    async def welcomes(stream: ServerStream) -> None:
        await stream.welcome(secure_value_bound=float(secure_aggregation))

    async def script(stream: ServerStream) -> None:
        await stream.hear()
        await stream.order(improvement(1), query=Query(states=pack(STATES)))
        assert (await stream.hear()).goodbye.reason == Goodbye.REFUSED

    agent, before = Recorder(seed=0), [welcomes] * (connection - 1)
    with pytest.raises(MemberRefused, match="an order before a welcome"):
        run(tmp_path, *before, script, agent=agent, secure_aggregation=secure_aggregation)
    assert agent.told == []


def test_another_federation_is_refused_after_a_reconnect(tmp_path: Path) -> None:
    async def welcomes(stream: ServerStream) -> None:
        await stream.welcome()

    async def is_another(stream: ServerStream) -> None:
        await stream.welcome(federation="g")

    with pytest.raises(
        MemberRefused, match=r"is federation g, but .* belongs to f; use a separate"
    ):
        run(tmp_path, welcomes, is_another)
