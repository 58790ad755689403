"""Episodes that are drawn are the episodes that an evaluation plays."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from fedhql.acting import greedily
from fedhql.engines.evaluation import evaluate
from fedhql.environments.batch import EnvironmentBatch
from fedhql.errors import EnvironmentRefused, MissingExtra
from fedhql.play.rollouts import Scene, drawable_environment, own_fps, rollouts
from fedhql.policy import Policy


@pytest.fixture(autouse=True)
def _no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def leaning(sign: float) -> Policy:
    """Return a policy that pushes CartPole's cart to the side the pole leans to, if sign is 1."""

    def q_values(states: Any) -> Any:
        lean = sign * (states[:, 2] + states[:, 3])
        return np.stack([-lean, lean], axis=1)

    return Policy([greedily(q_values)])


def steering(factor: float) -> Policy:
    """Return a policy for LunarLander that uses all engines before it crashes."""
    return Policy([greedily(lambda states: np.sin(factor * states[:, :4]))])


def play(policies: list[Policy], env_id: str, seed: int, **options: Any) -> list[list[Scene]]:
    players = [(policy, drawable_environment(env_id)) for policy in policies]
    chosen = {"max_steps": 1000, "every": 1} | options
    moments = list(rollouts(players, seed=seed, **chosen))
    for _, env in players:
        env.close()
    return moments


@pytest.mark.parametrize(
    ("env_id", "policies"),
    [
        ("CartPole-v1", [leaning(-1), leaning(1), leaning(0.2)]),
        ("LunarLander-v3", [steering(3), steering(-5)]),
    ],
)
def test_returns_are_those_of_an_evaluation(env_id: str, policies: list[Policy]) -> None:
    if env_id == "LunarLander-v3":
        pytest.importorskip("Box2D", reason="needs Box2D: pip install 'fedhql[box2d]'")
    for seed in (3, 4):
        played = evaluate(
            lambda states_N: [
                policy.answer(states) for policy, states in zip(policies, states_N, strict=True)
            ],
            EnvironmentBatch(env_id, len(policies)),
            np.full((len(policies), 1), seed, dtype=np.uint32),
            discount=1.0,
        )
        moments = play(policies, env_id, seed, every=50)
        totals = [scene.total for scene in moments[-1]]
        assert all(scene.ended for scene in moments[-1])
        # Rewards are float32 in a batch of environments.
        np.testing.assert_allclose(totals, played.returns[:, 0], rtol=1e-5)
        assert len(moments) == 1 + -(-played.lengths.max() // 50)


def test_running_returns_count_up_and_ended_episodes_keep_their_last_frame() -> None:
    moments = play([leaning(-1), leaning(1)], "CartPole-v1", seed=0)
    lost = [scenes[0] for scenes in moments]
    length = int(lost[-1].total)
    assert [scene.total for scene in lost[: length + 1]] == list(range(length + 1))
    assert [scene.ended for scene in lost[: length + 1]] == [False] * length + [True]
    assert len(lost) > 2 * length
    assert all(scene.frame_HWC is lost[length].frame_HWC for scene in lost[length:])
    frames = [scene.frame_HWC for scene in lost[: length + 1]]
    assert all(frame.shape == (400, 600, 3) and frame.dtype == np.uint8 for frame in frames)
    # The pole may move by less than a pixel.
    assert len({frame.tobytes() for frame in frames}) > length / 2


def test_the_same_seed_gives_the_same_pictures() -> None:
    def seen(seed: int) -> list[bytes]:
        moments = play([leaning(1)], "CartPole-v1", seed, max_steps=20)
        return [scene.frame_HWC.tobytes() for scenes in moments for scene in scenes]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)


def test_every_so_many_steps_are_drawn_and_the_last() -> None:
    moments = play([leaning(1)], "CartPole-v1", seed=0, max_steps=23, every=10)
    assert [scene.total for (scene,) in moments] == [0, 10, 20, 23]
    assert not moments[-1][0].ended


class Blind(gym.Env[Any, Any]):
    """Has the render mode, but draws something else than a frame."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium has it
    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def render(self) -> Any:
        return np.zeros((4, 4))


def test_an_environment_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match=r"is \[\]; it needs 'rgb_array' there"):
        drawable_environment("tests.known_mdps:RandomMDP-v0")
    blind = Blind("rgb_array")
    assert own_fps(blind) == 30
    with pytest.raises(EnvironmentRefused, match=r"returned float64 of shape \(4, 4\); it must"):
        next(rollouts([(leaning(1), blind)], seed=0, max_steps=1, every=1))


def test_without_pygame_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedhql\[play\]'"):
        play([leaning(1)], "CartPole-v1", seed=0)


def test_an_environment_names_its_own_speed() -> None:
    env = drawable_environment("CartPole-v1")
    assert own_fps(env) == 50
    env.close()
