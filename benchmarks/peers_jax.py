"""Our compiled DQN beside two others that train as one XLA program: PureJaxRL's and rejax's.

PureJaxRL is not on PyPI; its DQN is one file. Install both peers and run:

    pip install rejax==0.1.3 flashbax==0.1.3 'gymnax<1'
    curl -L -o purejaxrl_dqn.py https://raw.githubusercontent.com/luchris429/purejaxrl/\
31756b197773a52db763fdbe6d635e4b46522a73/purejaxrl/dqn.py
    PYTHONPATH=.:src python benchmarks/peers_jax.py [--lanes 1 6] [--repeats 3] [--out FILE.json]

The same command runs on one core, which it pins, and on a GPU, where `--lanes 1 150` makes sense.
PureJaxRL fails on a GPU under our flags for XLA, so run it with `--default-flags` there, and our
program once more by itself (`--peers`, and no names) without.
Each repeat trains every contender once from new seeds, one after the other. A lane is one agent
with one CartPole; lanes run side by side under `vmap`. Seconds are CPU time on a core, which other
jobs change less, and wall time on a GPU; compiling is timed apart. All contenders share SETTINGS
and full float32 precision, and none clips gradients. Returns are those of the greedy policies at
the end, with the largest `--lanes`, in the same 100 episodes for everyone.

What still differs: our loss is Huber's, as stable-baselines3's is, and both peers' is the squared
error. "PureJaxRL, Huber" has our loss. The peers take a truncated episode as terminated. Their
first weights are flax's, ours PyTorch's. rejax acts at random until it learns. It trains after
every step, so its loop is written here, around its own parts, to train after every fourth.
PureJaxRL needs PUREJAXRL_CHANGES (in jax_contenders.py): it fixes its seed and its network, and
uses a name that JAX has removed.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.jax_contenders import (
    ENV_ID,
    OUR_LOSS,
    SETTINGS,
    Contender,
    ours,
    purejaxrl,
    rejax,
)
from fedhql.engines.jax_setup import set_gpu_flags
from fedhql.threads import ONE_THREAD

EPISODES, LEVEL = 100, 0.95
OURS, PUREJAXRL, HUBER, REJAX = "fedhql", "PureJaxRL", "PureJaxRL, Huber", "rejax"
INSTALL = __doc__.split("\n\n")[2] if __doc__ else ""
PUREJAXRL_NEEDS = ("flax", "flashbax", "gymnax")


@dataclass
class Row:
    """The measurements of one contender with one network and number of lanes."""

    network: str
    lanes: int
    name: str
    compile_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 6])
    parser.add_argument("--networks", nargs="*", default=["64x64", "128x128"])
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=[PUREJAXRL, HUBER, REJAX])
    parser.add_argument("--purejaxrl", type=Path, default=Path("purejaxrl_dqn.py"))
    parser.add_argument("--default-flags", action="store_true", help="leave XLA's flags alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prepare(default_flags=options.default_flags)
    if missing := missing_peers(options.peers, options.purejaxrl):
        sys.exit(f"{missing}; install the peers and run:\n{INSTALL}")
    rows = []
    for network in options.networks:
        hidden = tuple(map(int, network.split("x")))
        makers: dict[str, Callable[[], Contender]] = {
            OURS: partial(ours, hidden, options.env_steps),
            PUREJAXRL: partial(purejaxrl, options.purejaxrl, hidden, options.env_steps, {}),
            HUBER: partial(purejaxrl, options.purejaxrl, hidden, options.env_steps, OUR_LOSS),
            REJAX: partial(rejax, hidden, options.env_steps),
        }
        contenders = {name: makers[name]() for name in (OURS, *options.peers)}
        for lanes in options.lanes:
            learned = lanes == max(options.lanes)
            chosen = {name: c for name, c in contenders.items() if learned or name != HUBER}
            rows += measured(chosen, network, lanes, options.repeats, learned=learned)
    print(f"\n{machine()}, {options.env_steps:,} env steps a lane\n")
    show_speed(rows, options.env_steps)
    comparisons = show_returns(rows)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "machine": machine(),
            "env_steps": options.env_steps,
            "settings": SETTINGS,
            "rows": [vars(row) for row in rows],
            "differences_of_means": comparisons,
        }
        options.out.write_text(json.dumps(content, indent=2) + "\n")


def prepare(*, default_flags: bool) -> None:
    """Pin one core and set JAX up, before JAX is loaded. Do not cache compiled programs."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.update(ONE_THREAD)
    if not default_flags:
        set_gpu_flags()
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")  # type: ignore[no-untyped-call]  # jax leaves it untyped


