"""How a worker process uses JAX: compiled programs are kept between runs."""

import os
from pathlib import Path


def prepare_jax() -> None:
    """Keep compiled programs in the user's cache directory ($XDG_CACHE_HOME or ~/.cache)."""
    import jax

    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    settings = {
        "jax_compilation_cache_dir": str(Path(home) / "fedhql" / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]  # jax leaves it untyped
