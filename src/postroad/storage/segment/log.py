"""A pubend's log as a directory of segments.

Batches go to the end of the last segment, and it is synced before `append` returns. A full segment is closed (index and trailer
are added) and the next one begun, whose header carries what recovery must know of all before it: the last tick and every
publisher's last id. A new segment is written under another name, synced and renamed, so that a segment's header is never torn.

What happens when a write fails:
- no room: the file is cut back to where it was, and the log stays usable;
- a sync fails: nobody knows what of it is on disk, and asking again may wrongly say "all", so nothing more is
  written until the log is opened anew and read back;
- what was durable is damaged: it is left out of what is read and told with its ticks; the log can be used on;
- the process dies: the next opening finds whole records, kept even if their append was never confirmed, and perhaps a torn one,
  cut and reported as `torn`.

`release` removes whole closed segments, oldest first, each made durable before the next, so the rest always begins where the
removed ended. Readers take a view of the segments under a lock and read without it; a segment that is removed meanwhile sends
them back for a new view.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.protocol.orders import Lost, PubendState
from postroad.errors import CorruptSegmentError, StorageError, StorageFailedError, StorageFullError
from postroad.storage.base import LogSlice, SliceAround
from postroad.storage.publishers import PUBLISHERS_MAX, LastIds
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.durable_mark import MARK_NAME, RELEASED_NAME, Mark, pack_mark, pack_released, parse_mark
from postroad.storage.segment.encoding import encode
from postroad.storage.segment.format import (
    ALIGNMENT,
    INDEX_ENTRY,
    Bytes,
    FormatError,
    Header,
    Index,
    pack_footer,
    pack_header,
    pack_record,
    padded,
    padding,
    parse_index,
)
from postroad.storage.segment.reader import Damage, Found, Segment, read_error, read_range
from postroad.storage.segment.recovery import (
    SUFFIX,
    Scan,
    SparseIndex,
    TornTail,
    closed_segment,
    open_damage,
    read_header,
    read_snapshot,
    read_trailer,
    recover_closed,
    scan,
    scan_closed,
    segment_base,
    segment_name,
)
from postroad.types import COUNTER_BITS

LOCK_NAME: Final = "lock"
NEW_SUFFIX: Final = ".new"
UNKNOWN_AHEAD_MS: Final = 20_000  # beyond every tick that can have been given out by a clock like ours
INDEXES_MAX: Final = 64  # of closed segments, kept in memory: about 16 KiB each
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class LogOptions:
    segment_bytes: int = 64 << 20  # a segment of at least this size is closed
    publishers_max: int = PUBLISHERS_MAX


@dataclass(slots=True)
class _Active:
    """The segment being written. Everything below `end` is durable; only the writer's thread changes it."""

    path: Path
    descriptor: int
    base: int
    salt: int
    start: int
    end: int
    last: int
    rows: int = 0
    index: SparseIndex = field(default_factory=SparseIndex)

    def segment(self) -> Segment:
        return Segment(self.path, self.base, self.last, self.start, self.end, self.salt)


@dataclass(frozen=True, slots=True)
class _Group:
    """The records of one append, ready to be written at an offset."""

    buffers: list[Bytes]
    places: list[tuple[int, int]]  # of each record: the tick before it, its offset
    end: int
    last: int
    rows: int


