"""The track files of one broker, for reading: what each reaches, caches with bounds, and what is wrong with some.

In memory there is, per file, how far it reaches. Indexes of rows and the elements themselves are caches, read again when they are
needed. A file that cannot be read, or that should be there and is not, is a hole in answers, never their end.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from postroad.errors import TrackFileError
from postroad.tracking.files.chain import digest_text
from postroad.tracking.files.directories import FileStatus, TrackFiles
from postroad.tracking.files.format import END_BYTES, FileEnd, FormatError, Head, Packed, TrackTable, unpack, unpack_end
from postroad.tracking.files.row_index import FileIndex, Identity
from postroad.tracking.files.schema import RowError, element_of
from postroad.tracking.files.summary import NEVER, Summary
from postroad.tracking.histories.elements import Crash, Element, Links, Milliseconds, Record
from postroad.tracking.queries.answers import STILL, Hole, HoleKind

CRASHES_MAX: Final = 1024
LINKS_MAX: Final = 65_536  # changes of neighbours, kept in memory
_NAME: Final = re.compile(r"(\d{10,20})-(\d{10,20})(\.open|\.merged)?\.parquet")

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class TrackOptions:
    retention_ms: int = 30 * 86_400_000
    retention_bytes: int = 10 << 30
    late_ms: int = 11_000  # how far a message's timestamp may lie from the clock of the broker that tracks it: 2 T_s + T_j
    file_bytes: int = 64 << 20  # a flush with more than this becomes several files
    index_bytes: int = 32 << 20  # indexes of rows kept in memory
    element_bytes: int = 64 << 20  # elements kept in memory
    search_bytes: int = 128 << 20  # elements looked at together
    persistence_ms: int = 0  # T_p, for those who read the files


class Sort(StrEnum):
    """What a file holds, by the end of its name; in order of what counts more when both hold a row."""

    PLAIN = ""
    COPIES = ".open"
    MERGED = ".merged"


_SORTS: Final = tuple(Sort)


class FileName(NamedTuple):
    """A file is named by its incarnation and its sequence; a merged one by those of the newest it replaces."""

    incarnation: int
    sequence: int
    sort: Sort = Sort.PLAIN

    def __str__(self) -> str:
        return f"{self.incarnation:010d}-{self.sequence:010d}{self.sort.value}.parquet"

    @property
    def order(self) -> tuple[int, int, int]:
        return self.incarnation, self.sequence, _SORTS.index(self.sort)

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Read a name, or return None for one that we never give."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        parsed = cls(int(match[1]), int(match[2]), Sort(match[3] or ""))
        return parsed if str(parsed) == name else None


@dataclass(slots=True)
class TrackFile:
    """`summary` is None until the end of the file was read; `error` says why it, or the rest, cannot be."""

    name: FileName
    size: int
    changed_ms: int  # by the directory
    time_ms: int  # when it was written, as far as is known
    summary: Summary | None = None
    previous: FileName | None = None
    replaces: tuple[FileName, ...] = ()
    digest: str = ""  # empty until its end was read
    stands_for: tuple[str, ...] = ()
    merged_ms: int = 0  # when it was made of others, or 0 if that was before this start
    error: TrackFileError | None = None


class FilesChangedError(Exception):
    """A file is not the one that was listed: somebody compacts the directory. Never leaves this package."""


@dataclass(slots=True)
class _Cache(Generic[KeyT, ValueT]):
    """The most recently used values, up to a number of bytes."""

    bytes_max: int
    size_of: Callable[[ValueT], int]
    bytes: int = 0
    values: OrderedDict[KeyT, ValueT] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: KeyT) -> ValueT | None:
        with self.lock:
            found = self.values.get(key)
            if found is not None:
                self.values.move_to_end(key)
            return found

    def put(self, key: KeyT, value: ValueT) -> None:
        with self.lock:
            former = self.values.pop(key, None)
            self.bytes += self.size_of(value) - (0 if former is None else self.size_of(former))
            self.values[key] = value
            while self.bytes > self.bytes_max and len(self.values) > 1:
                self.bytes -= self.size_of(self.values.popitem(last=False)[1])

    def drop(self, stale: Callable[[Iterable[KeyT]], Sequence[KeyT]]) -> None:
        """Forget the keys that `stale` chooses."""
        with self.lock:
            for key in stale(self.values):
                self.bytes -= self.size_of(self.values.pop(key))


class Catalog:
    """The files, oldest first. `files` is replaced, never changed, so that another thread may read while one writes."""

    def __init__(self, disk: TrackFiles, broker: int, options: TrackOptions) -> None:
        self.files: tuple[TrackFile, ...] = ()
        self.crashes: tuple[Crash, ...] = ()
        self._links: dict[Links, None] = {}  # in order of time
        self._lock: Final = threading.Lock()  # held to replace `files`
        self._disk: Final = disk
        self._broker: Final = broker
        self._options: Final = options
        self._indexes: _Cache[FileName, FileIndex] = _Cache(options.index_bytes, lambda index: index.size)
        self._elements: _Cache[tuple[FileName, int], Element] = _Cache(options.element_bytes, element_size)

    def refresh(self) -> None:
        """List the files anew: others may have compacted or removed some, or put back what was missing."""
        with self._lock:
            known = {file.name: file for file in self.files}
            found: dict[FileName, TrackFile] = {}
            for status in self._disk.listed():
                name = FileName.parse(status.name)
                if name is not None:
                    found[name] = _same(known.get(name), status) or _file_of(name, status)
            fresh = {name for name, file in found.items() if known.get(name) is not file}
            self.files = tuple(sorted(found.values(), key=lambda file: file.name.order))
        self._indexes.drop(lambda keys: [name for name in keys if name in fresh])
        self._elements.drop(lambda keys: [key for key in keys if key[0] in fresh])

    def add(self, name: FileName, index: FileIndex, packed: Packed, merged_ms: int) -> None:
        """Add a file that was just written."""
        changed_ms = self._disk.status(str(name)).changed_ms
        file = TrackFile(name, sum(map(len, packed.pieces)), changed_ms, index.head.written_ms, merged_ms=merged_ms)
        self._learn(file, index.head, packed.summary, packed.digest)
        self._indexes.put(name, index)
        with self._lock:
            self.files = tuple(sorted((*self.files, file), key=lambda file: file.name.order))

    def remove(self, file: TrackFile) -> None:
        with self._lock:
            self._disk.remove(str(file.name))
            self.files = tuple(other for other in self.files if other is not file)

    def note_crashes(self, crashes: Sequence[Crash]) -> None:
        fresh = tuple(crash for crash in crashes if crash not in self.crashes)
        self.crashes = (*self.crashes, *fresh)[-CRASHES_MAX:]

    def _note_links(self, records: Iterable[Record]) -> None:
        fresh = {record: None for record in records if isinstance(record, Links)}
        if fresh:
            merged = sorted({**self._links, **fresh}, key=lambda links: links.since_ms)
            self._links = dict.fromkeys(merged[-LINKS_MAX:])

    def neighbours(self, open_records: Iterable[Record] = ()) -> dict[int, int]:
        """Return everyone that was a neighbour, with the moment until which that was so, as far as files were read."""
        changes = [*self._links, *(record for record in open_records if isinstance(record, Links))]
        until: dict[int, int] = {}
        for place, links in enumerate(changes, 1):
            end = changes[place].since_ms if place < len(changes) else STILL
            until.update({broker: max(until.get(broker, 0), end) for broker in links.neighbours})
        return until

    # --- reading ----------------------------------------------------------------------------------------------------------

    def summary(self, file: TrackFile) -> Summary | None:
        """Return how far a file reaches, reading its end if need be; None if the file cannot be read."""
        if file.summary is None:
            self._sound(file, lambda: self._read_end(file))
        return None if file.error is not None else file.summary

    def index(self, file: TrackFile) -> FileIndex | None:
        index = self._indexes.get(file.name)
        return index if index is not None else self._sound(file, lambda: self._read_index(file))

    def fresh_rows(self, file: TrackFile, times: Mapping[int, Milliseconds], seen: set[Identity]) -> tuple[list[int], int]:
        """Return the rows that may hold ids of these times and are not superseded, and their size; note them as seen."""
        index = self.index(file)
        if index is None:
            return [], 0
        rows = {row: index.identity(row) for row in index.matching(times)}
        fresh = [row for row, identity in rows.items() if identity not in seen]
        seen.update(rows.values())
        return fresh, index.data_bytes(fresh)

    def elements(self, file: TrackFile, rows: Sequence[int]) -> list[Element]:
        known = {row: self._elements.get((file.name, row)) for row in rows}
        missing = [row for row, element in known.items() if element is None]
        if missing:
            known.update(self._sound(file, lambda: self._read_elements(file, missing)) or {})
        return [element for element in known.values() if element is not None]

    def table(self, file: TrackFile) -> TrackTable | None:
        return self._sound(file, lambda: self._load(file))

    def _read_end(self, file: TrackFile) -> None:
        wanted = END_BYTES
        while True:
            end = unpack_end(*self._disk.read_end(str(file.name), wanted))
            if isinstance(end, FileEnd):
                break
            wanted = end
        self._check(file, end.head)
        self._learn(file, end.head, end.summary, end.digest)

    def _read_index(self, file: TrackFile) -> FileIndex:
        table = self._load(file)
        index = FileIndex(table.head, table.digest, table.index())
        self._learn(file, table.head, table.summary, table.digest)
        self._indexes.put(file.name, index)
        return index

    def _learn(self, file: TrackFile, head: Head, summary: Summary, digest: int) -> None:
        self.note_crashes([Crash(*crash) for crash in summary.crashes])
        self._note_links([Links(*links) for links in summary.links])
        file.time_ms, file.previous = head.written_ms, FileName.parse(head.previous)
        file.replaces = tuple(name for text in head.replaces if (name := FileName.parse(text)) is not None and name != file.name)
        file.digest, file.stands_for = digest_text(digest), head.stands_for
        file.summary = summary

    def _read_elements(self, file: TrackFile, rows: Sequence[int]) -> dict[int, Element]:
        table = self._load(file)
        index = self._indexes.get(file.name)
        if index is not None and index.digest != table.digest:
            raise FilesChangedError
        whole = table.whole()
        loaded = {row: _copy_arrays(element_of(whole, row)) for row in rows}
        for row, element in loaded.items():
            self._elements.put((file.name, row), element)
        return loaded

    def _load(self, file: TrackFile) -> TrackTable:
        table = unpack(self._disk.read(str(file.name)))
        self._check(file, table.head)
        return table

    def _check(self, file: TrackFile, head: Head) -> None:
        if head.broker != self._broker:
            raise FormatError(f"it belongs to broker {head.broker}, not to broker {self._broker}")
        if (head.incarnation, head.sequence) != file.name[:2]:
            raise FormatError(f"it was written as {FileName(head.incarnation, head.sequence, file.name.sort)}")

    def _sound(self, file: TrackFile, read: Callable[[], ResultT]) -> ResultT | None:
        """Read from a file; what is wrong with it is noted there, and the answer is None."""
        if file.error is not None:
            return None
        try:
            return read()
        except (FormatError, RowError) as error:
            reason = str(error)
        except TrackFileError as error:
            reason = error.reason
        except FileNotFoundError:
            raise FilesChangedError from None
        file.error = TrackFileError(self._disk.path(str(file.name)), reason)
        return None

    # --- holes ------------------------------------------------------------------------------------------------------------

    def holes(self, kept_from_ms: int, open_records: Iterable[Record] = ()) -> Iterator[Hole]:
        if kept_from_ms > 0:
            yield Hole(HoleKind.DROPPED, 0, kept_from_ms - 1, "older than the oldest tracks here")
        late = self._options.late_ms
        living = [record for record in open_records if isinstance(record, Crash)]
        for crash in (*self.crashes, *living):
            reason = f"incarnation {crash.incarnation} ended before it had written its last tracks"
            yield Hole(HoleKind.CRASH, crash.from_ms - late, crash.to_ms + late, reason)
        for place, summary, reason in self._missing():
            before = next((file.time_ms for file in reversed(self.files[:place]) if self.summary(file)), kept_from_ms)
            after = next((file.time_ms for file in self.files[place:] if self.summary(file)), NEVER - late)
            yield Hole(HoleKind.DAMAGED, min(before - late, summary.low_ms), max(after + late, summary.high_ms), reason)

    def _missing(self) -> Iterator[tuple[int, Summary, str]]:
        """Yield where among the files one is missing or cannot be read, as far as is known, how far it reached, and why."""
        replaced = {name for file in self.files for name in file.replaces}
        present = {file.name[:2] for file in self.files if file.name.sort is not Sort.COPIES}
        present.update(name[:2] for name in replaced)
        oldest = min(present, default=(0, 0))
        for place, file in enumerate(self.files):
            wanted = file.previous
            if file.name in replaced:
                continue
            if file.error is not None:
                yield place, file.summary or Summary(), str(file.error)
            elif wanted is not None and wanted[:2] > oldest and wanted[:2] not in present:
                yield place, Summary(), str(TrackFileError(self._disk.path(str(wanted)), "the file is missing"))


def element_size(element: Element) -> int:
    """Return the bytes an element takes in memory, about."""
    bits = 0 if element.bits is None else len(element.bits)
    return 512 + bits + (0 if element.ids is None else element.ids.nbytes) + element.singletons.nbytes


def _copy_arrays(element: Element) -> Element:
    """Return the element with arrays of its own, so that it does not keep the whole file in memory."""
    bits = None if element.bits is None else np.array(element.bits, np.uint8)
    ids = None if element.ids is None else element.ids.copy()
    return replace(element, bits=bits, ids=ids, singletons=element.singletons.copy())


def _same(file: TrackFile | None, status: FileStatus) -> TrackFile | None:
    """Return the file if nobody changed it and nothing was wrong with it."""
    if file is None or file.error is not None or (file.size, file.changed_ms) != (status.size, status.changed_ms):
        return None
    return file


def _file_of(name: FileName, status: FileStatus) -> TrackFile:
    return TrackFile(name, status.size, status.changed_ms, status.changed_ms)
