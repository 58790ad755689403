"""A device without memory, or no device, gives one line that says what to do."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from fedhql.engines import compiled_engine, grid_run, jax_setup
from fedhql.engines.compiled_engine import CompiledEngine
from fedhql.engines.device_errors import device_failures
from fedhql.engines.engine import DeviceFacts, Recording
from fedhql.engines.jax_setup import (
    GPU_FLAGS,
    PREALLOCATE,
    device_memory,
    prepare_jax,
    set_gpu_flags,
)
from fedhql.engines.work import Work
from fedhql.environments.compiled import CompiledEnvironment, find_twin
from fedhql.environments.envpool_lanes import EnvPoolLanes
from fedhql.environments.lunar_lander.twin import lunar_lander
from fedhql.errors import DeviceError, EnvironmentRefused
from fedhql.running.local_executor import LocalExecutor, agents_here
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text
from fedhql.storage.run_directory import Cell, RunDirectory

NO_MEMORY = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6600000000 bytes.\n[tf-]"
CELLS = [Cell("fedhql", 0), Cell("fedhql", 1)]
GPU = DeviceFacts(is_cpu=False, memory_bytes=80 * 10**9, observation_size=4)


def planned(home: Path) -> Work:
    """Return the one grid of the paper's CartPole with two cells on a GPU."""
    settings, directory = read_settings(preset_text("cartpole-n5")), RunDirectory(home)
    recording = Recording(lambda: 0.0, track=())
    (work,) = CompiledEngine().plan(
        settings, directory, CELLS, LocalExecutor(16), facts=GPU, recording=recording
    )
    return work


def failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(grid_run, "finish_grid", fail)


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_a_grid_that_does_not_fit_says_so_and_is_planned_again(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(kind(NO_MEMORY), monkeypatch)
    work = planned(tmp_path)
    assert (tmp_path / "grids" / "0").exists()
    with pytest.raises(DeviceError) as caught:
        work.do(RunDirectory(tmp_path), lambda message: None)
    message = str(caught.value)
    assert (
        "2 cells want 0.44 GB for replay memories and some more, and the device has 80 GB"
        in message
    )
    for advice in (
        "CUDA_VISIBLE_DEVICES",
        "fewer seeds",
        "agents.buffer_size",
        "fewer jobs",
        "--resume",
    ):
        assert advice in message
    assert "trying to allocate 6600000000 bytes. [tf-])" in message
    assert not (tmp_path / "grids" / "0").exists()


@pytest.mark.parametrize(("rounds", "stays"), [(0, False), (3, True)])
def test_a_grid_that_has_begun_keeps_its_plan(
    rounds: int, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint holds these lanes."""
    failing(MemoryError(), monkeypatch)
    work = planned(tmp_path)
    checkpoint = tmp_path / "grids" / "0" / f"round-{rounds:09d}"
    checkpoint.mkdir()
    (checkpoint / "grid.json").write_text(f'{{"cells": {{"fedhql/seed0": {{"round": {rounds}}}}}}}')
    with pytest.raises(DeviceError, match="out of memory"):
        work.do(RunDirectory(tmp_path), lambda message: None)
    assert checkpoint.exists() == stays


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="INTERNAL"), device_failures():
        raise jax.errors.JaxRuntimeError("INTERNAL: a mistake of ours")


def test_a_device_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise RuntimeError("Unable to initialize backend 'cuda': no CUDA-capable device")

    monkeypatch.setattr(jax, "default_backend", fail)
    with pytest.raises(DeviceError, match=r"set JAX_PLATFORMS=cpu .*no CUDA-capable device"):
        device_memory()


class FakeGpu:
    """A GPU of 80 GB, of which JAX may take 60 and has got 20."""

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 60, "pool_bytes": 20}


@pytest.mark.parametrize(("preallocate", "usable"), [("true", 20), ("false", 60)])
def test_the_memory_of_a_shared_gpu_is_what_jax_got(
    preallocate: str, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake_gpu(monkeypatch)
    monkeypatch.setenv(PREALLOCATE, preallocate)
    assert device_memory() == (False, usable)


def use_fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    put = jax.device_put
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [FakeGpu()])
    monkeypatch.setattr(jax, "device_put", lambda value, device: put(value))


def test_envpool_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program on a GPU would hand it buffers that NumPy cannot read."""
    use_fake_gpu(monkeypatch)
    settings = read_settings(preset_text("cartpole-n5"))
    assert not CompiledEngine().try_out(settings, agents_here).is_cpu
    of_host = CompiledEnvironment(lambda: EnvPoolLanes("LunarLander-v3"), package="envpool")
    monkeypatch.setattr(compiled_engine, "compiled_environment", lambda environment: of_host)
    with pytest.raises(EnvironmentRefused, match="stepped by envpool on the CPU") as refused:
        CompiledEngine().try_out(settings, agents_here)
    _, _, twin = str(refused.value).rpartition("environment.implementation=")
    assert find_twin("LunarLander-v3", implementation=twin) == lunar_lander()


@pytest.mark.parametrize(
    ("plugin", "version", "before", "after"),
    [
        (None, "0.11.2", "--a=1", "--a=1"),
        ("jax_cuda13_plugin", "0.7.1", "--a=1", "--a=1"),
        ("jax_cuda12_plugin", "0.11.2", "", {**GPU_FLAGS}),
        (
            "jax_cuda13_plugin",
            "0.11.2",
            "--a=1 --xla_gpu_graph_min_graph_size=5",
            {"a": "1", **GPU_FLAGS, "xla_gpu_graph_min_graph_size": "5"},
        ),
    ],
)
def test_a_gpu_gets_flags_that_its_jax_knows(
    plugin: str | None,
    version: str,
    before: str,
    after: str | dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax_setup, "find_spec", lambda name: name == plugin or None)
    monkeypatch.setattr(jax_setup, "version", lambda package: version)
    monkeypatch.setenv("XLA_FLAGS", before)
    set_gpu_flags()
    flags = os.environ["XLA_FLAGS"]
    if isinstance(after, str):
        assert flags == after
    else:
        assert dict(flag[2:].split("=") for flag in flags.split()) == after


@pytest.mark.parametrize(("own", "after"), [({}, "false"), ({PREALLOCATE: "true"}, "true")])
def test_processes_that_share_a_gpu_take_memory_as_they_need_it(
    own: dict[str, str], after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_setup, "sys", SimpleNamespace(modules={}))  # JAX is not loaded yet
    monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": "cache"} | own)
    prepare_jax(shares_device=True)
    assert os.environ[PREALLOCATE] == after
