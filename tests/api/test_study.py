"""Studies from Python: alone and federated, several seeds, agents of any kind."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhql
from tests.api.agents import BUDGET, ENV, QUICK, PlainAgent, RegisteredAgent, SavedAgent
from tests.cli.running import TABULAR, succeed, write_file
from tests.known_mdps import STATES

QUICK_LEARNER = {"kind": SavedAgent, "name": "quick", "learning_rate": 0.5}
KINDS = ["tabular", SavedAgent, QUICK_LEARNER]


def study(agents: Any = KINDS, **options: Any) -> fedhql.Result:
    given: dict[str, Any] = {"settings": QUICK, "progress": False}
    return fedhql.study(agents, ENV, BUDGET, **given | options)


def returns(result: fedhql.Result) -> dict[tuple[str, int], Any]:
    return {
        (arm, seed): curve.returns_NE.tolist()
        for arm, seeds in result.curves.items()
        for seed, curve in seeds.items()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedhql.Result:
    return study(seeds=2, out=tmp_path_factory.mktemp("study") / "run")


def test_a_study_runs_every_arm_with_every_seed(whole: fedhql.Result) -> None:
    assert whole.finished
    assert set(returns(whole)) == {
        (arm, seed) for arm in ("independent", "fedhql") for seed in (0, 1)
    }
    assert whole.agents == ["agent1", "agent2", "quick"]
    assert whole.settings["federation"]["query_batch"] == 8


def test_functions_and_classes_of_a_function_run_in_this_process(whole: fedhql.Result) -> None:
    """The same agents give the same numbers, wherever they are built."""
    processes = []

    def build(seed: int) -> SavedAgent:
        processes.append(os.getpid())
        return SavedAgent(seed)

    agents = ["tabular", build, {**QUICK_LEARNER, "kind": lambda **options: SavedAgent(**options)}]
    result = study(agents, seeds=2)
    assert set(processes) == {os.getpid()}
    assert returns(result) == returns(whole)


@pytest.mark.parametrize("kind", [RegisteredAgent, "tests.api.agents:RegisteredAgent"])
def test_importable_agents_run_in_other_processes_unless_told_otherwise(
    kind: object, tmp_path: Path
) -> None:
    def processes(**options: Any) -> set[int]:
        home = tmp_path / str(options)
        home.mkdir()
        study([{"kind": kind, "register": home}], arms=["fedhql"], **options)
        return {int(path.name) for path in home.iterdir()}

    elsewhere = processes()
    assert elsewhere
    assert os.getpid() not in elsewhere
    assert processes(jobs=0) == {os.getpid()}


def test_plain_keywords_of_a_partial_are_settings(whole: fedhql.Result) -> None:
    quick = partial(SavedAgent, learning_rate=0.5)
    result = study(["tabular", SavedAgent, {"kind": quick, "name": "quick"}], seeds=2)
    assert result.settings == whole.settings
    assert returns(result) == returns(whole)


def test_the_class_of_another_partial_does_not_stand_for_it(tmp_path: Path) -> None:
    slow = partial(SavedAgent, learning_rate=np.float64(0.01))
    result = study([slow], arms=["fedhql"], out=tmp_path / "run")
    assert result.settings["agents"][0]["kind"] == "tests.api.agents:partial(SavedAgent)"
    result.policy("agent1")
    with pytest.raises(fedhql.FedHQLError, match=r"partial\(SavedAgent\)"):
        fedhql.load(tmp_path / "run").policy("agent1")


def test_an_interrupted_study_resumes_to_the_same_curves(
    whole: fedhql.Result, tmp_path: Path
) -> None:
    def interrupt(progress: fedhql.Progress) -> None:
        if progress.consumed_env_steps > BUDGET / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupted:
        study(seeds=2, out=tmp_path / "run", progress=interrupt, jobs=1)  # later cells wait
    assert "resume=True" in interrupted.value.__notes__[0]
    assert not fedhql.load(tmp_path / "run").finished
    resumed = study(out=tmp_path / "run", resume=True)  # its seeds are the run's
    assert resumed.finished
    assert returns(resumed) == returns(whole)
    assert returns(fedhql.load(tmp_path / "run")) == returns(whole)


def test_load_reads_a_run_of_the_command_line(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=600))
    succeed("run", file, "--out", tmp_path / "run", "--seeds", "3")
    result = fedhql.load(tmp_path / "run")
    assert (result.arms, result.seeds) == (["independent", "fedhql"], [3])
    ours = fedhql.study(experiment=file, seeds=[3], progress=False)
    assert returns(ours) == returns(result)
    assert ours.settings == result.settings


def test_what_is_given_stands_above_the_experiment(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=600))
    result = fedhql.study(
        ["tabular"],
        budget=400,
        experiment=file,
        settings={"federation": {"exploration": 3}, "agents.1.learning_rate": 0.25},
        arms=["exploration=0"],
        progress=False,
    )
    assert result.arms == ["exploration=0"]
    assert result.settings["environment"]["id"] == "FrozenLake-v1"
    assert result.settings["federation"]["exploration"] == 3
    assert result.settings["federation"]["query_batch"] == 8  # of the file
    assert result.settings["budget"]["env_steps_per_agent"] == 400
    assert [agent["learning_rate"] for agent in result.settings["agents"]] == [0.25]


def test_attacked_arms_run_besides() -> None:
    result = study(["tabular"] * 3, attack="noise", attackers=1, settings=QUICK)
    assert result.arms == ["independent", "fedhql", "attack=noise,attackers=1"]


def test_a_script_without_a_guard_runs_its_study_once(tmp_path: Path) -> None:
    """Worker processes do not run the script again, and its own classes stay in its process."""
    (tmp_path / "script.py").write_text(
        "import fedhql\n"
        "from tests.api.agents import BUDGET, ENV, QUICK, PlainAgent\n"
        "class Mine(PlainAgent): ...\n"
        "print('begun')\n"
        "for kind in ('tabular', Mine):\n"
        "    result = fedhql.study([kind], ENV, BUDGET, settings=QUICK)\n"
        "    print(result.finished, result.settings['agents'][0]['kind'])\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.stdout.splitlines() == ["begun", "True tabular", "True __main__:Mine"], done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": ["tabular", PlainAgent(0)]}, r"agents\.2: a live PlainAgent .*federate takes"),
        ({"env": "NoSuchEnv-v0"}, "environment.id = 'NoSuchEnv-v0'"),
        ({"env": object()}, "allowed: a Gymnasium id such as 'CartPole-v1'"),
        ({"env": None}, "env: missing; give them, or an experiment"),
        ({"agents": None, "budget": None}, "agents and budget: missing"),
        ({"budget": -1}, "budget.env_steps_per_agent: -1 is wrong"),
        (
            {"settings": {"federation.explorations": 3}},
            r"federation\.explorations: unknown key; did you mean 'exploration'",
        ),
        (
            {"settings": {"query_batch": 3}},
            r"query_batch: unknown key; did you mean 'federation\.query_batch'",
        ),
        ({"settings": {"agents": [{}]}}, "agents: given twice"),
        ({"settings": ["federation.exploration"]}, "write section.key=value"),
        ({"experiment": "no-such-preset"}, "unknown preset 'no-such-preset'"),
        ({"experiment": "no-such-file.toml"}, "no-such-file.toml cannot be read"),
        ({"arms": ["explore=3"]}, "'explore' is not KEY=VALUE with a known key"),
        ({"arms": "fedhql"}, r"arms = 'fedhql': allowed: a list such as \['fedhql'\]"),
        ({"settings": "federation.exploration=3"}, "allowed: a dict, or a list of KEY=VALUE"),
        ({"seeds": 0}, "seeds = 0: allowed: a number > 0"),
        ({"seeds": [-1]}, r"seeds = \[-1\]"),
        ({"seeds": "12"}, "seeds = '12': allowed"),
        ({"seeds": ["1"]}, r"seeds = \['1'\]: allowed"),
        ({"seeds": True}, "seeds = True: allowed"),
        ({"seeds": [0.5]}, r"seeds = \[0.5\]: allowed"),
        ({"arms": []}, r"arms = \[\]: allowed: a list such as \['fedhql'\]"),
        ({"engine": "fast"}, "engine = 'fast': allowed: auto, compiled, messages"),
        ({"on": "moon"}, "on = 'moon': allowed: local, ray"),
        ({"jobs": -1}, "jobs = -1: allowed: a whole number"),
        ({"jobs": 0, "on": "ray"}, "jobs = 0: allowed with on = 'ray': a whole number > 0"),
        ({"out": "memory://run"}, "^memory://run: files in memory are lost when the process ends"),
        ({"resume": True}, "give its directory as out"),
        ({"progress": "much"}, "progress = 'much': allowed"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"agents": ["tabular"], "env": ENV, "budget": BUDGET}
    with pytest.raises(fedhql.FedHQLError, match=message):
        fedhql.study(**{"progress": False} | given | options)


def test_the_result_of_a_run_at_a_url_has_policies(tmp_path: Path) -> None:
    result = study(["tabular"], arms=["fedhql"], out=f"file://{tmp_path}/run")
    assert result.path.name == "run"
    assert (tmp_path / "run" / "manifest.json").exists()
    states = np.arange(STATES)
    ours, theirs = result.policy("agent1"), fedhql.load(tmp_path / "run").policy("agent1")
    np.testing.assert_array_equal(ours.q_values(states), theirs.q_values(states))
    home = result.path
    del result
    assert not home.exists()


def test_a_directory_in_use_is_refused(whole: fedhql.Result) -> None:
    with pytest.raises(fedhql.FedHQLError, match="already holds a run"):
        study(out=whole.path)


def test_a_study_may_run_in_a_thread(whole: fedhql.Result) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(study, seeds=[1], arms=["fedhql"]).result()
    assert returns(result)["fedhql", 1] == returns(whole)["fedhql", 1]


def test_numpy_values_are_settings() -> None:
    result = study(
        ["tabular"],
        arms=["independent"],
        settings={**QUICK, "federation.horizon_steps": np.int64(3)},
        seeds=np.array([4]),
    )
    assert result.settings["federation"]["horizon_steps"] == 3
    assert result.seeds == [4]


def test_a_study_that_was_stopped_at_once_can_be_looked_at(tmp_path: Path) -> None:
    def stop(progress: fedhql.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(out=tmp_path / "run", progress=stop, jobs=0)  # no worker is ahead of the display
    result = fedhql.load(tmp_path / "run")
    assert not result.finished
    assert result.curves == {}
    assert "unfinished: 2 of 2 cells have not consumed the budget of 600" in result.summary()
    assert len(result.to_pandas()) == 0
    assert result.plot().axes
    with pytest.raises(fedhql.FedHQLError, match="has not finished"):
        result.policy()
