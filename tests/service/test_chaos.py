"""Processes killed at random, by a seeded schedule: a federation still finishes correctly."""

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


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rounds", "continuous"])
def test_a_federation_finishes_after_many_kills(mode: str, tmp_path: Path) -> None:
    kill_at_random(tmp_path, mode, seed=2, kills=46, budget=7_200)
    check(tmp_path, 7_200)
