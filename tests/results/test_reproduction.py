"""docs/reproduction.md says what the committed curves say."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.results.compare import compare_tables
from fedhql.results.curves import Curve
from fedhql.results.load import load_runs
from fedhql.results.objectives import Estimate
from fedhql.results.reading_answers import read_readings
from fedhql.results.report import write_report
from fedhql.results.statistics import LEVEL
from fedhql.results.verdicts import MET, NOT_MET, NOT_RUN, UNDECIDED
from fedhql.storage.arm_names import CONTROLS

DOCS = Path(__file__).parents[2] / "docs"
HOME = DOCS / "reproduction"
PRESETS_READING = "sgd-policy-constant-adam, after rounds"


@pytest.mark.parametrize("hardware", ["h200", "earlier", "held-out", "lander-20", "sb3"])
def test_reports_are_rebuilt_from_the_curves(hardware: str, tmp_path: Path) -> None:
    """As `fedhql report docs/reproduction/HARDWARE` writes them."""
    runs = load_runs(HOME / hardware)
    _, page = write_report(runs, tmp_path / hardware, np.random.default_rng(0), level=LEVEL)
    assert page.read_text() == (HOME / f"{hardware}.md").read_text()


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("every", ["every"]),
        ("lander", ["lander"]),
        ("lander-60", ["lander-60"]),
        ("nearest", ["nearest", "lander"]),
        ("every-and-lander", ["every", "lander"]),
    ],
)
def test_readings_are_rebuilt_from_their_answers(
    name: str, sources: list[str], tmp_path: Path
) -> None:
    """As `fedhql report docs/reproduction/SOURCE-readings.csv ...` writes them."""
    files = [HOME / f"{source}-readings.csv" for source in sources]
    rng, kept = np.random.default_rng(0), read_readings(*files)
    _, page, again = write_report([], tmp_path / name, rng, level=LEVEL, kept=kept)
    assert page.read_text() == (HOME / f"{name}.md").read_text()
    lines = {line for file in files for line in file.read_text().splitlines()}
    assert {*again.read_text().splitlines()} == lines


def test_what_is_told_of_readings_is_what_they_answer() -> None:
    told = (DOCS / "reproduction.md").read_text().partition("## Which reading")[2]
    told = told.partition("\n## ")[0]
    names = ("every", "nearest", "lander", "lander-60")
    known = {
        str(Estimate.of(values_S))
        for name in names
        for answers in read_readings(HOME / f"{name}-readings.csv").values()
        for answer in answers
        for values_S in answer.quantities.values()
    }
    intervals = re.findall(r"-?\d+ \[-?\d+, -?\d+\]", told)
    assert len(intervals) > 10
    assert [each for each in intervals if each not in known] == []
    tables = "".join((HOME / f"{name}.md").read_text() for name in (*names, "every-and-lander"))
    distances = re.findall(r"\b0\.\d{3}\b", told)
    assert len(distances) > 10
    elsewhere = {"0.001", "0.005", "0.011"}  # other tests have these
    assert [each for each in distances if each not in tables and each not in elsewhere] == []


def test_the_backbones_are_compared_from_the_curves() -> None:
    """As `fedhql compare docs/reproduction/h200/cartpole-n5 docs/reproduction/sb3 --margin 50`."""
    runs = load_runs(HOME / "h200" / "cartpole-n5", HOME / "sb3")
    tables = compare_tables(runs, LEVEL, margin=50)
    rebuilt = "\n".join(table.markdown() for table in tables)
    assert rebuilt == (HOME / "backbone.md").read_text()
    best = [curve.max_mean().mean() for curve in runs[1].arms["fedhql"].values()]
    told = f"vary from {min(best):.0f} to {max(best):.0f} between seeds"
    assert told in " ".join((DOCS / "reproduction.md").read_text().split())


def test_intervals_of_the_whole_runs_are_those_of_their_reports() -> None:
    page = (DOCS / "reproduction.md").read_text()
    told = page.partition("## Which reading")[0] + page.partition("## Seeds that no choice")[2]
    # Other tests have these.
    told = re.sub(r"^- N=\d+ at .+ in the last[;.]$", "", told, flags=re.M)
    told = re.sub(r"^A star is at differences.+?^## ", "", told, flags=re.M | re.S)
    number = r"-?[\d.]+(?:e\+\d+)?"
    intervals = re.findall(rf"{number} \[{number}, {number}\]", told)
    assert len(intervals) > 100
    reports = "".join(path.read_text() for path in HOME.glob("*.md"))
    elsewhere = {*of_25_seeds().values()}
    assert [each for each in intervals if each not in reports and each not in elsewhere] == []


ARMS = {0: "exploration=0", 1: "fedhql"} | {n: f"exploration={n}" for n in (3, 5, 10)}


def gains_over_alone(experiment: str, of: Callable[[Curve], Any]) -> dict[int, Estimate]:
    """Return λ -> the gain over agents alone in the whole run."""
    (run,) = load_runs(HOME / "h200" / experiment)
    alone = run.arms["independent"]
    return {
        n: Estimate.of([(of(run.arms[arm][seed]) - of(alone[seed])).mean() for seed in alone])
        for n, arm in ARMS.items()
    }


def test_the_arms_that_are_told_of_whole_runs() -> None:
    told = " ".join((DOCS / "reproduction.md").read_text().split())
    best = gains_over_alone("lunarlander-n5", Curve.max_mean)
    assert [n for n, gain in best.items() if gain.low > 0] == [10]
    assert f"from alone: {best[1]}. Only λ = 10 is above, by {best[10]}." in told
    recent = gains_over_alone("cartpole-n10", Curve.recent_mean)
    below = [n for n, gain in recent.items() if gain.high < 0]
    assert below == [0, 3, 5, 10]
    ends = sorted(-recent[n].mean for n in below)
    assert f"λ = 0, 3, 5 and 10 are below alone by {ends[0]:.0f} to {ends[-1]:.0f}." in told
    (run,) = load_runs(HOME / "h200" / "cartpole-n10")
    ninth = [
        float(np.mean([curve.max_mean()[8] for curve in run.arms[arm].values()]))
        for arm in ("independent", ARMS[0], ARMS[1], ARMS[3])
    ]
    assert "alone ({:.0f}) with λ = 0, 1 and 3: {:.0f}, {:.0f} and {:.0f}.".format(*ninth) in told


def test_the_gain_that_the_readme_tells() -> None:
    """At 10 % of the budget, where the README's own run ends."""
    gain = gains_over_alone("cartpole-n5", lambda curve: curve.best[:, 39])[1]
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    assert f"With 15 seeds the gain at this point is {gain}" in readme
    assert gain.seeds == 15


