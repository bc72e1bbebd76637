"""Reading records of a segment: every header is checked before it is believed, every batch before it is decoded.

Reads go through `preadv`, not through a mapping: a bad sector or a file cut by someone else is then an error with a file and an
offset, where a mapping would end the process. A window of the file is read at once; batches share its memory.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Batch
from postroad.errors import BatchError, CorruptSegmentError, StorageError
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.encoding import decode
from postroad.storage.segment.format import (
    ALIGNMENT,
    RECORD_MAGIC,
    FormatError,
    Record,
    Trailer,
    padded,
    parse_record,
    verify_body,
)

WINDOW_BYTES_MIN: Final = 4 << 10
WINDOW_BYTES_MAX: Final = 1 << 20
_SEARCH_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = 4 << 10
_MAGIC_NUMBER: Final = int.from_bytes(RECORD_MAGIC, "little")


@dataclass(frozen=True, slots=True)
class Segment:
    """The durable part of a segment: ticks in (base, last], records in [start, end) of the file."""

    path: Path
    base: int
    last: int
    start: int
    end: int
    salt: int
    trailer: Trailer | None = None  # of a closed segment
    problem: str | None = None  # why nothing of it can be read


class Window:
    """A part of a file in memory, moved forward as records are asked for. `ahead` is how much it reads at once."""

    def __init__(self, disk: Disk, segment: Segment, descriptor: int) -> None:
        self._disk = disk
        self._segment = segment
        self._descriptor = descriptor
        self.ahead = WINDOW_BYTES_MAX
        self._offset = 0
        self._data = pa.py_buffer(b"")

    def view(self, offset: int, size: int) -> pa.Buffer:
        """Return bytes of the file, fewer than asked for only at the end of the segment's records or of the file."""
        if not (self._offset <= offset and offset + size <= self._offset + len(self._data)):
            wanted = min(max(size, self.ahead), self._segment.end - offset)
            self._data = self._read(max(wanted, 0), offset, max(min(size, wanted), 0))
            self._offset = offset
        return self._data.slice(offset - self._offset, min(size, len(self._data) - (offset - self._offset)))

    def _read(self, size: int, offset: int, needed: int) -> pa.Buffer:
        try:
            return self._disk.read(self._descriptor, size, offset)
        except OSError as error:
            if needed < size:  # what cannot be read may stand behind what is needed
                return self._read(needed, offset, needed)
            raise read_error(error, self._segment.path, offset) from error


@contextmanager
def opened(disk: Disk, segment: Segment) -> Iterator[Window]:
    """Open a segment for reading. Raises `FileNotFoundError` when it was released meanwhile."""
    descriptor = disk.open(segment.path)
    try:
        yield Window(disk, segment, descriptor)
    finally:
        disk.close(descriptor)


def read_error(error: OSError, path: Path, offset: int) -> StorageError:
    if error.errno == errno.EIO:
        return CorruptSegmentError(str(path), offset, "the disk cannot read it")
    return StorageError(f"cannot read {path}: {error.strerror or error}")


def read_record(window: Window, segment: Segment, offset: int, after: int) -> Record:
    """Read and check the header of the record at `offset`, whose ticks must lie above `after`."""
    record = parse_record(window.view(offset, ALIGNMENT), offset, segment.salt)
    if record.end > segment.end:
        raise FormatError("the last record is incomplete")
    if record.first <= after:
        raise FormatError(f"a record begins at tick {record.first}, but the one before ends at tick {after}")
    return record


def read_body(window: Window, segment: Segment, record: Record) -> Batch:
    """Read, check and decode the batch of a record. Raises `FormatError` when its bytes are not those that were written."""
    body = window.view(record.offset, record.size).slice(ALIGNMENT)
    if len(body) < record.length:
        raise FormatError("the last record is incomplete")
    data = body.slice(0, record.length)
    verify_body(record, data, segment.salt)
    try:
        batch = decode(data)
    except BatchError as error:
        raise CorruptSegmentError(str(segment.path), record.offset, f"a record contains no valid batch ({error})") from error
    if not _as_promised(batch, record):
        raise CorruptSegmentError(str(segment.path), record.offset, "a batch does not match the header of its record")
    return batch


def _as_promised(batch: Batch, record: Record) -> bool:
    ticks = batch.ticks()
    return len(ticks) == record.rows and int(ticks[0]) == record.first and int(ticks[-1]) == record.last


@dataclass(frozen=True, slots=True)
class Damage:
    """Ticks in (lo, hi] were durable once and cannot be read, and why."""

    lo: int
    hi: int
    error: CorruptSegmentError

    def within(self, lo: int, hi: int) -> Damage:
        return Damage(max(lo, self.lo), min(hi, self.hi), self.error)


def records(window: Window, segment: Segment, offset: int, after: int) -> Iterator[Record]:
    """Go through the records from `offset` on; damage is a `CorruptSegmentError`."""
    for found in walk(window, segment, offset, after):
        if isinstance(found, Damage):
            raise found.error
        yield found


def walk(window: Window, segment: Segment, offset: int, after: int) -> Iterator[Record | Damage]:
    """Go through the records from `offset` on, and over what is damaged: everything in (after, segment.last] is told of."""
    error: CorruptSegmentError | None = None
    while offset < segment.end:
        try:
            record = read_record(window, segment, offset, after)
        except (FormatError, CorruptSegmentError) as problem:
            error = as_corrupt(problem, segment, offset)
            following = find_record(window, segment, offset, after)
            if following is None:
                break
            if following.first - 1 > after:
                yield Damage(after, following.first - 1, error)
            offset, after = following.offset, following.first - 1
            continue
        yield record
        offset, after = record.end, record.last
        error = None
    if after < segment.last:
        reason = f"the records end at tick {after}, not at {segment.last}"
        yield Damage(after, segment.last, error or CorruptSegmentError(str(segment.path), offset, reason))


