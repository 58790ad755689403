"""The policies that were kept: of a finished cell's agents and their consensus, or of a member."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from fedhql.acting import GreedyAnswer, PolicyFunction, greedily
from fedhql.agents.kinds import load_policy
from fedhql.agents.network_policy import NETWORK, PARAMETERS, is_network, load_network
from fedhql.contract import Acting, BlackBoxAgent, Checkpointable, Exportable, States
from fedhql.engines.build import first_states
from fedhql.engines.build_agent import build_one_agent
from fedhql.engines.owned_cohort import Build
from fedhql.environments.compiled import find_twin
from fedhql.environments.make import first_observation, make_environment
from fedhql.errors import RESUME, AgentRefused, RunDirectoryError, SettingsError
from fedhql.federation import rule_spec
from fedhql.federation.cohort import greedy_answer_of
from fedhql.plugins import is_plugin
from fedhql.policy import ConsensusRule, Policy, write_policy
from fedhql.settings.arms import federates, require_arm, settings_of_arm
from fedhql.settings.experiment import read_settings_file
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import label
from fedhql.storage.records import CONSENSUS
from fedhql.storage.run_directory import LAST, Cell, RunDirectory, member_home

BEST = "best"
STATES = (BEST, LAST)


def kept_policy(
    settings: ExperimentSettings, seed: int, n: int, home: Path, build: Build = build_one_agent
) -> PolicyFunction | None:
    """Return the policy of agent n as it is in `home`; None if only its owner can read that."""
    space = _observation_space(settings)
    policy = load_policy(settings.agents[n].kind, home, space)
    if policy is not None:
        return policy
    agent = build(settings, seed, n)
    if agent is None:
        return None
    if is_network(home) and not isinstance(agent, Acting):
        return greedily(load_network(home, first_observation(space)))
    if isinstance(agent, Exportable) or not isinstance(agent, Checkpointable):
        return None
    agent.restore(home)
    return _policy_of(settings, settings.agent_names[n], agent)


def _policy_of(settings: ExperimentSettings, name: str, agent: BlackBoxAgent) -> PolicyFunction:
    tried, actions = first_states(settings)

    def answer(states: States) -> GreedyAnswer:
        given, expected = np.shape(states), tried.shape[1:]
        if len(given) != tried.ndim or given[1:] != expected:
            raise ValueError(
                f"{name} answers a batch of states, shape {('B', *expected)}; got {given}; for one "
                "state, pass state[None]"
            )
        return greedy_answer_of(name, agent, states, actions)

    return answer


@dataclass(frozen=True)
class KeptAgents:
    """The agents of one finished cell in their best or last states, or a member's agent."""

    path: Path  # of the run, or of the member's home
    settings: ExperimentSettings  # of the arm
    cell: Cell | None  # None: a member knows no arm and no other agent
    homes: Mapping[str, Path]  # of the agents; a state is a directory in it
    state: str | None  # None: `state_of` chooses
    build: Build = build_one_agent
    live: Mapping[str, BlackBoxAgent] = field(default_factory=dict)  # their last state is their own

    @property
    def names(self) -> list[str]:
        return self.settings.agent_names

    @property
    def default(self) -> str:
        """The policy that stands for all: the consensus, or a member's only agent."""
        return CONSENSUS if self.cell is not None else self.names[0]

    @property
    def title(self) -> str:
        """The arm as people read it; of a member, that it is one."""
        return "member" if self.cell is None else label(self.cell.arm)

    def state_of(self, policy: str) -> str:
        """Return the state of the agents in a policy.

        Each agent has its best state from another time, so no evaluation measures the consensus of
        best states. By default it has the last ones.
        """
        return self.state or (LAST if policy == CONSENSUS else BEST)

    def policy(self, name: str) -> Policy:
        """Return the policy of an agent, or CONSENSUS. Raise AgentRefused if it cannot be read."""
        agents = [self._policy(agent, self.state_of(name)) for agent in self._agents_of(name)]
        return Policy(agents, self._rule().centre() if name == CONSENSUS else None)

    def export(self, name: str, out: Path) -> None:
        """Write the policy of an agent, or CONSENSUS. Raise AgentRefused if it has no network."""
        of, cell, state = self.settings, self.cell, self.state_of(name)
        write_policy(
            out,
            {agent: self._network(agent, state) for agent in self._agents_of(name)},
            self._rule() if name == CONSENSUS else None,
            first_observation(_observation_space(of)),
            {
                "run": self.path.resolve().name,
                "environment": of.environment.id,
                **({} if cell is None else {"arm": cell.arm, "seed": cell.seed}),
                "state": state,
            },
        )

    def _agents_of(self, name: str) -> list[str]:
        if name == CONSENSUS == self.default:
            return self.names
        if name not in self.names:
            allowed = ", ".join(dict.fromkeys((*self.names, self.default)))
            raise SettingsError(f"{self.path} has no {name!r}; allowed: {allowed}")
        return [name]

    def _rule(self) -> ConsensusRule:
        federation, attack = self.settings.federation, self.settings.attack
        numbers = {key: getattr(federation, key) for key in rule_spec(federation.rule).numbers}
        return ConsensusRule(federation.rule, numbers, attack.name, attack.attackers)

    def _policy(self, name: str, state: str) -> PolicyFunction:
        if name in self.live and state == LAST:
            return _policy_of(self.settings, name, self.live[name])
        n, home = self.names.index(name), self._home(name, state)
        seed = 0 if self.cell is None else self.cell.seed  # what is restored has its own
        policy = kept_policy(self.settings, seed, n, home, self.build)
        if policy is None:
            raise AgentRefused(
                f"{self._described(name)} wrote files that only its owner can read ({home})"
                f"{self._but_live(name)}"
            )
        return policy

    def _network(self, name: str, state: str) -> Path:
        home = self._home(name, state)
        if not is_network(home):
            raise AgentRefused(
                f"{self._described(name)} needs its own class or framework to act; allowed: agents "
                f"whose export(directory) writes {NETWORK} and {PARAMETERS}, as 'dqn' and "
                "'tabular' do. fedhql play shows the others, too"
            )
        return home

    def _home(self, name: str, state: str) -> Path:
        home = self.homes[name] / state
        if not home.exists():
            until = ", and its federation must have ended" if self.cell is None else ""
            kept = [other for other in self.names if (self.homes[other] / state).exists()]
            others = (
                f"; kept: {', '.join(kept)}; choose --agent {kept[0]} (fedhql play) or "
                f"--policy {kept[0]} (fedhql export)"
                if kept
                else ""
            )
            raise AgentRefused(
                f"{self._described(name)} kept no {state} state: {home} does not exist; a "
                "class needs export(directory), or save(directory) and "
                f"restore(directory){until}{others}{self._but_live(name)}"
            )
        return home

    def _but_live(self, name: str) -> str:
        return "; allowed: state='last', the agent as it is now" if name in self.live else ""

    def _described(self, name: str) -> str:
        kind = self.settings.agents[self.names.index(name)].kind
        return f"{name} of {self.cell or self.path} (kind {kind!r})"


