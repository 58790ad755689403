import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """A shell makes processes in the background, and all they start, ignore interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
