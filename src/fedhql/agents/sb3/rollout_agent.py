"""PPO and its relatives as black-box agents: an on-policy model with a private Q-head."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhql.acting import GreedyAnswer, PolicyFunction
from fedhql.agents.sb3.carried_rollout import CarriedRollout
from fedhql.agents.sb3.policy_step import PolicyStep
from fedhql.agents.sb3.private_model import (
    PrivateModel,
    load_model,
    network_and_optimiser,
    restore_networks,
    save_networks,
)
from fedhql.agents.sb3.q_head import QHead, load_advantage_network
from fedhql.agents.sb3.settings import RolloutSettings
from fedhql.agents.task import AgentTask
from fedhql.contract import Actions, States, Values
from fedhql.environments.replayable import ReplayableEnvironment

Q_HEAD = "q_head.pt"


@dataclass(frozen=True)
class RolloutAlgorithm:
    """An on-policy algorithm of stable-baselines3, and the settings that only it has."""

    model: type[Any]
    own: tuple[str, ...]  # names of settings, which the algorithm takes as keywords


class RolloutAgent:
    """A `BlackBoxAgent` that acts by its policy and answers with its Q-head.

    It is also `Acting`, `Checkpointable`, `Exportable` and `Diagnosable`. Self-learning is the
    library's own; the Q-head learns from the same rollouts and changes nothing in it. `improve` is
    the only place where values move the policy.
    """

    def __init__(
        self, algorithm: RolloutAlgorithm, settings: RolloutSettings, task: AgentTask
    ) -> None:
        self._algorithm, self._settings = algorithm, settings
        self._private = PrivateModel[Any](
            lambda env: self._build(env, task), task.make_environment(), task.seed
        )
        self._env, self._model = self._private.env, self._private.model
        self._rollout: CarriedRollout = self._model.rollout_buffer
        self._head = QHead(
            self._model.policy.features_dim,
            int(self._model.action_space.n),
            settings,
            self._model.device,
            # Not the seed itself: the head's first weights would be drawn as the policy's were.
            int(np.random.SeedSequence(task.seed).generate_state(1)[0]),
        )
        self._policy_step = PolicyStep(self._model.policy, settings)

    def _build(self, env: ReplayableEnvironment, task: AgentTask) -> Any:
        settings = self._settings
        return self._algorithm.model(
            "MlpPolicy",
            env,
            learning_rate=settings.learning_rate,
            n_steps=settings.n_steps,
            gamma=task.discount,
            gae_lambda=settings.gae_lambda,
            ent_coef=settings.ent_coef,
            vf_coef=settings.vf_coef,
            max_grad_norm=settings.max_grad_norm,
            normalize_advantage=settings.normalize_advantage,
            rollout_buffer_class=CarriedRollout,
            policy_kwargs=network_and_optimiser(settings),
            seed=task.seed,
            device=settings.device,
            **{name: getattr(settings, name) for name in self._algorithm.own},
        )

    def self_learn(self, env_steps: int) -> None:
        """Run the body of SB3's own `learn` for exactly `env_steps` steps.

        `learn` stops only between rollouts of `n_steps`. Here the next call completes a rollout
        that was cut short, so the result does not depend on how calls divide the steps.
        """
        model, rollout = self._model, self._rollout
        with self._private.streams:
            _, callback = model._setup_learn(env_steps, None, reset_num_timesteps=False)
            while env_steps:
                chunk = min(env_steps, rollout.missing)
                model.collect_rollouts(model.env, callback, rollout, chunk)
                env_steps -= chunk
                if rollout.full:
                    self._learn_values()
                    model.train()
                    rollout.reset()

    def _learn_values(self) -> None:
        """Let the Q-head learn from a full rollout, before training reorders it."""
        rollout = self._rollout
        states = rollout.observations[:, 0]
        if self._env.observation_space.shape == ():  # SB3 adds an axis to these
            states = states[:, 0]
        self._head.learn(self._features(states), rollout.actions, rollout.advantages)

    def q_values(self, states: States) -> Values:
        return self._head.values(self._features(states), self._critic(states)).cpu().numpy()

    def act(self, states: States) -> Actions:
        """Return the policy's most probable actions."""
        with torch.no_grad():
            states_t = self._private.as_tensor(states)
            return self._model.policy._predict(states_t, deterministic=True).cpu().numpy()

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Regress the Q-head towards the targets; then draw the policy towards its values."""
        features, critic_B1 = self._features(states), self._critic(states)
        self._head.improve(features, critic_B1, actions, targets)
        values_BA = self._head.values(features, critic_B1)
        self._policy_step.draw(self._private.as_tensor(states), values_BA)

    def save(self, directory: Path) -> None:
        save_networks(directory, **self._parts())
        np.savez(directory / "rollout.npz", allow_pickle=False, **self._rollout.collected())
        position = self._private.save(directory) | {
            "q_head": self._head.save(directory),
            "policy_kl": self._policy_step.kl,
        }
        (directory / "position.json").write_text(json.dumps(position))

    def restore(self, directory: Path) -> None:
        restore_networks(directory, **self._parts())
        with np.load(directory / "rollout.npz") as collected:
            self._rollout.go_on_from(dict(collected))
        position: dict[str, Any] = json.loads((directory / "position.json").read_text())
        self._private.restore(directory, position)
        self._head.restore(directory, position["q_head"])
        self._policy_step.kl = position["policy_kl"]

    def _parts(self) -> dict[str, Any]:
        """Return the networks and optimisers that a checkpoint holds."""
        return {
            "policy": self._model.policy,
            "optimizer": self._model.policy.optimizer,
            "policy_improver": self._policy_step.optimiser,
            "q_head": self._head.network,
            "q_learner": self._head.learner,
            "q_improver": self._head.improver,
        }

    def export(self, directory: Path) -> None:
        """Write `model.zip` for the library's own `load`, and the Q-head."""
        # Who loads it need not have our class of buffers.
        self._model.save(directory / "model.zip", exclude=["rollout_buffer_class"])
        self._head.export(directory / Q_HEAD)

    def diagnostics(self) -> dict[str, float]:
        """Return the figures that SB3 itself logs, under its tags, and those of the Q-head."""
        return self._private.figures() | {
            "improvement/policy_kl": self._policy_step.kl,
            "train/learning_rate": self._settings.learning_rate,
            "train/q_loss": self._head.loss,
        }

    def close(self) -> None:
        self._env.close()

    @torch.no_grad()
    def _critic(self, states: States) -> torch.Tensor:
        """Return V(s) of the policy's critic: (B, 1)."""
        return self._model.policy.predict_values(self._private.as_tensor(states))

    def _features(self, states: States) -> torch.Tensor:
        """Return the states as rows of numbers; MlpPolicy has nothing to learn here."""
        return self._model.policy.extract_features(self._private.as_tensor(states))


def load_rollout_policy(algorithm: RolloutAlgorithm, directory: Path) -> PolicyFunction:
    """Return the policy of an exported agent."""
    policy = load_model(algorithm.model, directory).policy
    head = load_advantage_network(directory / Q_HEAD)

    def answer(states: States) -> GreedyAnswer:
        with torch.no_grad():
            states_t = policy.obs_to_tensor(states)[0]
            values = policy.predict_values(states_t) + head(policy.extract_features(states_t))
            actions = policy._predict(states_t, deterministic=True)
            return GreedyAnswer(values.numpy(), actions.numpy())

    return answer
