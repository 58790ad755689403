"""The DQNs that `peers_jax.py` compares: ours, PureJaxRL's and rejax's, with the same settings.

Modules that load JAX are imported where they are used: `peers_jax.py` first sets JAX up.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ENV_ID = "CartPole-v1"
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


def ours(hidden: tuple[int, ...], env_steps: int) -> Contender:
    from fedhql.agents.dqn.config import DqnConfig
    from fedhql.agents.dqn.network import Network
    from fedhql.agents.dqn.numbers import numbers_of
    from fedhql.agents.dqn.phases import advance
    from fedhql.agents.dqn.population import Dqn
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
