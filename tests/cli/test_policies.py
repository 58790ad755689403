"""`fedhql export` and `fedhql play`, on a run of tabular agents."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedhql.engines.evaluation import evaluate
from fedhql.engines.kept_agents import kept_agents
from fedhql.environments.batch import EnvironmentBatch
from fedhql.policy import Policy, load_policy
from fedhql.storage.run_directory import RunDirectory
from tests.cli.running import TABULAR, fedhql, succeed
from tests.engines.kept_run import finished_run

ENVIRONMENT = "tests.play.drawn_mdp:DrawnMDP-v0"
SEED, STEPS = 5, 40


def evaluated(policy: Policy) -> float:
    """Return the return of the policy in an evaluation of one episode."""
    played = evaluate(
        lambda states_N: [policy.answer(states) for states in states_N],
        EnvironmentBatch(ENVIRONMENT, 1),
        np.array([[SEED]], dtype=np.uint32),
        discount=1.0,
    )
    return float(played.returns[0, 0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    text = TABULAR.format(budget=900).replace("FrozenLake-v1", ENVIRONMENT)
    text = text.replace("episodes = 3", "episodes = 1\nbest_episodes = 0")
    return finished_run(tmp_path_factory.mktemp("run"), "independent", "fedhql", text=text)


def test_returns_on_the_picture_are_those_of_an_evaluation(
    run: RunDirectory, tmp_path: Path
) -> None:
    output = succeed(
        *("play", run.path, "--arm", "independent", "--arm", "fedhql", "--state", "last"),
        *("--agent", "all", "--agent", "consensus", "--episode-seed", SEED),
        *("--fps", 10, "--scale", 2, "--out", tmp_path / "play.gif"),
    )
    shown = re.findall(r"^(\w+), last states, (\w+): final (\S+)$", output, re.M)
    expected = [
        (label, name, f"{evaluated(kept_agents(run.path, arm, None, 'last').policy(name)):.4g}")
        for arm, label in (("independent", "alone"), ("fedhql", "FedHQL"))
        for name in ("agent1", "agent2", "agent3", "consensus")
    ]
    assert shown == expected
    assert len({total for _, _, total in shown}) == 8
    # The environment has 20 steps a second, so 10 pictures a second leave out every other one.
    with Image.open(tmp_path / "play.gif") as gif:
        assert getattr(gif, "n_frames", 1) == 1 + STEPS // 2
        assert gif.info["duration"] == 100


def test_an_exported_policy_can_be_loaded(run: RunDirectory, tmp_path: Path) -> None:
    output = succeed("export", run.path, "--policy", "agent2", "--out", tmp_path / "policy")
    assert output == f"wrote {tmp_path / 'policy'}: agent2 of fedhql/seed0, best states\n"
    of_run = kept_agents(run.path, "fedhql", 0, "best").policy("agent2")
    assert evaluated(load_policy(tmp_path / "policy")) == evaluated(of_run)
    output = succeed("export", run.path, "--out", tmp_path / "consensus")
    assert output == f"wrote {tmp_path / 'consensus'}: consensus of fedhql/seed0, last states\n"


def test_the_title_of_a_picture_names_the_states(run: RunDirectory, tmp_path: Path) -> None:
    everyone = "--agent", "agent1", "--agent", "consensus"
    output = succeed("play", run.path, *everyone, "--max-steps", 1, "--out", tmp_path / "play.gif")
    assert "FedHQL, best states, consensus of the last" in output


def test_mistakes_are_one_line(run: RunDirectory, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        done = fedhql(*arguments, cwd=tmp_path)
        assert done.returncode == 2, done
        assert done.stderr.startswith("fedhql: error: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "allowed: FILE.gif or FILE.mp4" in refused("play", run.path, "--out", "play.avi")
    assert "holds no run" in refused("play", "nowhere")  # also where there is no display
    assert "has no 'agent9'" in refused("export", run.path, "--policy", "agent9", "--out", "policy")
    assert list(tmp_path.iterdir()) == []
