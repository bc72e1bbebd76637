"""Batches: what goes in as rows or columns comes out as messages, in order and of the same types."""

from __future__ import annotations

import numpy as np

from postroad.core.rows import Row, build_batches


def test_rows_come_back_as_messages() -> None:
    """Ids, attributes, payloads and ticks survive."""
    rows: list[Row] = [Row(bytes([n] * 16), {"price": n / 2, "symbol": f"S{n}"}, b"x" * n) for n in range(5)]
    [batch] = build_batches(rows, np.arange(10, 15, dtype=np.uint64))
    assert [(bytes(m.id), m.attributes, m.payload) for m in batch] == rows
    assert [m.tick for m in batch] == [10, 11, 12, 13, 14]
