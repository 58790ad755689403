"""Three black boxes with nothing in common but the contract, alone and federated, on CartPole.

The FedHQL paper's motivating example in plain PyTorch: a transformer trained with Adam, a
three-layer MLP trained with SGD, and an MLP trained with SVRG. Run it with

    .venv/bin/python examples/three_black_boxes.py [--budget ENV_STEPS_PER_AGENT] [--seed SEED]

In an experiment file the agents are kind = "three_black_boxes:TransformerAgent" (SgdAgent,
SvrgAgent), found when this folder is the working directory or on PYTHONPATH.
"""

import argparse
import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedhql.contract import Actions, BlackBoxAgent, States, Values
from fedhql.environments import EnvironmentBatch
from fedhql.experiments.build import Stream, seeds_for
from fedhql.experiments.evaluation import evaluate
from fedhql.federation import Budget, FederationServer, InProcessCohort, fed_ucb

ENV_ID, ACTIONS, DISCOUNT = "CartPole-v1", 2, 0.99
QUERY_BATCH, EVALUATION_EPISODES, EPISODE_STEP_LIMIT = 32, 10, 500


class Regression(NamedTuple):
    """Q(states[i], actions[i]) should be targets[i]."""

    states: Tensor  # (B, F)
    actions: Tensor  # (B,)
    targets: Tensor  # (B,)


# A random minibatch, no larger than asked for, of a problem that is fixed during one `fit`.
Draw = Callable[[int], Regression]


def gradient(network: nn.Module, batch: Regression) -> tuple[Tensor, ...]:
    predicted = network(batch.states).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    loss = nn.functional.smooth_l1_loss(predicted, batch.targets)
    return torch.autograd.grad(loss, tuple(network.parameters()))


class MinibatchDescent:
    """Any torch optimiser on minibatch gradients."""

    def __init__(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        batch_size: int = 64,
        max_gradient_norm: float = 10.0,
    ) -> None:
        self._network, self._optimiser = network, optimiser
        self._batch_size, self._max_gradient_norm = batch_size, max_gradient_norm

    def fit(self, draw: Draw, steps: int) -> None:
        for _ in range(steps):
            self._descend(gradient(self._network, draw(self._batch_size)))

    def _descend(self, direction: Sequence[Tensor]) -> None:
        for parameter, slope in zip(self._network.parameters(), direction, strict=True):
            parameter.grad = slope
        nn.utils.clip_grad_norm_(self._network.parameters(), self._max_gradient_norm)
        self._optimiser.step()


class SvrgDescent(MinibatchDescent):
    """Stochastic variance-reduced gradient (Johnson & Zhang, NeurIPS 2013).

    A minibatch's noise is mostly the same at the current weights and at a recent snapshot of
    them, so it cancels in the difference; a large batch at the snapshot puts the mean back.
    """

    def __init__(
        self, network: nn.Module, learning_rate: float, *, snapshot_every: int, large_batch: int
    ) -> None:
        super().__init__(network, torch.optim.SGD(network.parameters(), lr=learning_rate))
        self._snapshot = copy.deepcopy(network)
        self._snapshot_every, self._large_batch = snapshot_every, large_batch

    def fit(self, draw: Draw, steps: int) -> None:
        for step in range(steps):
            if step % self._snapshot_every == 0:
                self._snapshot.load_state_dict(self._network.state_dict())
                full = gradient(self._snapshot, draw(self._large_batch))
            minibatch = draw(self._batch_size)
            here, there = gradient(self._network, minibatch), gradient(self._snapshot, minibatch)
            self._descend([g - s + f for g, s, f in zip(here, there, full, strict=True)])


