"""Build the grid of some cells: their lanes, and the settings of their arms as arrays."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedhql.compiled.grid import Grid
from fedhql.compiled.round_arrays import ArmNumbers
from fedhql.engines.build_agent import compiled_config, compiled_environment, phase_env_steps
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.federation import rule_spec
from fedhql.federation.attacks import attack_number
from fedhql.settings.arms import federates, settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell


def build_grid(
    settings: ExperimentSettings,
    cells: Sequence[Cell],
    on_self_learned: Callable[[int, int], None] = lambda agents, env_steps: None,
    *,
    pad: bool | None = None,
    backwards: bool = False,
) -> Grid:
    """Build a grid with lanes in the order of `cells`, where federated cells must come first."""
    of_arms = [settings_of_arm(settings, cell.arm) for cell in cells]
    federated = [s for s, cell in zip(of_arms, cells, strict=True) if federates(cell.arm)]
    rules = tuple(dict.fromkeys(s.federation.rule for s in federated))
    environment, N = compiled_environment(settings.environment), len(settings.agents)
    assert environment is not None  # else another engine runs the experiment
    return Grid(
        [compiled_config(agent) for agent in settings.agents],
        environment.make_lanes,
        np.array(
            [
                [seeds_for(cell.seed, Stream.AGENT, n, count=1)[0] for n in range(N)]
                for cell in cells
            ],
            dtype=np.uint32,
        ),
        _arm_numbers(federated, rules),
        rules=rules,
        discount=settings.environment.discount,
        phase_env_steps=phase_env_steps(of_arms[0]),
        budget_env_steps=settings.budget.env_steps_per_agent,
        pad=pad,
        all_actions=of_arms[0].federation.all_actions,
        backwards=backwards,
        on_self_learned=on_self_learned,
    )


def _arm_numbers(federated: Sequence[ExperimentSettings], rules: Sequence[str]) -> ArmNumbers:
    """Return the settings of the federated arms as arrays, one entry per lane."""
    federations = [of_arm.federation for of_arm in federated]

    def numbers(name: str, dtype: str = "f") -> jax.Array:
        # The value is None if the lane's rule does not take the number.
        return jnp.array([getattr(each, name) or 0 for each in federations], dtype=dtype)

    keys = dict.fromkeys(key for rule in rules for key in rule_spec(rule).numbers)
    attacks = [attack_number(of_arm.attack.name) for of_arm in federated]
    return ArmNumbers(
        rule_numbers={key: numbers(key) for key in keys},
        learning_rate=numbers("learning_rate"),
        pessimism=numbers("pessimism"),
        auditions=numbers("auditions", "i"),
        random_actions=numbers("random_actions"),
        random_actions_env_steps=numbers("random_actions_env_steps"),
        horizon_steps=numbers("horizon_steps", "i"),
        query_batch=numbers("query_batch", "i"),
        replay_batch=numbers("replay_batch", "i"),
        replay_capacity=numbers("replay_capacity", "u4"),
        rule=jnp.array([rules.index(each.rule) for each in federations], dtype="i"),
        carry_over=numbers("carry_over", "?"),
        public=numbers("public", "?"),
        attack=jnp.array(attacks, dtype="i"),
        attackers=jnp.array([of_arm.attack.attackers for of_arm in federated], dtype="i"),
    )
