"""How often intervals over seeds hold the true mean: Student's t, and the paper's bootstrap.

    python benchmarks/coverage.py

Each sample stands for S seeds of one arm or of paired differences. "five agents" and "one agent"
are bounded at CartPole's 500 and skewed, as max mean returns are: an agent is at 500 with
probability 0.6, else anywhere below; an arm's score is the mean of five agents. Samples without a
t-interval, of too few equal values, do not count for it.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedhql.results.statistics import bootstrap_band, t_interval

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
AT_MAXIMUM = 0.6


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.normal(400, 50, shape)


def one_agent(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return np.where(rng.random(shape) < AT_MAXIMUM, 500, rng.uniform(0, 500, shape))


def five_agents(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return one_agent(rng, (*shape, 5)).mean(axis=-1)


ONE_AGENT_MEAN = AT_MAXIMUM * 500 + (1 - AT_MAXIMUM) * 250
DISTRIBUTIONS: dict[str, tuple[Draw, float]] = {  # and their true means
    "normal": (normal, 400),
    "five agents": (five_agents, ONE_AGENT_MEAN),
    "one agent": (one_agent, ONE_AGENT_MEAN),
}


def samples(name: str, seeds: int, trials: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """Return (S, trials) values and their true mean."""
    draw, mean = DISTRIBUTIONS[name]
    return draw(rng, (seeds, trials)), mean


def t_intervals(values_ST: Floats, level: float) -> tuple[Floats, Floats]:
    """Return the ends of the intervals that there are, of T samples."""
    ends = np.array([t_interval(values_S, level) for values_S in values_ST.T])
    low, high = ends[np.isfinite(ends[:, 0])].T
    return low, high


def covered(low: Floats, high: Floats, mean: float) -> float:
    return float(np.mean((low <= mean) & (mean <= high)))


def main() -> None:
    trials = 20_000
    rng = np.random.default_rng(0)
    print(f"Share of {trials:,} samples whose interval holds the true mean.\n")
    print("| sample | seeds | t 95 % | bootstrap 95 % | t 80 % | bootstrap 80 % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in DISTRIBUTIONS:
        for seeds in (5, 15):
            values, mean = samples(name, seeds, trials, rng)
            cells = [
                f"{covered(low, high, mean):.1%}"
                for level in (0.95, 0.8)
                for low, high in (
                    t_intervals(values, level),
                    bootstrap_band(values, rng, level=level, resamples=1_000),
                )
            ]
            print(f"| {name} | {seeds} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
