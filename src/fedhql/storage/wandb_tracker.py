"""Weights & Biases: one of its runs for each cell or member. WANDB_MODE=offline works."""

import os
import secrets
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedhql.errors import SettingsError
from fedhql.storage.files import kept_id

PROJECT_VARIABLE, PROJECT = "WANDB_PROJECT", "fedhql"  # and the default
# By default, Weights & Biases waits for a server that is down without end.
PATIENCE = {"WANDB_FINISH_TIMEOUT": "60", "WANDB_FINISH_TIMEOUT_RAISES": "true"}


def load_wandb() -> Any:
    for variable, default in PATIENCE.items():
        os.environ.setdefault(variable, default)
    return import_module("wandb")


class WandbTracker:
    """Write scalars as PART/TAG.

    Online, a step that is written again after a resume is left out. Offline, each resume writes
    another directory with the same id.
    """

    def __init__(self, directory: Path, title: str) -> None:
        """Continue the run whose id `directory` keeps, or start one. Its files go there.

        Raise SettingsError if Weights & Biases does not let us write.
        """
        wandb = load_wandb()
        try:
            self._run = wandb.init(
                project=os.environ.get(PROJECT_VARIABLE, PROJECT),
                name=title,
                id=kept_id(directory / "run_id", lambda: secrets.token_hex(8)),
                dir=str(directory.resolve()),
                resume="allow",
                reinit="create_new",  # a process may have many cells, which learn side by side
                settings={"console": "off", "silent": True},  # our own output stays as it is
            )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            raise SettingsError(
                f"track = 'wandb': {error} WANDB_MODE=offline needs no account"
            ) from error

    def write(self, part: str, figures: Mapping[str, float], step: int) -> None:
        self._run.log({f"{part}/{tag}": value for tag, value in figures.items()}, step=step)

    def close(self) -> None:
        self._run.finish()
