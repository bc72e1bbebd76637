"""What a log's files say when it is opened.

Closed segments are believed by header and trailer; their records are checked when read. The last segment is read through: its
snapshot of publishers plus the ids of its records give every publisher's last id, and a bad record in it is either the torn end
of an append that never finished, which is cut, or damage to what was durable, which is reported and stepped over. The difference
is whether a later record proves that the bad place was durable before it (`group`, see `format`).

Damage is refused, or with `tolerant` the log is opened all the same: what is whole is served, what is not becomes `Damage` with
its ticks. A header with one wrong byte is then mended in memory, since its check tells which byte that is. Without a header
nothing else of a segment can be checked: all of it is damaged. A segment without a good trailer is read from its start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final

from postroad.errors import CorruptSegmentError, StorageFormatError
from postroad.storage.publishers import Entries, LastIds
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.format import (
    ALIGNMENT,
    Bytes,
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
from postroad.storage.segment.reader import (
    Damage,
    Segment,
    Window,
    as_corrupt,
    candidates,
    find_record,
    opened,
    read_body,
    read_error,
    read_record,
    walk,
)

INDEX_SPACING_BYTES: Final = 64 << 10
SUFFIX: Final = ".segment"
_NAME: Final = re.compile(r"[0-9a-f]{16}\.segment")


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
    damage: list[Damage] = field(default_factory=list)


def segment_name(base: int) -> str:
    return f"{base:016x}{SUFFIX}"


def segment_base(path: Path) -> int:
    if _NAME.fullmatch(path.name) is None:
        raise StorageFormatError(str(path), "the name of a segment has 16 hexadecimal digits; move this file away")
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


def read_header(disk: Disk, path: Path, pubend: int, previous: int | None, *, mend: bool = False) -> tuple[Header, int]:
    """Read the header of a segment, and the size of its file; `previous` is the last tick of the segment before."""
    base = segment_base(path)
    with naming(path, 0):
        descriptor = disk.open(path)
        try:
            data = disk.read(descriptor, ALIGNMENT, 0)
            header = _mend_header(data) if mend else parse_header(data)
            size = disk.size(descriptor)
        finally:
            disk.close(descriptor)
        if header.base != base:
            raise FormatError(f"the header belongs to segment {segment_name(header.base)}")
        if header.size > size:
            raise FormatError("the snapshot of publishers is incomplete")
    if header.pubend != pubend:
        raise StorageFormatError(str(path), f"this is a log of pubend {header.pubend}, not {pubend}")
    if previous is not None and header.base != previous:
        raise CorruptSegmentError(
            str(path), 0, f"it begins after tick {header.base}, but the previous segment ends at {previous}"
        )
    return header, size


def _mend_header(data: Bytes) -> Header:
    """Parse a header, also one in which a single byte is wrong: only the right byte in its place makes the check succeed."""
    try:
        return parse_header(data)
    except FormatError as error:
        if len(data) < ALIGNMENT:
            raise
        return _one_byte_off(data, error)


def _one_byte_off(data: Bytes, error: FormatError) -> Header:
    tried = bytearray(memoryview(data)[:ALIGNMENT])
    for place in range(ALIGNMENT):
        original = tried[place]
        for value in range(256):
            tried[place] = value
            with suppress(FormatError):
                return parse_header(bytes(tried))
        tried[place] = original
    raise error


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
    """Go through the records of a segment that was being written, up to `segment.end`, noting publishers' ids.

    A bad record is stepped over when a later one proves that it was durable; otherwise the log ends before it.
    """
    found = Scan(segment.start, segment.base)
    found.index.note(segment.base, segment.start)
    with opened(disk, segment) as window:
        while found.end < segment.end:
            try:
                record = read_record(window, segment, found.end, found.last)
                batch = read_body(window, segment, record)
            except (FormatError, CorruptSegmentError) as problem:
                if isinstance(problem, CorruptSegmentError):  # its checks are right, or the disk cannot read it: it is not torn
                    _step_over(window, segment, found, problem)
                    continue
                following = find_record(window, segment, found.end, found.last)
                if following is None or not _proves_durable(window, segment, found.end):
                    found.problem = str(problem)
                    break
                found.damage.append(Damage(found.last, following.first - 1, as_corrupt(problem, segment, found.end)))
                found.end, found.last = following.offset, following.first - 1
                continue
            last_ids.note(batch.ids())
            found.index.note(found.last, found.end)
            found.end, found.last, found.rows = record.end, record.last, found.rows + record.rows
    return found


def _step_over(window: Window, segment: Segment, found: Scan, error: CorruptSegmentError) -> None:
    """Go on behind a record that is no torn one; raise where nothing tells how far it goes."""
    try:
        record = read_record(window, segment, found.end, found.last)
    except (FormatError, CorruptSegmentError):
        following = find_record(window, segment, found.end, found.last)
        if following is None:
            raise error from None
        found.damage.append(Damage(found.last, following.first - 1, error))
        found.end, found.last = following.offset, following.first - 1
    else:
        found.damage.append(Damage(record.first - 1, record.last, error))
        found.end, found.last = record.end, record.last


def _proves_durable(window: Window, segment: Segment, end: int) -> bool:
    """Tell whether a later record belongs to a group that began after the bad place: then that was durable before it."""
    for offset in candidates(window, segment, padded(end + 1)):
        try:
            record = parse_record(window.view(offset, ALIGNMENT), offset, segment.salt)
        except (FormatError, CorruptSegmentError):
            continue
        if record.group > end:
            return True
    return False


def scan_closed(disk: Disk, segment: Segment, last_ids: LastIds) -> list[Damage]:
    """Note the ids of a closed segment; return the damage in it."""
    damage: list[Damage] = []
    if segment.problem is not None:
        return [Damage(segment.base, segment.last, CorruptSegmentError(str(segment.path), 0, segment.problem))]
    with opened(disk, segment) as window:
        for item in walk(window, segment, segment.start, segment.base):
            if isinstance(item, Damage):
                damage.append(item)
                continue
            try:
                last_ids.note(read_body(window, segment, item).ids())
            except (FormatError, CorruptSegmentError) as problem:
                damage.append(Damage(item.first - 1, item.last, as_corrupt(problem, segment, item.offset)))
    return damage


def recover_closed(disk: Disk, path: Path, pubend: int, following: int, damage: list[Damage] | None) -> Segment:
    """Open a closed segment whose successor follows on tick `following`; damage raises when there is no list to put it in."""
    base = segment_base(path)
    try:
        header, size = read_header(disk, path, pubend, None, mend=damage is not None)
    except CorruptSegmentError as error:
        if damage is None:
            raise
        return Segment(path, base, following, 0, 0, 0, problem=error.reason)
    try:
        with naming(path, max(size - ALIGNMENT, 0)):
            return closed_segment(path, header, read_trailer(disk, path, header, size))
    except CorruptSegmentError as error:
        if damage is None:
            raise
        damage.append(Damage(base, base, error))  # nothing is lost by that alone
        return Segment(path, base, following, header.size, size, header.salt)


def open_damage(segments: Sequence[Segment]) -> Iterator[Damage]:
    """Yield what opening the segments shows to be damaged or missing; records are looked at when they are read."""
    for segment, following in zip_longest(segments, segments[1:]):
        if segment.problem is not None:
            yield Damage(segment.base, segment.last, CorruptSegmentError(str(segment.path), 0, segment.problem))
        if following is not None and following.base > segment.last:
            reason = f"it begins after tick {following.base}, but the previous segment ends at {segment.last}"
            yield Damage(segment.last, following.base, CorruptSegmentError(str(following.path), 0, reason))
