"""What is kept of the improvements, by number and by size."""

import numpy as np
import pytest

from fedhql.remote.server import catch_up
from fedhql.remote.server.catch_up import CatchUpWindow
from fedhql.remote.wire import fingerprint, pack_improvement
from fedhql.remote.wire_pb2 import Improvement, OrderId


def improvement(number: int, target: float = 0.0) -> Improvement:
    states = np.zeros((2, 4), dtype=np.float32)
    return pack_improvement(number, states, np.zeros(2, dtype=np.int64), np.full(2, target))


def sent(kept: CatchUpWindow, applied: int) -> tuple[list[int], int]:
    order = kept.order(OrderId(), applied)
    return [each.number for each in order.improvements], order.skip_through


def test_what_is_missing_and_what_is_to_be_skipped() -> None:
    kept = CatchUpWindow([], last=0, most=3)
    assert sent(kept, 0) == ([], 0)
    assert [kept.add(improvement(n)) for n in range(1, 6)] == [1, 1, 1, 2, 3]
    assert sent(kept, 5) == ([], 0)
    assert sent(kept, 3) == ([4, 5], 0)
    assert sent(kept, 2) == ([3, 4, 5], 0)
    assert sent(kept, 1) == ([3, 4, 5], 2)
    assert sent(CatchUpWindow([], last=7, most=3), 5) == ([], 7)  # all of them are lost


def test_no_more_than_a_message_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    size = improvement(1).ByteSize()
    monkeypatch.setattr(catch_up, "MOST_BYTES", 2 * size)
    kept = CatchUpWindow([improvement(n) for n in range(1, 6)], last=5, most=100)
    assert sent(kept, 0) == ([4, 5], 3)
    assert kept.order(OrderId(), 0).ByteSize() <= 2 * size + 32
    monkeypatch.setattr(catch_up, "MOST_BYTES", size - 1)
    assert kept.add(improvement(6)) == 6  # the newest always goes out


def test_fingerprints_tell_histories_apart() -> None:
    kept = CatchUpWindow([improvement(1), improvement(2, target=1.0)], last=2, most=100)
    assert kept.fingerprint(2) == fingerprint(improvement(2, target=1.0))
    assert len({fingerprint(improvement(n, t)) for n in (1, 2) for t in (0.0, 1.0)}) == 4
    assert kept.fingerprint(0) == kept.fingerprint(3) == 0  # not kept: nothing can be said
