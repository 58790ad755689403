"""Policies as `fedhql export` writes them: one agent, or the consensus of several.

    DIR/policy.json     which agents, by which rule they are combined, and where they come from
    DIR/agentN/         the network of each agent

To load and ask them needs NumPy only: no environment and no framework.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedhql.acting import GreedyAnswer, PolicyFunction, greedily, greedy_in
from fedhql.agents.network_policy import copy_network, load_network
from fedhql.contract import Actions, States, Values
from fedhql.errors import RunDirectoryError
from fedhql.federation.attacks import attack_number
from fedhql.federation.consensus import Centre, consensus
from fedhql.federation.rules import rule_named
from fedhql.storage.files import whole_directory

POLICY = "policy.json"


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
    """Acts as one agent does, or greedily in the centre of several agents' values."""

    agents: Sequence[PolicyFunction]
    centre: Centre | None = None  # None: there is one agent

    def __repr__(self) -> str:
        count = len(self.agents)
        return (
            "Policy(one agent)" if self.centre is None else f"Policy(consensus of {count} agents)"
        )

    def q_values(self, states: States) -> Values:
        """Return the value of every action at each state: (B, *obs) -> (B, A)."""
        return self.answer(states).values

    def act(self, states: States) -> Actions:
        """Return the action at each state: (B, *obs) -> (B,)."""
        return self.answer(states).actions

    def answer(self, states: States) -> GreedyAnswer:
        """Return the values and the actions at the states (B, *obs)."""
        answers = [agent(states) for agent in self.agents]
        if self.centre is None:
            return answers[0]
        return greedy_in(self.centre([answer.values for answer in answers]))


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
    directory = directory.resolve()  # "." has no name of its own
    if directory.exists() and not _may_be_replaced(directory):
        raise RunDirectoryError(
            f"{directory} exists and holds more than a policy of fedhql; choose another --out"
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


def _may_be_replaced(directory: Path) -> bool:
    """Return whether a directory is empty, or holds a policy and nothing else."""
    if not directory.is_dir():
        return False
    found = {entry.name for entry in directory.iterdir()}
    if POLICY not in found:
        return not found
    return found == {POLICY, *json.loads((directory / POLICY).read_text())["agents"]}


def load_policy(directory: Path | str) -> Policy:
    """Load what `fedhql export` wrote. Raise RunDirectoryError if the directory has no policy."""
    home = Path(directory)
    if not (home / POLICY).exists():
        raise RunDirectoryError(
            f"{home} holds no policy (no {POLICY}); allowed: what fedhql export RUN --out DIR "
            "wrote, or the home of a member of a federation"
        )
    content = json.loads((home / POLICY).read_text())
    first = content["first_observation"]
    agents = [greedily(load_network(home / name, first)) for name in content["agents"]]
    rule = content["consensus"]
    return Policy(agents, None if rule is None else ConsensusRule(**rule).centre())
