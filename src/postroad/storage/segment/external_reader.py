"""A log's files as anybody may read them, beside the broker that writes them: nothing is locked, written or held open.

Only what the log promised to keep is read. A closed segment is read whole. Of the last segment, two things tell how far it is
durable: the mark (see `durable_mark`), and later appends: everything before the `group` of a record was durable when that record
was written. The rest may be the beginning of an append that fails and is cut off again, so it is not read.

The broker may release the oldest segments meanwhile. A look at the directory that misses a file is taken again; a part whose
file has gone since it was planned is a `GapError`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import Layout
from postroad.errors import BatchError, CorruptSegmentError, GapError, LogMissingError, StorageError
from postroad.storage.remote import ReadingDisk
from postroad.storage.segment.durable_mark import MARK_NAME, RELEASED_NAME, Mark, parse_mark, parse_released
from postroad.storage.segment.encoding import decode_layout
from postroad.storage.segment.format import ALIGNMENT, INDEX_ENTRY, FormatError, Header, Record, parse_index
from postroad.storage.segment.reader import Damage, Segment, Window, checked_body, opened, read_error, read_record, records, walk
from postroad.storage.segment.recovery import SUFFIX, closed_segment, naming, read_header, read_trailer, segment_base

LOOKS_MAX: Final = 20  # at a directory that changes while it is looked at
LAYOUT_BYTES_MAX: Final = 256 << 10
LOOKED_AT_WHOLE: Final = 64 << 20
_DISK: Final = ReadingDisk()


@dataclass(frozen=True, slots=True)
class Hole:
    """Ticks in (lo, hi] that were durable once and cannot be read, and why."""

    lo: int
    hi: int
    error: StorageError


@dataclass(frozen=True, slots=True)
class LogView:
    """What can be read of a log at one moment: ticks in (released, last].

    `marked` is the tick up to which the log says that it was released: what is missing beyond it was removed by somebody else.
    """

    path: Path
    pubend: int
    segments: tuple[Segment, ...]
    released: int
    last: int
    holes: tuple[Hole, ...] = ()
    marked: int = 0

    @property
    def size(self) -> int:
        return sum(segment.end - segment.start for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Part:
    """Ticks in (lo, hi] of one segment: they stand in the records from `offset` on, whose ticks are above `after`."""

    pubend: int
    segment: Segment
    offset: int
    after: int
    lo: int
    hi: int


def observe(path: Path, pubend: int, *, tolerant: bool = False) -> LogView:
    """Look at the log of a pubend. What is damaged raises, or with `tolerant` becomes a hole of the view."""
    for _ in range(LOOKS_MAX):
        paths = sorted(path.glob(f"*{SUFFIX}"))
        if not paths:
            raise LogMissingError(str(path.parent), pubend)
        try:
            return _view(path, paths, pubend, tolerant=tolerant)
        except (StorageError, FileNotFoundError):
            if all(each.exists() for each in paths):
                raise
    raise StorageError(f"{path} is released faster than it can be read; try again")


def parts(view: LogView, lo: int, hi: int, bytes_wanted: int) -> list[Part]:
    """Cut (lo, hi] of a view into parts of about this many bytes."""
    cut = []
    for segment in view.segments:
        if segment.last <= lo or segment.base >= hi:
            continue
        places = _places(segment, bytes_wanted)
        for index, (after, offset) in enumerate(places):
            end = places[index + 1][0] if index + 1 < len(places) else segment.last
            if end > lo and after < hi:
                cut.append(Part(view.pubend, segment, offset, after, max(lo, after), min(hi, end)))
    return cut


def read_part(part: Part) -> Iterator[Batch]:
    """Yield the rows of a part, in tick order."""
    for window, record in part_records(part):
        batch = checked_body(window, part.segment, record)
        if record.first <= part.lo or record.last > part.hi:
            batch = batch.within(part.lo, part.hi)
        if len(batch):
            yield batch


def part_records(part: Part) -> Iterator[tuple[Window, Record]]:
    """Yield the records that hold rows of a part, with the window to read them through."""
    segment = part.segment
    try:
        with opened(_DISK, segment) as window:
            for record in records(window, segment, part.offset, part.after):
                if record.first > part.hi:
                    return
                if record.last > part.lo:
                    yield window, record
                if record.last >= part.hi:
                    return
    except FileNotFoundError as error:
        raise _explain_missing(part) from error
    except OSError as error:
        raise read_error(error, segment.path, part.offset) from error


def sound_parts(pubend: int, segment: Segment, bytes_wanted: int) -> tuple[list[Part], list[Hole]]:
    """Read a segment through; return parts of about this many bytes without damaged records, and the damaged ranges."""
    found: list[Part] = []
    holes: list[Hole] = []
    part: Part | None = None  # that is being gathered
    after = segment.base
    with opened(_DISK, segment) as window:
        for each in walk(window, segment, segment.start, segment.base):
            damage = each if isinstance(each, Damage) else _find_damaged_body(window, segment, each, after)
            if damage is not None:
                found += [] if part is None else [part]
                part, after = None, damage.hi
                holes.append(Hole(damage.lo, damage.hi, damage.error))
                continue
            assert isinstance(each, Record)
            part = Part(pubend, segment, each.offset, after, after, each.last) if part is None else replace(part, hi=each.last)
            after = each.last
            if each.end - part.offset >= bytes_wanted:
                found.append(part)
                part = None
    return [*found, *([] if part is None else [part])], holes


def _find_damaged_body(window: Window, segment: Segment, record: Record, after: int) -> Damage | None:
    try:
        checked_body(window, segment, record)
    except CorruptSegmentError as error:
        return Damage(after, record.last, error)
    return None


def layouts(view: LogView, records_max: int | None) -> Iterator[Layout]:
    """Yield the layouts of records: of all, or of places spread evenly over the log that hold at least `records_max` together.

    A log that is small is looked at whole all the same.
    """
    apart = 0 if records_max is None or view.size <= LOOKED_AT_WHOLE else max(1, view.size // records_max)
    for segment in view.segments:
        with opened(_DISK, segment) as window:
            if not apart or segment.trailer is None:
                for record in records(window, segment, segment.start, segment.base):
                    yield _layout(window, segment, record)
            else:
                yield from _sample(window, segment, apart)


def _sample(window: Window, segment: Segment, apart: int) -> Iterator[Layout]:
    index = _index(segment)
    following = dict(pairwise(offset for _, offset in index))
    window.ahead = LAYOUT_BYTES_MAX
    for after, offset in _thin_out(index, apart):
        for record in records(window, segment, offset, after):
            if record.offset >= following.get(offset, segment.end):
                break
            yield _layout(window, segment, record)


def _layout(window: Window, segment: Segment, record: Record) -> Layout:
    body = window.view(record.offset + ALIGNMENT, min(record.length, LAYOUT_BYTES_MAX))
    try:
        return decode_layout(body)
    except BatchError as error:
        raise CorruptSegmentError(str(segment.path), record.offset, f"a record contains no valid batch ({error})") from error


def _explain_missing(part: Part) -> StorageError | GapError:
    """Say why a segment's file is not there: it was released, or it is lost."""
    path = part.segment.path
    bases = sorted(segment_base(each) for each in path.parent.glob(f"*{SUFFIX}"))
    if bases and bases[0] >= part.segment.last:
        return GapError(part.pubend, part.lo, part.hi)
    return CorruptSegmentError(str(path), 0, "the file is missing")


