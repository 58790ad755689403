"""Suites: several runs in one directory, such as the experiments of the paper."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from fedhql.engines.work import Executor
from fedhql.errors import SettingsError
from fedhql.federation.attacks import ATTACKS
from fedhql.running.readings import ARMS as READING_ARMS
from fedhql.running.readings import SEEDS as READING_SEEDS
from fedhql.running.readings import SHARES, readings
from fedhql.running.run import Display, run_experiment
from fedhql.settings.arms import require_arm
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import PLUS, PLUS_AGENTS, preset_text
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import FEDHQL, INDEPENDENT
from fedhql.storage.run_directory import Cell, RunDirectory

PAPER = ("cartpole-n5", "cartpole-n10", "lunarlander-n5", "lunarlander-n10")
# FEDHQL has λ = 1, as in the presets.
ARMS = (INDEPENDENT, "exploration=0", FEDHQL, "exploration=3", "exploration=5", "exploration=10")
SEEDS = (0, 1, 2, 3, 4)
# Each run changes one choice that the paper leaves open, and keeps the rest of the preset.
ABLATIONS: dict[str, Sequence[str]] = {
    "as-chosen": (),
    # A fraction up to 0.025 would end before learning starts.
    "annealed-epsilon": ("agents.exploration_fraction=0.05",),
    "improvement-1e-4": ("agents.improvement_learning_rate=1e-4",),
    "improvement-3e-3": ("agents.improvement_learning_rate=3e-3",),
    "improvement-1e-2": ("agents.improvement_learning_rate=1e-2",),
    # The paper read literally: the agents' learning rates, plain gradient descent, no clipping.
    "improvement-sgd": (
        "agents.improvement_optimiser=sgd",
        "agents.improvement_max_grad_norm=1e9",
        "agents.1.improvement_learning_rate=0.005",
        "agents.2.improvement_learning_rate=0.01",
        "agents.3.improvement_learning_rate=0.01",
        "agents.4.improvement_learning_rate=0.02",
        "agents.5.improvement_learning_rate=0.001",
    ),
    "carry-over": ("federation.server_environments=carry-over",),
    "target-stays": ("agents.target_follows_improvement=false",),
    "target-interval-10000": ("agents.target_update_interval=10000",),
    "learning-starts-1000": ("agents.learning_starts=1000",),
}
# Every rule runs against every attack. While all five agents answer, bernstein with c = 2.5
# chooses the same actions as mean-std.
ATTACKED_RULES: dict[str, Sequence[str]] = {
    "mean-std": ("federation.rule=mean-std",),
    "bernstein": (
        "federation.rule=bernstein",
        "federation.bound=100",
        "federation.confidence=2.5",
    ),
    "median-mad": ("federation.rule=median-mad",),
    "sceptical": ("federation.rule=sceptical",),
    "hampel": ("federation.rule=hampel",),
    "trimmed-1": ("federation.rule=trimmed", "federation.trim=1"),
    "trimmed-2": ("federation.rule=trimmed", "federation.trim=2"),
    "bellman-weighted": ("federation.rule=bellman-weighted",),
}
ATTACKED_ARMS = tuple(f"attack={attack},attackers={k}" for k in (1, 2) for attack in ATTACKS)


@dataclass(frozen=True)
class Suite:
    """Runs, each of a preset with overrides. All runs have the same arms and seeds."""

    runs: Mapping[str, tuple[str, Sequence[str]]]  # name -> preset, overrides
    arms: Sequence[str] = ARMS
    seeds: Sequence[int] = SEEDS
    shares: Mapping[str, float] = field(default_factory=dict)  # preset -> of its budget; default 1


def _under_attack(rules: Mapping[str, Sequence[str]]) -> Suite:
    runs = {rule: ("cartpole-n5" + PLUS_AGENTS, changed) for rule, changed in rules.items()}
    return Suite(runs, arms=(INDEPENDENT, FEDHQL, *ATTACKED_ARMS))


def _readings(experiments: Sequence[str]) -> Suite:
    runs = {run: (name, changed) for name in experiments for run, changed in readings(name)}
    return Suite(runs, arms=READING_ARMS, seeds=READING_SEEDS, shares=SHARES)


SUITES = {name: Suite({name: (name, ())}) for name in PAPER} | {
    "paper": Suite({name: (name, ()) for name in PAPER}),
    "ablations": Suite(
        {name: ("cartpole-n5", changed) for name, changed in ABLATIONS.items()},
        arms=(INDEPENDENT, FEDHQL),
    ),
    # Alone, agents have the options of the same preset.
    "plus": Suite(
        {each: (each, ()) for name in PAPER for each in (name + PLUS, name + PLUS_AGENTS)},
        arms=(INDEPENDENT, FEDHQL),
    ),
    "attacks": _under_attack(ATTACKED_RULES),
    "readings": _readings(PAPER),
    **{f"readings-{name}": _readings([name]) for name in PAPER},
    **{f"attacks-{rule}": _under_attack({rule: of}) for rule, of in ATTACKED_RULES.items()},
}


@dataclass(frozen=True)
class SuiteRun:
    """One experiment of a suite."""

    settings: ExperimentSettings
    directory: RunDirectory
    arms: Sequence[str]
    seeds: Sequence[int]

    def env_steps_left(self) -> int:
        """Return the env steps per agent of all unfinished cells."""
        cells = [Cell(arm, seed) for arm in self.arms for seed in self.seeds]
        left = [cell for cell in cells if not self.directory.result(cell).exists()]
        return len(left) * self.settings.budget.env_steps_per_agent


def plan_suite(
    name: str,
    out: Path,
    *,
    budget_fraction: float,
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[SuiteRun]:
    """Return the runs of a suite, by default with its own arms and seeds.

    `only` holds patterns such as "*-sgd-*": runs whose names match none are left out. Raise
    SettingsError if there is no such suite, run, arm or budget fraction.
    """
    if name not in SUITES:
        raise SettingsError(f"unknown suite {name!r}; allowed: {', '.join(SUITES)}")
    if not 0 < budget_fraction <= 1:
        raise SettingsError(f"--budget-fraction {budget_fraction:g}: allowed: above 0, at most 1")
    runs, names = [], list(SUITES[name].runs)
    if missing := [each for each in only if not fnmatch.filter(names, each)]:
        raise SettingsError(f"--run {missing[0]}: no run matches; allowed: {', '.join(names)}")
    for run, (preset, changed) in SUITES[name].runs.items():
        if only and not any(fnmatch.fnmatchcase(run, each) for each in only):
            continue
        whole = read_settings(preset_text(preset)).budget.env_steps_per_agent
        share = budget_fraction * SUITES[name].shares.get(preset, 1.0)
        budget = f"budget.env_steps_per_agent={round(share * whole)}"
        wished = [budget, *changed, *overrides]
        slower = _annealed_as_slowly(read_settings(preset_text(preset), wished), whole)
        settings = read_settings(preset_text(preset), [*wished, *slower])
        wanted, chosen = arms or SUITES[name].arms, seeds or SUITES[name].seeds
        named = dict.fromkeys(require_arm(settings, arm) for arm in wanted)  # each once
        directory = RunDirectory(out / run)
        runs.append(SuiteRun(settings, directory, list(named), list(dict.fromkeys(chosen))))
    return runs


def _annealed_as_slowly(settings: ExperimentSettings, whole: int) -> list[str]:
    """Return what lets ε fall over a share of the `whole` budget in a run that is a part of it.

    So a short run is the beginning of a whole one. In a run that ends while ε would still fall, it
    falls faster: a fraction is at most 1.
    """
    part = settings.budget.env_steps_per_agent / whole
    return [
        f"agents.{number}.exploration_fraction={min(1.0, fraction / part):.6g}"
        for number, agent in enumerate(settings.agents, start=1)
        if agent.options.get("exploration_annealing") == "budget"
        and (fraction := agent.options.get("exploration_fraction", 0))
    ]


def run_suite(
    runs: Sequence[SuiteRun],
    *,
    engine: str,
    executor: Executor,
    command: Sequence[str],
    started: datetime,
    clock: Callable[[], float],
    display: Display,
    after_message: Callable[[], None],
    after_each: Callable[[SuiteRun], None],
) -> None:
    """Run the unfinished cells, one run after the other. Call `after_each` after each run."""
    for run in runs:
        run_experiment(
            run.settings,
            run.directory,
            arms=run.arms,
            seeds=run.seeds,
            engine=engine,
            resume=True,
            executor=executor,
            track=(),
            command=command,
            started=started,
            clock=clock,
            display=display,
            after_message=after_message,
        )
        after_each(run)
