"""The records of a federation service: rows in its journal, and CSV files of the same rows."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
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
    EvaluationRow,
    FederationRow,
    header,
)

EVALUATIONS, FEDERATION = "evaluations.csv", "federation.csv"
FILES: dict[str, type[Any]] = {EVALUATIONS: EvaluationRow, FEDERATION: FederationRow}
CONSENSUS_FACT = "consensus"  # in the journal: moment -> [number of evaluations, best mean return]


class Played(NamedTuple):
    """One evaluation of the members of a round; the last policy is the consensus policy."""

    members: Sequence[MemberRecord]
    counts: Container[str]  # the names of members that it counts for, and CONSENSUS
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

    def evaluated(
        self, round_: int, moment: str, evaluations: Sequence[Played], passed: Mapping[str, int]
    ) -> None:
        """Write evaluations. `passed` says how many each policy now has behind it, by name.

        Rows and numbers are one transaction, so that a restarted server repeats none.
        """
        self._in_loop(self._evaluated, round_, moment, evaluations, passed)

    def _evaluated(
        self, round_: int, moment: str, evaluations: Sequence[Played], passed: Mapping[str, int]
    ) -> None:
        rows, changed = [], {}
        for members, counts, played in evaluations:
            for n, member in enumerate(members):
                if member.name not in counts:
                    continue
                mean = float(played.returns[n].mean())
                best = max(mean, member.best_mean_returns.get(moment, -math.inf))
                member.best_mean_returns[moment] = best
                member.evaluations[moment] = passed[member.name]
                changed[member.name] = member
                rows.append(self._row(member.name, member, moment, best, played, n))
            if CONSENSUS in counts:
                _, best = self._consensus.get(moment, (0, -math.inf))
                best = max(best, float(played.returns[-1].mean()))
                self._consensus[moment] = [passed[CONSENSUS], best]
                most = max(members, key=lambda member: member.account.consumed)
                rows.append(self._row(CONSENSUS, most, moment, best, played, -1))
        self._roster.write(
            rows=(EVALUATIONS, round_, _lines(rows)),
            adds_rows=True,
            members=list(changed.values()),
            facts={CONSENSUS_FACT: self._consensus},
        )

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
        self._in_loop(self._roster.write, rows=(FEDERATION, round_, _lines([row])))

    def export(self, rounds: int) -> None:
        """Write the rows so far to CSV files. Later calls append the new rounds."""
        for file, kind in FILES.items():
            lines = self._in_loop(self._roster.journal.lines, file, self._exported_rounds)
            text = "".join(f"{line}\n" for line in lines)
            if self._exported_rounds == 0:
                write_atomically(self._home / file, header(kind) + text)
            else:
                with (self._home / file).open("a") as end:
                    end.write(text)
        self._exported_rounds = rounds


def _lines(rows: Sequence[Any]) -> list[str]:
    return [",".join(map(str, astuple(row))) for row in rows]
