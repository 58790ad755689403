"""Which evaluations of members are due, without a network."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedhql.acting import greedy_in
from fedhql.remote.server.journal import MemberRecord
from fedhql.service.evaluations import MemberEvaluations
from fedhql.settings.served import read_served_settings
from fedhql.storage.records import CONSENSUS, SELF_LEARNING

TASK = """
[environment]
id = "FrozenLake-v1"
[federation]
query_batch = 10
horizon_steps = 5
self_learning_env_steps = 100
[budget]
env_steps_per_agent = 1_000
[evaluation]
episodes = 1
interval_env_steps = 100
[service]
start_with = 2
quorum = 2
"""


def taken(mode: str, a: MemberRecord, b: MemberRecord, *, silent: str = "") -> tuple[Any, Any]:
    """Return whom each evaluation counts for, and how many each has behind it then."""
    settings = read_served_settings(TASK + f'mode = "{mode}"\n')
    members = {"a": a, "b": b}
    cohort: Any = SimpleNamespace(
        names=("a", "b"),
        silent={silent},
        act_each=lambda states: [
            greedy_in(np.zeros((len(of), 4), dtype=np.float32)) for of in states
        ],
    )
    roster: Any = SimpleNamespace(members=members, settings=settings.service)
    found: list[Any] = []
    records: Any = SimpleNamespace(
        consensus_evaluations=lambda moment: 3,
        evaluated=lambda round_, moment, played, passed: found.append((played, passed)),
    )
    MemberEvaluations(settings, cohort, roster, records).take(SELF_LEARNING, 7)
    if not found:
        return [], {}
    ((played, passed),) = found
    return [each.counts for each in played], passed


def member(name: str, consumed: int, evaluations: int) -> MemberRecord:
    return MemberRecord(name, 0, own_env_steps=consumed, evaluations={SELF_LEARNING: evaluations})


def test_nothing_is_due_between_two_points() -> None:
    assert taken("rounds", member("a", 399, 3), member("b", 350, 3)) == ([], {})


def test_the_consensus_follows_the_member_that_has_consumed_most() -> None:
    counts, passed = taken("rounds", member("a", 401, 3), member("b", 350, 3))
    assert counts == [{"a", CONSENSUS}]
    assert passed == {"a": 4, "b": 3, CONSENSUS: 4}


def test_a_member_that_does_not_answer_stays_due() -> None:
    counts, _ = taken("rounds", member("a", 401, 3), member("b", 400, 3), silent="b")
    assert counts == [{"a", CONSENSUS}]


@pytest.mark.parametrize(("mode", "times"), [("rounds", 2), ("continuous", 1)])
def test_missed_evaluations_are_not_all_taken_later(mode: str, times: int) -> None:
    """A round of 100 + 5 · 10 env steps passes at most two points."""
    counts, passed = taken(mode, member("a", 950, 0), member("b", 350, 3))
    assert [("a" in each, "b" in each) for each in counts] == [(True, False)] * times
    assert passed["a"] == 9
