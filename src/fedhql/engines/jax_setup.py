"""Set up JAX in a worker process and describe its device."""

import os
import sys
from pathlib import Path


def prepare_jax() -> None:
    """Set full float32 precision, and a cache of programs in $XDG_CACHE_HOME or ~/.cache.

    JAX takes half a second to load. Where it is not loaded yet, it finds the settings in the
    environment when it is; many cells never need it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    settings = {
        "jax_compilation_cache_dir": str(Path(home) / "fedhql" / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        # By default a GPU rounds factors of a product to ten bits, so values near 500 to halves.
        "jax_default_matmul_precision": "highest",
    }
    os.environ.update({name.upper(): str(value) for name, value in settings.items()})
    if (jax := sys.modules.get("jax")) is not None:
        for name, value in settings.items():
            jax.config.update(name, value)


def device_memory() -> tuple[bool, int]:
    """Return whether programs run on the CPU, and the bytes of memory that they can use."""
    import jax

    if jax.default_backend() == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return True, memory
    return False, int(jax.devices()[0].memory_stats()["bytes_limit"])
