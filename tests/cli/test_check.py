"""The command `fedhql check`."""

from pathlib import Path

from tests.cli.running import fedhql, succeed

AGENT = """
class Agent:
    def __init__(self, seed): ...
    def self_learn(self, env_steps): ...
    def q_values(self, states): return [[0.0] * 3] * len(states)
    def improve(self, states, actions, targets): ...
"""


def test_a_kind_is_checked_with_its_settings(tmp_path: Path) -> None:
    options = ("--set", "learning_rate=0.2", "--env-steps", "50")
    output = succeed("check", "tabular", "--env", "FrozenLake-v1", *options)
    assert "q_values: shape and numbers" in output
    assert "FAILED" not in output


def test_a_failed_check_is_named_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AGENT)
    done = fedhql("check", "mine:Agent", cwd=tmp_path)
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert done.stderr == "fedhql: error: 1 of the checks failed\n"


def test_an_agent_that_does_not_learn_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AGENT.replace("* 3", "* 2"))
    done = fedhql("check", "mine:Agent", cwd=tmp_path)
    assert "warning" in done.stdout
    assert "the values have not changed: does it learn?" in in_one_line(done.stdout)


def test_an_agent_that_begins_a_new_episode_after_restore_passes() -> None:
    output = succeed("check", "tests.engines.test_check_agent:Inexact", "--env-steps", "10")
    assert "works, but not exact: a resumed run differs" in in_one_line(output)


def in_one_line(table: str) -> str:
    return " ".join(table.split())


def test_a_wrong_setting_is_a_users_mistake() -> None:
    done = fedhql("check", "tabular", "--env", "FrozenLake-v1", "--set", "learning_rat=0.2")
    assert done.returncode == 2
    assert "agents.1.learning_rat: unknown key; did you mean 'learning_rate'?" in done.stderr
