"""Reinitialise silent units of a PyTorch network, as `fedhql.agents.dqn.revival` does in JAX."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedhql.agents.dqn.config import REMEMBERED_BROADCASTS, STATES_OF_EACH
from fedhql.contract import States


class UnitRevival:
    """Revives units of linear layers, each but the last of which is followed by an activation."""

    def __init__(self, layers: nn.Sequential, optimisers: Sequence[Optimizer]) -> None:
        self._linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self._activation = layers[1]
        self._initial = [
            (layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in self._linear
        ]
        self._optimisers = optimisers
        self._asked: deque[States] = deque(maxlen=REMEMBERED_BROADCASTS)

    def remember(self, states: States) -> None:
        """Remember states that are spread evenly over a broadcast."""
        self._asked.append(states[np.arange(STATES_OF_EACH) * len(states) // STATES_OF_EACH])

    @torch.no_grad()
    def revive(self, as_features: Callable[[States], Tensor]) -> None:
        """Reinitialise units that are silent at all remembered states, once there are enough."""
        if len(self._asked) < REMEMBERED_BROADCASTS:
            return
        below = as_features(np.concatenate(self._asked))
        hidden = zip(self._linear, self._linear[1:], self._initial, strict=False)
        for layer, reader, (weight, bias) in hidden:
            silent = ~self._activation(layer(below)).any(dim=0)
            awake = self._activation(nn.functional.linear(below, weight, bias)).any(dim=0)
            sign = torch.where(awake, 1.0, -1.0)
            self._set(layer.weight, silent[:, None], sign[:, None] * weight)
            self._set(layer.bias, silent, sign * bias)
            self._set(reader.weight, silent, torch.zeros_like(reader.weight))
            below = self._activation(layer(below))

    def _set(self, parameter: Tensor, where: Tensor, value: Tensor) -> None:
        """Set a parameter where `where` holds, and clear the optimisers' moments there."""
        parameter.copy_(torch.where(where, value, parameter))
        for optimiser in self._optimisers:
            for moment in optimiser.state.get(parameter, {}).values():
                if isinstance(moment, Tensor) and moment.shape == parameter.shape:
                    moment.masked_fill_(where, 0)

    def save(self, file: Path) -> None:
        """Write a file, whose name must end in .npz."""
        arrays = {"asked": np.array(self._asked)}
        for number, (weight, bias) in enumerate(self._initial):
            arrays |= {f"weight{number}": weight.cpu().numpy(), f"bias{number}": bias.cpu().numpy()}
        np.savez(file, allow_pickle=False, **arrays)

    def restore(self, file: Path) -> None:
        with np.load(file) as arrays:
            self._asked = deque(arrays["asked"], maxlen=REMEMBERED_BROADCASTS)
            for number, (weight, bias) in enumerate(self._initial):
                weight.copy_(torch.as_tensor(arrays[f"weight{number}"]))
                bias.copy_(torch.as_tensor(arrays[f"bias{number}"]))
