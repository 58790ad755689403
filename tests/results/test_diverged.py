"""Agents that answer with no numbers are named, with the mean that they spoil."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedhql.results.archive import write_archive
from fedhql.results.curves import Measures, Run
from fedhql.results.diverged import diverged_notes
from fedhql.results.load import load_run
from fedhql.storage.run_directory import Cell
from tests.results.handmade import curve, run_of, settings, write_run

ARMS = {
    "independent": {0: curve([5], [10], [30], [20])},
    "fedhql": {0: curve([5], [100], [300], [2])},
}


def with_refused(**counts: int) -> Run:
    run = run_of(ARMS, settings_=settings(3))
    return replace(run, manifest=run.manifest | {"refused_answers": {"fedhql": counts}})


def test_a_run_whose_agents_answer_has_no_notes() -> None:
    assert diverged_notes(run_of(ARMS, settings_=settings(3))) == []
    assert diverged_notes(with_refused(agent1=0)) == []


def test_an_agent_whose_answers_were_refused_is_named_with_the_mean_without_it() -> None:
    assert diverged_notes(with_refused(agent3=1446)) == [
        "FedHQL, λ = 1: agent3 (1,446 answers refused) answered with values that are no finite "
        "numbers. The mean over agents of the max mean return is 134 with them and 200 without."
    ]


def test_an_agent_alone_is_named_by_its_expectations() -> None:
    nothing = np.zeros(3)
    expected = Measures(np.array([np.nan, 1.0, np.inf]), nothing, nothing)
    run = replace(with_refused(), measures={Cell("independent", 0): expected})
    (note,) = diverged_notes(run)
    assert note.startswith("DQN alone: agent1 (in evaluations), agent3 (in evaluations) answered")
    assert note.endswith("is 20 with them and 30 without.")


def test_a_run_that_did_not_measure_expectations_has_no_notes(tmp_path: Path) -> None:
    write_run(run_of(ARMS, settings_=settings(3)), tmp_path / "old")
    assert load_run(tmp_path / "old").measures == {}
    assert diverged_notes(load_run(tmp_path / "old")) == []


def test_an_attackers_refused_lies_are_no_divergence() -> None:
    arm = "attack=nan,attackers=1"
    run = run_of({arm: ARMS["fedhql"]}, settings_=settings(3))
    counts = {"refused_answers": {arm: {"agent3": 9}}}
    assert diverged_notes(replace(run, manifest=run.manifest | counts)) == []
    counts = {"refused_answers": {arm: {"agent2": 9}}}
    assert len(diverged_notes(replace(run, manifest=run.manifest | counts))) == 1


def test_nobody_may_be_left() -> None:
    (note,) = diverged_notes(with_refused(agent1=1, agent2=2, agent3=3))
    assert note.endswith("No agent is left.")


def test_an_archive_keeps_the_counts(tmp_path: Path) -> None:
    write_archive(with_refused(agent3=7), tmp_path / "kept")
    assert diverged_notes(load_run(tmp_path / "kept")) == diverged_notes(with_refused(agent3=7))
