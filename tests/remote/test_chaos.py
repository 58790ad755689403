"""Processes killed at random, by a schedule that a seed repeats: what holds, holds throughout."""

import random
import time
from pathlib import Path

import pytest

from tests.remote.federating import (
    accounts,
    assert_exact_shares,
    assert_finished,
    fact,
    federation,
)
from tests.remote.processes import processes

NAMES = ("ann", "bob", "cyd")


def kill_at_random(directory: Path, mode: str, seed: int, seconds: float, budget: int) -> int:
    """How many were killed; each is started again, the server and members alike."""
    draw, kills = random.Random(seed), 0
    text = federation(
        budget,
        mode=mode,
        exchange_deadline_seconds=2,
        learning_deadline_seconds=10,
        return_seconds=8,
        round_interval_seconds=0.2,
        chunk_env_steps=5,
    )
    with processes(directory, text) as running:

        def start(name: str) -> None:
            if name == "server":
                running.serve()
            else:
                running.join(name, learn_seconds=0.05, improve_seconds=0.02)

        for name in ("server", *NAMES):
            start(name)
        running.until_improvements(1)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            victim, pause = draw.choice(("server", *NAMES)), draw.uniform(0.0, 1.5)
            time.sleep(pause)
            if running.running[victim].poll() is not None:
                break  # it has finished
            running.kill(victim)
            kills += 1
            assert_exact_shares(running.home, budget)
            start(victim)
        running.finish()
    return kills


def check(directory: Path, budget: int) -> None:
    home = directory / "home"
    assert_finished(home, directory, NAMES, budget, killed=NAMES)
    found = accounts(home)
    assert sum(account.connections for account in found.values()) > len(NAMES)
    assert fact(home, "improvements") > 20
    for account in found.values():
        assert account.refused_answers == 0
        assert not account.quarantined


def test_fifteen_seconds_of_chaos(tmp_path: Path) -> None:
    assert kill_at_random(tmp_path, "rounds", seed=1, seconds=7, budget=480) >= 3
    check(tmp_path, 480)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rounds", "continuous"])
def test_two_minutes_of_chaos(mode: str, tmp_path: Path) -> None:
    assert kill_at_random(tmp_path, mode, seed=2, seconds=110, budget=6_000) >= 25
    check(tmp_path, 6_000)
