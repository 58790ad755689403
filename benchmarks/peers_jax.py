"""Our compiled DQN beside two others that train as one XLA program: PureJaxRL's and rejax's.

PureJaxRL is not on PyPI; its DQN is one file. Install both peers and run:

    pip install rejax==0.1.3 flashbax==0.1.3 'gymnax<1'
    curl -L -o purejaxrl_dqn.py https://raw.githubusercontent.com/luchris429/purejaxrl/\
31756b197773a52db763fdbe6d635e4b46522a73/purejaxrl/dqn.py
    PYTHONPATH=src python benchmarks/peers_jax.py [--lanes 1 6] [--repeats 3] [--out FILE.json]

The same command runs on one core, which it pins, and on a GPU, where `--lanes 1 6 150` makes sense.
Each repeat trains every contender once from new seeds, one after the other. A lane is one agent
with one CartPole; lanes run side by side under `vmap`. Seconds are CPU time on a core, which other
jobs change less, and wall time on a GPU; compiling is timed apart. All contenders share SETTINGS
and full float32 precision, and none clips gradients. Returns are those of the greedy policies at
the end, with the largest `--lanes`, in the same 100 episodes for everyone.

What still differs: our loss is Huber's, as stable-baselines3's is, and both peers' is the squared
error. "PureJaxRL, Huber" has our loss. The peers take a truncated episode as terminated. Their
first weights are flax's, ours PyTorch's. rejax acts at random until it learns. It trains after
every step, so its loop is written here, around its own parts, to train after every fourth.
PureJaxRL needs PUREJAXRL_CHANGES: it fixes its seed and its network, and uses a name that JAX has
removed.
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
from types import ModuleType
from typing import Any

from fedhql.engines.jax_setup import set_gpu_flags
from fedhql.threads import ONE_THREAD

ENV_ID, EPISODES, LEVEL = "CartPole-v1", 100, 0.95
SETTINGS: dict[str, Any] = {
    "discount": 0.99,
    "learning_rate": 5e-4,
    "batch_size": 32,
    "train_freq": 4,
    "buffer_size": 10_000,
    "learning_starts": 1_000,
    "target_update_interval": 500,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.05,
    "exploration_fraction": 0.2,
}
PHASE = 5_000  # env steps of one call of our program
OURS, PUREJAXRL, HUBER, REJAX = "fedhql", "PureJaxRL", "PureJaxRL, Huber", "rejax"
INSTALL = __doc__.split("\n\n")[2] if __doc__ else ""
PUREJAXRL_NEEDS = ("flax", "flashbax", "gymnax")
PUREJAXRL_CHANGES = {
    "import wandb\n": "",
    "jax.tree_map(": "jax.tree.map(",
    "rng = jax.random.PRNGKey(0)  # use a dummy rng here": "pass",
    "nn.Dense(120)": "nn.Dense({0})",
    "nn.Dense(84)": "nn.Dense({1})",
}
OUR_LOSS = {
    "jnp.mean((chosen_action_qvals - target) ** 2)": (
        "jnp.mean(optax.huber_loss(chosen_action_qvals, target))"
    )
}


@dataclass
class Contender:
    """One way to train agents: seeds (L,) in, parameters with a first axis L out."""

    train: Callable[[Any], Any]
    q_values: Callable[[Any, Any], Any]  # parameters of one agent, states (E, D) -> (E, A)
    compile: Callable[[Any], Callable[[Any], Any]]  # returns the `train` for so many seeds


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
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prepare()
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


def prepare() -> None:
    """Pin one core and set JAX up, before JAX is loaded. Do not cache compiled programs."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.update(ONE_THREAD)
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


def ours(hidden: tuple[int, ...], env_steps: int) -> Contender:
    from fedhql.agents.dqn.config import DqnConfig
    from fedhql.agents.dqn.network import Network
    from fedhql.agents.dqn.numbers import numbers_of
    from fedhql.agents.dqn.population import Dqn, advance
    from fedhql.environments.lanes import TwinLanes
    from fedhql.environments.twins import TWINS

    own = {key: value for key, value in SETTINGS.items() if key != "discount"}
    config = DqnConfig(hidden=hidden, warm_up="policy", max_grad_norm=float("inf"), **own)
    lanes = TwinLanes(TWINS[ENV_ID])
    network = Network(lanes.observation_size, hidden, lanes.action_count, config.activation)
    dqn = Dqn.of(config, network, lanes, PHASE, config.replay_capacity(env_steps))

    def train(seeds_L: Any, until: int = env_steps) -> Any:
        numbers = numbers_of(
            [config] * len(seeds_L), discount=SETTINGS["discount"], budget_env_steps=env_steps
        )
        learner, experience = dqn.initialise(seeds_L, [network])
        for begin in range(0, until, PHASE):
            end = min(begin + PHASE, until)
            learner, experience = advance(dqn, learner, experience, numbers, begin, end)
        return learner.parameters

    def compiled(seeds_L: Any) -> Callable[[Any], Any]:
        # On a GPU the first phase, in which learning starts, and the others have own programs.
        train(seeds_L, 2 * PHASE).block_until_ready()
        return train

    return Contender(train, network.q_values, compiled)


