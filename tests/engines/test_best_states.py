"""The final evaluation of the best states writes the returns of their policies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.agents.kinds import KINDS
from fedhql.contract import Acting, BlackBoxAgent, Checkpointable, Exportable
from fedhql.engines.best_states import evaluate_best
from fedhql.engines.build_agent import build_agents
from fedhql.engines.cell_records import CellRecords
from fedhql.engines.evaluation import Evaluation
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.environments.compiled import find_twin
from fedhql.environments.make import make_environment
from fedhql.environments.twin_batch import TwinBatch
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.records import SELF_LEARNING
from fedhql.storage.run_directory import Cell, RunDirectory
from fedhql.storage.tracking import Tracking

CELL = Cell("fedhql", 3)
EPISODES = 4
TEXT = f"""
[environment]
id = "tests.known_mdps:RandomMDP-v0"
[budget]
env_steps_per_agent = 1000
[evaluation]
best_episodes = {EPISODES}
"""
LEFT, RIGHT = 0, 2  # of FrozenLake
PLAYED = [*KINDS, f"{__name__}:Stubborn", f"{__name__}:SelfWilled"]


class Stubborn:
    """Always prefers one action. Refuses empty queries."""

    def __init__(self, seed: int, choice: int = 0) -> None:
        self.choice = choice

    def self_learn(self, env_steps: int) -> None:
        self.choice = env_steps % 4

    def q_values(self, states: Any) -> Any:
        assert len(states) > 0
        return np.tile(np.eye(4)[self.choice], (len(states), 1))

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...

    def save(self, directory: Path) -> None:
        (directory / "choice").write_text(str(self.choice))

    def restore(self, directory: Path) -> None:
        self.choice = int((directory / "choice").read_text())


class SelfWilled(Stubborn):
    """Acts by a rule of its own."""

    def act(self, states: Any) -> Any:
        return np.full(len(states), (self.choice + 1) % 4)


class Secretive(Stubborn):
    """Exports a file that only its owner can read."""

    def export(self, directory: Path) -> None:
        (directory / "secret").touch()


def settings_of(kinds: list[str], *overrides: str) -> ExperimentSettings:
    agents = "".join(f'[[agents]]\nkind = "{kind}"\n' for kind in kinds)
    return read_settings(TEXT + agents, overrides)


def keep_best(
    settings: ExperimentSettings, home: Path, env_steps: int = 90, cell: Cell = CELL
) -> list[BlackBoxAgent]:
    """Return agents that have learned `env_steps`. Write their best states as a cell does."""
    agents = build_agents(settings, cell.seed)
    for agent, name in zip(agents, settings.agent_names, strict=True):
        if env_steps:
            agent.self_learn(env_steps)
        best = RunDirectory(home).agent(cell, name) / "best"
        best.mkdir(parents=True)
        if isinstance(agent, Exportable):
            agent.export(best)
        else:
            assert isinstance(agent, Checkpointable)
            agent.save(best)
    return agents


def written(settings: ExperimentSettings, home: Path) -> Any:
    """Return the content of best_returns.json, or None if there is none."""
    directory = RunDirectory(home)
    directory.cell(CELL).mkdir(parents=True, exist_ok=True)
    evaluate_best(settings, [CELL], directory)
    found = directory.best_returns(CELL)
    return json.loads(found.read_text()) if found.exists() else None


def by_hand(settings: ExperimentSettings, agent: BlackBoxAgent, seed: int) -> float:
    env = make_environment(settings.environment.id, settings.environment.options)
    state, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        states = np.array([state], dtype=env.observation_space.dtype)
        if isinstance(agent, Acting):
            action = int(agent.act(states)[0])
        else:
            action = int(agent.q_values(states)[0].argmax())
        state, reward, terminated, truncated, _ = env.step(action)
        total, ended = total + float(reward), terminated or truncated
    env.close()
    return total


def test_the_best_state_of_every_kind_is_played_from_its_files(tmp_path: Path) -> None:
    settings = settings_of(PLAYED)
    agents = keep_best(settings, tmp_path)
    means = written(settings, tmp_path)
    assert list(means) == list(settings.agent_names)
    for n, agent in enumerate(agents):
        seeds = seeds_for(CELL.seed, Stream.BEST, n, count=EPISODES).tolist()
        expected = np.mean([by_hand(settings, agent, seed) for seed in seeds])
        # Rewards are float32 in a batch of environments.
        assert means[f"agent{n + 1}"] == pytest.approx(expected, rel=1e-6)
    assert len(set(means.values())) == len(PLAYED)


def test_best_states_are_played_in_a_twin_too(tmp_path: Path) -> None:
    """CartPole's returns are step counts, so a single different action would show."""
    settings = settings_of(["dqn", "dqn"], "environment.id=CartPole-v1", "agents.2.hidden=[8]")
    agents = keep_best(settings, tmp_path, env_steps=0)  # learning would need a compiled program
    twin = find_twin("CartPole-v1")
    assert twin is not None
    batch = TwinBatch(twin, 1)
    expected = {}
    for n, agent in enumerate(agents):
        returns = []
        for seed in seeds_for(CELL.seed, Stream.BEST, n, count=EPISODES).tolist():
            states, total = batch.reset([seed]), 0.0
            while len(batch.running):
                states, rewards, _, _ = batch.step(agent.q_values(states).argmax(axis=1))
                total += float(rewards[0])
            returns.append(total)
        expected[f"agent{n + 1}"] = sum(returns) / EPISODES
    assert written(settings, tmp_path) == expected


