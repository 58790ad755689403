"""Every statement of the paper, on runs like the paper's, on the opposite, and on less."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from fedhql.results.claims import STATEMENTS, Statement, check_claims
from fedhql.results.curves import Arms, Curve, Run
from fedhql.results.paper_experiments import CARTPOLE_5, CARTPOLE_10, LUNARLANDER_5, Experiment
from fedhql.results.statistics import holm
from fedhql.results.verdicts import MET, NOT_MET, NOT_RUN, UNDECIDED, Verdict
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_names, preset_text
from tests.results.handmade import curve, run_of, settings

FEDERATED = {0.0: "exploration=0", 1.0: "fedhql"} | {
    x: f"exploration={x:g}" for x in (3.0, 5.0, 10.0)
}
SHARES = (0.2, 0.4, 0.6, 1.0)
Agents = Mapping[int, tuple[float, ...]]  # number -> returns at these shares of the budget


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def seeds(of: Experiment, agents: Agents, count: int = 15, noise: float = 1) -> dict[int, Curve]:
    consumed = np.array(SHARES) * of.budget
    return {
        seed: curve(
            consumed,
            *(
                np.array(agents[n + 1]) + noise * (seed - (count - 1) / 2)
                for n in range(len(of.agents))
            ),
            own=0.9 * consumed,
        )
        for seed in range(count)
    }


def run(of: Experiment, arms: Arms) -> Run:
    mine = settings(env_id=of.env_id, self_learning_env_steps=5_000)
    mine["budget"]["env_steps_per_agent"] = of.budget
    mine["agents"] = [
        {
            "kind": "dqn",
            "hidden": list(hidden),
            "activation": activation,
            "learning_rate": rate,
            "exploration_final_eps": epsilon,
        }
        for hidden, activation, rate, epsilon in of.agents
    ]
    return run_of(arms, settings_=mine)


def the_papers(of: Experiment) -> Run:
    """What the paper's text says, roughly."""
    numbers = range(1, len(of.agents) + 1)
    if of.env_id == "CartPole-v1":
        poor = {5} if of is CARTPOLE_5 else {5, 10}
        alone = {n: (9, 9, 9, 9) if n in poor else (340, 350, 360, 380) for n in numbers}
        every = dict.fromkeys(numbers, (400.0, 480.0, 480.0, 480.0))
        hurt = {1, 3} if of is CARTPOLE_5 else {3}
        greedy = every | dict.fromkeys(hurt, (320.0, 480.0, 480.0, 480.0))
    else:
        alone = dict.fromkeys(numbers, (-50, 0, 50, 90))
        every = {n: (150.0 if n == 1 else 100.0, 200.0, 200.0, 200.0) for n in numbers}
        greedy = every
    arms = {arm: seeds(of, greedy if x == 0 else every) for x, arm in FEDERATED.items()}
    return run(of, arms | {"independent": seeds(of, alone)})


def the_opposite(of: Experiment) -> Run:
    numbers = range(1, len(of.agents) + 1)
    if of.env_id == "CartPole-v1":
        alone: Agents = dict.fromkeys(numbers, (400.0,) * 4)
        every: Agents = dict.fromkeys(numbers, (100.0,) * 4)
        greedy: Agents = {n: (450.0 if n in (1, 3) else 100.0,) * 4 for n in numbers}
    else:
        alone = dict.fromkeys(numbers, (200.0,) * 4)
        every = dict.fromkeys(numbers, (0.0,) * 4)
        greedy = dict.fromkeys(numbers, (-100.0,) * 4)
    arms = {arm: seeds(of, greedy if x == 0 else every) for x, arm in FEDERATED.items()}
    # Alone, seeds go the other way, or differences would be the same in all.
    return run(of, arms | {"independent": seeds(of, alone, noise=-1)})


every_statement = pytest.mark.parametrize(
    "statement", STATEMENTS, ids=lambda each: f"{each.experiment.name}-{each.text[:30]}"
)


def verdict(statement: Statement, *runs: Run) -> Verdict | None:
    found = check_claims(runs, rng())
    key = (statement.experiment.name, statement.text)
    return next((each for each in found if (each.experiment, each.statement) == key), None)


