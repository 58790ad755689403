"""examples/remote/node: a member in JavaScript federates with members in Python."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedhql.remote.server.journal import Journal
from fedhql.remote.wire import fingerprint, join_handler, pack_improvement
from fedhql.remote.wire_pb2 import (
    FromMember,
    FromServer,
    Goodbye,
    Hello,
    Learn,
    Notice,
    Order,
    OrderId,
    Report,
    Task,
    Welcome,
)
from tests.remote.authority import Authority
from tests.remote.federating import (
    Members,
    Server,
    accounts,
    assert_exact_budgets,
    assert_told_once,
    events,
    fact,
    federation,
    members_of,
    serving,
    until,
)
from tests.remote.node import EXAMPLE, ROOT, NodeMembers, install, require_node
from tests.remote.recording import Recorder

SECURE = "[federation]\nsecure_aggregation = true\nsecure_value_bound = 10\n"
VECTORS = ROOT / "docs" / "secure_vectors.json"
BUDGET = 182


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("node"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "certs")
    made.make("node1")
    made.make("node2")
    return made


@pytest.fixture
def nodes(example: Path, tmp_path: Path) -> Iterator[NodeMembers]:
    started = NodeMembers(example, tmp_path)
    yield started
    started.close()


@asynccontextmanager
async def federating(
    directory: Path, text: str, authority: Authority | None = None
) -> AsyncIterator[tuple[Server, Members]]:
    """Run a server, over mutual TLS if there is an authority, and its members in Python."""
    shown = None if authority is None else authority.make("server", hosts=("127.0.0.1",))
    async with (
        serving(directory / "home", text, credentials=shown) as server,
        members_of(directory, server.address) as members,
    ):
        yield server, members


async def wait_for(nodes: NodeMembers, *names: str) -> None:
    """Wait until the members have finished, and check that they have succeeded."""
    for name in names:
        assert await asyncio.to_thread(nodes.finish, name) == 0, nodes.log(name)


async def more_improvements(server: Server, count: int) -> None:
    wanted = server.roster.improvements + count
    await server.reach(lambda: server.roster.improvements >= wanted)


def saved(directory: Path, name: str) -> dict[str, Any]:
    return json.loads((directory / name / "state.json").read_text())


def assert_applied_once(directory: Path, *names: str, killed: bool = False) -> None:
    """Compare what Node members have saved with the server's journal."""
    journal = Journal(directory / "home" / "journal.sqlite", read_only=True)
    improvements = journal.improvements()
    journal.close()
    assert len(improvements) == fact(directory / "home", "improvements") > 0
    for name in names:
        account, state = accounts(directory / "home")[name], saved(directory, name)
        assert account.finished
        assert account.parted
        assert account.refused_answers == account.skipped_improvements == state["skipped"] == 0
        assert state["applied"] == account.applied_improvements == len(improvements)
        assert state["agent"]["improvements"] == state["applied"] - account.joined_at
        assert state["last"] == str(fingerprint(improvements[-1]))
        if killed:
            assert 0 < state["agent"]["envSteps"] <= account.own_env_steps
        else:
            assert state["agent"]["envSteps"] == account.own_env_steps


@pytest.mark.parametrize("mode", ["rounds", "continuous"])
def test_a_node_member_federates_over_mutual_tls(
    mode: str, nodes: NodeMembers, authority: Authority, tmp_path: Path
) -> None:
    text = federation(BUDGET, mode=mode, start_with=2, chunk_env_steps=5,
                      round_interval_seconds=0.02)  # fmt: skip
    nodes.certificates = authority.home

    async def run() -> None:
        async with federating(tmp_path, text, authority) as (server, members):
            nodes.join("node1", server.address, "--seed", "7")
            ann = Recorder(1, learn_seconds=0.01)
            members.join("ann", ann, credentials=authority.make("ann"))
            await wait_for(nodes, "node1")
            await members.finish()
            await server.finish()

    asyncio.run(run())
    assert fact(tmp_path / "home", "position")["stage"] == "finished"
    assert_exact_budgets(tmp_path / "home", BUDGET)
    assert_told_once(tmp_path / "home", tmp_path, ["ann"])
    assert_applied_once(tmp_path, "node1")


