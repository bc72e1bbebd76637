"""One history: the elements of one key, of which at most two are open.

The *current* element takes ids until it is full, or its lifetime is over and the tracker closes it. The paper's proof of
Theorem 1 needs two things of element i, in use at the broker from t_i to t_{i+1}: no timestamp above t_{i+1} + T_s, and none
below t_i - T_s - T_j. We do not trust senders with that. A timestamp outside of [t_i - T_s - T_j, now + T_s] becomes a
singleton (section 4.3) and leaves the range alone, so the bound on matching sets holds whatever comes. Elements follow each
other without a break, as in Fig. 2: t_i is when the element before was closed, not when the first id came.

When the current element lists `singletons_max` timestamps, further ids of that kind go to the *late* element, which has a
range over all its ids and takes its turn like the current one: a subscriber that catches up with a million messages needs
ranges, not a million timestamps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from postroad.core.batch import Ids
from postroad.core.tracking.elements import Element, HistoryKey, Masks, Milliseconds
from postroad.core.tracking.settings import TrackingSettings
from postroad.core.tracking.strategies import Keeper, capacity, keeper
from postroad.types import MILLISECONDS_MAX

ELEMENT_BYTES: Final = 1_000  # what an open element takes beside its ids, about

_NOTHING: Final = (MILLISECONDS_MAX + 1, -1)  # an empty range


class OpenElement:
    """The paper's (B, R, S) while it takes ids."""

    __slots__ = ("count", "from_ms", "keeper", "neighbours", "number", "opened_ms", "since_ms", "singletons", "to_ms")

    def __init__(self, number: int, since_ms: int, wall_ms: int, taker: Keeper, neighbours: tuple[int, ...]) -> None:
        self.number: Final = number
        self.since_ms: Final = since_ms  # t_i: when the element before it was closed
        self.opened_ms: Final = wall_ms
        self.keeper: Final = taker
        self.neighbours: Final = neighbours
        self.from_ms, self.to_ms = _NOTHING
        self.singletons: set[int] = set()
        self.count = 0

    @property
    def nbytes(self) -> int:
        return ELEMENT_BYTES + self.keeper.nbytes + 64 * len(self.singletons)

    def add(self, ids: Ids, masks: Masks | None, from_ms: int, to_ms: int) -> None:
        """Take ids whose timestamps lie in [from_ms, to_ms]: section 3.1's ADD(r, t)."""
        self.keeper.add(ids, masks)
        self.count += len(ids)
        self.from_ms = min(self.from_ms, from_ms)
        self.to_ms = max(self.to_ms, to_ms)


Opener = Callable[[], int]  # gives the number of the next element


