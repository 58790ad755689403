"""A federation for tests: a server in the test's event loop, and each member in a thread."""

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from fedhql.contract import BlackBoxAgent
from fedhql.remote.identity.credentials import Credentials
from fedhql.remote.member.member import Member
from fedhql.remote.server.journal import Journal, MemberRecord
from fedhql.remote.server.listener import Listener
from fedhql.remote.server.roster import Roster
from fedhql.remote.wire_pb2 import Task
from fedhql.service.home import message_sizes, open_home, task_of
from fedhql.service.rounds import Service
from fedhql.settings.served import read_served_settings
from tests.remote.recording import Recorder, fingerprints, improvements_of, learned_of, told

PATIENCE_SECONDS = 60.0
FROZEN_LAKE = """
# No holes, and the goal is more than three steps away, so a round has twelve server steps.
[environment]
id = "FrozenLake-v1"
discount = 0.95
options = {{ desc = ["SFFF", "FFFF", "FFFF", "FFFG"] }}
[federation]
query_batch = 4
horizon_steps = 3
self_learning_env_steps = 20
[evaluation]
episodes = 1
episode_step_limit = 3
[budget]
env_steps_per_agent = {budget}
[service]
catch_up_improvements = 100_000
"""


def federation(budget: int = 100, **service: Any) -> str:
    """Return the settings file of a federation that finishes in about a second."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in service.items()]
    text = FROZEN_LAKE.format(budget=budget)
    if "catch_up_improvements" in service:
        text = text.replace("catch_up_improvements = 100_000\n", "")
    return text + "".join(lines)


class Hasty(random.Random):
    """Draws short pauses, so that a member reconnects soon."""

    def uniform(self, a: float, b: float) -> float:
        return super().uniform(a, b) / 10


@dataclass
class Server:
    """A running server, from its start to its end."""

    home: Path
    roster: Roster
    listener: Listener
    service: Service
    port: int
    task: Task
    federation: str
    work: "asyncio.Future[None]"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def finish(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.work), PATIENCE_SECONDS)

    async def reach(self, reached: Callable[[], bool]) -> None:
        await until(reached, self.work)

    async def die(self) -> None:
        """Stop as if killed: without telling the members, and without writing more."""
        await self.listener.close(0)
        self.roster.stop()
        await asyncio.wait([self.work])
        self.roster.journal.close()


async def until(reached: Callable[[], bool], *unless: "asyncio.Future[Any]") -> None:
    """Wait until `reached()` is true. Fail if a task ends before, or after a timeout."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        for task in unless:
            if task.done():
                task.result()
                raise AssertionError("a task ended before the awaited state was reached")
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    home: Path,
    text: str,
    *,
    port: int = 0,
    credentials: Credentials | None = None,
    revoked: Path | None = None,
    journal: Callable[[Path], Journal] = Journal,
) -> AsyncIterator[Server]:
    """Run a server as `fedhql serve` does."""
    settings = read_served_settings(text)
    opened, federation = open_home(home, settings)
    opened.close()
    task = task_of(settings)
    sizes = message_sizes(settings, task)
    roster = Roster(
        settings.service,
        journal(home / "journal.sqlite"),
        action_count=task.actions,
        env_steps_per_member=settings.budget.env_steps_per_agent,
        question_bytes=sizes.question_bytes,
        least_receive_bytes=sizes.least_receive_bytes,
        secure_value_bound=settings.secure_value_bound,
    )
    service = Service(settings, home, roster, asyncio.get_running_loop(), actions=task.actions)
    listener = Listener(
        roster, federation=federation, task=task, credentials=credentials, revoked=revoked
    )
    bound = await listener.open(f"127.0.0.1:{port}")
    work = asyncio.ensure_future(asyncio.to_thread(service.run))
    server = Server(home, roster, listener, service, bound, task, federation, work)
    try:
        yield server
    finally:
        await server.die()
        work.result()


class MemberRun:
    """One run of a member, in its own thread with its own event loop."""

    def __init__(self, member: Member, pool: Executor) -> None:
        self._cancel: Callable[[], object] = lambda: None
        here = asyncio.get_running_loop()
        self.work = here.run_in_executor(pool, asyncio.run, self._run(member))

    async def _run(self, member: Member) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        with suppress(asyncio.CancelledError):
            await member.run()

    async def end(self) -> None:
        """Stop the member as its owner does, with an interrupt."""
        while not self.work.done():
            with suppress(RuntimeError):  # the loop is already closed
                self._cancel()
            await asyncio.wait([self.work], timeout=0.2)


