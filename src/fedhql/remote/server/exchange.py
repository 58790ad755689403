"""One exchange: what members are asked, and which of their answers can be used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.remote.wire import WireError, unpack
from fedhql.remote.wire_pb2 import MaskingKey, Tensor


class TooFew(Exception):
    """Too few of those asked are there, but others are: a new round can go on with them."""


@dataclass(eq=False)
class Exchange:
    """Questions that are open, and what came back."""

    number: int
    states: Mapping[str, NDArray[Any]]  # for each member; most are asked the same
    quorum: int
    waiting: set[str]  # for their answers
    cohort: Sequence[MaskingKey] = ()  # whose masks cancel; without secure aggregation nobody's
    answers: dict[str, NDArray[Any]] = field(default_factory=dict)

    def take(self, name: str, tensor: Tensor, *, action_count: int, bound: float) -> None:
        """An answer, the first of this member; WireError if it cannot be used."""
        self.waiting.discard(name)
        rows = len(self.states[name])
        if self.cohort:  # what is in it, nobody can see
            words = 2 * rows * action_count + 1
            self.answers[name] = unpack(tensor, dtype="uint64", shape=(words,))
            return
        values = unpack(tensor, dtype="float32", shape=(rows, action_count))
        largest = float(np.abs(values).max(initial=0))
        if not largest <= bound:  # NaN is not, either
            raise WireError(f"a value of {largest:g}, allowed: {bound:g}")
        self.answers[name] = values

    def is_settled(self, still_asked: bool) -> bool:
        """Nobody is waited for who is away or late, unless it takes them to make a quorum."""
        return not still_asked and (len(self.answers) >= self.quorum or not self.waiting)
