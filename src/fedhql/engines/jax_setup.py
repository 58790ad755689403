"""Set up JAX in a worker process and describe its device."""

import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from fedhql.engines.device_errors import device_failures
from fedhql.environments.compiled import GPU_PLUGINS

# Whole loops run as one CUDA graph, its independent kernels side by side (docs/performance.md).
GPU_FLAGS = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,"
    "WHILE,CONDITIONAL",
    "xla_gpu_graph_min_graph_size": "2",
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_command_buffer_unroll_loops": "true",
}
OLDEST_WITH_GPU_FLAGS = (0, 7, 2)  # XLA ends the process at a flag that it does not know
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


def prepare_jax(*, shares_device: bool = False) -> None:
    """Set full float32 precision, and a cache of programs in $XDG_CACHE_HOME or ~/.cache.

    Also set XLA's flags for a GPU. With `shares_device`, JAX takes a GPU's memory as it needs it,
    so that several processes can use one GPU; otherwise it takes most of it at once.

    JAX takes half a second to load. Where it is not loaded yet, it finds the settings in the
    environment when it is; many cells never need it.
    """
    settings = {
        "jax_compilation_cache_dir": str(compile_cache()),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        # By default a GPU rounds factors of a product to ten bits, so values near 500 to halves.
        "jax_default_matmul_precision": "highest",
    }
    os.environ.update({name.upper(): str(value) for name, value in settings.items()})
    if shares_device:
        os.environ.setdefault(PREALLOCATE, "false")
    set_gpu_flags()
    if (jax := sys.modules.get("jax")) is not None:
        for name, value in settings.items():
            jax.config.update(name, value)


def compile_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fedhql" / "jax"


def set_gpu_flags() -> None:
    """Add GPU_FLAGS to XLA_FLAGS where JAX can use a GPU; a flag that is there keeps its value.

    XLA reads the variable when a process first uses a device.
    """
    if not any(find_spec(plugin) for plugin in GPU_PLUGINS):
        return
    if tuple(int(part) for part in version("jaxlib").split(".")[:3]) < OLDEST_WITH_GPU_FLAGS:
        return
    flags = os.environ.get("XLA_FLAGS", "").split()
    named = {flag.lstrip("-").partition("=")[0] for flag in flags}
    flags += [f"--{name}={value}" for name, value in GPU_FLAGS.items() if name not in named]
    os.environ["XLA_FLAGS"] = " ".join(flags)


def device_memory() -> tuple[bool, int]:
    """Return whether programs run on the CPU, and the bytes of memory that they can use.

    Raise DeviceError if JAX cannot use its device.
    """
    import jax

    with device_failures():
        if jax.default_backend() == "cpu":
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return True, memory
        device = jax.devices()[0]
        jax.device_put(0.0, device).block_until_ready()  # the first array makes JAX take its share
        stats = device.memory_stats()
    limit = int(stats["bytes_limit"])
    # If others use the GPU, JAX may get less than its limit. Where it takes memory as it needs it,
    # the pool says nothing yet.
    taken = (
        0
        if os.environ.get(PREALLOCATE, "").lower() in ("false", "0")
        else stats.get("pool_bytes", 0)
    )
    return False, min(limit, int(taken) or limit)
