"""What of a track file is kept at hand to know whether a search needs it, and which of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Ids
from postroad.tracking.files.format import Head
from postroad.tracking.files.schema import HISTORY_KINDS, record_rows, records_of
from postroad.tracking.files.summary import flat, integers
from postroad.tracking.histories.elements import ID_DTYPE, Element, Lost, Milliseconds, Record, Span
from postroad.tracking.histories.settings import Strategy
from postroad.types import COUNTER_BITS, MESSAGE_ID_BYTES

Identity = tuple[int, int, str, int, int, str, int]  # of an element, whatever file its copies are in


class FileIndex:
    """The rows of one file, without ids and bits."""

    def __init__(self, head: Head, digest: int, rows: pa.RecordBatch) -> None:
        self.head: Final = head
        self.digest: Final = digest
        self.rows: Final = rows
        kinds = rows.column("kind").to_pylist()
        self._is_history = np.array([kind in HISTORY_KINDS for kind in kinds], np.bool_)
        self._origin = integers(rows, "origin")
        self._from_ms = integers(rows, "from_ms")
        self._to_ms = integers(rows, "to_ms")
        self._singletons, self._singleton_rows = flat(rows.column("singletons"))
        self._coverage = [row for row, kind in enumerate(kinds) if kind in {"span", "lost"}]

    @property
    def size(self) -> int:
        """The bytes it takes, about."""
        return self.rows.nbytes + 32 * len(self.rows) + 16 * len(self._singletons) + 512

    def matching(self, times: Mapping[int, Milliseconds]) -> Iterator[int]:
        """Yield the rows whose element may hold one of these ids: sorted timestamps, by the broker that ids name."""
        found = np.zeros(len(self.rows), np.bool_)
        for origin, wanted in times.items():
            rows = np.flatnonzero(self._is_history & (self._origin == origin))
            first = np.searchsorted(wanted, self._from_ms[rows], "left")
            after = np.searchsorted(wanted, self._to_ms[rows], "right")
            found[rows] |= first < after
            if len(self._singletons):
                late = self._singleton_rows[np.isin(self._singletons, wanted)]
                found[late] |= self._origin[late] == origin
        yield from np.flatnonzero(found).tolist()

    def data_bytes(self, rows: Sequence[int]) -> int:
        """Return what the elements of these rows take in memory, about."""
        places = np.array(rows, np.intp)
        ids = integers(self.rows, "count")[places] * MESSAGE_ID_BYTES
        blooms = integers(self.rows, "m")[places] >> 3
        is_bloom = np.array([self.rows.column("strategy")[row].as_py() == Strategy.BLOOM for row in rows], np.bool_)
        return int(np.where(is_bloom, blooms, ids).sum()) + 512 * len(rows)

    def identity(self, row: int) -> Identity:
        columns = ("incarnation", "number", "kind", "origin", "peer", "subscriber", "opened_ms")
        values = [self.rows.column(name)[row].as_py() for name in columns]
        return (values[0], values[1], values[2], values[3], values[4] or 0, values[5] or "", values[6])

    def records(self) -> Iterator[Record]:
        return records_of(pa.Table.from_batches([self.rows]))

    def coverage(self, subscriber: str, pubend: int) -> Iterator[tuple[int, Span | Lost]]:
        """Yield the spans and losses of a subscriber in one pubend, each with the incarnation it belongs to."""
        names, pubends = self.rows.column("subscriber"), self.rows.column("pubend")
        rows = [row for row in self._coverage if names[row].as_py() == subscriber and pubends[row].as_py() == pubend]
        for row, record in zip(rows, record_rows(self.rows, rows), strict=True):
            assert isinstance(record, Span | Lost)
            yield self.rows.column("incarnation")[row].as_py(), record


def identity_of(element: Element) -> Identity:
    key = element.key
    return (element.incarnation, element.number, key.kind.value, key.origin, key.peer, key.subscriber, element.opened_ms)


def milliseconds_of(ids: Ids) -> Milliseconds:
    return (ids.view(ID_DTYPE)["tick"].astype(np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)


def times_of(ids: Ids) -> dict[int, Milliseconds]:
    """Return the timestamps of ids, sorted, by the broker they name."""
    brokers = ids.view(ID_DTYPE)["broker"].astype(np.int64)
    milliseconds = milliseconds_of(ids)
    return {broker: np.unique(milliseconds[brokers == broker]) for broker in np.unique(brokers).tolist()}
