import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.engines.build import gather_here
from fedhql.engines.cell_records import Progress
from fedhql.engines.cell_run import MOST_LOSSES, finish_cell
from fedhql.engines.owned_cohort import Gather, OwnedCohort
from fedhql.errors import AgentsLost, SettingsError
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage import tracking
from fedhql.storage.records import EvaluationRow, read_rows
from fedhql.storage.run_directory import Cell, RunDirectory
from tests.cli.running import TABULAR

CELL = Cell("fedhql", 0)


def finish(
    home: Path,
    gather: Gather = gather_here,
    cell: Cell = CELL,
    overrides: Sequence[str] = (),
    track: Sequence[str] = (),
) -> list[Progress]:
    reports: list[Progress] = []
    finish_cell(
        read_settings(TABULAR.format(budget=900), overrides),
        cell,
        RunDirectory(home),
        report=reports.append,
        clock=lambda: 0.0,  # checkpoints take no time, so one is due after every round
        track=track,
        gather=gather,
    )
    return reports


def losing(phases: Iterator[int | None]) -> Gather:
    """Return cohorts that are lost halfway through the self-learning phases in `phases`."""

    def gather(
        settings: ExperimentSettings, seed: int, on_self_learned: Callable[[int], None]
    ) -> OwnedCohort:
        cohort, lost_in, learned = (
            gather_here(settings, seed, on_self_learned),
            next(phases),
            count(1),
        )

        def self_learn(env_steps: int) -> None:
            if next(learned) == lost_in:
                type(cohort).self_learn(cohort, env_steps // 2)
                raise AgentsLost("agents were lost")
            type(cohort).self_learn(cohort, env_steps)

        vars(cohort)["self_learn"] = self_learn
        return cohort

    return gather


def test_progress_grows_to_the_budget(tmp_path: Path) -> None:
    consumed = [report.consumed_env_steps for report in finish(tmp_path)]
    assert all(later > earlier - 1e-6 for earlier, later in pairwise(consumed))
    assert consumed[0] == 100  # one of three agents has learned 300 steps
    assert consumed[-1] == 900


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    """A worker that outlives its parent may finish a cell that a resumed run is waiting for."""
    finish(tmp_path)
    rows = RunDirectory(tmp_path).cell(CELL) / "evaluations.csv"
    before = rows.stat()
    assert finish(tmp_path) == []
    assert rows.stat() == before


def rows(home: Path, cell: Cell, name: str) -> str:
    return (RunDirectory(home).cell(cell) / name).read_text()


@pytest.mark.parametrize(
    "arm", ["fedhql", "attack=noise,attackers=1", "replay_batch=4", "auditions=1"]
)
def test_losing_agents_does_not_change_the_results(
    arm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cell = Cell(arm, 0)
    # This MDP gives rewards from the first step, so that values differ.
    rewarding = ["environment.id=tests.known_mdps:RandomMDP-v0"]
    finish(tmp_path / "whole", gather_here, cell, rewarding)
    finish(tmp_path / "disturbed", losing(iter([1, 2, None])), cell, rewarding)
    assert re.findall(r"agents were lost; the cell continues from round-0*(\d)", caplog.text) == [
        "0",
        "1",
    ]
    for name in ("evaluations.csv", "federation.csv"):
        assert rows(tmp_path / "disturbed", cell, name) == rows(tmp_path / "whole", cell, name)


def test_an_attacker_lies_to_the_server_only(tmp_path: Path) -> None:
    liar = Cell("attack=nan,attackers=1", 0)
    for cell in (CELL, liar):
        finish(tmp_path, cell=cell)
    refused = RunDirectory(tmp_path).refused_answers(liar).read_text()
    (name, count), *others = json.loads(refused).items()
    assert (name, others) == ("agent3", [])
    assert count > 1
    evaluations = read_rows(RunDirectory(tmp_path).cell(liar) / "evaluations.csv", EvaluationRow)
    assert np.isfinite([row.mean_return for row in evaluations]).all()


def test_a_cell_ends_when_agents_are_lost_repeatedly(tmp_path: Path) -> None:
    gathered = 0

    def always_lost_at_once() -> Iterator[int]:
        nonlocal gathered
        while True:
            gathered += 1
            yield 1

    with pytest.raises(AgentsLost):
        finish(tmp_path, losing(always_lost_at_once()))
    assert gathered == MOST_LOSSES


def test_a_cell_that_cannot_start_closes_its_agents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = []

    def gather(*args: Any) -> OwnedCohort:
        cohort = gather_here(*args)
        vars(cohort)["close"] = lambda: closed.append(cohort)
        return cohort

    def refuse(*_: Any) -> None:
        raise SettingsError("no account")

    monkeypatch.setattr(tracking, "TRACKERS", {"tool": (lambda: None, refuse)})
    with pytest.raises(SettingsError, match="no account"):
        finish(tmp_path, gather, track=["tool"])
    assert len(closed) == 1
