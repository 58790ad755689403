"""Which cells run together as lanes of one compiled grid."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhql.engines.choice import TWIN_IDS
from fedhql.settings.arms import federates, settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.files import locked, write_atomically
from fedhql.storage.run_directory import Cell, RunDirectory

MEMORY_SHARE = 0.6  # of the device's, for replay memories
# On one core: more lanes than this leave its caches, and are slower; EnvPool's physics weighs more
# than that, and its threads change places once for all lanes (docs/performance.md).
MOST_LANES_ON_A_CORE = {True: 8, False: 32}  # whether the environment is a twin
FLOATS_A_ROW_BESIDES_STATES = 3


@dataclass(frozen=True)
class Device:
    """What grids are planned for."""

    is_cpu: bool
    memory_bytes: int
    observation_size: int  # of the environment, in numbers


def read_states(checkpoint: Path) -> dict[str, Any]:
    """What a grid's checkpoint says besides its arrays."""
    content: dict[str, Any] = json.loads((checkpoint / "grid.json").read_text())
    return content


def plan_grids(
    settings: ExperimentSettings,
    directory: RunDirectory,
    left: Sequence[Cell],
    jobs: int,
    device: Device,
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
    for cells in _dealt(settings, new, jobs, device):
        home = directory.grids() / str(next(free))
        write_atomically(home / "lanes.json", json.dumps([str(cell) for cell in cells]))
        grids.append((cells, home))
    return grids


def _dealt(
    settings: ExperimentSettings, cells: Sequence[Cell], jobs: int, device: Device
) -> list[list[Cell]]:
    """Lanes move at one pace, so they share the length of a phase, and broadcast as many rows.

    EnvPool's episodes go on for all lanes or for none. Work is dealt out evenly.
    """
    is_twin = settings.environment.id in TWIN_IDS
    groups: dict[tuple[int, str, bool], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: not federates(cell.arm)):
        federation = settings_of_arm(settings, cell.arm).federation
        goes_on = not is_twin and federation.carry_over
        kind = federation.self_learning_env_steps, federation.broadcast, goes_on
        groups.setdefault(kind, []).append(cell)
    dealt = []
    for group in groups.values():
        most = max(1, _lanes_in_memory(settings, device) // jobs)
        if device.is_cpu:
            most = min(most, MOST_LANES_ON_A_CORE[is_twin])
        # As many for each job: with three grids for two, one would be idle in the end.
        turns = -(-len(group) // (most * jobs))
        hands = min(turns * jobs, len(group))
        dealt += [group[hand::hands] for hand in range(hands)]
    return dealt


def _lanes_in_memory(settings: ExperimentSettings, device: Device) -> int:
    """How many federations' replay memories fit; their size is known before any is made."""
    row = 2 * device.observation_size + FLOATS_A_ROW_BESIDES_STATES
    budget = settings.budget.env_steps_per_agent
    rows = sum(min(agent.options["buffer_size"], budget) for agent in settings.agents)
    return int(MEMORY_SHARE * device.memory_bytes // (4 * row * rows))