@pytest.mark.parametrize(
    ("ours", "theirs"), [(("node1",), ("ann", "zoe")), (("node1", "node2"), ("ann",))]
)
def test_node_members_take_part_in_secure_aggregation(
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    nodes: NodeMembers,
    authority: Authority,
    tmp_path: Path,
) -> None:
    """No sum is refused. The names of members in Python sort before and after those in Node."""
    text = federation(BUDGET, members=ours + theirs, start_with=3, quorum=3,
                      evaluate_members=False).replace("[federation]\n", SECURE)  # fmt: skip
    nodes.certificates = authority.home

    async def run() -> None:
        async with federating(tmp_path, text, authority) as (server, members):
            for name in ours:
                nodes.join(name, server.address, "--secure-aggregation")
            for name in theirs:
                members.join(name, credentials=authority.make(name), secure_aggregation=True)
            await wait_for(nodes, *ours)
            await members.finish()
            await server.finish()

    asyncio.run(run())
    assert fact(tmp_path / "home", "position")["stage"] == "finished"
    assert "do not add up" not in events(tmp_path / "home")
    assert_exact_budgets(tmp_path / "home", BUDGET)
    assert_told_once(tmp_path / "home", tmp_path, theirs)
    assert_applied_once(tmp_path, *ours)


def test_a_killed_node_member_and_a_killed_server_lose_nothing(
    nodes: NodeMembers, tmp_path: Path
) -> None:
    text = federation(BUDGET, start_with=2, quorum=2)

    async def run() -> None:
        async with members_of(tmp_path, "") as members:
            async with serving(tmp_path / "home", text) as server:
                nodes.join("node1", server.address)
                ann = Recorder(1, answer_seconds=0.03)
                members.join("ann", ann, address=server.address)
                for _ in range(2):
                    await more_improvements(server, 4)
                    nodes.kill("node1")
                    nodes.join("node1", server.address)
                await more_improvements(server, 3)
                assert not server.roster.members["node1"].finished
                port = server.port
                await server.die()
            async with serving(tmp_path / "home", text, port=port) as server:
                await wait_for(nodes, "node1")
                await members.finish()
                await server.finish()

    asyncio.run(run())
    assert fact(tmp_path / "home", "position")["stage"] == "finished"
    assert_exact_budgets(tmp_path / "home", BUDGET)
    assert_told_once(tmp_path / "home", tmp_path, ["ann"])
    assert_applied_once(tmp_path, "node1", killed=True)
    assert accounts(tmp_path / "home")["node1"].connections == 4


def test_a_node_member_says_goodbye_when_it_is_stopped_or_refused(
    nodes: NodeMembers, tmp_path: Path
) -> None:
    async def run() -> None:
        async with federating(tmp_path, federation(members=["node1", "bob"])) as (server, _):
            nodes.join("node1", server.address)
            await server.reach(lambda: "node1" in server.roster.sessions)
            nodes.running["node1"].send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(nodes.finish, "node1") == 143
            await server.reach(lambda: "node1" not in server.roster.sessions)
            nodes.join("eve", server.address)
            assert await asyncio.to_thread(nodes.finish, "eve") == 2
            nodes.join("bob", server.address, "--secure-aggregation")
            assert await asyncio.to_thread(nodes.finish, "bob") == 2

    asyncio.run(run())
    assert "node1 says goodbye: its owner stops it" in events(tmp_path / "home")
    assert "REFUSED" in nodes.log("eve")
    assert nodes.log("eve").count("\n") == 1
    assert "no secure aggregation" in nodes.log("bob")