def kept_agents(
    path: Path,
    arm: str | None = None,
    seed: int | None = None,
    state: str | None = None,
    *,
    build: Build = build_one_agent,
) -> KeptAgents:
    """Return what a cell of a run has kept, or the agent in the home of a member.

    The default is the first arm that federates, if any, its lowest seed, and the best state of an
    agent, but the last states in the consensus and of a member. Raise SettingsError or
    RunDirectoryError if there is no such finished cell.
    """
    if state not in (None, *STATES):
        raise SettingsError(f"state = {state!r}: allowed: {', '.join(STATES)}")
    if (home := member_home(path)) is not None:
        return _of_member(home, arm, seed, state)
    directory = RunDirectory(path)
    directory.require_run()
    settings = read_settings_file(directory.settings)
    cell = _finished_cell(directory, require_arm(settings, arm) if arm else None, seed)
    homes = {name: directory.agent(cell, name) for name in settings.agent_names}
    of_arm = settings_of_arm(settings, cell.arm)
    return KeptAgents(path, of_arm, cell, homes, state, build)


def _of_member(home: Path, arm: str | None, seed: int | None, state: str | None) -> KeptAgents:
    for option, given, allowed in (
        ("arm", arm, None),
        ("seed", seed, None),
        ("state", state, LAST),
    ):
        if given not in (None, allowed):
            raise SettingsError(
                f"{option} = {given!r}: {home} is the home of a member, which keeps the last state "
                f"of one agent; leave the {option} out"
            )
    if not RunDirectory(home).settings.exists():
        raise RunDirectoryError(
            f"{home} is the home of a member without settings.toml, which older versions did not "
            "write; run its fedhql join once more with this version, while its server runs"
        )
    settings = read_settings_file(RunDirectory(home).settings)
    return KeptAgents(home, settings, None, {settings.agent_names[0]: home}, LAST)


def _finished_cell(directory: RunDirectory, arm: str | None, seed: int | None) -> Cell:
    cells, run = directory.cells(), directory.path
    if not cells:
        raise RunDirectoryError(f"{run} holds no agents; give the run itself, not an archive of it")
    arms = list(dict.fromkeys(cell.arm for cell in cells))
    if arm is None:
        arm = next(filter(federates, arms), arms[0])
    if arm not in arms:
        raise SettingsError(f"arm = {arm!r}: {run} has the arms {'; '.join(arms)}")
    seeds = [cell.seed for cell in cells if cell.arm == arm]
    cell = Cell(arm, seeds[0] if seed is None else seed)
    if cell.seed not in seeds:
        raise SettingsError(
            f"seed = {seed}: {run} has the seeds {', '.join(map(str, seeds))} of arm {arm}"
        )
    if not directory.result(cell).exists():
        raise RunDirectoryError(f"{run}: {cell} has not finished; finish it with {RESUME}")
    return cell


def _observation_space(settings: ExperimentSettings) -> spaces.Space[Any]:
    """Return the space; a twin has one without Gymnasium's environment, which may be missing."""
    of = settings.environment
    if not is_plugin(of.implementation):
        twin = find_twin(of.id, of.options, of.implementation)
        if twin is not None:
            return spaces.Box(-np.inf, np.inf, (twin.observation_size,), np.float32)
    env = make_environment(of.id, of.options)
    env.close()
    return env.observation_space
