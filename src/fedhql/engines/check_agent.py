"""Check one agent against the contract, before it takes part in a federation.

Every check runs on an agent that was built as a run builds it. Shape letters: B states, A actions.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedhql.contract import (
    Acting,
    BlackBoxAgent,
    Checkpointable,
    Closable,
    Exportable,
    States,
)
from fedhql.engines.build_agent import build_one_agent
from fedhql.environments.make import action_count, make_environment
from fedhql.errors import FedHQLError
from fedhql.federation.cohort import checked_answer
from fedhql.settings.sections import EnvironmentSettings, ExperimentSettings

B, IMPROVEMENTS = 32, 8  # states in a question, calls of improve


@dataclass(frozen=True)
class Finding:
    """The result of one check; `passed` is None where there is nothing to judge."""

    what: str
    passed: bool | None
    detail: str


def check_agent(
    settings: ExperimentSettings, env_steps: int, clock: Callable[[], float]
) -> Iterator[Finding]:
    """Check the first agent of an experiment; it learns for three times `env_steps` steps.

    The checks stop at an answer that no server could use.
    """
    states, A = _states(settings.environment)
    agent, seconds = _timed(clock, lambda: build_one_agent(settings, 0, 0))
    yield Finding("is built", True, f"{seconds:.2g} s")
    yield _same_environment(agent, settings.environment.id)
    q_BA, seconds = _timed(clock, lambda: agent.q_values(states))
    try:
        q_BA = checked_answer("the agent", q_BA, B, A)
    except FedHQLError as error:
        yield Finding("q_values: shape and numbers", False, str(error))
        return
    finite = bool(np.isfinite(q_BA).all())
    detail = f"({B}, {A}), {'finite' if finite else 'not finite'}, {1e3 * seconds:.2g} ms"
    yield Finding("q_values: shape and numbers", finite, detail)
    again = np.array_equal(q_BA, checked_answer("the agent", agent.q_values(states), B, A))
    yield Finding("q_values: the same answer twice", again, "" if again else "answers differ")
    yield _rows_apart(agent, states, q_BA)

    agent.self_learn(env_steps)  # the first time, programs may be compiled
    _, seconds = _timed(clock, lambda: agent.self_learn(env_steps))
    speed = f"{env_steps:,} env steps, {env_steps / max(seconds, 1e-9):,.0f} a second"
    yield Finding("self_learn", bool(np.isfinite(agent.q_values(states)).all()), speed)
    yield _improves(agent, states, clock)
    if isinstance(agent, Acting):
        actions = np.asarray(agent.act(states))
        fits = actions.shape == (B,) and bool(((actions >= 0) & (actions < A)).all())
        yield Finding("act", fits, f"actions {actions.shape}, {actions.min()} to {actions.max()}")
    with tempfile.TemporaryDirectory() as directory:
        yield _goes_on_exactly(agent, settings, states, env_steps, Path(directory))
        yield _exports(agent, Path(directory))
    if isinstance(agent, Closable):
        agent.close()


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
    """Compare with the Gymnasium environment in `agent.env`, if it has one."""
    spec = getattr(getattr(agent, "env", None), "spec", None)
    found = getattr(spec, "id", None)
    if found is None:
        return Finding("environment", None, "the agent does not say which it has (no `env.spec`)")
    return Finding("environment", found == wanted, f"{found}; the experiment's is {wanted}")


def _rows_apart(agent: BlackBoxAgent, states: States, q_BA: Any) -> Finding:
    """Check that the answer about a state does not depend on the others in the question."""
    alone_BA = np.concatenate([np.asarray(agent.q_values(states[n : n + 1])) for n in range(B)])
    worst = float(np.abs(alone_BA - q_BA).max())
    same = np.allclose(alone_BA, q_BA, rtol=1e-4, atol=1e-4)
    what = "q_values: one state at a time gives the same"
    return Finding(what, same, f"largest difference {worst:.2g}")


def _improves(agent: BlackBoxAgent, states: States, clock: Callable[[], float]) -> Finding:
    """Ask for values that are one higher at action 0; look at the error before and after."""
    targets = np.asarray(agent.q_values(states))[:, 0].astype(np.float32) + 1
    actions = np.zeros(B, dtype=np.int64)

    def error() -> float:
        return float(np.abs(targets - np.asarray(agent.q_values(states))[:, 0]).mean())

    def improve() -> None:
        for _ in range(IMPROVEMENTS):
            agent.improve(states, actions, targets)

    before = error()
    _, seconds = _timed(clock, improve)
    after = error()
    each = f"{seconds / IMPROVEMENTS:.2g} s each"
    detail = f"mean error {before:.3g} before, {after:.3g} after {IMPROVEMENTS} calls, {each}"
    return Finding("improve: moves towards the targets", after < before, detail)


def _goes_on_exactly(
    agent: BlackBoxAgent,
    settings: ExperimentSettings,
    states: States,
    env_steps: int,
    directory: Path,
) -> Finding:
    """Check that a saved and restored agent learns on exactly as the one that was saved."""
    what = "save and restore: goes on exactly"
    if not isinstance(agent, Checkpointable):
        return Finding(what, None, "no save and restore: a killed run begins this agent anew")
    agent.save(directory)
    other = build_one_agent(settings, 1, 0)
    assert isinstance(other, Checkpointable)  # of the same class
    other.restore(directory)
    for each in (agent, other):
        each.self_learn(env_steps)
    same = np.array_equal(agent.q_values(states), other.q_values(states))
    if isinstance(other, Closable):
        other.close()
    return Finding(what, same, "" if same else "the values differ after more learning")


def _exports(agent: BlackBoxAgent, directory: Path) -> Finding:
    if not isinstance(agent, Exportable):
        return Finding("export", None, "no export: a run keeps no policy of this agent")
    agent.export(directory)
    return Finding("export", any(directory.iterdir()), "")
