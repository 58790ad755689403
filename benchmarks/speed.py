"""Ours and stable-baselines3's DQN side by side, on one pinned core (`make bench`).

    python benchmarks/speed.py [--repeats 5] [--lanes 6] [--out runs/bench/speed.json]

Each repeat times every contender once, one after the other, so that the noise of a shared machine
falls on all alike; the tables show medians over repeats, and ratios of medians. Every measured
step trains: learning has started. Replay memories are allocated at the presets' full size.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

CORE = min(os.sched_getaffinity(0))
WARM_UP, SB3_STEPS, HOST_STEPS = 1_000, 1_500, 3_000
ENVPOOL_LANES, ENVPOOL_PHASE = 60, 2_000  # the paper's six arms with ten seeds
SB3, UNCHECKED = "stable-baselines3", "SB3, unchecked"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=6, help="CartPole federations side by side")
    parser.add_argument("--lunarlander", action="store_true", help="only LunarLander")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/speed.json"))
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_core()
    if options.memory_only:
        print(json.dumps(memory_of_a_grid(lanes=30, replay=1_000_000)))
        return
    results: dict[str, Any] = {"machine": machine(), "repeats": options.repeats}
    results["lunarlander"] = compare("lunarlander", options.repeats, ENVPOOL_LANES)
    if not options.lunarlander:
        results["cartpole"] = compare("cartpole", options.repeats, options.lanes)
        results["round"] = round_parts(options.repeats, options.lanes)
        # In a process of its own: the peak of this one's memory is not that of the grid.
        told = subprocess.run(
            [sys.executable, __file__, "--memory-only"], check=True, capture_output=True, text=True
        )
        results["memory"] = json.loads(told.stdout.splitlines()[-1])
        show_memory(results["memory"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nresults: {options.out}")


def one_core() -> None:
    """Before any numeric library is loaded: they ask for their threads then."""
    os.sched_setaffinity(0, {CORE})
    from fedhql.threads import ONE_THREAD  # loads NumPy, which sees one core and starts one thread

    os.environ.update(ONE_THREAD)
    from fedhql.engines.jax_setup import prepare_jax

    prepare_jax()


def machine() -> str:
    """Return the processor; Linux on ARM names none, so its architecture stands for it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, core {CORE} of {os.cpu_count()}"


def compare(task: str, repeats: int, lanes: int) -> dict[str, Any]:
    """Env steps a second of each agent of the N=5 table, for each way of training it."""
    from fedhql.settings.experiment import read_settings
    from fedhql.settings.presets import preset_text

    overrides = [f"agents.learning_starts={WARM_UP // 2}"]
    if task == "lunarlander":  # a whole phase of 10,000 steps in 30 lanes would take minutes
        overrides.append(f"federation.self_learning_env_steps={ENVPOOL_PHASE}")
    settings = read_settings(preset_text(f"{task}-n5"), overrides)
    contenders: dict[str, list[tuple[Callable[[], Any], int]]] = {
        SB3: plain_sb3(settings, SB3_STEPS),
        UNCHECKED: message_agents(settings, "sb3", SB3_STEPS),
        "one lane": message_agents(settings, "dqn", settings.federation.self_learning_env_steps),
        f"{lanes} lanes": grid_phases(settings, lanes),
    }
    if task == "lunarlander":  # which has no twin: an agent by itself runs the host loop
        contenders = {
            SB3: contenders[SB3],
            UNCHECKED: contenders[UNCHECKED],
            "host loop": message_agents(settings, "dqn", HOST_STEPS),
            f"{lanes} EnvPool lanes": contenders[f"{lanes} lanes"],
        }
    seconds: dict[str, list[list[float]]] = {
        name: [[] for _ in settings.agents] for name in contenders
    }
    for repeat in range(repeats + 1):  # the first compiles and fills memories
        for n in range(len(settings.agents)):
            for name, calls in contenders.items():
                call, env_steps = calls[n]
                spent = timed(call) / env_steps
                if repeat:
                    seconds[name][n].append(spent)
    rates = {
        name: [1 / statistics.median(values) for values in agents]
        for name, agents in seconds.items()
    }
    shapes = ["x".join(map(str, agent.options["hidden"])) for agent in settings.agents]
    return show_rates(task, shapes, rates)


