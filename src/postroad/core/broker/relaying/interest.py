"""Interest: a set of filters reduced by covering, and the packets that carry it.

A `ReducedSet` counts filters and determines the *maximal* ones, which are sent. The members form a forest: every other filter is
placed below one member that covers it. That member may itself be below another one, so removing a filter affects only those
directly below it.

Cost: an index (see `covering_index`) finds the few members worth comparing, and each search is limited. So the cost of adding a
filter hardly depends on the size of the set. A broad filter takes at most `DEMOTED_MAX` maximal ones below it. When a maximal
filter is removed, a new place is searched for at most `SEARCHED_MAX` of those below it; the others become maximal. So the set is
not always minimal. That is safe: it only makes the interest larger than needed.

Invariants: following `_above` from any member ends at a maximal one, and every step goes to a filter that covers the one before.
A member with nothing below it may be placed below any other. A member with others below it is placed only below a filter that it
certainly does not cover, because otherwise a cycle could form; `covers` is exact for the filters concerned (`_is_exact`).

Bounds: if the maximal filters exceed `INTEREST_MAX`, their texts `INTEREST_BYTES_MAX`, or their conditions that no index decides
`INTEREST_CONDITIONS_MAX`, the set becomes *wide*: it requests everything, until it has shrunk to half the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from postroad.core.filters.filter import Filter
from postroad.core.filters.index.covering_index import CoveringIndex, Search
from postroad.core.protocol.packets import Interest

INTEREST_MAX: Final = 1 << 16
INTEREST_BYTES_MAX: Final = 4 << 20
INTEREST_CONDITIONS_MAX: Final = 1 << 15  # conditions that no index decides: each is evaluated for every message
DEMOTED_MAX: Final = 64
SEARCHED_MAX: Final = 64
COMPARED_MAX: Final = 12  # unsuccessful comparisons in one search
WEIGHT_MAX: Final = 4096  # and their total cost, in parts of filters
PACKET_CHARACTERS: Final = 32 << 10  # of the filters in one packet, unless a single filter is longer
PACKET_FILTERS: Final = 1024
EVERYTHING: Final = Filter("")


class _Below:
    """The filters directly below another one. They move together when that one is removed."""

    __slots__ = ("members", "owner")

    def __init__(self, owner: Filter) -> None:
        self.owner = owner
        self.members: dict[Filter, None] = {}


class ReducedSet:
    """A multiset of filters and its maximal elements, both in insertion order."""

    def __init__(self) -> None:
        self._counts: dict[Filter, int] = {}
        self._maximal: dict[Filter, None] = {}
        self._above: dict[Filter, _Below] = {}  # filter that is not maximal -> the group that it belongs to
        self._below: dict[Filter, _Below] = {}
        self._coverers: CoveringIndex[Filter] = CoveringIndex()  # all members
        self._tops: CoveringIndex[Filter] = CoveringIndex()  # the maximal ones, by their first box
        self._changed: dict[Filter, bool] = {}  # maximal ones added (True) or removed (False) since `take_changes`
        self._bytes = 0  # length of the texts of the maximal ones
        self._conditions = 0  # their conditions that no index decides
        self._wide = False
        self._was_wide = False  # at the last `take_changes`

    # --- members ---

    def add(self, filter_: Filter) -> bool:
        """Add one occurrence of a filter; tell whether it is new."""
        count = self._counts.get(filter_, 0)
        self._counts[filter_] = count + 1
        if count == 0:
            above = self._covering(filter_)
            if above is None:
                self._take_below(filter_)
            self._insert(filter_, above)
            self._coverers.add(filter_, filter_.hulls)
        return count == 0

    def remove(self, filter_: Filter) -> bool:
        """Remove one occurrence of a filter; tell whether it was the last one."""
        count = self._counts[filter_]
        if count > 1:
            self._counts[filter_] = count - 1
            return False
        del self._counts[filter_]
        self._coverers.remove(filter_)
        place = self._above.pop(filter_, None)
        orphans = self._below.pop(filter_, None)
        if place is not None:
            del place.members[filter_]
            if orphans is not None:
                self._hand_over(orphans, place.owner)
            return True
        self._end_maximal(filter_)
        if orphans is not None:
            self._place_again(orphans)
        return True

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, filter_: Filter) -> bool:
        return filter_ in self._counts

    def above(self, filter_: Filter) -> Filter | None:
        """Return the member that covers a member that is not maximal."""
        place = self._above.get(filter_)
        return None if place is None else place.owner

    def covering(self, filter_: Filter) -> Filter | None:
        """Return a member that covers a filter, or None when none was found."""
        return filter_ if filter_ in self._counts else self._covering(filter_)

    # --- what to request ---

    @property
    def is_wide(self) -> bool:
        """Whether a limit is exceeded, so that everything is requested."""
        return self._wide

    def maximal(self) -> tuple[Filter, ...]:
        """Return the filters to request; the one that matches everything, when the set is wide."""
        return (EVERYTHING,) if self._wide else tuple(self._maximal)

    def take_changes(self) -> tuple[list[Filter], list[Filter]] | None:
        """Return the filters to request and those to request no longer since the last call; None to send all in full."""
        changed, self._changed = self._changed, {}
        was_wide, self._was_wide = self._was_wide, self._wide
        if was_wide != self._wide:
            return None
        if self._wide:
            return [], []
        return [f for f, came in changed.items() if came], [f for f, came in changed.items() if not came]

    # --- inside ---

    def _insert(self, filter_: Filter, above: Filter | None) -> None:
        """Place a filter below `above`, or among the maximal ones."""
        if above is not None:
            self._hide(filter_, above)
            return
        self._maximal[filter_] = None
        self._tops.add(filter_, filter_.hulls[:1])
        self._bytes += len(str(filter_).encode())
        self._conditions += filter_.conditions
        self._note(filter_, came=True)

    def _end_maximal(self, filter_: Filter) -> None:
        del self._maximal[filter_]
        self._tops.remove(filter_)
        self._bytes -= len(str(filter_).encode())
        self._conditions -= filter_.conditions
        self._note(filter_, came=False)

    def _note(self, filter_: Filter, *, came: bool) -> None:
        part = 2 if self._wide else 1
        self._wide = (
            len(self._maximal) > INTEREST_MAX // part
            or self._bytes > INTEREST_BYTES_MAX // part
            or self._conditions > INTEREST_CONDITIONS_MAX // part
        )
        if self._changed.get(filter_, came) is not came:
            del self._changed[filter_]
        else:
            self._changed[filter_] = came

    def _hide(self, filter_: Filter, above: Filter) -> None:
        place = self._below.get(above)
        if place is None:
            place = self._below[above] = _Below(above)
        place.members[filter_] = None
        self._above[filter_] = place

    def _hand_over(self, orphans: _Below, owner: Filter) -> None:
        """Place filters below the one that covered their former owner. The smaller group moves, so each filter moves rarely."""
        place = self._below.get(owner, _Below(owner))
        if len(place.members) < len(orphans.members):
            place, orphans = orphans, place
            place.owner = owner
        self._below[owner] = place
        for filter_ in orphans.members:
            place.members[filter_] = None
            self._above[filter_] = place

    def _place_again(self, orphans: _Below) -> None:
        for filter_ in orphans.members:
            del self._above[filter_]
        for number, filter_ in enumerate(orphans.members):
            self._insert(filter_, self._covering(filter_) if number < SEARCHED_MAX else None)

    def _take_below(self, filter_: Filter) -> None:
        """Place maximal filters below a new one that covers them."""
        found: dict[Filter, None] = {}
        search, weight = Search(), WEIGHT_MAX
        for hull in filter_.hulls:
            for top in self._tops.below(hull, search):
                if top in found:
                    continue
                weight -= 1 + filter_.weight * top.weight // 64
                if weight <= 0 or len(found) >= DEMOTED_MAX:
                    break
                if filter_.covers(top):
                    found[top] = None
                else:
                    weight -= WEIGHT_MAX // COMPARED_MAX
        for top in found:
            self._end_maximal(top)
            self._hide(top, filter_)

    def _covering(self, filter_: Filter) -> Filter | None:
        """Find a member that covers a filter and below which it may be placed."""
        hulls = filter_.hulls
        if not hulls:  # it matches nothing: every filter covers it
            return next((member for member in self._maximal if member is not filter_), None)
        has_below = filter_ in self._below
        compared, weight = 0, WEIGHT_MAX
        for member in self._coverers.above(hulls[0], Search()):
            if member is filter_ or member == filter_:
                continue
            weight -= 1 + filter_.weight * member.weight // 64
            compared += 1
            if weight <= 0 or compared > COMPARED_MAX:
                return None
            if member.covers(filter_) and not (has_below and _may_cover(filter_, member)):
                return member
        return None


def _may_cover(filter_: Filter, other: Filter) -> bool:
    return not (_is_exact(filter_) and _is_exact(other)) or filter_.covers(other)


def _is_exact(filter_: Filter) -> bool:
    """Tell whether `covers` between two filters of this kind never returns a false negative."""
    normal = filter_.normal
    return len(normal.boxes) == 1 and normal.is_plain and normal.is_independent


def interest_packets(
    pubend: int, epoch: int, add: Sequence[Filter], remove: Sequence[Filter], *, full: bool
) -> Iterator[Interest]:
    """Split an interest into packets that fit into a frame. All but the last have `more`; together they are one change."""
    adding: list[str] = []
    removing: list[str] = []
    size = 0
    for texts, filters in ((removing, remove), (adding, add)):
        for filter_ in filters:
            text = str(filter_)
            if size and (size + len(text) > PACKET_CHARACTERS or len(adding) + len(removing) >= PACKET_FILTERS):
                yield Interest(pubend, epoch, full, list(adding), list(removing), more=True)
                adding.clear()
                removing.clear()
                full, size = False, 0
            texts.append(text)
            size += len(text) + 8
    yield Interest(pubend, epoch, full, adding, removing)
