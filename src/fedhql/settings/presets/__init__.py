"""Experiments that ship with fedhql: one TOML file each. Its first line is a description.

CartPole's and LunarLander's are the paper's; Acrobot's and MountainCar's are ours. A preset
with the suffix -plus has the same agents and tasks, and a server that goes beyond the paper's. With
-plus-agents it is the first such server, and agents choose for themselves how they improve.
"""

import tomllib
from importlib.resources import files
from typing import Any

import tomli_w

from fedhql.errors import SettingsError
from fedhql.settings.overrides import apply_override

PLUS, PLUS_AGENTS = "-plus", "-plus-agents"
# The same for every task and any N; docs/plus.md has the searches behind all choices.
SERVER_CHOICES = (
    "federation.broadcast=all-actions",
    "federation.server_environments=carry-over",
    "federation.learning_rate=1.0",
)
FIRST_SERVER = ("federation.rule=bellman-weighted",)  # what AGENT_CHOICES were searched with
REMEMBERING_SERVER = (
    "federation.replay_capacity=200000",
    "federation.random_actions=0.3",
)
# Random actions stop when an agent's own env steps are this share of its budget.
RANDOM_BUDGET_SHARE = 0.05
SCEPTICS = (
    "federation.rule=sceptical",
    "federation.pessimism=1.0",
    "federation.replay_batch=96",
)
# Sceptics add votes of 0, which are low only where no reward is negative.
SCEPTICAL_TASKS = ("CartPole-v1",)
RECALLING = (
    "federation.rule=median-mad",
    "federation.replay_batch=992",
)
AGENT_CHOICES = (
    "agents.optimizer=adam",
    "agents.warm_up=uniform",
    "agents.improvement_learning_rate=3e-4",
    "agents.improvement_value_unit=100.0",
    "agents.improvement_revives_units=true",
)
# -plus runs 4x as many rounds; each has 1/4 of the self-learning steps and server environments.
ROUND_FREQUENCY = 4
# Suffix -> what it adds to the description, and its choices.
SUFFIXES = {
    PLUS_AGENTS: (
        "with a server and agents beyond the paper's",
        (*SERVER_CHOICES, *FIRST_SERVER, *AGENT_CHOICES),
    ),
    PLUS: ("with a server beyond the paper's", SERVER_CHOICES),
}


def preset_names() -> list[str]:
    entries = (entry.name for entry in files(__name__).iterdir())
    plain = [name.removesuffix(".toml") for name in entries if name.endswith(".toml")]
    return sorted([*plain, *(name + suffix for name in plain for suffix in SUFFIXES)])


def preset_text(name: str) -> str:
    if name not in preset_names():
        raise SettingsError(
            f"unknown preset {name!r}; there are {', '.join(preset_names())}; "
            "an experiment file ends in .toml"
        )
    suffix = next((each for each in SUFFIXES if name.endswith(each)), "")
    text = (files(__name__) / f"{name.removesuffix(suffix)}.toml").read_text(encoding="utf-8")
    return past_the_paper(text, suffix) if suffix else text


def past_the_paper(text: str, suffix: str) -> str:
    """Return the text of a preset with the choices of a suffix."""
    content, description = tomllib.loads(text), text.splitlines()[0]
    added, choices = SUFFIXES[suffix]
    if suffix == PLUS:
        choices += _choices_of_task(content)
    for override in choices:
        apply_override(content, override)
    for key in ("self_learning_env_steps", "query_batch"):
        content["federation"][key] //= ROUND_FREQUENCY
    return f"{description}, {added}\n\n{tomli_w.dumps(content)}"


def _choices_of_task(content: dict[str, Any]) -> tuple[str, ...]:
    random_env_steps = round(RANDOM_BUDGET_SHARE * content["budget"]["env_steps_per_agent"])
    is_sceptical = content["environment"]["id"] in SCEPTICAL_TASKS
    return (
        *REMEMBERING_SERVER,
        f"federation.random_actions_env_steps={random_env_steps}",
        *(SCEPTICS if is_sceptical else RECALLING),
    )


def preset_description(name: str) -> str:
    return preset_text(name).splitlines()[0].removeprefix("# ")
