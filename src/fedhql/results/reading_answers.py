"""What readings answer to the paper's statements, from runs or from one small file of many.

A row of the file is a quantity of a statement, such as a gain over being alone, with its value for
each seed.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np

from fedhql.errors import RunDirectoryError
from fedhql.results.claims import STATEMENTS, Answer, Statement, ask
from fedhql.results.curves import Run
from fedhql.results.readings import by_reading, equally_long

HEADER = ("reading", "experiment", "statement", "quantity", "value of each seed")
Answers = Mapping[str, Sequence[Answer]]  # of each reading


def answers_of_readings(runs: Sequence[Run], kept: Answers) -> Answers:
    """Return the answers of all readings: those of runs, then those `kept` in files.

    Runs of one experiment are compared over what all of them reached.
    """
    readings = by_reading(equally_long(runs))
    asked = {reading: ask(of, partial=True) for reading, of in readings.items() if reading}
    found: dict[str, dict[Statement, Answer]] = {}
    for answers in (asked, kept):
        for reading, of in answers.items():
            for answer in of:
                if answer.quantities:
                    found.setdefault(reading, {}).setdefault(answer.statement, answer)
    return {reading: [*of.values()] for reading, of in found.items()}


def readings_csv(answers: Answers) -> str:
    rows = (
        (
            reading,
            answer.statement.experiment.name,
            answer.statement.text,
            quantity,
            " ".join(f"{value:.6g}" for value in values_S),
        )
        for reading, of in answers.items()
        for answer in of
        for quantity, values_S in answer.quantities.items()
    )
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADER, *rows])
    return text.getvalue()


def read_readings(*paths: Path) -> Answers:
    """Return the answers in all files, without details.

    Raise RunDirectoryError if one is no such file, or if two answer the same: they may be of runs
    that differ in length.
    """
    known = {(each.experiment.name, each.text): each for each in STATEMENTS}
    found: dict[str, dict[Statement, Answer]] = {}
    answered: dict[tuple[str, Statement], Path] = {}
    for path, number, row in _rows(paths):
        reading, experiment, text, quantity, values = row
        if (experiment, text) not in known:
            raise RunDirectoryError(
                f"{path}, line {number}: no statement about {experiment} reads {text!r}; "
                "report the runs again"
            )
        statement = known[experiment, text]
        if (first := answered.setdefault((reading, statement), path)) != path:
            raise RunDirectoryError(
                f"{path}, line {number}: {first} also has what {reading} answers there; report one "
                "of these files"
            )
        answer = found.setdefault(reading, {}).setdefault(statement, Answer(statement))
        answer.quantities[quantity] = np.array([float(value) for value in values.split()])
    return {reading: [*of.values()] for reading, of in found.items()}


def _rows(paths: Sequence[Path]) -> Iterator[tuple[Path, int, list[str]]]:
    """Yield each row with its file and line."""
    for path in paths:
        if not path.is_file():
            raise RunDirectoryError(f"{path} does not exist")
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        if tuple(rows[0] if rows else ()) != HEADER:
            raise RunDirectoryError(f"{path} is no table of readings that `fedhql report` wrote")
        for number, row in enumerate(rows[1:], start=2):
            if len(row) != len(HEADER) or not _are_numbers(row[-1].split()):
                raise RunDirectoryError(
                    f"{path}, line {number}: allowed: {len(HEADER)} columns, the last of numbers"
                )
            yield path, number, row


def _are_numbers(words: Sequence[str]) -> bool:
    try:
        return len([float(word) for word in words]) > 0
    except ValueError:
        return False
