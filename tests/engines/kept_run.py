"""A small run of tabular agents, finished in this process."""

import json
from pathlib import Path

from fedhql.engines.cell_run import finish_cell
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell, RunDirectory

EPISODES = 20
RANDOM_MDP = f"""
[environment]
id = "tests.known_mdps:RandomMDP-v0"
discount = 0.9
[federation]
query_batch = 8
horizon_steps = 4
self_learning_env_steps = 200
[budget]
env_steps_per_agent = 500
[evaluation]
episodes = {EPISODES}
best_episodes = 0
moments = "round"
"""
TABULAR = '[[agents]]\nkind = "tabular"\n'


def finished_run(home: Path, *arms: str, text: str = RANDOM_MDP + 3 * TABULAR) -> RunDirectory:
    """Run each arm with seed 0. Write what identifies a run, as `fedhql run` does."""
    settings = read_settings(text)
    directory = begun_run(home, settings)
    for arm in arms:
        finish_cell(
            settings,
            Cell(arm, 0),
            directory,
            report=lambda progress: None,
            clock=lambda: 0.0,
            track=(),
        )
    return directory


def begun_run(home: Path, settings: ExperimentSettings) -> RunDirectory:
    directory = RunDirectory(home)
    home.mkdir(parents=True, exist_ok=True)
    directory.settings.write_text(settings.as_toml())
    directory.manifest.write_text(json.dumps({}))
    return directory
