"""What stands on a terminal while runs work, and at their end."""

import re
from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from fedhql.api.progress import (
    LINES,
    MOST_BARS,
    NONE,
    SECONDS_BETWEEN_LINES,
    LiveDisplay,
    NotebookLine,
    display_for,
)
from fedhql.cli.display import returns_tables
from fedhql.engines.cell_records import Progress
from fedhql.storage.arm_names import label
from fedhql.storage.run_directory import Cell
from tests.results.handmade import learning_run, settings

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


class Lines:
    """A file, and a clock that is set by hand."""

    def __init__(self, style: str = LINES, overall: int | None = None) -> None:
        self._file, self.seconds = StringIO(), 0.0
        console = Console(force_terminal=False, file=self._file, width=20)
        self.display = LiveDisplay(
            console, overall=overall, style=style, clock=lambda: self.seconds
        )

    def show(self, cell: Cell, consumed: float, mean_return: float | None = None) -> None:
        self.display.show(Progress(cell, consumed, mean_return))

    def written(self) -> list[str]:
        return self._file.getvalue().splitlines()


def test_lines_come_at_intervals_and_at_the_end() -> None:
    lines = Lines()
    with lines.display:
        lines.display.start(FEW, BUDGET)
        lines.show(FEW[0], 0.0)
        lines.seconds = SECONDS_BETWEEN_LINES - 20.0
        lines.show(FEW[0], 100.0)
        lines.seconds = SECONDS_BETWEEN_LINES
        lines.show(FEW[0], 250.0, 12.3456)  # 150 env steps in 20 s; 750 are left
        assert lines.written() == [
            "independent 0 %; fedhql 0 %",
            "independent 25 %, latest return 12.35, 0:01:40 left; fedhql 0 %",
        ]
        lines.show(FEW[0], 1_000.0, 20.0)
        lines.show(FEW[1], 1_000.0, 30.0)
    assert lines.written()[2:] == [
        "independent 100 %, latest return 20; fedhql 100 %, latest return 30"
    ]


def test_a_line_has_every_arm_and_all_runs() -> None:
    lines = Lines(overall=4 * BUDGET)
    lines.display.start([*FEW, Cell("fedhql", 1)], BUDGET)
    lines.show(FEW[1], 400.0)
    assert lines.written() == ["in all 10 %; independent 0 %; fedhql 20 %"]


def test_no_progress_is_shown_when_none_is_wanted() -> None:
    lines = Lines(NONE)
    with lines.display:
        lines.display.start(FEW, BUDGET)
        lines.show(FEW[0], 500.0)
    assert lines.written() == []


ARMS = ("independent", "fedhql", "exploration=3,learning_rate=0.1", "rule=median-mad")


@pytest.mark.parametrize(("width", "tables"), [(80, 3), (40, 4), (200, 1)])
def test_tables_of_results_cut_nothing(width: int, tables: int) -> None:
    run = learning_run(arms=ARMS, settings_=settings(2))
    run.settings["agents"][0]["name"] = "north-west"
    file = StringIO()
    console = Console(force_terminal=False, file=file, width=width)
    found = list(returns_tables(run, console))
    for table in found:
        console.print(table)
    shown = file.getvalue()
    assert len(found) == tables
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert max(map(len, shown.splitlines())) <= width
    if width >= 80:
        heads = [part for arm in ARMS for part in label(arm).split(", ")]
        assert [word for word in (*heads, "north-west", "agent2") if word not in shown] == []


def test_a_notebook_has_one_line_that_changes() -> None:
    written: list[str] = []
    ticks = iter([0.0, 0.0, 0.0, 0.1, 1.0, 1.0])
    display = NotebookLine(written.append, lambda: next(ticks))
    display.start(FEW, BUDGET)
    display.show(Progress(FEW[0], 500.0, 12.3456))
    display.show(Progress(FEW[0], 600.0, 12.3456))  # too soon after the one before
    display.show(Progress(FEW[1], 1_000.0, None))
    assert written == [
        "fedhql: 25% of 2 cells, latest return 12.35 (independent/seed0)",
        "fedhql: 80% of 2 cells",
    ]


def test_a_function_gets_every_progress() -> None:
    got: list[Progress] = []
    with display_for(got.append) as display:
        display.start(FEW, BUDGET)
        display.show(Progress(FEW[0], 500.0, None))
    assert got == [Progress(FEW[0], 500.0, None)]


@pytest.mark.parametrize("progress", [True, False])
def test_without_a_terminal_nothing_is_written(
    progress: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with display_for(progress) as display:
        display.start(FEW, BUDGET)
        display.show(Progress(FEW[0], 500.0, None))
    assert capfd.readouterr() == ("", "")