def purejaxrl(
    file: Path, hidden: tuple[int, ...], env_steps: int, more_changes: dict[str, str]
) -> Contender:
    text = file.read_text()
    for before, after in (PUREJAXRL_CHANGES | more_changes).items():
        if text.count(before) != 1:
            sys.exit(f"{file} is another version of PureJaxRL's DQN: it has no single {before!r}")
        text = text.replace(before, after.format(*hidden))
    module = ModuleType("purejaxrl_dqn")
    sys.modules[module.__name__] = module  # dataclasses look it up there
    exec(compile(text, str(file), "exec"), vars(module))
    train = module.make_train(
        {
            "ENV_NAME": ENV_ID,
            "NUM_ENVS": 1,
            "TOTAL_TIMESTEPS": env_steps,
            "BUFFER_SIZE": SETTINGS["buffer_size"],
            "BUFFER_BATCH_SIZE": SETTINGS["batch_size"],
            "EPSILON_START": SETTINGS["exploration_initial_eps"],
            "EPSILON_FINISH": SETTINGS["exploration_final_eps"],
            "EPSILON_ANNEAL_TIME": SETTINGS["exploration_fraction"] * env_steps,
            "TARGET_UPDATE_INTERVAL": SETTINGS["target_update_interval"],
            "TAU": 1.0,
            "LR": SETTINGS["learning_rate"],
            "LEARNING_STARTS": SETTINGS["learning_starts"],
            "TRAINING_INTERVAL": SETTINGS["train_freq"],
            "GAMMA": SETTINGS["discount"],
        }
    )
    network = module.QNetwork(action_dim=2)
    return _one_program(lambda key: train(key)["runner_state"][0].params, network.apply)


def rejax(hidden: tuple[int, ...], env_steps: int) -> Contender:
    import jax

    dqn = import_module("rejax").DQN.create(
        env=ENV_ID,
        agent_kwargs={"activation": "relu"},
        ddqn=False,
        num_envs=1,
        total_timesteps=env_steps,
        learning_rate=SETTINGS["learning_rate"],
        gamma=SETTINGS["discount"],
        buffer_size=SETTINGS["buffer_size"],
        batch_size=SETTINGS["batch_size"],
        fill_buffer=SETTINGS["learning_starts"],
        eps_start=SETTINGS["exploration_initial_eps"],
        eps_end=SETTINGS["exploration_final_eps"],
        exploration_fraction=SETTINGS["exploration_fraction"],
        target_update_freq=SETTINGS["target_update_interval"],
        polyak=0.0,
    )
    dqn = dqn.replace(agent=dqn.agent.clone(hidden_layer_sizes=hidden))
    train_freq = SETTINGS["train_freq"]

    def learn(state: Any) -> Any:
        key, sampling = jax.random.split(state.rng)
        batch = state.replay_buffer.sample(dqn.batch_size, sampling)
        return dqn.update(state.replace(rng=key), batch)

    def iterate(_: Any, state: Any) -> Any:
        """Do what its `train_iteration` does, with `train_freq` steps before each update."""
        learns, before = state.global_step > dqn.fill_buffer, state.global_step
        for _ in range(train_freq):
            epsilon = dqn.epsilon_schedule(state.global_step)
            state, rows = dqn.collect_transitions(state, epsilon, uniform=~learns)
            state = state.replace(replay_buffer=state.replay_buffer.extend(rows))
        state = jax.lax.cond(learns, lambda: learn(state), lambda: state)
        target = dqn.maybe_update_target_params(
            state.q_ts.params, state.q_target_params, state.global_step, before
        )
        return state.replace(q_target_params=target)

    def train(key: Any) -> Any:
        state = dqn.init_state(key).replace(global_step=jax.numpy.int32(0))
        return jax.lax.fori_loop(0, env_steps // train_freq, iterate, state).q_ts.params

    return _one_program(train, dqn.agent.apply)


def _one_program(train: Callable[[Any], Any], q_values: Callable[[Any, Any], Any]) -> Contender:
    """Return a contender that trains all seeds under `vmap`, as both peers' documents say."""
    import jax

    @jax.jit
    def of_seeds(seeds_L: Any) -> Any:
        return jax.vmap(lambda seed: train(jax.random.PRNGKey(seed)))(seeds_L)

    return Contender(of_seeds, q_values, lambda seeds_L: of_seeds.lower(seeds_L).compile())


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
