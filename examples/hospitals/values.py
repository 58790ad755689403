"""Print how far the values of hospitals, and of treatments, lie apart in a run of the experiment.

    python -m examples.hospitals.values RUN

from the repository's root. The states are those of two patients whom the first hospital treats, and
the hospitals are alone, at the end of their budgets.
"""

import sys
from pathlib import Path

import numpy as np

from examples.hospitals.clinic import treat
from fedhql.engines.kept_agents import kept_agents
from fedhql.storage.run_directory import RunDirectory

PATIENTS, PATIENT_SEED = 2, 0


def spread_and_gap(run: Path, seed: int) -> tuple[float, float]:
    """Return the deviation of the hospitals' values, and the lead of the best treatment."""
    kept = kept_agents(run, "independent", seed, "last")
    policies = [kept.policy(name) for name in kept.names]
    courses = treat(policies[0].answer, PATIENTS, PATIENT_SEED)
    states = np.log10(courses.states_PTS[:, :-1]).reshape(-1, 6).astype(np.float32)
    q_NBA = np.stack([policy.q_values(states) for policy in policies])
    ranked_NBA = np.sort(q_NBA, axis=2)
    lead = (ranked_NBA[:, :, -1] - ranked_NBA[:, :, -2]).mean()
    return float(q_NBA.std(axis=0).mean()), float(lead)


def main(run: Path) -> None:
    sys.path.append(str(Path(__file__).parent))  # the run's environment is named hiv:HIV-v0
    seeds = sorted({cell.seed for cell in RunDirectory(run).cells()})
    found = np.array([spread_and_gap(run, seed) for seed in seeds])
    for name, values in zip(("hospitals", "best and second treatment"), found.T, strict=True):
        print(f"{name}: {values.mean():.1f}, from {values.min():.1f} to {values.max():.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
