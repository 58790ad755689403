"""The examples of a user's own rule and environment run in both engines, with fedhql unchanged."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from fedhql.engines.build import build_batch
from fedhql.engines.choice import choose_engine
from fedhql.environments.compiled import find_compiled, find_twin
from fedhql.errors import EnvironmentRefused, SettingsError
from fedhql.federation import rule_named, rule_spec
from fedhql.settings.experiment import read_settings, read_settings_file
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell
from tests.cli.running import succeed
from tests.compiled.both_engines import by_compiled_programs, by_messages

EXAMPLES = Path(__file__).parents[2] / "examples"
RULE, TWIN, ENVIRONMENT = (
    "own_rule:BEST_AGENT",
    "own_environment:twin",
    "own_environment:Cart-v0",
)


@pytest.fixture(autouse=True)
def _find_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def example(*overrides: str) -> ExperimentSettings:
    return read_settings_file(EXAMPLES / "own_environment.toml", overrides)


@pytest.mark.parametrize("file", ["own_rule.py", "own_environment.py"])
def test_an_example_has_fewer_than_40_lines(file: str) -> None:
    assert 0 < len((EXAMPLES / file).read_text().splitlines()) < 40


def test_the_rule_scores_by_the_best_agent_that_takes_part() -> None:
    q_NBA = np.array([[[1.0, 5.0]], [[3.0, 4.0]], [[9.0, 9.0]]])
    rule, there = rule_named(RULE, {"exploration": 2.0}), np.array([True, True, False])
    np.testing.assert_allclose(rule.scores(q_NBA, where=there), [[2 + 2 * 1, 4.5 + 2 * 0.5]])
    assert rule_spec(RULE).numbers == ("exploration",)


def test_the_twin_is_the_gymnasium_environment() -> None:
    twin, env = find_twin(ENVIRONMENT, None, TWIN), gym.make(ENVIRONMENT)
    assert twin is not None
    state, _ = env.reset(seed=0)
    for number in range(300):
        after, reward, fell = twin.step(tuple(state), number % 3)
        state, paid, terminated, truncated, _ = env.step(number % 3)
        np.testing.assert_array_equal(np.array(after, "f4"), state)
        assert (float(reward), bool(fell)) == (paid, terminated)
        if terminated or truncated:
            state, _ = env.reset()


def test_both_engines_compute_the_same() -> None:
    quick = [f"agents.{each}" for each in ("batch_size=8", "learning_starts=10", "train_freq=1")]
    settings = example(
        *quick,
        "agents.improvement_steps=2",
        "federation.self_learning_env_steps=30",
        "federation.query_batch=3",
        "federation.horizon_steps=4",
        f"federation.rule={RULE}",
    )
    cell = Cell("fedhql", 0)
    (compiled,) = by_compiled_programs(settings, [cell], 2)
    for ours, theirs in zip(compiled, by_messages(settings, cell, 2), strict=True):
        np.testing.assert_array_equal(np.concatenate(ours.actions), np.concatenate(theirs.actions))
        for mine, other in zip(ours.improved, theirs.improved, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_the_command_line_finds_them_where_the_user_works(tmp_path: Path) -> None:
    arguments = ["run", "own_environment.toml", "--engine", "compiled", "--budget", "1200"]
    arguments += ["--set", f"federation.rule={RULE}", "--arm", f"rule={RULE},exploration=3"]
    succeed(*arguments, "--out", tmp_path / "run", cwd=EXAMPLES)
    assert (tmp_path / f"run/cells/rule={RULE},exploration=3/seed0/result.json").exists()


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("nowhere:RULE", r"federation.rule: rule = 'nowhere:RULE': no module 'nowhere' in "),
        ("own_rule:MISSING", r"own_rule has no 'MISSING'"),
        ("own_rule:best_agent", r"is a function; allowed: a RuleSpec"),
        ("mean", r"federation.rule: 'mean' is wrong; allowed: 'mean-std', .*'package.module:NAME'"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        example(f"federation.rule={rule}")


def test_a_rule_with_a_number_that_no_setting_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greedy_rule.py").write_text(
        "from fedhql.federation import RuleSpec, mean_std\nGREEDY = RuleSpec(mean_std, ('greed',))"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"takes the number 'greed'; allowed: 'exploration',"):
        example("federation.rule=greedy_rule:GREEDY")


def test_an_implementation_that_is_none_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"'envpol' is wrong; allowed: 'auto', 'twin', 'gymnasium'"
    ):
        example("environment.implementation=envpol")
    with pytest.raises(EnvironmentRefused, match=r"returns a str; allowed: a function that"):
        find_compiled("any", None, "os:getcwd")
    with pytest.raises(EnvironmentRefused, match=r"is called with environment.options as keywords"):
        find_compiled("any", None, "math:pi")
    with pytest.raises(EnvironmentRefused, match=r"has 2 numbers in an observation and 3 actions"):
        build_batch(example("environment.id=CartPole-v1"), 2)


def test_gymnasium_can_be_asked_for_where_there_is_a_twin() -> None:
    assert find_twin("CartPole-v1") is not None
    assert find_twin("CartPole-v1", None, "gymnasium") is None
    text = '[environment]\nid = "CartPole-v1"\nimplementation = "gymnasium"\n'
    settings = read_settings(text + "[budget]\nenv_steps_per_agent = 10\n[[agents]]")
    assert choose_engine(settings, "auto") == "messages"
    with pytest.raises(SettingsError, match=r"cannot step Gymnasium's environments"):
        choose_engine(settings, "compiled")