class SegmentLog:
    """Open with `SegmentLog.open`. `torn` tells what recovery had to cut."""

    def __init__(self, path: Path, pubend: int, options: LogOptions, disk: Disk, lock: int, *, tolerant: bool) -> None:
        self.path: Final = path
        self.pubend: Final = pubend
        self.torn: TornTail | None = None
        self._damage: list[Damage] = []
        self._tolerant: Final = tolerant
        self._gone: dict[Path, None] = {}  # files that vanished though they were not released
        self._options = options
        self._disk = disk
        self._lock_descriptor: int | None = lock
        self._view_lock = threading.Lock()  # guards _closed, _active's extent and _indexes
        self._removal_lock = threading.Lock()  # held while files are removed
        self._closed: tuple[Segment, ...] = ()
        self._active: _Active
        self._last_ids = LastIds(publishers_max=options.publishers_max)
        self._indexes: OrderedDict[int, tuple[list[int], list[int]]] = OrderedDict()  # by the base of the segment
        self._failed: str | None = None
        self._mark_descriptor: int | None = None

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What opening showed to be damaged; reading may find more."""
        return tuple(self._damage)

    @classmethod
    def open(
        cls, path: Path, pubend: int, options: LogOptions | None = None, disk: Disk | None = None, *, tolerant: bool = False
    ) -> SegmentLog:
        """Open a log, or begin one where the directory holds none. Damage raises, or with `tolerant` is told by `damage`."""
        disk = disk or Disk()
        try:
            disk.make_directory(path)
            lock = disk.lock(path / LOCK_NAME)
        except OSError as error:
            raise write_error(error, path) from error
        self = cls(path, pubend, options or LogOptions(), disk, lock, tolerant=tolerant)
        try:
            self._recover()
        except OSError as error:
            self.abandon()
            raise write_error(error, path) from error
        except BaseException:
            self.abandon()
            raise
        return self

    # --- the protocol ----------------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Batch]) -> None:
        self._check_usable()
        batches = [batch for batch in batches if len(batch)]
        if not batches:
            return
        if self._active.end - self._active.start >= self._options.segment_bytes:
            self._roll()
        active = self._active
        group = _pack_group(batches, active)
        self._write(active, group.buffers, active.end)
        for batch in batches:
            self._last_ids.note(batch.ids())
        with self._view_lock:
            for after, offset in group.places:
                active.index.note(after, offset)
            active.end, active.last, active.rows = group.end, group.last, active.rows + group.rows
        self._mark()

    def read(self, lo: int, hi: int, bytes_max: int) -> LogSlice:
        found, released = self._read(lo, hi, bytes_max)
        if found.damage:
            raise found.damage[0].error
        return LogSlice(found.reached, tuple(found.batches), released)

    def read_around(self, lo: int, hi: int, bytes_max: int) -> SliceAround:
        """Do as `read`; what is damaged is left out and told with its ticks."""
        found, released = self._read(lo, hi, bytes_max)
        lost = tuple(Lost(each.lo, each.hi, str(each.error)) for each in found.damage)
        return SliceAround(found.reached, tuple(found.batches), released, lost)

    def _read(self, lo: int, hi: int, bytes_max: int) -> tuple[Found, int]:
        if self._lock_descriptor is None:
            raise StorageFailedError(str(self.path), "the log is closed")
        if hi <= lo:
            return Found(hi, [], []), self.released
        while True:
            closed, active, offset, after = self._view(lo)
            released = closed[0].base if closed else active.base
            try:
                places = self._places(closed, active, offset, after, lo)
                found = read_range(self._disk, places, lo, hi, bytes_max, released)
            except FileNotFoundError as error:
                with self._removal_lock:
                    pass
                if self.released == released:
                    self._gone[Path(error.filename)] = None
            except OSError as error:
                raise read_error(error, self.path, 0) from error
            else:
                return found, released

    def release(self, tick: int) -> int:
        self._check_usable()
        for segment in self._closed:
            if segment.last > tick:
                break
            self._remove(segment)
        return self.released

    def retain(self, bytes_max: int) -> int:
        self._check_usable()
        excess = self.size - bytes_max
        for segment in self._closed:
            if excess <= 0:
                break
            self._remove(segment)
            excess -= _file_size(segment)
        return self.released

    def state(self) -> PubendState:
        return PubendState(self.pubend, self._active.last, self.released, self._last_ids.pairs(), self.forgotten)

    def close(self) -> None:
        """Close in good order, so that the next opening need not read the last segment through."""
        if self._lock_descriptor is not None and self._failed is None and self._active.end > self._active.start:
            with suppress(StorageError):  # without a trailer the segment is read through, and nothing is lost
                self._roll()
        self.abandon()

    # --- beside the protocol ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return self._active.end + sum(map(_file_size, self._closed))

    @property
    def released(self) -> int:
        with self._view_lock:
            return self._closed[0].base if self._closed else self._active.base

    @property
    def forgotten(self) -> int:
        """The highest tick of an id whose publisher was forgotten; an unknown publisher's id above it is new."""
        return self._last_ids.snapshot()[1]

    def abandon(self) -> None:
        """Close without writing anything, as the end of the process would."""
        if self._lock_descriptor is None:
            return
        if hasattr(self, "_active"):  # not when recovery refused the log before it came to its last segment
            self._disk.close(self._active.descriptor)
        if self._mark_descriptor is not None:
            self._disk.close(self._mark_descriptor)
            self._mark_descriptor = None
        self._failed = "the log is closed"
        self._disk.close(self._lock_descriptor)
        self._lock_descriptor = None

    # --- writing ---------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failed is not None:
            raise StorageFailedError(str(self.path), self._failed)

    def _write(self, active: _Active, buffers: Sequence[Bytes], offset: int) -> None:
        """Write at the end of the active segment and sync, or leave the file as it was."""
        try:
            self._disk.write(active.descriptor, buffers, offset)
        except OSError as error:
            self._cut(active, error)
            raise self._name_failure(error, active.path) from error
        try:
            self._disk.sync(active.descriptor)
        except OSError as error:
            self._fail(active, error)

    def _name_failure(self, error: OSError, path: Path) -> StorageError:
        """Name a write that failed; anything but a lack of room ends the use of the log."""
        mapped = write_error(error, path)
        if isinstance(mapped, StorageFailedError) and self._failed is None:
            self._failed = mapped.reason
        return mapped

    def _cut(self, active: _Active, cause: OSError) -> None:
        try:
            self._disk.truncate(active.descriptor, active.end)
        except OSError as error:
            self._failed = f"{cause.strerror}, and then the file could not be truncated: {error.strerror}"

    def _fail(self, active: _Active, error: OSError) -> NoReturn:
        self._failed = f"a sync failed: {error.strerror}"
        with suppress(OSError):  # best effort: what was not confirmed should not come back
            self._disk.truncate(active.descriptor, active.end)
        raise StorageFailedError(str(active.path), self._failed) from error

    def _roll(self) -> None:
        """Close the active segment and begin the next; on an error the active one stays as it was."""
        active = self._active
        try:
            following = self._begin(active.last, self._last_ids)
        except OSError as error:
            raise self._name_failure(error, self.path) from error
        index = index_array(active.index)
        trailer, footer = pack_footer(index, end=active.end, last=active.last, rows=active.rows, salt=active.salt)
        try:
            self._write(active, [footer], active.end)
            self._publish(following, active)
        except BaseException:
            self._disk.close(following.descriptor)
            with suppress(OSError):
                self._disk.remove(following.path.with_suffix(NEW_SUFFIX))
            raise
        self._disk.close(active.descriptor)
        with self._view_lock:
            self._closed = (*self._closed, replace(active.segment(), trailer=trailer))
            self._active = following
        self._mark()

    def _mark(self) -> None:
        """Tell those who read the files up to where they are durable; without it they see less, so a failure is theirs."""
        active = self._active
        with suppress(OSError):
            if self._mark_descriptor is None:
                self._mark_descriptor = self._disk.open_mark(self.path / MARK_NAME)
            self._disk.mark(
                self._mark_descriptor, pack_mark(Mark(active.base, active.end, active.last, active.rows), active.salt)
            )

    def _begin(self, base: int, last_ids: LastIds) -> _Active:
        """Write the head of a new segment under its temporary name."""
        path = self.path / segment_name(base)
        descriptor = self._disk.create(path.with_suffix(NEW_SUFFIX))
        try:
            salt = int.from_bytes(os.urandom(8), "little")
            head = pack_header(self.pubend, base, salt, *last_ids.snapshot())
            self._disk.write(descriptor, [head], 0)
            self._disk.sync(descriptor)
        except BaseException:
            self._disk.close(descriptor)
            with suppress(OSError):
                self._disk.remove(path.with_suffix(NEW_SUFFIX))
            raise
        return _Active(path, descriptor, base, salt, len(head), len(head), base)

    def _publish(self, following: _Active, active: _Active) -> None:
        """Give a new segment its name; if that fails, the active one is opened again by cutting its trailer off."""
        try:
            self._disk.rename(following.path.with_suffix(NEW_SUFFIX), following.path)
        except OSError as error:
            self._cut(active, error)
            raise self._name_failure(error, following.path) from error
        try:
            self._disk.sync_directory(self.path)
        except OSError as error:
            self._failed = f"a sync failed: {error.strerror}"
            raise StorageFailedError(str(self.path), self._failed) from error

    def _remove(self, segment: Segment) -> None:
        """Remove the oldest segment. Readers that miss its file wait for the new view before they try again."""
        self._mark_released(segment.last)
        with self._removal_lock:
            try:
                with suppress(FileNotFoundError):
                    self._disk.remove(segment.path)
                self._disk.sync_directory(self.path)
            except OSError as error:
                self._failed = f"segment {segment.path.name} could not be removed: {error.strerror}"
                raise StorageFailedError(str(self.path), self._failed) from error
            with self._view_lock:
                self._closed = self._closed[1:]
                self._indexes.pop(segment.base, None)

    def _mark_released(self, tick: int) -> None:
        """Say that a removal is on purpose; without the mark an audit cannot tell, so a failure ends nothing."""
        with suppress(OSError):
            descriptor = self._disk.open_mark(self.path / RELEASED_NAME)
            try:
                self._disk.mark(descriptor, pack_released(self.pubend, tick))
            finally:
                self._disk.close(descriptor)

    # --- reading ---------------------------------------------------------------------------------------------------------

    def _view(self, lo: int) -> tuple[tuple[Segment, ...], Segment, int, int]:
        """Return the closed segments, the durable part of the active one, and where to start reading in it."""
        with self._view_lock:
            index = self._active.index
            place = bisect_right(index.ticks, lo) - 1
            offset, after = (index.offsets[place], index.ticks[place]) if place >= 0 else (self._active.start, self._active.base)
            return self._closed, self._active.segment(), offset, after

    def _places(
        self, closed: tuple[Segment, ...], active: Segment, offset: int, after: int, lo: int
    ) -> Iterator[tuple[Segment, int, int]]:
        """Yield the segments that may hold ticks above `lo`, each with where to start reading."""
        for segment in closed[bisect_right(closed, lo, key=lambda segment: segment.last) :]:
            if segment.path in self._gone:
                segment = replace(segment, problem="the file is missing")  # noqa: PLW2901  # the same segment, known better
            if segment.base >= lo or segment.problem is not None:
                yield segment, segment.start, segment.base
                continue
            ticks, offsets = self._index(segment)
            place = bisect_right(ticks, lo) - 1
            yield segment, offsets[place], ticks[place]
        if active.path in self._gone:
            active = replace(active, problem="the file is missing")
        if active.last > lo or active.base > lo:
            yield active, offset, after

    def _index(self, segment: Segment) -> tuple[list[int], list[int]]:
        with self._view_lock:
            found = self._indexes.get(segment.base)
            if found is not None:
                self._indexes.move_to_end(segment.base)
                return found
        loaded = self._load_index(segment)
        with self._view_lock:
            self._indexes[segment.base] = loaded
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
        return loaded

    def _load_index(self, segment: Segment) -> tuple[list[int], list[int]]:
        beginning = [segment.base], [segment.start]
        if segment.trailer is None:
            return beginning
        descriptor = self._disk.open(segment.path)
        try:
            data = self._disk.read(descriptor, segment.trailer.entries * INDEX_ENTRY.itemsize, segment.end)
            index = parse_index(segment.trailer, data, segment.salt)
        except (FormatError, OSError) as error:
            if not self._tolerant:
                raise CorruptSegmentError(str(segment.path), segment.end, str(error)) from error
            return beginning  # slower, and as good
        finally:
            self._disk.close(descriptor)
        return index["tick"].tolist(), index["offset"].tolist()

    # --- opening ---------------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        for left_over in self.path.glob(f"*{NEW_SUFFIX}"):
            self._disk.remove(left_over)
        paths = sorted(self.path.glob(f"*{SUFFIX}"))
        if not paths:
            self._start(0)
            return
        following = [segment_base(path) for path in paths[1:]]
        self._closed = tuple(
            recover_closed(self._disk, path, self.pubend, base, self._damage if self._tolerant else None)
            for path, base in zip(paths[:-1], following, strict=True)
        )
        self._recover_last(paths[-1])
        self._damage += open_damage([*self._closed, self._active.segment()])
        if self._damage and not self._tolerant:
            raise self._damage[0].error

    def _recover_last(self, path: Path) -> None:
        try:
            header, size = read_header(self._disk, path, self.pubend, None, mend=self._tolerant)
        except CorruptSegmentError as error:
            if not self._tolerant:
                raise
            self._give_up_last(path, error)
            return
        self._recover_ids(path, header)
        try:
            closed = closed_segment(path, header, read_trailer(self._disk, path, header, size))
        except FormatError:
            self._recover_active(path, header, size)
            return
        self._damage += scan_closed(self._disk, closed, self._last_ids)
        self._closed = (*self._closed, closed)
        self._start(closed.last)

    def _give_up_last(self, path: Path, error: CorruptSegmentError) -> None:
        """Go on behind a last segment without a header: at a tick that was never given out, by the clock."""
        base = segment_base(path)
        last = max(base + 1, int(time.time() * 1000) + UNKNOWN_AHEAD_MS << COUNTER_BITS)
        self._recover_ids_before(path)
        self._closed = (*self._closed, Segment(path, base, last, 0, 0, 0, problem=error.reason))
        self._start(last)

    def _recover_ids(self, path: Path, header: Header) -> None:
        try:
            snapshot = read_snapshot(self._disk, path, header)
        except CorruptSegmentError as error:
            base = segment_base(path)
            self._damage.append(Damage(base, base, error))
            self._recover_ids_before(path)
        else:
            self._last_ids = LastIds(snapshot, header.forgotten, self._options.publishers_max)

    def _recover_ids_before(self, path: Path) -> None:
        """Find publishers' last ids without the snapshot of a segment: from the newest one before it that is whole, on."""
        earlier = [segment for segment in self._closed if segment.path != path]
        for index in reversed(range(len(earlier))):
            try:
                header, _ = read_header(self._disk, earlier[index].path, self.pubend, None, mend=True)
                snapshot = read_snapshot(self._disk, earlier[index].path, header)
            except CorruptSegmentError:
                continue
            self._last_ids = LastIds(snapshot, header.forgotten, self._options.publishers_max)
            earlier = earlier[index:]
            break
        for segment in earlier:
            scan_closed(self._disk, segment, self._last_ids)

    def _recover_active(self, path: Path, header: Header, size: int) -> None:
        """Go on with the segment that was being written, behind its last whole record."""
        everything = Segment(path, header.base, header.base, header.size, size, header.salt)
        found = scan(self._disk, everything, self._last_ids)
        self._damage += found.damage
        mark = self._durable_mark(header) if self._tolerant else None
        if mark is not None and mark.end > found.end:
            self._give_up_tail(everything, found, mark)
            return
        descriptor = self._disk.open(path, writable=True)
        self._active = _Active(
            path, descriptor, header.base, header.salt, header.size, found.end, found.last, found.rows, found.index
        )
        if found.end < size:
            self.torn = TornTail(str(path), found.end, size - found.end)
            self._disk.truncate(descriptor, found.end)
        self._disk.sync(descriptor)  # whole records may still be only in memory, and from now on they count as durable
        self._mark()

    def _durable_mark(self, header: Header) -> Mark | None:
        """Return up to where the last segment was durable, if that was noted; the mark may be older than the log."""
        try:
            mark = parse_mark((self.path / MARK_NAME).read_bytes(), header.salt)
        except (OSError, FormatError):
            return None
        return mark if mark.base == header.base else None

    def _give_up_tail(self, segment: Segment, found: Scan, mark: Mark) -> None:
        """Begin a new segment behind one whose end was durable and is damaged: it is no unfinished append."""
        reason = found.problem or f"{mark.end:,} bytes were durable, but the file has {segment.end:,}"
        self._damage.append(Damage(found.last, mark.last, CorruptSegmentError(str(segment.path), found.end, reason)))
        end = min(segment.end, mark.end)
        if end < segment.end:
            descriptor = self._disk.open(segment.path, writable=True)
            try:
                self._disk.truncate(descriptor, end)
                self._disk.sync(descriptor)
            finally:
                self._disk.close(descriptor)
        self._closed = (*self._closed, replace(segment, last=mark.last, end=end))
        self._start(mark.last)

    def _start(self, base: int) -> None:
        """Begin the first segment, or the one after a closed one."""
        following = self._begin(base, self._last_ids)
        self._active = following
        self._disk.rename(following.path.with_suffix(NEW_SUFFIX), following.path)
        self._disk.sync_directory(self.path)
        self._mark()


