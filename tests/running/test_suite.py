import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedhql.errors import SettingsError
from fedhql.federation import RULES
from fedhql.federation.attacks import ATTACKS
from fedhql.running.suite import ARMS, PAPER, SEEDS, SUITES, SuiteRun, plan_suite
from fedhql.settings.experiment import differing_keys
from fedhql.settings.presets import preset_names
from fedhql.storage.run_directory import Cell

OUT = Path("never-made")


def plan(
    name: str,
    budget_fraction: float = 1.0,
    *,
    out: Path = OUT,
    arms: Sequence[str] = ARMS,
    seeds: Sequence[int] = SEEDS,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[SuiteRun]:
    return plan_suite(
        name,
        out,
        budget_fraction=budget_fraction,
        arms=arms,
        seeds=seeds,
        overrides=overrides,
        only=only,
    )


def names_of(runs: Sequence[SuiteRun]) -> list[str]:
    return [run.directory.path.name for run in runs]


def test_every_reading_differs_in_what_its_name_says() -> None:
    runs = plan("readings-cartpole-n5", arms=(), seeds=())
    assert len(runs) == len(set(names_of(runs))) == 36
    for one, other in itertools.pairwise(runs):
        assert differing_keys(one.settings, other.settings)
    by_name = dict(zip(names_of(runs), runs, strict=True))
    literal = by_name["cartpole-n5--sgd-none-phase-sgd"].settings
    for agent in literal.agents:
        assert agent.options["optimizer"] == agent.options["improvement_optimiser"] == "sgd"
        assert agent.options["learning_starts"] == 0
        assert agent.options["exploration_annealing"] == "phase"
    assert {tuple(run.arms) for run in runs} == {
        ("independent", "exploration=0", "fedhql", "exploration=3")
    }
    assert {tuple(run.seeds) for run in runs} == {tuple(range(100, 110))}


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_epsilon_falls_as_slowly_in_a_part_of_the_budget(fraction: float) -> None:
    name = "cartpole-n5--adam-uniform-budget-adam"
    (run,) = plan("readings-cartpole-n5", fraction, arms=(), seeds=(), only=[name])
    agent, steps = run.settings.agents[0], run.settings.budget.env_steps_per_agent
    assert steps == fraction * 0.4 * 2_000_000
    assert agent.options["exploration_fraction"] * steps == 0.1 * 2_000_000
    shorter = ["budget.env_steps_per_agent=500000"]
    (run,) = plan(
        "readings-cartpole-n5", fraction, arms=(), seeds=(), only=[name], overrides=shorter
    )
    assert run.settings.agents[0].options["exploration_fraction"] == 0.4


def test_readings_run_to_a_part_of_the_budget() -> None:
    shares = {
        run.directory.path.name: run.settings.budget.env_steps_per_agent
        for run in plan("readings", 0.5, only=["*--adam-uniform-constant-adam"])
    }
    assert shares == {
        "cartpole-n5--adam-uniform-constant-adam": 400_000,
        "cartpole-n10--adam-uniform-constant-adam": 400_000,
        "lunarlander-n5--adam-uniform-constant-adam": 1_200_000,
        "lunarlander-n10--adam-uniform-constant-adam": 1_200_000,
    }


def test_some_runs_of_a_suite_can_be_chosen() -> None:
    assert names_of(plan("paper", only=["cartpole-*", "*-n10"])) == [
        "cartpole-n5",
        "cartpole-n10",
        "lunarlander-n10",
    ]
    with pytest.raises(
        SettingsError, match=r"--run cartpole: no run matches; allowed: cartpole-n5"
    ):
        plan("paper", only=["cartpole"])


def test_the_paper_suite_runs_its_four_experiments() -> None:
    runs = plan("paper")
    assert [run.directory.path for run in runs] == [
        OUT / name for name in ("cartpole-n5", "cartpole-n10", "lunarlander-n5", "lunarlander-n10")
    ]
    assert [len(run.settings.agents) for run in runs] == [5, 10, 5, 10]
    assert {run.settings.federation.exploration for run in runs} == {1.0}  # "fedhql" is λ = 1
    for run in runs:
        assert run.arms == [
            "independent",
            "exploration=0",
            "fedhql",
            "exploration=3",
            "exploration=5",
            "exploration=10",
        ]
        assert run.seeds == [0, 1, 2, 3, 4]
    assert not OUT.exists()


@pytest.mark.parametrize("name", PAPER)
def test_each_experiment_of_the_paper_is_also_a_suite(name: str) -> None:
    (alone,) = plan(name)
    (among,) = [run for run in plan("paper") if run.directory.path.name == name]
    assert alone.directory.path == among.directory.path
    assert (alone.settings, alone.arms, alone.seeds) == (among.settings, among.arms, among.seeds)


def test_every_suite_runs_presets() -> None:
    presets = {preset for suite in SUITES.values() for preset, _ in suite.runs.values()}
    assert presets <= set(preset_names())


def test_each_ablation_changes_one_choice() -> None:
    chosen, *others = plan("ablations", arms=())
    assert chosen.arms == ["independent", "fedhql"]
    assert chosen.settings == plan("cartpole-n5")[0].settings
    differ = [differing_keys(chosen.settings, other.settings) for other in others]
    assert all(differ)
    assert len({tuple(keys) for keys in differ}) == len(others)
    (literal,) = [o for o in others if o.directory.path.name == "improvement-sgd"]
    for agent in literal.settings.agents:
        assert agent.options["improvement_learning_rate"] == agent.options["learning_rate"]


def test_every_rule_runs_against_every_attack() -> None:
    runs = plan("attacks", arms=())
    named = [run.directory.path.name for run in runs]
    assert len(set(named)) == len(named) == len(RULES) + 1  # trimmed runs with trim 1 and 2
    assert {run.settings.federation.rule for run in runs} == set(RULES)
    clean = ["independent", "fedhql"]
    attacked = [f"attack={name},attackers={k}" for k in (1, 2) for name in ATTACKS]
    for run in runs:
        assert run.arms == clean + attacked
        assert run.settings.attack.attackers == 0
        (alone,) = plan(f"attacks-{run.directory.path.name}", arms=())
        assert (alone.settings, alone.arms) == (run.settings, run.arms)


@pytest.mark.parametrize(
    ("fraction", "budgets"),
    [
        (1.0, [2_000_000, 2_000_000, 4_000_000, 4_000_000]),
        (0.25, [500_000, 500_000, 1_000_000, 1_000_000]),
        (0.0123456, [24_691, 24_691, 49_382, 49_382]),  # rounded to whole steps
    ],
)
def test_the_budget_fraction_scales_every_budget(fraction: float, budgets: list[int]) -> None:
    runs = plan("paper", fraction)
    assert [run.settings.budget.env_steps_per_agent for run in runs] == budgets


def test_an_override_replaces_the_settings_of_the_suite() -> None:
    overrides = ["budget.env_steps_per_agent=77", "agents.learning_starts=5"]
    (run,) = plan("cartpole-n5", 0.5, overrides=overrides)
    assert run.settings.budget.env_steps_per_agent == 77
    assert {agent.options["learning_starts"] for agent in run.settings.agents} == {5}


def test_repeated_arms_and_seeds_are_planned_once() -> None:
    """Spelling does not matter. Otherwise their env steps would be counted twice."""
    arms = ["exploration=3.0", "fedhql", " exploration = 3", "fedhql"]
    (run,) = plan("cartpole-n5", arms=arms, seeds=[4, 0, 4])
    assert run.arms == ["exploration=3", "fedhql"]
    assert run.seeds == [4, 0]
    assert run.env_steps_left() == 4 * 2_000_000


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.001, float("nan"), float("inf")])
def test_a_budget_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(SettingsError, match=r"--budget-fraction .*: allowed: above 0, at most 1"):
        plan("cartpole-n5", fraction)