def status(statement: Statement, *runs: Run) -> str | None:
    found = verdict(statement, *runs)
    return found.status if found else None


def test_options_of_an_own_kind_may_have_any_type() -> None:
    of_paper = the_papers(CARTPOLE_5)
    agents = [{"kind": "my_agents:Mine", "hidden": 16}] * len(CARTPOLE_5.agents)
    own = replace(of_paper, settings=of_paper.settings | {"agents": agents})
    assert CARTPOLE_5.is_of(of_paper)
    assert not CARTPOLE_5.is_of(own)


@every_statement
def test_numbers_like_the_papers_meet_it(statement: Statement) -> None:
    found = verdict(statement, the_papers(statement.experiment))
    assert found is not None
    assert found.evidence is not None
    assert (found.status, found.evidence.shortfall, found.seeds) == (MET, 0, 15)


@every_statement
def test_the_opposite_does_not(statement: Statement) -> None:
    found = verdict(statement, the_opposite(statement.experiment))
    assert found is not None
    assert found.evidence is not None
    assert found.status == NOT_MET
    assert found.evidence.shortfall > 0


@every_statement
def test_seeds_that_contradict_each_other_leave_it_undecided(statement: Statement) -> None:
    of = statement.experiment
    like, unlike = the_papers(of).arms, the_opposite(of).arms
    mixed = {
        arm: {seed: (like, unlike)[seed % 2][arm][seed] for seed in found}
        for arm, found in like.items()
    }
    assert status(statement, run(of, mixed)) == UNDECIDED


def only(arms: Callable[[str], bool], of: Experiment) -> Run:
    whole = the_papers(of).arms
    return run(of, {arm: found for arm, found in whole.items() if arms(arm)})


@every_statement
def test_it_is_not_run_where_something_is_missing(statement: Statement) -> None:
    of = statement.experiment
    found = verdict(statement, the_papers(of))
    assert found is not None
    assert found.evidence is not None
    names = " ".join(found.evidence.quantities)
    assert status(statement, run(of, {"exploration=7": the_papers(of).arms["fedhql"]})) == NOT_RUN
    if "alone" in names or "share of agents" in names:
        assert status(statement, only(lambda arm: arm != "independent", of)) == NOT_RUN
    if "every λ" in statement.text or "λ hardly" in statement.text:
        assert status(statement, only(lambda arm: arm != "exploration=5", of)) == NOT_RUN
    begun = {
        arm: {seed: Curve(np.array([0.1 * of.budget]), each.returns_NE[:, :1], each.own_E)}
        for arm, curves in the_papers(of).arms.items()
        for seed, each in curves.items()
    }
    assert status(statement, run(of, begun)) == NOT_RUN


@every_statement
def test_a_partial_run_answers_with_the_lambdas_and_the_share_that_it_has(
    statement: Statement,
) -> None:
    of = statement.experiment
    early = {
        arm: {seed: part for seed, each in curves.items() if (part := each.until(0.6 * of.budget))}
        for arm, curves in the_papers(of).arms.items()
        if arm not in ("exploration=5", "exploration=10")
    }
    short = run(of, early)
    short.settings["budget"]["env_steps_per_agent"] = int(0.6 * of.budget)
    found = [each for each in check_claims([short], rng(), partial=True) if each.evidence]
    (mine,) = (each for each in found if each.statement == statement.text)
    assert mine.status == MET
    assert mine.evidence is not None
    names = list(mine.evidence.quantities)
    assert not any("λ = 5" in name or "λ = 10" in name for name in names)
    whole = any(words in statement.text for words in ("within the budget", "nearly", "most agents"))
    assert {"at 60%" in name for name in names} == {whole}


def test_one_lambda_says_nothing_about_how_much_lambda_matters() -> None:
    alone = only(lambda arm: arm in ("fedhql", "independent"), LUNARLANDER_5)
    found = check_claims([alone], rng(), partial=True)
    (mine,) = (each for each in found if "λ hardly matters" in each.statement)
    assert mine.evidence is None


