"""One exchange: the question to each member and the usable answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import Actions
from fedhql.remote.wire import WireError, unpack
from fedhql.remote.wire_pb2 import Cause, MaskingKey, Report, Tensor


class TooFew(Exception):
    """Too few members of the round are connected, but others are. A new round can use those."""


@dataclass(eq=False)
class Exchange:
    """Open questions and the answers so far."""

    number: int
    states: Mapping[str, NDArray[Any]]  # by member; usually the same array for all
    quorum: int
    waiting: set[str]  # members that have not answered
    cohort: Sequence[MaskingKey] = ()  # the keys whose masks cancel; secure aggregation only
    act: bool = False  # ask how agents act, too
    answers: dict[str, NDArray[Any]] = field(default_factory=dict)
    actions: dict[str, Actions] = field(default_factory=dict)  # of members that sent them

    def take(self, name: str, report: Report, *, action_count: int, bound: float) -> None:
        """Store the first answer of a member; raise WireError if it cannot be used."""
        self.waiting.discard(name)
        tensor = report.values
        rows = len(self.states[name])
        if self.cohort:  # the answer is masked, so its values cannot be checked
            words = 2 * rows * action_count + 1
            self.answers[name] = _array(tensor, "uint64", (words,))
            return
        values = _array(tensor, "float32", (rows, action_count))
        largest = float(np.abs(values).max(initial=0))
        if not largest <= bound:  # also true for NaN
            raise WireError(
                f"a value of {largest:g}; allowed: finite ones up to {bound:g} in size",
                Cause.ANSWER_VALUE,
            )
        if self.act and report.HasField("actions"):
            actions = _array(report.actions, "int64", (rows,))
            if not ((actions >= 0) & (actions < action_count)).all():
                raise WireError(f"an action outside 0 to {action_count - 1}", Cause.ANSWER_VALUE)
            self.actions[name] = actions
        self.answers[name] = values

    def is_settled(self, still_asked: bool) -> bool:
        """Return whether the exchange can end.

        `still_asked` tells whether a connected member has yet to answer. The exchange waits for
        members that are absent or busy with an older question only if the quorum needs them.
        """
        return not still_asked and (len(self.answers) >= self.quorum or not self.waiting)


def _array(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        return unpack(tensor, dtype=dtype, shape=shape)
    except WireError as error:
        raise WireError(str(error), Cause.ANSWER_FORM) from error
