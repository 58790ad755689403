"""Test the consensus policy of the hospitals of a run, and write its returns.

    python -m examples.hospitals.consensus RUN ARCHIVE

from the repository's root. RUN is the directory of the experiment, which holds the policies. In
every cell, the five hospitals' policies at the end of their budgets treat 20 new patients together:
a patient gets the treatment with the largest mean of the five values. The returns go to
ARCHIVE/consensus.csv.
"""

import csv
import sys
from pathlib import Path

from examples.hospitals.clinic import treat
from fedhql.engines.kept_agents import kept_agents
from fedhql.storage.records import CONSENSUS
from fedhql.storage.run_directory import Cell, RunDirectory

FILE = "consensus.csv"
PATIENTS, PATIENT_SEED = 20, 1_000_000


def consensus_return(run: Path, cell: Cell) -> float:
    """Return the mean return of the new patients under a cell's consensus policy."""
    policy = kept_agents(run, cell.arm, cell.seed, "last").policy(CONSENSUS)
    return float(treat(policy.answer, PATIENTS, PATIENT_SEED).returns_P.mean())


def read_consensus(archive: Path) -> dict[Cell, float]:
    """Return what `main` has written, the return of each cell's consensus policy, if anything."""
    if not (archive / FILE).exists():
        return {}
    with (archive / FILE).open() as file:
        rows = list(csv.DictReader(file))
    return {Cell(row["arm"], int(row["seed"])): float(row["return"]) for row in rows}


def main(run: Path, archive: Path) -> None:
    sys.path.append(str(Path(__file__).parent))  # the run's environment is named hiv:HIV-v0
    with (archive / FILE).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("arm", "seed", "return"))
        for cell in RunDirectory(run).cells():
            writer.writerow((cell.arm, cell.seed, f"{consensus_return(run, cell):.3f}"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
