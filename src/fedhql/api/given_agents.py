"""The agents that a caller gives: kinds by name, classes, functions that build one, live objects.

Each becomes an entry of the experiment's settings. If other processes can import a class, its name
stands there and they build it. Everything else stays in this process.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedhql.agents.own_class import declared_environment, same_environment
from fedhql.contract import BlackBoxAgent
from fedhql.engines.build import build_cohort, first_states
from fedhql.engines.build_agent import build_one_agent
from fedhql.engines.owned_cohort import AgentSource, OwnedCohort
from fedhql.errors import AgentRefused, FedHQLError, SettingsError
from fedhql.federation.cohort import METHODS, greedy_answer_of, require_contract
from fedhql.settings.sections import AgentSettings, ExperimentSettings

# Called with a seed and the agent's options, as keywords.
AgentFactory = Callable[..., BlackBoxAgent]
# Of what ALLOWED says. Type checkers infer `object` for lists that mix strings and classes.
AgentsLike = Sequence[object] | Mapping[str, object]
RESERVED = {*AgentSettings.model_fields, "seed"}  # not options of an agent's kind
ALLOWED = (
    "a kind such as 'dqn', 'package.module:Class', a class, a function that takes seed and "
    "returns an agent, an object with self_learn, q_values and improve, or a dict with one of "
    "these as 'kind' and its options"
)


@dataclass(frozen=True)
class GivenAgents:
    """Agents as settings, and those that only this process has: by index."""

    tables: list[dict[str, Any]] = field(default_factory=list)  # as [[agents]]
    factories: dict[int, AgentFactory] = field(default_factory=dict)
    live: dict[int, BlackBoxAgent] = field(default_factory=dict)

    @property
    def kinds_not_importable(self) -> list[str]:
        """Return the agents that worker processes cannot build, in words."""
        return [self.tables[n]["kind"] for n in sorted({*self.factories, *self.live})]

    def build(self, settings: ExperimentSettings, seed: int, n: int) -> BlackBoxAgent | None:
        """Build one more agent n; None if it is a live object."""
        return None if n in self.live else build_one_agent(settings, seed, n, self.factories.get(n))

    def gather(
        self, settings: ExperimentSettings, seed: int, on_self_learned: Callable[[int], None]
    ) -> OwnedCohort:
        for n, agent in self.live.items():
            _require_task(settings.agent_names[n], agent, settings)
        agents = [
            self.live[n] if (built := self.build(settings, seed, n)) is None else built
            for n in range(len(settings.agents))
        ]
        return build_cohort(settings, agents, on_self_learned, borrowed=self.live)

    @contextmanager
    def source(self) -> Iterator[AgentSource]:
        yield AgentSource(self.gather, self.build)


def given_agents(agents: AgentsLike) -> GivenAgents:
    """Return the agents of a list, or of a dict by name. Raise SettingsError for anything else."""
    if isinstance(agents, str) or not isinstance(agents, Mapping | Sequence):
        raise SettingsError(f"agents = {agents!r}: allowed: a list, or a dict by name, of agents")
    named = agents.items() if isinstance(agents, Mapping) else ((None, each) for each in agents)
    given = GivenAgents()
    for name, agent in named:
        _add(given, agent, {} if name is None else {"name": name})
    if len({id(agent) for agent in given.live.values()}) < len(given.live):
        raise SettingsError("agents: the same object is given twice; allowed: each object once")
    return given


def _add(given: GivenAgents, agent: Any, options: dict[str, Any]) -> None:
    n = len(given.tables)
    place = f"agents.{n + 1}"
    if isinstance(agent, Mapping):
        if "name" in options and "name" in agent:
            raise SettingsError(
                f"{place}.name: given twice, {options['name']!r} and {agent['name']!r}; allowed: "
                "the key of the dict of agents, or name"
            )
        options = {"kind": "dqn", **options, **agent}
        agent = options.pop("kind")
    if isinstance(agent, partial):
        agent, options = _unwrapped(agent, options)
    if isinstance(agent, str):
        kind = agent
    elif not isinstance(agent, type) and any(hasattr(agent, method) for method in METHODS):
        require_contract(place, agent)
        if extra := [key for key in options if key != "name"]:
            raise SettingsError(
                f"{place}.{extra[0]}: a live agent has been built already; allowed: name"
            )
        kind, given.live[n] = _name(type(agent)), agent
    elif callable(agent):
        kind = _name(agent)
        if not _importable(agent):
            given.factories[n] = agent
    else:
        raise SettingsError(f"{place} = {agent!r}: allowed: {ALLOWED}")
    given.tables.append({"kind": kind, **plain(place, options)})


def _require_task(name: str, agent: BlackBoxAgent, settings: ExperimentSettings) -> None:
    """Raise AgentRefused if a live agent was built for another environment, as far as it shows.

    What the agent itself raises gets a note with the shapes.
    """
    states, A = first_states(settings)  # registers the environment, if its id names a module
    wanted, own = settings.environment.id, declared_environment(agent)
    if own is not None and not same_environment(own, wanted):
        raise AgentRefused(
            f"{name}: this {type(agent).__qualname__} has the environment {own!r}, but the "
            f"experiment's is {wanted!r}; build it with the experiment's"
        )
    try:
        greedy_answer_of(name, agent, states, A)
    except FedHQLError:
        raise
    except Exception as error:  # the agent's own, which its owner knows how to read
        error.add_note(
            f"{name} was given states of {wanted}, of shape {states.shape}; expected: values of "
            f"shape {(len(states), A)} (states, actions)"
        )
        raise


def _unwrapped(make: partial[Any], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Move keywords that a settings file can hold to the options; return what is left, and these.

    Another process then builds the same agent.
    """
    kept = {
        key: value
        for key, value in make.keywords.items()
        if type(value) in (str, bool, int, float) and key not in RESERVED
    }
    rest = {key: value for key, value in make.keywords.items() if key not in kept}
    left = partial(make.func, *make.args, **rest) if make.args or rest else make.func
    return left, kept | options


def _name(make: Any) -> str:
    """Return the name in the settings, "module:Class".

    A partial gets a name that cannot be imported, because its class alone is another agent.
    """
    if isinstance(make, partial):
        module, _, name = _name(make.func).partition(":")
        return f"{module}:partial({name})"
    named = make if hasattr(make, "__qualname__") else type(make)
    return f"{named.__module__}:{named.__qualname__}"


def _importable(make: Any) -> bool:
    """Return whether another process can import it; not from a notebook, script or function."""
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", "")
    found = sys.modules.get(module or "")
    if module == "__main__" or getattr(found, "__spec__", None) is None:
        return False
    return getattr(found, name, None) is make


def plain(key: str, value: Any) -> Any:
    """Return a value in the types of a settings file. Raise SettingsError, which names the key."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(f"{key}.{name}", inside) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [plain(key, inside) for inside in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise SettingsError(
        f"{key}: {value!r} cannot be written to a settings file; allowed: numbers, strings, true "
        "or false, lists and dicts. For anything else give a function that takes seed and builds "
        "the agent, such as functools.partial(MyAgent, network=...)"
    )
