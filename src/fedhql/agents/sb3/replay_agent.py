"""DQN and its relatives as black-box agents: an off-policy model with a replay memory."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from fedhql.acting import PolicyFunction, greedily
from fedhql.agents.dqn.config import SILENT_AT_STATES, SILENT_UNITS
from fedhql.agents.exploration import annealed_epsilon, annealing_of
from fedhql.agents.sb3.private_model import (
    PrivateModel,
    load_model,
    network_and_optimiser,
    restore_networks,
    save_networks,
)
from fedhql.agents.sb3.regression import regress
from fedhql.agents.sb3.settings import Sb3DqnSettings
from fedhql.agents.sb3.unit_revival import UnitRevival
from fedhql.agents.task import AgentTask
from fedhql.contract import Actions, States, Values
from fedhql.environments.replayable import ReplayableEnvironment

REPLAY_COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


@dataclass(frozen=True)
class ReplayAlgorithm:
    """An algorithm of stable-baselines3 or sb3-contrib that is built and trained as DQN is."""

    model: type[Any]
    online: str  # the model's network, and what its layers are called; the target adds "_target"
    estimates: Callable[[torch.Tensor], torch.Tensor]  # output -> T estimates of Q: (B, T, A)
    policy_kwargs: Callable[[Any], dict[str, Any]] = lambda settings: {}


class ReplayAgent:
    """A `BlackBoxAgent` that is also `Checkpointable`, `Exportable` and `Diagnosable`.

    Its value of an action is the mean of T estimates: 1 of DQN, or the quantiles of QR-DQN.
    """

    def __init__(
        self, algorithm: ReplayAlgorithm, settings: Sb3DqnSettings, task: AgentTask
    ) -> None:
        """Build an agent. The task's `phase_env_steps` count only if ε anneals in each phase."""
        self._algorithm, self._settings = algorithm, settings
        self._annealing = annealing_of(
            settings.exploration_annealing,
            settings.exploration_fraction,
            task.budget_env_steps,
            task.phase_env_steps,
        )
        self._private = PrivateModel[Any](
            lambda env: self._build(env, task), task.make_environment(), task.seed
        )
        self._env, self._model = self._private.env, self._private.model
        # SB3 would restart its ε schedule in every call of `self_learn`; this one counts all steps.
        self._model.exploration_schedule = self._epsilon
        self._model.exploration_rate = self._epsilon(1.0)
        self._online: Any = getattr(self._model, algorithm.online)
        self._target: Any = getattr(self._model, f"{algorithm.online}_target")
        self._layers: torch.nn.Sequential = getattr(self._online, algorithm.online)
        improver = getattr(torch.optim, settings.improvement_optimiser)
        self._improver: torch.optim.Optimizer = improver(
            self._online.parameters(), lr=settings.improvement_learning_rate
        )
        self._revival = (
            UnitRevival(self._layers, (self._model.policy.optimizer, self._improver))
            if settings.improvement_revives_units and settings.hidden
            else None
        )
        self._improved = False  # since self-learning last began
        self._since_training = 0  # env steps collected towards the next training step

    def _build(self, env: ReplayableEnvironment, task: AgentTask) -> Any:
        settings = self._settings
        annealed = settings.exploration_fraction > 0
        return self._algorithm.model(
            settings.policy,
            env,
            learning_rate=settings.learning_rate,
            buffer_size=settings.buffer_size,
            learning_starts=settings.learning_starts,
            batch_size=settings.batch_size,
            tau=settings.tau,
            gamma=task.discount,
            train_freq=settings.train_freq,
            gradient_steps=settings.gradient_steps,
            target_update_interval=settings.target_update_interval,
            max_grad_norm=settings.max_grad_norm,
            exploration_initial_eps=(
                settings.exploration_initial_eps if annealed else settings.exploration_final_eps
            ),
            exploration_final_eps=settings.exploration_final_eps,
            exploration_fraction=settings.exploration_fraction if annealed else 1.0,
            policy_kwargs={
                **network_and_optimiser(settings),
                **self._algorithm.policy_kwargs(settings),
            },
            seed=task.seed,
            device=settings.device,
        )

    def self_learn(self, env_steps: int) -> None:
        """Run the body of SB3's own `learn` for exactly `env_steps` steps.

        `learn` stops only between rollouts of `train_freq` steps. Here the next call completes a
        rollout that was cut short, so the result does not depend on how calls divide the steps.
        """
        model = self._model
        if self._improved and self._settings.target_follows_improvement:
            self._target.load_state_dict(self._online.state_dict())
        self._improved = False
        uniform = self._settings.warm_up == "uniform"
        with self._private.streams:
            _, callback = model._setup_learn(env_steps, None, reset_num_timesteps=False)
            while env_steps:
                chunk = min(env_steps, self._settings.train_freq - self._since_training)
                model.collect_rollouts(
                    model.env,
                    callback,
                    TrainFreq(chunk, TrainFrequencyUnit.STEP),
                    model.replay_buffer,
                    # SB3 acts uniformly before this step.
                    learning_starts=model.learning_starts if uniform else 0,
                )
                env_steps -= chunk
                self._since_training = (self._since_training + chunk) % self._settings.train_freq
                if self._since_training == 0 and model.num_timesteps > model.learning_starts:
                    model.train(model.gradient_steps, model.batch_size)

    def q_values(self, states: States) -> Values:
        with torch.no_grad():
            return self._estimates(self._private.as_tensor(states)).mean(dim=1).cpu().numpy()

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Take κ gradient steps on the squared error at the chosen actions (Algorithm 1.b).

        Every one of the T estimates of an action's value regresses towards its target.
        """
        if self._revival is not None:
            self._revival.remember(states)
            if not self._improved:
                self._revival.revive(self._features)
        states_t = self._private.as_tensor(states)
        actions_t = torch.as_tensor(actions, device=self._model.device)
        rows = torch.arange(len(actions_t), device=self._model.device)
        regress(
            lambda: self._estimates(states_t)[rows, :, actions_t],
            targets,
            self._improver,
            self._settings,
        )
        self._improved = True

    def save(self, directory: Path) -> None:
        model, replay = self._model, self._model.replay_buffer
        save_networks(directory, **self._parts())
        used = replay.buffer_size if replay.full else replay.pos
        columns = {name: getattr(replay, name)[:used] for name in REPLAY_COLUMNS}
        np.savez(directory / "replay.npz", allow_pickle=False, **columns)
        if self._revival is not None:
            self._revival.save(directory / "revival.npz")
        position = self._private.save(directory) | {
            "n_calls": model._n_calls,
            "since_training": self._since_training,
            "improved": self._improved,
            "replay": [replay.pos, replay.full],
        }
        (directory / "position.json").write_text(json.dumps(position))

    def restore(self, directory: Path) -> None:
        model, replay = self._model, self._model.replay_buffer
        restore_networks(directory, **self._parts())
        if self._revival is not None:
            self._revival.restore(directory / "revival.npz")
        with np.load(directory / "replay.npz") as columns:
            for name in REPLAY_COLUMNS:
                column = columns[name]
                getattr(replay, name)[: len(column)] = column
        position: dict[str, Any] = json.loads((directory / "position.json").read_text())
        self._private.restore(directory, position)
        model._n_calls = position["n_calls"]
        self._since_training = position["since_training"]
        self._improved = position["improved"]
        replay.pos, replay.full = position["replay"]
        model.exploration_rate = self._epsilon(1.0)

    def _parts(self) -> dict[str, Any]:
        """Return the networks and optimisers that a checkpoint holds."""
        return {
            "online": self._online,
            "target": self._target,
            "optimizer": self._model.policy.optimizer,
            "improver": self._improver,
        }

    def export(self, directory: Path) -> None:
        """Write `model.zip` for the library's own `load`."""
        # The schedule is a method of this agent; saving it would pickle the whole agent.
        self._model.save(directory / "model.zip", exclude=["exploration_schedule"])

    def diagnostics(self) -> dict[str, float]:
        """Return the figures that SB3 itself logs, under its tags, and silent units."""
        return self._private.figures() | {
            SILENT_UNITS: self._silent_units(),
            "rollout/exploration_rate": self._model.exploration_rate,
            "train/learning_rate": self._settings.learning_rate,
        }

    def close(self) -> None:
        self._env.close()

    @torch.no_grad()
    def _silent_units(self) -> float:
        """Return the share of ReLU units that are 0 at the last states; NaN for other networks."""
        replay = self._model.replay_buffer
        numbers = np.maximum(self._model.num_timesteps - 1 - np.arange(SILENT_AT_STATES), 0)
        below = self._features(replay.observations[numbers % replay.buffer_size, 0])
        silent = []
        for layer in self._layers:
            below = layer(below)
            if isinstance(layer, torch.nn.ReLU):
                silent.append((below == 0).all(dim=0))
        return float(torch.cat(silent).float().mean()) if silent else float("nan")

    def _epsilon(self, _progress_remaining: float) -> float:
        return annealed_epsilon(
            self._settings.exploration_final_eps,
            self._settings.exploration_initial_eps,
            self._annealing,
            self._model.num_timesteps,
        )

    def _estimates(self, states_t: torch.Tensor) -> torch.Tensor:
        return self._algorithm.estimates(self._online(states_t))

    def _features(self, states: States) -> torch.Tensor:
        """Return the inputs of the first hidden layer."""
        extractor = self._online.features_extractor
        return self._online.extract_features(self._private.as_tensor(states), extractor)


def load_replay_policy(algorithm: ReplayAlgorithm, directory: Path) -> PolicyFunction:
    """Return the policy of an exported agent."""
    model = load_model(algorithm.model, directory)
    online = getattr(model, algorithm.online)

    def q_values(states: States) -> Values:
        with torch.no_grad():
            output = online(model.policy.obs_to_tensor(states)[0])
            return algorithm.estimates(output).mean(dim=1).numpy()

    return greedily(q_values)
