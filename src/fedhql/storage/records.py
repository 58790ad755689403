"""The rows that a run writes, and the append-only CSV files that hold them."""

import csv
import math
import os
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedhql.storage.files import needing_space

SELF_LEARNING, ROUND = "self-learning", "round"  # when an evaluation is taken: after which of them
CONSENSUS = "consensus"  # stands for an agent's name: greedy in the centre of all agents' answers
# Words that stand beside agents' names in files and commands.
RESERVED_NAMES = (CONSENSUS, "all", "policy.json")


@dataclass(frozen=True)
class EvaluationRow:
    """The evaluation of one agent, or of the consensus policy. NaN: not measured."""

    arm: str
    seed: int
    agent: str
    own_env_steps: int
    budget_env_steps: float  # own steps + the agent's share of the server's steps
    mean_return: float
    best_mean_return: float  # the paper's max mean return: the largest so far at such a moment
    after: str = SELF_LEARNING
    start_value: float = math.nan  # the largest action value at the episodes' starts, on average
    discounted_return: float = math.nan  # what these episodes gave; start_value estimates it
    silent_units: float = math.nan  # the share of ReLU units that are 0 at the last states


@dataclass(frozen=True)
class FederationRow:
    """One federation round, as the server records it."""

    arm: str
    seed: int
    round: int
    own_env_steps: int
    server_env_steps: int  # of all rounds so far
    round_server_env_steps: int
    spread: float
    td_error: float
    loss: float
    refused_answers: int


Row = TypeVar("Row", EvaluationRow, FederationRow)


class RecordFile(Generic[Row]):
    """An append-only file of rows of one kind. A resumed run cuts it back to an earlier length."""

    def __init__(self, path: Path, row_type: type[Row], *, length: int | None = None) -> None:
        """Truncate the file to `length` bytes, or start a new file if `length` is None."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if length is None:
            with needing_space(path):
                path.write_text(header(row_type))
        else:
            os.truncate(path, length)
        self._file = path.open("a", newline="")

    def append(self, rows: Iterable[Row]) -> None:
        with needing_space(self._path):
            csv.writer(self._file, lineterminator="\n").writerows(astuple(row) for row in rows)
            self._file.flush()

    def length(self) -> int:
        """Write everything to disk and return the length of the file in bytes."""
        with needing_space(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        with needing_space(self._path):  # after a failed write, this is another attempt
            self._file.close()


def header(row_type: type[Any]) -> str:
    return ",".join(field.name for field in fields(row_type)) + "\n"


def read_rows(path: Path, row_type: type[Row]) -> list[Row]:
    types = {
        field.name: {"int": int, "float": float, "str": str}[_name(field.type)]
        for field in fields(row_type)
    }
    with path.open(newline="") as file:
        return [
            # A run that an older version began has rows with fewer columns.
            row_type(**{name: types[name](text) for name, text in row.items() if text is not None})
            for row in csv.DictReader(file)
        ]


def _name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else str(annotation.__name__)
