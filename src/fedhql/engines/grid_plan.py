"""Which cells run together as lanes of one compiled grid."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedhql.engines.build_agent import compiled_config, compiled_environment
from fedhql.engines.engine import DeviceFacts
from fedhql.settings.arms import federates, settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.files import locked, write_atomically
from fedhql.storage.run_directory import Cell, RunDirectory

MEMORY_SHARE = 0.6  # of the device's, for replay memories
FLOATS_A_ROW_BESIDES_STATES = 3


def read_states(checkpoint: Path) -> dict[str, Any]:
    """What a grid's checkpoint says besides its arrays."""
    content: dict[str, Any] = json.loads((checkpoint / "grid.json").read_text())
    return content


def plan_grids(
    settings: ExperimentSettings,
    directory: RunDirectory,
    left: Sequence[Cell],
    jobs: int,
    memories: int,
    facts: DeviceFacts,
) -> list[tuple[list[Cell], Path]]:
    """Grids planned before as they are; the other cells in as many as run side by side.

    Which lanes share a program shows in the last bits of their results, so it is written down.

    -> cells and the directory of the grid's checkpoints.
    """
    grids = []
    under_way: set[Cell] = set()
    directory.grids().mkdir(exist_ok=True)
    for home in sorted(directory.grids().iterdir()):
        with locked(home, wait=True):  # a worker may outlive its killed parent by a moment
            planned = home / "lanes.json"
            names = json.loads(planned.read_text()) if planned.exists() else []
            cells = [Cell.parse(name) for name in names]
            if any(cell in left for cell in cells):
                grids.append((cells, home))
                under_way |= set(cells)
            else:  # killed when it had just been planned, or had just finished
                shutil.rmtree(home)
    new = [cell for cell in left if cell not in under_way]
    taken = {int(home.name) for _, home in grids}
    free = (number for number in range(len(taken) + len(new)) if number not in taken)
    for cells in _dealt(settings, new, jobs, memories, facts):
        home = directory.grids() / str(next(free))
        write_atomically(home / "lanes.json", json.dumps([str(cell) for cell in cells]))
        grids.append((cells, home))
    return grids


def _dealt(
    settings: ExperimentSettings,
    cells: Sequence[Cell],
    jobs: int,
    memories: int,
    facts: DeviceFacts,
) -> list[list[Cell]]:
    """Lanes move at one pace, so they share the length of a phase, and broadcast as many rows.

    EnvPool's episodes go on for all lanes or for none. Work is dealt out evenly.
    """
    environment = compiled_environment(settings.environment)
    assert environment is not None  # else another engine runs it
    groups: dict[tuple[int, str, bool], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: not federates(cell.arm)):
        federation = settings_of_arm(settings, cell.arm).federation
        goes_on = environment.twin is None and federation.carry_over
        kind = federation.self_learning_env_steps, federation.broadcast, goes_on
        groups.setdefault(kind, []).append(cell)
    dealt = []
    for group in groups.values():
        most = max(1, memories * _lanes_in_memory(settings, facts) // jobs)
        if facts.is_cpu:
            most = min(most, environment.most_lanes_on_a_core)
        # As many for each job: with three grids for two, one would be idle in the end.
        turns = -(-len(group) // (most * jobs))
        hands = min(turns * jobs, len(group))
        dealt += [group[hand::hands] for hand in range(hands)]
    return dealt


def _lanes_in_memory(settings: ExperimentSettings, facts: DeviceFacts) -> int:
    """How many federations' replay memories fit; their size is known before any is made."""
    row = 2 * facts.observation_size + FLOATS_A_ROW_BESIDES_STATES
    budget = settings.budget.env_steps_per_agent
    rows = sum(compiled_config(agent).replay_capacity(budget) for agent in settings.agents)
    return int(MEMORY_SHARE * facts.memory_bytes // (4 * row * rows))