def write_error(error: OSError, path: Path) -> StorageError:
    reason = error.strerror or str(error)
    return StorageFullError(str(path), reason) if error.errno in _NO_ROOM else StorageFailedError(str(path), reason)


def _file_size(segment: Segment) -> int:
    return segment.end if segment.trailer is None else segment.trailer.size


def _pack_group(batches: Sequence[Batch], active: _Active) -> _Group:
    buffers: list[Bytes] = []
    places: list[tuple[int, int]] = []
    offset, after, rows = active.end, active.last, 0
    for batch in batches:
        ticks = batch.ticks()
        first, last = int(ticks[0]), int(ticks[-1])
        assert first > after, "ticks ascend from batch to batch"
        assert bool((ticks[1:] > ticks[:-1]).all()), "ticks ascend within a batch"
        data = encode(batch)
        head = pack_record(data, rows=len(batch), first=first, last=last, group=active.end, offset=offset, salt=active.salt)
        length = sum(map(len, data))
        buffers += (head, *data, padding(length))
        places.append((after, offset))
        offset += ALIGNMENT + padded(length)
        after, rows = last, rows + len(batch)
    return _Group(buffers, places, offset, after, rows)


def index_array(index: SparseIndex) -> Index:
    array = np.empty(len(index.ticks), INDEX_ENTRY)
    array["tick"] = index.ticks
    array["offset"] = index.offsets
    return array
