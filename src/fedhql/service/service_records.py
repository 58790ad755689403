"""The records of a federation service: rows in its journal, and CSV files of the same rows."""

from collections.abc import Callable, Container, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.federation import RoundFigures
from fedhql.remote.server.journal import MemberRecord
from fedhql.remote.server.roster import Roster
from fedhql.storage.arm_names import FEDHQL
from fedhql.storage.files import write_atomically
from fedhql.storage.records import EvaluationRow, FederationRow, header

EVALUATIONS, FEDERATION = "evaluations.csv", "federation.csv"
FILES = {EVALUATIONS: EvaluationRow, FEDERATION: FederationRow}


class ServiceRecords:
    """Writes the rows of each round. Rows that are written again replace the earlier ones."""

    def __init__(self, home: Path, seed: int, roster: Roster, in_loop: Callable[..., Any]) -> None:
        """`in_loop` calls a function in the loop of the roster and its journal."""
        self._home, self._seed, self._roster, self._in_loop = home, seed, roster, in_loop
        self._exported_rounds = 0  # by this process; the first export writes all rounds

    def evaluated(
        self,
        round_: int,
        members: Sequence[MemberRecord],
        returns_NE: NDArray[np.float64],
        silent: Container[str],
    ) -> None:
        rows = []
        for member, of_E in zip(members, returns_NE, strict=True):
            if member.name in silent:  # its actions are not known
                continue
            mean = float(of_E.mean())
            best = mean if member.best_mean_return is None else max(member.best_mean_return, mean)
            member.best_mean_return = best
            own, consumed = member.own_env_steps, member.account.consumed
            rows.append(EvaluationRow(FEDHQL, self._seed, member.name, own, consumed, mean, best))
        self._write(EVALUATIONS, round_, rows, members)

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
        self._write(FEDERATION, round_, [row], [])

    def _write(
        self, file: str, round_: int, rows: Sequence[Any], members: Sequence[MemberRecord]
    ) -> None:
        lines = [",".join(map(str, astuple(row))) for row in rows]
        self._in_loop(self._roster.write, rows=(file, round_, lines), members=members)

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
