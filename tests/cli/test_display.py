"""What stands on a terminal while runs work."""

import re
from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from fedhql.cli.display import MOST_BARS, LiveDisplay
from fedhql.engines.cell_records import Progress
from fedhql.storage.run_directory import Cell

FEW = [Cell("independent", 0), Cell("fedhql", 0)]
MANY = [Cell(arm, seed) for arm in ("independent", "fedhql") for seed in range(MOST_BARS)]
BUDGET = 1_000


class Screen:
    """A terminal, and what its last picture shows."""

    def __init__(self, *, overall: int | None = None, terminal: bool = True) -> None:
        self.written = StringIO()
        console = Console(force_terminal=terminal, file=self.written, width=120, height=50)
        self.display = LiveDisplay(console, overall=overall)

    def start(self, cells: Sequence[Cell]) -> None:
        self.display.start(cells, BUDGET)

    def show(self, cell: Cell, consumed: float, mean_return: float | None = None) -> None:
        self.display.show(Progress(cell, consumed, mean_return))

    def bars(self) -> dict[str, str]:
        """Name -> the rest of its line, drawn once."""
        self.written.seek(0)
        self.written.truncate()
        with self.display:
            pass  # the last picture stays when it ends
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.written.getvalue())
        lines = [line for line in plain.splitlines() if "left" in line]
        split = (re.split(r"\s+(?=[━╸╺])", line, maxsplit=1) for line in lines)
        return {name: " ".join(rest.replace("━", "").split()) for name, rest in split}

    def percent(self) -> dict[str, int]:
        found = {name: re.search(r"(\d+)%", rest) for name, rest in self.bars().items()}
        return {name: int(match[1]) for name, match in found.items() if match}


def test_a_bar_for_every_cell() -> None:
    screen = Screen()
    screen.start(FEW)
    screen.show(FEW[0], 250.0)
    screen.show(FEW[1], 900.0)
    assert screen.percent() == {"independent/seed0": 25, "fedhql/seed0": 90}


def test_where_cells_are_many_a_bar_for_every_arm() -> None:
    screen = Screen()
    screen.start(MANY)
    for cell in MANY[:6]:  # half of the first arm's seeds, to half of their budget
        screen.show(cell, 100.0)
        screen.show(cell, 500.0)
    assert screen.percent() == {"independent": 25, "fedhql": 0}
    for cell in MANY:
        screen.show(cell, 1_000.0)
    assert screen.percent() == {"independent": 100, "fedhql": 100}


@pytest.mark.parametrize("cells", [MANY[:MOST_BARS], MANY[: MOST_BARS + 1]], ids=len)
def test_what_many_are(cells: list[Cell]) -> None:
    screen = Screen()
    screen.start(cells)
    assert len(screen.bars()) == (MOST_BARS if len(cells) <= MOST_BARS else 2)


def test_the_latest_return_stands_beside_its_bar() -> None:
    screen = Screen()
    screen.start(FEW)
    screen.show(FEW[0], 100.0)
    screen.show(FEW[1], 100.0, 12.3456)
    bars = screen.bars()
    assert "latest return 12.35" in bars["fedhql/seed0"]
    assert "latest return" not in bars["independent/seed0"]


def test_what_is_consumed_counts_once_in_all() -> None:
    """Reports say how far a cell is, not how much further."""
    screen = Screen(overall=2 * 2 * BUDGET)  # two runs of two cells
    screen.start(FEW)
    for consumed in (200.0, 400.0, 400.0, 600.0):
        screen.show(FEW[0], consumed)
    screen.show(FEW[1], 200.0)
    assert screen.percent() == {"in all": 20, "independent/seed0": 60, "fedhql/seed0": 20}
    for cell in FEW:
        screen.show(cell, 1_000.0)
    assert screen.percent()["in all"] == 50


def test_a_later_run_takes_the_place_of_the_one_before() -> None:
    """Also where its cells have the same names; the bar for all goes on."""
    screen = Screen(overall=2 * 2 * BUDGET)
    screen.start(FEW)
    for cell in FEW:
        screen.show(cell, 1_000.0)
    screen.start([Cell("fedhql", 0), Cell("fedhql", 1)])
    assert screen.percent() == {"in all": 50, "fedhql/seed0": 0, "fedhql/seed1": 0}
    screen.show(Cell("fedhql", 0), 400.0)
    assert screen.percent() == {"in all": 60, "fedhql/seed0": 40, "fedhql/seed1": 0}


def test_a_run_with_nothing_left_has_no_bars() -> None:
    screen = Screen()
    screen.start(FEW)
    screen.start([])
    assert screen.bars() == {}


def test_a_resumed_cell_begins_where_it_was() -> None:
    screen = Screen()
    screen.start(FEW)
    screen.show(FEW[0], 700.0)
    assert screen.percent()["independent/seed0"] == 70


def test_nothing_is_drawn_when_no_one_is_at_a_terminal() -> None:
    screen = Screen(terminal=False, overall=BUDGET)
    screen.start(FEW)
    screen.show(FEW[0], 700.0)
    with screen.display:
        pass
    assert screen.written.getvalue() == ""
