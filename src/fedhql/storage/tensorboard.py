"""TensorBoard event files: a directory per agent, stable-baselines3's tags."""

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def load_tensorboard() -> Any:
    return import_module("tensorboard")


class TensorBoard:
    """Write scalars, each part to its own directory."""

    def __init__(
        self, directory: Path, title: str = "", wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Write to `directory`. TensorBoard shows paths, so it has no use for a title."""
        self._directory, self._wall_clock = directory, wall_clock
        self._writers: dict[str, Any] = {}

    def write(self, part: str, figures: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if part not in self._writers:
            self._writers[part] = EventFileWriter(str(self._directory / part))
        # Write simple values, as torch's writer does, which stable-baselines3 uses.
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
        event = Event(wall_time=self._wall_clock(), step=step, summary=Summary(value=values))
        self._writers[part].add_event(event)
        self._writers[part].flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
