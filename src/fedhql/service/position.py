"""The position of a federation service in its rounds, as its journal keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from fedhql.federation import RoundProgress


class Stage(StrEnum):
    """The stages of a round, and of the whole federation."""

    NEW = "new"  # waiting for enough members to begin with
    NEXT = "next"  # between two rounds
    LEARN = "learn"
    EVALUATE = "evaluate"
    FEDERATE = "federate"
    REVIEW = "review"  # evaluating after the round
    FINISHED = "finished"

    @property
    def in_words(self) -> str:
        return _IN_WORDS[self]


_IN_WORDS = {
    Stage.NEW: "waiting for members",
    Stage.NEXT: "learning",
    Stage.LEARN: "learning",
    Stage.EVALUATE: "evaluating",
    Stage.FEDERATE: "federating",
    Stage.REVIEW: "evaluating",
    Stage.FINISHED: "finished",
}


@dataclass(frozen=True)
class Position:
    """A point between two transactions of the journal, from which a restarted server continues."""

    round: int = 0
    stage: Stage = Stage.NEW
    enlisted: tuple[str, ...] = ()  # the members of the round
    progress: RoundProgress | None = None  # of a federation round that has begun
    environments: Mapping[str, Any] | None = None  # where the server's environments stand
    remembered: int = 0  # the transitions that the server has in its replay memory
    earnings: Mapping[str, float] = field(default_factory=dict)  # of members, in auditions

    @classmethod
    def of(cls, fact: Mapping[str, Any] | None) -> "Position":
        """Return the position that `fact` wrote; the initial position for None."""
        if fact is None:
            return cls()
        progress = fact.get("progress")
        return cls(
            fact["round"],
            Stage(fact["stage"]),
            tuple(fact.get("enlisted", ())),
            None if progress is None else RoundProgress(**progress),
            fact.get("environments"),
            fact.get("remembered", 0),
            fact.get("earnings", {}),
        )

    def fact(self) -> dict[str, Any]:
        """Return the position as JSON."""
        written: dict[str, Any] = {"round": self.round, "stage": self.stage.value}
        written["enlisted"] = list(self.enlisted)
        if self.progress is not None:
            written["progress"] = asdict(self.progress)
        if self.environments is not None:
            written["environments"] = self.environments
        if self.remembered:
            written["remembered"] = self.remembered
        if self.earnings:
            written["earnings"] = self.earnings
        return written

    def at(self, stage: Stage, enlisted: Sequence[str] = ()) -> "Position":
        return replace(self, stage=stage, enlisted=tuple(enlisted))

    def after_step(
        self,
        progress: RoundProgress,
        environments: Mapping[str, Any],
        remembered: int,
        earnings: Mapping[str, float],
    ) -> "Position":
        return replace(
            self,
            progress=progress,
            environments=environments,
            remembered=remembered,
            earnings=dict(earnings),
        )

    def next_round(self, environments: Mapping[str, Any] | None) -> "Position":
        """Return the position after a round, with `environments` if they carry over."""
        return Position(
            self.round + 1,
            Stage.NEXT,
            environments=environments,
            remembered=self.remembered,
            earnings=self.earnings,
        )