def test_a_budget_fraction_that_leaves_no_step_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"budget.env_steps_per_agent: 0 is wrong"):
        plan("cartpole-n5", 1e-9)


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(
        SettingsError,
        match=r"unknown suite 'papers'; allowed: cartpole-n5, .*, paper, ablations, ",
    ):
        plan("papers")


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(SettingsError, match="arm = 'both'"):
        plan("cartpole-n5", arms=["fedhql", "both"])


def test_finished_cells_have_no_env_steps_left(tmp_path: Path) -> None:
    (run,) = plan(
        "cartpole-n5", 0.001, out=tmp_path, arms=["independent", "fedhql"], seeds=[0, 1, 2]
    )
    assert run.env_steps_left() == 6 * 2_000
    for number, cell in enumerate([Cell("fedhql", 1), Cell("independent", 0)], start=1):
        result = run.directory.result(cell)
        result.parent.mkdir(parents=True)
        assert run.env_steps_left() == (7 - number) * 2_000  # a cell that has begun is not finished
        result.touch()
        assert run.env_steps_left() == (6 - number) * 2_000
    other = run.directory.result(Cell("exploration=3", 0))  # of an earlier call with other arms
    other.parent.mkdir(parents=True)
    other.touch()
    assert run.env_steps_left() == 4 * 2_000


def test_the_plus_suite_runs_the_reported_seeds() -> None:
    for run in plan_suite("plus", Path("out"), budget_fraction=1.0):
        assert run.seeds == [0, 1, 2, 3, 4]
        assert run.arms == ["independent", "fedhql"]
