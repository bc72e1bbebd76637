"""Digests of sets of message ids: a sum over the ids, so their order does not matter and digests of parts can be added.

Each id is mixed to 64 bits, of which the two halves are summed apart, modulo 2^32. Two different sets of one size have equal
digests by chance once in 2^64. It is a checksum against mistakes and damage; somebody who wants to deceive can find such sets.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids

LANE: Final = 1 << 32
Longs: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
_LOW: Final = np.uint64(LANE - 1)
_HIGH: Final = np.uint64(32)


def lanes(ids: Ids) -> tuple[Longs, Longs]:
    """Return the two halves of what each id is mixed to."""
    words = np.ascontiguousarray(ids).view(np.uint64).reshape(-1, 2)
    mixed = _mix(words[:, 0] ^ _mix(words[:, 1]))
    return (mixed & _LOW).astype(np.int64), (mixed >> _HIGH).astype(np.int64)


def _mix(words: _Words) -> _Words:
    """Mix 64 bits as splitmix64 does."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def digests_between(values: Longs, bounds: Longs) -> Longs:
    """Sum one lane between neighbouring bounds."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])  # 2^31 values fit
    found: Longs = (total[bounds[1:]] - total[bounds[:-1]]) % LANE
    return found