# --- one look ------------------------------------------------------------------------------------------------------------


def _view(path: Path, paths: list[Path], pubend: int, *, tolerant: bool) -> LogView:
    mark = _mark_bytes(path, MARK_NAME)  # before the files are looked at: then no file is behind it
    segments: list[Segment] = []
    holes: list[Hole] = []
    reached = segment_base(paths[0])
    for each, following in zip_longest(paths, paths[1:]):
        base = segment_base(each)
        if base != reached:
            reason = f"it begins after tick {base}, but the previous segment ends at {reached}"
            holes.append(Hole(reached, base, CorruptSegmentError(str(each), 0, reason)))
        try:
            segments.append(_segment(each, pubend, mark, is_last=following is None))
            reached = segments[-1].last
        except CorruptSegmentError as error:
            reached = base if following is None else segment_base(following)
            holes.append(Hole(base, reached, error))
    if holes and not tolerant:
        raise holes[0].error
    last = max([segment_base(paths[-1]), *(segment.last for segment in segments)])
    marked = _read_released(_mark_bytes(path, RELEASED_NAME), pubend)  # after them: then no removal is ahead of it
    return LogView(path, pubend, tuple(segments), segment_base(paths[0]), last, tuple(holes), marked)


def _segment(path: Path, pubend: int, mark: bytes, *, is_last: bool) -> Segment:
    header, size = read_header(_DISK, path, pubend, None)
    with naming(path, max(size - ALIGNMENT, 0)):
        try:
            return closed_segment(path, header, read_trailer(_DISK, path, header, size))
        except FormatError:
            if not is_last:
                raise
    return _open_segment(path, header, size, mark)


