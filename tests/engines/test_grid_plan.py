import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedhql.engines.engine import DeviceFacts
from fedhql.engines.grid_plan import MEMORY_SHARE, plan_grids
from fedhql.settings.experiment import read_settings
from fedhql.storage.run_directory import Cell, RunDirectory

SETTINGS = read_settings("""
[environment]
id = "CartPole-v1"
[federation]
self_learning_env_steps = 100
[budget]
env_steps_per_agent = 1000
[[agents]]
buffer_size = 400
[[agents]]
buffer_size = 5000
""")
D = 4
CORE = DeviceFacts(is_cpu=True, memory_bytes=10**9, observation_size=D)
BYTES_A_FEDERATION = 4 * (2 * D + 3) * (400 + 1000)  # a buffer never holds more than the budget
ARMS = ("independent", "fedhql", "exploration=3")
CELLS = [Cell(arm, seed) for arm in ARMS for seed in (0, 1)]
Grids = list[tuple[list[Cell], Path]]


def plan(home: Path, left: Sequence[Cell], jobs: int, facts: DeviceFacts = CORE) -> Grids:
    directory = RunDirectory(home)
    home.mkdir(exist_ok=True)
    return plan_grids(SETTINGS, directory, left, jobs, 1, facts)


def with_memory_for(federations: float, *, is_cpu: bool = True) -> DeviceFacts:
    return DeviceFacts(is_cpu, int(federations * BYTES_A_FEDERATION / MEMORY_SHARE), D)


def write_checkpoint(home: Path, number: int, cells: Sequence[Cell], rounds: int = 1) -> Path:
    grid = RunDirectory(home).grids() / str(number)
    checkpoint = grid / f"round-{rounds:09d}"
    checkpoint.mkdir(parents=True)
    (grid / "lanes.json").write_text(json.dumps([str(cell) for cell in cells]))
    return grid


def cells_of(grids: Grids) -> list[list[Cell]]:
    return [cells for cells, _ in grids]


def test_one_job_gets_one_grid(tmp_path: Path) -> None:
    """Federated cells come first, as a grid requires."""
    ((cells, home),) = plan(tmp_path, CELLS, jobs=1)
    assert [cell.arm for cell in cells] == ["fedhql"] * 2 + ["exploration=3"] * 2 + [
        "independent"
    ] * 2
    assert home == tmp_path / "grids" / "0"


@pytest.mark.parametrize(("jobs", "sizes"), [(2, [3, 3]), (4, [2, 2, 1, 1]), (9, [1] * 6)])
def test_cells_are_divided_evenly(jobs: int, sizes: list[int], tmp_path: Path) -> None:
    """Federated cells are divided evenly too, because they take longer."""
    grids = plan(tmp_path, CELLS, jobs)
    assert [len(cells) for cells in cells_of(grids)] == sizes
    assert sorted(cell for cells in cells_of(grids) for cell in cells) == sorted(CELLS)
    assert len({home for _, home in grids}) == len(grids)
    if jobs == 2:
        for cells in cells_of(grids):
            assert [cell.arm for cell in cells].count("independent") == 1


def test_no_cells_give_no_grids(tmp_path: Path) -> None:
    assert plan(tmp_path, [], jobs=2) == []


@pytest.mark.parametrize(("federations", "sizes"), [(2.5, [2, 2, 2]), (0.5, [1] * 6)])
def test_a_grid_has_no_more_lanes_than_fit_into_memory(
    federations: float, sizes: list[int], tmp_path: Path
) -> None:
    for is_cpu in (True, False):
        device = with_memory_for(federations, is_cpu=is_cpu)
        grids = plan(tmp_path / str(is_cpu), CELLS, 1, device)
        assert [len(cells) for cells in cells_of(grids)] == sizes


def test_jobs_share_the_memory(tmp_path: Path) -> None:
    """Each job gets the same number of grids."""
    grids = plan(tmp_path, CELLS, 2, with_memory_for(4.5))
    assert [len(cells) for cells in cells_of(grids)] == [2, 2, 1, 1]


def test_a_core_gets_a_limited_number_of_lanes(tmp_path: Path) -> None:
    """A GPU gets all lanes at once."""
    many = [Cell("fedhql", seed) for seed in range(20)]
    for jobs, sizes in ((1, [7, 7, 6]), (2, [5] * 4), (3, [7, 7, 6]), (4, [5] * 4)):
        assert [len(cells) for cells in cells_of(plan(tmp_path / str(jobs), many, jobs))] == sizes
    gpu = with_memory_for(100, is_cpu=False)
    assert cells_of(plan(tmp_path / "gpu", many, 1, gpu)) == [many]


def test_lanes_of_a_grid_have_the_same_phase_length(tmp_path: Path) -> None:
    longer = [Cell("self_learning_env_steps=200", 0), Cell("self_learning_env_steps=200", 1)]
    grids = cells_of(plan(tmp_path, [*CELLS, *longer], jobs=1))
    assert [set(cells) for cells in grids] == [set(CELLS), set(longer)]


@pytest.mark.parametrize(("implementation", "grids"), [("twin", 1), ("envpool", 2)])
def test_envpool_episodes_carry_over_for_all_lanes_or_none(
    implementation: str, grids: int, tmp_path: Path
) -> None:
    environment = SETTINGS.environment.model_copy(
        update={"id": "LunarLander-v3", "implementation": implementation}
    )
    settings = SETTINGS.model_copy(update={"environment": environment})
    cells = [Cell("fedhql", 0), Cell("server_environments=carry-over", 0)]
    assert len(plan_grids(settings, RunDirectory(tmp_path), cells, 1, 1, CORE)) == grids


def test_a_grid_with_a_checkpoint_keeps_its_cells(tmp_path: Path) -> None:
    """The grid keeps finished cells too, because its checkpoint holds them."""
    old = [Cell("fedhql", 0), Cell("independent", 0), Cell("independent", 1)]
    home = write_checkpoint(tmp_path, 1, old)
    left = [cell for cell in CELLS if cell != Cell("independent", 0)]
    first, *others = plan(tmp_path, left, jobs=2)
    assert first == (old, home)
    assert sorted(cell for cells in cells_of(others) for cell in cells) == sorted(
        set(left) - set(old)
    )
    assert [path.name for _, path in others] == ["0", "2"]


def test_grids_that_never_began_or_have_ended_are_removed(tmp_path: Path) -> None:
    never = RunDirectory(tmp_path).grids() / "0"
    never.mkdir(parents=True)
    (never / ".lock").touch()
    ended = write_checkpoint(tmp_path, 1, [Cell("fedhql", 7)])
    (tmp_path / "grids" / "1" / ".lock").touch()
    grids = plan(tmp_path, CELLS, jobs=1)
    assert cells_of(grids) == cells_of(plan(tmp_path / "fresh", CELLS, jobs=1))
    assert [path.name for path in never.iterdir()] == ["lanes.json"]  # of the new grid
    assert not ended.exists()


def test_a_planned_grid_keeps_its_cells(tmp_path: Path) -> None:
    """With other lanes side by side, the last bits of a resumed run would differ."""
    device = with_memory_for(4.5)
    (finished, _), (running, home), *waiting = plan(tmp_path, CELLS, 2, device)
    write_checkpoint(tmp_path, int(home.name), running)
    left = [cell for cell in CELLS if cell not in finished]
    assert cells_of(plan(tmp_path, left, 2, device)) == [running, *cells_of(waiting)]
