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
from typing import Final, TypeAlias

import numpy as np
import xxhash

from postroad.core.batch import Ids
from postroad.core.packets import PUBEND_BITS, pubend_broker
from postroad.core.pausing import Pause, no_pause
from postroad.core.tracking.elements import (
    Crash,
    Element,
    Farewell,
    Flush,
    HistoryKey,
    Horizon,
    Kind,
    Links,
    Lost,
    Milliseconds,
    Record,
    Span,
)
from postroad.core.tracking.events import (
    Delivered,
    Deliveries,
    Forwarded,
    Published,
    Routed,
    TrackEvent,
)
from postroad.core.tracking.history import ELEMENT_BYTES, Entry, History, Ledger, OpenElement
from postroad.core.tracking.settings import Strategy, TrackingSettings
from postroad.types import COUNTER_BITS

HISTORIES_MAX: Final = 65_536
RECORDS_MAX: Final = 65_536
NEIGHBOURS_MAX: Final = 10  # of a routing set: a search asks for each of the 2**10 sets

_Tracked: TypeAlias = Published | Routed | Forwarded | Delivered
_Name: TypeAlias = tuple[int, str] | tuple[int, int, int]  # of a history; quicker to look up than its key
_EMPTY: Final = Flush((), (), ())


def omitted(subscriber: str, message_id: bytes, one_in: int) -> bool:
    """Say whether `omit_one_in` leaves this delivery out of the history."""
    return one_in > 0 and xxhash.xxh64_intdigest(subscriber.encode() + message_id) % one_in == 0


