"""Ids that look like real ones: few publishers, one broker, timestamps close together, small counters."""

from __future__ import annotations

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories.elements import ID_DTYPE

WALL_MS = 1_780_000_000_000


def make_ids(
    count: int, *, start_ms: int = WALL_MS, per_ms: int = 5, publishers: int = 200, broker: int = 1, seed: int = 1
) -> Ids:
    """Return different ids in order of time; the publishers of one millisecond are random."""
    random = np.random.default_rng(seed)
    ids = np.zeros(count, ID_DTYPE)
    ids["publisher"] = random.integers(1, publishers + 1, count)
    ids["broker"] = broker
    numbers = np.arange(count, dtype=np.uint64)
    ids["tick"] = (np.uint64(start_ms) + numbers // np.uint64(per_ms) << np.uint64(16)) | numbers % np.uint64(per_ms)
    return ids.view("V16")


def ids_at(timestamps: list[int], *, publisher: int = 1, broker: int = 1, counter: int = 0) -> Ids:
    """Return one id for each timestamp."""
    ids = np.zeros(len(timestamps), ID_DTYPE)
    ids["publisher"], ids["broker"] = publisher, broker
    ids["tick"] = (np.array(timestamps, np.uint64) << np.uint64(16)) | np.uint64(counter)
    return ids.view("V16")
