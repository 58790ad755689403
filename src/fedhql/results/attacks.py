"""What rules withstand: the honest agents of attacked arms, beside the same agents undisturbed."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.objectives import Estimate, curves_until
from fedhql.results.tables import Table
from fedhql.storage.arm_names import INDEPENDENT, changes, label, without_attack

WITHSTOOD = 0.9  # of the clean performance
Scores = dict[int, tuple[float, float]]  # seed -> max mean return and recent mean, over agents


@dataclass(frozen=True)
class AttackScore:
    """One arm under attack: means over its honest agents, estimates over seeds."""

    run: str
    rule: str
    attack: str
    attackers: int
    seeds: int
    consumed: float  # env steps per agent
    best: Estimate  # the paper's metric
    recent: Estimate  # mean of the last tenth of the evaluations
    clean: Estimate | None  # best of the same agents where nobody lies; None: not run
    clean_recent: float | None
    alone: Estimate | None
    share: float | None  # of clean, in seeds both have; None: not run, or nothing above 0

    @property
    def row(self) -> tuple[str, str]:
        return self.run, self.rule

    @property
    def withstood(self) -> bool:
        return self.share is None or self.share >= WITHSTOOD


def attack_scores(runs: Sequence[Run], *, at: float, level: float) -> list[AttackScore]:
    """At this share of the smallest budget, so that all have consumed the same."""
    attacked = [run for run in runs if any(run.attack(arm) for arm in run.arms)]
    consumed = at * min((run.budget for run in attacked), default=0)
    found = (
        _score(run, arm, attack, consumed, level)
        for run in attacked
        for arm in run.federated_arms
        if (attack := run.attack(arm))
    )
    return [score for score in found if score is not None]


def _score(
    run: Run,
    arm: str,
    attack: tuple[str, int],
    consumed: float,
    level: float,
) -> AttackScore | None:
    name, attackers = attack
    clean_arm, honest = without_attack(arm), len(run.agents) - attackers
    ours, alone = (_scores(run, each, consumed, honest) for each in (arm, INDEPENDENT))
    clean = {} if run.attack(clean_arm) else _scores(run, clean_arm, consumed, honest)
    if not ours:
        return None  # no seed has come so far

    def estimate(scores: Scores, measure: int = 0) -> Estimate:
        return Estimate.of([of[measure] for of in scores.values()], level)

    pairs = [(ours[seed][0], clean[seed][0]) for seed in ours if seed in clean]
    under, free = np.mean(pairs, axis=0) if pairs else (0.0, 0.0)
    return AttackScore(
        run=run.name,
        rule=_rule(run, clean_arm),
        attack=name,
        attackers=attackers,
        seeds=len(ours),
        consumed=consumed,
        best=estimate(ours),
        recent=estimate(ours, 1),
        clean=estimate(clean) if clean else None,
        clean_recent=float(np.mean([of[1] for of in clean.values()])) if clean else None,
        alone=estimate(alone) if alone else None,
        share=float(under / free) if free > 0 else None,
    )


def _scores(run: Run, arm: str, consumed: float, agents: int) -> Scores:
    """Of the first agents: attackers are the last."""
    return {
        seed: (float(curve.max_mean()[:agents].mean()), float(curve.recent_mean()[:agents].mean()))
        for seed, curve in curves_until(run, arm, consumed).items()
    }


def _rule(run: Run, arm: str) -> str:
    """Its name and number, then what else the arm changes."""
    federation, changed = run.settings["federation"], changes(arm)
    own = {key: federation[key] for key in ("rule", "trim") if key in federation}
    if "rule" in changed:
        own.pop("trim", None)  # which was for the settings' own
    own |= {key: changed.pop(key) for key in ("rule", "trim") if key in changed}
    trim = [f"trim = {float(own['trim']):g}"] if "trim" in own else []
    others = [label(f"{key}={value}") for key, value in changed.items()]
    return ", ".join([own["rule"], *trim, *others])


def row_names(scores: Sequence[AttackScore]) -> dict[tuple[str, str], str]:
    """By their rules, in the runs' order; by the run as well where two have the same rule."""
    rows = dict.fromkeys(score.row for score in scores)
    rules = [rule for _, rule in rows]
    return {(run, rule): f"{run}: {rule}" if rules.count(rule) > 1 else rule for run, rule in rows}


def attack_tables(scores: Sequence[AttackScore], level: float) -> list[Table]:
    """One for each number of attackers: rules down, attacks across."""
    note = (
        f"Max mean return [{level:.0%} t-interval over seeds] / mean of the last 10 %, of "
        "the honest agents, at {:,.0f} env steps per agent; in brackets the share of what the same "
        f"agents reach where nobody lies. ▼: below {WITHSTOOD:.0%} of it. -: not run."
    )
    tables = []
    for attackers in sorted({score.attackers for score in scores}):
        mine = [score for score in scores if score.attackers == attackers]
        attacks = list(dict.fromkeys(score.attack for score in mine))
        rows = []
        for key, name in row_names(mine).items():
            of_rule = {score.attack: score for score in mine if score.row == key}
            first = next(iter(of_rule.values()))
            clean = f"{first.clean} / {first.clean_recent:.4g}" if first.clean else "-"
            cells = (_cell(of_rule[attack]) if attack in of_rule else "-" for attack in attacks)
            rows.append((name, str(first.alone or "-"), clean, *cells))
        title = f"{attackers} attacker{'s' * (attackers > 1)}"
        header = ("rule", "alone", "nobody lies", *attacks)
        tables.append(Table(title, header, rows, note=note.format(mine[0].consumed)))
    return tables


def _cell(score: AttackScore) -> str:
    share = "" if score.share is None else f" ({score.share:.0%})"
    return f"{score.best} / {score.recent.mean:.4g}{share}{'' if score.withstood else ' ▼'}"


def attack_csv(scores: Sequence[AttackScore]) -> str:
    text = StringIO()
    file = csv.writer(text, lineterminator="\n")
    estimates = [f"{name}{end}" for name in ("best", "recent") for end in ("", "_low", "_high")]
    of = ("run", "rule", "attack", "attackers", "seeds", "consumed")
    file.writerow((*of, *estimates, "clean_best", "clean_recent", "alone_best", "share_of_clean"))
    for score in scores:
        found = [(each.mean, each.low, each.high) for each in (score.best, score.recent)]
        clean, alone = (each.mean if each else None for each in (score.clean, score.alone))
        numbers = [*found[0], *found[1], clean, score.clean_recent, alone, score.share]
        told = ("" if number is None else f"{number:.6g}" for number in numbers)
        file.writerow((*(getattr(score, name) for name in of), *told))
    return text.getvalue()
