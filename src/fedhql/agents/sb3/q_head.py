"""Action values for a policy that has none: its critic's V(s) and a private network for A(s, a)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.torch_layers import create_mlp
from torch.nn import functional

from fedhql.agents.randomness import PrivateStreams
from fedhql.agents.sb3.private_model import ACTIVATIONS
from fedhql.agents.sb3.regression import regress, take_step
from fedhql.agents.sb3.settings import RolloutSettings
from fedhql.contract import Actions, Values

MEMORY = ("features", "actions", "advantages")


class QHead:
    """Q(s, a) = V(s) + A(s, a): A is learned from the advantages in the policy's last rollouts.

    V comes from the policy's critic and is only read. The network of A has its own weights,
    optimisers, memory and randomness, so self-learning is the same with and without it.
    """

    def __init__(
        self, inputs: int, actions: int, settings: RolloutSettings, device: torch.device, seed: int
    ) -> None:
        self._settings = settings
        with PrivateStreams(seed):
            layers = create_mlp(
                inputs, actions, list(settings.q_hidden), ACTIVATIONS[settings.q_activation]
            )
        self.network = torch.nn.Sequential(*layers).to(device)
        self.learner = torch.optim.Adam(self.network.parameters(), lr=settings.q_learning_rate)
        self.improver: torch.optim.Optimizer = getattr(torch.optim, settings.improvement_optimiser)(
            self.network.parameters(), lr=settings.improvement_learning_rate
        )
        self._rng = np.random.default_rng(seed)
        self._features = torch.zeros((0, inputs), device=device)
        self._actions = torch.zeros((0, 1), dtype=torch.int64, device=device)
        self._advantages = torch.zeros((0, 1), device=device)
        self.loss = 0.0  # the mean over the last rollout's gradient steps

    @torch.no_grad()
    def values(self, features: torch.Tensor, critic_B1: torch.Tensor) -> torch.Tensor:
        """Return Q(s, a) of every action from V(s): (B, inputs), (B, 1) -> (B, A)."""
        return critic_B1 + self.network(features)

    def learn(
        self, features: torch.Tensor, actions: NDArray[Any], advantages: NDArray[np.float32]
    ) -> None:
        """Remember a rollout; take gradient steps on batches of all that is remembered."""
        settings = self._settings
        device = features.device
        new_actions = torch.as_tensor(actions.astype(np.int64), device=device).reshape(-1, 1)
        new_advantages = torch.as_tensor(advantages, device=device).reshape(-1, 1)
        last = slice(-settings.q_memory, None)
        self._features = torch.cat([self._features, features])[last]
        self._actions = torch.cat([self._actions, new_actions])[last]
        self._advantages = torch.cat([self._advantages, new_advantages])[last]
        losses = []
        for _ in range(settings.q_epochs * -(-len(features) // settings.q_batch_size)):
            rows = torch.as_tensor(
                self._rng.integers(len(self._features), size=settings.q_batch_size), device=device
            )
            chosen = self.network(self._features[rows]).gather(1, self._actions[rows])
            loss = functional.mse_loss(chosen, self._advantages[rows])
            take_step(self.learner, loss, settings.q_max_grad_norm)
            losses.append(float(loss.detach()))
        self.loss = float(np.mean(losses))

    def improve(
        self, features: torch.Tensor, critic_B1: torch.Tensor, actions: Actions, targets: Values
    ) -> None:
        """Regress Q(s, a) towards federated targets. V(s) stays, so A moves."""
        actions_t = torch.as_tensor(actions, device=features.device).reshape(-1, 1)
        regress(
            lambda: critic_B1 + self.network(features).gather(1, actions_t),
            targets,
            self.improver,
            self._settings,
        )

    def save(self, directory: Path) -> dict[str, Any]:
        """Write what is remembered; return the rest of the state, which fits into JSON."""
        arrays = {name: getattr(self, f"_{name}").cpu().numpy() for name in MEMORY}
        np.savez(directory / "q_memory.npz", allow_pickle=False, **arrays)
        return {"rng": self._rng.bit_generator.state, "loss": self.loss}

    def restore(self, directory: Path, state: dict[str, Any]) -> None:
        with np.load(directory / "q_memory.npz") as arrays:
            for name in MEMORY:
                device = self._features.device
                setattr(self, f"_{name}", torch.as_tensor(arrays[name], device=device))
        self._rng.bit_generator.state, self.loss = state["rng"], state["loss"]

    def export(self, file: Path) -> None:
        """Write the network, for `load_advantage_network`."""
        with file.open("wb") as opened:
            torch.save(
                {"activation": self._settings.q_activation, "state": self.network.state_dict()},
                opened,
            )


def load_advantage_network(file: Path) -> torch.nn.Module:
    """Return the network of A(s, a) of an exported head, on the CPU."""
    saved = torch.load(file, weights_only=True, map_location="cpu")
    weights: Sequence[torch.Tensor] = [of for name, of in saved["state"].items() if of.ndim == 2]
    outputs, hidden = len(weights[-1]), [len(each) for each in weights[:-1]]
    layers = create_mlp(weights[0].shape[1], outputs, hidden, ACTIVATIONS[saved["activation"]])
    network = torch.nn.Sequential(*layers)
    network.load_state_dict(saved["state"])
    return network