def test_what_is_told_of_agent5_on_unseen_seeds() -> None:
    (run,) = load_runs(HOME / "held-out")
    alone, federated = (
        np.mean([curve.max_mean()[4] for curve in run.arms[arm].values()])
        for arm in ("independent", "fedhql")
    )
    told = sections((DOCS / "reproduction.md").read_text())["Seeds that no choice has seen"]
    assert f"has {alone:.0f} alone and {federated:.0f} in the federation" in " ".join(told.split())


def test_how_the_best_of_five_end_on_lunarlander() -> None:
    told = " ".join(sections((DOCS / "reproduction.md").read_text())["LunarLander, N=5"].split())
    (run,) = load_runs(HOME / "h200" / "lunarlander-n5")
    alone, federated = (
        "{:.0f}, {:.0f} and {:.0f}".format(
            *np.mean([curve.recent_mean()[:3] for curve in run.arms[arm].values()], axis=0)
        )
        for arm in ("independent", "fedhql")
    )
    assert f"they fall from {alone} to {federated} with λ = 1." in told


def test_what_is_told_of_ten_agents_on_lunarlander() -> None:
    told = " ".join(sections((DOCS / "reproduction.md").read_text())["LunarLander, N=10"].split())
    early = gains_over_alone("lunarlander-n10", lambda curve: curve.best[:, 19])
    assert [n for n, gain in early.items() if gain.low > 0] == [0, 1, 3, 10]
    assert f"λ = 0, 1, 3 and 10 are above alone, λ = 1 by {early[1]}." in told
    best = gains_over_alone("lunarlander-n10", Curve.max_mean)
    assert all(gain.high < 0 for gain in best.values())
    assert f"every λ is below alone: λ = 1 has {best[1]}, and λ = 10 has {best[10]}." in told
    recent = gains_over_alone("lunarlander-n10", Curve.recent_mean)
    assert [n for n, gain in recent.items() if gain.high < 0] == [0, 1, 3]
    assert "and λ = 0, 1 and 3 are below that." in told
    (run,) = load_runs(HOME / "h200" / "lunarlander-n10")
    best_N, *federated_AN = (
        np.mean([curve.max_mean() for curve in run.arms[arm].values()], axis=0)
        for arm in ("independent", *ARMS.values())
    )
    second_A = [best_N[1] for best_N in federated_AN]
    assert best_N[1] < 0
    assert f"and has {min(second_A):.0f} to {max(second_A):.0f} with every λ." in told
    higher = 1 + np.flatnonzero(best_N > np.max(federated_AN, axis=0))
    assert higher.tolist() == [1, 3, 4, 6, 7, 8, 9]
    assert "Agents 1, 3, 4, 6, 7, 8 and 9 have higher maxima alone." in told
    alone_N = np.mean([of.recent_mean() for of in run.arms["independent"].values()], axis=0)
    assert (1 + np.flatnonzero(alone_N > 0)).tolist() == [1, 3, 6]
    assert "Of ten agents alone, only Agent1, Agent3 and Agent6 end above 0." in told


