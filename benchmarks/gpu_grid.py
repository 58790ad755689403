"""An experiment of the paper on a GPU: 6 arms x 5 seeds x N agents at once, federation included.

Self-contained: needs jax, numpy and optax, and this repository's src on the path; nothing else.

    PYTHONPATH=src python benchmarks/gpu_grid.py [cartpole-n5] [--rounds 4] [--seeds 5] [--out FILE]

It counts agent steps (env steps of all agents in all lanes; the server's are left out) over the
wall-clock of whole rounds: self-learning, evaluation, federation, all on the device.
"""

import argparse
import json
import statistics
import time
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedhql.agents.dqn.config import DqnConfig
from fedhql.compiled.grid import Grid
from fedhql.compiled.round_arrays import ArmNumbers
from fedhql.engines.jax_setup import set_gpu_flags
from fedhql.environments.compiled import COMPILED_ENVIRONMENTS

PRESETS = Path(__file__).parent.parent / "src/fedhql/settings/presets"
LAMBDAS = (0.0, 1.0, 3.0, 5.0, 10.0)
EPISODES = 10
PADDING = {"auto": None, "yes": True, "no": False}


def build(preset: dict[str, Any], seeds: int, replay: int, pad: bool | None) -> Grid:
    configs = [
        DqnConfig(
            **{key: value for key, value in agent.items() if key not in ("kind", "hidden")}
            | {"hidden": tuple(agent["hidden"]), "buffer_size": replay, "learning_starts": 1_000}
        )
        for agent in preset["agents"]
    ]
    federation = preset["federation"]
    lambdas = jnp.repeat(jnp.array(LAMBDAS), seeds)
    F = len(lambdas)
    L = F + seeds
    arms = ArmNumbers(
        rule_numbers={"exploration": lambdas},
        learning_rate=jnp.full(F, federation["learning_rate"]),
        pessimism=jnp.zeros(F),
        auditions=jnp.zeros(F, dtype=int),
        random_actions=jnp.zeros(F),
        random_actions_env_steps=jnp.zeros(F, dtype=int),
        horizon_steps=jnp.full(F, federation["horizon_steps"]),
        query_batch=jnp.full(F, federation["query_batch"]),
        replay_batch=jnp.zeros(F, dtype=int),
        replay_capacity=jnp.zeros(F, dtype=jnp.uint32),
        rule=jnp.zeros(F, dtype=int),
        carry_over=jnp.zeros(F, dtype=bool),
        public=jnp.zeros(F, dtype=bool),
        attack=jnp.zeros(F, dtype=int),
        attackers=jnp.zeros(F, dtype=int),
    )
    N = len(configs)
    return Grid(
        configs,
        COMPILED_ENVIRONMENTS[preset["environment"]["id"]].make_lanes,
        np.arange(L * N, dtype=np.uint32).reshape(L, N),
        arms,
        rules=("mean-std",),
        discount=preset["environment"]["discount"],
        phase_env_steps=federation["self_learning_env_steps"],
        budget_env_steps=preset["budget"]["env_steps_per_agent"],
        pad=pad,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("experiment", nargs="?", default="cartpole-n5")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5, help="of each of the six arms")
    parser.add_argument("--replay", type=int, default=1_000_000)
    parser.add_argument("--pad", choices=["auto", "yes", "no"], default="auto")
    parser.add_argument("--no-flags", action="store_true", help="leave XLA's flags as they are")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    preset = tomllib.loads((PRESETS / f"{options.experiment}.toml").read_text())
    if not options.no_flags:
        set_gpu_flags()  # as `fedhql run` does
    # float32, as `fedhql run` has it: a GPU's own choice would be ten bits of each factor.
    jax.config.update("jax_default_matmul_precision", "highest")  # type: ignore[no-untyped-call]  # jax leaves it untyped
    grid = build(preset, options.seeds, options.replay, PADDING[options.pad])
    K = preset["federation"]["self_learning_env_steps"]
    B = preset["federation"]["query_batch"]
    N, F = len(preset["agents"]), len(LAMBDAS) * options.seeds
    L = F + options.seeds
    rng = np.random.default_rng(0)

    def seeds(*shape: int) -> Any:
        return rng.integers(2**32, size=shape, dtype=np.uint32)

    parts: dict[str, list[float]] = {"self-learning": [], "evaluation": [], "federation": []}
    for number in range(options.rounds + 1):  # the first compiles
        times = [time.perf_counter()]
        grid.self_learn(np.full(L, K * (number + 1)))
        times.append(time.perf_counter())
        (returns, *_), _ = grid.evaluate(seeds(L, N, EPISODES), 1_000, seeds(F, EPISODES))
        times.append(time.perf_counter())
        outcome = grid.federate(seeds(F, B), np.full(F, 10**9), 0)
        grid.learners[0].parameters.block_until_ready()
        times.append(time.perf_counter())
        spent = np.diff(times)
        steps = int(np.asarray(outcome.server_env_steps).sum())
        print(
            f"round {number}: {spent.round(3)} s, mean return {returns.mean():.1f}, "
            f"server steps {steps}",
            flush=True,
        )
        if number:
            for name, seconds in zip(parts, spent, strict=True):
                parts[name].append(float(seconds))
    medians = {name: statistics.median(values) for name, values in parts.items()}
    round_seconds = sum(medians.values())
    agent_steps = L * N * K
    device = jax.devices()[0]
    result = {
        "experiment": options.experiment,
        "device": device.device_kind,
        "jax": jax.__version__,
        "lanes": L,
        "agents": N,
        "replay": options.replay,
        "round_seconds": medians,
        "agent_steps_per_second": agent_steps / round_seconds,
        "self_learning_steps_per_second": agent_steps / medians["self-learning"],
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
