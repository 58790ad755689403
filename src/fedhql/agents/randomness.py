"""Private random streams for libraries that draw from the process's global generators.

stable-baselines3 explores and samples replay with `np.random`, and seeding one model reseeds the
whole process, so two such agents in one process would disturb each other. Inside `with streams:` an
agent uses its own generators; afterwards the global ones are as before.
"""

import random
import sys
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PrivateStreams:
    """One agent's own states for the global generators of random, NumPy and torch, if loaded."""

    def __init__(self, seed: int) -> None:
        self._outside: dict[str, NDArray[Any]] | None = None
        outside = global_state()
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - the legacy generator is what SB3 draws from
            if torch := sys.modules.get("torch"):
                torch.manual_seed(seed)
            self.state = global_state()
        finally:
            set_global_state(outside)

    def __enter__(self) -> None:
        self._outside = global_state()
        set_global_state(self.state)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._outside is not None
        self.state = global_state()
        set_global_state(self._outside)


def global_state() -> dict[str, NDArray[Any]]:
    """Return the states of the global generators as arrays, for `np.savez`."""
    version, words, gauss = random.getstate()
    # The legacy generator draws normals in pairs and caches the second.
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    state: dict[str, NDArray[Any]] = {
        "python": np.array([version, *words], dtype=np.int64),
        "python_gauss": np.array([] if gauss is None else [gauss], dtype=np.float64),
        "numpy": np.array(keys, dtype=np.uint32),
        "numpy_position": np.array([position, has_gauss], dtype=np.int64),
        "numpy_gauss": np.array([cached], dtype=np.float64),
    }
    if torch := sys.modules.get("torch"):
        state["torch"] = torch.get_rng_state().numpy().copy()
    return state


def set_global_state(state: dict[str, NDArray[Any]]) -> None:
    version, *words = state["python"].tolist()
    gauss = state["python_gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    position, has_gauss = state["numpy_position"].tolist()
    cached = float(state["numpy_gauss"][0])
    np.random.set_state(("MT19937", state["numpy"], position, has_gauss, cached))  # noqa: NPY002
    if "torch" in state and (torch := sys.modules.get("torch")):
        torch.set_rng_state(torch.from_numpy(state["torch"].copy()))