def of_25_seeds() -> dict[str, str]:
    """Return the gains of LunarLander N=5 at 20 % that its report does not have."""
    (run,) = load_runs(HOME / "lander-20")
    alone, learned, rounds = run.arms["independent"], run.arms["fedhql"], run.after_rounds["fedhql"]
    found = {}
    for moment, federated in (("self-learning", learned), ("rounds", rounds)):
        best, recent = (
            np.array([of(federated[seed]) - of(alone[seed]) for seed in alone])
            for of in (Curve.max_mean, Curve.recent_mean)
        )
        found[f"best after {moment}"] = str(Estimate.of(best.mean(axis=1)))
        found[f"recent after {moment}"] = str(Estimate.of(recent.mean(axis=1)))
        found[f"first five after {moment}"] = str(Estimate.of(best[:5].mean(axis=1)))
        for agent in range(5):
            of_agent = recent[:, agent]
            found[f"recent of Agent{agent + 1} after {moment}"] = str(Estimate.of(of_agent))
    changes = [
        (rounds[seed].second_half_mean() - learned[seed].second_half_mean()).mean()
        for seed in rounds
    ]
    return found | {"a round": str(Estimate.of(np.array(changes)))}


def test_what_is_told_of_25_seeds() -> None:
    page = (DOCS / "reproduction.md").read_text()
    headline = " ".join(page.partition("## Which reading")[0].split())
    told = " ".join(sections(page)["At 20 % of the budget, 25 seeds"].split())
    found = of_25_seeds()
    best, recent = (
        [found[f"{of} after {moment}"] for moment in ("self-learning", "rounds")]
        for of in ("best", "recent")
    )
    assert f"λ = 1 is above alone by {best[1]} after rounds." in headline
    assert f"evaluations, by {recent[1]}, but there only Agent4 gains" in headline
    assert f"alone by {best[0]} after self-learning, and by {best[1]} after rounds" in told
    assert f"by {recent[0]} after self-learning, and by {recent[1]} after rounds" in told
    of_agents = {
        agent: [found[f"recent of Agent{agent} after {m}"] for m in ("self-learning", "rounds")]
        for agent in range(1, 6)
    }
    gains = [agent for agent, of in of_agents.items() if not any("[-" in each for each in of)]
    assert gains == [4]
    assert "Agent4 gains there, with {} and {}.".format(*of_agents[4]) in told
    assert "Agent5 loses: {} and {}.".format(*of_agents[5]) in told
    assert f"not shown to change the second half: {found['a round']}." in told


