"""The tracker of one broker: events in, what has to be durable out.

A driver calls `take` with the events of a turn and, when `wants_flush` says so, `flush`, whose result it must write as one
before the next. Between two flushes everything is in memory, so a crash loses at most what came within T_p. Every unfinished
element with something in it is in every `Flush` that is not empty: `copies` is the whole of what lives on, and replaces the
copies before.

Lifetimes end at flushes only. An element in use for less than max(T_p, T_n) is copied, an older one is closed. Since elements
follow each other without a break, most begin at a flush and end at the next; only those that follow one that was full are
copied.

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
from postroad.core.packets import pubend_broker
from postroad.core.tracking.elements import (
    Element,
    Farewell,
    Flush,
    HistoryKey,
    Horizon,
    Kind,
    Links,
    Lost,
    Masks,
    Record,
    Span,
)
from postroad.core.tracking.events import Delivered, Forwarded, Published, Routed, TrackEvent
from postroad.core.tracking.history import ELEMENT_BYTES, History, OpenElement, element_of
from postroad.core.tracking.settings import Strategy, TrackingSettings
from postroad.types import COUNTER_BITS

HISTORIES_MAX: Final = 65_536
RECORDS_MAX: Final = 65_536
NEIGHBOURS_MAX: Final = 10  # of a routing set: a search asks for each of the 2**10 sets

_Entry: TypeAlias = Published | Routed | Forwarded | Delivered
_EMPTY: Final = Flush((), (), ())


def omitted(subscriber: str, message_id: bytes, one_in: int) -> bool:
    """Say whether `omit_one_in` leaves this delivery out of the history."""
    return one_in > 0 and xxhash.xxh64_intdigest(subscriber.encode() + message_id) % one_in == 0


class Tracker:
    """Keeps the histories and records of one incarnation of a broker until they are written."""

    def __init__(self, broker: int, incarnation: int, settings: TrackingSettings, *, wall_ms: int) -> None:
        self.broker: Final = broker
        self.incarnation: Final = incarnation
        self.settings: Final = settings
        self._histories: dict[tuple[Kind, int, int | str], History] = {}
        self._finished: list[Element] = []
        self._finished_bytes = 0
        self._records: dict[tuple[str, int, int], Record] = {}
        self._record_number = 0
        self._number = 0
        self._flushed_ms = wall_ms
        self._due_ms: int | None = None  # when the first open element has lived long enough, at the earliest
        self._changed = False
        self._open_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return self._open_bytes + self._finished_bytes

    @property
    def histories(self) -> int:
        return len(self._histories)

    # --- taking ---

    def take(self, events: Sequence[TrackEvent], wall_ms: int) -> None:
        """Take the events of a turn, in their order."""
        entries: list[_Entry] = []
        for event in events:
            if isinstance(event, Span | Lost | Links | Horizon):
                self._record(event)
            elif len(event.ids):
                entries.append(event)
        if entries and self.settings.strategy is not Strategy.NULL:
            self._enter(entries, wall_ms)

    def _record(self, record: Span | Lost | Links | Horizon) -> None:
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

    def _enter(self, entries: list[_Entry], wall_ms: int) -> None:
        """Add the ids of all entries. What can be computed for all of them at once, is."""
        ids: Ids = np.concatenate([entry.ids for entry in entries])
        timestamps = (ids.view(">u8")[1::2].astype(np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)
        sizes = np.array([len(entry.ids) for entry in entries], np.intp)
        stops = np.cumsum(sizes)
        starts = stops - sizes
        lows = np.minimum.reduceat(timestamps, starts).tolist()
        highs = np.maximum.reduceat(timestamps, starts).tolist()
        for index, (entry, start, stop) in enumerate(zip(entries, starts.tolist(), stops.tolist(), strict=True)):
            part, when, extent = ids[start:stop], timestamps[start:stop], (lows[index], highs[index])
            if type(entry) is Delivered and self.settings.omit_one_in:
                kept = self._not_omitted(entry.subscriber, part)
                if not kept.any():
                    continue
                part, when = part[kept], when[kept]
                extent = (int(when.min()), int(when.max()))
            history = self._history(entry, wall_ms)
            masks, neighbours = self._routing_set(entry)
            before = _nbytes(history)
            for element in history.add(part, when, extent, wall_ms, masks, neighbours):
                self._finish(history.key, element, wall_ms)
            self._open_bytes += _nbytes(history) - before
        self._changed = True

    def _not_omitted(self, subscriber: str, ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([not omitted(subscriber, item.tobytes(), self.settings.omit_one_in) for item in ids], np.bool_)

    def _routing_set(self, entry: _Entry) -> tuple[Masks | None, tuple[int, ...]]:
        if not isinstance(entry, Routed) or not self.settings.routing_sets or self.settings.strategy is not Strategy.BLOOM:
            return None, ()
        if entry.masks is None or not 0 < len(entry.neighbours) <= NEIGHBOURS_MAX:
            return None, ()
        return entry.masks, entry.neighbours

    def _history(self, entry: _Entry, wall_ms: int) -> History:
        name = _name(entry)
        history = self._histories.get(name)
        if history is None:
            if len(self._histories) >= HISTORIES_MAX:
                self._close_first(wall_ms)
            history = History(_key(entry), self.settings, self._flushed_ms, self._next_number)
            self._histories[name] = history
            due = self._flushed_ms + self.settings.lifetime_ms
            self._due_ms = due if self._due_ms is None else min(self._due_ms, due)
        return history

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _close_first(self, wall_ms: int) -> None:
        """Close the history that was opened first."""
        name = next(iter(self._histories))
        history = self._histories.pop(name)
        for element in history.open():
            self._finish(history.key, element, wall_ms)
            self._open_bytes -= element.nbytes

    def _finish(self, key: HistoryKey, element: OpenElement, wall_ms: int) -> None:
        done = element_of(key, self.incarnation, self.settings, element, wall_ms)
        self._finished.append(done)
        self._finished_bytes += _element_bytes(done)

    # --- flushing ---

    def wants_flush(self, wall_ms: int) -> bool:
        """Say whether `flush` should be called now: T_p is over and there is something to write, or a bound is reached."""
        if self.memory_bytes > self.settings.memory_bytes_max or len(self._records) >= RECORDS_MAX:
            return True
        if wall_ms - self._flushed_ms < self.settings.persistence_ms:
            return False
        return self._changed or (self._due_ms is not None and wall_ms >= self._due_ms)

    def flush(self, wall_ms: int, *, farewell: bool = False) -> Flush:
        """Return what has to be durable now, and forget what is finished."""
        due = self._due_ms is not None and wall_ms >= self._due_ms
        if not farewell and not due and not self._changed:
            return _EMPTY
        spare = self._room() if self.memory_bytes > self.settings.memory_bytes_max else None
        copies = self._settle(wall_ms, spare, everything=farewell)
        records = list(self._records.values())
        if farewell:
            records.append(Farewell(wall_ms))
        flushed = Flush(tuple(self._finished), copies, tuple(records))
        self._finished, self._finished_bytes, self._records = [], 0, {}
        self._flushed_ms, self._changed = wall_ms, False
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

    def _settle(self, wall_ms: int, spare: set[int] | None, *, everything: bool) -> tuple[Element, ...]:
        """Close what has lived long enough, copy the rest; drop histories with nothing open."""
        copies: list[Element] = []
        idle: list[tuple[Kind, int, int | str]] = []
        self._due_ms, self._open_bytes = None, 0
        for name, history in self._histories.items():
            for element in history.open():
                old = wall_ms - element.since_ms >= self.settings.lifetime_ms
                if everything or old or (spare is not None and element.number not in spare):
                    self._finish(history.key, element, wall_ms)
                    history.close(element, wall_ms)
                else:
                    copies.append(element_of(history.key, self.incarnation, self.settings, element, wall_ms))
                    self._open_bytes += element.nbytes
                    due = element.since_ms + self.settings.lifetime_ms
                    self._due_ms = due if self._due_ms is None else min(self._due_ms, due)
            if not history.open():
                idle.append(name)
        for name in idle:
            del self._histories[name]
        return tuple(copies)

    # --- looking ---

    def open_elements(self) -> Iterator[Element]:
        """Return what is not written yet, as views: use them before the next `take` or `flush`."""
        yield from self._finished
        for history in self._histories.values():
            for element in history.open():
                yield element_of(history.key, self.incarnation, self.settings, element, element.opened_ms, view=True)


def _nbytes(history: History) -> int:
    return sum(element.nbytes for element in history.open())


def _element_bytes(element: Element) -> int:
    held = len(element.bits) if element.bits is not None else 0
    return ELEMENT_BYTES + held + (element.ids.nbytes if element.ids is not None else 0)


def _name(entry: _Entry) -> tuple[Kind, int, int | str]:
    """Return what tells histories apart; cheaper to look up than a `HistoryKey`."""
    match entry:
        case Delivered():
            return Kind.SUBSCRIBER, pubend_broker(entry.pubend), entry.subscriber
        case Published():
            return Kind.PUBLISHER, pubend_broker(entry.pubend), 0
        case Routed():
            return Kind.ROUTING, pubend_broker(entry.pubend), entry.upstream
        case Forwarded():
            return Kind.NEIGHBOUR, pubend_broker(entry.pubend), entry.neighbour


def _key(entry: _Entry) -> HistoryKey:
    origin = pubend_broker(entry.pubend)
    match entry:
        case Delivered():
            return HistoryKey(Kind.SUBSCRIBER, origin, subscriber=entry.subscriber)
        case Published():
            return HistoryKey(Kind.PUBLISHER, origin)
        case Routed():
            return HistoryKey(Kind.ROUTING, origin, peer=entry.upstream)
        case Forwarded():
            return HistoryKey(Kind.NEIGHBOUR, origin, peer=entry.neighbour)
