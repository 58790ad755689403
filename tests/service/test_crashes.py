"""A server or a member that ends anywhere, again and again, and what is then in its files."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedhql.remote.server import listener
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


class Died(Exception):
    """Here the process ended."""


class DyingJournal(Journal):
    """Ends its process at its n-th writing: just before, or just after. -1: never."""

    def __init__(self, path: Path, dies_at: int, *, written: bool, of_all: bool) -> None:
        super().__init__(path)
        self._left, self._written, self._of_all = dies_at, written, of_all
        self.dead = False

    def write(self, **what: Any) -> None:
        """`of_all`: counts also what does not bring the federation on, as that a member came."""
        self._left -= self._of_all or "rows" in what or "position" in (what.get("facts") or {})
        if self.dead or (self._left == 0 and not self._written):
            self.dead = True
            raise Died
        super().write(**what)
        if self._left == 0:
            self.dead = True
            raise Died


async def live_until_death(home: Path, text: str, port: int, journal: DyingJournal) -> bool:
    """One life of a server; whether it finished its work."""
    try:
        async with serving(home, text, port=port, journal=lambda path: journal) as server:
            while not journal.dead and not server.work.done():
                await asyncio.sleep(0.002)
        return not journal.dead
    except Died:
        return False


@pytest.mark.parametrize(
    "rule",
    ["", 'rule = "bellman-weighted"\nbroadcast = "all-actions"\n'],
    ids=["paper", "weighted"],
)
def test_a_server_that_dies_at_any_writing_does_what_an_undisturbed_one_does(
    tmp_path: Path, rule: str
) -> None:
    text = federation(BUDGET, start_with=3, quorum=3, return_seconds=1, members=NAMES)
    text = text.replace("[federation]\n", f"[federation]\n{rule}")

    async def disturbed(home: Path, directory: Path, deaths: int) -> int:
        async with serving(home, text) as first:
            port = first.port
        lives = 0
        async with members_of(directory, f"127.0.0.1:{port}") as members:
            for seed, name in enumerate(NAMES):
                members.join(name, Recorder(seed))
            for lives in range(1, 100):
                # Most lives bring it on by a writing or two, so that none is left out.
                of_all, written = lives % 4 == 0, lives // 3 % 2 == 0
                dies_at = 3 + lives % 7 if of_all else 1 + lives % 3
                path = home / "journal.sqlite"
                journal = DyingJournal(
                    path, dies_at if lives <= deaths else -1, written=written, of_all=of_all
                )
                if await live_until_death(home, text, port, journal):
                    break
            await members.finish()
        assert_finished(home, directory, NAMES, BUDGET)
        return lives

    (tmp_path / "whole").mkdir()
    assert asyncio.run(disturbed(tmp_path / "whole/home", tmp_path / "whole", deaths=0)) == 1
    (tmp_path / "torn").mkdir()
    lives = asyncio.run(disturbed(tmp_path / "torn/home", tmp_path / "torn", deaths=100))
    assert lives > 20
    assert fact(tmp_path / "torn/home", "epoch") == lives + 1
    assert broadcast(tmp_path / "torn/home") == broadcast(tmp_path / "whole/home")
    for name in ("evaluations.csv", "federation.csv"):
        torn, whole = (tmp_path / run / "home" / name for run in ("torn", "whole"))
        assert torn.read_bytes() == whole.read_bytes()


class Deaths:
    """Ends a member's process at its n-th step: inside its agent, or when it writes a file."""

    def __init__(self) -> None:
        self.left = 0
        self.thread = 0
        self.places: set[str] = set()

    def begin(self, dies_at: int, task: Task) -> Recorder:
        self.left, self.thread = dies_at, threading.get_ident()
        agent = Recorder(seed=1)
        agent.at = self.at
        return agent

    def at(self, place: str) -> None:
        if threading.get_ident() == self.thread:
            self.left -= 1
            if self.left == 0:
                self.places.add(place)
                raise Died


def test_a_member_that_dies_at_any_step_has_each_improvement_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths, lives = Deaths(), 0

    def can_end_before(owner: Any, function: str) -> None:
        whole: Callable[..., Any] = getattr(owner, function)

        def ending(*arguments: Any) -> Any:
            deaths.at(function)
            return whole(*arguments)

        monkeypatch.setattr(owner, function, ending)

    monkeypatch.setattr(listener, "CONNECTIONS_AT_ONCE", 1_000)  # it comes again at once, always
    can_end_before(os, "fsync")
    can_end_before(Path, "rename")
    can_end_before(Path, "replace")

    async def run() -> None:
        nonlocal lives
        text = federation(9 * BUDGET, start_with=3, quorum=3, return_seconds=1)
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("bob")
            members.join("cyd")
            for lives in range(1, 200):
                # A life's first steps bring it nowhere, so some lives have to be longer.
                dies_at = 1 + lives * 7 % 60 if lives < 150 else 0
                died = members.join(
                    "ann",
                    partial(deaths.begin, dies_at),
                    # Half of them save after every report, the others seldom.
                    clock=(lambda: 0.0) if lives % 2 else time.monotonic,
                )
                try:
                    await asyncio.wait_for(died, 30)
                except Died:
                    continue
                break
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert lives > 25
    assert len(deaths.places) >= 8, deaths.places
    assert_finished(tmp_path / "home", tmp_path, NAMES, 9 * BUDGET, killed=("ann",))
    assert accounts(tmp_path / "home")["ann"].connections >= lives // 2
    assert "the rest goes to it again" in events(tmp_path / "home")
