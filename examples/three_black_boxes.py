"""Three black boxes with nothing in common but the contract, alone and federated, on CartPole.

The FedHQL paper's motivating example in plain PyTorch: a transformer trained with Adam, a
three-layer MLP trained with SGD, and an MLP trained with SVRG. Run it with

    .venv/bin/python examples/three_black_boxes.py [--budget ENV_STEPS_PER_AGENT] [--seed SEED]

In an experiment file the agents are kind = "three_black_boxes:TransformerAgent" (SgdAgent,
SvrgAgent), found when this folder is the working directory or on PYTHONPATH. They take the file's
environment and discount.
"""

import argparse
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import fedhql
from fedhql.contract import Actions, BlackBoxAgent, States, Values

ENV_ID, DISCOUNT = "CartPole-v1", 0.97


class Regression(NamedTuple):
    """Q(states[i], actions[i]) should be targets[i]."""

    states: Tensor  # (B, F)
    actions: Tensor  # (B,)
    targets: Tensor  # (B,)


# A random batch, no larger than asked for, of a problem that stays the same during one `fit`.
Draw = Callable[[int], Regression]


def gradient(network: nn.Module, batch: Regression) -> tuple[Tensor, ...]:
    predicted = network(batch.states).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    loss = nn.functional.smooth_l1_loss(predicted, batch.targets)
    return torch.autograd.grad(loss, tuple(network.parameters()))


@dataclass
class MinibatchDescent:
    """Any torch optimiser, on minibatch gradients."""

    network: nn.Module
    optimiser: torch.optim.Optimizer

    def fit(self, draw: Draw, steps: int, batch_size: int) -> None:
        for _ in range(steps):
            self._descend(gradient(self.network, draw(batch_size)))

    def _descend(self, direction: Sequence[Tensor]) -> None:
        for parameter, slope in zip(self.network.parameters(), direction, strict=True):
            parameter.grad = slope
        nn.utils.clip_grad_norm_(self.network.parameters(), max_norm=10.0)
        self.optimiser.step()


@dataclass
class SvrgDescent(MinibatchDescent):
    """Stochastic variance-reduced gradient (Johnson & Zhang, NIPS 2013).

    A minibatch errs in much the same way at the weights and at a recent snapshot of them, so
    its error cancels in the difference; a large batch at the snapshot puts the mean back.
    """

    snapshot_every: int
    large_batch: int

    def fit(self, draw: Draw, steps: int, batch_size: int) -> None:
        for step in range(steps):
            if step % self.snapshot_every == 0:
                snapshot = copy.deepcopy(self.network)
                full = gradient(snapshot, draw(self.large_batch))
            minibatch = draw(batch_size)
            here, there = gradient(self.network, minibatch), gradient(snapshot, minibatch)
            self._descend([h - t + f for h, t, f in zip(here, there, full, strict=True)])


