"""Unfinished cells and arms without rounds are told beside the figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhql.results.notes import Note, has_no_round, notes
from fedhql.results.report import write_report
from tests.results.handmade import PHASE, curve, learning_run, run_of, settings

WHOLE, HALF = curve([50, 100], [1, 2]), curve([50], [1])
MANIFEST = {"arms": ["independent", "fedhql"], "seeds": [0, 1]}


def test_a_finished_run_that_federates_has_no_notes() -> None:
    run = learning_run(arms=["independent", "fedhql"])
    assert notes(run) == []


def test_unfinished_cells_are_named() -> None:
    arms = {"independent": {0: WHOLE, 1: WHOLE}, "fedhql": {0: HALF}}
    run = replace(run_of(arms), manifest=MANIFEST)
    (note,) = notes(run)
    assert note == Note(
        "Unfinished",
        "2 of 4 cells have not consumed the budget of 100 env steps per agent: FedHQL, λ = 1, "
        "seeds 0, 1.",
    )


@pytest.mark.parametrize(
    ("budget", "batch", "arm", "none"),
    [
        (PHASE, 4, "fedhql", True),
        (PHASE + 1, 4, "fedhql", True),  # two agents have 2 env steps left for the server
        (PHASE + 2, 4, "fedhql", False),
        (PHASE + 2, 4, "self_learning_env_steps=6", True),
        (PHASE + 1, 4, "exploration=3,query_batch=2", False),
    ],
)
def test_an_arm_has_no_round_if_the_budget_ends_before_its_first_server_step(
    budget: int, batch: int, arm: str, none: bool
) -> None:
    chosen = settings(2, query_batch=batch) | {"budget": {"env_steps_per_agent": budget}}
    assert has_no_round(chosen, arm) == none


def test_an_arm_without_rounds_is_named_on_the_page(tmp_path: Path) -> None:
    run = run_of({"independent": {0: WHOLE}, "fedhql": {0: WHOLE}}, self_learning_env_steps=100)
    run = replace(run, manifest=MANIFEST | {"seeds": [0]})
    pages = write_report([run], tmp_path / "report", np.random.default_rng(0), level=0.95)
    expected = (
        "No round took place in FedHQL, λ = 1: the budget of 100 env steps per agent ends with the "
        "first phase of self-learning. Agents learned as they do alone."
    )
    html, markdown = (page.read_text() for page in pages)
    assert f"**Not federated.** {expected}" in markdown
    assert f"<p><b>Not federated.</b> {expected}</p>" in html