def plain_sb3(settings: Any, env_steps: int) -> list[tuple[Any, int]]:
    """As its documentation says: DQN("MlpPolicy", id). Gymnasium then checks every step it takes.

    (The second column, our wrapper around the same class, has switched that off.)
    """
    import torch
    from stable_baselines3 import DQN

    from fedhql.agents.sb3.private_model import ACTIVATIONS

    torch.set_num_threads(1)
    same = (
        "learning_rate",
        "buffer_size",
        "learning_starts",
        "batch_size",
        "train_freq",
        "gradient_steps",
        "target_update_interval",
        "exploration_final_eps",
    )
    calls = []
    for agent in settings.agents:
        options = agent.options
        model = DQN(
            "MlpPolicy",
            settings.environment.id,
            gamma=settings.environment.discount,
            exploration_initial_eps=options["exploration_final_eps"],
            policy_kwargs={
                "net_arch": list(options["hidden"]),
                "activation_fn": ACTIVATIONS[options["activation"]],
            },
            device="cpu",
            seed=0,
            **{key: options[key] for key in same},
        )
        model.learn(WARM_UP)
        calls.append((partial(model.learn, env_steps, reset_num_timesteps=False), env_steps))
    return calls


def message_agents(settings: Any, backbone: str, env_steps: int) -> list[tuple[Any, int]]:
    import numpy as np

    from fedhql.engines.build_agent import build_agents
    from fedhql.settings.experiment import with_backbone

    agents = build_agents(with_backbone(settings, backbone), seed=0)
    states = np.zeros((1, 4 if "CartPole" in settings.environment.id else 8), dtype=np.float32)

    def learn(agent: Any, env_steps: int) -> None:
        agent.self_learn(env_steps)
        agent.q_values(states)  # waits for what JAX has only been told to do

    for agent in agents:
        learn(agent, WARM_UP)
    return [(partial(learn, agent, env_steps), env_steps) for agent in agents]


def grid_phases(settings: Any, lanes: int) -> list[tuple[Any, int]]:
    """Self-learning of each agent in all lanes of a compiled grid."""
    from fedhql.agents.dqn.phases import advance
    from fedhql.engines.build_grid import build_grid
    from fedhql.storage.run_directory import Cell

    grid = build_grid(settings, [Cell("fedhql", seed) for seed in range(lanes)])
    K = settings.federation.self_learning_env_steps
    states: list[Any] = [[*pair, 0] for pair in zip(grid.learners, grid._experiences, strict=True)]
    grid.learners, grid._experiences = (), []  # each phase takes over the memory it is given

    def phase(p: int) -> None:
        learner, experience, begin = states[p]
        dqn, numbers = grid.cohort.members[p].dqn, grid._numbers[p]
        states[p] = [*advance(dqn, learner, experience, numbers, begin, begin + K), begin + K]
        states[p][0].parameters.block_until_ready()

    return [(partial(phase, p), K * lanes) for p in range(len(settings.agents))]


def show_rates(task: str, shapes: list[str], rates: dict[str, list[float]]) -> dict[str, Any]:
    """In total: all five agents for the same number of steps, so slow ones weigh more."""
    names = list(rates)
    reference = rates[SB3]
    total = {name: statistics.harmonic_mean(values) for name, values in rates.items()}
    print(f"\n{task}, env steps/s on one core" + "".join(f"{name:>22}" for name in names))
    for n, shape in enumerate([*shapes, "all five"]):
        row = {name: (rates[name][n] if n < len(shapes) else total[name]) for name in names}
        base = reference[n] if n < len(shapes) else total[SB3]
        cells = "".join(f"{rate:13,.0f} ({rate / base:5.1f}x)" for rate in row.values())
        print(f"  {shape:28}{cells}")
    ratios = {name: total[name] / total[SB3] for name in names}
    return {"agents": shapes, "env_steps_per_second": rates, "total": total, "ratio": ratios}


