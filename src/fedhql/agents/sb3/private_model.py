"""What all agents of stable-baselines3 share: private randomness, exact positions, figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import safe_mean

from fedhql.agents.randomness import PrivateStreams
from fedhql.agents.sb3.settings import RolloutSettings, Sb3DqnSettings
from fedhql.contract import States
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
Algorithm = TypeVar("Algorithm", bound=BaseAlgorithm)


class PrivateModel(Generic[Algorithm]):
    """A model with its own environment. It draws from its own streams inside `with streams:`."""

    def __init__(
        self, build: Callable[[ReplayableEnvironment], Algorithm], env: Environment, seed: int
    ) -> None:
        """Build the model. Raise AgentRefused if stable-baselines3 refuses its settings."""
        self.streams = PrivateStreams(seed)
        # It wraps the Monitor, so that restoring a position also restores episode statistics.
        self.env = ReplayableEnvironment(Monitor(env), seed)
        try:
            with self.streams:
                self.model = build(self.env)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            # For example a policy that does not match the observations, or an unknown keyword.
            raise AgentRefused(f"stable-baselines3 refuses these settings: {error}") from error
        # SB3's default logger would create a temporary directory in every call of `self_learn`.
        self.model.set_logger(Logger(folder=None, output_formats=[]))

    def as_tensor(self, states: States) -> torch.Tensor:
        tensor, _ = self.model.policy.obs_to_tensor(states)
        assert isinstance(tensor, torch.Tensor)  # make_environment flattens structured spaces
        return tensor

    def save(self, directory: Path) -> dict[str, Any]:
        """Write arrays; return the rest of the state, which fits into JSON. Leave out networks."""
        model = self.model
        np.savez(directory / "streams.npz", allow_pickle=False, **self.streams.state)
        if model._last_obs is not None:
            np.save(directory / "last_observation.npy", np.asarray(model._last_obs))
        starts = model._last_episode_starts
        return {
            "num_timesteps": model.num_timesteps,
            "n_updates": model._n_updates,
            "episode_num": model._episode_num,
            "last_episode_starts": None if starts is None else np.asarray(starts).tolist(),
            "action_space": model.action_space.np_random.bit_generator.state,
            "environment": self.env.position(),
            "episodes": list(model.ep_info_buffer or []),
        }

    def restore(self, directory: Path, position: dict[str, Any]) -> None:
        """Restore what `save` has written and returned."""
        model = self.model
        with np.load(directory / "streams.npz") as streams:
            self.streams.state = dict(streams)
        model.num_timesteps = position["num_timesteps"]
        model._n_updates = position["n_updates"]
        model._episode_num = position["episode_num"]
        model.action_space.np_random.bit_generator.state = position["action_space"]
        self.env.go_to(position["environment"])
        if (last_observation := directory / "last_observation.npy").exists():
            model._last_obs = np.load(last_observation)
            with self.streams:  # sets SB3's state that goes with an observation; draws nothing
                model._setup_learn(0, None, reset_num_timesteps=False)
            assert model.ep_info_buffer is not None
            model.ep_info_buffer.extend(position["episodes"])
            model._last_episode_starts = np.array(position["last_episode_starts"], dtype=bool)

    def figures(self) -> dict[str, float]:
        """Return the figures that SB3 itself logs, under its tags."""
        model = self.model
        figures = {
            "time/total_timesteps": float(model.num_timesteps),
            "train/n_updates": float(model._n_updates),
        }
        if model.ep_info_buffer:
            for tag, key in (("rollout/ep_rew_mean", "r"), ("rollout/ep_len_mean", "l")):
                figures[tag] = float(safe_mean([episode[key] for episode in model.ep_info_buffer]))
        if model._n_updates and "train/loss" in model.logger.name_to_value:
            figures["train/loss"] = float(model.logger.name_to_value["train/loss"])
        return figures


def load_model(algorithm: type[Algorithm], directory: Path) -> Algorithm:
    """Return an exported model. Raise AgentRefused if another algorithm has written it."""
    try:
        return algorithm.load(directory / "model.zip", device="cpu")
    except (AttributeError, TypeError) as error:  # of stable-baselines3
        raise AgentRefused(
            f"{directory} holds no model of stable-baselines3's {algorithm.__name__}: {error}"
        ) from error


def network_and_optimiser(settings: Sb3DqnSettings | RolloutSettings) -> dict[str, Any]:
    """Return the network and the optimiser of the settings as SB3's `policy_kwargs`."""
    return {
        "net_arch": list(settings.hidden),
        "activation_fn": ACTIVATIONS[settings.activation],
        "optimizer_class": getattr(torch.optim, settings.optimizer),
        "optimizer_kwargs": dict(settings.optimizer_kwargs),
    }


def save_networks(directory: Path, **parts: Any) -> None:
    """Write the state of networks and optimisers, each under its name."""
    # Given a path, torch reports a full disk as a RuntimeError without a reason.
    with (directory / "networks.pt").open("wb") as file:
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)


def restore_networks(directory: Path, **parts: Any) -> None:
    """Load into each part the state that `save_networks` has written under its name."""
    saved = torch.load(directory / "networks.pt", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
