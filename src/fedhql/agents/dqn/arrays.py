"""Trees of arrays to and from files, exactly; of a replay memory only what is filled."""

from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedhql.agents.dqn.experience import Experience
from fedhql.errors import AgentRefused

Tree = TypeVar("Tree", bound=Any)


def save_arrays(stem: Path, tree: Any) -> None:
    """`stem`.0.npy, `stem`.1.npy, ... in the tree's own order."""
    for number, leaf in enumerate(jax.tree.leaves(tree)):
        np.save(stem.with_name(f"{stem.name}.{number}.npy"), np.asarray(leaf))


def load_arrays(stem: Path, like: Tree) -> Tree:
    """Into a tree of the same structure."""
    leaves, structure = jax.tree.flatten(like)
    files = [stem.with_name(f"{stem.name}.{number}.npy") for number in range(len(leaves))]
    if missing := [file for file in files if not file.exists()]:
        raise AgentRefused(
            f"{missing[0]} is missing: the checkpoint was made with other settings of the agent; "
            "give it the same settings, or begin in another directory"
        )
    loaded = [jnp.array(np.load(file)) for file in files]
    tree: Tree = jax.tree.unflatten(structure, loaded)
    return tree


def save_experience(directory: Path, experience: Experience) -> None:
    filled = min(int(experience.env_steps), experience.replay.shape[1])
    np.save(directory / "replay.npy", np.asarray(experience.replay)[:, :filled])
    save_arrays(directory / "experience", _but_replay(experience))


def load_experience(directory: Path, like: Experience) -> Experience:
    """The memory is filled in NumPy, so that no second one of its size is made on a device."""
    replay = np.zeros(like.replay.shape, dtype=np.float32)
    saved = np.load(directory / "replay.npy", mmap_mode="r")
    replay[:, : saved.shape[1]] = saved
    rest = load_arrays(directory / "experience", _but_replay(like))
    return rest._replace(replay=jnp.asarray(replay))


def _but_replay(experience: Experience) -> Experience:
    return experience._replace(replay=jnp.zeros(0))
