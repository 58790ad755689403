"""The progress of a run, as bars or lines, and tables of its results."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from rich.table import Table

from fedhql.engines.cell_records import Progress as CellProgress
from fedhql.results.curves import Run
from fedhql.results.summary import AgentSummary, Summary, mean_over_agents, summarise
from fedhql.storage.run_directory import Cell

MOST_BARS = 12  # more would not fit a terminal
LINE_SECONDS = 30  # from one line to the next
BAR, LINES, NONE = "bar", "lines", "none"
STYLES = (BAR, LINES, NONE)


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
            self._next_line = self._clock() + LINE_SECONDS
            self._print_line()

    def _print_line(self) -> None:
        line = "; ".join(map(_told, self._bars.tasks))
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


def _told(task: Task) -> str:
    """Return a bar in words."""
    left = task.time_remaining
    parts = [
        f"{task.description} {task.percentage:.0f} %",
        task.fields["note"],
        f"{timedelta(seconds=round(left))} left" if left else "",
    ]
    return ", ".join(part for part in parts if part)


def results_tables(run: Run, console: Console) -> Iterator[Table]:
    """Yield tables of agents by arms, each with as many arms as fit beside each other."""
    summary, seeds = summarise(run), len({s for curves in run.arms.values() for s in curves})
    title = f"mean return over {seeds} seed{'s' * (seeds > 1)}: best evaluation, and last tenth"
    arms, unlimited = list(summary), console.options.update(max_width=100_000)
    while arms:
        for count in range(len(arms), 0, -1):
            table = _results_table({arm: summary[arm] for arm in arms[:count]}, title)
            if console.measure(table, options=unlimited).maximum <= console.width:
                break
        yield table
        arms, title = arms[count:], ""


def _results_table(summary: Summary, title: str) -> Table:
    """Return a table with the best and the recent mean return."""
    table = Table(title=title)
    table.add_column("agent", overflow="fold")
    for arm in summary:
        head = arm.replace(",", ",\n")
        table.add_column(f"{head}\nmax mean", justify="right", overflow="fold")
        table.add_column(f"{head}\nrecent", justify="right", overflow="fold")
    names = list(dict.fromkeys(name for agents in summary.values() for name in agents))
    for name in names:
        table.add_row(name, *_cells([agents[name] for agents in summary.values()]))
    table.add_section()
    table.add_row("mean", *_cells([mean_over_agents(agents) for agents in summary.values()]))
    return table


def _cells(arms: Sequence[AgentSummary]) -> list[str]:
    pairs = ((arm.best_mean_return, arm.recent_mean_return) for arm in arms)
    return [f"{value:.4g}" for pair in pairs for value in pair]
