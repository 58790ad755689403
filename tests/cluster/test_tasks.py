"""Tasks that are lost. These tests start no Ray."""

from pathlib import Path
from typing import Any

import pytest
import ray

from fedhql.cluster.file_transfer import FileReceiver, Parcel
from fedhql.cluster.tasks import MOST_LOSSES, Lost, Task, _next, _Running
from fedhql.errors import ClusterError, FedHQLError


def running(home: Path) -> _Running:
    each = _Running(Task("part 1 of 2", lambda files: iter(())), home, home / "staging")
    each._receiver = FileReceiver(home, home / "staging", [])
    return each


def checkpoint(each: _Running, number: int) -> None:
    path = f"cell/round-{number}/state"
    each.receive(Parcel([(path, b"state")], frozenset([path])))


def test_a_task_without_new_checkpoints_is_given_up(tmp_path: Path) -> None:
    each = running(tmp_path)
    checkpoint(each, 0)
    for _ in range(MOST_LOSSES - 1):
        each.note_loss("NodeDiedError")
        checkpoint(each, 0)  # the same one: the task started again
    with pytest.raises(FedHQLError, match=r"part 1 of 2 was lost 5 times .* NodeDiedError"):
        each.note_loss("NodeDiedError")


def test_a_task_with_new_checkpoints_is_not_given_up(tmp_path: Path) -> None:
    each = running(tmp_path)
    for number in range(3 * MOST_LOSSES):
        checkpoint(each, number)
        each.note_loss("NodeDiedError")


def test_a_node_that_cannot_load_a_task_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry would fail in the same way. A node that died is a loss, which is retried."""
    errors: Any = ray.exceptions  # their constructors are untyped
    defect = errors.RayTaskError("_run_one", "", ModuleNotFoundError("No module named 'mine'"))
    for error, kind in ((defect, ClusterError), (errors.NodeDiedError("gone"), Lost)):

        def fail(reference: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(ray, "get", fail)
        message = _next(iter([object()]))
        assert isinstance(message, kind)
        assert kind is Lost or "No module named 'mine'" in str(message)
