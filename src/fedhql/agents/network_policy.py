"""The network of an agent in files, read and asked with NumPy alone.

`network.json` names the hidden layers and the activation. `parameters.npz` holds weights0 (in,
out), biases0 (out,), weights1, and so on. A class of your own whose `export` writes these files can
be part of an exported policy.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import States, Values
from fedhql.errors import AgentRefused

NETWORK, PARAMETERS = "network.json", "parameters.npz"
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}
Layer = tuple[NDArray[Any], NDArray[Any]]  # weights (in, out) and biases (out,)


def is_network(directory: Path) -> bool:
    """Return whether the directory holds a network that `load_network` can read."""
    return (directory / NETWORK).exists() and (directory / PARAMETERS).exists()


def write_network(directory: Path, layers: Sequence[Layer], activation: str) -> None:
    """Write a fully connected network into an existing directory, for `export` of an agent.

    `layers` are pairs of weights (in, out) and biases (out,), from the states to the values. The
    first layer takes states flattened to rows, one-hot if observations are Discrete. `activation`
    is "relu" or "tanh"; it follows every layer but the last.
    """
    arrays: dict[str, Any] = {}
    for number, (weights, biases) in enumerate(layers):
        arrays |= {f"weights{number}": weights, f"biases{number}": biases}
    np.savez(directory / PARAMETERS, allow_pickle=False, **arrays)
    shape = {"hidden": [len(biases) for _, biases in layers[:-1]], "activation": activation}
    (directory / NETWORK).write_text(json.dumps(shape) + "\n")


def copy_network(source: Path, target: Path) -> None:
    """Copy the network into a new directory, and nothing else that its owner keeps beside it."""
    target.mkdir()
    for name in (NETWORK, PARAMETERS):
        shutil.copyfile(source / name, target / name)


def load_network(directory: Path, first_observation: int | None) -> Callable[[States], Values]:
    """Return q_values of an exported network: states (B, *obs) -> (B, A).

    `first_observation` is the lowest observation of a Discrete space; None if observations are
    arrays. Raise AgentRefused if the activation is unknown.
    """
    activation = json.loads((directory / NETWORK).read_text())["activation"]
    if activation not in ACTIVATIONS:
        allowed = ", ".join(ACTIVATIONS)
        raise AgentRefused(
            f"{directory / NETWORK}: activation {activation!r} is unknown; allowed: {allowed}"
        )
    activate = ACTIVATIONS[activation]
    with np.load(directory / PARAMETERS) as arrays:
        count = len(arrays.files) // 2
        layers = [(arrays[f"weights{n}"], arrays[f"biases{n}"]) for n in range(count)]
    *hidden, (last_weights, last_biases) = layers
    D = len(layers[0][0])

    def q_values(states: States) -> Values:
        below = _encoded(states, first_observation, D)
        for weights, biases in hidden:
            below = activate(below @ weights + biases)
        return below @ last_weights + last_biases

    return q_values


def _encoded(states: States, first_observation: int | None, D: int) -> NDArray[np.float32]:
    """Encode states (B, *obs) as rows (B, D): one-hot if the observations are Discrete."""
    if first_observation is not None:
        values = np.arange(D) + first_observation
        return (np.asarray(states).reshape(-1, 1) == values).astype(np.float32)
    rows = np.asarray(states, dtype=np.float32).reshape(len(states), -1)
    if rows.shape[1] != D:
        raise ValueError(
            f"states of shape {np.shape(states)} have {rows.shape[1]} numbers each; the network "
            f"takes a batch of states with {D} numbers each; for one state, pass state[None]"
        )
    return rows
