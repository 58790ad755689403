"""What the paper states about its results, each statement with the numbers a run puts beside it.

Statements are about the max mean return, at shares of the paper's budget. A figure ("close to
100") has a tolerance of a tenth of the task's scale. docs/results.md gives the rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.paper_experiments import (
    CARTPOLE_5,
    CARTPOLE_10,
    LUNARLANDER_5,
    LUNARLANDER_10,
    Experiment,
)
from fedhql.results.quantities import (
    ALONE,
    LAMBDAS,
    Held,
    Missing,
    Quantities,
    differences_between_lambdas,
    each_agents_probability,
    gains,
    levels,
    share_of_agents,
)
from fedhql.results.verdicts import Range, Verdict, correct, weigh


@dataclass(frozen=True)
class Statement:
    """One sentence of the paper: numbers of a run, and the range where each must be."""

    experiment: Experiment
    section: str
    text: str
    range: Range
    quantities: Callable[[Held], Quantities]
    detail: Callable[[Held], str] = lambda held: ""


@dataclass(frozen=True)
class Answer:
    """What runs say about a statement; without quantities, they say nothing."""

    statement: Statement
    quantities: Quantities = field(default_factory=dict)
    detail: str = ""


def check_claims(
    runs: Sequence[Run], rng: np.random.Generator, *, partial: bool = False
) -> list[Verdict]:
    """Return a verdict on every statement about the paper's experiments among these runs."""
    return judge(ask(runs, partial=partial), rng)


def ask(runs: Sequence[Run], *, partial: bool = False) -> list[Answer]:
    """Return an answer to every statement about the paper's experiments among these runs.

    Of several runs of one experiment, the first that can answer does. `partial` ones answer with
    the λ they have, at the share of the budget they reach.
    """
    found = []
    for statement in STATEMENTS:
        experiment = statement.experiment
        mine = [Held(run, experiment, partial) for run in runs if experiment.is_of(run)]
        answers = (
            Answer(statement, of, statement.detail(held))
            for held in mine
            if (of := _quantities(statement, held))
        )
        if mine:
            found.append(next(answers, Answer(statement)))
    return found


def judge(answers: Sequence[Answer], rng: np.random.Generator) -> list[Verdict]:
    """Return a verdict on each answer, corrected for their number."""
    evidence = [
        weigh(each.quantities, each.statement.range, rng) if each.quantities else None
        for each in answers
    ]
    corrected = correct([each.p if each else None for each in evidence])
    return [
        Verdict(
            answer.statement.experiment.name,
            answer.statement.text,
            answer.statement.section,
            answer.statement.range,
            each,
            p_holm,
            answer.detail,
        )
        for answer, each, p_holm in zip(answers, evidence, corrected, strict=True)
    ]


def _quantities(statement: Statement, held: Held) -> Quantities | None:
    try:
        return statement.quantities(held)
    except Missing:
        return None


def _every_lambda(of: Experiment, section: str) -> Statement:
    text = "every λ is above independent DQN (at 20 % of the budget)"
    return Statement(of, section, text, of.range(above=0), gains(0.2, LAMBDAS))


def _most_agents(of: Experiment, section: str) -> Statement:
    text = "most agents need fewer interactions for what they reach alone (λ = 1)"
    most = of.range(above=0.5, unit=1)
    return Statement(of, section, text, most, share_of_agents, each_agents_probability)


STATEMENTS = (
    _every_lambda(CARTPOLE_5, "5.2"),
    _most_agents(CARTPOLE_5, "5.3"),
    Statement(CARTPOLE_5, "5.3", "λ = 0 makes Agent1 and Agent3 worse than alone (at 20 %)",
              CARTPOLE_5.range(below=0), gains(0.2, (0.0,), (1, 3))),
    Statement(CARTPOLE_5, "5.3", "λ = 1, 3, 5, 10 make Agent1 and Agent3 better (at 20 %)",
              CARTPOLE_5.range(above=0), gains(0.2, LAMBDAS[1:], (1, 3))),
    Statement(CARTPOLE_5, "5.3", "Agent5 alone fails to learn within the budget",
              CARTPOLE_5.range(below=195), levels(1.0, (ALONE,), (5,))),
    Statement(CARTPOLE_5, "5.3", "Agent5 has nearly the maximum return with every λ",
              CARTPOLE_5.range(above=450), levels(1.0, LAMBDAS, (5,))),
    _every_lambda(CARTPOLE_10, "B.1"),
    Statement(CARTPOLE_10, "B.1", "alone, the mean return is 300 at 20 % of the budget",
              CARTPOLE_10.close_to(300), levels(0.2, (ALONE,))),
    Statement(CARTPOLE_10, "B.1", "λ = 1 and λ = 3 are close to 400 at 20 % of the budget",
              CARTPOLE_10.close_to(400), levels(0.2, (1.0, 3.0))),
    _most_agents(CARTPOLE_10, "B.1"),
    Statement(CARTPOLE_10, "B.2", "λ = 0 makes Agent3 worse than alone, early (at 20 %)",
              CARTPOLE_10.range(below=0), gains(0.2, (0.0,), (3,))),
    Statement(CARTPOLE_10, "B.2", "Agent5 and Agent10 alone fail to learn within the budget",
              CARTPOLE_10.range(below=195), levels(1.0, (ALONE,), (5, 10))),
    Statement(CARTPOLE_10, "B.2", "Agent5 and Agent10 have nearly the maximum with every λ",
              CARTPOLE_10.range(above=450), levels(1.0, LAMBDAS, (5, 10))),
    _every_lambda(LUNARLANDER_5, "5.2"),
    Statement(LUNARLANDER_5, "5.2", "alone, positive returns need at least 40 % of the budget",
              LUNARLANDER_5.range(below=LUNARLANDER_5.tolerance), levels(0.4, (ALONE,))),
    Statement(LUNARLANDER_5, "5.2", "λ = 1 is close to 100 at 20 % of the budget",
              LUNARLANDER_5.close_to(100), levels(0.2, (1.0,))),
    Statement(LUNARLANDER_5, "5.2", "λ hardly matters (at 20 %; the paper: less than on CartPole)",
              LUNARLANDER_5.close_to(0), differences_between_lambdas(0.2)),
    _most_agents(LUNARLANDER_5, "5.3"),
    Statement(LUNARLANDER_5, "5.3", "Agent1 alone needs over 60 % of the budget to reach 100",
              LUNARLANDER_5.range(below=100), levels(0.6, (ALONE,), (1,))),
    Statement(LUNARLANDER_5, "5.3", "Agent1 is around 150 with λ = 1 at 20 % of the budget",
              LUNARLANDER_5.close_to(150), levels(0.2, (1.0,), (1,))),
    Statement(LUNARLANDER_5, "5.3", "the other four agents likewise gain with λ = 1 (at 20 %)",
              LUNARLANDER_5.range(above=0), gains(0.2, (1.0,), (2, 3, 4, 5))),
    _every_lambda(LUNARLANDER_10, "B.1"),
    Statement(LUNARLANDER_10, "B.1", "alone, positive returns need at least 20 % of the budget",
              LUNARLANDER_10.range(below=LUNARLANDER_10.tolerance), levels(0.2, (ALONE,))),
    Statement(LUNARLANDER_10, "B.1", "λ = 3 is close to 100 at 20 % of the budget",
              LUNARLANDER_10.close_to(100), levels(0.2, (3.0,))),
    _most_agents(LUNARLANDER_10, "B.1"),
)  # fmt: skip
