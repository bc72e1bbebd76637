"""What a log's files say when it is opened.

Closed segments are believed by header and trailer; their records are checked when read. The last segment is read through: its
snapshot of publishers plus the ids of its records give every publisher's last id, and its first bad record is either the torn end
of an append that never finished, which is cut, or damage to what was durable, which is refused. The difference is whether a
later record proves that the bad place was durable before it (`group`, see `format`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from postroad.errors import CorruptSegmentError, StorageFormatError
from postroad.storage.publishers import Entries, LastIds
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.format import (
    ALIGNMENT,
    RECORD_MAGIC,
    FormatError,
    Header,
    Trailer,
    VersionError,
    padded,
    parse_header,
    parse_record,
    parse_snapshot,
    parse_trailer,
)
from postroad.storage.segment.reader import Segment, Window, opened, read_body, read_error, read_record

INDEX_SPACING_BYTES: Final = 64 << 10
SUFFIX: Final = ".segment"
_NAME: Final = re.compile(r"[0-9a-f]{16}\.segment")
_MAGIC_NUMBER: Final = int.from_bytes(RECORD_MAGIC, "little")
_SEARCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TornTail:
    """An unfinished append was found at the end of a log and cut off; nothing acknowledged was in it."""

    file: str
    offset: int
    bytes_cut: int


@dataclass(slots=True)
class SparseIndex:
    """Where to start reading, one place per 64 KiB or so: the record at an offset holds only ticks above its tick."""

    ticks: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def note(self, after: int, offset: int) -> None:
        if not self.offsets or offset - self.offsets[-1] >= INDEX_SPACING_BYTES:
            self.ticks.append(after)
            self.offsets.append(offset)


@dataclass(slots=True)
class Scan:
    """How far the records of a segment are whole."""

    end: int
    last: int
    rows: int = 0
    index: SparseIndex = field(default_factory=SparseIndex)
    problem: str | None = None  # why the record at `end` is not


def segment_name(base: int) -> str:
    return f"{base:016x}{SUFFIX}"


def segment_base(path: Path) -> int:
    if _NAME.fullmatch(path.name) is None:
        raise StorageFormatError(str(path), "a segment is named by 16 hexadecimal digits; move this file away")
    return int(path.stem, 16)


@contextmanager
def naming(path: Path, offset: int) -> Iterator[None]:
    """Turn what is wrong with bytes or disk into an error that names the place."""
    try:
        yield
    except VersionError as error:
        raise StorageFormatError(str(path), str(error)) from error
    except FormatError as error:
        raise CorruptSegmentError(str(path), offset, str(error)) from error
    except OSError as error:
        raise read_error(error, path, offset) from error


def read_header(disk: Disk, path: Path, pubend: int, previous: int | None) -> tuple[Header, int]:
    """Read the header of a segment, and the size of its file; `previous` is the last tick of the segment before."""
    base = segment_base(path)
    with naming(path, 0):
        descriptor = disk.open(path)
        try:
            header = parse_header(disk.read(descriptor, ALIGNMENT, 0))
            size = disk.size(descriptor)
        finally:
            disk.close(descriptor)
        if header.base != base:
            raise FormatError(f"the header is that of segment {segment_name(header.base)}")
        if header.size > size:
            raise FormatError("the snapshot of publishers is cut short")
    if header.pubend != pubend:
        raise StorageFormatError(str(path), f"this is a log of pubend {header.pubend}, not {pubend}")
    if previous is not None and header.base != previous:
        raise CorruptSegmentError(str(path), 0, f"it follows on tick {header.base}, the segment before it ends at {previous}")
    return header, size


def read_snapshot(disk: Disk, path: Path, header: Header) -> Entries:
    with naming(path, ALIGNMENT):
        descriptor = disk.open(path)
        try:
            return parse_snapshot(header, disk.read(descriptor, header.size - ALIGNMENT, ALIGNMENT))
        finally:
            disk.close(descriptor)


def read_trailer(disk: Disk, path: Path, header: Header, size: int) -> Trailer:
    """Read the trailer of a closed segment, or raise `FormatError`."""
    if size % ALIGNMENT or size < header.size + 2 * ALIGNMENT:
        raise FormatError("the trailer of a closed segment is missing")
    descriptor = disk.open(path)
    try:
        trailer = parse_trailer(disk.read(descriptor, ALIGNMENT, size - ALIGNMENT), size, header.salt)
    finally:
        disk.close(descriptor)
    if not header.size < trailer.end or trailer.last <= header.base:
        raise FormatError("the trailer contradicts the header")
    return trailer


def closed_segment(path: Path, header: Header, trailer: Trailer) -> Segment:
    return Segment(path, header.base, trailer.last, header.size, trailer.end, header.salt, trailer)


def scan(disk: Disk, segment: Segment, last_ids: LastIds) -> Scan:
    """Go through the records of a segment up to `segment.end`, noting publishers' ids."""
    found = Scan(segment.start, segment.base)
    with opened(disk, segment) as window:
        while found.end < segment.end:
            try:
                record = read_record(window, segment, found.end, found.last)
                batch = read_body(window, segment, record)
            except FormatError as error:
                found.problem = str(error)
                break
            last_ids.note(batch.ids())
            found.index.note(found.last, found.end)
            found.end, found.last, found.rows = record.end, record.last, found.rows + record.rows
    return found


def check_torn(disk: Disk, segment: Segment, found: Scan) -> None:
    """Refuse the bad record at `found.end` when a later one proves that it was durable."""
    with opened(disk, segment) as window:
        for offset in _candidates(window, segment, padded(found.end + 1)):
            try:
                record = parse_record(window.view(offset, ALIGNMENT), offset, segment.salt)
            except FormatError:
                continue
            if record.group > found.end:
                raise CorruptSegmentError(str(segment.path), found.end, str(found.problem))


def _candidates(window: Window, segment: Segment, offset: int) -> Iterator[int]:
    """Yield the aligned places from `offset` on that look like the start of a record."""
    while offset + ALIGNMENT <= segment.end:
        data = window.view(offset, _SEARCH_BYTES)
        whole = len(data) // ALIGNMENT
        if not whole:
            return
        words = np.frombuffer(memoryview(data), "<u8", count=whole * (ALIGNMENT // 8))[:: ALIGNMENT // 8]
        for place in np.flatnonzero(words == _MAGIC_NUMBER).tolist():
            yield offset + place * ALIGNMENT
        offset += whole * ALIGNMENT


def scan_closed(disk: Disk, segment: Segment, last_ids: LastIds) -> None:
    """Note the ids of a closed segment; any damage in it is refused."""
    found = scan(disk, segment, last_ids)
    if found.problem is not None:
        raise CorruptSegmentError(str(segment.path), found.end, found.problem)
    if found.last != segment.last:
        raise CorruptSegmentError(str(segment.path), found.end, f"the records end at tick {found.last}, not {segment.last}")


def scan_open(disk: Disk, segment: Segment, last_ids: LastIds) -> Scan:
    """Find the whole records of the segment that was being written; raises when more than its tail is bad."""
    found = scan(disk, segment, last_ids)
    if found.problem is not None:
        check_torn(disk, replace(segment, start=found.end), found)
    return found
