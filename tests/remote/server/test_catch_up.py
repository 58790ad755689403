"""The catch-up window: limits on the number and the size of kept improvements."""

import numpy as np
import pytest

from fedhql.remote.server import catch_up
from fedhql.remote.server.catch_up import CatchUpWindow
from fedhql.remote.wire import fingerprint, pack_improvement
from fedhql.remote.wire_pb2 import Improvement, OrderId


def improvement(number: int, target: float = 0.0) -> Improvement:
    states = np.zeros((2, 4), dtype=np.float32)
    return pack_improvement(number, states, np.zeros(2, dtype=np.int64), np.full(2, target))


def sent(window: CatchUpWindow, applied: int) -> tuple[list[int], int]:
    order, _ = window.order(OrderId(), applied, 10**9)
    return [each.number for each in order.improvements], order.skip_through


def test_an_order_brings_missing_improvements_and_names_skipped_ones() -> None:
    window = CatchUpWindow([], last=0, most=3)
    assert sent(window, 0) == ([], 0)
    assert [window.add(improvement(n)) for n in range(1, 6)] == [1, 1, 1, 2, 3]
    assert sent(window, 5) == ([], 0)
    assert sent(window, 3) == ([4, 5], 0)
    assert sent(window, 2) == ([3, 4, 5], 0)
    assert sent(window, 1) == ([3, 4, 5], 2)
    assert sent(CatchUpWindow([], last=7, most=3), 5) == ([], 7)  # none is kept


def test_kept_improvements_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    size = improvement(1).ByteSize()
    monkeypatch.setattr(catch_up, "MOST_BYTES", 2 * size)
    window = CatchUpWindow([improvement(n) for n in range(1, 6)], last=5, most=100)
    assert sent(window, 0) == ([4, 5], 3)
    monkeypatch.setattr(catch_up, "MOST_BYTES", size - 1)
    assert window.add(improvement(6)) == 6  # the newest is always kept


def test_an_order_brings_no_more_than_fits() -> None:
    window = CatchUpWindow([improvement(n) for n in range(1, 101)], last=100, most=100)
    size = improvement(50).ByteSize()
    applied, pieces = 0, []
    while applied < 100:
        order, applied = window.order(OrderId(epoch=1, number=1), applied, 10 * size)
        assert order.ByteSize() <= 10 * size + 32
        pieces.append([each.number for each in order.improvements])
    assert [number for piece in pieces for number in piece] == list(range(1, 101))
    assert 10 <= len(pieces) <= 13
    order, reached = window.order(OrderId(), 98, 1)
    assert ([each.number for each in order.improvements], reached) == ([99], 99)  # at least one


def test_fingerprints_differ_between_histories() -> None:
    window = CatchUpWindow([improvement(1), improvement(2, target=1.0)], last=2, most=100)
    assert window.fingerprint(2) == fingerprint(improvement(2, target=1.0))
    assert len({fingerprint(improvement(n, t)) for n in (1, 2) for t in (0.0, 1.0)}) == 4
    assert window.fingerprint(0) == window.fingerprint(3) == 0  # not kept
