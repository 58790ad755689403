"""Readings of the paper: how its agents learn by themselves, where it does not say.

A reading is an optimiser, a warm-up, a schedule of ε and an optimiser of improvements. Its name
joins these, as in "sgd-uniform-constant-adam". Both moments of evaluation are recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from fedhql.results.readings import SEPARATOR

OPTIMISERS: Mapping[str, Sequence[str]] = {
    "adam": ("agents.optimizer=adam",),
    "sgd": ("agents.optimizer=sgd",),
}
WARM_UPS: Mapping[str, Sequence[str]] = {
    "uniform": ("agents.warm_up=uniform", "agents.learning_starts=50000"),
    "policy": ("agents.warm_up=policy", "agents.learning_starts=50000"),
    "none": ("agents.learning_starts=0",),
}
# Falling ε: over a tenth of the whole budget, or of each phase, as is stable-baselines3's default.
EPSILONS: Mapping[str, Sequence[str]] = {
    "constant": ("agents.exploration_fraction=0",),
    "phase": ("agents.exploration_annealing=phase", "agents.exploration_fraction=0.1"),
    "budget": ("agents.exploration_annealing=budget", "agents.exploration_fraction=0.1"),
}
IMPROVEMENTS: Mapping[str, Sequence[str]] = {
    "adam": ("agents.improvement_optimiser=adam", "agents.improvement_learning_rate=1e-3"),
    "sgd": ("agents.improvement_optimiser=sgd", "agents.improvement_learning_rate=1e-2"),
}
ARMS = ("independent", "exploration=0", "fedhql", "exploration=3")
SEEDS = tuple(range(100, 110))  # the choice of a reading must not see the seeds of the results
# The share of the budget that each experiment runs to.
SHARES = {
    "cartpole-n5": 0.4,
    "cartpole-n10": 0.4,
    "lunarlander-n5": 0.6,
    "lunarlander-n10": 0.6,
}


def readings(experiment: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Return the name of each run of an experiment, and the settings that it changes."""
    for optimiser, warm_up, epsilon, improvement in product(
        OPTIMISERS, WARM_UPS, EPSILONS, IMPROVEMENTS
    ):
        name = f"{experiment}{SEPARATOR}{optimiser}-{warm_up}-{epsilon}-{improvement}"
        yield (
            name,
            (
                *OPTIMISERS[optimiser],
                *WARM_UPS[warm_up],
                *EPSILONS[epsilon],
                *IMPROVEMENTS[improvement],
                "evaluation.moments=both",
            ),
        )
