"""Selections taken together are those taken one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.overlay import FakeOverlay

from postroad.core.batch import selection
from postroad.core.batch.build import build_batches
from postroad.core.batch.selection import select
from postroad.core.protocol.orders import Send
from postroad.core.protocol.packets import Deliver
from postroad.types import MessageId

(BATCH,) = build_batches([(bytes(MessageId.make(1, 1, n)), {"n": n, "s": "x" * n}, bytes(n)) for n in range(12)])
(MANY,) = build_batches([(bytes(MessageId.make(1, 1, n)), {"n": n}, b"") for n in range(100)])
wanted = st.lists(st.sets(st.integers(0, 11), min_size=1).map(sorted).map(np.array), max_size=8)


@pytest.mark.parametrize("together_max", [1 << 18, 10])
def test_each_selection_has_its_own_rows(monkeypatch: pytest.MonkeyPatch, together_max: int) -> None:
    """In whatever groups they are taken, every subscriber gets what it selected."""
    monkeypatch.setattr(selection, "TOGETHER_MAX", together_max)

    @given(wanted)
    def check(rows: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> None:
        for one, selected in zip(rows, select(BATCH, rows), strict=True):
            assert selected.equals(BATCH.take(one))

    check()


def test_equal_selections_share_a_batch_and_all_rows_are_the_batch_itself() -> None:
    """So their bytes are encoded once, or not at all."""
    some, neighbours, every = np.array([1, 3]), np.array([4, 5]), np.arange(len(MANY))
    first, second, third, fourth, fifth = select(MANY, [some, some, neighbours, neighbours, every])
    assert first is second
    assert third is fourth
    assert fifth is MANY


def test_few_rows_are_views_when_there_are_enough_of_them() -> None:
    """Views share the values of the batch; for two rows of a large batch that would be too much."""
    (view,) = select(BATCH, [np.array([3, 4])])
    assert view.is_view
    assert view.equals(BATCH.slice(3, 5))
    (alone,) = select(MANY, [np.array([3, 4])])
    assert not alone.is_view
    assert all(each.is_view for each in select(MANY, [np.array([n]) for n in range(10)]))
    assert BATCH._rows is None, "nothing is kept by the batch"


def test_values_are_remembered_from_the_commit_to_the_delivery_and_no_longer() -> None:
    """Subscribers get what publishers gave without a conversion; the cache keeps columns alone."""
    overlay = FakeOverlay(1)
    overlay.subscribe(1, 1, "")
    remembered = []
    overlay.publish(1)
    for batches in overlay.logs.values():
        remembered += [batch._rows for batch in batches]
    delivered = [order.batch for order in overlay.orders[1] if isinstance(order, Send) and isinstance(order.message, Deliver)]
    assert len(remembered) == len(delivered) == 1
    assert remembered == [None]
    assert delivered[0] is not None
    assert delivered[0].is_view
    assert delivered[0]._shared is not None
    assert delivered[0]._shared._payloads is not None, "nobody asked for the payloads yet: they are the publisher's"
