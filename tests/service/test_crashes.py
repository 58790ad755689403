"""A server or a member that crashes at any step, again and again, and its files afterwards."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedhql.remote.server import rate_limit
from fedhql.remote.server.journal import Journal
from fedhql.remote.wire_pb2 import Task
from tests.remote.federating import (
    accounts,
    assert_finished,
    broadcast,
    events,
    fact,
    federation,
    members_of,
    serving,
)
from tests.remote.recording import Recorder

NAMES = ("ann", "bob", "cyd")
BUDGET = 72  # three rounds


class Crashed(Exception):
    """The simulated process crashed here."""


class CrashingJournal(Journal):
    """Crashes at its n-th write: just after it if `written`, else just before. -1: never.

    With `of_all` every write counts, otherwise only those that advance the federation.
    """

    def __init__(self, path: Path, crash_at: int, *, written: bool, of_all: bool) -> None:
        super().__init__(path)
        self._left, self._written, self._of_all = crash_at, written, of_all
        self.crashed = False

    def write(self, **what: Any) -> None:
        self._left -= self._of_all or "rows" in what or "position" in (what.get("facts") or {})
        if self.crashed or (self._left == 0 and not self._written):
            self.crashed = True
            raise Crashed
        super().write(**what)
        if self._left == 0:
            self.crashed = True
            raise Crashed


async def run_until_crash(home: Path, text: str, port: int, journal: CrashingJournal) -> bool:
    """Run a server until it ends or crashes; return whether it finished its work."""
    try:
        async with serving(home, text, port=port, journal=lambda path: journal) as server:
            while not journal.crashed and not server.work.done():
                await asyncio.sleep(0.002)
        return not journal.crashed
    except Crashed:
        return False


@pytest.mark.parametrize(
    "rule",
    ["", 'rule = "bellman-weighted"\nbroadcast = "all-actions"\n'],
    ids=["paper", "weighted"],
)
def test_a_server_that_crashes_at_any_write_gives_the_same_result(
    tmp_path: Path, rule: str
) -> None:
    text = federation(BUDGET, start_with=3, quorum=3, return_seconds=1, members=NAMES)
    text = text.replace("[federation]\n", f"[federation]\n{rule}")

    async def run(home: Path, directory: Path, crashes: int) -> int:
        async with serving(home, text) as first:
            port = first.port
        starts = 0
        async with members_of(directory, f"127.0.0.1:{port}") as members:
            for seed, name in enumerate(NAMES):
                members.join(name, Recorder(seed))
            for starts in range(1, 100):
                # Most starts advance it by a write or two, so that no write is left out.
                of_all, written = starts % 4 == 0, starts // 3 % 2 == 0
                crash_at = 3 + starts % 7 if of_all else 1 + starts % 3
                path = home / "journal.sqlite"
                journal = CrashingJournal(
                    path, crash_at if starts <= crashes else -1, written=written, of_all=of_all
                )
                if await run_until_crash(home, text, port, journal):
                    break
            await members.finish()
        assert_finished(home, directory, NAMES, BUDGET)
        return starts

    (tmp_path / "whole").mkdir()
    assert asyncio.run(run(tmp_path / "whole/home", tmp_path / "whole", crashes=0)) == 1
    (tmp_path / "torn").mkdir()
    starts = asyncio.run(run(tmp_path / "torn/home", tmp_path / "torn", crashes=100))
    assert starts > 20
    assert fact(tmp_path / "torn/home", "epoch") == starts + 1
    assert broadcast(tmp_path / "torn/home") == broadcast(tmp_path / "whole/home")
    for name in ("evaluations.csv", "federation.csv"):
        torn, whole = (tmp_path / run / "home" / name for run in ("torn", "whole"))
        assert torn.read_bytes() == whole.read_bytes()


class Crashes:
    """Crashes a member at its n-th step: inside its agent, or when it writes a file."""

    def __init__(self) -> None:
        self.left = 0
        self.thread = 0
        self.points: set[str] = set()

    def begin(self, crash_at: int, task: Task) -> Recorder:
        self.left, self.thread = crash_at, threading.get_ident()
        agent = Recorder(seed=1)
        agent.at = self.at
        return agent

    def at(self, point: str) -> None:
        if threading.get_ident() == self.thread:
            self.left -= 1
            if self.left == 0:
                self.points.add(point)
                raise Crashed


def test_a_member_that_crashes_at_any_step_applies_each_improvement_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes, starts = Crashes(), 0

    def can_crash_before(owner: Any, function: str) -> None:
        whole: Callable[..., Any] = getattr(owner, function)

        def crashing(*arguments: Any) -> Any:
            crashes.at(function)
            return whole(*arguments)

        monkeypatch.setattr(owner, function, crashing)

    monkeypatch.setattr(rate_limit, "CONNECTIONS_AT_ONCE", 1_000)  # it always reconnects at once
    can_crash_before(os, "fsync")
    can_crash_before(Path, "rename")
    can_crash_before(Path, "replace")

    async def run() -> None:
        nonlocal starts
        text = federation(9 * BUDGET, start_with=3, quorum=3, return_seconds=1)
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("bob")
            members.join("cyd")
            for starts in range(1, 200):
                # The first steps after a start make no progress, so some runs have to be longer.
                crash_at = 1 + starts * 7 % 60 if starts < 150 else 0
                run_ = members.join(
                    "ann",
                    partial(crashes.begin, crash_at),
                    # Half of the runs save after every report, the others rarely.
                    clock=(lambda: 0.0) if starts % 2 else time.monotonic,
                )
                try:
                    await asyncio.wait_for(run_, 30)
                except Crashed:
                    continue
                break
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert starts > 25
    assert len(crashes.points) >= 8, crashes.points
    assert_finished(tmp_path / "home", tmp_path, NAMES, 9 * BUDGET, killed=("ann",))
    assert accounts(tmp_path / "home")["ann"].connections >= starts // 2
    assert "sending the rest again" in events(tmp_path / "home")
