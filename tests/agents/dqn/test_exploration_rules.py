"""Exploration in compiled programs equals that in NumPy, and agents follow it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from fedhql.agents import exploration as outside
from fedhql.agents.dqn import exploration as inside
from fedhql.agents.dqn.agent import DqnAgent
from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.draws import visit_projection
from fedhql.agents.dqn.numbers import numbers_of
from tests.agents.dqn.corridor import CORRIDOR, corridor

Q = jnp.array([1.0, 3.0, 2.0])
DRAWS = jax.random.uniform(jax.random.key(0), (20_000, 2))
BOTH_LOOPS = pytest.mark.parametrize("twin", [CORRIDOR, None], ids=["compiled", "host"])


def shares(actions: Any) -> Any:
    return np.bincount(np.asarray(actions), minlength=3) / len(actions)


def test_epsilon_greedy_explores_with_probability_epsilon() -> None:
    act: Any = jax.vmap(inside.epsilon_greedy, (None, None, 0))
    # 6 standard errors of a share over 20,000 draws are at most 0.021.
    np.testing.assert_allclose(shares(act(Q, 0.3, DRAWS)), [0.1, 0.8, 0.1], atol=0.021)
    assert set(np.asarray(act(Q, 0.0, DRAWS))) == {1}
    np.testing.assert_allclose(shares(act(Q, 1.0, DRAWS)), 1 / 3, atol=0.021)


def test_ties_are_broken_as_in_numpy() -> None:
    tie = np.array([1.0, 3.0, 3.0], dtype=np.float32)
    theirs = outside.epsilon_greedy(tie, 0.0, np.random.default_rng(0))
    assert int(inside.epsilon_greedy(jnp.asarray(tie), jnp.float32(0), DRAWS[0])) == theirs == 1


def test_boltzmann_draws_by_the_softmax() -> None:
    act: Any = jax.vmap(inside.boltzmann, (None, None, 0))
    np.testing.assert_allclose(shares(act(Q, 2.0, DRAWS[:, 0])), jax.nn.softmax(Q / 2), atol=0.021)
    assert set(np.asarray(act(1e6 * Q, 1e-3, DRAWS[:, 0]))) == {1}  # no overflow
    # The largest draw takes the last action, even if the probabilities sum to less than 1.
    assert int(inside.boltzmann(jnp.zeros(3), jnp.float32(1), jnp.float32(1 - 2**-24))) == 2


def test_count_ucb_equals_numpys() -> None:
    rng = np.random.default_rng(0)
    q_MA, counts_MA = rng.normal(size=(300, 3)), rng.integers(5, size=(300, 3))
    confidences_M = rng.uniform(0.1, 3, size=300)
    ours = jax.vmap(inside.count_ucb)(*map(jnp.asarray, (q_MA, counts_MA, confidences_M)))
    theirs = [
        outside.count_ucb(q_A, counts_A, c)
        for q_A, counts_A, c in zip(q_MA, counts_MA, confidences_M, strict=True)
    ]
    np.testing.assert_array_equal(ours, theirs)
    assert (counts_MA == 0).any(axis=1).mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("over", ["budget", "phase"])
@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.333])
def test_annealed_epsilon_equals_numpys(fraction: float, over: str) -> None:
    config = DqnConfig(
        exploration_final_eps=0.1,
        exploration_initial_eps=0.9,
        exploration_fraction=fraction,
        exploration_annealing=over,
    )
    steps = jnp.array([0, 1, 33, 34, 40, 50, 99, 100, 5_000])
    lengths = {"budget_env_steps": 100, "phase_env_steps": 40}
    numbers = numbers_of([config], discount=0.9, **lengths)
    ours = [inside.annealed_epsilon(numbers, step)[0] for step in steps]
    annealing = outside.annealing_of(over, fraction, *lengths.values())
    theirs = [outside.annealed_epsilon(0.1, 0.9, annealing, int(step)) for step in steps]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def steps_of_a_fixed_network(
    twin: Any, env_steps: int = 1_500, **settings: Any
) -> tuple[DqnAgent, NDArray[Any], NDArray[Any]]:
    """Return an agent that explores but hardly learns, its states and its actions."""
    quick: dict[str, Any] = {"hidden": (4,), "batch_size": 2, "train_freq": 1, "learning_starts": 0}
    config = DqnConfig(**(quick | {"learning_rate": 1e-20} | settings))
    learner = DqnAgent(
        config,
        corridor(),
        twin,
        discount=0.9,
        budget_env_steps=env_steps,
        phase_env_steps=100,
        seed=5,
    )
    learner.self_learn(env_steps)
    experience: Any = learner._experience
    rows = experience._replay if twin is None else np.asarray(experience._experience.replay[0])
    return learner, rows[:, :2], rows[:, 4].astype(int)


def test_agents_explore_epsilon_greedily_on_the_host() -> None:
    """`test_self_learning` checks the same in a compiled phase, action by action."""
    learner, states, actions = steps_of_a_fixed_network(None, exploration_final_eps=0.4)
    greedy = learner.q_values(states).argmax(axis=1)
    # Half of the random actions are greedy too; 6 standard errors are 0.062.
    assert (actions != greedy).mean() == pytest.approx(0.2, abs=0.062)


@BOTH_LOOPS
def test_agents_explore_again_in_each_phase_in_both_loops(twin: Any) -> None:
    """ε falls from 1 to 0 in the first half of each phase of 100 env steps."""
    learner, states, actions = steps_of_a_fixed_network(
        twin, exploration_annealing="phase", exploration_fraction=0.5, exploration_final_eps=0.0
    )
    greedy = learner.q_values(states).argmax(axis=1)
    others = (actions != greedy).reshape(-1, 100)
    assert not others[:, 50:].any()
    # Half of the random actions are greedy too. The mean ε is 0.51, then 0.91 over 10 steps.
    assert others[:, :50].mean() == pytest.approx(0.255, abs=0.095)  # 6 standard errors
    assert others[:, :10].mean() == pytest.approx(0.455, abs=0.163)  # 4 standard errors


@BOTH_LOOPS
def test_agents_explore_by_boltzmann_in_both_loops(twin: Any) -> None:
    learner, states, actions = steps_of_a_fixed_network(
        twin, exploration="boltzmann", temperature=0.2
    )
    chance = np.asarray(jax.nn.softmax(learner.q_values(states) / 0.2, axis=1))[:, 1]
    assert actions.mean() == pytest.approx(chance.mean(), abs=0.078)  # 6 standard errors
    assert abs(chance.mean() - 0.5) > 0.1  # so that the temperature matters
    flat = np.asarray(jax.nn.softmax(learner.q_values(states) / 0.4, axis=1))[:, 1]
    assert abs(chance.mean() - flat.mean()) > 0.05


@BOTH_LOOPS
def test_agents_explore_by_counts_in_both_loops(twin: Any) -> None:
    """Every action is that of NumPy's rule, with counts for each box of states."""
    learner, states, actions = steps_of_a_fixed_network(twin, 300, exploration="ucb", confidence=2)
    projection = visit_projection(5, 2).astype(np.float32)
    counts: dict[bytes, NDArray[np.int64]] = {}
    for state, action, q_A in zip(states, actions, learner.q_values(states), strict=True):
        box = ((projection @ state) > 0).tobytes()
        counts_A = counts.setdefault(box, np.zeros(2, dtype=np.int64))
        assert action == outside.count_ucb(q_A, counts_A, 2.0)
        counts_A[action] += 1
    assert len(counts) > 1
    assert set(actions) == {0, 1}


@BOTH_LOOPS
@pytest.mark.parametrize("warm_up", ["uniform", "policy"])
def test_warm_up_says_how_an_agent_acts_before_learning_starts(twin: Any, warm_up: str) -> None:
    learner, states, actions = steps_of_a_fixed_network(
        twin, 300, exploration_final_eps=0.0, learning_starts=1_000, warm_up=warm_up
    )
    greedy = learner.q_values(states).argmax(axis=1)
    if warm_up == "policy":
        np.testing.assert_array_equal(actions, greedy)
    else:  # 6 standard errors of a share over 300 draws are 0.173
        assert (actions == greedy).mean() == pytest.approx(0.5, abs=0.173)
    assert int(learner._learner.updates) == 0
