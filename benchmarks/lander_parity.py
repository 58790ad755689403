"""Does the twin of LunarLander play like Gymnasium's? Seven policies, 3,000 episodes each.

    PYTHONPATH=. python benchmarks/lander_parity.py [--episodes 3000] [--policies random landing]

Each policy plays with both. The p values are Kolmogorov-Smirnov's for returns and lengths, and
chi-squared for outcomes: 21 tests. If both sides are the same, the smallest of 21 p values is below
0.0005 with a probability of 1 %. The last columns compare the last observations.
"""

import argparse
import time

import numpy as np
from scipy import stats

from tests.environments.lunar_lander.distributions import (
    OUTCOMES,
    by_gymnasium,
    by_twin,
    p_values,
    policies,
)

LANES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=3_000)
    parser.add_argument("--policies", nargs="*", default=list(policies()))
    options = parser.parse_args()
    for name in options.policies:
        policy = policies()[name]()
        began = time.perf_counter()
        theirs = by_gymnasium(policy, options.episodes)
        between = time.perf_counter()
        ours = by_twin(policy, options.episodes, min(LANES, options.episodes))
        seconds = between - began, time.perf_counter() - between
        print(
            f"{name}: {options.episodes} episodes, "
            f"Gymnasium {seconds[0]:.0f} s, twin {seconds[1]:.0f} s"
        )
        for side, of in (("Gymnasium", theirs), ("twin", ours)):
            counts = np.bincount(of.outcomes, minlength=len(OUTCOMES))
            named = ", ".join(f"{c} {o}" for c, o in zip(counts, OUTCOMES, strict=True))
            error = of.returns.std() / len(of.returns) ** 0.5
            print(
                f"  {side}: return {of.returns.mean():.1f} ± {error:.1f}, "
                f"length {of.lengths.mean():.1f}, {named}"
            )
        print("  p:", ", ".join(f"{key} {p:.3g}" for key, p in p_values(ours, theirs).items()))
        last = [stats.ks_2samp(ours.last[:, d], theirs.last[:, d]).pvalue for d in range(8)]
        print("  p of the last observation:", " ".join(f"{p:.2g}" for p in last), flush=True)


if __name__ == "__main__":
    main()