def missing_peers(peers: Sequence[str], file: Path) -> str:
    """Return what is missing; nothing if all peers can be loaded."""
    if {PUREJAXRL, HUBER} & set(peers) and not file.exists():
        return f"--purejaxrl {file} does not exist"
    needed = {PUREJAXRL: PUREJAXRL_NEEDS, HUBER: PUREJAXRL_NEEDS, REJAX: ("rejax",)}
    for name in (name for peer in peers for name in needed[peer]):
        try:
            import_module(name)
        except ImportError as error:
            return str(error)
    return ""


def machine() -> str:
    import jax

    device, model = jax.devices()[0], platform.machine()
    if device.platform != "cpu":
        return f"{device.device_kind}, jax {jax.__version__}"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return f"one core of {model}, jax {jax.__version__}"


def measured(
    contenders: dict[str, Contender], network: str, lanes: int, repeats: int, *, learned: bool
) -> list[Row]:
    import jax
    import numpy as np

    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    rows = {name: Row(network, lanes, name) for name in contenders}
    trains = {}
    for name, contender in contenders.items():
        begun = clock()
        trains[name] = contender.compile(np.arange(lanes, dtype=np.uint32))
        rows[name].compile_seconds = clock() - begun
    for repeat in range(repeats):
        seeds_L = np.arange(repeat * lanes, (repeat + 1) * lanes, dtype=np.uint32)
        for name, contender in contenders.items():
            begun = clock()
            parameters = trains[name](seeds_L)
            jax.tree.leaves(parameters)[0].block_until_ready()
            rows[name].seconds.append(clock() - begun)
            if learned:
                rows[name].returns += greedy_returns(contender.q_values, parameters)
            print(f"{network}, {lanes} lanes, {name}: {rows[name].seconds[-1]:.2f} s", flush=True)
    return list(rows.values())


def greedy_returns(q_values: Callable[[Any, Any], Any], parameters: Any) -> list[float]:
    """Return the mean return of each agent in the same EPISODES episodes."""
    import jax
    import jax.numpy as jnp

    from fedhql.environments.lanes import TwinLanes
    from fedhql.environments.twins import TWINS

    lanes, twin = TwinLanes(TWINS[ENV_ID]), TWINS[ENV_ID]

    def of_agent(parameters: Any) -> Any:
        def play(_: Any, now: Any) -> Any:
            episodes, running_E, returns_E = now
            actions_E = q_values(parameters, lanes.observe(episodes)).argmax(axis=1)
            step = lanes.step(episodes, actions_E, running_E)
            return step.episodes, running_E & ~step.ended, returns_E + running_E * step.rewards

        seeds_E = jnp.arange(1_000_000, 1_000_000 + EPISODES, dtype=jnp.uint32)
        begin = lanes.begin(seeds_E), jnp.ones(EPISODES, dtype=bool), jnp.zeros(EPISODES)
        return jax.lax.fori_loop(0, twin.step_limit, play, begin)[2].mean()

    means_L: list[float] = jax.jit(jax.vmap(of_agent))(parameters).tolist()
    return means_L


def show_speed(rows: Sequence[Row], env_steps: int) -> None:
    print("| network | lanes | DQN | env steps/s | slowest to fastest | fedhql is | compiling |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        same = (r for r in rows if (r.network, r.lanes) == (row.network, row.lanes))
        own = next(r for r in same if r.name == OURS)
        median, steps = statistics.median(row.seconds), env_steps * row.lanes
        times = "" if row is own else f"{median / statistics.median(own.seconds):.1f} times as fast"
        print(
            f"| {row.network} | {row.lanes} | {row.name} | {steps / median:,.0f} | "
            f"{steps / max(row.seconds):,.0f} to {steps / min(row.seconds):,.0f} | {times} | "
            f"{row.compile_seconds:.1f} s |"
        )


def show_returns(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Print what was learned; return our mean minus each peer's, with Welch's t-interval."""
    from scipy.stats import ttest_ind

    differences = []
    print(f"\n| network | DQN | seeds | median | mean | fedhql's mean more, {LEVEL:.0%} interval |")
    print("|---|---|---|---|---|---|")
    for row in (row for row in rows if row.returns):
        shown = ""
        if row.name == OURS:
            own = row.returns
        elif len(own) > 1:
            interval = ttest_ind(own, row.returns, equal_var=False).confidence_interval(LEVEL)
            more = statistics.fmean(own) - statistics.fmean(row.returns)
            low, high = float(interval.low), float(interval.high)
            shown = f"{more:+.1f} [{low:+.1f}, {high:+.1f}]"
            differences.append(
                {"network": row.network, "peer": row.name, "more": more, "interval": [low, high]}
            )
        median, mean = statistics.median(row.returns), statistics.fmean(row.returns)
        print(
            f"| {row.network} | {row.name} | {len(row.returns)} | {median:.1f} | {mean:.1f} | "
            f"{shown} |"
        )
    return differences


if __name__ == "__main__":
    main()
