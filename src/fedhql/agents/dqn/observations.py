"""Observations of any space as rows of numbers, as stable-baselines3's MlpPolicy sees them."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fedhql.contract import States


class Encoder:
    """Discrete observations one-hot, arrays flattened."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._discrete = space if isinstance(space, spaces.Discrete) else None
        self.size = spaces.flatdim(space)

    def one(self, observation: Any) -> NDArray[np.float32]:
        """(*obs) -> (D,)."""
        if self._discrete is None:
            row: NDArray[np.float32] = np.asarray(observation, dtype=np.float32).ravel()
            return row
        first: NDArray[np.float32] = self.batch(np.array([observation]))[0]
        return first

    def batch(self, states: States) -> NDArray[np.float32]:
        """(B, *obs) -> (B, D)."""
        if self._discrete is None:
            return np.asarray(states, dtype=np.float32).reshape(len(states), -1)
        places = np.arange(self.size) + int(self._discrete.start)
        one_hot: NDArray[np.float32] = (np.asarray(states).reshape(-1, 1) == places).astype("f4")
        return one_hot