class History:
    """Elements of one key. Those that are full come back from `add`; the tracker asks for the others in time."""

    __slots__ = ("_capacity", "_next", "_settings", "current", "key", "late", "since_ms")

    def __init__(self, key: HistoryKey, settings: TrackingSettings, since_ms: int, number: Opener) -> None:
        self.key: Final = key
        self._settings: Final = settings
        self._capacity: Final = capacity(settings)
        self._next: Final = number
        self.since_ms = since_ms  # t_i of the current element, or of the one that would be opened
        self.current: OpenElement | None = None
        self.late: OpenElement | None = None

    def open(self) -> tuple[OpenElement, ...]:
        return tuple(element for element in (self.current, self.late) if element is not None)

    def add(
        self,
        ids: Ids,
        timestamps: Milliseconds,
        extent: tuple[int, int],
        wall_ms: int,
        masks: Masks | None = None,
        neighbours: tuple[int, ...] = (),
    ) -> list[OpenElement]:
        """Take ids with their timestamps, whose lowest and highest is the extent; return the elements this closed."""
        current = self.current
        if (
            current is not None
            and extent[0] >= current.since_ms - self._settings.behind_ms
            and extent[1] <= wall_ms + self._settings.skew_tolerance_ms
            and current.count + len(ids) < self._capacity
            and current.neighbours == neighbours
        ):
            current.add(ids, masks, *extent)
            return []
        return self._add_parts(ids, timestamps, wall_ms, masks, neighbours)

    def close(self, which: OpenElement, wall_ms: int) -> None:
        """End an open element; the next one of its kind begins here."""
        if which is self.current:
            self.current, self.since_ms = None, wall_ms
        elif which is self.late:
            self.late = None

    def _add_parts(
        self, ids: Ids, timestamps: Milliseconds, wall_ms: int, masks: Masks | None, neighbours: tuple[int, ...]
    ) -> list[OpenElement]:
        closed: list[OpenElement] = []
        current = self.current
        if current is not None and current.neighbours != neighbours:
            closed.append(current)
            self.close(current, wall_ms)
        start = 0
        while start < len(ids):
            current = self._current(wall_ms, neighbours)
            stop = min(start + self._capacity - current.count, len(ids))
            part = slice(start, stop)
            stray = self._add_part(current, ids[part], timestamps[part], wall_ms, None if masks is None else masks[part])
            if stray is not None:
                late = ids[part][stray], timestamps[part][stray]
                closed += self._add_late(*late, wall_ms, None if masks is None else masks[part][stray], neighbours)
            if current.count >= self._capacity:
                closed.append(current)
                self.close(current, wall_ms)
            start = stop
        if self.current is not None and self.current.count == 0:
            self.current = None
        return closed

    def _current(self, wall_ms: int, neighbours: tuple[int, ...]) -> OpenElement:
        if self.current is None:
            self.current = self._open(self.since_ms, wall_ms, neighbours)
        return self.current

    def _open(self, since_ms: int, wall_ms: int, neighbours: tuple[int, ...]) -> OpenElement:
        return OpenElement(self._next(), since_ms, wall_ms, keeper(self._settings, masked=bool(neighbours)), neighbours)

    def _add_part(
        self, current: OpenElement, ids: Ids, timestamps: Milliseconds, wall_ms: int, masks: Masks | None
    ) -> np.ndarray[tuple[int], np.dtype[np.intp]] | None:
        """Take what fits the range or the singletons; return the rows that fit neither."""
        timely = timestamps >= current.since_ms - self._settings.behind_ms
        timely &= timestamps <= wall_ms + self._settings.skew_tolerance_ms
        if timely.all():
            current.add(ids, masks, int(timestamps.min()), int(timestamps.max()))
            return None
        if timely.any():
            within = timestamps[timely]
            current.add(ids[timely], None if masks is None else masks[timely], int(within.min()), int(within.max()))
        rows = np.flatnonzero(~timely)
        listed = self._list(current, timestamps[rows].tolist())
        single = rows[:listed]
        if listed:
            current.add(ids[single], None if masks is None else masks[single], *_NOTHING)
        return rows[listed:] if listed < len(rows) else None

    def _list(self, current: OpenElement, timestamps: list[int]) -> int:
        """Add timestamps to the singletons as far as there is room; return how many of them are there now."""
        for number, timestamp in enumerate(timestamps):
            if timestamp not in current.singletons:
                if len(current.singletons) >= self._settings.singletons_max:
                    return number
                current.singletons.add(timestamp)
        return len(timestamps)

    def _add_late(
        self, ids: Ids, timestamps: Milliseconds, wall_ms: int, masks: Masks | None, neighbours: tuple[int, ...]
    ) -> list[OpenElement]:
        closed: list[OpenElement] = []
        if self.late is not None and self.late.neighbours != neighbours:
            closed.append(self.late)
            self.late = None
        start = 0
        while start < len(ids):
            if self.late is None:
                self.late = self._open(wall_ms, wall_ms, neighbours)
            stop = min(start + self._capacity - self.late.count, len(ids))
            part = slice(start, stop)
            low, high = int(timestamps[part].min()), int(timestamps[part].max())
            self.late.add(ids[part], None if masks is None else masks[part], low, high)
            if self.late.count >= self._capacity:
                closed.append(self.late)
                self.late = None
            start = stop
        return closed


def element_of(
    key: HistoryKey, incarnation: int, settings: TrackingSettings, opened: OpenElement, wall_ms: int, *, view: bool = False
) -> Element:
    """Return an open element as one that can be written, or, as a view that later ids may change, searched."""
    content = opened.keeper.content(view=view)
    return Element(
        key=key,
        incarnation=incarnation,
        number=opened.number,
        strategy=content.strategy,
        opened_ms=opened.opened_ms,
        closed_ms=wall_ms,
        from_ms=opened.from_ms,
        to_ms=opened.to_ms,
        singletons=np.array(sorted(opened.singletons), np.int64),
        count=opened.count,
        m=settings.m if content.bits is not None else 0,
        k=settings.k if content.bits is not None else 0,
        n=capacity(settings),
        bits=content.bits,
        ids=content.ids,
        neighbours=opened.neighbours,
    )
