"""The interface between the server and its agents, and a cohort of agents in this process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhql.acting import GreedyAnswer, greedy_in
from fedhql.contract import Acting, Actions, BlackBoxAgent, Closable, States, Values
from fedhql.errors import AgentRefused
from fedhql.federation.moments import Moments

METHODS = ("self_learn", "q_values", "improve")  # the contract
NOT_FINITE = "NaN or infinity"  # why an answer is refused


@dataclass(frozen=True)
class Answers:
    """The answers to a query: the usable values, and the reason for every refused answer."""

    q_NBA: NDArray[np.float64]  # the N agents that answered usably, in cohort order
    members: tuple[int, ...]  # their indices in the cohort
    refused: Mapping[int, str]  # index -> reason, for all other agents


@dataclass(frozen=True)
class PooledAnswers:
    """The answers to a query where the server learns only the sums over agents."""

    pooled: Moments
    members: tuple[int, ...]
    refused: Mapping[int, str]


class Cohort(Protocol):
    """N agents, in this process or elsewhere."""

    @property
    def names(self) -> Sequence[str]: ...

    def self_learn(self, env_steps: int) -> None:
        """Let every agent self-learn for `env_steps` steps."""

    def query(self, states: States) -> Answers | PooledAnswers:
        """Ask every agent for its action values at the same states."""

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Broadcast targets; every agent regresses towards them."""

    def close(self) -> None: ...


class PlainCohort(Cohort, Protocol):
    """A cohort that returns every agent's values, so that it can be wrapped."""

    def query(self, states: States) -> Answers: ...


def numbered_agents(count: int) -> list[str]:
    """Return default names for `count` agents: agent1, agent2, ..."""
    return [f"agent{number}" for number in range(1, count + 1)]


class InProcessCohort:
    """A cohort of objects in this process, called one after the other."""

    def __init__(
        self,
        agents: Sequence[BlackBoxAgent],
        action_count: int,
        *,
        names: Sequence[str] | None = None,
        on_self_learned: Callable[[int], None] = lambda env_steps: None,
        borrowed: Collection[int] = (),
    ) -> None:
        """Take the agents. Their owner closes the `borrowed` ones, given by their indices."""
        if not agents:
            raise AgentRefused("a federation needs at least one agent")
        self._agents = tuple(agents)
        self._action_count = action_count
        self._on_self_learned = on_self_learned  # after each agent, for progress displays
        self._ours = [n not in borrowed for n in range(len(agents))]
        self.names = tuple(names or numbered_agents(len(agents)))
        for name, agent in zip(self.names, self._agents, strict=True):
            require_contract(name, agent)

    def self_learn(self, env_steps: int) -> None:
        def learn(agent: BlackBoxAgent) -> None:
            agent.self_learn(env_steps)
            self._on_self_learned(env_steps)

        self._each(learn)

    def query(self, states: States) -> Answers:
        return usable_answers(
            [
                values_of(name, agent, states, self._action_count)
                for name, agent in zip(self.names, self._agents, strict=True)
            ]
        )

    def act_each(self, states: Sequence[States]) -> Sequence[GreedyAnswer]:
        """Ask agent n for its action values at states[n] and how it acts there."""
        A = self._action_count
        to_no_states = greedy_in(np.empty((0, A), dtype=np.float32))
        return [  # agents need not support an empty batch
            greedy_answer_of(name, agent, asked, A) if len(asked) else to_no_states
            for name, agent, asked in zip(self.names, self._agents, states, strict=True)
        ]

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        self._each(lambda agent: agent.improve(states.copy(), actions.copy(), targets.copy()))

    def close(self) -> None:
        for ours, name, agent in zip(self._ours, self.names, self._agents, strict=True):
            if ours and isinstance(agent, Closable):
                with _blaming(name, agent):
                    agent.close()

    def _each(self, call: Callable[[BlackBoxAgent], None]) -> None:
        for name, agent in zip(self.names, self._agents, strict=True):
            with _blaming(name, agent):
                call(agent)


def values_of(name: str, agent: BlackBoxAgent, states: States, A: int) -> Values:
    """Return the agent's values (B, A). Raise AgentRefused if it answers anything else."""
    with _blaming(name, agent):
        # A copy, here and in `improve`, so that no agent can change another's array.
        answer = agent.q_values(states.copy())
    return _checked_answer(name, answer, len(states), A)


def actions_of(name: str, agent: BlackBoxAgent, states: States, A: int) -> Actions | None:
    """Return how the agent acts (B,), or None if it acts greedily in its values.

    Raise AgentRefused, which names the agent, if its answer is not one action for each state.
    """
    if not isinstance(agent, Acting):
        return None
    with _blaming(name, agent):
        answer = agent.act(states.copy())
    actions = np.asarray(answer)
    if actions.dtype.kind not in "iu" or actions.shape != (len(states),):
        raise AgentRefused(
            f"{name}: act must return whole numbers of shape {(len(states),)}; got "
            f"{actions.dtype} of shape {actions.shape}"
        )
    if not ((actions >= 0) & (actions < A)).all():
        raise AgentRefused(
            f"{name}: act must return actions from 0 to {A - 1}; got {actions.min()} to "
            f"{actions.max()}"
        )
    return actions.astype(np.int64)


def greedy_answer_of(name: str, agent: BlackBoxAgent, states: States, A: int) -> GreedyAnswer:
    """Return the agent's values and how it acts: by `act` if it has that, else greedily."""
    values = values_of(name, agent, states, A)
    actions = actions_of(name, agent, states, A)
    return greedy_in(values) if actions is None else GreedyAnswer(values, actions)


def _checked_answer(name: str, answer: Any, B: int, A: int) -> Values:
    """Return the answer as float32 (B, A). Raise AgentRefused, which names the agent."""
    try:
        values = np.asarray(answer, dtype=np.float32).copy()
    except (RuntimeError, TypeError, ValueError) as error:  # torch: a tensor that requires grad
        raise AgentRefused(
            f"{name}: q_values must return an array of numbers of shape {(B, A)}; got "
            f"{type(answer).__name__} ({error})"
        ) from error
    if values.shape != (B, A):
        raise AgentRefused(
            f"{name}: q_values must return shape {(B, A)} (states, actions); got {values.shape}"
        )
    return values


def usable_answers(q: Sequence[NDArray[np.floating]]) -> Answers:
    """Return all answers except those with NaN or infinity, which are refused."""
    finite = [bool(np.isfinite(values).all()) for values in q]
    members = tuple(n for n, usable in enumerate(finite) if usable)
    refused = {n: NOT_FINITE for n, usable in enumerate(finite) if not usable}
    # float64 keeps the spread of large finite answers finite.
    q_NBA = np.array([q[n] for n in members], dtype=np.float64).reshape(-1, *q[0].shape)
    return Answers(q_NBA, members, refused)


def require_contract(name: str, agent: object) -> None:
    missing = [method for method in METHODS if not callable(getattr(agent, method, None))]
    if missing:
        raise AgentRefused(
            f"{name}: {type(agent).__name__} is not a BlackBoxAgent; it lacks {', '.join(missing)}"
        )


@contextmanager
def _blaming(name: str, agent: object) -> Iterator[None]:
    """Add the agent's name to an exception raised inside it; the traceback stays."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised inside {name} ({type(agent).__qualname__})")
        raise
