"""Encode observations of any space as rows of numbers, as stable-baselines3's MlpPolicy does."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fedhql.contract import States


class Encoder:
    """Encodes Discrete observations as one-hot rows and flattens arrays."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._discrete = space if isinstance(space, spaces.Discrete) else None
        self.size = spaces.flatdim(space)

    def one(self, observation: Any) -> NDArray[np.float32]:
        """Encode one observation: (*obs) -> (D,)."""
        if self._discrete is None:
            return np.asarray(observation, dtype=np.float32).ravel()
        return self.batch(np.array([observation]))[0]

    def batch(self, states: States) -> NDArray[np.float32]:
        """Encode a batch: (B, *obs) -> (B, D)."""
        if self._discrete is None:
            return np.asarray(states, dtype=np.float32).reshape(len(states), -1)
        values = np.arange(self.size) + int(self._discrete.start)
        return (np.asarray(states).reshape(-1, 1) == values).astype("f4")
