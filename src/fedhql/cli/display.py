"""What a person sees of a run: bars while it works, a table at the end."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedhql.experiments.books import Progress as CellProgress
from fedhql.results.run_directory import Cell
from fedhql.results.summary import AgentSummary, Summary, mean_over_agents


class LiveDisplay:
    """A bar for every cell with the time left; nothing at all when no one is at a terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            # Steps get slower once learning starts: judge by the last minutes, not by all.
            speed_estimate_period=180,
        )
        self._tasks: dict[Cell, TaskID] = {}
        self._begun: set[TaskID] = set()

    def start(self, cells: Sequence[Cell], budget_env_steps: int) -> None:
        for cell in cells:
            self._tasks[cell] = self._bars.add_task(
                str(cell), total=budget_env_steps, start=False, note=""
            )

    def show(self, progress: CellProgress) -> None:
        task = self._tasks[progress.cell]
        mean_return = progress.mean_return
        note = "" if mean_return is None else f"latest return {mean_return:.4g}"
        if task not in self._begun:  # what a resumed cell has behind it says nothing of its speed
            self._begun.add(task)
            self._bars.reset(task, completed=int(progress.consumed_env_steps), note=note)
        else:
            self._bars.update(task, completed=progress.consumed_env_steps, note=note)

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


def results_table(summary: Summary, seeds: int) -> Table:
    """Agents down, arms across: the paper's metric, and beside it what it hides."""
    title = f"mean return over {seeds} seed{'s' * (seeds > 1)}: best evaluation, and last tenth"
    table = Table(title=title)
    table.add_column("agent")
    for arm in summary:
        table.add_column(f"{arm}\nmax mean", justify="right")
        table.add_column(f"{arm}\nrecent", justify="right")
    names = list(dict.fromkeys(name for agents in summary.values() for name in agents))
    for name in names:
        table.add_row(name, *_cells([agents[name] for agents in summary.values()]))
    table.add_section()
    table.add_row("mean", *_cells([mean_over_agents(agents) for agents in summary.values()]))
    return table


def _cells(arms: Sequence[AgentSummary]) -> list[str]:
    pairs = ((arm.best_mean_return, arm.recent_mean_return) for arm in arms)
    return [f"{value:.4g}" for pair in pairs for value in pair]