@every_statement
def test_runs_of_something_else_are_not_held_against_it(statement: Statement) -> None:
    of = statement.experiment
    assert status(statement) is None
    other = LUNARLANDER_5 if of.env_id == "CartPole-v1" else CARTPOLE_5
    assert status(statement, the_papers(other)) is None
    own_agents = the_papers(of)
    own_agents.settings["agents"][2]["learning_rate"] = 0.5
    assert status(statement, own_agents) is None
    past_the_paper = the_papers(of)
    past_the_paper.settings["federation"]["broadcast"] = "all-actions"
    assert status(statement, past_the_paper) is None
    pessimistic = the_papers(of)
    pessimistic.settings["federation"]["pessimism"] = 1.0
    assert status(statement, pessimistic) is None
    assert pessimistic.label("fedhql") == "FedHQL, λ = 1, μ = 1"


@pytest.mark.parametrize("preset", preset_names())
def test_only_the_four_presets_are_the_papers_experiments(preset: str) -> None:
    chosen = read_settings(preset_text(preset)).model_dump(mode="json")
    mine = run_of({"fedhql": {0: curve([1], *[[1]] * len(chosen["agents"]))}}, settings_=chosen)
    names = [each.experiment.name for each in STATEMENTS if each.experiment.is_of(mine)]
    task, _, agents = preset.partition("-n")
    in_paper = {"cartpole": "CartPole", "lunarlander": "LunarLander"}
    is_the_papers = task in in_paper and agents.isdecimal()
    assert set(names) == ({f"{in_paper[task]} N={agents}"} if is_the_papers else set())


def test_a_verdict_shows_the_numbers() -> None:
    found = {
        (v.experiment, v.statement[:9]): v for v in check_claims([the_papers(CARTPOLE_5)], rng())
    }
    # Mean over agents: (2 * 320 + 3 * 400) / 5 - (4 * 340 + 9) / 5, the same in every seed.
    told = found["CartPole N=5", "every λ i"].ours
    assert told.startswith("λ = 0 minus alone: 94 [94, 94]; λ = 1 minus alone: 126 [126, 126]; ")
    # Standard deviation of -2 ... 2: 1.58, over sqrt(5), times 2.776.
    assert found["CartPole N=5", "Agent5 al"].ours == "Agent5, alone: 9 [7, 11]"
    most = found["CartPole N=5", "most agen"].ours
    assert most.startswith("λ = 1, share of agents: 0.8 [0.8, 0.8]; with the server's share: 0.8 ")
    assert "Agent1 1.00 [0.78, 1.00]" in most
    assert "Agent5 0.00 [0.00, 0.22]" in most


def test_own_steps_count_for_most_agents() -> None:
    """Agents reach it at the same consumption, of which the server has taken a tenth."""
    of = CARTPOLE_5
    same = dict.fromkeys(range(1, 6), (100.0, 200.0, 300.0, 400.0))
    together = seeds(of, same)
    alone = {seed: replace(each, own_E=each.consumed_E) for seed, each in together.items()}
    found = verdict(STATEMENTS[1], run(of, {"fedhql": together, "independent": alone}))
    assert found is not None
    assert found.ours.startswith("λ = 1, share of agents: 1 [1, 1]; with the server's share: 0 ")


def test_a_run_that_cannot_answer_leaves_it_to_the_next() -> None:
    partial = run(CARTPOLE_5, {"fedhql": the_papers(CARTPOLE_5).arms["fedhql"]})
    assert status(STATEMENTS[0], partial, the_papers(CARTPOLE_5)) == MET


def test_all_statements_of_a_table_are_corrected_together() -> None:
    judged = check_claims([the_papers(CARTPOLE_5), the_papers(CARTPOLE_10)], rng())
    p_values = [each.evidence.p for each in judged if each.evidence]
    assert len(p_values) == sum(s.experiment in (CARTPOLE_5, CARTPOLE_10) for s in STATEMENTS) == 13
    assert [each.p_holm for each in judged] == pytest.approx(holm(p_values).tolist())
