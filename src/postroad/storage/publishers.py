"""The highest tick of each publisher's message ids, kept as arrays.

A pubend recognises a resent message by the last id of its publisher, also after a crash. Batches of many publishers make a
dictionary costly (a Python step per publisher and batch), and small batches make arrays costly (12 us each, however few the
rows), so the newest ids wait as they are and are merged when they are many or when the whole is asked for.

The number of publishers is bounded: those whose ids are oldest are forgotten, and `forgotten` is the highest tick among them,
so that a message of an unknown publisher after that tick is certainly new.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids

PUBLISHERS_MAX: Final = 1 << 18  # 3 MiB in the snapshot of a segment
_PENDING_MAX: Final = 1 << 14

Entries: TypeAlias = np.ndarray[Any, np.dtype[np.void]]  # of ENTRY
_Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

ENTRY: Final = np.dtype([("publisher", "<u4"), ("tick", "<u8")])
_ID: Final = np.dtype([("publisher", ">u4"), ("broker", ">u4"), ("tick", ">u8")])


class LastIds:
    """The last id of each publisher, at most `publishers_max` of them."""

    def __init__(self, entries: Entries | None = None, forgotten: int = 0, publishers_max: int = PUBLISHERS_MAX) -> None:
        known = np.empty(0, ENTRY) if entries is None else entries
        self._publishers: _Numbers = known["publisher"].astype(np.uint32)  # ascending, each once
        self._ticks: _Numbers = known["tick"].astype(np.uint64)
        self._pending: list[bytes] = []
        self._pending_size = 0  # ids
        self._publishers_max = publishers_max
        self._forgotten = forgotten

    def note(self, ids: Ids) -> None:
        """Take the ids of a batch into account."""
        if not len(ids):
            return
        self._pending.append(ids.tobytes())
        self._pending_size += len(ids)
        if self._pending_size > _PENDING_MAX:
            self._merge()

    def snapshot(self) -> tuple[Entries, int]:
        """Return all entries, sorted by publisher, and the highest tick that was forgotten."""
        self._merge()
        entries = np.empty(len(self._publishers), ENTRY)
        entries["publisher"], entries["tick"] = self._publishers, self._ticks
        return entries, self._forgotten

    def pairs(self) -> tuple[tuple[int, int], ...]:
        self._merge()
        return tuple(zip(self._publishers.tolist(), self._ticks.tolist(), strict=True))

    def _merge(self) -> None:
        if not self._pending_size:
            return
        rows = np.frombuffer(b"".join(self._pending), _ID)
        newest, highest = _highest(rows["publisher"].astype(np.uint32), rows["tick"].astype(np.uint64))
        publishers = np.concatenate([self._publishers, newest])
        self._publishers, self._ticks = _highest(publishers, np.concatenate([self._ticks, highest]))
        self._pending, self._pending_size = [], 0
        if len(self._publishers) > self._publishers_max:
            self._forget()

    def _forget(self) -> None:
        order = np.argsort(self._ticks, kind="stable")
        dropped, kept = np.split(order, [len(order) - self._publishers_max])
        self._forgotten = max(self._forgotten, int(self._ticks[dropped].max()))
        kept.sort()
        self._publishers, self._ticks = self._publishers[kept], self._ticks[kept]


def _highest(publishers: _Numbers, ticks: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return each publisher once, ascending, with its highest tick; there is at least one."""
    low, high = publishers.min(), publishers.max()
    if low == high:
        return publishers[:1].copy(), ticks.max(keepdims=True)
    # numpy sorts 16-bit numbers several times faster, and the ids of a broker's publishers often lie close together
    narrow = int(high) - int(low) < 1 << 16
    order = (publishers - low).astype(np.uint16).argsort(kind="stable") if narrow else publishers.argsort(kind="stable")
    grouped = publishers[order]
    is_start = np.empty(len(grouped), np.bool_)
    is_start[0] = True
    np.not_equal(grouped[1:], grouped[:-1], out=is_start[1:])
    (starts,) = is_start.nonzero()
    return grouped[starts], np.maximum.reduceat(ticks[order], starts)
