import math
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from fedhql.environments import compiled
from fedhql.environments.compiled import ENVPOOL_ENVIRONMENTS, find_compiled, find_twin
from fedhql.environments.lanes import TwinEpisodes, TwinLanes
from fedhql.environments.lunar_lander.twin import lunar_lander
from fedhql.environments.twins import TWINS, Twin
from fedhql.errors import EnvironmentRefused

Floats = NDArray[Any]
PI = math.pi

# The largest size of each state component in play; errors are measured relative to it.
SCALES = {
    "CartPole-v1": (2.4, 3.0, 0.21, 3.5),
    "MountainCar-v0": (1.2, 0.07),
    "Acrobot-v1": (PI, PI, 4 * PI, 9 * PI),
}
# A float32 rounds by 6e-8. Acrobot adds up four estimates that depend on each other.
TOLERANCES = {"CartPole-v1": 1e-6, "MountainCar-v0": 1e-6, "Acrobot-v1": 5e-6}
# The low and high corners of boxes of states to step from, besides those of a random walk. Boxes go
# beyond every edge where an episode ends or a bound holds. Acrobot's speeds stop at 0.7 of their
# bounds, where steps already reach both bounds. Beyond, its Runge-Kutta step overshoots by whole
# turns and multiplies rounding errors by a hundred.
BOXES = {
    "CartPole-v1": ((-2.5, -3.0, -0.22, -3.5), (2.5, 3.0, 0.22, 3.5)),
    "MountainCar-v0": ((-1.2, -0.07), (0.6, 0.07)),
    "Acrobot-v1": ((-PI, -PI, -2.8 * PI, -6.3 * PI), (PI, PI, 2.8 * PI, 6.3 * PI)),
}
STARTS = {"CartPole-v1": (-0.05, 0.05), "MountainCar-v0": (-0.6, -0.4), "Acrobot-v1": (-0.1, 0.1)}


class Steps(NamedTuple):
    states: Floats
    observations: Floats
    rewards: Floats
    terminated: Floats


@pytest.mark.parametrize("env_id", TWINS)
def test_a_twin_steps_like_gymnasium(env_id: str) -> None:
    twin = TWINS[env_id]
    rng = np.random.default_rng(0)
    walked = _walked(twin, lanes=20, steps=500)
    before = np.concatenate([walked, rng.uniform(*BOXES[env_id], size=walked.shape)], dtype="f4")
    actions = rng.integers(twin.action_count, size=len(before))
    assert len(before) == 20_000

    ours, theirs = _twin_steps(twin, before, actions), _gymnasium_steps(env_id, before, actions)
    _assert_reaches_the_edges(env_id, before, theirs)
    assert ours.states.dtype == ours.observations.dtype == ours.rewards.dtype == np.float32
    error = ours.states - theirs.states
    if env_id == "Acrobot-v1":  # the same angle may come out as π here and as -π there
        error[:, :2] = (error[:, :2] + PI) % (2 * PI) - PI
        assert np.abs(ours.states[:, :2]).max() <= np.float32(PI)
    assert np.abs(error / SCALES[env_id]).max() < TOLERANCES[env_id]
    seen_scales = (1, 1, 1, 1, 4 * PI, 9 * PI) if env_id == "Acrobot-v1" else SCALES[env_id]
    assert (
        np.abs((ours.observations - theirs.observations) / seen_scales).max() < TOLERANCES[env_id]
    )

    # `terminated` may differ only for states that rounding can carry over the threshold.
    differs = ours.terminated != theirs.terminated
    assert differs.sum() <= 5
    assert (_margins(env_id, theirs.states)[differs] < 1e-6).all()
    np.testing.assert_array_equal(ours.rewards[~differs], theirs.rewards[~differs])


@pytest.mark.parametrize("env_id", TWINS)
def test_sizes_and_step_limit_equal_gymnasiums(env_id: str) -> None:
    twin, env = TWINS[env_id], gym.make(env_id)
    assert (twin.observation_size,) == env.observation_space.shape
    assert isinstance(env.action_space, gym.spaces.Discrete)
    assert twin.action_count == env.action_space.n
    assert env.spec is not None
    assert twin.step_limit == env.spec.max_episode_steps


