"""The patient of examples/hospitals: published steady states, and both steppers against LSODA."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.integrate import odeint
from scipy.optimize import root

from fedhql.engines.choice import choose_engine
from fedhql.environments.compiled import find_twin
from fedhql.environments.twin_batch import TwinBatch
from fedhql.environments.twins import Twin
from fedhql.errors import EnvironmentRefused
from fedhql.settings.experiment import read_settings_file

HOSPITALS = Path(__file__).parents[2] / "examples/hospitals"
ENVIRONMENT, TWIN = "hiv:HIV-v0", "hiv:twin"
# Adams et al. (2004), rounded there to whole numbers.
UNINFECTED = (1_000_000, 3_198, 0, 0, 0, 10)
HEALTHY = (967_839, 621, 76, 6, 415, 353_108)
NON_HEALTHY = (163_573, 5, 11_945, 46, 63_919, 24)
# From the published start to the healthy state, found by a local search; then no drug.
RECOVERY = "13120311111131133313333303302103123311133133333313333333313311311111111111111101"


def several_policies() -> dict[str, list[int]]:
    random = np.random.default_rng(0)
    return {
        "recovery": [int(action) for action in RECOVERY.ljust(200, "0")],
        "no drug": [0] * 200,
        "RTI only": [1] * 200,
        "both drugs": [3] * 200,
        "20 days on, 10 off": ([3, 3, 3, 3, 0, 0] * 34)[:200],
        "both, then an outbreak": [3] * 40 + [0] * 160,
        "random": random.integers(4, size=200).tolist(),
        "random for 25 days": np.repeat(random.integers(4, size=40), 5).tolist(),
    }


@pytest.fixture(autouse=True)
def _find_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HOSPITALS)


def model() -> Any:
    return import_module("hiv")


def own_twin(spread: float = 0.0) -> Twin:
    twin = find_twin(ENVIRONMENT, {"spread": spread}, TWIN)
    assert twin is not None
    return twin


@pytest.mark.parametrize("published", [UNINFECTED, HEALTHY, NON_HEALTHY])
def test_the_published_steady_states_are_roots_without_drugs(published: tuple[int, ...]) -> None:
    scale = np.maximum(published, 1)
    found = root(
        lambda x: np.array(model().rates(tuple(x * scale), 0, 0)) / scale, published / scale
    )
    assert found.success
    np.testing.assert_array_equal(np.round(found.x * scale), published)


@pytest.mark.parametrize(
    ("steady", "is_stable"), [(UNINFECTED, False), (HEALTHY, True), (NON_HEALTHY, True)]
)
def test_only_the_infected_steady_states_are_stable(
    steady: tuple[int, ...], is_stable: bool
) -> None:
    step = 1e-20  # in the imaginary part, it differentiates without rounding
    columns = [model().rates(tuple(steady + 1j * step * row), 0, 0) for row in np.eye(6)]
    jacobian = np.array(columns).imag.T / step
    assert (np.linalg.eigvals(jacobian).real.max() < 0) == is_stable


def test_gymnasium_accepts_the_environment() -> None:
    check_env(gym.make(ENVIRONMENT, spread=0.5).unwrapped)


@pytest.mark.parametrize("reward", ["published", "log"])
def test_the_reward_is_that_of_the_paper_or_its_logarithm(reward: str) -> None:
    env = gym.make(ENVIRONMENT, reward=reward)
    env.reset(seed=0)
    observation, paid, *_ = env.step(3)
    *_, viruses, response = 10.0 ** observation.astype(float)
    by_hand = -0.1 * viruses - 20_000 * 0.49 - 2_000 * 0.09 + 1_000 * response
    expected = by_hand / 1e7 if reward == "published" else np.log10(1 + by_hand / 1e4)
    assert float(paid) == pytest.approx(expected, rel=1e-4)


def test_rewards_at_the_healthy_state() -> None:
    # 1,000 · 353,108 - 0.1 · 415 - 20,000 · 0.49 = 353,098,158.5
    assert model().plain_reward(HEALTHY, 0.7, 0.0) == pytest.approx(35.30981585)
    assert model().log_reward(HEALTHY, 0.7, 0.0) == pytest.approx(np.log10(35310.81585))
    assert model().log_reward((0, 0, 0, 0, 1e6, 0), 0, 0) == pytest.approx(-np.log10(11))


@pytest.mark.parametrize("make", [lambda: gym.make(ENVIRONMENT, reward="x"), lambda: _twin("x")])
def test_an_unknown_reward_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(EnvironmentRefused, match=r"options.reward = 'x'; allowed: 'log', 'pub"):
        make()


def _twin(reward: str) -> Twin | None:
    return find_twin(ENVIRONMENT, {"reward": reward}, TWIN)


def test_a_patient_without_drugs_stays_where_the_papers_begin() -> None:
    env = gym.make(ENVIRONMENT, spread=0)
    first, _ = env.reset(seed=0)
    np.testing.assert_allclose(10.0**first, NON_HEALTHY, rtol=1e-6)
    for _ in range(20):
        last, *_ = env.step(0)
    np.testing.assert_allclose(last, first, atol=0.01)


def test_a_good_strategy_makes_a_patient_healthy_without_drugs() -> None:
    env = gym.make(ENVIRONMENT, spread=0, reward="published")
    env.reset(seed=0)
    steps = [env.step(action) for action in several_policies()["recovery"]]
    np.testing.assert_allclose(10.0 ** steps[-1][0], HEALTHY, rtol=0.1)
    published_units = 1e7 * sum(float(step[1]) for step in steps)
    assert published_units == pytest.approx(3.747e10, rel=1e-3)


def test_spread_bounds_how_patients_differ() -> None:
    env = gym.make(ENVIRONMENT, spread=0.25)
    factors = np.array([10.0 ** env.reset(seed=seed)[0] / NON_HEALTHY for seed in range(100)])
    assert factors.min() >= 0.8 - 1e-6
    assert factors.max() <= 1.25 + 1e-6
    assert factors.std() > 0.1  # uniform in the logarithm: 0.13
    draws = np.random.default_rng(0).random((6, 4))
    np.testing.assert_allclose(
        own_twin(0.25).start(tuple(draws.astype("f4")))[:6],
        model().start(tuple(draws), 0.25),
        rtol=1e-6,
    )


@pytest.mark.parametrize("make", [lambda: gym.make(ENVIRONMENT, spread=-1), lambda: own_twin(-1)])
def test_a_negative_spread_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(EnvironmentRefused, match=r"options.spread = -1; allowed: 0 to 10"):
        make()


def after_days_by_lsoda(state: Any, action: int) -> Any:
    drugs = model().efficacies(action)
    states, report = odeint(
        lambda x, _: model().rates(x.tolist(), *drugs),
        state,
        (0, model().DAYS),
        rtol=1e-11,
        atol=1e-11,
        mxstep=100_000,
        full_output=True,
    )
    assert report["message"] == "Integration successful."
    return states[-1]


def test_the_environment_and_its_twin_follow_lsoda_over_whole_episodes() -> None:
    """Every variable agrees to 1e-5 at every step: both with LSODA, and with each other."""
    policies = several_policies()
    actions_PT, twin = np.array(list(policies.values())), own_twin(0.3)
    draws = np.random.default_rng(1).random((6, len(policies)))
    draws[:, 0] = 0.5  # the recovery begins at the published start
    start_PS = np.array(model().start(tuple(draws), 0.3)).T
    states = (*jax.numpy.asarray(start_PS.T, "f4"), *jax.numpy.zeros((6, len(policies))))
    expected_PS = np.array(states[:6], float).T
    envs = [gym.make(ENVIRONMENT).unwrapped for _ in policies]
    for env, start in zip(envs, expected_PS, strict=True):
        env.state = start  # type: ignore[attr-defined]  # of this environment
    step, observe = jax.jit(twin.step), jax.jit(twin.observe)
    for actions_P in actions_PT.T:
        pairs = zip(expected_PS, actions_P, strict=True)
        expected_PS = np.array([after_days_by_lsoda(*pair) for pair in pairs])
        states, rewards, terminated = step(states, jax.numpy.asarray(actions_P))
        shown, twin_PS = np.array(observe(states)).T, np.array(states[:6], float).T
        np.testing.assert_allclose(twin_PS, expected_PS, rtol=1e-5)
        for number, (env, action) in enumerate(zip(envs, actions_P, strict=True)):
            observation, paid, *_ = env.step(action)
            assert env.observation_space.contains(observation)
            expected = expected_PS[number]
            reached = env.state  # type: ignore[attr-defined]  # of this environment
            np.testing.assert_allclose(reached, expected, rtol=1e-5)
            np.testing.assert_allclose(twin_PS[number], reached, rtol=1e-5)
            np.testing.assert_allclose(shown[number], observation, atol=1e-5)
            assert rewards[number] == pytest.approx(paid, abs=1e-4)
        assert not np.any(terminated)


def test_episodes_of_the_twin_continue_from_a_file() -> None:
    actions = np.random.default_rng(2).integers(4, size=(40, 3))
    batch = TwinBatch(own_twin(0.3), 3)
    batch.reset([1, 2, 3])
    for row in actions[:20]:
        batch.step(row)
    position = json.dumps(batch.position())
    again = TwinBatch(own_twin(0.3), 3)
    again.go_to(json.loads(position))
    for row in actions[20:]:
        for ours, theirs in zip(again.step(row), batch.step(row), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_episodes_have_200_decisions() -> None:
    batch = TwinBatch(own_twin(), 1)
    batch.reset([1])
    ends = [bool(batch.step(np.array([0]))[3][0]) for _ in range(200)]
    assert ends == [False] * 199 + [True]
    spec = gym.make(ENVIRONMENT).spec
    assert spec is not None
    assert spec.max_episode_steps == 200


def test_the_experiment_has_five_agents_that_differ() -> None:
    settings = read_settings_file(HOSPITALS / "hospitals.toml", [])
    assert len({agent.model_dump_json(exclude={"name"}) for agent in settings.agents}) == 5
    assert {agent.kind for agent in settings.agents} == {"dqn", "sb3-dqn", "sb3-qrdqn", "sb3-ppo"}
    assert choose_engine(settings, "auto") == "messages"
