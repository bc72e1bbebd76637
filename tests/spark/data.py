"""Data directories with known messages, made without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.storage import LogOptions, open_broker_storage
from postroad.types import COUNTER_BITS, MessageId, Tick

START_MS = 1_700_000_000_000
"""The millisecond of the first tick."""


def tick_of(row: int) -> int:
    """Ten messages per millisecond."""
    return (START_MS + row // 10) << COUNTER_BITS | row % 10


def batch_of(first: int, count: int, attributes: Mapping[str, Sequence[Any]], *, broker: int = 1, publishers: int = 3) -> Batch:
    """Make a batch of rows numbered from `first`; a payload holds the row's number."""
    rows = range(first, first + count)
    ids = b"".join(bytes(MessageId(row % publishers + 1, broker, Tick(tick_of(row)))) for row in rows)
    payloads = [row.to_bytes(8, "big") * 3 for row in rows]
    ticks = np.array([tick_of(row) for row in rows], np.uint64)
    return Batch.from_columns(ids, payloads, attributes, ticks)


def write_log(path: Path, logs: Mapping[int, Iterable[Batch]], *, broker: int = 1, segment_bytes: int = 1 << 26) -> Path:
    """Make a data directory whose pubends hold these batches, as a broker leaves it behind."""
    storage = open_broker_storage(path, broker, list(logs), LogOptions(segment_bytes=segment_bytes))
    for pubend, batches in logs.items():
        for batch in batches:
            storage.logs[pubend].append([batch])
    storage.close()
    return path
