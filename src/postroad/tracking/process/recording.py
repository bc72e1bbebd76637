"""A broker's tracker and its files together: what tracking does, whoever runs it.

A flush that cannot be written for want of room is kept and joined with the next one, so that what a span claims is always
written with what it speaks of. When too much waits, the elements go and a hole remains: a `Crash` record of the running
incarnation, from the last flush on disk to the moment they went.

The publisher history is repaired from the pubends' logs: at the start by what they hold beyond the horizon on disk, and later by
what was dropped. While such a *replay* is under way the horizon stays where it was. Replays go piece by piece between other
work; their memory is bounded by the tracker's own bound, beyond which it flushes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from postroad.core.batch.batch import Ids
from postroad.core.protocol.orders import BrokerState
from postroad.errors import StorageError
from postroad.storage.base import LogSlice
from postroad.tracking.files.catalog import TrackOptions, element_size
from postroad.tracking.files.directories import DirectoryFiles, FileStatus, TrackFiles
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import Crash, Element, Flush, HistoryKey, Horizon, Links, Lost, Record
from postroad.tracking.histories.events import Published, TrackEvent
from postroad.tracking.histories.pause import Pause, no_pause
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.histories.tuning import check_rate, matching_set
from postroad.tracking.tap.orders import Track

log = logging.getLogger("postroad.tracking")

FOREVER: Final = (1 << 64) - 1
RATE_OVER_MS: Final = 1_000  # shorter lives say nothing about a rate
REPLAY_BYTES: Final = 1 << 20  # of the log, at a time
RECORDS_MAX: Final = 65_536  # that outlive the elements they were to be written with


def logs_freed(pubends: Iterable[int]) -> tuple[Horizon, ...]:
    """Return horizons by which no log is kept for its publisher history."""
    return tuple(Horizon(pubend, FOREVER) for pubend in sorted(pubends))


class PublishedIds(NamedTuple):
    """The ids of a pubend's messages up to the tick `hi`, from where was asked."""

    hi: int
    ids: tuple[Ids, ...]


class IdLog(Protocol):
    """What replays need of a pubend's log; it may be asked from any thread."""

    def ids(self, lo: int, hi: int, bytes_max: int) -> PublishedIds: ...


class ReadableLog(Protocol):
    """A pubend's log, as the broker's storage has it."""

    def read(self, lo: int, hi: int, bytes_max: int) -> LogSlice: ...


class LogIds:
    """The ids in a log."""

    def __init__(self, log: ReadableLog) -> None:
        self._log: Final = log

    def ids(self, lo: int, hi: int, bytes_max: int) -> PublishedIds:
        found = self._log.read(lo, hi, bytes_max)
        return PublishedIds(found.hi, tuple(batch.ids().copy() for batch in found.batches))


@dataclass(slots=True)
class Replay:
    """The stretch (position, hi] of a pubend's log that is still to be added to the publisher history."""

    position: int
    hi: int


class Figures(msgspec.Struct):
    """What a person may want to know. Written by the tracking thread, read by others."""

    entries: int = 0
    elements: int = 0  # written, copies not counted
    bytes_written: int = 0
    stored_bytes: int = 0
    memory_bytes: int = 0
    dropped: int = 0  # entries that are in no history
    holes: int = 0
    failed: int = 0  # 1 when tracking has ended before its time
    rate_peak: int = 0  # messages per second of the busiest history of blooms, over the life of its elements
    matching_set: int = 0  # blooms of that history in which an id may have to be looked for

    def followed_by(self, later: Figures) -> Figures:
        """Return the figures of one that tracked and of another that went on after it."""
        both = {name: getattr(self, name) + getattr(later, name) for name in ("entries", "elements", "bytes_written")}
        both |= {name: getattr(self, name) + getattr(later, name) for name in ("dropped", "holes")}
        both |= {name: max(getattr(self, name), getattr(later, name)) for name in ("rate_peak", "matching_set")}
        return msgspec.structs.replace(later, **both)

    def gauges(self) -> dict[str, int]:
        return {f"tracking_{name}": getattr(self, name) for name in self.__struct_fields__}


class View(NamedTuple):
    """What is not on disk yet. The elements are views: look at them at once."""

    elements: list[Element]
    records: list[Record]


class _CountedFiles:
    """Files, and how much was written to them."""

    def __init__(self, files: TrackFiles, figures: Figures) -> None:
        self._files = files
        self._figures = figures

    def listed(self) -> list[FileStatus]:
        return self._files.listed()

    def status(self, name: str) -> FileStatus:
        return self._files.status(name)

    def read(self, name: str) -> pa.Buffer:
        return self._files.read(name)

    def read_end(self, name: str, bytes_max: int) -> tuple[pa.Buffer, int]:
        return self._files.read_end(name, bytes_max)

    def write(self, name: str, data: Sequence[bytes | memoryview]) -> None:
        self._files.write(name, data)
        self._figures.bytes_written += sum(map(len, data))

    def remove(self, name: str) -> None:
        self._files.remove(name)

    def read_chain(self) -> bytes | None:
        return self._files.read_chain()

    def write_chain(self, data: bytes) -> None:
        self._files.write_chain(data)

    def merging(self) -> AbstractContextManager[bool]:
        return self._files.merging()

    def path(self, name: str) -> str:
        return self._files.path(name)


