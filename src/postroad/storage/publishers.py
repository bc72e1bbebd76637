"""The highest tick of each publisher's message ids, kept as arrays.

A pubend recognises a resent message by the last id of its publisher, also after a crash. Batches of many publishers make a
dictionary costly (a Python step per publisher and batch), so the newest entries wait in a short list of arrays and are merged
when it is long or when the whole is asked for.

The number of publishers is bounded: those whose ids are oldest are forgotten, and `forgotten` is the highest tick among them,
so that a message of an unknown publisher after that tick is certainly new.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from postroad.core.batch import Ids

PUBLISHERS_MAX: Final = 1 << 18  # 3 MiB in the snapshot of a segment
_PENDING_MAX: Final = 1 << 14

Entries: TypeAlias = np.ndarray[Any, np.dtype[np.void]]  # of ENTRY

ENTRY: Final = np.dtype([("publisher", "<u4"), ("tick", "<u8")])
_ID: Final = np.dtype([("publisher", ">u4"), ("broker", ">u4"), ("tick", ">u8")])


class LastIds:
    """The last id of each publisher, at most `publishers_max` of them."""

    def __init__(self, entries: Entries | None = None, forgotten: int = 0, publishers_max: int = PUBLISHERS_MAX) -> None:
        self._merged: Entries = np.empty(0, ENTRY) if entries is None else entries  # sorted by publisher, each once
        self._pending: list[Entries] = []
        self._pending_size = 0
        self._publishers_max = publishers_max
        self._forgotten = forgotten

    def note(self, ids: Ids) -> None:
        """Take the ids of a batch into account."""
        if not len(ids):
            return
        entries = highest_ticks(ids)
        self._pending.append(entries)
        self._pending_size += len(entries)
        if self._pending_size > _PENDING_MAX:
            self._merge()

    def snapshot(self) -> tuple[Entries, int]:
        """Return all entries, sorted by publisher, and the highest tick that was forgotten."""
        self._merge()
        return self._merged, self._forgotten

    def pairs(self) -> tuple[tuple[int, int], ...]:
        self._merge()
        return tuple(zip(self._merged["publisher"].tolist(), self._merged["tick"].tolist(), strict=True))

    def _merge(self) -> None:
        if not self._pending:
            return
        every = np.concatenate([self._merged, *self._pending])
        self._merged = _highest(every["publisher"], every["tick"])
        self._pending, self._pending_size = [], 0
        if len(self._merged) > self._publishers_max:
            self._forget()

    def _forget(self) -> None:
        order = np.argsort(self._merged["tick"], kind="stable")
        dropped, kept = np.split(order, [len(order) - self._publishers_max])
        self._forgotten = max(self._forgotten, int(self._merged["tick"][dropped].max()))
        self._merged = self._merged[np.sort(kept)]


def highest_ticks(ids: Ids) -> Entries:
    """Return the highest tick per publisher of some (at least one) message ids, sorted by publisher."""
    rows = ids.view(_ID)
    return _highest(rows["publisher"].astype(np.uint32), rows["tick"].astype(np.uint64))


def _highest(publishers: np.ndarray[Any, Any], ticks: np.ndarray[Any, Any]) -> Entries:
    low, high = publishers.min(), publishers.max()
    if low == high:
        return _entries(publishers[:1], ticks.max(keepdims=True))
    # numpy sorts 16-bit numbers several times faster, and the ids of a broker's publishers often lie close together
    narrow = int(high) - int(low) < 1 << 16
    order = np.argsort((publishers - low).astype(np.uint16) if narrow else publishers, kind="stable")
    grouped = publishers[order]
    is_start = np.empty(len(grouped), np.bool_)
    is_start[0] = True
    np.not_equal(grouped[1:], grouped[:-1], out=is_start[1:])
    starts = np.flatnonzero(is_start)
    return _entries(grouped[starts], np.maximum.reduceat(ticks[order], starts))


def _entries(publishers: np.ndarray[Any, Any], ticks: np.ndarray[Any, Any]) -> Entries:
    entries = np.empty(len(publishers), ENTRY)
    entries["publisher"] = publishers
    entries["tick"] = ticks
    return entries
