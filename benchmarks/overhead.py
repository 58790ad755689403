"""What a round of the message engine is made of, and what checkpoints cost (`make bench`).

Five stable-baselines3 agents of the paper's N=5 table on CartPole, in this process, on one numeric
thread. Each part of a round is timed separately, round after round, so that noise of a shared
machine falls on all parts alike; the table shows medians over rounds. Checkpoints are timed with
replay memories of several sizes, and their share of a run follows from the rule that spaces them.
"""

import json
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhql.engines.build import build_cohort, build_server
from fedhql.engines.build_agent import build_agents
from fedhql.engines.evaluation import evaluate
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.environments.batch import EnvironmentBatch
from fedhql.federation import Budget, Cohort
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text
from fedhql.storage.checkpoints import SHARE_OF_RUN, Checkpoints

ROUNDS = 4


class TimedCohort:
    """Passes every call on, and adds up how long each kind took."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self.seconds: dict[str, float] = defaultdict(float)
        self.names = cohort.names

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._cohort, name)

        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            answer = call(*arguments)
            self.seconds[name] += time.perf_counter() - begun
            return answer

        return timed


def main() -> None:
    torch.set_num_threads(1)
    settings = read_settings(preset_text("cartpole-n5"), ["agents.learning_starts=500"])
    agents = build_agents(settings, seed=0)
    cohort: Any = TimedCohort(build_cohort(settings, agents))
    server_environments = EnvironmentBatch("CartPole-v1", settings.federation.query_batch)
    server = build_server(settings, cohort, server_environments)
    environments = EnvironmentBatch("CartPole-v1", len(agents) * settings.evaluation.episodes)
    budget = Budget(settings.budget.env_steps_per_agent, len(agents))
    env_steps = settings.federation.self_learning_env_steps

    cohort.self_learn(1_000)  # past learning_starts: every measured step trains
    parts: dict[str, list[float]] = defaultdict(list)
    for number in range(ROUNDS):
        cohort.seconds.clear()
        cohort.self_learn(env_steps)
        parts["self-learning"].append(cohort.seconds.pop("self_learn"))
        seeds_NE = np.stack(
            [seeds_for(0, Stream.EVALUATION, n, number, count=10) for n in range(len(agents))]
        )
        play = partial(evaluate, cohort.act_each, environments, seeds_NE, discount=0.99)
        parts["evaluation"].append(seconds(play))
        cohort.seconds.clear()
        begun = time.perf_counter()
        budget, _ = server.federate(budget, seeds_for(0, Stream.SERVER, number, count=128).tolist())
        whole = time.perf_counter() - begun
        parts["query"].append(cohort.seconds["query"])
        parts["improvement"].append(cohort.seconds["improve"])
        parts["server"].append(whole - cohort.seconds["query"] - cohort.seconds["improve"])

    medians = {part: statistics.median(values) for part, values in parts.items()}
    total = sum(medians.values())
    print(f"{platform.node()}, {platform.processor() or platform.machine()}, one thread")
    print(f"\none federated round, CartPole N=5, median of {ROUNDS} rounds: {total:.2f} s")
    for part, value in medians.items():
        print(f"  {part:14} {value:8.3f} s  {100 * value / total:5.1f} %")
    rate = len(agents) * env_steps / medians["self-learning"]
    print(f"  self-learning of all agents: {rate:,.0f} env steps/s")

    print(f"\na checkpoint of five agents (spaced so that they take {SHARE_OF_RUN:.0%} of a run)")
    checkpoints = {}
    for replay in (10_000, 100_000, 1_000_000):
        checkpoints[replay] = checkpoint_seconds(agents, replay)
        interval = checkpoints[replay] / SHARE_OF_RUN
        spent = f"{checkpoints[replay]:6.3f} s, one every {interval:6.1f} s"
        print(f"  replay {replay:9,} each: {spent}")
    results = {"machine": platform.platform(), "round_seconds": medians, "checkpoint": checkpoints}
    path = Path("runs") / "bench" / "overhead.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nresults: {path}")


def checkpoint_seconds(agents: list[Any], replay: int) -> float:
    """Median of three, to a real disk, synced, with `replay` transitions in every memory."""
    for agent in agents:
        agent._model.replay_buffer.pos = replay % agent._model.replay_buffer.buffer_size
        agent._model.replay_buffer.full = replay == agent._model.replay_buffer.buffer_size
    with tempfile.TemporaryDirectory(dir=".") as home:
        checkpoints = Checkpoints(Path(home), time.monotonic)

        def write() -> None:
            with checkpoints.write(0) as directory:
                for n, agent in enumerate(agents):
                    (directory / str(n)).mkdir()
                    agent.save(directory / str(n))

        return statistics.median(seconds(write) for _ in range(3))


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