def test_a_third_run_has_the_same_agents_alone() -> None:
    (whole,), (part,) = (load_runs(HOME / name) for name in ("h200/lunarlander-n5", "lander-20"))
    for seed in range(5):
        theirs, ours = (run.arms["independent"][seed].returns_NE[:, :80] for run in (whole, part))
        np.testing.assert_array_equal(theirs, ours)
    told = " ".join(sections((DOCS / "reproduction.md").read_text())["What was run"].split())
    third = of_25_seeds()["first five after rounds"]
    assert f"at 20 % of the budget is {third} there and 43 [1, 84] in the whole run" in told


def test_means_by_choice_are_of_the_whole_table() -> None:
    page = (HOME / "every.md").read_text()
    found = re.findall(r"^\| ((?:sgd|adam)-\S+?)(,.*?)? \| (0\.\d+) \|", page, re.M)
    assert len(found) == 72
    told = (DOCS / "reproduction.md").read_text().partition("What tells readings apart")[2]
    bullets = re.findall(r"^- (.+(?:\n  .+)*)", told.partition("\nNo reading")[0], re.M)
    assert len(bullets) == 5
    rows = [((*name.split("-"), moment), float(each)) for name, moment, each in found]
    places = {
        "optimiser of improvements": 3,
        "optimiser of self-learning": 0,
        "evaluation": 4,
        "ε": 2,
        "warm-up": 1,
    }
    for bullet in bullets:
        place = places[bullet.partition(":")[0]]
        choices = {choices[place] for choices, _ in rows}
        means = [
            np.mean([each for choices, each in rows if choices[place] == choice])
            for choice in choices
        ]
        first = bullet.partition(". ")[0]
        assert sorted(re.findall(r"0\.\d\d", first)) == sorted(f"{mean:.2f}" for mean in means)


def shortfalls(file: str, experiment: str) -> dict[str, dict[str, float]]:
    """Return statement -> reading -> how far the mean is outside the statement's range."""
    found: dict[str, dict[str, float]] = {}
    for reading, answers in read_readings(HOME / file).items():
        for answer in answers:
            if answer.statement.experiment.name == experiment:
                means = [float(values_S.mean()) for values_S in answer.quantities.values()]
                worst = max(map(answer.statement.range.shortfall, means))
                found.setdefault(answer.statement.text, {})[reading] = worst
    return found


def fitting(shortfall: dict[str, float]) -> set[str]:
    """Return the readings inside a statement's range; their values have six digits."""
    return {reading for reading, each in shortfall.items() if each < 1e-6}


def test_statements_that_no_reading_has_together() -> None:
    told = " ".join((DOCS / "reproduction.md").read_text().split())
    found = shortfalls("every-readings.csv", "CartPole N=5")
    worse, better = (
        found[statement]
        for statement in (
            "λ = 0 makes Agent1 and Agent3 worse than alone (at 20 %)",
            "λ = 1, 3, 5, 10 make Agent1 and Agent3 better (at 20 %)",
        )
    )
    assert len(worse) == 72
    assert not fitting(worse) & fitting(better)
    counts = len(fitting(worse)), len(fitting(better))
    assert "In {} of 72 cases the means agree with the first, in {} with".format(*counts) in told
    nearest = min(worse, key=lambda reading: max(worse[reading], better[reading]))
    assert nearest in fitting(worse)
    assert f"to both is `{nearest}`, which misses the second by {better[nearest]:.3f} of" in told
    alone = "alone, positive returns need at least 40 % of the budget"
    assert not fitting(shortfalls("lander-readings.csv", "LunarLander N=5")[alone])


