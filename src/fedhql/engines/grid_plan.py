"""Plan which cells run together as lanes of one compiled grid."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedhql.engines.build_agent import compiled_config, compiled_environment
from fedhql.engines.engine import DeviceFacts
from fedhql.settings.arms import federates, settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.checkpoints import latest_checkpoint
from fedhql.storage.files import locked, write_atomically
from fedhql.storage.run_directory import Cell, RunDirectory

MEMORY_SHARE = 0.6  # of the device's memory, for replay buffers
FLOATS_A_ROW_BESIDES_STATES = 3


def read_states(checkpoint: Path) -> dict[str, Any]:
    """Return what a grid's checkpoint holds besides arrays."""
    return json.loads((checkpoint / "grid.json").read_text())


def plan_grids(
    settings: ExperimentSettings,
    directory: RunDirectory,
    left: Sequence[Cell],
    jobs: int,
    memories: int,
    facts: DeviceFacts,
) -> list[tuple[list[Cell], Path]]:
    """Return the cells of each grid and the directory of its checkpoints.

    Grids that were planned before stay as they are. New grids hold the other cells. The last bits
    of results depend on which lanes share a program, so the plan is written to lanes.json.
    """
    grids = []
    under_way: set[Cell] = set()
    directory.grids().mkdir(exist_ok=True)
    for home in sorted(directory.grids().iterdir()):
        with locked(home, wait=True):  # a worker may outlive its killed parent briefly
            planned = home / "lanes.json"
            names = json.loads(planned.read_text()) if planned.exists() else []
            cells = [Cell.parse(name) for name in names]
            if any(cell in left for cell in cells):
                grids.append((cells, home))
                under_way |= set(cells)
            else:  # the run was killed before its plan or after its end
                shutil.rmtree(home)
    new = [cell for cell in left if cell not in under_way]
    taken = {int(home.name) for _, home in grids}
    free = (number for number in range(len(taken) + len(new)) if number not in taken)
    for cells in _divided(settings, new, jobs, memories, facts):
        home = directory.grids() / str(next(free))
        write_atomically(home / "lanes.json", json.dumps([str(cell) for cell in cells]))
        grids.append((cells, home))
    return grids


def forget_unless_begun(home: Path) -> None:
    """Remove the plan of a grid that has not finished a round, so that it is planned again."""
    with locked(home, wait=True):
        checkpoint = latest_checkpoint(home)
        states = read_states(checkpoint)["cells"].values() if checkpoint else ()
        if not any(state["round"] for state in states):
            shutil.rmtree(home)


def replay_bytes(settings: ExperimentSettings, facts: DeviceFacts) -> int:
    """Return the bytes of the replay memories of one cell."""
    row = 2 * facts.observation_size + FLOATS_A_ROW_BESIDES_STATES
    budget = settings.budget.env_steps_per_agent
    rows = sum(compiled_config(agent).replay_capacity(budget) for agent in settings.agents)
    return 4 * row * rows


def _divided(
    settings: ExperimentSettings,
    cells: Sequence[Cell],
    jobs: int,
    memories: int,
    facts: DeviceFacts,
) -> list[list[Cell]]:
    """Divide the cells evenly into grids.

    The lanes of a grid step together, so their phases have the same length and their broadcasts
    the same number of rows. EnvPool's episodes carry over for all lanes or for none.
    """
    environment = compiled_environment(settings.environment)
    assert environment is not None  # else another engine runs the experiment
    groups: dict[tuple[int, str, bool], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: not federates(cell.arm)):
        federation = settings_of_arm(settings, cell.arm).federation
        carries_over = environment.twin is None and federation.carry_over
        kind = federation.self_learning_env_steps, federation.broadcast, carries_over
        groups.setdefault(kind, []).append(cell)
    grids = []
    for group in groups.values():
        most = max(1, memories * _lanes_in_memory(settings, facts) // jobs)
        if facts.is_cpu:
            most = min(most, environment.most_lanes_on_a_core)
        # Each job gets as many grids: with three grids for two jobs, one job would idle at the end.
        turns = -(-len(group) // (most * jobs))
        count = min(turns * jobs, len(group))
        grids += [group[start::count] for start in range(count)]
    return grids


def _lanes_in_memory(settings: ExperimentSettings, facts: DeviceFacts) -> int:
    """Return the number of lanes whose replay buffers fit into the device's memory."""
    return int(MEMORY_SHARE * facts.memory_bytes // replay_bytes(settings, facts))
