"""Policies as `fedhql export` writes them: one agent, or the consensus of several.

    DIR/policy.json     which agents, by which rule they are combined, and where they come from
    DIR/agentN/         the network of each agent

To load and ask them needs NumPy only: no environment and no framework.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedhql.agents.network_policy import copy_network, load_network
from fedhql.contract import Actions, States, Values
from fedhql.errors import RunDirectoryError
from fedhql.federation.attacks import attack_number
from fedhql.federation.consensus import Centre, consensus
from fedhql.federation.rules import rule_named
from fedhql.storage.files import whole_directory

POLICY = "policy.json"
QValues = Callable[[States], Values]  # (B, *obs) -> (B, A)


@dataclass(frozen=True)
class ConsensusRule:
    """How the answers of several agents become one: a federation's rule and its numbers."""

    rule: str
    numbers: Mapping[str, float]
    attack: str | None = None
    attackers: int = 0  # how many of the last agents lie, in an attacked arm of an experiment

    def centre(self) -> Centre:
        return consensus(
            rule_named(self.rule, self.numbers), attack_number(self.attack), self.attackers
        )


@dataclass(frozen=True)
class Policy:
    """Acts greedily in the values of one agent, or in the centre of several agents' values."""

    agents: Sequence[QValues]
    centre: Centre | None = None  # None: there is one agent

    def q_values(self, states: States) -> Values:
        """Return the value of every action at each state: (B, *obs) -> (B, A)."""
        answers = [q_values(states) for q_values in self.agents]
        return answers[0] if self.centre is None else self.centre(answers)

    def act(self, states: States) -> Actions:
        """Return the action at each state: (B, *obs) -> (B,)."""
        return greedy(self.q_values(states))


def greedy(q_BA: Values) -> Actions:
    """Return the best action of each row. NaN ranks last: an agent that answers NaN must act."""
    return np.where(np.isnan(q_BA), -np.inf, q_BA).argmax(axis=1)


def write_policy(
    directory: Path,
    agents: Mapping[str, Path],
    rule: ConsensusRule | None,
    first_observation: int | None,
    source: Mapping[str, Any],
) -> None:
    """Write a policy of these agents, whose networks are in the given directories.

    Raise RunDirectoryError if `directory` holds anything but a policy, which is replaced.
    """
    in_use = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    if in_use and not (directory / POLICY).exists():
        raise RunDirectoryError(
            f"{directory} exists and holds no policy of fedhql; choose another --out"
        )
    content = {
        "agents": list(agents),
        "consensus": None if rule is None else asdict(rule),
        "first_observation": first_observation,
        "source": dict(source),
    }
    with whole_directory(directory) as filling:
        for name, home in agents.items():
            copy_network(home, filling / name)
        (filling / POLICY).write_text(json.dumps(content, indent=2) + "\n")


def load_policy(directory: Path | str) -> Policy:
    """Load what `fedhql export` wrote. Raise RunDirectoryError if the directory has no policy."""
    home = Path(directory)
    if not (home / POLICY).exists():
        raise RunDirectoryError(
            f"{home} holds no policy (no {POLICY}); write one with: fedhql export RUN --out DIR"
        )
    content = json.loads((home / POLICY).read_text())
    agents = [load_network(home / name, content["first_observation"]) for name in content["agents"]]
    rule = content["consensus"]
    return Policy(agents, None if rule is None else ConsensusRule(**rule).centre())
