"""A user's mistake: exit code 2, one line on stderr, no traceback, and nothing left behind."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedhql.__main__ import main
from tests.cli.running import SB3, TABULAR, fedhql, succeed, write_file

AGENT = """
import numpy as np

class Agent:
    def __init__(self, seed, answer, after=0):
        self.answer, self.after, self.learned = answer, after, 0
    def self_learn(self, env_steps):
        self.learned += env_steps
    def q_values(self, states):
        if self.learned < self.after:
            return np.zeros((len(states), 4))
        return np.full((len(states), *self.answer[1:]), self.answer[0])
    def improve(self, states, actions, targets):
        pass
"""


def refused(*arguments: object, cwd: Path) -> str:
    done = fedhql(*arguments, cwd=cwd)
    assert done.returncode == 2, done
    assert done.stderr.startswith("fedhql: error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def with_agents(directory: Path, *answers: str) -> Path:
    """FrozenLake with one agent per answer: [value, width of the answer]."""
    (directory / "my_agents.py").write_text(AGENT)
    text = TABULAR.format(budget=900).partition("[[agents]]")[0]
    for answer in answers:
        text += f'[[agents]]\nkind = "my_agents:Agent"\n{answer}\n'
    return write_file(directory, text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cartpol-n5"], "unknown preset 'cartpol-n5'; there are acrobot-n5, acrobot-n5-plus"),
        (["none.toml"], "none.toml cannot be read"),
        (["cartpole-n5", "--set", "federation.exploration=-1"], "federation.exploration: -1 is"),
        (["cartpole-n5", "--set", "federation.lambda=1"], "federation.lambda: unknown key"),
        (["cartpole-n5", "--set", "agents.1.hiden=[8]"], "agents.1.hiden: unknown key"),
        (
            ["cartpole-n5", "--set", "agents.1.name=a/b"],
            "agents.1.name: 'a/b' is wrong; allowed: a",
        ),
        (["cartpole-n5", "--set", "agents.2.name=agent1"], "agents.2.name: 'agent1' is taken"),
        (
            ["cartpole-n5", "--set", "agents.3.name=Consensus"],
            "agents.3.name: 'Consensus' is taken",
        ),
        (["cartpole-n5", "--set", "agents.3.name=all"], "agents.3.name: 'all' is taken"),
        (["cartpole-n5", "--budget", "0"], "budget.env_steps_per_agent: 0 is wrong"),
        (["cartpole-n5", "--seeds", "0,x"], "--seeds 0,x: allowed: whole numbers"),
        (["cartpole-n5", "--out", "memory://run"], "files in memory are lost when the process"),
        (["cartpole-n5", "--progress", "dots"], "--progress dots: allowed: bar, lines, none"),
        (
            ["cartpole-n5", "--arm", "both"],
            "arm = 'both': 'both' is not KEY=VALUE with a known key; allowed: independent, fedhql",
        ),
        (["cartpole-n5", "--attackers", "2"], "attack.attackers is 2: needs attack.name; allowed"),
        (
            ["cartpole-n5", "--attack", "nan"],
            "attackers is 0 with attack.name = 'nan'; allowed: 1 to",
        ),
        (["cartpole-n5", "--attackers", "1", "--attack", "lie"], "attack.name: 'lie' is wrong"),
        (
            ["cartpole-n5", "--arm", "independent", "--attackers", "1", "--attack", "nan"],
            "attack and attackers are for arms that federate, but there is only 'independent'",
        ),
        (
            ["cartpole-n5", "--arm", "exploration=-1"],
            "arm = 'exploration=-1': exploration: '-1' is",
        ),
        (["cartpole-n5", "--engine", "fast"], "engine = 'fast': allowed: auto, compiled, messages"),
        (["cartpole-n5", "--backbone", "tf"], "backbone = 'tf': allowed: dqn, sb3"),
        (
            ["cartpole-n5", "--set", "agents.double=true", "--backbone", "sb3"],
            "agents.1.double: 'sb3-dqn' has no such setting",
        ),
        (
            ["cartpole-n5", "--backbone", "sb3", "--engine", "compiled"],
            "the compiled engine runs agents of kind 'dqn' only; agent1 is 'sb3-dqn'",
        ),
        (
            ["cartpole-n5", "--set", "environment.id=Taxi-v3", "--engine", "compiled"],
            "the compiled engine has no Taxi-v3; it has CartPole-v1 (without options), ",
        ),
    ],
)
def test_bad_input(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Called in this process, which has loaded all it needs: these mistakes start no worker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["fedhql", "run", "--out", "run", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("fedhql: error: ")
    assert said.count("\n") == 1, said
    assert message in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cartpole-n5", "--set", "environment.id=Pendulum-v1"], "Discrete"),
        (["cartpole-n5", "--set", "environment.id=CartPole-v7"], "CartPole-v7"),
        (["cartpole-n5", "--set", "agents.3.kind=no_module:Class"], "agent3: kind = 'no_module"),
    ],
)
def test_bad_input_that_a_worker_finds(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert message in refused("run", *arguments, "--out", "run", cwd=tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_syntax_error_in_the_users_module_is_one_line(tmp_path: Path) -> None:
    file = with_agents(tmp_path, "answer = [0, 4]")
    (tmp_path / "my_agents.py").write_text("class Agent:\n    def q_values(self)\n")
    message = refused("run", file, "--out", "run", cwd=tmp_path)
    where = f"{tmp_path / 'my_agents.py'}, line 2: expected ':': def q_values(self)"
    assert message == f"fedhql: error: agent1: kind = 'my_agents:Agent': {where}\n"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("import no_such_package.part", "No module named 'no_such_package'"),
        ("from json import nothing", "cannot import name 'nothing' from 'json'"),
        ("from my_agents import nothing", "cannot import name 'nothing'"),
    ],
)
def test_a_failed_import_in_the_users_module_is_one_line(
    statement: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "my_agents.py").write_text(f"import sys\n{statement}\n")
    message = refused("check", "my_agents:Agent", cwd=tmp_path)
    where = f"{tmp_path / 'my_agents.py'}, line 2: {reason}"
    assert message.startswith(f"fedhql: error: agent1: kind = 'my_agents:Agent': {where}")


def test_unknown_preset_to_show(tmp_path: Path) -> None:
    assert "unknown preset 'nope'" in refused("show", "nope", cwd=tmp_path)


def test_the_file_of_a_server_is_not_run(tmp_path: Path) -> None:
    text = TABULAR.format(budget=900).partition("[[agents]]")[0]
    file = write_file(tmp_path, text + "[service]\nquorum = 2\n")
    message = refused("run", file, "--out", "run", cwd=tmp_path)
    assert message == f"fedhql: error: {file}: this is a server's file: fedhql serve runs it\n"


def test_the_file_of_an_experiment_is_not_served(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900))
    options = ["--listen", "127.0.0.1:0", "--home", "fed", "--insecure"]
    message = refused("serve", file, *options, cwd=tmp_path)
    assert message == f"fedhql: error: {file}: this is an experiment's file: fedhql run runs it\n"
    assert not (tmp_path / "fed").exists()


def test_a_file_with_agents_and_a_service_is_nobodys(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900) + "[service]\nquorum = 2\n")
    assert "service: unknown key" in refused("run", file, "--out", "run", cwd=tmp_path)


def test_a_setting_of_a_server_makes_no_servers_file(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900))
    options = ["--out", "run", "--set", "service.quorum=2"]
    assert "service: unknown key" in refused("run", file, *options, cwd=tmp_path)


def test_no_agents(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900).partition("[[agents]]")[0])
    message = refused("run", file, "--out", "run", cwd=tmp_path)
    assert "at least one [[agents]]" in message
    assert str(file) in message


def test_wrong_shape_names_agent_expected_and_got(tmp_path: Path) -> None:
    file = with_agents(tmp_path, "answer = [0, 4]", "answer = [0, 3]")
    message = refused("run", file, "--out", "run", cwd=tmp_path)
    assert "agent2" in message
    assert "(2, 4)" in message
    assert "(2, 3)" in message
    assert not (tmp_path / "run").exists()


def test_a_class_that_is_no_agent(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900) + '[[agents]]\nkind = "no_agent:Thing"')
    (tmp_path / "no_agent.py").write_text("class Thing:\n    def __init__(self, seed): pass\n")
    message = refused("run", file, "--out", "run", cwd=tmp_path)
    assert "agent4: Thing is not a BlackBoxAgent; it lacks self_learn" in message


def test_settings_the_users_class_does_not_take(tmp_path: Path) -> None:
    file = with_agents(tmp_path, 'answer = [0, 4]\ncolour = "red"')
    message = refused("run", file, "--out", "run", cwd=tmp_path)
    assert "agent1" in message
    assert "colour" in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('[environment]\nid = "CartPole-v1"', "agent1: kind = 'tabular' needs a Discrete"),
        ('[environment]\nid = "FrozenLake-v1"\noptions = {map_name = "9x9"}', "9x9"),
        ('[environment]\nid = "LunarLander-v3"\noptions = {gravity = 5}', "gravity"),
    ],
)
def test_an_environment_that_does_not_fit(settings: str, message: str, tmp_path: Path) -> None:
    rest = TABULAR.format(budget=900).partition("discount")[2].partition("\n")[2]
    file = write_file(tmp_path, f"{settings}\n{rest}")
    assert message in refused("run", file, "--out", "run", cwd=tmp_path)


def test_one_bracket_too_few(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900).partition("[[agents]]")[0] + "[agents]")
    assert "agents" in refused("run", file, "--out", "run", cwd=tmp_path)
    more = ("--set", "agents.learning_rate=1")
    assert "[[agents]]" in refused("run", file, "--out", "run", *more, cwd=tmp_path)


def test_a_worker_that_leaves_early_is_no_success(tmp_path: Path) -> None:
    file = with_agents(tmp_path, "answer = [0, 4]", "answer = [0, 4]")
    leaving = AGENT.replace("self.learned += env_steps", "raise SystemExit(0)")
    (tmp_path / "my_agents.py").write_text(leaving)
    message = refused("run", file, "--out", "run", "--arm", "fedhql", cwd=tmp_path)
    assert "ended before its task" in message


def test_environments_are_found_where_the_user_works(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Mine-v0', entry_point='gymnasium.envs.toy_text:FrozenLakeEnv',"
        " max_episode_steps=50)\n"
    )
    text = TABULAR.format(budget=600).replace("FrozenLake-v1", "my_env:Mine-v0")
    succeed("run", write_file(tmp_path, text), "--out", "run", cwd=tmp_path)


def test_a_defect_in_a_users_agent_keeps_its_traceback(tmp_path: Path) -> None:
    file = with_agents(tmp_path, "answer = 5")
    done = fedhql("run", file, "--out", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "my_agents.py" in done.stderr
    assert "raised inside agent1" in done.stderr


def test_an_output_directory_that_holds_something_else(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=600))
    succeed("run", file, "--out", "run", cwd=tmp_path)
    before = (tmp_path / "run" / "evaluations.csv").read_bytes()
    assert "--resume" in refused("run", file, "--out", "run", cwd=tmp_path)
    other = ("run", file, "--out", "run", "--resume", "--set", "federation.exploration=3")
    message = refused(*other, cwd=tmp_path)
    assert "federation.exploration is 3.0 here and 1.0 there" in message
    assert (tmp_path / "run" / "evaluations.csv").read_bytes() == before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    assert "holds no run" in refused("run", file, "--out", "photos", cwd=tmp_path)
    assert "holds no run" in refused("run", file, "--out", "photos", "--resume", cwd=tmp_path)


def test_an_output_directory_that_cannot_be_made(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=600))
    assert "cannot be written" in refused("run", file, "--out", f"{file}/run", cwd=tmp_path)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("stable_baselines3", [], "sb3"),
        ("torch", [], "sb3"),
        ("tensorboard", ["--track", "tensorboard"], "tensorboard"),
        ("Box2D", ["--set", "environment.id=LunarLander-v3"], "box2d"),
    ],
)
def test_a_missing_extra_prints_the_install_command(
    missing: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    """A package is hidden by a meta-path hook that every Python process of the test loads."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        f"            raise ModuleNotFoundError(f'No module named {missing}', name={missing!r})\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    file = write_file(tmp_path, SB3.format(env_id="CartPole-v1", budget=300))
    done = subprocess.run(
        [sys.executable, "-m", "fedhql", "run", file, "--out", tmp_path / "run", *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"pip install 'fedhql[{extra}]'" in done.stderr


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_bad_agent_is_left_out_named_and_counted(value: str, tmp_path: Path) -> None:
    file = with_agents(tmp_path, "answer = [0, 4]", f"answer = [{value}, 4]")
    done = fedhql("run", file, "--out", "run", "--arm", "fedhql", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: fedhql/seed0: agent2" in done.stderr
    assert re.search(r"diverged: .*agent2 \([1-9]\d* answers refused\)", done.stdout), done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["arms"]["fedhql"]["agents"]["agent2"]["refused_answers"] > 0
    assert summary["arms"]["fedhql"]["agents"]["agent1"]["refused_answers"] == 0


CHECKPOINTABLE = """
    def save(self, directory):
        (directory / "learned").write_text(str(self.learned))
    def restore(self, directory):
        self.learned = int((directory / "learned").read_text())
"""


def test_with_no_usable_agent_left_the_run_stops_and_its_checkpoint_stays(tmp_path: Path) -> None:
    file = with_agents(tmp_path, "answer = [nan, 4]\nafter = 600")
    (tmp_path / "my_agents.py").write_text(AGENT + CHECKPOINTABLE)
    arguments = ("run", file, "--out", "run", "--arm", "fedhql")
    done = fedhql(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "no agent gave an answer that can be used (agent1: NaN or infinity)" in done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["finished"] is False
    assert summary["arms"]["fedhql"]["agents"]["agent1"]["refused_answers"] == 1
    evaluations = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()
    # A header, and the agent and the consensus in the two rounds before it went wrong.
    assert len(evaluations) == 1 + 2 * 2
    checkpoints = tmp_path / "run" / "cells" / "fedhql" / "seed0" / "checkpoint"
    (checkpoint,) = checkpoints.iterdir()
    assert json.loads((checkpoint / "cell.json").read_text())["round"] <= 1
    # Mended, it goes on from there.
    (tmp_path / "my_agents.py").write_text(
        (AGENT + CHECKPOINTABLE).replace("self.learned < self.after", "True")
    )
    assert fedhql(*arguments, "--resume", cwd=tmp_path).returncode == 0


def test_the_status_of_what_is_no_journal(tmp_path: Path) -> None:
    assert "is not the home of a federation" in refused("status", ".", cwd=tmp_path)
    (tmp_path / "journal.sqlite").touch()
    assert "is not the journal of a federation" in refused("status", ".", cwd=tmp_path)


@pytest.mark.parametrize("command", [("report",), ("export", "--out", "policy")])
def test_what_a_servers_home_has_instead_of_a_run(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "fed").mkdir()
    (tmp_path / "fed" / "journal.sqlite").touch()
    told = refused(*command, "fed", cwd=tmp_path)
    assert "fed is the home of a server, not a run" in told
    assert "See fedhql status fed, and the files evaluations.csv and federation.csv there" in told