def find_record(window: Window, segment: Segment, offset: int, after: int) -> Record | None:
    """Return the first whole record behind a damaged place. The segment's salt is in its check: nothing else looks like one."""
    for place in candidates(window, segment, padded(offset + 1)):
        try:
            return read_record(window, segment, place, after)
        except (FormatError, CorruptSegmentError):
            continue
    return None


def candidates(window: Window, segment: Segment, offset: int) -> Iterator[int]:
    """Yield the aligned places from `offset` on that look like the start of a record; what the disk cannot read has none."""
    step = _SEARCH_BYTES
    while offset + ALIGNMENT <= segment.end:
        try:
            data = window.view(offset, min(step, segment.end - offset))
        except CorruptSegmentError:
            offset += _PAGE_BYTES if step == _PAGE_BYTES else 0
            step = _PAGE_BYTES
            continue
        whole = len(data) // ALIGNMENT
        if not whole:
            return
        words = np.frombuffer(memoryview(data), "<u8", count=whole * (ALIGNMENT // 8))[:: ALIGNMENT // 8]
        for place in np.flatnonzero(words == _MAGIC_NUMBER).tolist():
            yield offset + place * ALIGNMENT
        offset += whole * ALIGNMENT


def as_corrupt(problem: FormatError | CorruptSegmentError, segment: Segment, offset: int) -> CorruptSegmentError:
    """Say where a problem was met."""
    return problem if isinstance(problem, CorruptSegmentError) else CorruptSegmentError(str(segment.path), offset, str(problem))


@dataclass(slots=True)
class Found:
    """What was read: up to tick `reached`, the rows and the damage in between, both in tick order."""

    reached: int
    batches: list[Batch]
    damage: list[Damage]
    bytes_left: int = 0  # of what may be read


def read_range(
    disk: Disk, places: Iterable[tuple[Segment, int, int]], lo: int, hi: int, bytes_max: int, released: int = 0
) -> Found:
    """Collect the rows in (lo, hi] from segments in order, each with the offset and tick to start after.

    It comes as far as `hi`, or as the last tick of the last batch when `bytes_max` would be passed. What cannot be read on the
    way is damage; what is missing below `released` is not.
    """
    found = Found(lo, [], [], bytes_max)
    position = max(lo, released)
    for segment, offset, after in places:
        if position < min(segment.base, hi):
            missing = CorruptSegmentError(str(segment.path), 0, f"the records before it, from tick {position} on, are missing")
            found.reached = min(segment.base, hi)
            found.damage.append(Damage(position, found.reached, missing))
            if found.reached == hi:
                return found
        for part in _parts_of(disk, segment, offset, after, found):
            low, last, size = part.span
            if last <= lo:
                continue
            if low >= hi:
                found.reached = hi
                return found
            if found.batches and size > found.bytes_left:
                return found
            found.bytes_left -= _take(found, part, lo, hi)
            found.reached = last
            if last >= hi:
                found.reached = hi
                return found
        position = segment.last
    found.reached = hi
    return found


class _Part(NamedTuple):
    """A record that can be read when it is wanted, or damage."""

    window: Window | None
    segment: Segment
    item: Record | Damage

    @property
    def span(self) -> tuple[int, int, int]:
        """The ticks (lo, last] that it tells of, and its bytes."""
        if isinstance(self.item, Damage):
            return self.item.lo, self.item.hi, 0
        return self.item.first - 1, self.item.last, self.item.length


def _parts_of(disk: Disk, segment: Segment, offset: int, after: int, found: Found) -> Iterator[_Part]:
    if segment.problem is not None:
        error = CorruptSegmentError(str(segment.path), 0, segment.problem)
        yield _Part(None, segment, Damage(max(after, segment.base), segment.last, error))
        return
    with opened(disk, segment) as window:
        window.ahead = _window_bytes(found.bytes_left)
        for item in walk(window, segment, offset, after):
            yield _Part(window, segment, item)
            window.ahead = _window_bytes(found.bytes_left)


def _take(found: Found, part: _Part, lo: int, hi: int) -> int:
    """Add a record or damage to what was found; return the bytes it counts for."""
    item = part.item
    if isinstance(item, Damage):
        found.damage.append(item.within(lo, hi))
        return 0
    assert part.window is not None
    try:
        batch = read_body(part.window, part.segment, item)
    except (FormatError, CorruptSegmentError) as problem:
        error = as_corrupt(problem, part.segment, item.offset)
        found.damage.append(Damage(item.first - 1, item.last, error).within(lo, hi))
        return 0
    if item.first <= lo or item.last > hi:
        batch = batch.within(lo, hi)
    if not len(batch):
        return 0
    found.batches.append(batch)
    return item.length


def _window_bytes(wanted: int) -> int:
    """How much to read at once when about so much is still wanted: near the bound a look at the next header suffices."""
    return min(max(wanted, WINDOW_BYTES_MIN), WINDOW_BYTES_MAX)


def checked_body(window: Window, segment: Segment, record: Record) -> Batch:
    """Do as `read_body`; damage is a `CorruptSegmentError`."""
    try:
        return read_body(window, segment, record)
    except FormatError as error:
        raise as_corrupt(error, segment, record.offset) from error
