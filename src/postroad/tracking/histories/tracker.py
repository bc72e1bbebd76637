"""The tracker of one broker: events in, what has to be durable out.

A driver calls `take` with the events of a turn and, when `wants_flush` says so, `flush`, whose result it must write as one
before the next. Between two flushes everything is in memory, so a crash loses at most what came within T_p. Every unfinished
element with something in it is in every `Flush` that is not empty: `copies` is the whole of what lives on, and replaces the
copies before.

Lifetimes end at flushes only. An element in use for less than max(T_p, T_n) is copied, an older one is closed, and so is one
that began in the future, as the clock was set back since. Since elements follow each other without a break, most begin at a
flush and end at the next; only those that follow one that was full are copied.

Bounds: memory (beyond it the fullest elements are closed by the next flush, which is wanted at once), the number of histories
(beyond it those opened first are closed) and the number of records (beyond it a flush is wanted).

Same events, same flushes, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, TypeAlias

import numpy as np
import xxhash

from postroad.core.batch.batch import Ids
from postroad.core.protocol.packets import PUBEND_BITS
from postroad.tracking.histories.blooms import Words, extents
from postroad.tracking.histories.elements import (
    Crash,
    Element,
    Farewell,
    Flush,
    HistoryKey,
    Horizon,
    Kind,
    Links,
    Lost,
    Record,
    RowNumbers,
    Span,
)
from postroad.tracking.histories.events import (
    Delivered,
    Deliveries,
    Forwarded,
    Published,
    Routed,
    TrackEvent,
    apart,
)
from postroad.tracking.histories.history import ELEMENT_BYTES, Entry, History, Ledger, OpenElement
from postroad.tracking.histories.pause import Pause, no_pause
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.strategies import capacity
from postroad.types import COUNTER_BITS

HISTORIES_MAX: Final = 65_536
RECORDS_MAX: Final = 65_536
NEIGHBOURS_MAX: Final = 10  # of a routing set: a search asks for each of the 2**10 sets

_Name: TypeAlias = tuple[int, str] | tuple[int, Kind, int]  # of a history; quicker to look up than its key
_EMPTY: Final = Flush((), (), ())


def omitted(subscriber: str, message_id: bytes, one_in: int) -> bool:
    """Say whether `omit_one_in` leaves this delivery out of the history."""
    return one_in > 0 and xxhash.xxh64_intdigest(subscriber.encode() + message_id) % one_in == 0


class _Gathered:
    """What is to be entered: ids of all events, and for each history the rows of those that it gets, never none.

    `wall_ms` is when the events that come were ordered.
    """

    def __init__(self) -> None:
        self.rows: dict[_Name, list[RowNumbers]] = {}
        self.wall_ms = 0
        self._arrays: list[Ids] = []
        self._times: list[int] = []  # of each of them
        self._starts: list[int] = []
        self._first_rows: dict[int, int] = {}  # events may share their ids
        self._size = 0

    def first_row(self, ids: Ids) -> int:
        """Return where these ids begin among all, and have them there."""
        first = self._first_rows.setdefault(id(ids), self._size)
        if first == self._size:
            self._arrays.append(ids)
            self._times.append(self.wall_ms)
            self._starts.append(first)
            self._size += len(ids)
        return first

    def times(self, rows: RowNumbers) -> list[int]:
        """Return when these rows were ordered."""
        found: list[int] = np.array(self._times)[np.searchsorted(self._starts, rows, "right") - 1].tolist()
        return found

    def add(self, name: _Name, rows: RowNumbers) -> None:
        if len(rows):
            self.rows.setdefault(name, []).append(rows)

    def add_all(self, name: _Name, ids: Ids) -> None:
        first = self.first_row(ids)
        self.add(name, np.arange(first, first + len(ids), dtype=np.uint32))

    def omit(self, one_in: int) -> None:
        """Forget the deliveries that are to be left out."""
        ids = self.ids() if self.rows else np.empty(0)
        for name in [name for name in self.rows if len(name) == 2]:
            for rows in self.rows.pop(name):
                self.add(name, rows[[not omitted(name[1], each.tobytes(), one_in) for each in ids[rows]]])

    def ids(self) -> Ids:
        return self._arrays[0] if len(self._arrays) == 1 else np.concatenate(self._arrays)

    def in_one(self) -> RowNumbers:
        """Return the rows of all histories, one after the other."""
        return np.concatenate(list(chain.from_iterable(self.rows.values())))


class Tracker:
    """Keeps the histories and records of one incarnation of a broker until they are written."""

    def __init__(
        self,
        broker: int,
        incarnation: int,
        settings: TrackingSettings,
        *,
        wall_ms: int,
        pause: Pause = no_pause,
        first_number: int = 0,
    ) -> None:
        self.broker: Final = broker
        self.incarnation: Final = incarnation
        self.settings: Final = settings
        self._routing_sets: Final = settings.routing_sets and settings.strategy is Strategy.BLOOM
        self._capacity: Final = capacity(settings)
        self._pause: Final = pause
        self._ledger: Final = Ledger(broker, incarnation, settings, first_number)
        self._histories: dict[_Name, History] = {}
        self._finished: list[Element] = []
        self._finished_bytes = 0
        self._records: dict[tuple[str, int, int], Record] = {}
        self._record_number = 0
        self._flushed_ms = wall_ms
        self._since_ms = wall_ms  # no history that is not here has an element that ended later
        self._due_ms: int | None = None  # when the first open element has lived long enough, at the earliest
        self._changed = False
        self._latest_ms = wall_ms  # of the orders that are being taken

    @property
    def memory_bytes(self) -> int:
        return self._ledger.open_bytes + self._finished_bytes

    @property
    def histories(self) -> int:
        return len(self._histories)

    # --- taking ---

    def take(self, events: Sequence[TrackEvent | Crash], wall_ms: int) -> None:
        """Take the events of one order."""
        self.take_orders([(wall_ms, events)])

    def take_orders(self, orders: Sequence[tuple[int, Sequence[TrackEvent | Crash]]]) -> None:
        """Take the events of many orders, each with its time. They may have waited: elements end when they would have."""
        self._latest_ms = orders[-1][0]
        gathered = _Gathered()
        deliveries: dict[int, list[tuple[Deliveries, int]]] = {}  # and where their ids begin
        for gathered.wall_ms, events in orders:
            for event in events:
                match event:
                    case Deliveries():
                        first = gathered.first_row(event.ids)
                        deliveries.setdefault(event.pubend >> PUBEND_BITS, []).append((event, first))
                    case Delivered():
                        gathered.add_all((event.pubend >> PUBEND_BITS, event.subscriber), event.ids)
                    case Published():
                        gathered.add_all((event.pubend >> PUBEND_BITS, Kind.PUBLISHER, 0), event.ids)
                    case Routed():
                        name = (event.pubend >> PUBEND_BITS, Kind.ROUTING, event.upstream)
                        if self._routing_sets:
                            self._enter_sets(name, event, gathered.wall_ms)
                        else:
                            gathered.add_all(name, event.ids)
                    case Forwarded():
                        gathered.add_all((event.pubend >> PUBEND_BITS, Kind.NEIGHBOUR, event.neighbour), event.ids)
                    case _:
                        self._record(event)
        for origin, sent in deliveries.items():
            for subscriber, rows in apart([each for each, _ in sent], [first for _, first in sent]):
                gathered.add((origin, subscriber), rows)
            self._pause()
        if self.settings.omit_one_in:
            gathered.omit(self.settings.omit_one_in)
        if gathered.rows and self.settings.strategy is not Strategy.NULL:
            self._enter(gathered)
        self._ledger.additions.make()

    def _record(self, record: Span | Lost | Links | Horizon | Crash) -> None:
        """Keep a record; of a span and of a horizon only the newest."""
        match record:
            case Span():
                name = ("span", record.number, record.pubend)
            case Horizon():
                name = ("horizon", record.pubend, 0)
            case _:
                self._record_number += 1
                name = ("record", self._record_number, 0)
        self._records.pop(name, None)
        self._records[name] = record
        self._changed = True

    def _enter(self, gathered: _Gathered) -> None:
        """Add what was gathered to its histories. What can be computed for all of them at once, is."""
        ids, rows = gathered.ids(), gathered.in_one()
        names: list[_Name] = []
        stops: list[int] = []  # of the parts that fit into one element each
        start = 0
        for name, pieces in gathered.rows.items():
            stop = start + sum(map(len, pieces))
            history = self._histories.get(name)
            room = self._capacity if history is None else history.room
            parts = (*range(start + room, stop, self._capacity), stop)
            names += [name] * len(parts)
            stops += parts
            start = stop
        bounds = np.array([0, *stops])
        lows, highs = extents(ids, rows, bounds[1:])
        first_ms, last_ms = gathered.times(rows[bounds[:-1]]), gathered.times(rows[bounds[1:] - 1])
        parts_of = zip(names, pairwise(bounds.tolist()), _timestamps(lows), _timestamps(highs), first_ms, last_ms, strict=True)
        for name, (start, stop), low, high, first, last in parts_of:
            self._add(name, Entry(ids, rows[start:stop]), low, high, last, first)
            self._pause()

    def _enter_sets(self, name: _Name, event: Routed, wall_ms: int) -> None:
        """Add with routing sets: event by event, as the neighbours that a mask speaks of may change in between."""
        entry = Entry.of(event.ids)
        if event.masks is not None and 0 < len(event.neighbours) <= NEIGHBOURS_MAX:
            entry = entry._replace(masks=event.masks, neighbours=event.neighbours)
        if len(event.ids):
            timestamps = entry.timestamps()
            self._add(name, entry, int(timestamps.min()), int(timestamps.max()), wall_ms)

    def _add(self, name: _Name, entry: Entry, low: int, high: int, wall_ms: int, first_ms: int | None = None) -> None:
        history = self._history(name)
        for element in history.add(entry, low, high, wall_ms, first_ms):
            self._finish(history, element, wall_ms)
        self._changed = True

    def _history(self, name: _Name) -> History:
        history = self._histories.get(name)
        if history is None:
            if len(self._histories) >= HISTORIES_MAX:
                self._close_first(self._latest_ms)
            history = self._histories[name] = History(_key(name), self.settings, self._since_ms, self._ledger)
            self._due(self._since_ms)
        return history

    def _close_first(self, wall_ms: int) -> None:
        """Close the history that was opened first."""
        self._since_ms = wall_ms
        history = self._histories.pop(next(iter(self._histories)))
        for element in history.open():
            self._finish(history, element, wall_ms)
            history.close(element, wall_ms)

    def _due(self, since_ms: int) -> None:
        """Take in that an element in use since then is open."""
        due = since_ms + self.settings.lifetime_ms
        self._due_ms = due if self._due_ms is None else min(self._due_ms, due)

    def _finish(self, history: History, element: OpenElement, wall_ms: int) -> None:
        done = history.element(element, wall_ms, last=True)
        self._finished.append(done)
        self._finished_bytes += _element_bytes(done)

    # --- flushing ---

    def wants_flush(self, wall_ms: int) -> bool:
        """Say whether `flush` should be called now: T_p is over and there is something to write, or a bound is reached."""
        if self.memory_bytes > self.settings.memory_bytes_max or len(self._records) >= RECORDS_MAX:
            return True
        if 0 <= wall_ms - self._flushed_ms < self.settings.persistence_ms:
            return False
        return self._changed or self._is_due(wall_ms)

    def _is_due(self, wall_ms: int) -> bool:
        """Say whether an open element has lived long enough, or began at a time that is still to come: the clock went back."""
        return self._due_ms is not None and (wall_ms >= self._due_ms or wall_ms < self._flushed_ms)

    def flush(self, wall_ms: int, *, farewell: bool = False) -> Flush:
        """Return what has to be durable now, and forget what is finished."""
        if not farewell and not self._changed and not self._is_due(wall_ms):
            return _EMPTY
        spare = self._room() if self.memory_bytes > self.settings.memory_bytes_max else None
        copies = self._settle(wall_ms, spare, everything=farewell)
        records = list(self._records.values())
        if farewell:
            records.append(Farewell(wall_ms))
        flushed = Flush(tuple(self._finished), copies, tuple(records))
        self._finished, self._finished_bytes, self._records = [], 0, {}
        self._flushed_ms, self._since_ms, self._changed = wall_ms, wall_ms, False
        return flushed

    def _room(self) -> set[int]:
        """Return the numbers of the elements that may stay when memory is short: the smallest, up to half of the bound."""
        elements = [element for history in self._histories.values() for element in history.open()]
        stay: set[int] = set()
        total = 0
        for size, number in sorted((element.nbytes, element.number) for element in elements):
            total += size
            if total > self.settings.memory_bytes_max // 2:
                break
            stay.add(number)
        return stay

    def _settle(self, wall_ms: int, stay: set[int] | None, *, everything: bool) -> tuple[Element, ...]:
        """Close what has lived long enough, copy the rest; forget histories with nothing open."""
        copies: list[Element] = []
        self._due_ms = None
        for history in self._histories.values():
            self._pause()
            for element in history.open():
                old = not 0 <= wall_ms - element.since_ms < self.settings.lifetime_ms
                if everything or old or (stay is not None and element.number not in stay):
                    self._finish(history, element, wall_ms)
                    history.close(element, wall_ms)
                else:
                    copies.append(history.element(element, wall_ms))
                    self._due(element.since_ms)
        self._ledger.additions.make()
        self._histories = {name: history for name, history in self._histories.items() if history.open()}
        return tuple(copies)

    # --- looking ---

    def open_elements(self) -> Iterator[Element]:
        """Return what is not written yet, as views: use them before the next `take` or `flush`."""
        yield from self._finished
        for history in self._histories.values():
            for element in history.open():
                yield history.element(element, element.opened_ms, view=True)

    def open_records(self) -> Iterator[Record]:
        """Return the records that are not written yet."""
        yield from self._records.values()


def _timestamps(ticks: Words) -> list[int]:
    found: list[int] = (ticks >> np.uint64(COUNTER_BITS)).tolist()
    return found


def _element_bytes(element: Element) -> int:
    held = len(element.bits) if element.bits is not None else 0
    return ELEMENT_BYTES + held + (int(element.ids.nbytes) if element.ids is not None else 0)


def _key(name: _Name) -> HistoryKey:
    if len(name) == 2:
        origin, subscriber = name
        return HistoryKey(Kind.SUBSCRIBER, origin, subscriber=subscriber)
    origin, kind, peer = name
    return HistoryKey(kind, origin, peer)
