"""One history: the elements of one key, of which at most two are open.

The *current* element takes ids until it is full, or its lifetime is over and the tracker closes it. The paper's proof of
Theorem 1 needs two things of element i, in use at the broker from t_i to t_{i+1}: no timestamp above t_{i+1} + T_s, and none
below t_i - T_s - T_j. We do not trust senders with that. A timestamp outside of [t_i - T_s - T_j, now + T_s] becomes a
singleton (section 4.3) and leaves the range alone, so the bound on matching sets holds whatever comes. Elements follow each
other without a break, as in Fig. 2: t_i is when the element before was closed, not when the first id came.

When the current element lists `singletons_max` timestamps, further ids of that kind go to the *late* element, which has a
range over all its ids and is closed like the current one: a subscriber that catches up with a million messages needs ranges,
not a million timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories.blooms import Additions, ticks_of
from postroad.tracking.histories.elements import NO_SINGLETONS, Element, HistoryKey, Masks, Milliseconds, RowNumbers
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.histories.strategies import IdKeeper, capacity, keeper
from postroad.types import COUNTER_BITS, MILLISECONDS_MAX

ELEMENT_BYTES: Final = 1_000  # what an element takes in memory beside its ids, about
SINGLETON_BYTES: Final = 100  # and each of its singletons

NO_RANGE: Final = (MILLISECONDS_MAX + 1, -1)

Selection: TypeAlias = slice | np.ndarray[tuple[int], np.dtype[np.intp]]


class Ledger:
    """What the histories of one tracker share: whose they are, numbers and memory of open elements, what blooms wait for."""

    __slots__ = ("additions", "broker", "incarnation", "number", "open_bytes")

    def __init__(self, broker: int, incarnation: int, settings: TrackingSettings, first_number: int = 0) -> None:
        self.broker: Final = broker
        self.incarnation: Final = incarnation
        self.number = first_number
        self.open_bytes = 0
        self.additions: Final = Additions(settings.m, settings.k, broker)

    def next_number(self) -> int:
        self.number += 1
        return self.number


class Entry(NamedTuple):
    """Ids for one history: those of `ids` that stand in `rows`. `masks` and `neighbours` for routing sets only."""

    ids: Ids
    rows: RowNumbers
    masks: Masks | None = None
    neighbours: tuple[int, ...] = ()

    @classmethod
    def of(cls, ids: Ids, masks: Masks | None = None, neighbours: tuple[int, ...] = ()) -> Entry:
        return cls(ids, np.arange(len(ids), dtype=np.uint32), masks, neighbours)

    def timestamps(self) -> Milliseconds:
        return (ticks_of(self.ids[self.rows]) >> np.uint64(COUNTER_BITS)).view(np.int64)

    def pick(self, which: Selection) -> Entry:
        """Return a part."""
        return Entry(self.ids, self.rows[which], None if self.masks is None else self.masks[which], self.neighbours)


class OpenElement:
    """The paper's (B, R, S) while it takes ids."""

    __slots__ = ("count", "from_ms", "keeper", "nbytes", "neighbours", "number", "opened_ms", "since_ms", "singletons", "to_ms")

    def __init__(self, number: int, since_ms: int, wall_ms: int, taker: IdKeeper, neighbours: tuple[int, ...]) -> None:
        self.number: Final = number
        self.since_ms: Final = since_ms  # t_i: when the element before it was closed
        self.opened_ms: Final = wall_ms
        self.keeper: Final = taker
        self.neighbours: Final = neighbours
        self.nbytes = ELEMENT_BYTES
        self.from_ms, self.to_ms = NO_RANGE
        self.singletons: set[int] = set()
        self.count = 0

    def add(self, entry: Entry, from_ms: int, to_ms: int) -> int:
        """Take ids whose timestamps lie in [from_ms, to_ms], as section 3.1's ADD(r, t); return what memory that took."""
        grown = self.keeper.add(entry.ids, entry.rows, entry.masks)
        self.count += len(entry.rows)
        self.from_ms = min(self.from_ms, from_ms)
        self.to_ms = max(self.to_ms, to_ms)
        self.nbytes += grown
        return grown


