"""A broker's tracks on disk: what was flushed, found again.

A flush becomes up to three steps, in this order: the copies of living elements appear under a new name; the file of finished
elements and records appears; the former copies vanish. So at every moment what a span claims is in some file, and an element is
in one at least, perhaps in two; the newest row counts. A large flush becomes several files, the last of which holds the records.

An incarnation begins with a file of its own, the *mark*, which carries over the horizons and says what the incarnation before it
may have lost: without a `farewell` in its last file, everything after that file. So does another writer in the same incarnation,
whose tracking process has ended before its time; the copies of the former one stay, since nobody will write newer ones.

Writing is for one thread; searches may run beside it in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Ids
from postroad.errors import StorageError, StorageFullError, TrackFileError
from postroad.tracking.files.catalog import Catalog, FileName, FilesChangedError, Sort, TrackFile, TrackOptions, element_size
from postroad.tracking.files.chain import VERSION, ChainEnds, decode_ends, encode_ends
from postroad.tracking.files.directories import DirectoryFiles, TrackFiles
from postroad.tracking.files.format import Head, pack_all
from postroad.tracking.files.merging import mergeable, merged_head, merged_rows, outdated
from postroad.tracking.files.row_index import FileIndex, Identity, identity_of, milliseconds_of, times_of
from postroad.tracking.files.schema import INDEX_COLUMNS, one_batch, to_table
from postroad.tracking.files.summary import NEVER
from postroad.tracking.histories.elements import Crash, Element, Farewell, Flush, Horizon, Lost, Record, Span
from postroad.tracking.histories.pause import Pause, no_pause
from postroad.tracking.queries.answers import Covered, Hole, Searched, covered, ended
from postroad.tracking.queries.search import Hits, search
from postroad.types import tick_milliseconds

MARK: Final = 0  # the sequence of an incarnation's first file
NOTHING_DROPPED: Final = FileName(-1, 0)
NUMBER_BITS: Final = 32  # of the elements in one file there are far fewer

UNREAD_MAX: Final = 256  # files of former incarnations whose end is read at a time
CHANGES_MAX: Final = 20  # of the directory during one search

ResultT = TypeVar("ResultT")
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
_Plan: TypeAlias = list[tuple[TrackFile, list[int]]]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the files said when they were opened."""

    crash: Crash | None  # what the incarnation before may have lost; written already
    horizons: Mapping[int, int]  # pubend -> how far its publisher history is complete