class FeatureTransformer(nn.Module):
    """Every feature of an observation is a token; their mean, encoded, gives the values."""

    def __init__(self, features: int, actions: int, width: int) -> None:
        super().__init__()
        self._meaning = nn.Parameter(torch.randn(features, width))
        self._direction = nn.Parameter(torch.randn(features, width))
        self._encoder = nn.TransformerEncoderLayer(
            width, 2, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self._head = nn.Linear(width, actions)

    def forward(self, states: Tensor) -> Tensor:
        tokens = self._meaning + states.unsqueeze(-1) * self._direction
        values: Tensor = self._head(self._encoder(tokens).mean(dim=1))
        return values


def mlp(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class _Replay:
    """The latest transitions, oldest overwritten first."""

    def __init__(self, capacity: int, features: int) -> None:
        self.states = np.empty((capacity, features), dtype=np.float32)
        self.actions = np.empty(capacity, dtype=np.int64)
        self.rewards = np.empty(capacity, dtype=np.float32)
        self.next_states = np.empty((capacity, features), dtype=np.float32)
        self.terminated = np.empty(capacity, dtype=np.bool_)
        self.added = 0

    def __len__(self) -> int:
        return min(self.added, len(self.actions))

    def add(
        self, state: States, action: int, reward: float, next_state: States, terminated: bool
    ) -> None:
        at = self.added % len(self.actions)
        self.states[at], self.actions[at], self.rewards[at] = state, action, reward
        self.next_states[at], self.terminated[at] = next_state, terminated
        self.added += 1


class _DqnAgent:
    """Fitted Q-learning in small phases: the target network and replay rest during each.

    What a subclass adds is the network and how it descends; both also serve to `improve`.
    """

    def __init__(
        self,
        build_network: Callable[[int, int], nn.Module],
        build_descent: Callable[[nn.Module], MinibatchDescent],
        *,
        seed: int,
        env_id: str = ENV_ID,
        discount: float = 0.99,
        replay_capacity: int = 10_000,
        env_steps_per_phase: int = 50,
        gradient_steps_per_phase: int = 50,
        final_epsilon: float = 0.05,
        annealing_env_steps: int = 2_000,
        improvement_steps: int = 8,
    ) -> None:
        weights_seed, env_seed, rng_seed = np.random.SeedSequence(seed).generate_state(3).tolist()
        self._rng = np.random.default_rng(rng_seed)
        self._env: gym.Env[Any, Any] = gym.make(env_id)
        self._state, _ = self._env.reset(seed=env_seed)
        assert isinstance(self._env.action_space, gym.spaces.Discrete)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(weights_seed)
            self._network = build_network(len(self._state), int(self._env.action_space.n))
        self._target = copy.deepcopy(self._network)
        self._descent = build_descent(self._network)
        self._replay = _Replay(replay_capacity, len(self._state))
        self._discount = discount
        self._env_steps_per_phase = env_steps_per_phase
        self._gradient_steps_per_phase = gradient_steps_per_phase
        self._final_epsilon = final_epsilon
        self._annealing_env_steps = annealing_env_steps
        self._improvement_steps = improvement_steps

    def self_learn(self, env_steps: int) -> None:
        for _ in range(env_steps):
            self._act()
            if self._replay.added % self._env_steps_per_phase == 0:
                self._target.load_state_dict(self._network.state_dict())
                self._descent.fit(self._draw_replay, self._gradient_steps_per_phase)

    def q_values(self, states: States) -> Values:
        with torch.no_grad():
            values: Values = self._network(torch.as_tensor(states)).numpy()
        return values

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        broadcast = Regression(*map(torch.as_tensor, (states, actions, targets)))

        def draw(size: int) -> Regression:
            rows = self._rng.permutation(len(actions))[:size]
            return Regression(*(column[rows] for column in broadcast))

        self._descent.fit(draw, self._improvement_steps)

    def close(self) -> None:
        self._env.close()

    def _act(self) -> None:
        annealed = min(1.0, self._replay.added / self._annealing_env_steps)
        if self._rng.random() < 1 - annealed * (1 - self._final_epsilon):
            action = int(self._rng.integers(ACTIONS))
        else:
            action = int(self.q_values(self._state[None]).argmax())
        next_state, reward, terminated, truncated, _ = self._env.step(action)
        self._replay.add(self._state, action, float(reward), next_state, terminated)
        self._state = self._env.reset()[0] if terminated or truncated else next_state

    def _draw_replay(self, size: int) -> Regression:
        replay = self._replay
        rows = self._rng.integers(len(replay), size=size)
        with torch.no_grad():
            future = self._target(torch.as_tensor(replay.next_states[rows])).amax(dim=1).numpy()
        # A truncated episode had a future; only a terminated one did not.
        targets = replay.rewards[rows] + self._discount * future * ~replay.terminated[rows]
        columns = (replay.states[rows], replay.actions[rows], targets.astype(np.float32))
        return Regression(*map(torch.as_tensor, columns))


class TransformerAgent(_DqnAgent):
    """A transformer over the observation's features, with Adam."""

    def __init__(
        self,
        *,
        seed: int,
        width: int = 16,
        learning_rate: float = 0.003,
        gradient_steps_per_phase: int = 25,
        **dqn: Any,
    ) -> None:
        super().__init__(
            lambda features, actions: FeatureTransformer(features, actions, width),
            lambda network: MinibatchDescent(
                network, torch.optim.Adam(network.parameters(), lr=learning_rate)
            ),
            seed=seed,
            gradient_steps_per_phase=gradient_steps_per_phase,
            **dqn,
        )


class SgdAgent(_DqnAgent):
    """A three-layer MLP with plain SGD."""

    def __init__(
        self, *, seed: int, width: int = 64, learning_rate: float = 0.02, **dqn: Any
    ) -> None:
        super().__init__(
            lambda features, actions: mlp((features, width, width, actions), nn.ReLU),
            lambda network: MinibatchDescent(
                network, torch.optim.SGD(network.parameters(), lr=learning_rate)
            ),
            seed=seed,
            **dqn,
        )


class SvrgAgent(_DqnAgent):
    """A two-layer MLP with SVRG."""

    def __init__(
        self,
        *,
        seed: int,
        width: int = 128,
        learning_rate: float = 0.05,
        snapshot_every: int = 25,
        large_batch: int = 1_024,
        **dqn: Any,
    ) -> None:
        super().__init__(
            lambda features, actions: mlp((features, width, actions), nn.Tanh),
            lambda network: SvrgDescent(
                network, learning_rate, snapshot_every=snapshot_every, large_batch=large_batch
            ),
            seed=seed,
            **dqn,
        )


def learn(*, federated: bool, env_steps_per_agent: int, seed: int) -> NDArray[np.float64]:
    """One arm until its budget is spent -> mean returns (rounds, agents)."""
    seeds = seeds_for(seed, Stream.AGENT, count=len(AGENTS)).tolist()
    agents = [agent(seed=own) for agent, own in zip(AGENTS.values(), seeds, strict=True)]
    cohort = InProcessCohort(agents, ACTIONS, names=list(AGENTS))
    server_environments = EnvironmentBatch(ENV_ID, QUERY_BATCH)
    server = FederationServer(
        cohort,
        server_environments,
        lambda q_NBA: fed_ucb(q_NBA, exploration=1.0),
        horizon_steps=16,
        learning_rate=0.05,
        discount=DISCOUNT,
    )
    evaluation_environments = EnvironmentBatch(ENV_ID, len(agents) * EVALUATION_EPISODES)
    budget = Budget(env_steps_per_agent, len(agents))
    wanted = min(1_000, env_steps_per_agent // 3)
    rounds: list[NDArray[np.float64]] = []
    while env_steps := budget.affordable_self_learning(wanted):
        cohort.self_learn(env_steps)
        budget = budget.after_self_learning(env_steps)
        seeds_NE = seeds_for(
            seed, Stream.EVALUATION, len(rounds), count=len(agents) * EVALUATION_EPISODES
        ).reshape(len(agents), -1)
        returns_NE, _ = evaluate(cohort, evaluation_environments, seeds_NE, EPISODE_STEP_LIMIT)
        rounds.append(returns_NE.mean(axis=1))
        shown = "  ".join(f"{name} {mean:5.1f}" for name, mean in zip(AGENTS, rounds[-1]))
        print(f"{'federated' if federated else 'alone':9}  {budget.consumed_per_agent:7.0f} steps  {shown}", flush=True)
        # ends in self-learning
        if federated and budget.affordable_server_steps >= QUERY_BATCH * 16 + len(agents) * wanted:
            server_seeds = seeds_for(seed, Stream.SERVER, len(rounds), count=QUERY_BATCH)
            budget, figures = server.federate(budget, server_seeds.tolist())
    for closable in (cohort, server_environments, evaluation_environments):
        closable.close()
    return np.array(rounds)


AGENTS: dict[str, Callable[..., BlackBoxAgent]] = {
    "transformer+Adam": TransformerAgent,
    "MLP+SGD": SgdAgent,
    "MLP+SVRG": SvrgAgent,
}