def test_what_is_told_of_readings_on_lunarlander() -> None:
    told = " ".join((DOCS / "reproduction.md").read_text().split())
    row = r"^\| (\S+?)(, after rounds)? \| (0\.\d+) \| (\d+)% \|"
    table = re.findall(row, (HOME / "lander.md").read_text(), re.M)
    assert [name for name, *_ in table[:2]] == ["sgd-policy-constant-adam"] * 2
    share = sum(int(each) for *_, each in table[:2])
    assert f"Of its {len(table)} cases the two of this reading are the nearest" in told
    assert f"in {share} % of draws" in told
    assert "twelve on LunarLander" in told
    assert len({name for name, *_ in table}) == 12
    found = shortfalls("lander-readings.csv", "LunarLander N=5")
    at_20 = [of for statement, of in found.items() if "20 %" in statement]
    assert (len(at_20), len(found)) == (5, 8)
    distances = {reading: np.mean([of[reading] for of in at_20]) for reading in at_20[0]}
    nearest, ours = min(distances, key=distances.__getitem__), distances[PRESETS_READING]
    name, _, moment = nearest.partition(", ")
    assert f"alone, `{name}` {moment} is the nearest ({distances[nearest]:.3f})" in told
    assert f"the presets' reading has {ours:.3f}." in told
    for page, rest in (("lander.md", "(step 3"), ("every.md", "")):
        rows = re.findall(r"^\| (\S+?)(?:,.*?)? \| (0\.\d+) \|", (HOME / page).read_text(), re.M)
        means = [
            np.mean([float(far) for name, far in rows if f"-{each}-constant-adam" in name])
            for each in ("policy", "none", "uniform")
        ]
        first, second, third = (f"{mean:.2f}" for mean in means)
        if rest:
            assert f"{first} by the policy, {second} none, {third} uniform {rest}" in told
        else:
            assert f"the same four have {first}, {second} and {third}." in told
    (answer,) = [
        answer
        for answer in read_readings(HOME / "lander-readings.csv")[PRESETS_READING]
        if "every λ is above" in answer.statement.text
    ]
    gains = [str(Estimate.of(values_S)) for values_S in answer.quantities.values()]
    assert [*answer.quantities] == [f"λ = {each} minus alone" for each in (0, 1, 3)]
    assert "λ = 0, 1 and 3 are above alone by {}, {} and {};".format(*gains) in told


def test_what_is_told_of_readings_on_both_tasks() -> None:
    told = " ".join((DOCS / "reproduction.md").read_text().split())
    row = r"^\| (\S+?)(?:, after rounds)? \| (0\.\d+) \| (\d+)% \|"
    table = re.findall(row, (HOME / "every-and-lander.md").read_text(), re.M)
    (first, distance, share), (_, next_distance, _), *_ = table
    assert first == "sgd-policy-constant-adam"
    assert (
        f"and step 3 together have {len(table)} cases on CartPole N=5 and LunarLander N=5 "
        "([tables](reproduction/every-and-lander.md)). Of these, the presets' reading after "
        f"rounds is the nearest ({distance}) in {share} % of draws, and the next has "
        f"{next_distance}." in told
    )


def test_ablations_are_rebuilt_from_the_curves() -> None:
    """As `fedhql compare docs/reproduction/ablations/as-chosen docs/reproduction/ablations`."""
    runs = load_runs(HOME / "ablations" / "as-chosen", HOME / "ablations")
    tables = compare_tables(runs, LEVEL)
    rebuilt = "\n".join(table.markdown() for table in tables)
    assert rebuilt == (HOME / "ablations.md").read_text()


