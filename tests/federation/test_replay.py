"""The server's memory: what it keeps, what it recalls, and what it learns from that."""

from pathlib import Path

import numpy as np
import pytest

from fedhql.federation import Budget, FederationServer, InProcessCohort, mean_std
from fedhql.federation.replay import Replay, Transitions, recalled_slots, replay_draws
from tests.federation.test_server import Counting, Linear

CAPACITY, ROOM = 5, 3
EVERY = np.arange(60, dtype=np.uint32)  # draws that meet every transition equally often


def transitions(*numbers: int) -> Transitions:
    """Return transitions that can be told apart by their states."""
    states = np.array(numbers, dtype=np.int64)
    rewards, ended = (states / 2).astype(np.float32), states % 2 == 0
    return Transitions(states, states % 3, rewards, states + 1, ended)


def recalled(replay: Replay) -> list[int]:
    """Return the states that can be recalled, after a look at the other fields."""
    rows = replay.recall(EVERY)
    assert rows is not None
    for row, expected in zip(zip(*rows, strict=True), rows.states, strict=True):
        assert row == tuple(field[0] for field in transitions(expected))
    states, counts = np.unique(rows.states, return_counts=True)
    assert len(set(counts)) == 1, "some are drawn more often"
    return [int(state) for state in states]


def test_the_latest_transitions_are_recalled_all_alike() -> None:
    replay = Replay(CAPACITY, 2, ROOM)
    assert replay.recall(EVERY) is None
    replay.remember(transitions(10, 11, 12))
    assert recalled(replay) == [10, 11, 12]
    replay.remember(transitions(13, 14, 15))
    assert recalled(replay) == [11, 12, 13, 14, 15]
    for number in range(16, 40):
        replay.remember(transitions(number))
        assert recalled(replay) == list(range(number - 4, number + 1))


def test_a_step_that_was_undone_recalls_the_same_again(tmp_path: Path) -> None:
    """A server that was killed in a step has a file that holds more than its journal says."""
    file = tmp_path / "replay.npy"
    replay = Replay(CAPACITY, 2, ROOM, file)
    for first in range(0, 30, 3):
        replay.remember(transitions(first, first + 1, first + 2))
        before, count = recalled(replay), replay.count
        replay.remember(transitions(97, 98, 99))
        again = Replay(CAPACITY, 2, ROOM, file)
        again.go_to(count)
        assert recalled(again) == before
        replay.go_to(count)


def test_a_memory_whose_file_is_gone_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "replay.npy"
    for bad in (None, b"", b"\x93NUMPY\x01\x00v"):
        if bad is not None:
            file.write_bytes(bad)
        replay = Replay(CAPACITY, 2, ROOM, file)
        replay.go_to(7)
        assert replay.recall(EVERY) is None
        replay.remember(transitions(1, 2))
        assert recalled(replay) == [1, 2]


def test_a_memory_whose_file_is_of_another_time_begins_anew(tmp_path: Path) -> None:
    """The journal counts more transitions than an old copy has, or fewer than a new one."""
    file = tmp_path / "replay.npy"
    Replay(CAPACITY, 2, ROOM, file).remember(transitions(1, 2))
    for count in (3, 500):
        replay = Replay(CAPACITY, 2, ROOM, file)
        replay.go_to(count)
        assert replay.recall(EVERY) is None
    replay = Replay(CAPACITY, 2, ROOM, file)
    replay.go_to(2)
    for number in range(3, 20):
        replay.remember(transitions(number))
    replay.go_to(12)
    assert replay.recall(EVERY) is None


def test_a_memory_is_saved_and_restored(tmp_path: Path) -> None:
    replay, other = Replay(CAPACITY, 2, ROOM), Replay(CAPACITY, 2, ROOM)
    replay.save(tmp_path / "empty.npy")
    other.restore(tmp_path / "empty.npy")
    assert other.recall(EVERY) is None
    replay.remember(transitions(*range(7)))
    replay.save(tmp_path / "full.npy")
    other.restore(tmp_path / "full.npy")
    for each in (replay, other):
        each.remember(transitions(7))
        assert recalled(each) == [3, 4, 5, 6, 7]


def test_draws_are_of_the_round_and_do_not_favour_any_transition() -> None:
    """Of 7 transitions with 70,000 draws each has 10,000; 5 standard errors are 460."""
    draws = replay_draws([3, 4], 70, 1000)
    assert (draws == replay_draws([3, 9], 70, 1000)).all()
    assert (draws != replay_draws([4, 3], 70, 1000)).any()
    slots = recalled_slots(draws.ravel().astype(np.int64), 12, 7, 9)
    found, counts = np.unique(slots, return_counts=True)
    assert found.tolist() == [0, 1, 2, 5, 6, 7, 8]  # 5 to 11 of the 12, in a ring of 9
    assert abs(counts - 10_000).max() < 460


@pytest.mark.parametrize("all_actions", [False, True])
def test_a_step_learns_from_earlier_transitions_too(all_actions: bool) -> None:
    """They cost no env steps, and they are not in the figures."""
    agent = Linear([1, 2])
    federation = FederationServer(
        InProcessCohort([agent], 2),
        Counting({}),
        mean_std(0),
        horizon_steps=3,
        learning_rate=1.0,
        discount=0.5,
        all_actions=all_actions,
        replay=Replay(1, 2, 1),  # it recalls the step before, twice
    )
    budget, figures = federation.federate(Budget(1000, 1), [10])
    assert budget.server_env_steps == figures.server_env_steps == 3
    # Of the 3 transitions: |1 + 0.5 · 2 (s + 1) - 2 s| is 8, 9 and 10
    assert figures.td_error == 9
    learned = [list(zip(*sent, strict=True)) for sent in agent.improvements]
    states = [[s for s, action, _ in step if action == 1] for step in learned]
    assert states == [[10], [11, 10, 10], [12, 11, 11]]
    for s, action, target in (row for step in learned for row in step):
        # Action 1 is taken: reward 1, next q̄ = 2 (s + 1). The other one has its centre.
        assert target == (1 + 0.5 * 2 * (s + 1) if action == 1 else s)
