"""Does our DQN learn what stable-baselines3's learns? The same settings, ten seeds each.

    python benchmarks/parity.py sb3  benchmarks/parity/cartpole.toml OUT.json [--jobs 2]
    python benchmarks/parity.py ours benchmarks/parity/cartpole.toml OUT.json [--jobs 2]
    python benchmarks/parity.py test SB3.json OURS.json

Each seed trains one agent to the end of the budget; its final return is the mean of 100 greedy
episodes in Gymnasium's environment, whichever library trained it. The test is Mann-Whitney's U on
the ten final returns of each side, two-sided, at 5 %: "indistinguishable" means p >= 0.05.
stable-baselines3 is called directly, not through our wrapper, so this needs no other part of it.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

EPISODES = 100
SHARED = (
    "learning_rate",
    "buffer_size",
    "learning_starts",
    "batch_size",
    "train_freq",
    "gradient_steps",
    "target_update_interval",
    "tau",
    "max_grad_norm",
    "exploration_fraction",
    "exploration_final_eps",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("side", choices=["sb3", "ours", "test"])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="*", default=range(10))
    options = parser.parse_args()
    if options.side == "test":
        compare(json.loads(options.first.read_text()), json.loads(options.second.read_text()))
        return
    experiment = tomllib.loads(options.first.read_text())
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "NPROC"), "1"))  # a core for each seed
    one = partial({"sb3": sb3, "ours": ours}[options.side], experiment)
    returns: dict[int, float] = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for seed, final in pool.imap_unordered(partial(finished, one), options.seeds):
            returns[seed] = final
            print(f"{options.side} seed {seed}: {final:.1f}", flush=True)
    content = {"side": options.side, "experiment": experiment, "returns": returns}
    options.second.write_text(json.dumps(content, indent=2) + "\n")


def finished(one: Callable[[int], float], seed: int) -> tuple[int, float]:
    return seed, one(seed)


def sb3(experiment: dict[str, Any], seed: int) -> float:
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    (agent,) = experiment["agents"]
    model = DQN(
        "MlpPolicy",
        experiment["environment"]["id"],
        gamma=experiment["environment"]["discount"],
        policy_kwargs={"net_arch": agent["hidden"], "activation_fn": torch.nn.ReLU},
        device="cpu",
        seed=seed,
        **{key: agent[key] for key in SHARED},
    )
    model.learn(experiment["budget"]["env_steps_per_agent"])
    return greedy_return(
        experiment, seed, lambda state: int(model.predict(state, deterministic=True)[0])
    )


def ours(experiment: dict[str, Any], seed: int) -> float:
    from fedhql.agents.dqn.agent import DqnAgent
    from fedhql.agents.dqn.config import DqnConfig
    from fedhql.environments.compiled import find_twin
    from fedhql.environments.make import make_environment

    (settings,) = experiment["agents"]
    env_id, budget = experiment["environment"]["id"], experiment["budget"]["env_steps_per_agent"]
    agent = DqnAgent(
        DqnConfig(**settings | {"hidden": tuple(settings["hidden"])}),
        make_environment(env_id),
        find_twin(env_id),
        discount=experiment["environment"]["discount"],
        budget_env_steps=budget,
        seed=seed,
    )
    agent.self_learn(budget)
    return greedy_return(
        experiment, seed, lambda state: int(agent.q_values(state[None])[0].argmax())
    )


def greedy_return(experiment: dict[str, Any], seed: int, act: Callable[[Any], int]) -> float:
    import gymnasium as gym

    env = gym.make(experiment["environment"]["id"], disable_env_checker=True)
    returns = []
    for episode in range(EPISODES):
        state, _ = env.reset(seed=1_000_000 + 1_000 * seed + episode)
        total, ended = 0.0, False
        while not ended:
            state, reward, terminated, truncated, _ = env.step(act(state))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return fmean(returns)


def compare(reference: dict[str, Any], mine: dict[str, Any]) -> None:
    from scipy.stats import mannwhitneyu

    if reference["experiment"] != mine["experiment"]:
        sys.exit("the two sides were trained with different settings")
    sides = {side["side"]: list(side["returns"].values()) for side in (reference, mine)}
    for name, returns in sides.items():
        print(f"{name:5} mean {fmean(returns):7.1f}  of {sorted(round(r) for r in returns)}")
    p = mannwhitneyu(*sides.values()).pvalue
    verdict = "indistinguishable" if p >= 0.05 else "different"
    print(f"Mann-Whitney U, two-sided: p = {p:.3f}: {verdict} at 5 %")


if __name__ == "__main__":
    main()