def test_what_is_told_of_ablations() -> None:
    page = " ".join((DOCS / "reproduction.md").read_text().split())
    told = page.partition("## What else the paper leaves open")[2]
    runs = {run.name: run for run in load_runs(HOME / "ablations")}

    def gain(run: str, of: Callable[[Curve], Any]) -> Estimate:
        alone, federated = (runs[run].arms[arm] for arm in ("independent", "fedhql"))
        return Estimate.of([(of(federated[seed]) - of(alone[seed])).mean() for seed in alone])

    recent = [gain(run, Curve.recent_mean) for run in ("carry-over", "as-chosen")]
    assert "evaluations by {}. `as-chosen` is not shown to be: {}.".format(*recent) in told
    lost = gain("improvement-sgd", Curve.max_mean)
    lost = Estimate(-lost.mean, -lost.high, -lost.low, lost.seeds)
    assert f"federation are below agents alone by {lost} in max mean return." in told
    table = (HOME / "ablations.md").read_text()
    assert f"round** add {row_of(table, 'carry-over')[3].rstrip('*')} to the last 10 %" in page
    starred = {
        (run, place)
        for run in runs
        for row in re.findall(rf"^\| {run} \| .+\*.+ \|$", table, re.M)
        for place, cell in enumerate(row.split(" | ")[2:5])
        if cell.endswith("*")
    }
    sgd = {("improvement-sgd", place) for place in range(3)}
    others = {("carry-over", 1), ("carry-over", 2), ("improvement-1e-2", 2)}
    assert starred == sgd | others


def test_what_fedtd_adds_to_distillation() -> None:
    told = " ".join((DOCS / "reproduction.md").read_text().split())
    (controls,), (chosen,) = (
        load_runs(HOME / name) for name in ("controls", "ablations/as-chosen")
    )

    def more(ours: Mapping[int, Curve], theirs: Mapping[int, Curve], of: Any) -> Estimate:
        return Estimate.of([(of(ours[seed]) - of(theirs[seed])).mean() for seed in range(5)])

    alone, federated = (chosen.arms[arm] for arm in ("independent", "fedhql"))
    halves = []
    for name, adds in (("averaging", "adds {} to it"), ("public-states", "is above it by {}")):
        arm = controls.arms[CONTROLS[name]]
        level = Estimate.of([arm[seed].max_mean().mean() for seed in range(5)])
        over = more(arm, alone, Curve.max_mean)
        fedtd = adds.format(more(federated, arm, Curve.max_mean))
        assert f"`{name}` has {level}, which is {over} more than alone. FedTD {fedtd}." in told
        halves.append(more(federated, arm, Curve.second_half_mean))
    assert "second half of the evaluations FedTD adds {} and {}.".format(*halves) in told