@dataclass
class Members:
    """The members that run now. `members_of` stops those that still run at its end."""

    directory: Path
    address: str
    pool: Executor
    runs: dict[str, MemberRun] = field(default_factory=dict)

    def home(self, name: str) -> Path:
        return self.directory / name

    def join(
        self,
        name: str,
        agent: BlackBoxAgent | Callable[[Task], BlackBoxAgent] | None = None,
        *,
        address: str | None = None,
        home: Path | None = None,
        credentials: Credentials | None = None,
        keepalive_seconds: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
        secure_aggregation: bool = False,
    ) -> "asyncio.Future[None]":
        chosen = agent or Recorder(seed=sum(name.encode()))
        own = home or self.home(name)
        own.mkdir(parents=True, exist_ok=True)
        member = Member(
            name,
            address or self.address,
            own,
            (lambda task: chosen) if isinstance(chosen, BlackBoxAgent) else chosen,
            credentials=credentials,
            rng=Hasty(0),
            clock=clock,
            keepalive_seconds=keepalive_seconds,
            secure_aggregation=secure_aggregation,
        )
        self.runs[name] = MemberRun(member, self.pool)
        return asyncio.shield(self.runs[name].work)  # the member runs on if a caller stops waiting

    async def finish(self, *names: str) -> None:
        """Wait until the members end by themselves, and raise their errors."""
        for name in names or tuple(self.runs):
            await asyncio.wait_for(asyncio.shield(self.runs[name].work), PATIENCE_SECONDS)

    async def leave(self, name: str) -> None:
        await self.runs.pop(name).end()


@asynccontextmanager
async def members_of(directory: Path, address: str) -> AsyncIterator[Members]:
    with ThreadPoolExecutor(16) as pool:
        members = Members(directory, address, pool)
        try:
            yield members
        finally:
            for name in tuple(members.runs):
                await members.leave(name)


def fact(home: Path, name: str) -> Any:
    with closing(sqlite3.connect(home / "journal.sqlite")) as database:
        row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else json.loads(row[0])


def events(home: Path) -> str:
    with closing(sqlite3.connect(home / "journal.sqlite")) as database:
        return "\n".join(text for (text,) in database.execute("SELECT text FROM events"))


def accounts(home: Path) -> dict[str, MemberRecord]:
    with closing(Journal(home / "journal.sqlite", read_only=True)) as journal:
        return journal.members()


def broadcast(home: Path) -> list[str]:
    """Return the fingerprints of all improvements in order; the journal must have kept them all."""
    with closing(Journal(home / "journal.sqlite")) as journal:
        improvements = journal.improvements()
    assert [each.number for each in improvements] == list(range(1, len(improvements) + 1))
    assert len(improvements) == (fact(home, "improvements") or 0)
    return fingerprints(improvements)


def assert_exact_shares(home: Path, budget: int) -> None:
    """Check that the members' shares add up to the server's steps, and that nobody overspends."""
    with closing(sqlite3.connect(home / "journal.sqlite", isolation_level=None)) as database:
        database.execute("BEGIN")  # read both in one snapshot
        steps = database.execute("SELECT value FROM facts WHERE name = 'server_env_steps'")
        server_env_steps = int((steps.fetchone() or ("0",))[0])
        rows = database.execute("SELECT record FROM members").fetchall()
    found = [MemberRecord(**json.loads(record)) for (record,) in rows]
    assert sum(Fraction(member.share) for member in found) == server_env_steps
    for member in found:
        assert member.own_env_steps + Fraction(member.share) <= budget, member


def assert_exact_budgets(home: Path, budget: int) -> None:
    """Check the shares, and that the rounds in federation.csv add up to the server's steps."""
    assert_exact_shares(home, budget)
    lines = (home / "federation.csv").read_text().splitlines()
    column = lines[0].split(",").index("round_server_env_steps")
    in_rounds = sum(int(row.split(",")[column]) for row in lines[1:])
    assert in_rounds == (fact(home, "server_env_steps") or 0)


def assert_told_once(
    home: Path,
    directory: Path,
    names: Iterable[str],
    *,
    killed: Iterable[str] = (),
    stopped: Iterable[str] = (),
) -> None:
    """Check that each member got each improvement once and in order, and learned what was charged.

    A member that was `killed` may have lost some of its learning, but has done nothing twice. One
    that was `stopped` before its end may have learned what it has not reported yet.
    """
    whole = broadcast(home)
    for name in names:
        account, agent = accounts(home)[name], told(directory / name)
        assert account.skipped_improvements == 0
        applied = account.joined_at + len(improvements_of(agent))
        assert improvements_of(agent) == whole[account.joined_at : applied]
        # The server may not know the last work of a member that was disconnected at the very end.
        assert applied == account.applied_improvements or not account.parted
        assert applied >= account.applied_improvements
        if name in killed:
            assert learned_of(agent) <= account.own_env_steps
        elif name in stopped or not account.parted:
            assert learned_of(agent) >= account.own_env_steps
        else:
            assert learned_of(agent) == account.own_env_steps


def assert_finished(
    home: Path, directory: Path, names: Iterable[str], budget: int, *, killed: Iterable[str] = ()
) -> None:
    """Check that the run is over, that budgets are exact and that nothing was applied twice."""
    names = tuple(names)
    assert fact(home, "position")["stage"] == "finished"
    assert_exact_budgets(home, budget)
    assert_told_once(home, directory, names, killed=killed)
    for name in names:
        assert accounts(home)[name].finished
