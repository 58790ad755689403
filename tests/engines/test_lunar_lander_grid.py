"""Grids of LunarLander: as a twin, and stepped by EnvPool."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.error import DependencyNotInstalled

from fedhql.environments.compiled import ENVPOOL_ENVIRONMENTS
from fedhql.environments.make import make_environment
from fedhql.errors import MissingExtra
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import RunDirectory
from tests.engines.small_grid import CELLS, SETTINGS, contents, finish, interrupted

NEEDS_ENVPOOL = pytest.mark.skipif(
    not ENVPOOL_ENVIRONMENTS["LunarLander-v3"].is_installed,
    reason="no EnvPool (pip install 'fedhql[envpool]')",
)

# Programs with the twin take a minute to compile, and more where other tests run beside.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def lander(implementation: str, server: str = "reset") -> ExperimentSettings:
    environment = SETTINGS.environment.model_copy(
        update={"id": "LunarLander-v3", "implementation": implementation}
    )
    federation = SETTINGS.federation.model_copy(update={"server_environments": server})
    return SETTINGS.model_copy(update={"environment": environment, "federation": federation})


@pytest.mark.parametrize("server", ["reset", "carry-over"])
@pytest.mark.parametrize("implementation", ["twin", pytest.param("envpool", marks=NEEDS_ENVPOOL)])
def test_a_resumed_grid_writes_the_same_bytes(
    server: str, implementation: str, tmp_path: Path
) -> None:
    """EnvPool cannot save agents' episodes, so phases begin new ones; the server's are replayed."""
    settings = lander(implementation, server)
    whole = finish(tmp_path / "whole", settings=settings)
    home = interrupted(tmp_path / "interrupted", 16, settings)
    assert contents(home) != contents(whole)
    assert contents(finish(home, settings=settings)) == contents(whole)


def test_a_grid_of_the_twin_needs_no_box2d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setattr(gym, "make", missing)
    with pytest.raises(MissingExtra, match="box2d"):
        make_environment("LunarLander-v3")
    directory = RunDirectory(finish(tmp_path, CELLS[:1], settings=lander("twin")))
    assert directory.result(CELLS[0]).exists()