@pytest.mark.parametrize("env_id", TWINS)
def test_starts_are_distributed_like_gymnasiums(env_id: str) -> None:
    n, twin = 2_000, TWINS[env_id]
    ours = np.asarray(TwinLanes(twin).begin(jnp.arange(n, dtype=jnp.uint32)).states)
    env: Any = gym.make(env_id).unwrapped
    env.reset(seed=0)
    theirs = np.array([(env.reset(), env.state)[1] for _ in range(n)])
    if env_id == "MountainCar-v0":  # the car starts at rest
        assert not ours[:, 1].any()
        ours, theirs = ours[:, :1], theirs[:, :1]
    low, high = STARTS[env_id]
    assert (ours >= np.float32(low)).all()
    assert (ours <= np.float32(high)).all()
    # All 2,000 draws miss the outer 1 % at one end with a probability of 2e-9.
    assert (ours.min(axis=0) < low + 0.01 * (high - low)).all()
    assert (ours.max(axis=0) > high - 0.01 * (high - low)).all()
    # There are nine components; a correct start fails one of them with a probability of 1 %.
    for column in range(ours.shape[1]):
        assert _ks_distance(ours[:, column], theirs[:, column]) < _ks_critical(n, 0.01 / 9)
    # No two components come from the same draw: 0.1 is 4.5 standard errors.
    correlations = np.atleast_2d(np.corrcoef(ours.T))
    assert np.abs(correlations - np.eye(len(correlations))).max() < 0.1


def test_an_environment_with_options_has_no_twin() -> None:
    assert find_twin("CartPole-v1") is TWINS["CartPole-v1"]
    assert find_twin("CartPole-v1", {}) is TWINS["CartPole-v1"]
    assert find_twin("CartPole-v1", {"sutton_barto_reward": True}) is None


def test_lunar_lander_is_a_twin_on_a_gpu_and_where_the_settings_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lander, windy = "LunarLander-v3", {"enable_wind": True}
    monkeypatch.setattr(compiled, "can_use_gpu", lambda: False)
    assert find_compiled(lander) is ENVPOOL_ENVIRONMENTS[lander]
    assert compiled.resolved(lander, {}, "auto") == "envpool"
    assert find_twin(lander, None, "twin") is lunar_lander()
    assert find_twin(lander, windy, "twin") is lunar_lander(**windy)
    monkeypatch.setattr(compiled, "can_use_gpu", lambda: True)
    found = find_compiled(lander)
    assert found is not None
    assert found.twin is lunar_lander()
    assert compiled.resolved(lander, {}, "auto") == "twin"
    assert find_twin(lander) is None  # for single episodes Gymnasium is faster
    assert find_compiled(lander, {"continuous": True}) is None
    assert compiled.resolved(lander, {"continuous": True}, "auto") == "gymnasium"


@pytest.mark.parametrize(
    ("env_id", "options", "implementation", "allowed"),
    [
        ("CartPole-v1", {}, "envpool", "'auto', 'twin', 'gymnasium'"),
        ("CartPole-v1", {"sutton_barto_reward": True}, "twin", "'auto', 'gymnasium'"),
        ("FrozenLake-v1", {}, "twin", "'auto', 'gymnasium'"),
        ("LunarLander-v3", {"enable_wind": True}, "envpool", "'auto', 'twin', 'gymnasium'"),
        ("LunarLander-v3", {"continuous": True}, "twin", "'auto', 'gymnasium'"),
    ],
)
def test_an_implementation_that_an_environment_lacks_is_refused(
    env_id: str, options: dict[str, Any], implementation: str, allowed: str
) -> None:
    message = f"implementation = '{implementation}': {env_id}.* has none; allowed: {allowed}, or"
    for find in (find_compiled, find_twin):
        with pytest.raises(EnvironmentRefused, match=message):
            find(env_id, options, implementation)


def test_a_twin_whose_start_takes_no_draws_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match="start_draws = 0; allowed: 1 or more"):
        replace(TWINS["CartPole-v1"], start_draws=0)


@pytest.mark.parametrize(
    "options", [{"gravity": 5.0}, {"gravity": "x"}, {"gravity": [1]}, {"enable_wind": 1}]
)
def test_wrong_options_of_lunar_lander_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentRefused, match=next(iter(options))):
        find_compiled("LunarLander-v3", options)


