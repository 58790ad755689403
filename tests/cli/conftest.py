import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _programs_are_kept_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not in the cache of whoever runs the tests; and those of one run serve the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """A shell that starts the tests in the background has them, and all they start, ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
