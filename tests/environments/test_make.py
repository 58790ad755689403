from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhql.environments.make import action_count, make_environment
from fedhql.errors import EnvironmentRefused


@pytest.mark.parametrize(
    ("env_id", "actions", "observation"),
    [
        ("CartPole-v1", 2, (4,)),
        ("LunarLander-v3", 4, (8,)),
        ("FrozenLake-v1", 4, ()),
        ("Blackjack-v1", 2, (45,)),  # a Tuple of Discretes, flattened
    ],
)
def test_any_id_with_discrete_actions_can_be_made(
    env_id: str, actions: int, observation: tuple[int, ...]
) -> None:
    env = make_environment(env_id)
    assert action_count(env) == actions
    state, _ = env.reset(seed=0)
    assert np.shape(state) == observation
    assert env.observation_space.contains(env.step(actions - 1)[0])


def test_options_reach_gymnasium() -> None:
    assert make_environment("FrozenLake-v1", {"map_name": "8x8"}).observation_space == (
        gym.spaces.Discrete(64)
    )


def test_actions_that_do_not_start_at_zero_are_shifted() -> None:
    taken: list[int] = []

    class FromFive(gym.Env[Any, Any]):
        observation_space = gym.spaces.Discrete(1)
        action_space = gym.spaces.Discrete(3, start=5)

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            taken.append(action)
            return 0, 0.0, False, False, {}

        def reset(self, **_: object) -> tuple[int, dict[str, object]]:
            return 0, {}

    gym.register("FromFive-v0", entry_point=lambda **_: FromFive())
    env = make_environment("FromFive-v0")
    env.reset()
    env.step(2)
    assert action_count(env) == 3
    assert env.action_space == gym.spaces.Discrete(3)
    assert taken == [7]


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        ("Pendulum-v1", "action by action.*Discrete"),
        ("CartPole-v99", "CartPole-v99"),
        ("NoSuchThing-v0", "NoSuchThing.* write 'module:NoSuchThing-v0'.*jobs=0"),
        ("no_such_module:Thing-v0", "no_such_module"),
    ],
)
def test_a_wrong_id_is_refused_with_a_reason(env_id: str, reason: str) -> None:
    with pytest.raises(EnvironmentRefused, match=reason) as caught:
        make_environment(env_id)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_refused_with_a_reason() -> None:
    with pytest.raises(EnvironmentRefused, match="colour"):
        make_environment("CartPole-v1", {"colour": "red"})


def test_a_module_that_registers_something_else_is_not_advised_again() -> None:
    with pytest.raises(EnvironmentRefused, match=r"`NoSuchThing` doesn't exist\.$"):
        make_environment("gymnasium:NoSuchThing-v0")
