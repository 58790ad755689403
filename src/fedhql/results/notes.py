"""What a reader must know before the figures of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from fedhql.results.curves import Run
from fedhql.results.diverged import diverged_notes
from fedhql.results.unfinished import unfinished_cells
from fedhql.storage.arm_names import changes


@dataclass(frozen=True)
class Note:
    """A head such as "Unfinished", and what there is to say."""

    head: str
    text: str

    def __str__(self) -> str:
        return f"{self.head.lower()}: {self.text}"


def notes(run: Run) -> list[Note]:
    found = {
        "Unfinished": _unfinished(run),
        "Not federated": _not_federated(run),
        "Diverged": diverged_notes(run),
    }
    return [Note(head, text) for head, texts in found.items() for text in texts]


def has_no_round(settings: Mapping[str, Any], arm: str) -> bool:
    """Return whether the budget ends before the first server step of an arm that federates."""
    federation = settings["federation"] | changes(arm)
    budget, agents = settings["budget"]["env_steps_per_agent"], len(settings["agents"])
    left = agents * (budget - int(federation["self_learning_env_steps"]))
    return left < int(federation.get("query_batch", 1))


def _unfinished(run: Run) -> list[str]:
    left = unfinished_cells(run)
    if not left:
        return []
    by_arm = groupby(left, attrgetter("arm"))
    seeds_of = {arm: [str(cell.seed) for cell in cells] for arm, cells in by_arm}
    each = "; ".join(
        f"{run.label(arm)}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
        for arm, seeds in seeds_of.items()
    )
    whole = len(run.manifest["arms"]) * len(run.manifest["seeds"])
    return [
        f"{len(left)} of {whole} cells have not consumed the budget of "
        f"{run.budget:,} env steps per agent: {each}."
    ]


def _not_federated(run: Run) -> list[str]:
    arms = [run.label(arm) for arm in run.federated_arms if has_no_round(run.settings, arm)]
    if not arms:
        return []
    return [
        f"No round took place in {'; '.join(arms)}: the budget of {run.budget:,} env steps per "
        "agent ends with the first phase of self-learning. Agents learned as they do alone."
    ]
