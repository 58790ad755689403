"""References in stable-baselines3 and PyTorch, for given weights and batches."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch.nn import functional

from fedhql.agents.dqn.network import Network

Floats = NDArray[np.float32]
ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}


class DoubleDQN(DQN):
    """Double DQN (van Hasselt), which stable-baselines3 lacks; only the target differs."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        for _ in range(gradient_steps):
            assert self.replay_buffer is not None
            batch = self.replay_buffer.sample(batch_size)
            with torch.no_grad():
                choice = self.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
                best = self.q_net_target(batch.next_observations).gather(1, choice)
                wanted = batch.rewards + (1 - batch.dones) * self.gamma * best
            loss = functional.smooth_l1_loss(
                self.q_net(batch.observations).gather(1, batch.actions), wanted
            )
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.logger.record("train/loss", loss.item())


class _Spaces(gym.Env[Any, Any]):
    """An environment that provides spaces to stable-baselines3 and is never stepped."""

    def __init__(self, network: Network) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (network.inputs,), np.float32)
        self.action_space = spaces.Discrete(network.outputs)


def sb3_dqn(
    network: Network,
    parameters_P: Floats,
    *,
    double: bool = False,
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam,
    optimizer_kwargs: dict[str, Any] | None = None,
    **settings: Any,
) -> DQN:
    """Return stable-baselines3's DQN with our weights in both of its networks."""
    torch.set_num_threads(1)
    model = (DoubleDQN if double else DQN)(
        "MlpPolicy",
        _Spaces(network),
        buffer_size=1,
        policy_kwargs={
            "net_arch": list(network.hidden),
            "activation_fn": ACTIVATIONS[network.activation],
            "optimizer_class": optimizer,
            "optimizer_kwargs": optimizer_kwargs or {},
        },
        device="cpu",
        **settings,
    )
    model.set_logger(configure(format_strings=[]))
    for q_network in (model.q_net, model.q_net_target):
        put(q_network, network, parameters_P)
    return model


def sb3_train(model: DQN, rows_BR: Floats) -> float:
    """Take one step of SB3's own `train` on a batch of ours. Return the loss."""
    samples = _samples(rows_BR)
    assert model.replay_buffer is not None
    model.replay_buffer.sample = lambda *_, **__: samples  # type: ignore[method-assign]
    model.train(gradient_steps=1, batch_size=len(rows_BR))
    return float(model.logger.name_to_value["train/loss"])


def torch_improve(
    network: Network,
    parameters_P: Floats,
    rounds: Sequence[tuple[Floats, NDArray[np.int64], Floats]],
    *,
    steps: int,
    learning_rate: float,
    max_grad_norm: float,
    kind: type[torch.optim.Optimizer] = torch.optim.Adam,
) -> Floats:
    """Run Algorithm 1.b over several (states, actions, targets) with one optimiser."""
    module = torch_module(network)
    put(module, network, parameters_P)
    optimiser = kind(module.parameters(), lr=learning_rate)  # type: ignore[call-arg]  # all take it
    for states, actions, targets in rounds:
        for _ in range(steps):
            q_BA = module(torch.as_tensor(states))
            chosen = q_BA.gather(1, torch.as_tensor(actions)[:, None])[:, 0]
            optimiser.zero_grad()
            loss = functional.mse_loss(chosen, torch.as_tensor(targets))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
            optimiser.step()
    return weights(module)


def put(module: torch.nn.Module, network: Network, parameters_P: Floats) -> None:
    """Copy our vector into a torch network, whose weights are (out, in)."""
    parameters = iter(module.parameters())
    with torch.no_grad():
        for layer_weights, biases in network.unpack(np.asarray(parameters_P)):
            next(parameters).copy_(torch.tensor(layer_weights.T))
            next(parameters).copy_(torch.tensor(biases))


def weights(module: torch.nn.Module) -> Floats:
    """Return a torch network's weights as our vector, the inverse of `put`."""
    parts = [parameter.detach().numpy().T.ravel() for parameter in module.parameters()]
    return np.concatenate(parts)


def torch_module(network: Network) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in pairwise((network.inputs, *network.hidden, network.outputs)):
        layers += [torch.nn.Linear(fan_in, fan_out), ACTIVATIONS[network.activation]()]
    return torch.nn.Sequential(*layers[:-1])


def _samples(rows_BR: Floats) -> ReplayBufferSamples:
    D = (rows_BR.shape[1] - 3) // 2
    rows = torch.tensor(rows_BR)
    return ReplayBufferSamples(
        observations=rows[:, :D],
        actions=rows[:, 2 * D, None].long(),
        next_observations=rows[:, D : 2 * D],
        dones=rows[:, 2 * D + 2, None],
        rewards=rows[:, 2 * D + 1, None],
    )
