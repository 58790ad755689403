"""stable-baselines3's DQN, the paper's backbone, as a black-box agent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import safe_mean
from torch.nn import functional

from fedhql.acting import GreedyAnswer, greedy_in
from fedhql.agents.dqn.config import MOST_SCALE, SILENT_AT_STATES, SILENT_UNITS
from fedhql.agents.exploration import annealed_epsilon, annealing_of
from fedhql.agents.kinds import Sb3DqnSettings
from fedhql.agents.randomness import PrivateStreams
from fedhql.agents.task import AgentTask
from fedhql.agents.torch_revival import UnitRevival
from fedhql.contract import Actions, States, Values
from fedhql.environments.make import Environment
from fedhql.environments.replayable import ReplayableEnvironment
from fedhql.errors import AgentRefused

ACTIVATIONS: dict[str, type[torch.nn.Module]] = {
    "relu": torch.nn.ReLU,
    "tanh": torch.nn.Tanh,
    "elu": torch.nn.ELU,
    "gelu": torch.nn.GELU,
    "leaky_relu": torch.nn.LeakyReLU,
    "mish": torch.nn.Mish,
    "selu": torch.nn.SELU,
    "sigmoid": torch.nn.Sigmoid,
    "silu": torch.nn.SiLU,
    "softplus": torch.nn.Softplus,
}
REPLAY_COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class Sb3DqnAgent:
    """A `BlackBoxAgent` that is also `Checkpointable`, `Exportable` and `Diagnosable`."""

    def __init__(
        self,
        settings: Sb3DqnSettings,
        env: Environment,
        *,
        discount: float,
        budget_env_steps: int,
        phase_env_steps: int | None = None,
        seed: int,
    ) -> None:
        """Build an agent. It needs `phase_env_steps` only if it anneals ε in each phase."""
        self._settings = settings
        self._seed = seed
        self._annealing = annealing_of(
            settings.exploration_annealing,
            settings.exploration_fraction,
            budget_env_steps,
            phase_env_steps,
        )
        self._streams = PrivateStreams(seed)
        # It wraps the Monitor, so that restoring a position also restores episode statistics.
        self._env = ReplayableEnvironment(Monitor(env), seed)
        with self._streams:
            self._model = self._build(discount)
        # SB3's default logger would create a temporary directory in every call of `self_learn`.
        self._model.set_logger(Logger(folder=None, output_formats=[]))
        # SB3 would restart its ε schedule in every call of `self_learn`; this one counts all steps.
        self._model.exploration_schedule = self._epsilon
        self._model.exploration_rate = self._epsilon(1.0)
        self._q_net = self._model.q_net
        improver = getattr(torch.optim, settings.improvement_optimiser)
        self._improver: torch.optim.Optimizer = improver(
            self._q_net.parameters(), lr=settings.improvement_learning_rate
        )
        self._revival = (
            UnitRevival(self._q_net.q_net, (self._model.policy.optimizer, self._improver))
            if settings.improvement_revives_units and settings.hidden
            else None
        )
        self._improved = False  # since self-learning last began
        self._since_training = 0  # env steps collected towards the next training step

    def _build(self, discount: float) -> DQN:
        settings = self._settings
        annealed = settings.exploration_fraction > 0
        try:
            return DQN(
                settings.policy,
                self._env,
                learning_rate=settings.learning_rate,
                buffer_size=settings.buffer_size,
                learning_starts=settings.learning_starts,
                batch_size=settings.batch_size,
                tau=settings.tau,
                gamma=discount,
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
                    "net_arch": list(settings.hidden),
                    "activation_fn": ACTIVATIONS[settings.activation],
                    "optimizer_class": getattr(torch.optim, settings.optimizer),
                    "optimizer_kwargs": dict(settings.optimizer_kwargs),
                },
                seed=self._seed,
                device=settings.device,
            )
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            # For example a policy that does not match the observations, or an unknown keyword.
            raise AgentRefused(f"stable-baselines3 refuses these settings: {error}") from error

    def self_learn(self, env_steps: int) -> None:
        """Run the body of SB3's own `learn` for exactly `env_steps` steps.

        `learn` stops only between rollouts of `train_freq` steps. Here the next call completes a
        rollout that was cut short, so the result does not depend on how calls divide the steps.
        """
        model = self._model
        assert model.env is not None
        assert model.replay_buffer is not None
        if self._improved and self._settings.target_follows_improvement:
            model.q_net_target.load_state_dict(model.q_net.state_dict())
        self._improved = False
        uniform = self._settings.warm_up == "uniform"
        with self._streams:
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
            return self._q_net(self._as_tensor(states)).cpu().numpy()

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Take κ gradient steps on the squared error at the chosen actions (Algorithm 1.b)."""
        if self._revival is not None:
            self._revival.remember(states)
            if not self._improved:
                self._revival.revive(self._features)
        states_t = self._as_tensor(states)
        actions_t = torch.as_tensor(actions, device=self._model.device).reshape(-1, 1)
        targets_t = torch.as_tensor(targets, device=self._model.device).reshape(-1, 1)
        scale = float(targets_t.abs().mean()) / self._settings.improvement_value_unit
        for group in self._improver.param_groups:
            group["lr"] = self._settings.improvement_learning_rate * min(max(scale, 1), MOST_SCALE)
        for _ in range(self._settings.improvement_steps):
            loss = functional.mse_loss(self._q_net(states_t).gather(1, actions_t), targets_t)
            self._improver.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.nn.utils.clip_grad_norm_(
                self._q_net.parameters(), self._settings.improvement_max_grad_norm
            )
            self._improver.step()
        self._improved = True

    def save(self, directory: Path) -> None:
        model, replay = self._model, self._model.replay_buffer
        assert replay is not None
        networks = {
            "q_net": model.q_net.state_dict(),
            "q_net_target": model.q_net_target.state_dict(),
            "optimizer": model.policy.optimizer.state_dict(),
            "improver": self._improver.state_dict(),
        }
        # Given a path, torch reports a full disk as a RuntimeError without a reason.
        with (directory / "networks.pt").open("wb") as file:
            torch.save(networks, file)
        used = replay.buffer_size if replay.full else replay.pos
        columns = {name: getattr(replay, name)[:used] for name in REPLAY_COLUMNS}
        np.savez(directory / "replay.npz", allow_pickle=False, **columns)
        if self._revival is not None:
            self._revival.save(directory / "revival.npz")
        np.savez(directory / "streams.npz", allow_pickle=False, **self._streams.state)
        if model._last_obs is not None:
            np.save(directory / "last_observation.npy", np.asarray(model._last_obs))
        position = {
            "num_timesteps": model.num_timesteps,
            "n_calls": model._n_calls,
            "n_updates": model._n_updates,
            "episode_num": model._episode_num,
            "since_training": self._since_training,
            "improved": self._improved,
            "replay": [replay.pos, replay.full],
            "action_space": model.action_space.np_random.bit_generator.state,
            "environment": self._env.position(),
            "episodes": list(model.ep_info_buffer or []),
        }
        (directory / "position.json").write_text(json.dumps(position))

    def restore(self, directory: Path) -> None:
        model, replay = self._model, self._model.replay_buffer
        assert replay is not None
        networks = torch.load(directory / "networks.pt", weights_only=True)
        model.q_net.load_state_dict(networks["q_net"])
        model.q_net_target.load_state_dict(networks["q_net_target"])
        model.policy.optimizer.load_state_dict(networks["optimizer"])
        self._improver.load_state_dict(networks["improver"])
        if self._revival is not None:
            self._revival.restore(directory / "revival.npz")
        with np.load(directory / "replay.npz") as columns:
            for name in REPLAY_COLUMNS:
                column = columns[name]
                getattr(replay, name)[: len(column)] = column
        with np.load(directory / "streams.npz") as streams:
            self._streams.state = dict(streams)
        position: dict[str, Any] = json.loads((directory / "position.json").read_text())
        model.num_timesteps = position["num_timesteps"]
        model._n_calls = position["n_calls"]
        model._n_updates = position["n_updates"]
        model._episode_num = position["episode_num"]
        self._since_training = position["since_training"]
        self._improved = position["improved"]
        replay.pos, replay.full = position["replay"]
        model.action_space.np_random.bit_generator.state = position["action_space"]
        model.exploration_rate = self._epsilon(1.0)
        self._env.go_to(position["environment"])
        if (last_observation := directory / "last_observation.npy").exists():
            model._last_obs = np.load(last_observation)
            with self._streams:  # sets SB3's state that goes with an observation; draws nothing
                model._setup_learn(0, None, reset_num_timesteps=False)
            assert model.ep_info_buffer is not None
            model.ep_info_buffer.extend(position["episodes"])

    def export(self, directory: Path) -> None:
        """Write `model.zip` for stable-baselines3's own `DQN.load`."""
        # The schedule is a method of this agent; saving it would pickle the whole agent.
        self._model.save(directory / "model.zip", exclude=["exploration_schedule"])

    def diagnostics(self) -> dict[str, float]:
        """Return the figures that SB3 itself logs, under its tags, and silent units."""
        model = self._model
        figures = {
            SILENT_UNITS: self._silent_units(),
            "rollout/exploration_rate": model.exploration_rate,
            "time/total_timesteps": float(model.num_timesteps),
            "train/learning_rate": self._settings.learning_rate,
            "train/n_updates": float(model._n_updates),
        }
        if model.ep_info_buffer:
            figures["rollout/ep_rew_mean"] = float(
                safe_mean([episode["r"] for episode in model.ep_info_buffer])
            )
            figures["rollout/ep_len_mean"] = float(
                safe_mean([episode["l"] for episode in model.ep_info_buffer])
            )
        if model._n_updates and "train/loss" in model.logger.name_to_value:
            figures["train/loss"] = float(model.logger.name_to_value["train/loss"])
        return figures

    def close(self) -> None:
        self._env.close()

    @torch.no_grad()
    def _silent_units(self) -> float:
        """Return the share of ReLU units that are 0 at the last states; NaN for other networks."""
        replay: Any = self._model.replay_buffer
        numbers = np.maximum(self._model.num_timesteps - 1 - np.arange(SILENT_AT_STATES), 0)
        states = replay.observations[numbers % replay.buffer_size, 0]
        below = self._q_net.extract_features(
            self._q_net.obs_to_tensor(states)[0], self._q_net.features_extractor
        )
        silent = []
        for layer in self._q_net.q_net:
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

    def _features(self, states: States) -> torch.Tensor:
        """Return the inputs of the first hidden layer."""
        extractor = self._q_net.features_extractor
        return self._q_net.extract_features(self._as_tensor(states), extractor)

    def _as_tensor(self, states: States) -> torch.Tensor:
        tensor, _ = self._model.policy.obs_to_tensor(states)
        assert isinstance(tensor, torch.Tensor)  # make_environment flattens structured spaces
        return tensor


def build(settings: Sb3DqnSettings, task: AgentTask) -> Sb3DqnAgent:
    return Sb3DqnAgent(
        settings,
        task.make_environment(),
        discount=task.discount,
        budget_env_steps=task.budget_env_steps,
        phase_env_steps=task.phase_env_steps,
        seed=task.seed,
    )


def load_policy(directory: Path, _: Space[Any]) -> Callable[[States], GreedyAnswer]:
    """Return the policy of an exported agent: it answers states (B, *obs)."""
    model = DQN.load(directory / "model.zip", device="cpu")

    def policy(states: States) -> GreedyAnswer:
        with torch.no_grad():
            return greedy_in(model.q_net(model.policy.obs_to_tensor(states)[0]).numpy())

    return policy
