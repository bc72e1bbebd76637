"""Batches for tests of storage, and the rows of batches as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Batch
from postroad.core.batch.checks import id_array_of
from postroad.core.batch.schema import ID, PAYLOAD, TICK, layout_of
from postroad.storage import PubendLog
from postroad.types import MessageId, Tick

Row: TypeAlias = tuple[int, bytes, bytes]  # tick, id, payload

BROKER = 9
EVERYTHING = (1 << 64) - 1


def batch_of(ticks: Sequence[int], publishers: Sequence[int] = (1,), payload_bytes: int = 20) -> Batch:
    """Make a batch at these ticks; publishers take turns, and each message's id carries its tick."""
    layout = layout_of(("symbol",), ("string",))
    ids = b"".join(bytes(MessageId(publishers[row % len(publishers)], BROKER, Tick(tick))) for row, tick in enumerate(ticks))
    columns = [
        pa.array(np.array(ticks, np.uint64)),
        id_array_of(ids),
        pa.array([payload_of(tick, payload_bytes) for tick in ticks], pa.binary()),
        pa.array([f"S{tick % 7}" if tick % 3 else None for tick in ticks], pa.string()),
    ]
    return Batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout)


def payload_of(tick: int, payload_bytes: int = 20) -> bytes:
    """Return bytes that differ from tick to tick."""
    return (tick.to_bytes(8, "big") * (payload_bytes // 8 + 1))[:payload_bytes]


def rows_of(batches: Iterable[Batch]) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        columns = (batch.columns.column(index).to_pylist() for index in (TICK, ID, PAYLOAD))
        rows += zip(*columns, strict=True)
    return rows


def read_all(log: PubendLog, lo: int = 0, hi: int = EVERYTHING, bytes_max: int = 4096) -> list[Row]:
    """Read a range to its end, piece by piece."""
    rows: list[Row] = []
    while lo < hi:
        piece = log.read(lo, hi, bytes_max)
        assert piece.hi > lo
        rows += rows_of(piece.batches)
        lo = piece.hi
    return rows
