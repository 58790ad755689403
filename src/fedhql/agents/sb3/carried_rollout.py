"""A rollout that goes on where the last phase of self-learning has left it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer

COLUMNS = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs")


class CarriedRollout(RolloutBuffer):
    """SB3's buffer, filled by any number of calls of `collect_rollouts`.

    `collect_rollouts` resets its buffer first and computes returns last. Here both wait until the
    rollout is full, so a phase may end inside a rollout.
    """

    def reset(self) -> None:
        if self.full or self.pos == 0:
            super().reset()

    def compute_returns_and_advantage(
        self, last_values: torch.Tensor, dones: NDArray[np.bool_]
    ) -> None:
        if self.full:
            super().compute_returns_and_advantage(last_values, dones)

    @property
    def missing(self) -> int:
        """The env steps until the rollout is full."""
        return self.buffer_size - self.pos

    def collected(self) -> dict[str, NDArray[Any]]:
        """Return the part of an unfinished rollout that is there."""
        return {name: getattr(self, name)[: self.pos] for name in COLUMNS}

    def go_on_from(self, collected: dict[str, NDArray[Any]]) -> None:
        """Take over the part of a rollout that `collected` has returned."""
        super().reset()
        for name in COLUMNS:
            getattr(self, name)[: len(collected[name])] = collected[name]
        self.pos = len(collected["rewards"])