class Tracker:
    """Keeps the histories and records of one incarnation of a broker until they are written."""

    def __init__(
        self, broker: int, incarnation: int, settings: TrackingSettings, *, wall_ms: int, pause: Pause = no_pause
    ) -> None:
        self.broker: Final = broker
        self.incarnation: Final = incarnation
        self.settings: Final = settings
        self._routing_sets: Final = settings.routing_sets and settings.strategy is Strategy.BLOOM
        self._pause: Final = pause
        self._ledger: Final = Ledger(broker, incarnation)
        self._histories: dict[_Name, History] = {}
        self._finished: list[Element] = []
        self._finished_bytes = 0
        self._records: dict[tuple[str, int, int], Record] = {}
        self._record_number = 0
        self._flushed_ms = wall_ms
        self._since_ms = wall_ms  # no history that is not here has an element that ended later
        self._due_ms: int | None = None  # when the first open element has lived long enough, at the earliest
        self._changed = False

    @property
    def memory_bytes(self) -> int:
        return self._ledger.open_bytes + self._finished_bytes

    @property
    def histories(self) -> int:
        return len(self._histories)

    # --- taking ---

    def take(self, events: Sequence[TrackEvent | Crash], wall_ms: int) -> None:
        """Take the events of one order, or of many."""
        groups: dict[_Name, list[_Tracked]] = {}
        for event in events:
            match event:
                case Deliveries():
                    for delivered in event.apart():
                        groups.setdefault((delivered.pubend >> PUBEND_BITS, delivered.subscriber), []).append(delivered)
                    self._pause()
                case Delivered():
                    groups.setdefault((event.pubend >> PUBEND_BITS, event.subscriber), []).append(event)
                case Published():
                    groups.setdefault((event.pubend >> PUBEND_BITS, 0, 0), []).append(event)
                case Routed():
                    groups.setdefault((event.pubend >> PUBEND_BITS, 1, event.upstream), []).append(event)
                case Forwarded():
                    groups.setdefault((event.pubend >> PUBEND_BITS, 2, event.neighbour), []).append(event)
                case _:
                    self._record(event)
        if groups and self.settings.strategy is not Strategy.NULL:
            self._enter(groups, wall_ms)

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

    def _enter(self, groups: dict[_Name, list[_Tracked]], wall_ms: int) -> None:
        """Add the ids of all groups. What can be computed for all of them at once, is."""
        if self.settings.omit_one_in:
            groups = {name: self._without_omitted(events) for name, events in groups.items()}
        ids: Ids = np.concatenate([event.ids for events in groups.values() for event in events])
        timestamps = (ids.view(">u8")[1::2].astype(np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)
        start = 0
        for name, events, low, high, stop in _extents(groups, timestamps):
            if stop > start:
                entry = Entry(ids[start:stop], timestamps[start:stop])
                self._add(self._history(name, events[0], wall_ms), events, entry, low, high, wall_ms)
                self._pause()
            start = stop
        self._changed |= len(ids) > 0

    def _add(self, history: History, events: list[_Tracked], entry: Entry, low: int, high: int, wall_ms: int) -> None:
        if self._routing_sets and history.key.kind is Kind.ROUTING:
            self._add_routing_sets(history, events, entry, wall_ms)
            return
        for element in history.add(entry, low, high, wall_ms):
            self._finish(history, element, wall_ms)

    def _add_routing_sets(self, history: History, events: list[_Tracked], entry: Entry, wall_ms: int) -> None:
        """Add event by event, as the neighbours that a mask speaks of may change in between."""
        start = 0
        for event in events:
            part = entry.pick(slice(start, start + len(event.ids)))
            start += len(event.ids)
            assert isinstance(event, Routed)
            if event.masks is not None and 0 < len(event.neighbours) <= NEIGHBOURS_MAX:
                part = part._replace(masks=event.masks, neighbours=event.neighbours)
            if len(part.ids):
                low, high = int(part.timestamps.min()), int(part.timestamps.max())
                for element in history.add(part, low, high, wall_ms):
                    self._finish(history, element, wall_ms)

    def _without_omitted(self, events: list[_Tracked]) -> list[_Tracked]:
        kept: list[_Tracked] = []
        for event in events:
            if isinstance(event, Delivered):
                one_in = self.settings.omit_one_in
                rows = [row for row, item in enumerate(event.ids) if not omitted(event.subscriber, item.tobytes(), one_in)]
                kept.append(Delivered(event.subscriber, event.pubend, event.ids[rows]))
            else:
                kept.append(event)
        return kept

    def _history(self, name: _Name, event: _Tracked, wall_ms: int) -> History:
        history = self._histories.get(name)
        if history is None:
            if len(self._histories) >= HISTORIES_MAX:
                self._close_first(wall_ms)
            history = self._histories[name] = History(_key(event), self.settings, self._since_ms, self._ledger)
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
        done = history.element(element, wall_ms)
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


def _extents(
    groups: dict[_Name, list[_Tracked]], timestamps: Milliseconds
) -> Iterator[tuple[_Name, list[_Tracked], int, int, int]]:
    """Return each group with its lowest and highest timestamp, and where its ids end."""
    sizes = np.array([sum(len(event.ids) for event in events) for events in groups.values()], np.intp)
    stops = np.cumsum(sizes)
    filled = sizes > 0
    lows, highs = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    starts = (stops - sizes)[filled]
    if starts.size:
        lows[filled] = np.minimum.reduceat(timestamps, starts)
        highs[filled] = np.maximum.reduceat(timestamps, starts)
    names = zip(groups.items(), lows.tolist(), highs.tolist(), stops.tolist(), strict=True)
    return ((name, events, low, high, stop) for (name, events), low, high, stop in names)


def _element_bytes(element: Element) -> int:
    held = len(element.bits) if element.bits is not None else 0
    return ELEMENT_BYTES + held + (int(element.ids.nbytes) if element.ids is not None else 0)


def _key(event: _Tracked) -> HistoryKey:
    origin = pubend_broker(event.pubend)
    match event:
        case Delivered():
            return HistoryKey(Kind.SUBSCRIBER, origin, subscriber=event.subscriber)
        case Published():
            return HistoryKey(Kind.PUBLISHER, origin)
        case Routed():
            return HistoryKey(Kind.ROUTING, origin, peer=event.upstream)
        case Forwarded():
            return HistoryKey(Kind.NEIGHBOUR, origin, peer=event.neighbour)
