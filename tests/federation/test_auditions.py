from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.errors import SettingsError
from fedhql.federation.auditions import act_alone, auditioning, earnings_after, heard
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text
from fedhql.settings.served import read_served_settings

BACKENDS = pytest.mark.parametrize("xp", [np, jnp])
ALL = np.ones(3, dtype=bool)


@BACKENDS
def test_agents_take_turns_in_the_first_environments(xp: Any) -> None:
    acts_NB = auditioning(xp.arange(8), 2, 3)
    assert [np.flatnonzero(acts_B).tolist() for acts_B in acts_NB] == [[0, 3], [1, 4], [2, 5]]
    # Environments keep their agents when others have ended.
    acts_NB = auditioning(xp.array([1, 3, 7]), 2, 3)
    assert np.asarray(acts_NB).tolist() == [[False, True, False], [True, *2 * [False]], 3 * [False]]
    assert not auditioning(xp.arange(8), 0, 3).any()


@BACKENDS
def test_an_agent_acts_by_its_own_values_where_it_is_auditioned(xp: Any) -> None:
    q_NBA = xp.zeros((3, 5, 4)) + xp.eye(4)[xp.array([1, 2, 3])][:, None]
    acts_NB, chosen_B = auditioning(xp.arange(5), 1, 3), xp.zeros(5, dtype=int)
    actions_B = act_alone(chosen_B, q_NBA, xp.array(ALL), acts_NB)
    assert actions_B.tolist() == [1, 2, 3, 0, 0]
    assert actions_B.dtype == chosen_B.dtype
    silent = act_alone(chosen_B, q_NBA, xp.array([True, False, True]), acts_NB)
    assert silent.tolist() == [1, 0, 3, 0, 0]  # there the server acts


@BACKENDS
def test_earnings_are_the_recent_mean_reward_of_a_step(xp: Any) -> None:
    """An environment that has ended earns nothing, and an agent without an answer keeps its own."""
    acts_NB = auditioning(xp.arange(6), 2, 3) & (xp.arange(6) != 4)  # row 4 has ended
    rewards_B, answered_N = xp.array([1.0, 1, 1, 3, np.nan, 1]), xp.array([True, True, False])
    earnings_N = xp.zeros(3, dtype=np.float32)
    once_N = earnings_after(earnings_N, rewards_B, answered_N, acts_NB, 2)
    np.testing.assert_allclose(once_N, [0.02, 0.005, 0], rtol=1e-6)
    for _ in range(2_000):
        earnings_N = earnings_after(earnings_N, rewards_B, answered_N, acts_NB, 2)
    np.testing.assert_allclose(earnings_N, [2, 0.5, 0], rtol=1e-4)
    assert earnings_N.dtype == np.float32


@BACKENDS
@pytest.mark.parametrize(
    ("earnings", "usable", "expected"),
    [
        ([1.0, 0.9, 0.6, 0.8, 0.6], "11111", "11010"),  # 3 of 5
        ([1.0, 0.9, 0.8, 0.7], "1111", "1110"),  # 3 of 4
        ([0.0, 0.0, 0.0, 0.0, 0.0], "11111", "11111"),  # at first everybody
        ([1.0, 0.9, 0.6, 0.8, 0.6], "00111", "00111"),  # 2 of 3, and one that is equal
        ([-1.0, -0.9, -0.6], "111", "011"),
        ([0.3, 0.2], "11", "11"),
        ([0.3, 0.2], "01", "01"),
        ([0.3, 0.2], "00", "00"),
    ],
)
def test_most_agents_are_heard(earnings: list[float], usable: str, expected: str, xp: Any) -> None:
    given = xp.array(earnings, dtype=np.float32), xp.array([each == "1" for each in usable])
    assert heard(*given).tolist() == [each == "1" for each in expected]


@BACKENDS
def test_of_next_states_only_agents_that_could_act_are_heard(xp: Any) -> None:
    earnings_N, everybody_N = xp.array([0.1, 0.2, 0.9], dtype=np.float32), xp.array(ALL)
    could_act_N = xp.array([True, True, False])
    assert heard(earnings_N, everybody_N, could_act_N).tolist() == [True, True, False]
    only_N = xp.array([False, False, True])
    assert heard(earnings_N, only_N, could_act_N).tolist() == [False, False, True]


def test_where_auditions_are_not_possible() -> None:
    text = preset_text("cartpole-n5-plus")
    with pytest.raises(SettingsError, match=r"auditions is 7; allowed: 0 to 6, with .* 5 agents"):
        read_settings(text, ["federation.auditions=7"])
    public = ["federation.learning_rate=0", "federation.server_environments=public"]
    for others, named in (
        (["federation.secure_aggregation=true", "federation.rule=mean-std"], "secure_aggregation"),
        ([*public, "federation.replay_batch=0", "federation.random_actions=0"], "'public'"),
    ):
        with pytest.raises(SettingsError, match=f"auditions is 1; allowed with .*{named}.*: 0"):
            read_settings(text, [*others, "federation.auditions=1"])
    two_agents = "[[agents]]".join(text.split("[[agents]]")[:3])
    with pytest.raises(SettingsError, match=r"auditions is 1; allowed: 0 to 0, .* 2 agents"):
        read_settings(two_agents, ["federation.auditions=1"])
    trimmed = ["federation.rule=trimmed", "federation.trim=0.2", "federation.auditions=1"]
    with pytest.raises(SettingsError, match=r"allowed: 1 to 1 of 3 agents that are heard"):
        read_settings(text, trimmed)
    served = """environment.id = "CartPole-v1"
budget.env_steps_per_agent = 1_000
federation.query_batch = 8
service.members = ["a", "b", "c"]
service.start_with = 3
"""
    assert read_served_settings(served, ["federation.auditions=2"])
    with pytest.raises(
        SettingsError, match=r"auditions is 3; allowed: 0 to 2, .* 3 service.members"
    ):
        read_served_settings(served, ["federation.auditions=3"])
    with pytest.raises(SettingsError, match=r"auditions needs service.members"):
        read_served_settings(served, ["federation.auditions=2", "service.members=[]"])
