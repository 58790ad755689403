"""What becomes of a task that is lost. No Ray runs here."""

from pathlib import Path

import pytest

from fedhql.cluster.files import FileReceiver, Parcel
from fedhql.cluster.tasks import MOST_LOSSES, Task, _Running
from fedhql.errors import FedHQLError


def running(home: Path) -> _Running:
    each = _Running(Task("part 1 of 2", lambda files: iter(())), home, home / "aside")
    each._receiver = FileReceiver(home, home / "aside", [])
    return each


def checkpoint(each: _Running, number: int) -> None:
    path = f"cell/round-{number}/state"
    each.receive(Parcel([(path, b"state")], frozenset([path])))


def test_a_task_that_gets_no_further_is_given_up(tmp_path: Path) -> None:
    each = running(tmp_path)
    checkpoint(each, 0)
    for _ in range(MOST_LOSSES - 1):
        each.note_loss("NodeDiedError")
        checkpoint(each, 0)  # again: it began anew
    with pytest.raises(FedHQLError, match=r"part 1 of 2 was lost 5 times .* NodeDiedError"):
        each.note_loss("NodeDiedError")


def test_a_task_that_gets_further_is_not(tmp_path: Path) -> None:
    each = running(tmp_path)
    for number in range(3 * MOST_LOSSES):
        checkpoint(each, number)
        each.note_loss("NodeDiedError")
