from collections.abc import Sequence

import numpy as np
import pytest

from fedhql.results.claims import (
    CARTPOLE,
    CLAIMS,
    LUNARLANDER,
    MET,
    NOT_MET,
    NOT_RUN,
    PAPER_BUDGET,
    _Claim,
    check_claims,
)
from fedhql.results.curves import Arms, Curve, Run
from tests.results.handmade import curve, run_of

FEDERATED = ("exploration=0", "fedhql", "exploration=3", "exploration=5", "exploration=10")
# At 20, 60 and 100 % of the budget: what the paper's figures show, roughly.
ALONE = {CARTPOLE: (300, 320, 350), LUNARLANDER: (-50, 100, 150)}
TOGETHER = {CARTPOLE: (400, 490, 490), LUNARLANDER: (140, 200, 200)}
Returns = Sequence[float]


@pytest.fixture(autouse=True)
def _the_papers_budget_is_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for env_id in PAPER_BUDGET:
        monkeypatch.setitem(PAPER_BUDGET, env_id, 100)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def three_seeds(agents: Sequence[Returns]) -> dict[int, Curve]:
    return {seed: curve([20, 60, 100], *agents) for seed in range(3)}


def alone(env_id: str, agents: int) -> dict[int, Curve]:
    unlearnable = (9, 9, 9) if env_id == CARTPOLE else ALONE[env_id]
    return three_seeds([ALONE[env_id]] * (agents - 1) + [unlearnable])


def together(env_id: str, agents: int) -> dict[int, Curve]:
    return three_seeds([TOGETHER[env_id]] * agents)


def greedy(env_id: str, agents: int) -> dict[int, Curve]:
    """λ = 0: Agent1 and Agent3 are below what they reach alone."""
    slow = (ALONE[env_id][0] - 10, *TOGETHER[env_id][1:])
    of_agents = [slow if n in (0, 2) else TOGETHER[env_id] for n in range(agents)]
    return three_seeds(of_agents)


def the_papers(env_id: str, agents: int) -> Run:
    arms: Arms = {arm: together(env_id, agents) for arm in FEDERATED}
    arms |= {"independent": alone(env_id, agents), "exploration=0": greedy(env_id, agents)}
    return run_of(arms, env_id=env_id)


def swapped(env_id: str, agents: int) -> Run:
    arms: Arms = {arm: alone(env_id, agents) for arm in FEDERATED}
    return run_of(arms | {"independent": together(env_id, agents)}, env_id=env_id)


def all_good(env_id: str, agents: int) -> Run:
    arms = dict.fromkeys(("independent", *FEDERATED), together(env_id, agents))
    return run_of(arms, env_id=env_id)


def all_bad(env_id: str, agents: int) -> Run:
    arms = dict.fromkeys(("independent", *FEDERATED), alone(env_id, agents))
    return run_of(arms, env_id=env_id)


every_claim = pytest.mark.parametrize(
    "claim", CLAIMS, ids=lambda claim: f"{claim.env_id}-{claim.agents}-{claim.text[:20]}"
)


def status(claim: _Claim, *runs: Run) -> str:
    return check_claims(runs, rng())[CLAIMS.index(claim)].status


@every_claim
def test_numbers_like_the_papers_meet_it(claim: _Claim) -> None:
    assert status(claim, the_papers(claim.env_id, claim.agents)) == MET


@every_claim
def test_other_numbers_do_not(claim: _Claim) -> None:
    for wrong in (swapped, all_good, all_bad):
        assert status(claim, wrong(claim.env_id, claim.agents)) == NOT_MET


@every_claim
def test_it_is_not_run_where_something_is_missing(claim: _Claim) -> None:
    run = the_papers(claim.env_id, claim.agents)
    only_alone = run_of({"independent": run.arms["independent"]}, env_id=claim.env_id)
    only_together = run_of({arm: run.arms[arm] for arm in FEDERATED}, env_id=claim.env_id)
    # Past its first evaluation, but more than two phases short of a fifth of the budget.
    begun = run_of(
        {
            arm: {0: Curve(np.array([5.0]), seeds[0].returns_NE[:, :1])}
            for arm, seeds in run.arms.items()
        },
        env_id=claim.env_id,
    )
    assert status(claim, only_alone) == NOT_RUN
    assert status(claim, only_together) == NOT_RUN
    if "need fewer" not in claim.text:  # which is about whatever was reached
        assert status(claim, begun) == NOT_RUN
    assert status(claim, run_of({}, agents=claim.agents, env_id=claim.env_id)) == NOT_RUN


@every_claim
def test_runs_of_something_else_say_nothing(claim: _Claim) -> None:
    other = LUNARLANDER if claim.env_id == CARTPOLE else CARTPOLE
    assert status(claim) == NOT_RUN
    assert status(claim, the_papers(other, claim.agents)) == NOT_RUN
    assert status(claim, the_papers(claim.env_id, 3)) == NOT_RUN


def test_a_verdict_shows_the_numbers() -> None:
    verdicts = check_claims([the_papers(CARTPOLE, 5), the_papers(LUNARLANDER, 10)], rng())
    ours = {(v.experiment, v.claim[:6]): v.ours for v in verdicts}
    # 400 four times and 9; alone (4 * 300 + 9) / 5.
    told = ours["CartPole N=5", "FedHQL"]
    assert told.startswith("alone: 242 [242, 242]; FedHQL, λ = 0: 356 [356, 356]; ")
    assert "FedHQL, λ = 3: 400 [400, 400]" in told
    greedy_server = (
        "Agent1: λ = 0 290, λ = 1 400, alone 300; Agent3: λ = 0 290, λ = 1 400, alone 300"
    )
    assert ours["CartPole N=5", "λ = 0 "] == greedy_server
    assert ours["CartPole N=5", "Agent5"] == "490 federated, 9 alone"
    # What they reach alone at the end, they reach at 20 %; what cannot be learnt, at once.
    few = "λ = 1: 4 of 5 agents; median ratios 0.20, 0.20, 0.20, 0.20, 1.00"
    assert ours["CartPole N=5", "most a"] == few
    assert ours["LunarLander N=10", "λ = 3 "] == "λ = 3: 140 [140, 140], alone: -50 [-50, -50]"
    assert ours["LunarLander N=5", "Agent1"] == ""


def test_intervals_that_overlap_are_not_above() -> None:
    run = the_papers(CARTPOLE, 5)
    far_apart = {
        seed: curve([20, 100], *[(level, level)] * 5) for seed, level in enumerate((100, 400, 500))
    }
    mixed = run_of(run.arms | {"fedhql": far_apart})
    assert status(CLAIMS[0], mixed) == NOT_MET  # though 333 is above 242


def test_a_run_that_cannot_answer_leaves_it_to_the_next() -> None:
    complete = the_papers(CARTPOLE, 5)
    partial = run_of({"independent": complete.arms["independent"]})
    assert status(CLAIMS[0], partial, complete) == MET
