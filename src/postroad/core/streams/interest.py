"""Interest: sets of filters reduced by covering.

A `ReducedSet` counts filters and keeps the maximal ones: those no other filter of the set covers. Each filter that is not
maximal hangs below one that covers it, so taking a maximal filter out looks again only at what hung below it.

Bounds: above `COVERING_MAX` maximal filters new ones are no longer compared (only equal texts are joined); above
`INTEREST_MAX` the set widens to the filter that matches everything. Both only make the interest larger, which is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from postroad.core.filters.filter import Filter

COVERING_MAX: Final = 256
INTEREST_MAX: Final = 4096
EVERYTHING: Final = Filter("")


class ReducedSet:
    """A multiset of filters and its maximal elements, both in the order they came."""

    def __init__(self) -> None:
        self._counts: dict[Filter, int] = {}
        self._maximal: dict[Filter, dict[Filter, None]] = {}  # maximal -> what it covers and hides
        self._hidden_by: dict[Filter, Filter] = {}

    def add(self, filter_: Filter) -> None:
        count = self._counts.get(filter_, 0)
        self._counts[filter_] = count + 1
        if count == 0:
            self._place(filter_)

    def remove(self, filter_: Filter) -> None:
        count = self._counts[filter_]
        if count > 1:
            self._counts[filter_] = count - 1
            return
        del self._counts[filter_]
        above = self._hidden_by.pop(filter_, None)
        if above is not None:
            del self._maximal[above][filter_]
            return
        orphans = self._maximal.pop(filter_)
        for orphan in orphans:
            del self._hidden_by[orphan]
        for orphan in orphans:
            self._place(orphan)

    def maximal(self) -> tuple[Filter, ...]:
        """Return the filters to ask for; everything, when they are too many."""
        return tuple(self._maximal) if len(self._maximal) <= INTEREST_MAX else (EVERYTHING,)

    def __len__(self) -> int:
        return len(self._counts)

    def _place(self, filter_: Filter) -> None:
        compare = len(self._maximal) <= COVERING_MAX
        if compare:
            for top in self._maximal:
                if top.covers(filter_):
                    self._hide(filter_, top)
                    return
        below = [top for top in self._maximal if filter_.covers(top)] if compare else []
        self._maximal[filter_] = {}
        for top in below:
            for hidden in self._maximal.pop(top):
                self._hide(hidden, filter_)
            self._hide(top, filter_)

    def _hide(self, filter_: Filter, top: Filter) -> None:
        self._maximal[top][filter_] = None
        self._hidden_by[filter_] = top


def covered(filters: Mapping[Filter, None], wanted: Filter) -> bool:
    """Tell whether one of the filters covers `wanted`."""
    return wanted in filters or any(filter_.covers(wanted) for filter_ in filters)


def all_covered(filters: Mapping[Filter, None], wanted: Iterable[Filter]) -> bool:
    return all(covered(filters, one) for one in wanted)
