"""What shows how far a run is: bars on a terminal, a line in a notebook, a function of yours."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedhql.engines.cell_records import Progress as CellProgress
from fedhql.errors import SettingsError
from fedhql.running.run import Display
from fedhql.storage.run_directory import Cell

MOST_BARS = 12  # more would not fit a terminal
SECONDS_BETWEEN_LINES = 30  # from one line to the next
REDRAW_SECONDS = 0.5  # between two changes of the line in a notebook
BAR, LINES, NONE = "bar", "lines", "none"
STYLES = (BAR, LINES, NONE)


@contextmanager
def display_for(progress: object) -> Iterator[Display]:
    """Yield the display that `progress` asks for: True, False, a function, or a display itself."""
    if progress is True:
        console = Console(stderr=True)
        if console.is_jupyter:
            yield NotebookLine(_changing_line(), time.monotonic)
        else:
            with LiveDisplay(console) as bars:
                yield bars
    elif progress is False:
        yield CallingDisplay(lambda progress: None)
    elif hasattr(progress, "start") and hasattr(progress, "show"):
        yield progress
    elif callable(progress):
        yield CallingDisplay(progress)
    else:
        raise SettingsError(
            f"progress = {progress!r}: allowed: True, False, or a function that takes a Progress"
        )


class LiveDisplay:
    """Progress with the time left: bars, shown only on a terminal, or lines, shown anywhere.

    There is a bar for every cell, or for every arm if there are more than MOST_BARS cells. Above
    them is a bar for all runs together, if `overall` gives their env steps. A line tells the same
    of all runs and of every arm.
    """

    def __init__(
        self,
        console: Console,
        *,
        overall: int | None = None,
        style: str = BAR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._style, self._clock = console, style, clock
        self._next_line = -math.inf
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=style != BAR or not console.is_terminal,
            get_time=clock,
            # Steps get slower once learning starts, so only the last minutes count.
            speed_estimate_period=180,
        )
        self._tasks: dict[Cell, TaskID] = {}
        self._consumed: dict[Cell, float] = {}
        self._begun: set[TaskID] = set()
        self._overall = (
            None if overall is None else self._bars.add_task("in all", total=overall, note="")
        )

    def start(self, cells: Sequence[Cell], budget_env_steps: int) -> None:
        for task in set(self._tasks.values()):  # of the previous run
            self._bars.remove_task(task)
        few = len(cells) <= MOST_BARS and self._style == BAR
        names = {c: str(c) if few else c.arm for c in cells}
        counts = Counter(names.values())
        tasks = {
            name: self._bars.add_task(name, total=count * budget_env_steps, start=False, note="")
            for name, count in counts.items()
        }
        self._tasks = {cell: tasks[name] for cell, name in names.items()}
        self._consumed = {}
        self._begun = set()

    def show(self, progress: CellProgress) -> None:
        cell = progress.cell
        task = self._tasks[cell]
        mean_return = progress.mean_return
        note = "" if mean_return is None else f"latest return {mean_return:.4g}"
        before = self._consumed.get(cell)
        self._consumed[cell] = progress.consumed_env_steps
        together = sum(steps for c, steps in self._consumed.items() if self._tasks[c] == task)
        if task not in self._begun:  # earlier steps of a resumed cell are not part of the speed
            self._begun.add(task)
            self._bars.reset(task, completed=int(together), note=note)
        else:
            self._bars.update(task, completed=together, note=note)
        if self._overall is not None:
            self._bars.advance(self._overall, progress.consumed_env_steps - (before or 0))
        if self._style == LINES and self._clock() >= self._next_line:
            self._next_line = self._clock() + SECONDS_BETWEEN_LINES
            self._print_line()

    def _print_line(self) -> None:
        line = "; ".join(map(_task_in_words, self._bars.tasks))
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()
        if self._style == LINES and self._consumed:
            self._print_line()


def _task_in_words(task: Task) -> str:
    """Return a bar in words."""
    left = task.time_remaining
    parts = [
        f"{task.description} {task.percentage:.0f} %",
        task.fields["note"],
        f"{timedelta(seconds=round(left))} left" if left else "",
    ]
    return ", ".join(part for part in parts if part)


def _changing_line() -> Callable[[str], None]:
    """Return a function that replaces the line below a notebook's cell, so that one is kept."""
    from IPython.display import display  # whoever has a notebook has it

    shown = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]  # IPython has no types here
    return lambda text: shown.update({"text/plain": text}, raw=True)


class NotebookLine:
    """One line that is shown again and again, for notebooks."""

    def __init__(self, show: Callable[[str], object], clock: Callable[[], float]) -> None:
        self._show, self._clock = show, clock
        self._total, self._cells = 0.0, 0
        self._consumed: dict[Cell, float] = {}
        self._next_due = clock()

    def start(self, cells: Sequence[Cell], budget_env_steps: int) -> None:
        self._total, self._cells, self._consumed = len(cells) * budget_env_steps, len(cells), {}

    def show(self, progress: CellProgress) -> None:
        self._consumed[progress.cell] = progress.consumed_env_steps
        done = sum(self._consumed.values()) / self._total
        latest = progress.mean_return
        note = "" if latest is None else f", latest return {latest:.4g} ({progress.cell})"
        if self._clock() >= self._next_due or done >= 1:
            self._next_due = self._clock() + REDRAW_SECONDS
            self._show(f"fedhql: {done:.0%} of {self._cells} cell{'s' * (self._cells > 1)}{note}")


class CallingDisplay:
    """Calls a function with each Progress."""

    def __init__(self, call: Callable[[CellProgress], object]) -> None:
        self._call = call

    def start(self, cells: Sequence[Cell], budget_env_steps: int) -> None: ...

    def show(self, progress: CellProgress) -> None:
        self._call(progress)
