"""Play an episode with each of several policies, and draw it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhql.environments.make import Environment, make_environment
from fedhql.errors import EnvironmentRefused, MissingExtra
from fedhql.policy import Policy

RGB_ARRAY = "rgb_array"
DEFAULT_FPS = 30  # if the environment does not name its own


@dataclass(frozen=True)
class Scene:
    """What one policy shows at one moment of its episode."""

    frame_HWC: NDArray[np.uint8]
    total: float  # the return so far
    ended: bool


def drawable_environment(env_id: str, options: Mapping[str, Any] | None = None) -> Environment:
    """Return an environment whose `render` gives frames. Raise EnvironmentRefused without one."""
    plain = make_environment(env_id, options)
    modes = list(plain.metadata.get("render_modes") or [])
    plain.close()
    if RGB_ARRAY not in modes:
        raise EnvironmentRefused(
            f"environment.id = {env_id!r} cannot be drawn: its metadata['render_modes'] is "
            f"{modes}; it needs {RGB_ARRAY!r} there, and a render() that returns uint8 (H, W, 3)"
        )
    return make_environment(env_id, {**(options or {}), "render_mode": RGB_ARRAY})


def own_fps(env: Environment) -> float:
    """Return the steps per second at which the environment is meant to be shown."""
    return float(env.metadata.get("render_fps") or DEFAULT_FPS)


def rollouts(
    players: Sequence[tuple[Policy, Environment]], *, seed: int, max_steps: int, every: int
) -> Iterator[list[Scene]]:
    """Yield a scene of every player at the start, after every `every` steps and at the end.

    All episodes start from the same seed. A player whose episode has ended keeps its last scene.
    """
    episodes = [_Episode(policy, env, seed) for policy, env in players]
    yield [episode.scene() for episode in episodes]
    for number in range(1, max_steps + 1):
        for episode in episodes:
            episode.step()
        over = number == max_steps or all(episode.ended for episode in episodes)
        if over or number % every == 0:
            yield [episode.scene() for episode in episodes]
        if over:
            return


class _Episode:
    def __init__(self, policy: Policy, env: Environment, seed: int) -> None:
        self._policy, self._env = policy, env
        self._state, _ = env.reset(seed=seed)
        self._total, self.ended = 0.0, False
        self._frame: NDArray[np.uint8] | None = None  # None: not drawn since the last step

    def step(self) -> None:
        if self.ended:
            return
        states = np.array([self._state], dtype=self._env.observation_space.dtype)
        action = int(self._policy.act(states)[0])
        self._state, reward, terminated, truncated, _ = self._env.step(action)
        self._total += float(reward)
        self.ended, self._frame = terminated or truncated, None

    def scene(self) -> Scene:
        if self._frame is None:
            self._frame = _frame(self._env)
        return Scene(self._frame, self._total, self.ended)


def _frame(env: Environment) -> NDArray[np.uint8]:
    try:
        drawn: Any = env.render()
    except gym.error.DependencyNotInstalled as error:
        raise MissingExtra.named("play", "drawing this environment") from error
    frame = np.asarray(drawn)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise EnvironmentRefused(
            f"render() of the environment returned {frame.dtype} of shape {frame.shape}; it must "
            "return uint8 of shape (H, W, 3)"
        )
    return frame
