"""What several commands share."""

import logging
import os
import sys
from typing import NoReturn

from fedhql.errors import SettingsError

INTERRUPTED = 130


def fail(message: str, code: int) -> NoReturn:
    print(f"fedhql: error: {message}", file=sys.stderr)  # noqa: T201 - plain, whatever the terminal
    sys.exit(code)


def parse_seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise SettingsError(f"--seeds {text}: allowed: whole numbers >= 0 with commas, as in 0,1,2")
    return [int(part) for part in parts]


def cores() -> int:
    """Those this process may use, where the system tells (macOS does not)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def warnings_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fedhql: warning: %(message)s"))
    logging.getLogger("fedhql").addHandler(handler)