class FeatureTransformer(nn.Module):
    """Each feature of an observation is a token; the tokens, encoded and averaged, give Q."""

    def __init__(self, features: int, actions: int, width: int) -> None:
        super().__init__()
        self._feature = nn.Parameter(torch.randn(features, width))
        self._per_unit = nn.Parameter(torch.randn(features, width))
        self._encoder = nn.TransformerEncoderLayer(
            width, 2, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self._head = nn.Linear(width, actions)

    def forward(self, states: Tensor) -> Tensor:
        tokens = self._feature + states.unsqueeze(-1) * self._per_unit
        values: Tensor = self._head(self._encoder(tokens).mean(dim=1))
        return values


@dataclass(kw_only=True, eq=False)
class _DqnAgent(ABC):
    """DQN in phases: act a while, then fit replay, which with the target network stays fixed.

    A subclass adds the network and how it descends, which serves `improve` as well.
    """

    seed: int
    env_id: str = ENV_ID
    discount: float = DISCOUNT
    replay_capacity: int = 10_000
    phase_env_steps: int = 50
    phase_gradient_steps: int = 50
    batch_size: int = 64
    final_epsilon: float = 0.05
    annealing_env_steps: int = 2_000
    improvement_steps: int = 4
    improvement_batch_size: int = 16

    @abstractmethod
    def _learner(self, features: int, actions: int) -> MinibatchDescent: ...

    def __post_init__(self) -> None:
        seeds = np.random.SeedSequence(self.seed).generate_state(3).tolist()
        self._rng = np.random.default_rng(seeds[0])
        self._env: gym.Env[Any, Any] = gym.make(self.env_id)
        self._state, _ = self._env.reset(seed=seeds[1])
        assert isinstance(self._env.action_space, gym.spaces.Discrete)
        features, self._action_count = len(self._state), int(self._env.action_space.n)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[2])
            self._descent = self._learner(features, self._action_count)
        self._network = self._descent.network
        self._target_network = copy.deepcopy(self._network)
        states = [("state", np.float32, features), ("next_state", np.float32, features)]
        others = [("action", np.int64), ("reward", np.float32), ("terminated", np.bool_)]
        # Aligned, because torch takes no column whose rows lie at odd distances.
        self._replay = np.empty(self.replay_capacity, np.dtype([*states, *others], align=True))
        self._env_steps = 0

    def self_learn(self, env_steps: int) -> None:
        for _ in range(env_steps):
            self._act()
            if self._env_steps % self.phase_env_steps == 0:
                self._target_network.load_state_dict(self._network.state_dict())
                self._descent.fit(self._drawn_replay, self.phase_gradient_steps, self.batch_size)

    def q_values(self, states: States) -> Values:
        with torch.no_grad():
            values: Values = self._network(torch.as_tensor(states, dtype=torch.float32)).numpy()
        return values

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        inputs = torch.as_tensor(states, dtype=torch.float32)
        broadcast = Regression(inputs, torch.as_tensor(actions), torch.as_tensor(targets))

        def drawn(size: int) -> Regression:
            rows = self._rng.choice(len(actions), min(size, len(actions)), replace=False)
            return Regression(*(column[rows] for column in broadcast))

        self._descent.fit(drawn, self.improvement_steps, self.improvement_batch_size)

    def _act(self) -> None:
        annealed = min(1.0, self._env_steps / self.annealing_env_steps)
        if self._rng.random() < 1 - annealed * (1 - self.final_epsilon):
            action = int(self._rng.integers(self._action_count))
        else:
            action = int(self.q_values(self._state[None]).argmax())
        next_state, reward, terminated, truncated, _ = self._env.step(action)
        row = self._env_steps % len(self._replay)
        self._replay[row] = (self._state, next_state, action, reward, terminated)
        self._env_steps += 1
        self._state = self._env.reset()[0] if terminated or truncated else next_state

    def _drawn_replay(self, size: int) -> Regression:
        stored = min(self._env_steps, len(self._replay))
        drawn = self._replay[self._rng.choice(stored, min(size, stored), replace=False)]
        states, actions = torch.as_tensor(drawn["state"]), torch.as_tensor(drawn["action"])
        with torch.no_grad():
            future = self._target_network(torch.as_tensor(drawn["next_state"])).amax(dim=1)
        # A truncated episode has a future, a terminated one has none.
        future[torch.as_tensor(drawn["terminated"])] = 0.0
        targets = torch.as_tensor(drawn["reward"]) + self.discount * future
        return Regression(states, actions, targets)


@dataclass(kw_only=True, eq=False)
class TransformerAgent(_DqnAgent):
    """A transformer over the features, with Adam."""

    phase_gradient_steps: int = 25
    improvement_steps: int = 2
    learning_rate: float = 0.003
    width: int = 16

    def _learner(self, features: int, actions: int) -> MinibatchDescent:
        network = FeatureTransformer(features, actions, self.width)
        adam = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        return MinibatchDescent(network, adam)


@dataclass(kw_only=True, eq=False)
class SgdAgent(_DqnAgent):
    """A three-layer MLP, with plain SGD."""

    learning_rate: float = 0.02
    width: int = 64

    def _learner(self, features: int, actions: int) -> MinibatchDescent:
        hidden = [nn.Linear(features, self.width), nn.ReLU(), nn.Linear(self.width, self.width)]
        network = nn.Sequential(*hidden, nn.ReLU(), nn.Linear(self.width, actions))
        sgd = torch.optim.SGD(network.parameters(), lr=self.learning_rate)
        return MinibatchDescent(network, sgd)


@dataclass(kw_only=True, eq=False)
class SvrgAgent(_DqnAgent):
    """A wide two-layer MLP, with SVRG."""

    learning_rate: float = 0.05
    width: int = 128
    snapshot_every: int = 25
    large_batch: int = 1_024

    def _learner(self, features: int, actions: int) -> MinibatchDescent:
        hidden = [nn.Linear(features, self.width), nn.Tanh()]
        network = nn.Sequential(*hidden, nn.Linear(self.width, actions))
        sgd = torch.optim.SGD(network.parameters(), lr=self.learning_rate)
        return SvrgDescent(network, sgd, self.snapshot_every, self.large_batch)


AGENTS: Mapping[str, Callable[..., BlackBoxAgent]] = {
    "transformer-Adam": TransformerAgent,
    "MLP-SGD": SgdAgent,
    "MLP-SVRG": SvrgAgent,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Three black-box agents, alone and federated.")
    parser.add_argument("--budget", type=int, default=10_000, help="environment steps per agent")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # the networks are too small to gain from more
    result = fedhql.study(
        AGENTS,
        ENV_ID,
        arguments.budget,
        seeds=[arguments.seed],
        settings={
            "environment.discount": DISCOUNT,
            "environment.implementation": "gymnasium",  # else evaluations load JAX
            "federation.query_batch": 32,
            "federation.self_learning_env_steps": min(1_000, max(1, arguments.budget // 3)),
        },
        jobs=0,  # in this process, which has loaded torch
    )
    print(result.summary())


if __name__ == "__main__":
    main()