def test_a_gpu_counts_only_where_jax_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "find_spec", lambda name: object())
    for platforms, is_there in {"": True, "cuda,cpu": True, "cpu": False}.items():
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        assert compiled.can_use_gpu() is is_there


def _walked(twin: Twin, *, lanes: int, steps: int) -> Floats:
    """Return the states that random actions lead to, episode after episode."""
    made = TwinLanes(twin)

    def move(episodes: TwinEpisodes, key: jax.Array) -> tuple[TwinEpisodes, jax.Array]:
        acting, starting = jax.random.split(key)
        actions_M = jax.random.randint(acting, (lanes,), 0, twin.action_count)
        draws_MR = jax.random.uniform(starting, (lanes, twin.start_draws))
        return made.step_and_restart(episodes, actions_M, draws_MR).episodes, episodes.states

    keys = jax.random.split(jax.random.key(0), steps)
    _, states = jax.lax.scan(move, made.begin(jnp.arange(lanes, dtype=jnp.uint32)), keys)
    return np.asarray(states).reshape(lanes * steps, -1)


def _twin_steps(twin: Twin, states: Floats, actions: Floats) -> Steps:
    after, rewards, terminated = jax.jit(twin.step)(tuple(jnp.asarray(states.T)), actions)
    figures = (np.stack(after, 1), np.stack(twin.observe(after), 1), rewards, terminated)
    return Steps(*(np.array(figure) for figure in figures))


def _gymnasium_steps(env_id: str, states: Floats, actions: Floats) -> Steps:
    env: Any = gym.make(env_id).unwrapped
    env.reset()
    steps = []
    for state, action in zip(states.astype(np.float64), actions, strict=True):
        env.state = state
        env.steps_beyond_terminated = None  # CartPole rewards a second fall with 0
        observation, reward, terminated, _, _ = env.step(int(action))
        steps.append((np.array(env.state), observation, reward, terminated))
    return Steps(*(np.array(column) for column in zip(*steps, strict=True)))


def _margins(env_id: str, states: Floats) -> Floats:
    """Return the distance of each state from where `terminated` changes."""
    first, second = states[:, 0], states[:, 1]
    if env_id == "CartPole-v1":
        leans = np.abs(np.abs(states[:, 2]) - 12 * 2 * PI / 360)
        return np.asarray(np.minimum(np.abs(np.abs(first) - 2.4), leans))
    if env_id == "MountainCar-v0":
        return np.asarray(np.minimum(np.abs(first - 0.5), np.abs(second)))
    return np.asarray(np.abs(-np.cos(first) - np.cos(first + second) - 1))


def _assert_reaches_the_edges(env_id: str, before: Floats, after: Steps) -> None:
    """Check that rows reach every bound; otherwise its constant would not be tested."""
    x = after.states
    if env_id == "CartPole-v1":
        leans = 12 * 2 * PI / 360
        edges = [x[:, 0] < -2.4, x[:, 0] > 2.4, x[:, 2] < -leans, x[:, 2] > leans]
    elif env_id == "MountainCar-v0":
        edges = [(x[:, 0] == -1.2) & (x[:, 1] == 0), x[:, 0] == 0.6, np.abs(x[:, 1]) == 0.07]
    else:
        turned = np.abs(x[:, :2] - before[:, :2]) > PI
        edges = [*turned.T, np.abs(x[:, 2]) == 4 * PI, np.abs(x[:, 3]) == 9 * PI]
    assert min(edge.sum() for edge in [*edges, after.terminated, ~after.terminated]) > 50


def _ks_distance(left: Floats, right: Floats) -> float:
    """Return the Kolmogorov-Smirnov distance between two samples."""
    points = np.concatenate([left, right])
    shares = [np.searchsorted(np.sort(s), points, side="right") / len(s) for s in (left, right)]
    return float(np.abs(shares[0] - shares[1]).max())


def _ks_critical(n: int, error_rate: float) -> float:
    """Return the distance that two large samples of n exceed with this probability."""
    return math.sqrt(-math.log(error_rate / 2) / n)
