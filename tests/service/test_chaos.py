"""Processes killed at random, and members that misbehave: a federation still finishes correctly."""

import asyncio
import random
import time
from pathlib import Path

import numpy as np
import pytest

from fedhql.remote.wire import pack
from fedhql.remote.wire_pb2 import Order, Report
from tests.remote.federating import (
    accounts,
    assert_exact_budgets,
    assert_exact_shares,
    assert_finished,
    assert_told_once,
    fact,
    federation,
    members_of,
    serving,
)
from tests.remote.processes import processes
from tests.remote.raw_member import RawMember
from tests.remote.recording import Recorder

NAMES = ("ann", "bob", "cyd")


def kill_at_random(directory: Path, mode: str, seed: int, kills: int, budget: int) -> None:
    """Kill the server or a member `kills` times, and restart it each time."""
    draw = random.Random(seed)
    text = federation(
        budget,
        mode=mode,
        exchange_deadline_seconds=2,
        learning_deadline_seconds=10,
        return_seconds=8,
        round_interval_seconds=0.2,
        chunk_env_steps=10,
    )
    with processes(directory, text) as running:

        def start(name: str) -> None:
            if name == "server":
                running.serve()
            else:
                running.join(name, learn_seconds=0.1, improve_seconds=0.02)

        for name in ("server", *NAMES):
            start(name)
        running.until_improvements(1)
        for _ in range(kills):
            victim, pause = draw.choice(("server", *NAMES)), draw.uniform(0.0, 1.5)
            time.sleep(pause)
            assert running.stage() != "finished", "the federation finished before all kills"
            assert running.running[victim].poll() is None, running.log(victim)
            running.kill(victim)
            assert_exact_shares(running.home, budget)
            start(victim)
        running.finish(seconds=600)  # on a slow machine most of the work is still to be done


def check(directory: Path, budget: int) -> None:
    home = directory / "home"
    assert_finished(home, directory, NAMES, budget, killed=NAMES)
    found = accounts(home)
    assert sum(account.connections for account in found.values()) > len(NAMES)
    assert fact(home, "improvements") > 20
    for account in found.values():
        assert account.refused_answers == 0
        assert not account.quarantined


def test_a_federation_finishes_after_a_few_kills(tmp_path: Path) -> None:
    kill_at_random(tmp_path, "rounds", seed=1, kills=4, budget=600)
    check(tmp_path, 600)


class Hung(RawMember):
    """Never finishes a phase after its first."""

    async def on_learn(self, order: Order) -> None:
        if order.learn.phase == 1:
            await super().on_learn(order)


class Slow(RawMember):
    """Answers after the deadline, most of the time."""

    async def on_query(self, order: Order) -> None:
        await asyncio.sleep(0.4)
        await super().on_query(order)


class Flapping(RawMember):
    """Breaks its connection after every tenth order."""

    orders = 0

    async def on_order(self, order: Order) -> None:
        await super().on_order(order)
        self.orders += 1
        if self.connections < 15 and self.orders % 10 == 0:
            await self.call.done_writing()


class Lying(RawMember):
    """Answers infinity after its third improvement."""

    async def on_query(self, order: Order) -> None:
        if self.applied < 3:
            await super().on_query(order)
            return
        values = np.full((order.query.states.shape[0], self.actions), np.inf, dtype=np.float32)
        await self.report(Report(id=order.id, values=pack(values)))


def misbehave(directory: Path, mode: str, seed: int, budget: int) -> None:
    """Run four good members, which leave and return at random, beside four that misbehave."""
    draw = random.Random(seed)
    text = federation(
        budget, mode=mode, start_with=8, quorum=2, exchange_deadline_seconds=0.25,
        learning_deadline_seconds=0.5, return_seconds=20, round_interval_seconds=0.05,
        chunk_env_steps=10,
    )  # fmt: skip
    good = ("ann", "bob", "cyd", "dan")

    async def run() -> None:
        async with (
            serving(directory / "home", text) as server,
            members_of(directory, server.address) as members,
        ):
            for number, name in enumerate(good):
                members.join(name, Recorder(number))
            bad = [
                kind(server.address, kind.__name__.lower())
                for kind in (Hung, Slow, Flapping, Lying)
            ]
            running = [asyncio.ensure_future(each.run()) for each in bad]
            while not server.work.done():
                await asyncio.sleep(draw.uniform(0.5, 2.0))
                name = draw.choice(good)
                if not server.work.done() and not server.roster.members[name].finished:
                    await members.leave(name)
                    members.join(name, Recorder(good.index(name)))
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    home = directory / "home"
    assert_exact_budgets(home, budget)
    assert_told_once(home, directory, good)
    found = accounts(home)
    assert all(found[name].finished for name in good)
    assert all(budget - found[name].account.consumed < 4 for name in good)  # a server step
    assert found["lying"].quarantined
    assert found["hung"].missed_phases > 0
    assert found["slow"].unanswered_questions > 0
    assert found["flapping"].connections > 3


def test_a_federation_finishes_beside_members_that_misbehave(tmp_path: Path) -> None:
    misbehave(tmp_path, "rounds", seed=3, budget=1_000)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_federations_finish_for_ten_minutes_beside_members_that_misbehave(tmp_path: Path) -> None:
    begun, seed = time.monotonic(), 100
    while time.monotonic() - begun < 600:
        for mode in ("rounds", "continuous"):
            misbehave(tmp_path / f"{mode}{seed}", mode, seed, budget=4_000)
        seed += 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rounds", "continuous"])
def test_a_federation_finishes_after_many_kills(mode: str, tmp_path: Path) -> None:
    kill_at_random(tmp_path, mode, seed=2, kills=46, budget=7_200)
    check(tmp_path, 7_200)
