"""The server's memory: transitions from which it forms targets again, at no further env steps.

Shape letters: H steps of a round, R transitions recalled in a step.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Array = Any  # a NumPy or JAX array
NUMBER = "number"  # a slot's field: which transition it holds, counted from 1


class Transitions(NamedTuple):
    """Steps of the server's environments, one per row; in compiled programs, (F lanes, rows)."""

    states: Array
    actions: Array
    rewards: Array
    next_states: Array
    terminated: Array

    def and_then(self, others: "Transitions | None") -> "Transitions":
        """Return the rows of both."""
        if others is None:
            return self
        xp, axis = self.actions.__array_namespace__(), self.actions.ndim - 1
        return Transitions(*(xp.concat(both, axis=axis) for both in zip(self, others, strict=True)))


def replay_draws(seeds: Sequence[int], H: int, R: int) -> NDArray[np.uint32]:
    """Return the draws of a round, (H, R), from the seeds of its environments."""
    draws = np.random.SeedSequence(int(seeds[0])).generate_state(H * R)
    return draws.astype(np.uint32).reshape(H, R)


def recalled_slots(draws: Array, count: Any, capacity: Any, slots: int) -> Array:
    """Return where in a ring the drawn transitions are: any of the latest `capacity`.

    `count` transitions have been written so far, the first into slot 0. If there are none, the
    result has no meaning.
    """
    xp = draws.__array_namespace__()
    held = xp.maximum(xp.minimum(count, capacity), 1)
    return (count - 1 - draws % held) % slots


class Replay:
    """The latest transitions of one server, in a ring of slots."""

    def __init__(self, capacity: int, batch: int, room: int, file: Path | None = None) -> None:
        """Keep `capacity` transitions, and recall `batch` of them in each step.

        A step adds at most `room` transitions. The ring has so many extra slots, so that a step
        that is undone overwrites none of the latest `capacity`. With `file`, the slots are there.
        """
        self.batch = batch
        self.count = 0  # the transitions so far; those before it are valid
        self._capacity, self._slots, self._file = capacity, capacity + room, file
        self._ring: NDArray[Any] | None = None
        if file is not None and file.exists():
            try:
                self._ring = np.lib.format.open_memmap(file, mode="r+")
            except ValueError as error:
                log.warning("%s is not readable (%s); the memory begins anew", file, error)

    def recall(self, draws_R: NDArray[np.uint32]) -> Transitions | None:
        """Return one transition per draw, or None if there are none yet."""
        if self._ring is None or self.count == 0:
            return None
        slots_R = recalled_slots(draws_R.astype(np.int64), self.count, self._capacity, self._slots)
        rows_R = self._ring[slots_R]
        return Transitions(*(rows_R[field] for field in Transitions._fields))

    def go_to(self, count: int) -> None:
        """Forget all but the first `count` transitions.

        Begin anew if the slots do not hold the latest of those: the file may be gone, or a copy.
        """
        self.count = count if self._holds(count) else 0
        if self.count < count:
            log.warning("%s does not hold the server's transitions; it begins anew", self._file)

    def _holds(self, count: int) -> bool:
        if self._ring is None or count == 0:
            return count == 0
        ends = np.array([max(count - self._capacity, 0), count - 1])  # the oldest and the newest
        return bool((self._ring[NUMBER][ends % self._slots] == ends + 1).all())

    def remember(self, new: Transitions) -> None:
        if self._ring is None:
            self._ring = self._new_ring(new)
        slots_B = (self.count + np.arange(len(new.actions))) % self._slots
        for field, rows in zip(Transitions._fields, new, strict=True):
            self._ring[field][slots_B] = rows
        self._ring[NUMBER][slots_B] = self.count + np.arange(len(new.actions)) + 1
        if isinstance(self._ring, np.memmap):
            self._ring.flush()
        self.count += len(new.actions)

    def save(self, file: Path) -> None:
        if self._ring is not None:
            np.save(file, self._ring)

    def restore(self, file: Path) -> None:
        """Continue from what `save` wrote; it writes nothing for an empty memory."""
        if file.exists():
            self._ring = np.load(file)
            self.count = int(self._ring[NUMBER].max())

    def _new_ring(self, new: Transitions) -> NDArray[Any]:
        fields = zip(Transitions._fields, new, strict=True)
        dtypes = [(name, rows.dtype, rows.shape[1:]) for name, rows in fields]
        ring = np.zeros(self._slots, dtype=[*dtypes, (NUMBER, np.int64)])
        if self._file is None:
            return ring
        np.save(self._file, ring)  # a full disk is an error here, and not in a later write
        return np.lib.format.open_memmap(self._file, mode="r+")