class Tracks:
    """Tracks of one incarnation of a broker. All calls from one thread; only `figures` may be looked at from others."""

    def __init__(
        self,
        place: Path | TrackFiles,
        state: BrokerState,
        logs: Mapping[int, IdLog],
        settings: TrackingSettings,
        options: TrackOptions,
        *,
        wall_ms: int,
        figures: Figures | None = None,
        pause: Pause = no_pause,
    ) -> None:
        self.figures: Final = figures or Figures()
        files = _CountedFiles(DirectoryFiles(place) if isinstance(place, Path) else place, self.figures)
        options = replace(options, persistence_ms=settings.persistence_ms)
        self.store: Final = TrackStore.open(files, state.broker, state.incarnation, now_ms=wall_ms, options=options, pause=pause)
        self.tracker: Final = Tracker(
            state.broker, state.incarnation, settings, wall_ms=wall_ms, pause=pause, first_number=self.store.first_number
        )
        self._settings: Final = settings
        self._logs: Final = logs
        self._wall_ms = wall_ms
        self._flushed_ms = wall_ms
        self._written_ms = wall_ms  # the clock at the last flush that is on disk
        self._warned = False  # that blooms fill too fast
        self._unwritten: Flush | None = None
        self._unwritten_bytes = 0
        self._durable = dict(self.store.recovered.horizons)  # up to here publisher histories are on disk,
        self._complete = dict(self._durable)  # and up to here they have everything
        self._lacking: set[int] = set()  # pubends of which something was dropped since
        self._unreadable: set[int] = set()  # pubends whose logs cannot repair it
        self._replays: dict[int, Replay] = {}
        for pubend in state.pubends:
            known = max(self._complete.get(pubend.pubend, 0), pubend.released)
            if known < pubend.last_tick:
                self._replays[pubend.pubend] = Replay(known, pubend.last_tick)
        if self.store.recovered.crash is not None:
            crash = self.store.recovered.crash
            self.figures.holes += 1
            who = (
                "the previous tracking process" if crash.incarnation == state.incarnation else f"incarnation {crash.incarnation}"
            )
            log.warning("%s did not shut down cleanly: its last deliveries may be missing in traces", who)

    # --- events

    def take(self, orders: Sequence[Track]) -> bool:
        """Take orders; tell whether there was a flush among them."""
        waiting: list[tuple[int, Sequence[TrackEvent]]] = []
        flushed = False
        for order in orders:
            self._wall_ms = order.wall_ms
            self.figures.entries += order.entries
            if order.events:
                waiting.append((order.wall_ms, order.events))
            if order.flush:
                self._enter(waiting)
                waiting, flushed = [], True
                self._flush(farewell=order.farewell)
        self._enter(waiting)
        return flushed

    def missed(self, entries: int, from_ms: int, to_ms: int) -> None:
        """Take note that events came faster than they could be taken, and were dropped."""
        self._lacking.update(self._logs)
        self._report_hole(entries, from_ms, to_ms)

    def tracked(self) -> tuple[Horizon, ...]:
        """Return up to where the logs are not needed for publisher histories.

        While nothing can be written they are not waited for: a full disk must not keep the logs from shrinking.
        """
        if self._unwritten is not None:
            return logs_freed(self._logs)
        return tuple(Horizon(pubend, tick) for pubend, tick in sorted(self._durable.items()))

    def _enter(self, orders: Sequence[tuple[int, Sequence[TrackEvent]]]) -> None:
        if not orders:
            return
        self.tracker.take_orders([(wall_ms, self._sound(events)) for wall_ms, events in orders])
        self._flush_if_full()
        self.figures.memory_bytes = self.tracker.memory_bytes + self._unwritten_bytes

    def _sound(self, events: Sequence[TrackEvent]) -> list[TrackEvent]:
        """Leave out what claims more than the histories hold."""
        return [event for event in events if not isinstance(event, Horizon) or self._is_complete(event)]

    def _is_complete(self, horizon: Horizon) -> bool:
        """Tell whether a publisher history holds all up to a horizon; if something was dropped, begin to repair it."""
        pubend, tick = horizon.pubend, horizon.tick
        replay = self._replays.get(pubend)
        if pubend in self._unreadable:
            return False
        if pubend in self._lacking and self._unwritten is None:
            self._lacking.discard(pubend)
            position = self._complete.get(pubend, 0)
            self._replays[pubend] = Replay(position if replay is None else min(position, replay.position), tick)
            return False
        if replay is not None or pubend in self._lacking:
            return False
        self._complete[pubend] = tick
        return True

    # --- flushes

    def _flush_if_full(self) -> None:
        if self.tracker.wants_flush(self._flushed_ms):  # at that time, only a bound can be the reason
            self._flush()

    def _flush(self, *, farewell: bool = False) -> None:
        """Write what there is, with what could not be written before."""
        fresh = self.tracker.flush(self._wall_ms, farewell=farewell)
        self._flushed_ms = self._wall_ms
        self._check_rate(fresh.closed)
        flush = _join(self._unwritten, fresh)
        try:
            self.store.write(flush, now_ms=self._wall_ms)
        except StorageError as error:
            self._keep(flush, error)
            return
        if self._unwritten is not None:
            log.warning("tracks can be written again")
        self._unwritten, self._unwritten_bytes, self._written_ms = None, 0, self._wall_ms
        self._durable.update({record.pubend: record.tick for record in flush.records if isinstance(record, Horizon)})
        self.figures.elements += len(flush.closed)
        self._retain()

    def _check_rate(self, closed: Sequence[Element]) -> None:
        """Compare how fast blooms fill up with what they were planned for; when they fill too fast, say once what to set."""
        if self._settings.strategy is not Strategy.BLOOM or not closed:
            return
        rate = peak_rate(closed)
        self.figures.rate_peak = max(self.figures.rate_peak, round(rate))
        self.figures.matching_set = max(self.figures.matching_set, matching_set(self._settings, rate))
        broken = check_rate(self._settings, rate)
        if broken is not None and not self._warned:
            self._warned = True
            log.warning(
                "Bloom filters are too small for %d messages per second in one history, so traces have more false entries. %s. "
                "In [tracking], m is `bits`, n `capacity`, T_p `persistence_ms`, T_s `skew_tolerance_ms`, T_j `jitter_ms`; "
                '`postroad tracking plan` computes suitable values; `strategy = "exact"` needs none',
                round(rate),
                broken,
            )

    def _retain(self) -> None:
        try:
            self.store.retain(self._wall_ms)
        except StorageError as error:
            log.warning("old tracks cannot be deleted: %s", error)
        self.figures.stored_bytes = self.store.bytes

    def _keep(self, flush: Flush, error: StorageError) -> None:
        """Keep a flush for another try, or as much of it as there is room for."""
        if self._unwritten is None:
            log.error("tracks cannot be written; the broker will try again: %s", error)
        elements = (*flush.closed, *flush.copies)
        self._unwritten, self._unwritten_bytes = flush, sum(map(element_size, elements))
        if self._unwritten_bytes + self.tracker.memory_bytes <= self._settings.memory_bytes_max:
            return
        self._unwritten, self._unwritten_bytes = Flush((), (), ()), 0
        self._complete = dict(self._durable)
        self._lacking.update(self._logs)
        left = [record for record in flush.records if isinstance(record, Lost | Links | Crash)]
        self.tracker.take(left[-RECORDS_MAX:], self._wall_ms)
        self._report_hole(sum(element.count for element in flush.closed), self._written_ms, self._wall_ms)

    def _report_hole(self, entries: int, from_ms: int, to_ms: int) -> None:
        self.figures.dropped += entries
        self.figures.holes += 1
        self.tracker.take([Crash(self.tracker.incarnation, from_ms, max(from_ms, to_ms))], self._wall_ms)
        log.error("%d track entries were lost", entries)

    # --- replays

    @property
    def replaying(self) -> bool:
        return bool(self._replays) and self._unwritten is None

    def replay(self) -> None:
        """Add one piece of a log to the publisher history."""
        pubend, replay = next(iter(self._replays.items()))
        try:
            found = self._logs[pubend].ids(replay.position, replay.hi, REPLAY_BYTES)
        except StorageError as error:
            log.error("the log of pubend %x cannot be read; its publisher history is incomplete: %s", pubend, error)  # noqa: TRY400
            del self._replays[pubend]
            self._unreadable.add(pubend)
            return
        self.figures.entries += sum(map(len, found.ids))
        self._enter([(self._wall_ms, [Published(pubend, ids) for ids in found.ids])])
        replay.position = found.hi
        if replay.position >= replay.hi:
            del self._replays[pubend]
            self._enter([(self._wall_ms, [Horizon(pubend, replay.hi)])])

    # --- looking

    def view(self) -> View:
        waiting = self._unwritten or Flush((), (), ())
        records = [*waiting.records, *self.tracker.open_records()]
        return View([*waiting.closed, *self.tracker.open_elements()], records)


def peak_rate(closed: Sequence[Element]) -> float:
    """Return the messages per second of the busiest history that finished blooms, over the life of these."""
    lives: dict[HistoryKey, tuple[int, int, int]] = {}
    for element in closed:
        if element.bits is not None:
            count, since, until = lives.get(element.key, (0, element.opened_ms, element.closed_ms))
            lives[element.key] = count + element.count, min(since, element.opened_ms), max(until, element.closed_ms)
    return max(
        (1000 * count / (until - since) for count, since, until in lives.values() if until - since >= RATE_OVER_MS), default=0
    )


def _join(earlier: Flush | None, later: Flush) -> Flush:
    """Return one flush for two: the copies of the later one are all that lives on, unless it is empty."""
    if earlier is None:
        return later
    empty = not (later.closed or later.copies or later.records)
    copies = earlier.copies if empty else later.copies
    return Flush(earlier.closed + later.closed, copies, earlier.records + later.records)
