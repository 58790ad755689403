"""What the paper claims, each with the number a run puts beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.objectives import Estimate, curves_until, sample_efficiency, welfare_of
from fedhql.storage.arm_names import INDEPENDENT

MET, NOT_MET, NOT_RUN = "met", "not met", "not run"
CARTPOLE, LUNARLANDER = "CartPole-v1", "LunarLander-v3"
# Claims are about shares of the paper's budget, also where a run has less.
PAPER_BUDGET = {CARTPOLE: 2_000_000, LUNARLANDER: 4_000_000}
EXPLORATIONS = (0.0, 1.0, 3.0, 5.0, 10.0)


class _Missing(Exception):
    """What a claim is about was not run, or not so far."""


@dataclass(frozen=True)
class Verdict:
    """A claim held against a run."""

    experiment: str
    claim: str
    paper: str  # its figure, as far as it gives one
    ours: str
    status: str


Answer = tuple[bool, str] | None  # whether it is met and by what; None: not run


@dataclass(frozen=True)
class _Claim:
    env_id: str
    agents: int
    text: str
    paper: str
    check: Callable[[Run, np.random.Generator], Answer]


def check_claims(runs: Sequence[Run], rng: np.random.Generator) -> list[Verdict]:
    verdicts = []
    for claim in CLAIMS:
        mine = [
            run
            for run in runs
            if run.settings["environment"]["id"] == claim.env_id and len(run.agents) == claim.agents
        ]
        answers = [answer for run in mine if (answer := claim.check(run, rng))]
        experiment = f"{claim.env_id.partition('-')[0]} N={claim.agents}"
        met, ours = answers[0] if answers else (False, "")
        status = (MET if met else NOT_MET) if answers else NOT_RUN
        verdicts.append(Verdict(experiment, claim.text, claim.paper, ours, status))
    return verdicts


def _arm(run: Run, exploration: float) -> str | None:
    return next((a for a in run.federated_arms if run.exploration(a) == exploration), None)


def _consumed(run: Run, fraction: float) -> float:
    return fraction * PAPER_BUDGET[run.settings["environment"]["id"]]


def _estimate(run: Run, arm: str | None, fraction: float, rng: np.random.Generator) -> Estimate:
    scores = welfare_of(run, arm or "", _consumed(run, fraction))
    if not scores:
        raise _Missing(f"no seed of {arm} has consumed {fraction:.0%} of the budget")
    return Estimate.of(list(scores.values()))


def _agent(run: Run, arm: str | None, fraction: float, number: int) -> float:
    found = curves_until(run, arm or "", _consumed(run, fraction))
    if not found:
        raise _Missing(f"no seed of {arm} has consumed {fraction:.0%} of the budget")
    return fmean(curve.max_mean()[number - 1] for curve in found.values())


def _where_run(
    check: Callable[[Run, np.random.Generator], tuple[bool, str]],
) -> Callable[[Run, np.random.Generator], Answer]:
    """A check that finds something missing was not run."""

    def checked(run: Run, rng: np.random.Generator) -> Answer:
        try:
            return check(run, rng)
        except _Missing:
            return None

    return checked


def _every_exploration_above_alone(fraction: float) -> Callable[..., Answer]:
    @_where_run
    def check(run: Run, rng: np.random.Generator) -> tuple[bool, str]:
        alone = _estimate(run, INDEPENDENT, fraction, rng)
        arms = [arm for value in EXPLORATIONS if (arm := _arm(run, value))]
        if len(arms) < len(EXPLORATIONS):
            raise _Missing("some λ")
        ours = {arm: _estimate(run, arm, fraction, rng) for arm in arms}
        told = "; ".join(f"{run.label(arm)}: {estimate}" for arm, estimate in ours.items())
        return all(e.low > alone.high for e in ours.values()), f"alone: {alone}; {told}"

    return check


def _welfare(
    explorations: Sequence[float], fraction: float, *, federated: float, alone: float
) -> Callable[..., Answer]:
    """The best of these λ reaches `federated` where agents alone are below `alone`."""

    @_where_run
    def check(run: Run, rng: np.random.Generator) -> tuple[bool, str]:
        mine = [_estimate(run, _arm(run, value), fraction, rng) for value in explorations]
        theirs = _estimate(run, INDEPENDENT, fraction, rng)
        told = ", ".join(f"λ = {value:g}: {e}" for value, e in zip(explorations, mine, strict=True))
        met = max(e.mean for e in mine) >= federated and theirs.mean < alone
        return met, f"{told}, alone: {theirs}"

    return check


def _one_agent(
    number: int, fraction: float, *, federated: float, alone: float
) -> Callable[..., Answer]:
    @_where_run
    def check(run: Run, rng: np.random.Generator) -> tuple[bool, str]:
        mine = _agent(run, _arm(run, 1.0), fraction, number)
        theirs = _agent(run, INDEPENDENT, fraction, number)
        return mine >= federated and theirs < alone, f"{mine:.0f} federated, {theirs:.0f} alone"

    return check


def _greedy_server_hurts(numbers: Sequence[int], fraction: float) -> Callable[..., Answer]:
    """λ = 0 leaves these agents below what they reach alone, λ = 1 above."""

    @_where_run
    def check(run: Run, rng: np.random.Generator) -> tuple[bool, str]:
        told, met = [], True
        for number in numbers:
            zero, one, alone = (
                _agent(run, arm, fraction, number)
                for arm in (_arm(run, 0.0), _arm(run, 1.0), INDEPENDENT)
            )
            told.append(f"Agent{number}: λ = 0 {zero:.0f}, λ = 1 {one:.0f}, alone {alone:.0f}")
            met = met and zero < alone < one
        return met, "; ".join(told)

    return check


@_where_run
def _most_agents_need_less(run: Run, rng: np.random.Generator) -> tuple[bool, str]:
    arm = _arm(run, 1.0)
    rows = sample_efficiency(run, arm) if arm else []
    if not rows:
        raise _Missing("nothing to compare")
    needed = [row for row in rows if row.median_ratio < 1]
    told = ", ".join(f"{row.median_ratio:.2f}" for row in rows)
    met = len(needed) > len(rows) / 2
    return met, f"λ = 1: {len(needed)} of {len(rows)} agents; median ratios {told}"


CLAIMS = (
    _Claim(CARTPOLE, 5, "FedHQL with every λ above independent DQN, at 20 % of the budget",
           "significantly", _every_exploration_above_alone(0.2)),
    _Claim(CARTPOLE, 5, "λ = 0 makes Agent1 and Agent3 slightly worse than alone, λ = 1 does not",
           "slightly worse", _greedy_server_hurts((1, 3), 0.2)),
    _Claim(CARTPOLE, 5, "Agent5: unlearnable alone, nearly the maximum in the federation",
           "near 500", _one_agent(5, 1.0, federated=450, alone=300)),
    _Claim(CARTPOLE, 5, "most agents need fewer interactions for what they reach alone",
           "most", _most_agents_need_less),
    _Claim(CARTPOLE, 10, "λ = 1 or 3 close to 400 at 20 % of the budget, where alone it is 300",
           "about 400, 300", _welfare((1.0, 3.0), 0.2, federated=380, alone=330)),
    _Claim(CARTPOLE, 10, "FedHQL with every λ above independent DQN, at 20 % of the budget",
           "significantly", _every_exploration_above_alone(0.2)),
    _Claim(CARTPOLE, 10, "Agent10: unlearnable alone, nearly the maximum in the federation",
           "near 500", _one_agent(10, 1.0, federated=450, alone=300)),
    _Claim(LUNARLANDER, 5, "λ = 1 close to 100 at 20 % of the budget, where alone it is below 0",
           "about 100, below 0", _welfare((1.0,), 0.2, federated=80, alone=0)),
    _Claim(LUNARLANDER, 5, "Agent1 at about 150 with λ = 1 at 20 % of the budget; alone below 100",
           "150, 100 only at 60 %", _one_agent(1, 0.2, federated=130, alone=100)),
    _Claim(LUNARLANDER, 5, "most agents need fewer interactions for what they reach alone",
           "most", _most_agents_need_less),
    _Claim(LUNARLANDER, 10, "λ = 3 close to 100 at 20 % of the budget; alone about 0",
           "about 100, 0", _welfare((3.0,), 0.2, federated=80, alone=20)),
)  # fmt: skip
