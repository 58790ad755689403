"""HIV treatment with two drugs: a patient as a Gymnasium environment and as a compiled twin.

The model is that of Adams, Banks, Kwon and Tran, "Dynamic multidrug therapies for HIV: optimal and
STI control approaches", Mathematical Biosciences and Engineering 1(2), 2004. The task is that of
Ernst, Stan, Gonçalves and Wehenkel, "Clinical data based optimal STI strategies for HIV: a
reinforcement learning approach", CDC 2006: every 5 days for 1,000 days, a physician gives none, one
or both of the drugs. A state is (T1, T2, I1, I2, V, E), in units per ml:

    T1, T2  healthy CD4+ T-lymphocytes and macrophages
    I1, I2  the infected ones, T1* and T2* in the papers
    V       free viruses
    E       cytotoxic T-lymphocytes, the immune response
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from fedhql.environments.twins import Twin
from fedhql.errors import EnvironmentRefused

Array = Any  # a number, or a NumPy or JAX array
State = tuple[Array, ...]

# Without drugs a patient stays in this steady state. Published: no digits after the point.
NON_HEALTHY = (163_573.0, 5.0, 11_945.0, 46.0, 63_919.0, 24.0)
ACTIONS = ("no drug", "RTI", "PI", "RTI and PI")
DAYS, DECISIONS = 5, 200
SPREAD = 0.2  # patients differ by up to 20 % in each variable; 0 is the published start
LOG_UNIT = 1e4  # a reward of this size in published units becomes log10(2)
PUBLISHED_UNIT = 1e7  # otherwise, published rewards are divided by this


def rates(state: State, rti: Array, pi: Array) -> State:
    """Return the change of each variable in a day, under drugs of these efficacies."""
    T1, T2, I1, I2, V, E = state
    infection1 = (1 - rti) * 8e-7 * T1  # of each virus in a day: (1 - ε1) k1 T1
    infection2 = (1 - 0.34 * rti) * 1e-4 * T2  # (1 - f ε1) k2 T2
    clearance = 0.7 + 1e-5 * E  # δ + m E, with m1 = m2
    infected = I1 + I2
    return (
        1e4 - 0.01 * T1 - infection1 * V,  # λ1, d1
        31.98 - 0.01 * T2 - infection2 * V,  # λ2, d2
        infection1 * V - clearance * I1,
        infection2 * V - clearance * I2,
        (1 - pi) * 70.0 * infected - (13.0 + infection1 + infection2) * V,  # NT δ, c, ρ1 = ρ2 = 1
        # λE, bE, Kb, dE, Kd, δE
        1.0 + (0.3 * infected / (infected + 100) - 0.25 * infected / (infected + 500) - 0.1) * E,
    )


def efficacies(action: Array) -> tuple[Array, Array]:
    """Return ε1 of the reverse transcriptase inhibitor and ε2 of the protease inhibitor."""
    return 0.7 * (action % 2), 0.3 * (action // 2)


def published_reward(state: State, rti: Array, pi: Array) -> Array:
    """Return the reward of 5 days that end in a state, in published units."""
    *_, V, E = state
    return 1000.0 * E - 0.1 * V - 20_000.0 * rti**2 - 2_000.0 * pi**2


def log_reward(state: State, rti: Array, pi: Array) -> Array:
    """Return the logarithm of the published reward x: sign(x) · log10(1 + |x| / 10⁴).

    Published rewards grow by four orders of magnitude while a patient recovers, so learners would
    hardly see the first steps of a recovery.
    """
    x = published_reward(state, rti, pi)
    xp = jnp if isinstance(x, jax.Array) else np
    return xp.sign(x) * xp.log10(1 + abs(x) / LOG_UNIT)


def plain_reward(state: State, rti: Array, pi: Array) -> Array:
    """Return the published reward in units of PUBLISHED_UNIT."""
    return published_reward(state, rti, pi) / PUBLISHED_UNIT


REWARDS: Mapping[str, Callable[[State, Array, Array], Array]] = {
    "log": log_reward,
    "published": plain_reward,
}


def start(draws: State, spread: float) -> State:
    """Return the state of a new patient, from six uniform draws in [0, 1).

    Each variable of the non-healthy state is multiplied by a factor between 1 / (1 + spread) and
    1 + spread. The factor's logarithm is uniform.
    """
    return tuple(x * (1 + spread) ** (2 * u - 1) for x, u in zip(NON_HEALTHY, draws, strict=True))


class HIV(gym.Env[Any, Any]):
    """One patient, in float64. Observed are logarithms to base 10.

    The variables differ by six orders of magnitude, and each moves by several in an episode.
    """

    def __init__(self, spread: float = SPREAD, reward: str = "log") -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (len(NON_HEALTHY),))
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self._spread, self._reward = _checked(spread), _reward_named(reward)
        self.state = np.array(NON_HEALTHY)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.state = np.array(start(tuple(self.np_random.random(6)), self._spread))
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        drugs = efficacies(int(action))
        with jax.enable_x64(True):  # for this line only; JAX 0.8 or later
            self.state = np.array(_compiled_after_days(self.state, *map(float, drugs)))
        return self._observed(), float(self._reward(tuple(self.state), *drugs)), False, False, {}

    def _observed(self) -> Any:
        return np.log10(self.state).astype(np.float32)


if "HIV-v0" not in gym.registry:  # examples.hospitals.hiv is this module, too
    gym.register("HIV-v0", entry_point="hiv:HIV", max_episode_steps=DECISIONS)


def twin(spread: float = SPREAD, reward: str = "log") -> Twin:
    """Return the same task for compiled runs.

    Between the healthy and the non-healthy state a difference of 1e-7 grows to 2e-4, so float32 is
    not enough. A state has 12 float32 numbers: the six variables, and what rounding took from each.
    """
    begin = partial(_twin_start, spread=_checked(spread))
    step = partial(_twin_step, reward=_reward_named(reward))
    return Twin(6, len(ACTIONS), DECISIONS, 6, begin, step, _twin_observe)


def _twin_start(draws: State, spread: float) -> State:
    state = start(draws, spread)
    return *state, *(0 * number for number in state)


def _twin_step(
    state: State, action: Array, reward: Callable[[State, Array, Array], Array]
) -> tuple[State, Array, Array]:
    with jax.enable_x64(True):
        x = jnp.stack(state[:6]).astype(jnp.float64) + jnp.stack(state[6:]).astype(jnp.float64)
        x = _after_days(x, *efficacies(action.astype(jnp.float64)))
        rounded = x.astype(jnp.float32)
        rest = (x - rounded.astype(jnp.float64)).astype(jnp.float32)
    state = *rounded, *rest
    return state, reward(state[:6], *efficacies(action)), jnp.zeros_like(state[0], dtype=bool)


def _twin_observe(state: State) -> State:
    return tuple(map(jnp.log10, state[:6]))


STEP = 0.5  # of the time in which the fastest variable moves: the method's error is below 3e-6


def _after_days(x: Array, rti: Array, pi: Array) -> Array:
    """Integrate by the Runge-Kutta method of order 4, with shorter steps where viruses are many.

    Viruses infect macrophages at the rate k2 V, which is 200 a day in an outbreak. Therefore 5 days
    take 190 steps on average, and up to 1,100. The variables are one array, because a CPU takes two
    to four times as long with six.
    """

    def slopes(x: Array) -> Array:
        return jnp.stack(rates(tuple(x), rti, pi))

    def substep(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        x, left = carry
        fastest = 14.0 + 1e-4 * x[4] + 1e-5 * x[5]  # of viruses, macrophages and infected cells
        days = jnp.minimum(STEP / fastest, left)
        k1 = slopes(x)
        k2 = slopes(x + days / 2 * k1)
        k3 = slopes(x + days / 2 * k2)
        k4 = slopes(x + days * k3)
        return x + days / 6 * (k1 + 2 * (k2 + k3) + k4), left - days

    begin = (x, jnp.full_like(x[0], DAYS))
    return jax.lax.while_loop(lambda carry: (carry[1] > 0).any(), substep, begin)[0]


_compiled_after_days = jax.jit(_after_days)


def _checked(spread: float) -> float:
    if not 0 <= spread <= 10:
        raise EnvironmentRefused(f"environment.options.spread = {spread}; allowed: 0 to 10")
    return spread


def _reward_named(name: str) -> Callable[[State, Array, Array], Array]:
    if name not in REWARDS:
        allowed = ", ".join(map(repr, REWARDS))
        raise EnvironmentRefused(f"environment.options.reward = {name!r}; allowed: {allowed}")
    return REWARDS[name]
