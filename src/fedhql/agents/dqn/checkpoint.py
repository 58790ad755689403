"""Save and load trees of arrays exactly; of a replay memory, only the filled part."""

import glob
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path
from numpy.typing import NDArray

from fedhql.agents.dqn.experience import Experience
from fedhql.errors import AgentRefused

Tree = TypeVar("Tree", bound=Any)


def save_arrays(stem: Path, tree: Any) -> None:
    """Write every leaf to a file named after its path in the tree: `stem`.parameters.npy, ..."""
    for file, leaf in _files(stem, tree).items():
        np.save(file, np.asarray(leaf))


def load_arrays(stem: Path, like: Tree, *, any_shape: bool = False) -> Tree:
    """Read a tree of the same structure and shapes as `like`; with `any_shape`, of any shapes.

    Raise AgentRefused if the checkpoint holds another tree.
    """
    files = _files(stem, like)
    if stem.with_name(f"{stem.name}.0.npy").exists():
        raise AgentRefused(
            f"{stem.parent} is a checkpoint of fedhql 0.1, which named arrays by number; "
            "finish the run with that version, or begin in another directory"
        )
    saved = {file: np.load(file) for file in stem.parent.glob(f"{glob.escape(stem.name)}.*.npy")}
    for file in sorted({*files, *saved}):
        if file not in files or file not in saved:
            what = "missing" if file in files else "not expected"
        elif not any_shape and saved[file].shape != np.shape(files[file]):
            what = f"of shape {saved[file].shape}, expected {np.shape(files[file])}"
        else:
            continue
        raise AgentRefused(
            f"{file} is {what}: the checkpoint was made with other settings of the agent; give it "
            "the same settings, or begin in another directory"
        )
    loaded = [jnp.array(saved[file]) for file in files]
    return jax.tree.unflatten(jax.tree.structure(like), loaded)


def _files(stem: Path, tree: Any) -> dict[Path, Any]:
    leaves, _ = tree_flatten_with_path(tree)
    names = (keystr(path, simple=True, separator=".") for path, _ in leaves)
    files = (stem.with_name(f"{stem.name}.{name}.npy") for name in names)
    return dict(zip(files, (leaf for _, leaf in leaves), strict=True))


def save_experience(directory: Path, experience: Experience) -> None:
    """Write an experience. Of a device's replay memories, the host holds one at a time."""
    L, capacity, R = experience.replay.shape
    filled = min(int(experience.env_steps), capacity)
    replay: Any = experience.replay
    if all(device.platform == "cpu" for device in experience.replay.devices()):
        replay = np.asarray(replay)  # a view
    header = {"descr": "<f4", "fortran_order": False, "shape": (L, filled, R)}
    with (directory / "replay.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for lane in range(L):
            file.write(filled_rows(replay, lane, filled).data)
    save_arrays(directory / "experience", _but_replay(experience))


def filled_rows(replay: Any, lane: int, filled: int) -> NDArray[np.float32]:
    """Return a lane's first `filled` rows; a device sends no others."""
    if isinstance(replay, np.ndarray):
        return np.ascontiguousarray(replay[lane, :filled])
    sizes = (1, filled, replay.shape[2])
    return np.ascontiguousarray(jax.lax.dynamic_slice(replay, (lane, 0, 0), sizes)[0])


def load_experience(directory: Path, like: Experience) -> Experience:
    """Read an experience of the shape of `like`, whose replay memory is deleted.

    The replay memory is filled in NumPy, so that the device never holds two of them.
    """
    rest = load_arrays(directory / "experience", _but_replay(like))
    replay = np.zeros(like.replay.shape, dtype=np.float32)
    saved = np.load(directory / "replay.npy", mmap_mode="r")
    replay[:, : saved.shape[1]] = saved
    like.replay.delete()
    return rest._replace(replay=jnp.asarray(replay))


def _but_replay(experience: Experience) -> Experience:
    return experience._replace(replay=jnp.zeros(0))
