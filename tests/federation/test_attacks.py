"""Attackers' answers, compared with hand-computed numbers and by properties, in NumPy and JAX."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.federation.attacks import ATTACKS, HUGE, attack_number, attacked, normals

# Three honest agents and two attackers; two states, three actions.
Q_NBA = np.array(
    [
        [[1.0, 4.0, 2.0], [0.0, -1.0, 5.0]],
        [[2.0, 6.0, 2.0], [0.0, -3.0, 8.0]],
        [[3.0, 8.0, 2.0], [0.0, -2.0, 2.0]],
        [[9.0, 9.0, -9.0], [1.0, 2.0, 3.0]],
        [[7.0, 0.0, 7.0], [4.0, 5.0, 6.0]],
    ]
)
MEAN_BA = np.array([[2.0, 6.0, 2.0], [0.0, -2.0, 5.0]])
ONE_ROOT = (2 / 3) ** 0.5  # the deviation of 1, 2, 3
STD_BA = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]]) * ONE_ROOT
EVERY_ATTACK = pytest.mark.parametrize("name", ATTACKS)
close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)


def lies(name: str, q_NBA: Any = Q_NBA, attackers: int = 2, exchange: int = 0, **more: Any) -> Any:
    return attacked(q_NBA, attack_number(name), attackers, exchange, **more)


def test_attacks_equal_hand_computed_answers() -> None:
    said = {name: lies(name)[3:] for name in ATTACKS}
    assert np.isnan(said["nan"]).all()
    assert (said["huge"] == HUGE).all()
    close(said["sign-flip"], -Q_NBA[3:])
    close(said["noise"], Q_NBA[3:] + 10 * STD_BA * normals(Q_NBA, 0)[3:])
    # The honest values of the first state are 1 to 8, of the second -3 to 8.
    close(said["collude"], [[[8, 1, 1], [8, -3, -3]]] * 2)
    # Above the average of the means, 10 / 3 and 1: the second action, and the third.
    signs = np.array([[1, -1, 1], [1, 1, -1]])
    close(said["stealthy"], [MEAN_BA + signs * STD_BA] * 2)


@EVERY_ATTACK
@pytest.mark.parametrize("attackers", [0, 1, 4])
def test_only_the_last_agents_lie(name: str, attackers: int) -> None:
    said = lies(name, attackers=attackers)
    honest = len(Q_NBA) - attackers
    np.testing.assert_array_equal(said[:honest], Q_NBA[:honest])
    if attackers == 1:
        assert (said[honest:] != Q_NBA[honest:]).any(axis=(1, 2)).all()


@EVERY_ATTACK
def test_jax_arrays_and_traced_numbers_give_the_same_answers(name: str) -> None:
    """Lanes of one program can differ in the attack and in the number of attackers."""
    lanes = jax.jit(jax.vmap(attacked, in_axes=(None, 0, 0, None)))
    attackers = jnp.arange(5)
    codes = jnp.full(5, attack_number(name))
    q = jnp.asarray(Q_NBA, dtype=jnp.float32)
    for lane, said in enumerate(lanes(q, codes, attackers, 7)):
        close(said, lies(name, attackers=lane, exchange=7))
        assert said.dtype == jnp.float32


@EVERY_ATTACK
def test_states_that_were_not_asked_about_have_no_effect(name: str) -> None:
    asked = np.array([False, True, False, True])
    q_NBA = np.full((5, 4, 3), np.nan)
    q_NBA[:, asked] = Q_NBA
    said = lies(name, q_NBA, asked=asked, exchange=3)
    np.testing.assert_array_equal(said[:, asked], lies(name, exchange=3))


@EVERY_ATTACK
def test_an_honest_agent_without_a_usable_answer_has_no_effect(name: str) -> None:
    usable = np.array([True, False, True, True, True])
    q_NBA = Q_NBA.copy()
    q_NBA[1] = np.nan
    with_others = Q_NBA.copy()
    # This value changes the deviation, but neither the mean nor the range.
    with_others[1] = Q_NBA[[0, 2]].mean(axis=0)
    said, other = lies(name, q_NBA, usable=usable)[3:], lies(name, with_others)[3:]
    if name in ("noise", "stealthy"):
        wider = (3 / 2) ** 0.5
        shared = Q_NBA[3:] if name == "noise" else with_others[1]
        other = shared + wider * (other - shared)
    close(said, other)


def test_without_honest_answers_attacks_that_need_them_are_not_finite() -> None:
    q_NBA = Q_NBA.copy()
    q_NBA[:3] = np.nan
    usable = np.arange(5) >= 3
    for name in ("noise", "collude", "stealthy"):
        assert not np.isfinite(lies(name, q_NBA, usable=usable)[3:]).any()
    assert (lies("huge", q_NBA, usable=usable)[3:] == HUGE).all()


def test_some_honest_agent_is_as_far_from_the_mean_as_a_stealthy_attacker() -> None:
    q_NBA = np.random.default_rng(0).standard_normal((7, 100, 4)) ** 3
    said, mean_BA = lies("stealthy", q_NBA, attackers=1)[6], q_NBA[:6].mean(axis=0)
    farthest = abs(q_NBA[:6] - mean_BA).max(axis=0)
    assert (abs(said - mean_BA) <= farthest + 1e-12).all()


def test_stealth_and_noise_change_which_of_two_actions_is_better() -> None:
    """The honest agents differ from each other by more than the two actions do."""
    q_NBA = 20 * np.random.default_rng(1).standard_normal((5, 200, 1)) + np.array([0.0, 1.0])
    honest = q_NBA[:4].mean(axis=0).argmax(axis=1)
    stealthy = lies("stealthy", q_NBA, attackers=1).mean(axis=0).argmax(axis=1)
    assert (stealthy != honest).mean() > 0.9
    noisy = lies("noise", q_NBA, attackers=1).mean(axis=0).argmax(axis=1)
    assert 0.35 < (noisy != honest).mean() < 0.65


def test_noise_is_normal_and_uncorrelated() -> None:
    drawn_ENBA = np.stack([normals(np.empty((5, 128, 4)), exchange) for exchange in range(32)])
    assert abs(drawn_ENBA.mean()) < 0.05
    assert abs(drawn_ENBA.std() - 1) < 0.05
    inside = [(abs(drawn_ENBA) < z).mean() for z in (0.6745, 1.96)]
    close(inside, [0.5, 0.95], atol=0.02)
    for axis in range(4):  # over exchanges, agents, states and actions
        ahead = np.moveaxis(drawn_ENBA, axis, 0)
        assert abs(np.corrcoef(ahead[:-1].ravel(), ahead[1:].ravel())[0, 1]) < 0.05