class TrackStore:
    """The tracks of one broker. Open with `TrackStore.open`."""

    def __init__(self, files: TrackFiles, broker: int, incarnation: int, options: TrackOptions, pause: Pause) -> None:
        self._disk: Final = files
        self._broker: Final = broker
        self._incarnation: Final = incarnation
        self._options: Final = options
        self._pause: Final = pause
        self._catalog: Final = Catalog(files, broker, options)
        self._sequence = MARK - 1
        self._found = MARK - 1  # the last sequence of this incarnation, by another writer before us
        self._unwritten: tuple[Record, ...] = ()
        self._broken: tuple[str, ...] = ()  # of the chain; the next file says it
        self._dropped: FileName = NOTHING_DROPPED
        self._horizons: Mapping[int, int] = {}
        self.kept_from_ms = 0  # what is older may have been dropped
        self.recovered = Recovered(None, {})

    @classmethod
    def open(
        cls,
        files: TrackFiles | Path,
        broker: int,
        incarnation: int,
        *,
        now_ms: int,
        options: TrackOptions | None = None,
        pause: Pause = no_pause,
    ) -> TrackStore:
        """Open the tracks of a broker, or begin them. Neither damaged files nor a full disk hinder it."""
        files = DirectoryFiles(files) if isinstance(files, Path) else files
        self = cls(files, broker, incarnation, options or TrackOptions(), pause)
        self._catalog.refresh()
        self._steady(lambda: self._recover(now_ms))
        return self

    @property
    def first_number(self) -> int:
        """Return the number that elements begin with: of one incarnation no two elements have the same, whoever wrote them."""
        return self._found + 1 << NUMBER_BITS

    # --- writing ----------------------------------------------------------------------------------------------------------

    def write(self, flush: Flush, *, now_ms: int) -> None:
        """Make a flush durable; `now_ms` is the clock when it was taken: what happened before is in it.

        Raises `StorageFullError` or `StorageFailedError`; the same flush, or one that holds at least as much, may be tried again.
        """
        if not (flush.closed or flush.copies or flush.records or self._unwritten):
            return
        former = [file for file in self._catalog.files if self._is_living(file)]
        if flush.copies:
            self._write_file(flush.copies, (), now_ms, copies=True)
        horizons = {**self._horizons, **_horizons(flush.records)}
        others = (record for record in flush.records if not isinstance(record, Horizon))
        records = (*self._unwritten, *others, *_horizon_records(horizons))
        *chunks, last = _chunks(flush.closed, self._options.file_bytes)
        for chunk in chunks:
            self._write_file(chunk, (), now_ms)
        self._write_file(last, records, now_ms, complete=True)
        self._note_chain()
        self._unwritten, self._horizons = (), horizons
        with suppress(StorageError):  # they are superseded, and the next start finds them again
            for file in former:
                self._catalog.remove(file)

    def retain(self, now_ms: int) -> None:
        """Merge small files; drop whole files, oldest first, that are too old or too many bytes, but never the newest.

        To be called now and then. Raises like `write`.
        """
        with self._disk.merging() as alone:
            if alone:
                self._catalog.refresh()  # others may have compacted what we know
                self._steady(lambda: self._merge(now_ms))
        for file in outdated(self._catalog.files, now_ms):
            self._catalog.remove(file)
        self._steady(lambda: self._drop(now_ms))

    def _merge(self, now_ms: int) -> None:
        unread = (file for file in self._catalog.files if file.summary is None and file.error is None)
        for file in islice(unread, UNREAD_MAX):  # after a restart, some at a time
            self._catalog.summary(file)
        run = mergeable(self._catalog.files, now_ms, self._options.file_bytes)
        tables = [table for file in run if (table := self._catalog.table(file)) is not None]
        if not run or len(tables) < len(run):
            return
        present = {str(file.name) for file in self._catalog.files}
        head = merged_head(tables, [file.name for file in run], present)
        name = FileName(head.incarnation, head.sequence, Sort.MERGED)
        self._write_table(name, head, merged_rows(tables), merged_ms=now_ms)

    def _drop(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._options.retention_ms
        excess = self.bytes - self._options.retention_bytes
        for file in self._catalog.files[:-1]:
            self._catalog.summary(file)  # the name does not say how old it is, and the directory may err
            if file.time_ms >= oldest_ms and excess <= 0:
                break
            if not self._is_living(file):
                self._note_chain(dropped=file.name)
                self._catalog.remove(file)  # what it replaces is older and gone already
                self.kept_from_ms = max(self.kept_from_ms, self._reach(file) + 1)
                excess -= file.size

    def _is_living(self, file: TrackFile) -> bool:
        name = file.name
        return name.sort is Sort.COPIES and name.incarnation == self._incarnation and name.sequence > self._found

    def _reach(self, file: TrackFile) -> int:
        """Return the highest timestamp that a file may hold."""
        latest = file.time_ms + self._options.late_ms
        return latest if file.summary is None else min(latest, file.summary.high_ms)

    def _write_file(
        self,
        elements: Sequence[Element],
        records: Sequence[Record],
        now_ms: int,
        *,
        complete: bool = False,
        copies: bool = False,
    ) -> None:
        self._sequence += 1  # also when it fails: a name is never given twice
        name = FileName(self._incarnation, self._sequence, Sort.COPIES if copies else Sort.PLAIN)
        previous = self._newest()
        head = Head(
            broker=self._broker,
            incarnation=name.incarnation,
            sequence=name.sequence,
            written_ms=now_ms,
            kept_from_ms=self.kept_from_ms,
            complete=complete,
            previous="" if previous is None else str(previous.name),
            previous_digest="" if previous is None or self._catalog.summary(previous) is None else previous.digest,
            broken=self._broken,
            persistence_ms=self._options.persistence_ms,
        )
        self._write_table(name, head, to_table(head.stamp, elements, records, self._pause))
        if not copies:
            self._broken = ()

    def _newest(self) -> TrackFile | None:
        """Return the last file of the chain."""
        return next((file for file in reversed(self._catalog.files) if file.name.sort is not Sort.COPIES), None)

    def _note_chain(self, dropped: FileName | None = None) -> None:
        """Write down where the chain begins and ends. It is the worse for those who check it if that fails, not for tracks."""
        newest = self._newest()
        if newest is not None and newest.digest:
            if dropped is not None and dropped.order[:2] > self._dropped.order[:2]:
                self._dropped = dropped
            gone = str(self._dropped) if self._dropped != NOTHING_DROPPED else ""
            with suppress(StorageError):
                ends = ChainEnds(VERSION, self._broker, str(newest.name), newest.digest, gone)
                self._disk.write_chain(encode_ends(ends))

    def _check_chain(self) -> None:
        """Compare the end of the chain with what was written down of it; what is missing is told by the next file."""
        ends = decode_ends(self._disk.read_chain())
        if ends is None:
            return
        self._dropped = FileName.parse(ends.dropped) or NOTHING_DROPPED
        wanted = FileName.parse(ends.newest)
        if wanted is None or ends.broker != self._broker:
            return
        at_hand = [file for file in self._catalog.files if file.name[:2] == wanted[:2] and file.name.sort is not Sort.COPIES]
        if not at_hand:
            self._broken = (f"the files up to {wanted} were gone when incarnation {self._incarnation} began",)
        elif not any(file.error is not None or ends.digest in {file.digest, *file.stands_for} for file in self._read(at_hand)):
            self._broken = (f"{wanted} was another file when incarnation {self._incarnation} began",)

    def _read(self, files: Sequence[TrackFile]) -> Sequence[TrackFile]:
        for file in files:
            self._catalog.summary(file)
        return files

    def _write_table(self, name: FileName, head: Head, table: pa.Table, *, merged_ms: int = 0) -> None:
        packed = pack_all(head, table)
        self._disk.write(str(name), packed.pieces)
        index = FileIndex(head, packed.digest, one_batch(table.select(list(INDEX_COLUMNS))))
        self._catalog.add(name, index, packed, merged_ms)

    # --- asking -----------------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self._catalog.files)

    @property
    def damaged(self) -> tuple[TrackFileError, ...]:
        """Errors of the files that were found damaged so far."""
        return tuple(file.error for file in self._catalog.files if file.error is not None)

    def search(self, ids: Ids, open_elements: Iterable[Element] = (), open_records: Iterable[Record] = ()) -> Searched:
        """Look for ids in what is stored and in `open_elements`, which are newer than any stored copy of them.

        What was flushed and could not be written yet belongs to `open_elements` and `open_records`, too.
        """
        living, records = list(open_elements), list(open_records)
        return self._steady(lambda: self._search(ids, living, records))

    def _search(self, ids: Ids, living: Sequence[Element], records: Iterable[Record]) -> Searched:
        by_time = np.argsort(milliseconds_of(ids), kind="stable")
        plans = self._plans(ids, by_time, living)
        parts = [(rows, search(self._elements(plan, living), ids[rows])) for rows, plan in plans if len(rows)]
        neighbours = self._catalog.neighbours(records)
        return Searched(_join(parts), tuple(self.holes(ids, records)), neighbours, self.kept_from_ms)

    def holes(self, ids: Ids, open_records: Iterable[Record] = ()) -> Iterator[Hole]:
        """Yield the holes that concern at least one of these ids."""
        times = list(times_of(ids).values())
        for hole in self._catalog.holes(self.kept_from_ms, open_records):
            if any(bool(((hole.from_ms <= wanted) & (wanted <= hole.to_ms)).any()) for wanted in times):
                yield hole

    def coverage(self, subscriber: str, pubend: int, tick: int, open_records: Iterable[Record] = ()) -> Covered:
        """Return what spans and losses say about a tick. Files are asked oldest first, up to the first that answers."""
        records = list(open_records)
        return self._steady(lambda: self._coverage(subscriber, pubend, tick, records))

    def _coverage(self, subscriber: str, pubend: int, tick: int, open_records: Sequence[Record]) -> Covered:
        spans: dict[tuple[int, int], Span] = {}
        lost: dict[Lost, None] = {}
        for incarnation, record in self._covering(subscriber, pubend, tick, open_records):
            if isinstance(record, Span):
                spans[incarnation, record.number] = record
            elif record.from_tick < tick <= record.to_tick:
                lost[record] = None
        wall_ms = tick_milliseconds(tick)
        holes = (hole for hole in self._catalog.holes(self.kept_from_ms, open_records) if hole.concerns(wall_ms))
        return covered(ended(spans, self._incarnation, self._catalog.crashes), lost, tick, tuple(holes))

    def _steady(self, ask: Callable[[], ResultT]) -> ResultT:
        """Ask the files; when they change meanwhile, list them anew and ask again."""
        for _ in range(CHANGES_MAX):
            with suppress(FilesChangedError):
                return ask()
            self._catalog.refresh()
        raise TrackFileError(self._disk.path(""), "its files change too fast to be read")

    def _covering(
        self, subscriber: str, pubend: int, tick: int, open_records: Iterable[Record]
    ) -> Iterator[tuple[int, Span | Lost]]:
        for file in self._catalog.files:
            summary = self._catalog.summary(file)
            index = self._catalog.index(file) if summary is not None and summary.low_tick <= summary.high_tick else None
            found = [] if index is None else list(index.coverage(subscriber, pubend))
            yield from found
            if any(isinstance(record, Span) and record.from_tick < tick <= record.to_tick for _, record in found):
                break
        for record in open_records:
            if isinstance(record, Span | Lost) and record.subscriber == subscriber and record.pubend == pubend:
                yield self._incarnation, record

    def _plans(self, ids: Ids, rows: Rows, living: Sequence[Element]) -> Iterator[tuple[Rows, _Plan]]:
        """Divide ids, in order of time, into parts whose elements fit into memory; yield each with where its elements are."""
        plan, size = self._plan(ids[rows], {identity_of(element) for element in living})
        if size <= self._options.search_bytes or len(rows) <= 1:
            yield rows, plan
            return
        middle = len(rows) // 2
        yield from self._plans(ids, rows[:middle], living)
        yield from self._plans(ids, rows[middle:], living)

    def _plan(self, ids: Ids, seen: set[Identity]) -> tuple[_Plan, int]:
        """Return which rows of which files may hold the ids, each element once in its newest version, and their size."""
        times = times_of(ids)
        low = min((int(wanted[0]) for wanted in times.values()), default=NEVER)
        high = max((int(wanted[-1]) for wanted in times.values()), default=-1)
        plan: _Plan = []
        replaced: set[FileName] = set()
        size = 0
        for file in reversed(self._catalog.files):
            if file.name in replaced:
                continue
            summary = self._catalog.summary(file)
            replaced.update(file.replaces)
            if summary is None or summary.low_ms > high or summary.high_ms < low:
                continue
            rows, added = self._catalog.fresh_rows(file, times, seen)
            size += added
            if rows:
                plan.append((file, rows))
        return plan, size

    def _elements(self, plan: _Plan, living: Sequence[Element]) -> Iterator[Element]:
        yield from living
        for file, rows in plan:
            yield from self._catalog.elements(file, rows)

    # --- opening ----------------------------------------------------------------------------------------------------------

    def _recover(self, now_ms: int) -> None:
        files = self._catalog.files
        sequences = (file.name.sequence for file in files if file.name.incarnation == self._incarnation)
        self._sequence = self._found = max(sequences, default=MARK - 1)
        if files:
            self.recovered = self._last_words(files, now_ms)
            self._read_oldest(files[0])
        else:
            self.kept_from_ms = now_ms
        self._check_chain()
        self._horizons = self.recovered.horizons
        crash = self.recovered.crash
        if crash is not None:
            self._unwritten = (crash,)
            self._catalog.note_crashes((crash,))
        with suppress(StorageFullError):  # the first flush that finds room says it
            self._write_file((), (*self._unwritten, *_horizon_records(self._horizons)), now_ms, complete=True)
            self._unwritten = ()
            self._note_chain()

    def _last_words(self, files: Sequence[TrackFile], now_ms: int) -> Recovered:
        """Read the newest sound file that ended a flush: how the last incarnation ended, and the horizons."""
        for file in reversed(files):
            index = self._catalog.index(file)
            if index is None or not index.head.complete:
                continue
            records = list(index.records())
            self.kept_from_ms = index.head.kept_from_ms
            in_order = file is files[-1] and any(isinstance(record, Farewell) for record in records)
            if in_order and file.name.incarnation + 1 >= self._incarnation:
                return Recovered(None, _horizons(records))
            ended = self._incarnation - 1 if in_order else file.name.incarnation  # in order, but later ones kept no tracks
            return Recovered(Crash(ended, file.time_ms, max(now_ms, file.time_ms)), _horizons(records))
        return Recovered(Crash(files[-1].name.incarnation, 0, now_ms), {})

    def _read_oldest(self, oldest: TrackFile) -> None:
        """Learn how far back tracks go from the oldest file, when it is no mark and so others were dropped before it."""
        summary = self._catalog.summary(oldest)
        begins = {oldest.name.sequence, *(name.sequence for name in oldest.replaces)}
        if summary is not None and MARK not in begins and summary.opened_low_ms != NEVER:
            self.kept_from_ms = max(self.kept_from_ms, summary.opened_low_ms)


def _join(parts: Sequence[tuple[Rows, Hits]]) -> Hits:
    """Join the hits of several parts of the ids into those of all, in order of the ids."""
    where = np.concatenate([np.empty(0, np.intp), *(rows[hits.rows] for rows, hits in parts)])
    order = np.argsort(where, kind="stable")
    keys = [key for _, hits in parts for key in hits.keys]
    forwarded = [to for _, hits in parts for to in hits.forwarded]
    probability = np.concatenate([np.empty(0, np.float64), *(hits.probability for _, hits in parts)])
    places = order.tolist()
    return Hits(where[order], tuple(keys[i] for i in places), probability[order], tuple(forwarded[i] for i in places))


def _chunks(elements: Sequence[Element], bytes_max: int) -> list[Sequence[Element]]:
    """Cut elements into files; there is at least one, perhaps empty."""
    chunks: list[Sequence[Element]] = []
    start = size = 0
    for place, element in enumerate(elements):
        added = element_size(element)
        if place > start and size + added > bytes_max:
            chunks.append(elements[start:place])
            start, size = place, 0
        size += added
    return [*chunks, elements[start:]]


def _horizons(records: Iterable[Record]) -> dict[int, int]:
    return {record.pubend: record.tick for record in records if isinstance(record, Horizon)}


def _horizon_records(horizons: Mapping[int, int]) -> list[Horizon]:
    return [Horizon(pubend, tick) for pubend, tick in sorted(horizons.items())]