def row_of(page: str, start: str) -> list[str]:
    """Return the cells of the last row that begins so."""
    rows = [line for line in page.splitlines() if line.startswith(f"| {start} | FedHQL |")]
    return [cell.strip() for cell in rows[-1].strip("|").split("|")]


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading, by its words."""
    found = re.split(r"^#+ (.+)$", page, flags=re.M)
    return dict(zip(found[1::2], found[2::2], strict=True))


def numbers_tables(text: str) -> list[str]:
    """Return the tables of numbers, without those that tell files and commands."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    return [table for table in tables if "`" not in table and re.search(r"\d", table)]


REPORTS = {  # the section, and where its tables come from
    "Which reading of the paper": ["nearest"],
    "Seeds that no choice has seen": ["held-out"],
    "CartPole": ["h200"],
    "What the maximum hides": ["h200"],
    "LunarLander, N=5": ["h200"],
    "At 20 % of the budget, 25 seeds": ["lander-20"],
    "LunarLander, N=10": ["h200"],
    "With stable-baselines3's agents": ["sb3", "backbone"],
    "Appendix: the earlier reading": ["earlier"],
    "What else the paper leaves open": ["ablations"],
}


def test_every_table_of_the_page_is_a_rebuilt_one() -> None:
    page = sections((DOCS / "reproduction.md").read_text())
    found = {name: numbers_tables(text) for name, text in page.items()}
    assert {name for name, tables in found.items() if tables} == {*REPORTS}
    for name, reports in REPORTS.items():
        source = "".join((HOME / f"{report}.md").read_text() for report in reports)
        for table in found[name]:
            header, _, *rows = table.splitlines(keepends=True)
            assert header in source
            if table not in source:  # some of the rows of a longer table, in its order
                assert [row for row in source.splitlines(keepends=True) if row in rows] == rows


def test_statements_are_complete_and_counted() -> None:
    page = (DOCS / "reproduction.md").read_text()
    told = " ".join(page.split())
    by_task: dict[str, list[str]] = {"CartPole": [], "LunarLander": []}
    for row in re.findall(r"^\| .+ \|$", (HOME / "h200.md").read_text(), re.M):
        verdict, experiment, *_ = row.strip("| ").split(" | ")
        if verdict in (MET, NOT_MET, NOT_RUN, UNDECIDED):
            by_task[experiment.split()[0]].append(verdict)
            assert page.count(row) == 1
    count = Counter(by_task["CartPole"])
    assert count.total() == 13
    assert (
        f"13 statements about CartPole, {count[MET]} are met, {count[UNDECIDED]} undecided and "
        f"{count[NOT_MET]} not met." in told
    )
    count = Counter(by_task["LunarLander"])
    assert (count[MET], count.total()) == (0, 12)
    assert (
        f"Of 12 about LunarLander, {count[UNDECIDED]} are undecided and {count[NOT_MET]} are not "
        "met." in told
    )


def test_what_is_told_of_runs_with_the_same_seeds() -> None:
    told = " ".join(sections((DOCS / "reproduction.md").read_text())["What was run"].split())
    found: dict[tuple[str, int], dict[tuple[str, str], list[float]]] = {}
    with (HOME / "lunarlander-twice.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            runs = found.setdefault((row["experiment"], int(row["evaluations"])), {})
            of_arm = runs.setdefault((row["run"], row["arm"]), [])
            assert int(row["seed"]) == len(of_arm)
            of_arm.append(float(row["max_mean_return"]))
    n5, n10, n10_later = (
        ("lunarlander-n5", 309),
        ("lunarlander-n10", 77),
        ("lunarlander-n10", 389),
    )
    assert {*found} == {n5, n10, n10_later}
    assert len(re.findall(r"- N=\d+ at \d+ %:", told)) == len(found)
    for (name, count), runs in found.items():
        gains = {
            run: Estimate.of(np.array(of_arm) - runs[run, "independent"])
            for (run, arm), of_arm in runs.items()
            if arm == "fedhql"
        }
        of_runs = [
            f"{gain} in the {run}{' run' * (i == 0)}" for i, (run, gain) in enumerate(gains.items())
        ]
        share = f"{name[-2:].strip('-n')} at {count / 4:.0f} %"
        assert f"- N={share}: {', '.join(of_runs)}" in told
        (last,) = load_runs(HOME / "h200" / name)
        for arm, seeds in last.arms.items():
            for seed, curve in seeds.items():
                best_N = curve.returns_NE[:, :count].max(axis=1)
                assert runs["last", arm][seed] == pytest.approx(best_N.mean(), rel=1e-4)
    runs = found[n10_later]
    gains_of_all = [
        Estimate.of(np.array(runs[run, arm]) - runs[run, "independent"])
        for run in ("second", "last")
        for arm in ARMS.values()
    ]
    assert all(gain.high < 0 for gain in gains_of_all)
    assert "At 97 % every λ of N=10 is below alone in both runs." in told

    def lower(key: tuple[str, int], than: str) -> int:
        """Return how many federated arms have a lower mean in the last run."""
        runs = found[key]
        return sum(np.mean(runs["last", arm]) < np.mean(runs[than, arm]) for arm in ARMS.values())

    assert f"{lower(n5, 'first') + lower(n10, 'first')} of ten federated arms have a lower" in told
    assert [lower(key, "second") for key in (n10, n10_later)] == [1, 1]
    assert "But of N=10's five, 4 have a higher one than in the second, both at 19 % and" in told