def test_known_returns_are_written(tmp_path: Path) -> None:
    """A lake of two fields with the goal on the right. Agents at the goal are not queried."""
    settings = settings_of(
        [f"{__name__}:Stubborn"] * 2,
        "environment.id=FrozenLake-v1",
        "environment.options={desc = ['SG'], is_slippery = false}",
        f"agents.1.choice={LEFT}",
        f"agents.2.choice={RIGHT}",
    )
    keep_best(settings, tmp_path, env_steps=0)
    assert written(settings, tmp_path) == {"agent1": 0.0, "agent2": 1.0}


@pytest.mark.parametrize("most_episodes", [1, 2 * EPISODES, 4 * EPISODES, 1_000])
def test_cells_side_by_side_have_the_returns_of_each_alone(
    most_episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(["dqn", "dqn"], "environment.id=CartPole-v1", "agents.2.hidden=[8]")
    directory = RunDirectory(tmp_path)
    cells = [Cell(arm, seed) for arm in ("independent", "fedhql") for seed in (3, 4, 5)]
    for cell in cells:
        keep_best(settings, tmp_path, 0, cell)
        directory.cell(cell).mkdir(parents=True, exist_ok=True)

    def returns() -> list[dict[str, float]]:
        return [json.loads(directory.best_returns(cell).read_text()) for cell in cells]

    for cell in cells:
        evaluate_best(settings, [cell], directory)
    alone = returns()
    assert len({json.dumps(of_cell) for of_cell in alone}) == 3  # both arms begin alike
    for cell in cells:
        directory.best_returns(cell).unlink()
    monkeypatch.setattr("fedhql.engines.best_states.MOST_EPISODES", most_episodes)
    evaluate_best(settings, cells, directory)
    assert returns() == alone


def test_nothing_is_written_without_episodes(tmp_path: Path) -> None:
    settings = settings_of(["tabular"], "evaluation.best_episodes=0")
    keep_best(settings, tmp_path)
    assert written(settings, tmp_path) is None


def test_nothing_is_written_without_best_states(tmp_path: Path) -> None:
    assert written(settings_of(["tabular"]), tmp_path) is None


def test_an_agent_without_a_best_state_is_left_out(tmp_path: Path) -> None:
    """An agent's episodes do not depend on the other agents."""
    settings = settings_of(["tabular", "tabular"])
    keep_best(settings, tmp_path / "both")
    both = written(settings, tmp_path / "both")
    keep_best(settings, tmp_path / "one")
    gone = RunDirectory(tmp_path / "one").agent(CELL, "agent1") / "best"
    gone.rename(gone.with_name("worst"))
    assert written(settings, tmp_path / "one") == {"agent2": both["agent2"]}


def test_an_export_that_only_its_owner_can_read_is_left_out(tmp_path: Path) -> None:
    settings = settings_of([f"{__name__}:Secretive", "tabular"])
    keep_best(settings, tmp_path)
    assert list(written(settings, tmp_path)) == ["agent2"]


def test_the_final_episodes_have_fresh_seeds(tmp_path: Path) -> None:
    """They differ from the seeds of all evaluations and of the server's episodes."""
    records = CellRecords(
        settings_of(PLAYED),
        CELL,
        RunDirectory(tmp_path),
        report=lambda progress: None,
        clock=lambda: 0.0,
        tracking=Tracking(()),
        state=None,
    )
    seen: set[int] = set()
    nothing = Evaluation(*np.zeros((4, len(PLAYED), 1)))
    for records.round in range(50):
        seen |= set(records.evaluation_seeds(SELF_LEARNING).ravel().tolist())
        seen |= set(records.server_seeds().tolist())
        records.evaluated(SELF_LEARNING, nothing, [{}] * len(PLAYED))  # the next has other seeds
    records.close()
    fresh = [
        seed
        for n in range(len(PLAYED))
        for seed in seeds_for(CELL.seed, Stream.BEST, n, count=100).tolist()
    ]
    assert len(set(fresh)) == 100 * len(PLAYED)
    assert seen.isdisjoint(fresh)
    assert set(fresh).isdisjoint(seeds_for(CELL.seed + 1, Stream.BEST, 0, count=100).tolist())
