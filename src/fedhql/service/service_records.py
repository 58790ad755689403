"""The records of a federation service: rows in its journal, and CSV files of the same rows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

from fedhql.engines.evaluation import Evaluation, short
from fedhql.federation import RoundFigures
from fedhql.remote.server.journal import MemberRecord
from fedhql.remote.server.roster import Roster
from fedhql.storage.arm_names import FEDHQL
from fedhql.storage.files import write_atomically
from fedhql.storage.records import (
    CONSENSUS,
    ROUND,
    EvaluationRow,
    FederationRow,
    header,
)

EVALUATIONS, FEDERATION = "evaluations.csv", "federation.csv"
# The rows of each file, and how many times a round writes some: a time replaces the same time.
FILES: dict[str, tuple[type[Any], int]] = {
    EVALUATIONS: (EvaluationRow, 2),
    FEDERATION: (FederationRow, 1),
}
CONSENSUS_FACT = "consensus"  # in the journal: moment -> [number of evaluations, best mean return]


class Played(NamedTuple):
    """One evaluation of the members of a round; the last policy is the consensus policy."""

    members: Sequence[MemberRecord]
    heard: Sequence[MemberRecord]  # those that it counts for: they were due and have answered
    evaluation: Evaluation


class ServiceRecords:
    """Writes the rows of each round. Rows that are written again replace the earlier ones."""

    def __init__(self, home: Path, seed: int, roster: Roster, in_loop: Callable[..., Any]) -> None:
        """`in_loop` calls a function in the loop of the roster and its journal."""
        self._home, self._seed, self._roster, self._in_loop = home, seed, roster, in_loop
        self._exported_rounds = 0  # by this process; the first export writes all rounds
        self._consensus: dict[str, list[Any]] = roster.journal.fact(CONSENSUS_FACT) or {}

    def consensus_evaluations(self, moment: str) -> int:
        """Return how many evaluations of the consensus policy there are."""
        return int(self._consensus.get(moment, [0])[0])

    def evaluated(self, round_: int, moment: str, evaluations: Sequence[Played]) -> None:
        """Write the evaluations of one moment of a round, and count them."""
        rows, counted = [], {}
        for members, heard, played in evaluations:
            for n, member in enumerate(members):
                if member not in heard:
                    continue
                mean = float(played.returns[n].mean())
                best = max(mean, member.best_mean_returns.get(moment, -math.inf))
                member.best_mean_returns[moment] = best
                member.evaluations[moment] = member.evaluations.get(moment, 0) + 1
                counted[member.name] = member
                rows.append(self._row(member.name, member, moment, best, played, n))
            count, best = self._consensus.get(moment, (0, -math.inf))
            best = max(best, float(played.returns[-1].mean()))
            self._consensus[moment] = [count + 1, best]
            most = max(members, key=lambda member: member.account.consumed)
            rows.append(self._row(CONSENSUS, most, moment, best, played, -1))
        facts = {CONSENSUS_FACT: self._consensus}
        self._write(EVALUATIONS, 2 * round_ + (moment == ROUND), rows, counted.values(), facts)

    def _row(
        self,
        name: str,
        consumer: MemberRecord,
        moment: str,
        best: float,
        played: Evaluation,
        n: int,
    ) -> EvaluationRow:
        return EvaluationRow(
            FEDHQL,
            self._seed,
            name,
            consumer.own_env_steps,
            consumer.account.consumed,
            float(played.returns[n].mean()),
            best,
            moment,
            short(played.start_values[n].mean()),
            short(played.discounted[n].mean()),
        )

    def federated(self, round_: int, names: Sequence[str], figures: RoundFigures) -> None:
        own = (self._roster.members[name].own_env_steps for name in names)
        row = FederationRow(
            FEDHQL,
            self._seed,
            round_,
            max(own, default=0),
            self._roster.server_env_steps,
            figures.server_env_steps,
            figures.spread,
            figures.td_error,
            figures.loss,
            figures.refused_answers,
        )
        self._write(FEDERATION, round_, [row])

    def _write(
        self,
        file: str,
        time: int,
        rows: Sequence[Any],
        members: Iterable[MemberRecord] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        lines = [",".join(map(str, astuple(row))) for row in rows]
        written = {"rows": (file, time, lines), "members": list(members), "facts": facts}
        self._in_loop(self._roster.write, **written)

    def export(self, rounds: int) -> None:
        """Write the rows so far to CSV files. Later calls append the new rounds."""
        for file, (kind, times) in FILES.items():
            new_from = times * self._exported_rounds
            lines = self._in_loop(self._roster.journal.lines, file, new_from)
            text = "".join(f"{line}\n" for line in lines)
            if self._exported_rounds == 0:
                write_atomically(self._home / file, header(kind) + text)
            else:
                with (self._home / file).open("a") as end:
                    end.write(text)
        self._exported_rounds = rounds
