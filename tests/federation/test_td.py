"""FedTD, compared with hand-computed numbers and by its properties."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhql.federation import fed_td


@st.composite
def transitions(draw: st.DrawFn) -> dict[str, Any]:
    B, A = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    numbers = st.floats(-100, 100, width=32)
    return {
        "q_selected": draw(hnp.arrays(np.float32, B, elements=numbers)),
        "rewards": draw(hnp.arrays(np.float32, B, elements=numbers)),
        "next_q_mean": draw(hnp.arrays(np.float32, (B, A), elements=numbers)),
        "terminated": draw(hnp.arrays(np.bool_, B)),
    }


def test_targets_equal_hand_computed_numbers() -> None:
    targets = fed_td(
        np.array([10.0, 10.0, -4.0]),
        np.array([1.0, 1.0, 0.0]),
        np.array([[5.0, 20.0], [5.0, 20.0], [-2.0, -8.0]]),
        np.array([False, True, False]),
        learning_rate=0.25,
        discount=0.5,
    )
    # 10 + ¼(1 + ½·20 - 10), 10 + ¼(1 - 10), -4 + ¼(0 + ½·(-2) + 4)
    np.testing.assert_allclose(targets, [10.25, 7.75, -3.25], rtol=1e-15)


@given(transitions())
def test_learning_rate_one_gives_the_td_target_without_future_after_terminal_states(t: Any) -> None:
    targets = fed_td(**t, learning_rate=1.0, discount=0.9)
    future = np.where(t["terminated"], 0, t["next_q_mean"].max(axis=1))
    np.testing.assert_allclose(targets, t["rewards"] + 0.9 * future, rtol=1e-4, atol=1e-3)


def test_answers_at_terminal_states_do_not_enter_the_targets() -> None:
    targets = fed_td(
        np.zeros(1),
        np.ones(1),
        np.array([[np.inf, np.nan]]),
        np.array([True]),
        learning_rate=1.0,
        discount=0.9,
    )
    np.testing.assert_array_equal(targets, [1.0])


@given(transitions(), st.floats(0.01, 1))
def test_batch_rows_are_independent(t: Any, rate: float) -> None:
    whole = fed_td(**t, learning_rate=rate, discount=0.99)
    for b in range(len(whole)):
        row = {name: array[b : b + 1] for name, array in t.items()}
        assert fed_td(**row, learning_rate=rate, discount=0.99)[0] == whole[b]


@given(transitions(), st.floats(0.01, 1))
def test_numpy_and_jax_agree(t: Any, rate: float) -> None:
    ours = fed_td(**t, learning_rate=rate, discount=0.99)
    in_jax = {name: jnp.asarray(array) for name, array in t.items()}
    theirs = fed_td(**in_jax, learning_rate=rate, discount=0.99)
    assert ours.dtype == np.float32
    assert isinstance(theirs, jnp.ndarray)
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-4, atol=1e-3)


def test_wrong_shapes_raise_an_error_that_names_them() -> None:
    with pytest.raises(ValueError, match=r"next_q_mean \(B, A\)"):
        fed_td(np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2), learning_rate=0.1, discount=0.9)
