"""The elements of track files, read by the tasks that search them.

A task knows of every file how far it reaches. It reads those that may hold one of its ids, whole, verifies their checksums, and
keeps what it read lately: neighbouring ids need the same files, and a worker process serves many tasks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.errors import TrackFileError
from postroad.spark.jobs import trackfiles
from postroad.spark.jobs.arrow import array, binary_bytes, flags, flat, integers
from postroad.spark.jobs.histories import NumberedHistory
from postroad.spark.jobs.matching import Elements, Flags, Longs, in_order, pack_ids
from postroad.spark.jobs.tracks import HISTORY, FileHead
from postroad.tracking.files.chain import digest_text
from postroad.tracking.files.schema import HISTORY_KINDS
from postroad.types import MESSAGE_ID_BYTES, MILLISECONDS_MAX

CACHE_BYTES: Final = 256 << 20  # of elements that a worker keeps

_cache: OrderedDict[tuple[str, int], Elements] = OrderedDict()


class ElementFiles:
    """Files of elements and what each reaches from and to. Goes to the workers, which read from it."""

    def __init__(self, files: Sequence[FileHead], histories: Sequence[NumberedHistory]) -> None:
        chosen = [file for file in files if file.low_ms <= file.high_ms and not file.copies]
        self._paths: Final = [file.path for file in chosen]
        self._digests: Final = [file.digest for file in chosen]
        self._low: Final = np.array([file.low_ms for file in chosen], np.int64)
        self._high: Final = np.array([file.high_ms for file in chosen], np.int64)
        self._numbers: Final = {tuple(getattr(each, name) for name in HISTORY): each.number for each in histories}
        self.numbers: Final = np.array([each.number for each in histories], np.int64)
        self.origins: Final = np.array([each.origin for each in histories], np.int64)
        self._token: Final = uuid4().hex  # two searches may number histories differently

    def __len__(self) -> int:
        return len(self._paths)

    def histories_of(self, origins: Longs) -> Longs:
        """Return the numbers of the histories that hold messages of some origins, ascending."""
        return np.sort(self.numbers[np.isin(self.origins, origins)])

    def over(self, milliseconds: Longs) -> list[int]:
        """Return the files that may hold one of these moments, which ascend."""
        first = np.searchsorted(milliseconds, self._low, "left")
        after = np.searchsorted(milliseconds, self._high, "right")
        return np.flatnonzero(first < after).tolist()

    def read(self, file: int) -> Elements:
        """Read the elements of a file, or take them from the cache."""
        key = (self._token, file)
        found = _cache.get(key)
        if found is None:
            found = self._load(self._paths[file], self._digests[file])
            _cache[key] = found
            held = sum(each.nbytes for each in _cache.values())
            while held > CACHE_BYTES and len(_cache) > 1:
                held -= _cache.popitem(last=False)[1].nbytes
        _cache.move_to_end(key)
        return found

    def _load(self, name: str, digest: str) -> Elements:
        try:
            table = trackfiles.open_table(name, trackfiles.read(name))
        except FileNotFoundError:
            raise TrackFileError(name, "it was removed while the job was reading; run the job again") from None
        if digest_text(table.digest) != digest:
            raise TrackFileError(name, "it was replaced while the job was reading; run the job again")
        return elements_in(name, trackfiles.whole(name, table), self._numbers)


def elements_in(name: str, rows: pa.RecordBatch, numbers: dict[tuple[Any, ...], int]) -> Elements:
    """Return the elements among the rows of a file that belong to some histories."""
    trackfiles.check_rows(name, rows)
    chosen = np.flatnonzero(np.asarray(pc.is_in(rows.column("kind"), array(sorted(HISTORY_KINDS)))))
    known = rows if len(chosen) == rows.num_rows else rows.take(array(chosen))
    keys = zip(*(_keep_named(known.column(name)) for name in HISTORY), strict=True)
    history = np.array([numbers.get(key, -1) for key in keys], np.int64)
    if bool((history < 0).any()):
        known, history = known.take(array(np.flatnonzero(history >= 0))), history[history >= 0]
    listed = flags(known.column("milliseconds").is_valid())
    order = np.concatenate([np.flatnonzero(~listed), np.flatnonzero(listed)])
    if bool((np.diff(order) < 0).any()):
        known, history = known.take(array(order)), history[order]
    return _elements(name, known, history, len(order) - int(listed.sum()))


def _keep_named(column: Any) -> list[Any]:
    return [each if each is not None else "" if pa.types.is_string(column.type) else 0 for each in column.to_pylist()]


def _elements(name: str, rows: pa.RecordBatch, history: Longs, listed_from: int) -> Elements:
    """Put elements side by side; those from `listed_from` on list their ids by columns."""
    bits, packed = trackfiles.bit_bodies(name, rows.slice(0, listed_from))
    data, starts = binary_bytes(bits)
    data, starts = data[starts[0] : starts[-1]], starts - starts[0]
    ordered = np.zeros(len(history), np.bool_)
    for each in np.flatnonzero(packed).tolist():
        ordered[each] = bool(in_order(data, starts[each : each + 2]).all())
    if listed_from < len(history):
        listed = rows.slice(listed_from)
        columns, offsets = trackfiles.listed_ids(name, listed)
        ids, ordered[listed_from:] = pack_ids(columns, offsets, integers(listed.column("origin")))
        starts = np.concatenate([starts[:-1], len(data) + offsets * MESSAGE_ID_BYTES])
        data = np.concatenate([data, ids]) if len(data) else ids
    singletons, bounds = flat(rows.column("singletons"))
    sets: Any = rows.column("neighbours")
    return Elements(
        history=history,
        origin=integers(rows.column("origin")),
        broker=integers(rows.column("broker")),
        m=integers(rows.column("m")),
        k=integers(rows.column("k")),
        count=integers(rows.column("count")),
        from_ms=np.clip(integers(rows.column("from_ms")), 0, MILLISECONDS_MAX),
        to_ms=np.clip(integers(rows.column("to_ms")), -1, MILLISECONDS_MAX),
        singletons=np.clip(singletons, 0, MILLISECONDS_MAX),
        singleton_of=np.repeat(np.arange(len(history)), np.diff(bounds)),
        neighbours=integers(sets.value_lengths()),
        packed=np.concatenate([packed, np.ones(len(history) - listed_from, np.bool_)]),
        starts=starts,
        data=data,
        ordered=ordered,
    )


def copied_elements(rows: pa.RecordBatch, history: Longs) -> Elements:
    """Return elements whose bodies came with the index of their file."""
    data, starts = binary_bytes(rows.column("body"))
    singletons, bounds = flat(rows.column("singletons"))
    return Elements(
        history=history,
        origin=integers(rows.column("origin")),
        broker=integers(rows.column("broker")),
        m=integers(rows.column("m")),
        k=integers(rows.column("k")),
        count=integers(rows.column("count")),
        from_ms=np.clip(integers(rows.column("from_ms")), 0, MILLISECONDS_MAX),
        to_ms=np.clip(integers(rows.column("to_ms")), -1, MILLISECONDS_MAX),
        singletons=np.clip(singletons, 0, MILLISECONDS_MAX),
        singleton_of=np.repeat(np.arange(len(history)), np.diff(bounds)),
        neighbours=integers(rows.column("sets")),
        packed=flags(rows.column("packed")),
        starts=starts,
        data=data,
    )


def in_turns(files: Sequence[int], *, forward: bool) -> Iterator[int]:
    """Go through files to and fro, so that what was read last is used first."""
    return iter(files) if forward else reversed(files)


def ascending(milliseconds: Longs) -> Longs:
    falls: Flags = milliseconds[1:] < milliseconds[:-1]
    return np.sort(milliseconds) if bool(falls.any()) else milliseconds
