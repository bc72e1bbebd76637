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
from typing import Final

import pyarrow as pa

from postroad.core.batch import Batch
from postroad.errors import BatchError, CorruptSegmentError, StorageError
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.encoding import decode
from postroad.storage.segment.format import ALIGNMENT, FormatError, Record, Trailer, parse_record, verify_body

WINDOW_BYTES_MIN: Final = 4 << 10
WINDOW_BYTES_MAX: Final = 1 << 20


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
            self._data = self._read(max(wanted, 0), offset)
            self._offset = offset
        return self._data.slice(offset - self._offset, min(size, len(self._data) - (offset - self._offset)))

    def _read(self, size: int, offset: int) -> pa.Buffer:
        try:
            return self._disk.read(self._descriptor, size, offset)
        except OSError as error:
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
    return StorageError(f"cannot read {path}: {error.strerror}")


def read_record(window: Window, segment: Segment, offset: int, after: int) -> Record:
    """Read and check the header of the record at `offset`, whose ticks must lie above `after`."""
    record = parse_record(window.view(offset, ALIGNMENT), offset, segment.salt)
    if record.end > segment.end:
        raise FormatError("the last record is cut short")
    if record.first <= after:
        raise FormatError(f"a record starts at tick {record.first}, after tick {after}")
    return record


def read_body(window: Window, segment: Segment, record: Record) -> Batch:
    """Read, check and decode the batch of a record. Raises `FormatError` when its bytes are not those that were written."""
    body = window.view(record.offset, record.size).slice(ALIGNMENT)
    if len(body) < record.length:
        raise FormatError("the last record is cut short")
    data = body.slice(0, record.length)
    verify_body(record, data, segment.salt)
    try:
        batch = decode(data)
    except BatchError as error:
        raise CorruptSegmentError(str(segment.path), record.offset, f"a record holds no batch ({error})") from error
    if not _as_promised(batch, record):
        raise CorruptSegmentError(str(segment.path), record.offset, "a batch is not what the header of its record says")
    return batch


def _as_promised(batch: Batch, record: Record) -> bool:
    ticks = batch.ticks()
    return len(ticks) == record.rows and int(ticks[0]) == record.first and int(ticks[-1]) == record.last


def records(window: Window, segment: Segment, offset: int, after: int) -> Iterator[Record]:
    """Go through the records from `offset` on; damage is a `CorruptSegmentError`."""
    while offset < segment.end:
        try:
            record = read_record(window, segment, offset, after)
        except FormatError as error:
            raise CorruptSegmentError(str(segment.path), offset, str(error)) from error
        yield record
        offset, after = record.end, record.last
    if after != segment.last:
        raise CorruptSegmentError(str(segment.path), offset, f"the records end at tick {after}, not {segment.last}")


def read_range(
    disk: Disk, places: Iterable[tuple[Segment, int, int]], lo: int, hi: int, bytes_max: int
) -> tuple[int, tuple[Batch, ...]]:
    """Collect the rows in (lo, hi] from segments in order, each with the offset and tick to start after.

    Returns how far it came: `hi`, or the last tick of the last batch when `bytes_max` would be passed.
    """
    batches: list[Batch] = []
    used, reached = 0, lo
    for segment, offset, after in places:
        with opened(disk, segment) as window:
            window.ahead = _window_bytes(bytes_max - used)
            for record in records(window, segment, offset, after):
                if record.last <= lo:
                    continue
                if record.first > hi:
                    return hi, tuple(batches)
                if batches and used + record.length > bytes_max:
                    return reached, tuple(batches)
                batch = checked_body(window, segment, record)
                if record.first <= lo or record.last > hi:
                    batch = batch.within(lo, hi)
                if len(batch):
                    batches.append(batch)
                    used += record.length
                    window.ahead = _window_bytes(bytes_max - used)
                reached = record.last
                if reached >= hi:
                    return hi, tuple(batches)
    return hi, tuple(batches)


def _window_bytes(wanted: int) -> int:
    """How much to read at once when about so much is still wanted: near the bound a look at the next header suffices."""
    return min(max(wanted, WINDOW_BYTES_MIN), WINDOW_BYTES_MAX)


def checked_body(window: Window, segment: Segment, record: Record) -> Batch:
    """Do as `read_body`; damage is a `CorruptSegmentError`."""
    try:
        return read_body(window, segment, record)
    except FormatError as error:
        raise CorruptSegmentError(str(segment.path), record.offset, str(error)) from error
