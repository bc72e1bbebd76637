"""Selections taken together are those taken one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.rows import build_batches
from postroad.core.streams import selection
from postroad.core.streams.selection import select
from postroad.types import MessageId

(BATCH,) = build_batches([(bytes(MessageId.make(1, 1, n)), {"n": n, "s": "x" * n}, bytes(n)) for n in range(12)])
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
    some, every = np.array([1, 3]), np.arange(12)
    first, second, third = select(BATCH, [some, some, every])
    assert first is second
    assert third is BATCH
