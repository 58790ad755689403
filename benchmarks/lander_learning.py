"""Does a DQN learn the same in LunarLander's twin as in Gymnasium's LunarLander?

    python benchmarks/lander_learning.py gymnasium OUT.json [--seeds 32] [--jobs 2]
    python benchmarks/lander_learning.py twin      OUT.json [--seeds 32] [--jobs 2]
    python benchmarks/lander_learning.py test GYMNASIUM.json TWIN.json

The same DQN trains in either; seeds of the twin are lanes of one program, on a GPU if there is one.
After each tenth of the budget, each agent plays greedy episodes, always in Gymnasium's environment.
The two sides are equivalent if the 90 % interval of the difference of their means, over the second
half of the evaluations, lies within MARGIN (two one-sided Welch tests at 5 %). The margin was
chosen before the first run: a seventh of what separates a crash from a landing.
"""

import argparse
import json
import multiprocessing
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

MARGIN = 40.0
POINTS, EPISODES = 10, 20
BUDGET, DISCOUNT = 200_000, 0.99
SETTINGS: dict[str, Any] = {
    "hidden": (64, 64),
    "learning_rate": 5e-4,
    "learning_starts": 1_000,
    "buffer_size": 100_000,
    "batch_size": 64,
    "target_update_interval": 1_000,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.05,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("side", choices=["gymnasium", "twin", "test"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.side == "test":
        compare(*(np.array(json.loads(file.read_text())["returns"]) for file in options.files))
        return
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "NPROC"), "1"))  # a core for each seed
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        if options.side == "gymnasium":
            os.environ["JAX_PLATFORMS"] = "cpu"
            returns = list(pool.imap(in_gymnasium, range(options.seeds)))
        else:
            returns = in_twin(options.seeds, pool)
    settings = SETTINGS | {"budget": BUDGET, "points": POINTS, "episodes": EPISODES}
    content = {"side": options.side, "settings": settings, "returns": np.array(returns).tolist()}
    options.files[0].write_text(json.dumps(content) + "\n")
    print(options.side, np.array(returns).mean(axis=0).round(1))


def in_gymnasium(seed: int) -> list[float]:
    """Return one agent's mean greedy return at each point."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from fedhql.agents.dqn.agent import DqnAgent
    from fedhql.agents.dqn.config import DqnConfig
    from fedhql.environments.make import make_environment

    agent = DqnAgent(
        DqnConfig(**SETTINGS),
        make_environment("LunarLander-v3"),
        None,
        discount=DISCOUNT,
        budget_env_steps=BUDGET,
        seed=seed,
    )
    returns = []
    for point in range(POINTS):
        agent.self_learn(BUDGET // POINTS)
        layers = agent.network.unpack(agent._parameters())
        returns.append(greedy_return(agent.network, layers, seed, point))
    return returns


def in_twin(seeds: int, pool: Any) -> list[list[float]]:
    """Return all agents' mean greedy returns at each point."""
    from fedhql.agents.dqn.config import DqnConfig
    from fedhql.agents.dqn.network import Network
    from fedhql.agents.dqn.numbers import numbers_of
    from fedhql.agents.dqn.phases import advance
    from fedhql.agents.dqn.population import Dqn
    from fedhql.environments.lanes import TwinLanes
    from fedhql.environments.lunar_lander.twin import lunar_lander

    config = DqnConfig(**SETTINGS)
    network = Network(8, config.hidden, 4, config.activation)
    phase = BUDGET // POINTS
    dqn = Dqn.of(config, network, TwinLanes(lunar_lander()), phase, config.buffer_size)
    numbers = numbers_of([config] * seeds, discount=DISCOUNT, budget_env_steps=BUDGET)
    learner, experience = dqn.initialise(np.arange(seeds, dtype=np.uint32), [network])
    returns = []
    for point in range(POINTS):
        learner, experience = advance(
            dqn, learner, experience, numbers, point * phase, (point + 1) * phase
        )
        layers = [network.unpack(row) for row in np.asarray(learner.parameters)]
        play = partial(_played, network, point)
        returns.append(pool.map(play, enumerate(layers)))
    return [list(of_seed) for of_seed in zip(*returns, strict=True)]


def _played(network: Any, point: int, agent: tuple[int, Any]) -> float:
    seed, layers = agent
    return greedy_return(network, layers, seed, point)


def greedy_return(network: Any, layers: Any, seed: int, point: int) -> float:
    import gymnasium as gym

    env = gym.make("LunarLander-v3", disable_env_checker=True)
    total = 0.0
    for episode in range(EPISODES):
        state, _ = env.reset(seed=1_000_000 + 1_000 * seed + EPISODES * point + episode)
        ended = False
        while not ended:
            action = int(network.apply(layers, state[None])[0].argmax())
            state, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
    env.close()
    return total / EPISODES


def compare(gymnasium_SP: Any, twin_SP: Any) -> None:
    from scipy import stats

    print("point", "gymnasium", "twin", "difference and its 95 % interval", sep="\t")
    for point in range(POINTS):
        ours, theirs = twin_SP[:, point], gymnasium_SP[:, point]
        low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
        print(
            f"{(point + 1) * BUDGET // POINTS}\t{theirs.mean():.1f}\t{ours.mean():.1f}"
            f"\t{ours.mean() - theirs.mean():+.1f} [{low:.1f}, {high:.1f}]"
        )
    ours, theirs = (side[:, POINTS // 2 :].mean(axis=1) for side in (twin_SP, gymnasium_SP))
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    low, high = test.confidence_interval(0.9)
    verdict = "equivalent" if low > -MARGIN and high < MARGIN else "not shown to be equivalent"
    print(
        f"second half: Gymnasium {theirs.mean():.1f} (of {len(theirs)} seeds, standard deviation "
        f"{theirs.std(ddof=1):.1f}), twin {ours.mean():.1f} ({len(ours)}, {ours.std(ddof=1):.1f}); "
        f"difference {ours.mean() - theirs.mean():+.1f}, 90 % interval [{low:.1f}, {high:.1f}], "
        f"margin {MARGIN:g}: {verdict}; p of a difference {test.pvalue:.2f}"
    )


if __name__ == "__main__":
    main()