def round_parts(repeats: int, lanes: int) -> dict[str, float]:
    """One compiled CartPole round, all lanes federated, split into its parts."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fedhql.engines.build_grid import build_grid
    from fedhql.settings.experiment import read_settings
    from fedhql.settings.presets import preset_text
    from fedhql.storage.run_directory import Cell

    settings = read_settings(preset_text("cartpole-n5"), [f"agents.learning_starts={WARM_UP}"])
    grid = build_grid(settings, [Cell("fedhql", seed) for seed in range(lanes)])
    federation, N = settings.federation, len(settings.agents)
    K, B, H = federation.self_learning_env_steps, federation.query_batch, federation.horizon_steps
    rng = np.random.default_rng(0)

    def seeds(*shape: int) -> Any:
        return rng.integers(2**32, size=shape, dtype=np.uint32)

    # The same round by agents that do not improve: what is left is queries and the server.
    members = tuple(
        replace(each, dqn=replace(each.dqn, improvement_steps=0)) for each in grid.cohort.members
    )
    idle = replace(grid._server, cohort=replace(grid.cohort, members=members))
    query = jax.jit(lambda learners, states: grid.cohort.q_values(learners, grid._numbers, states))
    states = jnp.zeros((lanes, B, 4))

    def federate(server: Any) -> None:
        grid._server, before = server, grid._server
        outcome = grid.federate(seeds(lanes, B), np.full(lanes, 10**9), 0)
        np.asarray(outcome.server_env_steps)
        grid._server = before

    def queries() -> None:
        for _ in range(2 * H):
            query(grid.learners, states).block_until_ready()

    parts: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        times = {
            "self-learning": timed(partial(grid.self_learn, np.full(lanes, K * (repeat + 1)))),
            "evaluation": timed(partial(grid.evaluate, seeds(lanes, N, 10), 500)),
            "federation": timed(partial(federate, grid._server)),
            "federation without improvement": timed(partial(federate, idle)),
            "query": timed(queries),
        }
        if repeat:
            for part, spent in times.items():
                parts.setdefault(part, []).append(spent)
    medians = {part: statistics.median(values) for part, values in parts.items()}
    whole = medians["self-learning"] + medians["evaluation"] + medians["federation"]
    other = medians["federation without improvement"]
    medians["improvement"] = medians["federation"] - other
    medians["server"] = other - medians["query"]
    print(f"\none compiled CartPole round, N=5, {lanes} lanes: {whole:.2f} s")
    for part in ("self-learning", "evaluation", "improvement", "query", "server"):
        print(f"  {part:14} {medians[part]:8.3f} s  {100 * medians[part] / whole:5.1f} %")
    medians["other_share"] = other / whole
    print(f"  neither self-learning nor improvement nor evaluation: {medians['other_share']:.1%}")
    return medians


def memory_of_a_grid(lanes: int, replay: int) -> dict[str, float]:
    """Peak memory of a whole grid that has run a phase with its memories allocated."""
    import numpy as np

    from fedhql.engines.build_grid import build_grid
    from fedhql.settings.experiment import read_settings
    from fedhql.settings.presets import preset_text
    from fedhql.storage.run_directory import Cell

    overrides = [f"agents.buffer_size={replay}", "federation.self_learning_env_steps=500"]
    settings = read_settings(preset_text("cartpole-n5"), overrides)
    grid = build_grid(settings, [Cell("fedhql", seed) for seed in range(lanes)])
    grid.self_learn(np.full(lanes, 500))
    grid.self_learn(np.full(lanes, 1_000))
    # Not ru_maxrss, which remembers how large the process was that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    agents = lanes * len(settings.agents)
    return {
        "federations": lanes,
        "replay": replay,
        "peak_gb": peak / 1e9,
        "mb_per_agent": peak / agents / 1e6,
    }


def show_memory(memory: dict[str, float]) -> None:
    print(
        f"\nmemory, CartPole N=5, {memory['federations']} federations, replay {memory['replay']:,} "
        f"each: {memory['peak_gb']:.1f} GB at most, {memory['mb_per_agent']:.0f} MB an agent"
    )


def timed(call: Callable[[], Any]) -> float:
    """Return CPU time, which other work on the machine changes less than wall time."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
