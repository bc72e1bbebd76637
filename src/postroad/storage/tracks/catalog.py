"""The track files of one broker, for reading: what each reaches, caches with bounds, and what is wrong with some.

In memory there is, per file, how far it reaches. Indexes of rows and the elements themselves are caches, read again when they are
needed. A file that cannot be read, or that should be there and is not, is a hole in answers, never their end.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from postroad.core.tracking.answers import Hole, HoleKind
from postroad.core.tracking.elements import Crash, Element, Milliseconds
from postroad.errors import TrackFileError
from postroad.storage.tracks.files import FileStatus, TrackFiles
from postroad.storage.tracks.format import FormatError, Head, TrackTable, unpack
from postroad.storage.tracks.index import NEVER, Extent, FileIndex, Identity
from postroad.storage.tracks.schema import RowError, element_of

CRASHES_MAX: Final = 1024
_NAME: Final = re.compile(r"(\d{10,20})-(\d{10,20})(?:-(\d{10,20}))?(\.open)?\.parquet")

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


class FileName(NamedTuple):
    """A file is named by its incarnation and the sequences of the files it stands for: one, but for merged files."""

    incarnation: int
    first: int
    sequence: int
    copies: bool = False

    def __str__(self) -> str:
        first = f"{self.first:010d}-" if self.first != self.sequence else ""
        return f"{self.incarnation:010d}-{first}{self.sequence:010d}{'.open' if self.copies else ''}.parquet"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Read a name, or return None for one that we never give."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        first = int(match[2])
        parsed = cls(int(match[1]), first, int(match[3] or first), match[4] is not None)
        return parsed if str(parsed) == name else None


@dataclass(slots=True)
class TrackFile:
    """`extent` is None until the file was read first; `error` says why it cannot be."""

    name: FileName
    size: int
    time_ms: int  # when it was written
    extent: Extent | None = None
    previous: FileName | None = None
    error: TrackFileError | None = None


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


class Catalog:
    """The files, oldest first. `files` is replaced, never changed, so that another thread may read while one writes."""

    def __init__(self, disk: TrackFiles, broker: int, options: TrackOptions) -> None:
        self.files: tuple[TrackFile, ...] = ()
        self.crashes: tuple[Crash, ...] = ()
        self._disk: Final = disk
        self._broker: Final = broker
        self._options: Final = options
        self._indexes: _Cache[FileName, FileIndex] = _Cache(options.index_bytes, lambda index: index.size)
        self._elements: _Cache[tuple[FileName, int], Element] = _Cache(options.element_bytes, element_size)

    def listed(self) -> list[TrackFile]:
        """Return the files that are there, oldest first."""
        named = [(FileName.parse(status.name), status) for status in self._disk.listed()]
        found = [_file_of(name, status) for name, status in named if name is not None]
        return sorted(found, key=lambda file: (file.name.incarnation, file.name.sequence, file.name.copies))

    def add(self, head: Head, name: FileName, index: FileIndex, size: int) -> None:
        """Add a file that was just written."""
        self._indexes.put(name, index)
        self.note_crashes(index.crashes())
        previous = FileName.parse(head.previous)
        self.files += (TrackFile(name, size, head.written_ms, index.extent(), previous),)

    def remove(self, file: TrackFile) -> None:
        self._disk.remove(str(file.name))
        self.files = tuple(other for other in self.files if other is not file)

    def note_crashes(self, crashes: Sequence[Crash]) -> None:
        fresh = tuple(crash for crash in crashes if crash not in self.crashes)
        self.crashes = (*self.crashes, *fresh)[-CRASHES_MAX:]

    # --- reading ----------------------------------------------------------------------------------------------------------

    def extent(self, file: TrackFile) -> Extent | None:
        """Return how far a file reaches, reading it if need be; None if it cannot be read."""
        if file.extent is None and file.error is None:
            self.index(file)
        return file.extent

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

    def _read_index(self, file: TrackFile) -> FileIndex:
        table = self._load(file)
        index = FileIndex(table.head, table.index())
        if file.extent is None:
            self.note_crashes(index.crashes())
            file.time_ms, file.previous = table.head.written_ms, FileName.parse(table.head.previous)
            file.extent = index.extent()
        self._indexes.put(file.name, index)
        return index

    def _read_elements(self, file: TrackFile, rows: Sequence[int]) -> dict[int, Element]:
        whole = self._load(file).whole()
        loaded = {row: _owned(element_of(whole, row)) for row in rows}
        for row, element in loaded.items():
            self._elements.put((file.name, row), element)
        return loaded

    def _load(self, file: TrackFile) -> TrackTable:
        table = unpack(self._disk.read(str(file.name)))
        head = table.head
        if head.broker != self._broker:
            raise FormatError(f"it belongs to broker {head.broker}, not to broker {self._broker}")
        if (head.incarnation, head.first, head.sequence) != file.name[:3]:
            raise FormatError(f"it was written as {FileName(head.incarnation, head.first, head.sequence)}")
        return table

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
            if file not in self.files:
                return None  # dropped meanwhile
            reason = "the file is gone"
        file.error, file.extent = TrackFileError(self._disk.path(str(file.name)), reason), None
        return None

    # --- holes ------------------------------------------------------------------------------------------------------------

    def holes(self, kept_from_ms: int) -> Iterator[Hole]:
        if kept_from_ms > 0:
            yield Hole(HoleKind.DROPPED, 0, kept_from_ms - 1, "older than the tracks that are kept here")
        late = self._options.late_ms
        for crash in self.crashes:
            reason = f"what incarnation {crash.incarnation} had not written yet was lost"
            yield Hole(HoleKind.CRASH, crash.from_ms - late, crash.to_ms + late, reason)
        for place, reason in self._missing():
            before = next((file.time_ms for file in reversed(self.files[:place]) if self.extent(file)), kept_from_ms)
            after = next((file.time_ms for file in self.files[place:] if self.extent(file)), NEVER - late)
            yield Hole(HoleKind.DAMAGED, before - late, after + late, reason)

    def _missing(self) -> Iterator[tuple[int, str]]:
        """Yield where among the files one is missing or cannot be read, as far as is known, and why."""
        kept = [file.name for file in self.files if not file.name.copies]
        ends = {(name.incarnation, sequence) for name in kept for sequence in (name.first, name.sequence)}
        merged = [name for name in kept if name.first != name.sequence]
        for place, file in enumerate(self.files):
            if file.error is not None:
                yield place, str(file.error)
            wanted = file.previous
            there = (
                wanted is None
                or (wanted.incarnation, wanted.sequence) in ends
                or (wanted.incarnation, wanted.sequence) < (kept[0].incarnation, kept[0].first)  # dropped long ago
                or any(name.incarnation == wanted.incarnation and name.first <= wanted.first <= name.sequence for name in merged)
            )
            if not there:
                yield place, str(TrackFileError(self._disk.path(str(wanted)), "the file is gone"))


def element_size(element: Element) -> int:
    """Return the bytes an element takes in memory, about."""
    bits = 0 if element.bits is None else len(element.bits)
    return 512 + bits + (0 if element.ids is None else element.ids.nbytes) + element.singletons.nbytes


def _owned(element: Element) -> Element:
    """Return the element with arrays of its own, so that it does not keep the whole file in memory."""
    bits = None if element.bits is None else np.array(element.bits, np.uint8)
    ids = None if element.ids is None else element.ids.copy()
    return replace(element, bits=bits, ids=ids, singletons=element.singletons.copy())


def _file_of(name: FileName, status: FileStatus) -> TrackFile:
    return TrackFile(name, status.size, status.changed_ms)
