from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.agents.dqn.checkpoint import filled_rows, load_experience, save_experience
from fedhql.agents.dqn.experience import Experience, new_experience
from fedhql.environments.lanes import TwinLanes
from fedhql.environments.twins import TWINS

CAPACITY = 6


def experience(env_steps: int) -> Experience:
    """Return the experience of three lanes; all rows of their memories are different."""
    lanes = TwinLanes(TWINS["CartPole-v1"])
    seeds = np.arange(3, dtype=np.uint32)
    new = new_experience(lanes, seeds, CAPACITY, counting=False)
    rows = jnp.arange(new.replay.size, dtype=jnp.float32).reshape(new.replay.shape)
    return new._replace(replay=rows, env_steps=jnp.int32(env_steps))


@pytest.mark.parametrize(("env_steps", "filled"), [(0, 0), (4, 4), (9, CAPACITY)])
def test_the_filled_part_of_memories_is_saved_as_numpy_does(
    env_steps: int, filled: int, tmp_path: Path
) -> None:
    before = experience(env_steps)
    save_experience(tmp_path, before)
    np.save(tmp_path / "expected.npy", np.asarray(before.replay)[:, :filled])
    assert (tmp_path / "replay.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    like = experience(0)
    after = load_experience(tmp_path, like)
    np.testing.assert_array_equal(after.replay[:, :filled], before.replay[:, :filled])
    assert not after.replay[:, filled:].any()
    assert int(after.env_steps) == env_steps


def test_a_device_sends_the_filled_rows_of_a_lane() -> None:
    replay = experience(4).replay
    for lane, filled in ((0, 0), (2, 4), (1, CAPACITY)):
        sent = filled_rows(replay, lane, filled)
        assert sent.data.c_contiguous
        np.testing.assert_array_equal(sent, np.asarray(replay)[lane, :filled])


def test_a_device_never_holds_two_memories(tmp_path: Path) -> None:
    save_experience(tmp_path, experience(4))
    like = experience(0)
    load_experience(tmp_path, like)
    assert like.replay.is_deleted()
