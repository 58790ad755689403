"""A run as TensorBoard event files, one directory per agent, under stable-baselines3's tags."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedhql.errors import MissingExtra


def require_tensorboard() -> None:
    try:
        import_module("tensorboard")
    except ModuleNotFoundError as error:
        raise MissingExtra.named("tensorboard", "--tensorboard") from error


class TensorBoard:
    """Scalars of one cell, in a directory for each part of it; with no directory, nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._writers: dict[str, Any] = {}

    def write(self, part: str, figures: Mapping[str, float], step: int) -> None:
        if self._directory is None:
            return
        if part not in self._writers:
            from tensorboard.summary import Writer

            self._writers[part] = Writer(str(self._directory / part))
        for tag, value in figures.items():
            self._writers[part].add_scalar(tag, value, step)
        self._writers[part].flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
