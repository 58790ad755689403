"""The regression of an improvement: κ gradient steps towards federated targets (Algorithm 1.b)."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from fedhql.agents.dqn.config import MOST_SCALE
from fedhql.contract import Values


class ImprovementSettings(Protocol):
    """The settings of an improvement; `kind_settings` explains them."""

    @property
    def improvement_steps(self) -> int: ...
    @property
    def improvement_learning_rate(self) -> float: ...
    @property
    def improvement_value_unit(self) -> float: ...
    @property
    def improvement_max_grad_norm(self) -> float: ...


def regress(
    estimates: Callable[[], torch.Tensor],
    targets: Values,
    optimiser: torch.optim.Optimizer,
    settings: ImprovementSettings,
) -> None:
    """Take gradient steps on the squared error of T estimates (B, T) of each target (B,)."""
    parameters = [each for group in optimiser.param_groups for each in group["params"]]
    targets_B1 = torch.as_tensor(targets, device=parameters[0].device).reshape(-1, 1)
    scale = float(targets_B1.abs().mean()) / settings.improvement_value_unit
    for group in optimiser.param_groups:
        group["lr"] = settings.improvement_learning_rate * min(max(scale, 1), MOST_SCALE)
    for _ in range(settings.improvement_steps):
        estimates_BT = estimates()
        loss = functional.mse_loss(estimates_BT, targets_B1.expand_as(estimates_BT))
        take_step(optimiser, loss, settings.improvement_max_grad_norm)


def take_step(optimiser: torch.optim.Optimizer, loss: torch.Tensor, max_grad_norm: float) -> None:
    """Take one gradient step with a clipped norm."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    parameters = [each for group in optimiser.param_groups for each in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimiser.step()