class History:
    """Elements of one key. Those that are full come back from `add`; the tracker closes the others in time."""

    __slots__ = ("_behind_ms", "_capacity", "_ledger", "_settings", "current", "key", "late", "since_ms")

    def __init__(self, key: HistoryKey, settings: TrackingSettings, since_ms: int, ledger: Ledger) -> None:
        self.key: Final = key
        self._settings: Final = settings
        self._capacity: Final = capacity(settings)
        self._behind_ms: Final = settings.behind_ms
        self._ledger: Final = ledger
        self.since_ms = since_ms  # t_i of the current element, or of the one that comes next
        self.current: OpenElement | None = None
        self.late: OpenElement | None = None

    def open(self) -> tuple[OpenElement, ...]:
        return tuple(element for element in (self.current, self.late) if element is not None)

    @property
    def room(self) -> int:
        """How many ids the current element can take, or the next one."""
        return self._capacity if self.current is None else self._capacity - self.current.count

    def add(self, entry: Entry, from_ms: int, to_ms: int, wall_ms: int, first_ms: int | None = None) -> Sequence[OpenElement]:
        """Take ids, whose timestamps begin at from_ms and end at to_ms; return the elements that are full now.

        They came at wall_ms, or from first_ms on until then.
        """
        current = self.current
        if current is None:
            current = self.current = self._open(self.since_ms, wall_ms if first_ms is None else first_ms, entry.neighbours)
        timely = from_ms >= current.since_ms - self._behind_ms and to_ms <= wall_ms + self._settings.skew_tolerance_ms
        if timely and current.count + len(entry.rows) <= self._capacity and current.neighbours == entry.neighbours:
            self._ledger.open_bytes += current.add(entry, from_ms, to_ms)
            if current.count < self._capacity:
                return ()
            self.close(current, wall_ms)
            return (current,)
        return self._add_parts(entry, wall_ms)

    def close(self, element: OpenElement, wall_ms: int) -> None:
        """End an open element; the next one begins here."""
        self._ledger.open_bytes -= element.nbytes
        if element is self.current:
            self.current, self.since_ms = None, wall_ms
        elif element is self.late:
            self.late = None

    def element(self, opened: OpenElement, wall_ms: int, *, view: bool = False, last: bool = False) -> Element:
        """Return an element of this history as one that can be written, or, as a view that later ids may change, searched.

        The `last` time, what waits to be added to its bits may still do so.
        """
        content = opened.keeper.close() if last else opened.keeper.content(view=view)
        hashed = content.bits is not None
        return Element(
            key=self.key,
            incarnation=self._ledger.incarnation,
            number=opened.number,
            strategy=content.strategy,
            opened_ms=opened.opened_ms,
            closed_ms=wall_ms,
            from_ms=opened.from_ms,
            to_ms=opened.to_ms,
            singletons=np.array(sorted(opened.singletons), np.int64) if opened.singletons else NO_SINGLETONS,
            count=opened.count,
            m=self._settings.m if hashed else 0,
            k=self._settings.k if hashed else 0,
            n=self._capacity,
            bits=content.bits,
            ids=content.ids,
            neighbours=opened.neighbours,
            broker=self._ledger.broker,
        )

    def _open(self, since_ms: int, wall_ms: int, neighbours: tuple[int, ...]) -> OpenElement:
        self._ledger.open_bytes += ELEMENT_BYTES
        taker = keeper(self._settings, self._ledger.additions, masked=bool(neighbours))
        return OpenElement(self._ledger.next_number(), since_ms, wall_ms, taker, neighbours)

    def _add_parts(self, entry: Entry, wall_ms: int) -> list[OpenElement]:
        """Take ids as they fit: never more than the capacity in one element."""
        full: list[OpenElement] = []
        start = 0
        while start < len(entry.rows):
            current = self._fitting(self.current, entry.neighbours, full, wall_ms)
            if current is None:
                current = self.current = self._open(self.since_ms, wall_ms, entry.neighbours)
            stop = start + self._capacity - current.count
            stray = self._add_timely(current, entry.pick(slice(start, stop)), wall_ms)
            if stray is not None:
                full += self._add_late(stray, wall_ms)
            self._fitting(current, entry.neighbours, full, wall_ms)
            start = stop
        if self.current is not None and self.current.count == 0:
            self.close(self.current, self.since_ms)
        return full

    def _fitting(
        self, element: OpenElement | None, neighbours: tuple[int, ...], full: list[OpenElement], wall_ms: int
    ) -> OpenElement | None:
        """Return the element if it can take more ids of this kind, else close it."""
        if element is None or (element.count < self._capacity and element.neighbours == neighbours):
            return element
        if element.count:
            full.append(element)
        self.close(element, wall_ms)
        return None

    def _add_timely(self, current: OpenElement, entry: Entry, wall_ms: int) -> Entry | None:
        """Take what the range or the singletons can; return the rest."""
        timestamps = entry.timestamps()
        timely = timestamps >= current.since_ms - self._behind_ms
        timely &= timestamps <= wall_ms + self._settings.skew_tolerance_ms
        if timely.all():
            self._put(current, entry)
            return None
        if timely.any():
            self._put(current, entry.pick(np.flatnonzero(timely)))
        stray = entry.pick(np.flatnonzero(~timely))
        listed = self._list(current, stray.timestamps())
        if listed.any():
            part = stray.pick(np.flatnonzero(listed))
            self._ledger.open_bytes += current.add(part, *NO_RANGE)
        return None if listed.all() else stray.pick(np.flatnonzero(~listed))

    def _put(self, element: OpenElement, entry: Entry) -> None:
        timestamps = entry.timestamps()
        low, high = int(timestamps.min()), int(timestamps.max())
        self._ledger.open_bytes += element.add(entry, low, high)

    def _list(self, current: OpenElement, timestamps: Milliseconds) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Add timestamps to the singletons, the oldest first, while there is room; say which of them are listed now."""
        room = self._settings.singletons_max - len(current.singletons)
        fresh = [timestamp for timestamp in np.unique(timestamps).tolist() if timestamp not in current.singletons][:room]
        current.singletons.update(fresh)
        current.nbytes += SINGLETON_BYTES * len(fresh)
        self._ledger.open_bytes += SINGLETON_BYTES * len(fresh)
        return np.isin(timestamps, np.array(list(current.singletons), np.int64))

    def _add_late(self, entry: Entry, wall_ms: int) -> list[OpenElement]:
        full: list[OpenElement] = []
        start = 0
        while start < len(entry.rows):
            late = self._fitting(self.late, entry.neighbours, full, wall_ms)
            if late is None:
                late = self.late = self._open(wall_ms, wall_ms, entry.neighbours)
            stop = start + self._capacity - late.count
            self._put(late, entry.pick(slice(start, stop)))
            self._fitting(late, entry.neighbours, full, wall_ms)
            start = stop
        return full