class Scripted:
    """A server that sends each connection the next list of messages, and records what it reads."""

    def __init__(self, *scripts: list[FromServer]) -> None:
        self._scripts = list(scripts)
        self.hellos: list[Hello] = []
        self.times: list[float] = []
        self.reports: list[Report] = []
        self.goodbyes: list[Goodbye] = []

    async def join(self, messages: AsyncIterator[FromMember], _: Any) -> AsyncIterator[bytes]:
        self.times.append(time.monotonic())
        self.hellos.append((await anext(messages)).hello)
        for message in self._scripts.pop(0):
            yield message.SerializeToString()
        async for answer in messages:  # until the member leaves or is killed
            if answer.HasField("report"):
                self.reports.append(answer.report)
            else:
                self.goodbyes.append(answer.goodbye)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((join_handler(self.join, 10**6),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


def test_a_node_member_speaks_protocol_1_1(nodes: NodeMembers) -> None:
    """It introduces itself, logs notices, waits as long as it is told, and leaves if replaced."""
    notice = Notice(cause="ANSWER_VALUE", detail="too large", left=2)
    stopped = Goodbye(reason=Goodbye.STOPPED, detail="restarting", retry_after_seconds=0.7)
    replaced = Goodbye(reason=Goodbye.REPLACED, detail="another connection")
    scripted = Scripted(
        [FromServer(notice=notice), FromServer(goodbye=stopped)], [FromServer(goodbye=replaced)]
    )

    async def run() -> None:
        async with scripted.serving() as address:
            nodes.join("node1", address)
            assert await asyncio.to_thread(nodes.finish, "node1") == 2, nodes.log("node1")

    asyncio.run(run())
    first, second = scripted.times
    assert second - first > 0.7
    hello = scripted.hellos[0]
    assert (hello.protocol, hello.minor, hello.most_message_bytes) == (1, 1, 4 * 1024 * 1024)
    assert (hello.name, hello.software) == ("node1", "fedhql-node-example/1")
    assert list(hello.capabilities) == ["notices"]
    assert "answer refused: too large; 2 more before quarantine" in nodes.log("node1")
    assert nodes.log("node1").endswith("says REPLACED: another connection\n")


def order(number: int, *improvements: int, **work: Any) -> FromServer:
    rows = [
        pack_improvement(each, np.array([0, 1]), np.array([2, 3]), np.array([0.5, each]))
        for each in improvements
    ]
    identity = OrderId(epoch=1, number=number)
    return FromServer(order=Order(id=identity, improvements=rows, **work))


def test_a_node_member_repeats_nothing_and_refuses_a_gap(
    nodes: NodeMembers, tmp_path: Path
) -> None:
    """Improvements that come twice count once, as do the steps of a phase, even after a kill."""
    lake = Task(environment="FrozenLake-v1", discount=0.9, state_dtype="int64", actions=4)
    welcome = FromServer(welcome=Welcome(federation="f", task=lake, most_states=8))
    learn = Learn(phase=1, env_steps=10, chunk_env_steps=5)
    scripted = Scripted(
        [welcome, order(1, 1, 2), order(2, learn=learn), order(3, 2, 3)],
        [welcome, order(4, 1, 2, 3, learn=learn), order(5, 5)],
    )

    async def run() -> None:
        async with scripted.serving() as address:
            nodes.join("node1", address)
            await until(lambda: len(scripted.reports) == 4)
            nodes.kill("node1")
            nodes.join("node1", address)
            assert await asyncio.to_thread(nodes.finish, "node1") == 2, nodes.log("node1")

    asyncio.run(run())
    before, after = scripted.reports[:4], scripted.reports[4:]
    assert {(r.id.number, r.applied_improvements, r.phase_env_steps) for r in before} <= {
        (1, 2, 0), (2, 2, 5), (2, 3, 5), (2, 2, 10), (2, 3, 10), (3, 3, 0),
    }  # fmt: skip
    assert all(report.phase_env_steps == 10 for report in after)  # it takes no further step
    (goodbye,) = scripted.goodbyes
    assert goodbye.reason == Goodbye.REFUSED
    assert goodbye.detail == "improvement 5 after 3"
    state = saved(tmp_path, "node1")
    assert (state["applied"], state["agent"]["improvements"]) == (3, 3)
    assert state["agent"]["envSteps"] in (0, 10)  # 0: the kill came before it was saved
    ledger = json.loads((tmp_path / "node1" / "ledger.json").read_text())
    assert ledger == {"federation": "f", "phase": "1", "phase_env_steps": 10}


def test_javascript_gives_the_numbers_of_the_test_vectors() -> None:
    """The check needs Node, but no package."""
    require_node()
    done = subprocess.run(
        ["node", Path(__file__).with_name("node_vectors.mjs"), VECTORS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_example_has_300_lines_of_code_at_most() -> None:
    """Blank lines and lines that are only a comment do not count."""
    modules = [path.read_text() for path in (ROOT / EXAMPLE).glob("*.mjs")]
    lines = [line.strip() for module in modules for line in module.splitlines()]
    assert 0 < sum(1 for line in lines if line and not line.startswith(("//", "/**"))) <= 300
