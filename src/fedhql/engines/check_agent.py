"""Check one agent against the contract, before it takes part in a federation.

Every check runs on an agent that was built as a run builds it. Shape letters: B states, A actions.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedhql.agents.own_class import declared_environment, same_environment
from fedhql.contract import (
    BlackBoxAgent,
    Checkpointable,
    Closable,
    Exportable,
    States,
)
from fedhql.engines.build_agent import build_one_agent
from fedhql.environments.make import action_count, make_environment
from fedhql.federation.cohort import actions_of, require_contract, values_of
from fedhql.settings.sections import EnvironmentSettings, ExperimentSettings

NAME = "the agent"
MOST_STEPS_A_SECOND = 10_000_000  # no environment is stepped faster by one agent
B, IMPROVEMENTS = 32, 8  # states in a question, calls of improve


@dataclass(frozen=True)
class Finding:
    """The result of one check; `passed` is None where there is nothing to judge."""

    what: str
    passed: bool | None
    detail: str
    warning: str = ""  # the agent can take part, but its owner should know this


Result = tuple[bool | None, str] | tuple[bool | None, str, str]  # the finding after `what`


def check_agent(
    settings: ExperimentSettings, env_steps: int, clock: Callable[[], float]
) -> Iterator[Finding]:
    """Check the first agent of an experiment; it learns for 3 or 4 times `env_steps` steps.

    The checks stop at an answer that no server could use.
    """
    states, A = _states(settings.environment)
    agent, seconds = _timed(clock, lambda: build_one_agent(settings, 0, 0))
    require_contract(NAME, agent)
    yield Finding("is built", True, f"{seconds:.2g} s")
    yield _same_environment(agent, settings.environment.id)
    answer = _attempt("q_values: shape and numbers", lambda: _answers(agent, states, A, clock))
    yield answer
    if not answer.passed:
        return
    with tempfile.TemporaryDirectory() as home:
        checks: dict[str, Callable[[], Result]] = {
            "q_values: the same answer twice": lambda: _same_twice(agent, states, A),
            "q_values: one state at a time gives the same": lambda: _rows_apart(agent, states, A),
            "self_learn": lambda: _learns(agent, states, A, env_steps, clock, Path(home)),
            "improve: moves towards the targets": lambda: _improves(agent, states, A, clock),
            "act": lambda: _acts(agent, states, A),
            "save and restore: goes on exactly": lambda: _goes_on_exactly(
                agent, settings, states, env_steps, Path(home)
            ),
            "export": lambda: _exports(agent, Path(home)),
        }
        for what, check in checks.items():
            yield _attempt(what, check)
    if isinstance(agent, Closable):
        agent.close()


def _attempt(what: str, check: Callable[[], Result]) -> Finding:
    """Return the result of a check; whatever the agent raises fails it."""
    try:
        return Finding(what, *check())
    except Exception as error:  # noqa: BLE001 - the agent is somebody else's code
        return Finding(what, False, f"{type(error).__name__}: {error}")


def _answers(
    agent: BlackBoxAgent, states: States, A: int, clock: Callable[[], float]
) -> tuple[bool, str]:
    q_BA, seconds = _timed(clock, lambda: values_of(NAME, agent, states, A))
    finite = bool(np.isfinite(q_BA).all())
    return finite, f"({B}, {A}), {'finite' if finite else 'not finite'}, {1e3 * seconds:.2g} ms"


def _same_twice(agent: BlackBoxAgent, states: States, A: int) -> tuple[bool, str]:
    same = np.array_equal(values_of(NAME, agent, states, A), values_of(NAME, agent, states, A))
    return same, "" if same else "answers differ"


def _learns(
    agent: BlackBoxAgent,
    states: States,
    A: int,
    env_steps: int,
    clock: Callable[[], float],
    home: Path,
) -> Result:
    before_BA = values_of(NAME, agent, states, A)
    agent.self_learn(env_steps)  # the first time, programs may be compiled
    _, seconds = _timed(clock, lambda: agent.self_learn(env_steps))
    after_BA = values_of(NAME, agent, states, A)
    asked = f"asked for {env_steps:,} env steps in {seconds:.2g} s; not counted"
    if not np.isfinite(after_BA).all():
        return False, f"{asked}; the values are not finite"
    if np.array_equal(before_BA, after_BA) and (unchanged := _unchanged(agent, env_steps, home)):
        return True, asked, f"{unchanged}: does it learn?"
    if env_steps > MOST_STEPS_A_SECOND * seconds:
        too_fast = f"more than {MOST_STEPS_A_SECOND:,} env steps a second are not possible"
        return True, asked, f"{too_fast}: does it step its environment?"
    return True, asked


def _unchanged(agent: BlackBoxAgent, env_steps: int, home: Path) -> str:
    """Return what learning has left as it was, for an agent whose values are; empty if nothing.

    An agent that only collects experience at first has other files then.
    """
    if not isinstance(agent, Checkpointable):
        return "the values have not changed"

    def saved(name: str) -> dict[Path, bytes]:
        (home / name).mkdir()
        agent.save(home / name)
        files = (file for file in (home / name).rglob("*") if file.is_file())
        return {file.relative_to(home / name): file.read_bytes() for file in files}

    before = saved("before")
    agent.self_learn(env_steps)
    same = saved("after") == before
    return "neither the values nor what it saves have changed" if same else ""


def _acts(agent: BlackBoxAgent, states: States, A: int) -> tuple[bool | None, str]:
    actions = actions_of(NAME, agent, states, A)
    if actions is None:
        return None, "no act: it acts greedily in its values"
    return True, f"actions from {actions.min()} to {actions.max()}"


def _states(environment: EnvironmentSettings) -> tuple[States, int]:
    """Return B states that random actions lead to, and the number of actions."""
    env = make_environment(environment.id, environment.options)
    rng, A = np.random.default_rng(0), action_count(env)
    state, _ = env.reset(seed=0)
    states: list[Any] = []
    while len(states) < B:
        states.append(state)
        state, _, terminated, truncated, _ = env.step(int(rng.integers(A)))
        if terminated or truncated:
            state, _ = env.reset()
    env.close()
    return np.array(states, dtype=env.observation_space.dtype), A


def _timed(clock: Callable[[], float], call: Callable[[], Any]) -> tuple[Any, float]:
    begun = clock()
    found = call()
    return found, clock() - begun


def _same_environment(agent: BlackBoxAgent, wanted: str) -> Finding:
    if (found := declared_environment(agent)) is None:
        nowhere = "the agent does not say which it has (no `env_id`, no `env.spec`)"
        return Finding("environment", None, nowhere)
    same = same_environment(found, wanted)
    return Finding("environment", same, f"{found}; the experiment's is {wanted}")


def _rows_apart(agent: BlackBoxAgent, states: States, A: int) -> tuple[bool, str]:
    """Check that the answer about a state does not depend on the others in the question."""
    together_BA = values_of(NAME, agent, states, A)
    alone_BA = np.concatenate([values_of(NAME, agent, states[n : n + 1], A) for n in range(B)])
    same = np.allclose(alone_BA, together_BA, rtol=1e-4, atol=1e-4)
    return same, f"largest difference {float(np.abs(alone_BA - together_BA).max()):.2g}"


def _improves(
    agent: BlackBoxAgent, states: States, A: int, clock: Callable[[], float]
) -> tuple[bool, str]:
    """Ask for values that are one higher at action 0; look at the error before and after."""
    targets = values_of(NAME, agent, states, A)[:, 0] + np.float32(1)
    actions = np.zeros(B, dtype=np.int64)

    def error() -> float:
        return float(np.abs(targets - values_of(NAME, agent, states, A)[:, 0]).mean())

    def improve() -> None:
        for _ in range(IMPROVEMENTS):
            agent.improve(states.copy(), actions.copy(), targets.copy())

    before = error()
    _, seconds = _timed(clock, improve)
    after = error()
    each = f"{seconds / IMPROVEMENTS:.2g} s each"
    return after < before, (
        f"mean error {before:.3g} before, {after:.3g} after {IMPROVEMENTS} calls, {each}"
    )


def _goes_on_exactly(
    agent: BlackBoxAgent,
    settings: ExperimentSettings,
    states: States,
    env_steps: int,
    home: Path,
) -> Result:
    """Check that a restored agent has the values of the saved one, and learns on exactly as it."""
    if not isinstance(agent, Checkpointable):
        return None, "no save and restore: a killed run begins this agent anew"
    (home / "saved").mkdir()
    agent.save(home / "saved")
    other = build_one_agent(settings, 1, 0)
    assert isinstance(other, Checkpointable)  # of the same class
    other.restore(home / "saved")

    def same() -> bool:
        return np.array_equal(agent.q_values(states), other.q_values(states))

    restored = same()
    for each in (agent, other):
        each.self_learn(env_steps)
    exact = same()
    if isinstance(other, Closable):
        other.close()
    everything = "save everything, also what the constructor draws from its seed"
    if not restored:
        return False, f"the restored agent has other values: {everything}"
    if not exact:
        inexact = "works, but not exact: a resumed run differs, because the values differ after"
        return True, "", f"{inexact} more learning; to be exact, {everything}, and the environment"
    return True, ""


def _exports(agent: BlackBoxAgent, home: Path) -> tuple[bool | None, str]:
    if not isinstance(agent, Exportable):
        return None, "no export: a run keeps what save writes, if anything"
    (home / "exported").mkdir()
    agent.export(home / "exported")
    written = any((home / "exported").iterdir())
    return written, "" if written else "it has written nothing"
