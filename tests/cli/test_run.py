"""What a run leaves behind, and that it is all there."""

import csv
import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from fedhql import __version__
from tests.cli.running import SB3, TABULAR, fedhql, succeed, write_file


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SB3 agents on CartPole at a small budget, both arms, two seeds, with TensorBoard."""
    home = tmp_path_factory.mktemp("cartpole")
    file = write_file(home, SB3.format(env_id="CartPole-v1", budget=900))
    seeds = ("--seeds", "0,1", "--track", "tensorboard", "--figures")
    output = succeed("run", file, "--out", home / "run", *seeds)
    assert "agent3" in output
    assert str(home / "run") in output
    return home / "run"


def test_evaluations_are_complete_and_the_servers_share_is_charged(cartpole: Path) -> None:
    evaluations = rows(cartpole / "evaluations.csv")
    assert ",".join(evaluations[0]) == (
        "arm,seed,agent,own_env_steps,budget_env_steps,mean_return,best_mean_return,"
        "after,start_value,discounted_return,silent_units"
    )
    server_steps = {  # (seed, own steps when the round ended) -> server steps so far
        (row["seed"], row["own_env_steps"]): int(row["server_env_steps"])
        for row in rows(cartpole / "federation.csv")
    }
    seen: dict[tuple[str, str, str], list[dict[str, str]]] = defaultdict(list)
    for row in evaluations:
        seen[row["arm"], row["seed"], row["agent"]].append(row)
    assert set(seen) == {
        (arm, seed, agent)
        for arm in ("independent", "fedhql")
        for seed in ("0", "1")
        for agent in ("agent1", "agent2", "agent3", "consensus")
        if arm == "fedhql" or agent != "consensus"
    }
    for (arm, seed, _), curve in seen.items():
        own = [int(row["own_env_steps"]) for row in curve]
        assert len(own) == 5  # due at 200, 400, 600, 800 and 900 consumed steps
        assert own[:4] == [200, 400, 600, 800] or arm == "fedhql"
        for row in curve:
            before = str((int(row["own_env_steps"]) - 1) // 200 * 200)  # at the last round's end
            server = server_steps.get((seed, before), 0) if arm == "fedhql" else 0
            consumed = float(row["budget_env_steps"])
            assert consumed == int(row["own_env_steps"]) + server / 3
            assert consumed <= 900
        if arm == "independent":
            assert own[-1] == 900  # to the last step
        else:
            assert server > 0
            assert 900 - consumed < 1 + 16 / 3  # less than a step, or than one more server batch
        best = [float(row["best_mean_return"]) for row in curve]
        means = [float(row["mean_return"]) for row in curve]
        assert best == [max(means[: n + 1]) for n in range(len(means))]


def test_the_run_directory_holds_everything(cartpole: Path) -> None:
    settings = tomllib.loads((cartpole / "settings.toml").read_text())
    assert settings["agents"][0]["batch_size"] == 32  # defaults written out
    manifest = json.loads((cartpole / "manifest.json").read_text())
    assert manifest["arms"] == ["independent", "fedhql"]
    assert manifest["seeds"] == [0, 1]
    assert {"fedhql", "gymnasium", "stable-baselines3", "torch"} <= set(manifest["versions"])
    (session,) = manifest["sessions"]
    assert "--track" in session["command"]
    assert session["wall_seconds"] == manifest["wall_seconds"] > 0
    assert session["versions"] == manifest["versions"]
    assert session["command"] == manifest["command"]
    summary = json.loads((cartpole / "summary.json").read_text())
    assert summary["finished"] is True
    assert summary["arms"]["fedhql"]["refused_answers"] == 0
    assert set(summary["arms"]["independent"]["agents"]) == {"agent1", "agent2", "agent3"}
    for arm in ("independent", "fedhql"):
        for agent in ("agent1", "agent2", "agent3"):
            for kept in ("best", "last"):
                assert (cartpole / "agents" / arm / "seed0" / agent / kept / "model.zip").is_file()
    for figure in ("welfare.png", "agents.png"):
        assert (cartpole / "figures" / figure).read_bytes().startswith(b"\x89PNG")
    federation = rows(cartpole / "federation.csv")
    assert {row["arm"] for row in federation} == {"fedhql"}
    assert all(float(row["spread"]) > 0 and float(row["loss"]) > 0 for row in federation)
    assert not list(cartpole.rglob("*.tmp"))
    assert not list(cartpole.rglob("checkpoint"))  # only of use to a run that is not finished


def test_tensorboard_has_stable_baselines3s_tags(cartpole: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(cartpole / "tensorboard" / "fedhql" / "seed0" / "agent1"))
    events.Reload()
    assert [event.step for event in events.Scalars("eval/mean_reward")][:3] == [200, 400, 600]
    assert {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "rollout/exploration_rate",
        "train/loss",
        "train/learning_rate",
        "eval/mean_reward",
        "eval/mean_ep_length",
    } <= set(events.Tags()["scalars"])
    server = EventAccumulator(str(cartpole / "tensorboard" / "fedhql" / "seed0" / "server"))
    server.Reload()
    assert "federation/spread" in server.Tags()["scalars"]


def test_same_seed_same_bytes(cartpole: Path, tmp_path: Path) -> None:
    """And how many run side by side, or before it, does not matter."""
    file = cartpole.parent / "experiment.toml"
    succeed("run", file, "--out", tmp_path / "again", "--seeds", "1", "--jobs", 1)
    for record in (
        "independent/seed1/evaluations.csv",
        "fedhql/seed1/evaluations.csv",
        "fedhql/seed1/federation.csv",
    ):
        again, before = tmp_path / "again" / "cells" / record, cartpole / "cells" / record
        assert again.read_bytes() == before.read_bytes()


def test_seeds_and_arms_can_be_added_later(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    succeed("run", file, "--out", whole, "--seeds", "0,1")
    succeed("run", file, "--out", parts, "--arm", "fedhql", "--seeds", "1")
    succeed("run", file, "--out", parts, "--arm", "independent", "--seeds", "0", "--resume")
    succeed("run", file, "--out", parts, "--resume")
    assert (parts / "evaluations.csv").read_bytes() == (whole / "evaluations.csv").read_bytes()


def test_presets_are_listed_and_shown_ready_to_run(tmp_path: Path) -> None:
    listed = succeed("presets")
    papers = ("cartpole-n5", "cartpole-n10", "lunarlander-n5", "lunarlander-n10")
    for name in (*papers, "acrobot-n5", "mountaincar-n5"):
        assert name in listed
    file = write_file(tmp_path, succeed("show", "cartpole-n5"))
    done = fedhql("run", file, "--out", tmp_path, "--arm", "nonsense")
    assert "arm = 'nonsense'" in done.stderr  # it got past reading the file


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "presets"),
        (["run"], "[default: the number of cores]"),
        (["run"], "agents.2.hidden=[8,8]"),
        (["presets"], "List the experiments"),
        (["show"], "a start for one of your own"),
    ],
)
def test_help(command: list[str], said: str) -> None:
    assert said in " ".join(succeed(*command, "--help").split())


def test_version() -> None:
    assert succeed("--version") == f"{__version__}\n"


def test_what_takes_long_to_load_waits_until_it_is_needed() -> None:
    """So that a mistake and --help are answered at once."""
    slow = ["jax", "torch", "matplotlib", "plotly", "ray", "grpc", "tensorboard", "mlflow", "wandb"]
    code = f"import fedhql.cli.main, sys; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_is_drawn_when_no_one_is_at_a_terminal(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=600))
    done = fedhql("run", file, "--out", tmp_path / "run")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_a_lunarlander_run_with_a_users_own_agent_beside_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "class Mine:\n"
        "    def __init__(self, seed, actions): self.actions = actions\n"
        "    def self_learn(self, env_steps): pass\n"
        "    def q_values(self, states): return np.zeros((len(states), self.actions))\n"
        "    def improve(self, states, actions, targets): pass\n"
    )
    text = SB3.format(env_id="LunarLander-v3", budget=500)
    file = write_file(tmp_path, text + '[[agents]]\nkind = "mine:Mine"\nactions = 4\n')
    succeed("run", file, "--out", "run", "--arm", "fedhql", cwd=tmp_path)
    agents = {row["agent"] for row in rows(tmp_path / "run" / "evaluations.csv")}
    assert agents == {"agent1", "agent2", "agent3", "agent4", "consensus"}


def test_agents_that_lie_are_arms_beside_the_clean_ones(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=600))
    succeed("run", file, "--out", tmp_path / "run", "--attack", "nan", "--attackers", "1")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["arms"] == ["independent", "fedhql", "attack=nan,attackers=1"]


def test_agents_have_the_names_that_the_file_gives_them(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=900))
    named = ("--set", "agents.2.name=north")
    output = succeed("run", file, "--out", tmp_path / "run", *named, "--arm", "fedhql")
    assert "north" in output
    assert "agent2" not in output
    names = {row["agent"] for row in rows(tmp_path / "run" / "evaluations.csv")}
    assert names == {"agent1", "north", "agent3", "consensus"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(summary["arms"]["fedhql"]["agents"]) == ["agent1", "north", "agent3"]
    (cell,) = summary["cells"].values()
    assert set(cell["best_returns"]) <= {"agent1", "north", "agent3"}
    kept = tmp_path / "kept"
    succeed("archive", tmp_path / "run", "--out", kept)
    assert "agent1,north,agent3,consensus" in (kept / "run" / "curves.csv").read_text()