def check_index(segment: Segment) -> None:
    """Read the index of a closed segment, or raise."""
    if segment.trailer is not None:
        _index(segment)


def observe_last(path: Path, pubend: int) -> Segment:
    """Look at the last segment of a log: what of it is durable. Damage raises."""
    return _segment(path, pubend, _mark_bytes(path.parent, MARK_NAME), is_last=True)


def _open_segment(path: Path, header: Header, size: int, mark: bytes) -> Segment:
    """Return the durable part of the segment that is being written, or was when its broker died."""
    end, last = header.size, header.base
    marked = _mark(mark, header)
    if marked is not None:
        if marked.end > size:
            reason = f"{marked.end:,} bytes were durable, but the file has {size:,}"
            raise CorruptSegmentError(str(path), size, reason)
        end, last = marked.end, marked.last
    everything = Segment(path, header.base, last, header.size, size, header.salt)
    end, last = _proven(everything, end, last)
    return Segment(path, header.base, last, header.size, end, header.salt)


def _proven(segment: Segment, end: int, last: int) -> tuple[int, int]:
    """Go through the records behind `end`; return the end and last tick of what a later record shows to be durable."""
    ends = [(end, last)]
    proven = end
    with opened(_DISK, segment) as window:
        while ends[-1][0] + ALIGNMENT <= segment.end:
            try:
                record = read_record(window, segment, *ends[-1])
            except FormatError:
                break
            proven = max(proven, record.group)
            ends.append((record.end, record.last))
    return ends[bisect_right([each for each, _ in ends], proven) - 1]


def _mark_bytes(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError:
        return b""


def _read_released(data: bytes, pubend: int) -> int:
    try:
        return parse_released(data, pubend)
    except FormatError:
        return 0


def _mark(data: bytes, header: Header) -> Mark | None:
    try:
        mark = parse_mark(data, header.salt)
    except FormatError:
        return None
    return mark if mark.base == header.base and mark.end >= header.size else None


def _places(segment: Segment, bytes_wanted: int) -> list[tuple[int, int]]:
    """Return (after, offset) of places to start at, about so many bytes apart; the first is the segment's start."""
    if segment.end - segment.start <= bytes_wanted:
        return [(segment.base, segment.start)] if segment.end > segment.start else []
    return _thin_out(_space_out(segment, bytes_wanted) if segment.trailer is None else _index(segment), bytes_wanted)


def _thin_out(places: list[tuple[int, int]], bytes_wanted: int) -> list[tuple[int, int]]:
    """Return places that are at least so many bytes apart."""
    kept: list[tuple[int, int]] = []
    for after, offset in places:
        if not kept or offset - kept[-1][1] >= bytes_wanted:
            kept.append((after, offset))
    return kept


def _space_out(segment: Segment, bytes_wanted: int) -> list[tuple[int, int]]:
    """Return where records of a segment start, at least so many bytes apart."""
    spaced: list[tuple[int, int]] = []
    with opened(_DISK, segment) as window:
        after = segment.base
        for record in records(window, segment, segment.start, segment.base):
            if not spaced or record.offset - spaced[-1][1] >= bytes_wanted:
                spaced.append((after, record.offset))
            after = record.last
    return spaced


def _index(segment: Segment) -> list[tuple[int, int]]:
    assert segment.trailer is not None
    with naming(segment.path, segment.end):
        descriptor = _DISK.open(segment.path)
        try:
            data = _DISK.read(descriptor, segment.trailer.entries * INDEX_ENTRY.itemsize, segment.end)
        finally:
            _DISK.close(descriptor)
        index = parse_index(segment.trailer, data, segment.salt)
    return list(zip(index["tick"].tolist(), index["offset"].tolist(), strict=True))
