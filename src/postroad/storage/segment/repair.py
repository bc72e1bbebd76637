"""Looking a whole log through for damage, and rewriting what is damaged.

`survey_log` reads every record and writes nothing; a broker may be running. `repair_log` needs the log for itself. A damaged
segment is moved aside, under its name with `.damaged` behind it, and what can be read of it is written into new segments, one
for each unbroken stretch. What is lost then stands as a range of ticks between two segments: everybody who reads the log sees it
there, and the audit counts it as a hole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from postroad.errors import CorruptSegmentError, LogMissingError
from postroad.storage.publishers import ENTRY, Entries, LastIds
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.external_reader import check_index, observe_last
from postroad.storage.segment.format import (
    ALIGNMENT,
    Bytes,
    FormatError,
    Record,
    pack_footer,
    pack_header,
    pack_record,
    padding,
)
from postroad.storage.segment.log import LOCK_NAME, NEW_SUFFIX, SegmentLog, index_array
from postroad.storage.segment.reader import Damage, Segment, Window, opened, read_body, walk
from postroad.storage.segment.recovery import (
    SUFFIX,
    SparseIndex,
    open_damage,
    read_header,
    read_snapshot,
    recover_closed,
    scan_closed,
    segment_base,
    segment_name,
)

ASIDE_SUFFIX: Final = ".damaged"
_DISK: Final = Disk()


@dataclass(frozen=True, slots=True)
class Survey:
    """What a log holds, and what of it is damaged: ticks in (lo, hi] are lost, none when both are the same."""

    pubend: int
    segments: int
    bytes: int
    damage: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done to a log."""

    pubend: int
    moved_aside: tuple[Path, ...]
    lost: tuple[Damage, ...]


def survey_log(path: Path, pubend: int) -> Survey:
    """Read a log through."""
    paths = sorted(path.glob(f"*{SUFFIX}"))
    if not paths:
        raise LogMissingError(str(path.parent), pubend)
    damage: list[Damage] = []
    segments = _find_closed_segments(paths, pubend, damage)
    try:
        segments.append(observe_last(paths[-1], pubend))
    except CorruptSegmentError as error:
        base = segment_base(paths[-1])
        damage.append(Damage(base, base, error))
    damage += [each for each in open_damage(segments) if not _is_unreadable(each, segments)]
    for segment in segments:
        damage += _damage_in(segment)
    size = sum(each.stat().st_size for each in paths)
    return Survey(pubend, len(paths), size, tuple(sorted(damage, key=lambda each: (each.lo, each.hi))))


def repair_log(path: Path, pubend: int) -> Repair:
    """Rewrite the damaged segments of a log that nobody has open."""
    SegmentLog.open(path, pubend, tolerant=True).close()  # the last segment is closed, or given up, as a start would do
    lock = _DISK.lock(path / LOCK_NAME)
    try:
        paths = sorted(path.glob(f"*{SUFFIX}"))
        moved: list[Path] = []
        lost: list[Damage] = []
        for segment in _find_closed_segments(paths, pubend, []):
            damage = _damage_in(segment)
            if damage or segment.trailer is None:
                moved.append(_rewrite(segment, pubend))
                lost += [each for each in damage if each.hi > each.lo]
        return Repair(pubend, tuple(moved), tuple(lost))
    finally:
        _DISK.close(lock)


def _find_closed_segments(paths: list[Path], pubend: int, damage: list[Damage]) -> list[Segment]:
    return [recover_closed(_DISK, each, pubend, segment_base(following), damage) for each, following in pairwise(paths)]


def _damage_in(segment: Segment) -> list[Damage]:
    """Read a segment through."""
    damage = scan_closed(_DISK, segment, LastIds())
    try:
        check_index(segment)
    except CorruptSegmentError as error:
        damage.append(Damage(segment.base, segment.base, error))
    return damage


def _is_unreadable(damage: Damage, segments: list[Segment]) -> bool:
    """Tell whether damage is a whole segment's, which a scan of it tells, too."""
    return any(each.problem is not None and each.base == damage.lo for each in segments)


# --- rewriting -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """Records of a segment that follow on each other without damage: ticks in (base, last]."""

    base: int
    last: int
    records: list[tuple[Record, pa.Buffer]] = field(default_factory=list)


def _rewrite(segment: Segment, pubend: int) -> Path:
    """Move a segment aside and put what can be read of it in its place."""
    path = segment.path
    snapshot, forgotten = _snapshot(path, pubend)
    written = [_write_run(path.parent, pubend, run, snapshot, forgotten) for run in _runs(segment) if run.records]
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    _DISK.rename(path, aside)
    for new in written:
        _DISK.rename(new, new.with_suffix(SUFFIX))
    _DISK.sync_directory(path.parent)
    return aside


def _snapshot(path: Path, pubend: int) -> tuple[Entries, int]:
    """Return the publishers' last ids of a segment, none when they are damaged."""
    with suppress(CorruptSegmentError):
        header, _ = read_header(_DISK, path, pubend, None, mend=True)
        return read_snapshot(_DISK, path, header), header.forgotten
    return np.empty(0, ENTRY), 0


def _runs(segment: Segment) -> Iterator[_Run]:
    """Yield the unbroken stretches of a segment."""
    if segment.problem is not None:
        return
    run = _Run(segment.base, segment.base)
    with opened(_DISK, segment) as window:
        for item in walk(window, segment, segment.start, segment.base):
            data = None if isinstance(item, Damage) else _body(window, segment, item)
            if isinstance(item, Damage) or data is None:
                yield run
                hi = item.hi if isinstance(item, Damage) else item.last
                run = _Run(hi, hi)
                continue
            run.records.append((item, data))
            run.last = item.last
    yield run


def _body(window: Window, segment: Segment, record: Record) -> pa.Buffer | None:
    try:
        read_body(window, segment, record)
    except (FormatError, CorruptSegmentError):
        return None
    return window.view(record.offset, record.size).slice(ALIGNMENT, record.length)


def _write_run(directory: Path, pubend: int, run: _Run, snapshot: Entries, forgotten: int) -> Path:
    """Write a closed segment under a temporary name."""
    salt = int.from_bytes(os.urandom(8), "little")
    head = pack_header(pubend, run.base, salt, snapshot, forgotten)
    buffers: list[Bytes] = [head]
    offset, after, rows, index = len(head), run.base, 0, SparseIndex()
    for record, data in run.records:
        index.note(after, offset)
        stamp = {"rows": record.rows, "first": record.first, "last": record.last, "group": offset, "offset": offset}
        buffers += (pack_record([data], salt=salt, **stamp), data, padding(record.length))
        offset, after, rows = offset + record.size, record.last, rows + record.rows
    _, footer = pack_footer(index_array(index), end=offset, last=run.last, rows=rows, salt=salt)
    path = (directory / segment_name(run.base)).with_suffix(NEW_SUFFIX)
    descriptor = _DISK.create(path)
    try:
        _DISK.write(descriptor, [*buffers, footer], 0)
        _DISK.sync(descriptor)
    finally:
        _DISK.close(descriptor)
    return path
