"""A DQN in plain PyTorch that knows nothing of fedhql: what an owner may bring to a federation.

    fedhql join HOST:PORT --agent torch_agent:TorchAgent --as NAME

from this folder. `self_learn`, `q_values` and `improve` make it an agent; with `save` and `restore`
it goes on after its process was killed.
"""

import copy
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class TorchAgent:
    """Double DQN with tanh units, a soft target network and the Huber loss, on CartPole."""

    def __init__(
        self,
        seed: int,
        hidden: int = 48,
        learning_rate: float = 1e-3,
        discount: float = 0.99,
        batch_size: int = 64,
        replay_capacity: int = 20_000,
        train_every: int = 4,
        target_mixing: float = 0.01,
        first_epsilon: float = 1.0,
        final_epsilon: float = 0.05,
        annealing_env_steps: int = 3_000,
        improvement_steps: int = 16,
        improvement_learning_rate: float = 5e-4,
    ) -> None:
        self.discount, self.batch_size, self.train_every = discount, batch_size, train_every
        self.target_mixing, self.improvement_steps = target_mixing, improvement_steps
        self.first_epsilon, self.final_epsilon = first_epsilon, final_epsilon
        self.annealing_env_steps = annealing_env_steps
        self.rng = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):  # others' draws in this process stay as they are
            torch.manual_seed(seed)
            self.network = nn.Sequential(
                nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                nn.Linear(hidden, 2),
            )  # fmt: skip
        self.target_network = copy.deepcopy(self.network)
        parameters = list(self.network.parameters())
        self.optimiser = torch.optim.Adam(parameters, learning_rate)
        self.improver = torch.optim.Adam(parameters, improvement_learning_rate)
        self.replay: dict[str, NDArray[Any]] = {
            "states": np.empty((replay_capacity, 4), np.float32),
            "actions": np.empty(replay_capacity, np.int64),
            "rewards": np.empty(replay_capacity, np.float32),
            "next_states": np.empty((replay_capacity, 4), np.float32),
            "terminated": np.empty(replay_capacity, np.bool_),
        }
        self.env_steps = 0
        self.env: gym.Env[NDArray[np.float32], Any] = gym.make("CartPole-v1")
        self.episode_actions: list[int] = []
        self._begin_episode(self._drawn_seed())

    # The contract

    def self_learn(self, env_steps: int) -> None:
        for _ in range(env_steps):
            self._step()
            if self.env_steps >= self.batch_size and self.env_steps % self.train_every == 0:
                self._train()

    def q_values(self, states: NDArray[Any]) -> NDArray[np.float32]:
        with torch.no_grad():
            values: NDArray[np.float32] = self.network(torch.as_tensor(states)).numpy()
        return values

    def improve(
        self, states: NDArray[Any], actions: NDArray[np.int64], targets: NDArray[np.float32]
    ) -> None:
        batch = torch.as_tensor(states), torch.as_tensor(actions), torch.as_tensor(targets)
        for _ in range(self.improvement_steps):
            self._descend(self.improver, *batch)

    def save(self, directory: Path) -> None:
        learned = {
            "network": self.network.state_dict(),
            "target_network": self.target_network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "improver": self.improver.state_dict(),
        }
        torch.save(learned, directory / "learned.pt")
        used = min(self.env_steps, len(self.replay["actions"]))
        columns = {name: column[:used] for name, column in self.replay.items()}
        np.savez(directory / "replay.npz", allow_pickle=False, **columns)
        position = {
            "env_steps": self.env_steps,
            "rng": self.rng.bit_generator.state,
            "episode": [self.episode_seed, self.episode_actions],
        }
        (directory / "position.json").write_text(json.dumps(position))

    def restore(self, directory: Path) -> None:
        learned = torch.load(directory / "learned.pt", weights_only=True)
        for name, state in learned.items():
            getattr(self, name).load_state_dict(state)
        with np.load(directory / "replay.npz") as columns:
            for name, column in columns.items():
                self.replay[name][: len(column)] = column
        position = json.loads((directory / "position.json").read_text())
        self.env_steps = position["env_steps"]
        self.rng.bit_generator.state = position["rng"]
        # An episode is its seed and the actions since.
        seed, actions = position["episode"]
        self._begin_episode(seed)
        for action in actions:
            self.state = self.env.step(action)[0]
        self.episode_actions = actions

    # How it learns, which is nobody's business

    def _drawn_seed(self) -> int:
        return int(self.rng.integers(2**31))

    def _begin_episode(self, seed: int) -> None:
        self.episode_seed, self.episode_actions = seed, []
        self.state, _ = self.env.reset(seed=seed)

    def _step(self) -> None:
        annealed = min(1.0, self.env_steps / self.annealing_env_steps)
        epsilon = self.first_epsilon + annealed * (self.final_epsilon - self.first_epsilon)
        if self.rng.random() < epsilon:
            action = int(self.rng.integers(2))
        else:
            action = int(self.q_values(self.state[None]).argmax())
        next_state, reward, terminated, truncated, _ = self.env.step(action)
        row = self.env_steps % len(self.replay["actions"])
        seen = (self.state, action, reward, next_state, terminated)
        for column, value in zip(self.replay.values(), seen, strict=True):
            column[row] = value
        self.env_steps += 1
        if terminated or truncated:
            self._begin_episode(self._drawn_seed())
        else:
            self.state = next_state
            self.episode_actions.append(action)

    def _train(self) -> None:
        stored = min(self.env_steps, len(self.replay["actions"]))
        rows = self.rng.integers(stored, size=self.batch_size)
        states, actions, rewards, next_states, terminated = (
            torch.as_tensor(column[rows]) for column in self.replay.values()
        )
        with torch.no_grad():
            best = self.network(next_states).argmax(dim=1, keepdim=True)
            future = self.target_network(next_states).gather(1, best).squeeze(1)
        future[terminated] = 0.0
        self._descend(self.optimiser, states, actions, rewards + self.discount * future)
        with torch.no_grad():
            pairs = zip(self.target_network.parameters(), self.network.parameters(), strict=True)
            for target, online in pairs:
                target.lerp_(online, self.target_mixing)

    def _descend(
        self, optimiser: torch.optim.Optimizer, states: Tensor, actions: Tensor, targets: Tensor
    ) -> None:
        predicted = self.network(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(predicted, targets)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(self.network.parameters(), max_norm=10.0)
        optimiser.step()
