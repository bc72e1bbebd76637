"""The interest of a child of a stream: the active one, and the changes that wait for our own interest to become active.

A child may have many filters and change one at a time. So a pending epoch is stored as the difference to the one before it, never
as the whole set.

An added filter counts in our own interest immediately. A removed one counts until the epoch without it is active. Otherwise a
label could promise silence for a filter that we no longer request. `counted` yields the filters that count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from postroad.core.broker.relaying.interest import EVERYTHING
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Interest
from postroad.core.protocol.ranges import RangeSet

FILTERS_MAX: Final = 1 << 17
"""Filters of one child in one stream. A child with more is sent everything, until it sends its interest in full again."""

UNSENT_RANGES_MAX: Final = 4096


@dataclass(slots=True)
class Change:
    """An epoch that is not active yet, as the difference to the one before."""

    epoch: int
    add: dict[Filter, None]
    remove: dict[Filter, None]
    label: int | None = None  # the epoch of our interest that is complete for it; None: not known yet


@dataclass(slots=True)
class Child:
    """A neighbour that has sent us its interest in a stream."""

    link: LinkId
    active: dict[Filter, None] = field(default_factory=dict)
    epoch: int = 0  # of `active`; 0: nothing is active yet
    included_in: int = 0  # the label that knowledge must have to be complete for `active`
    latest: dict[Filter, None] = field(default_factory=dict)  # `active` with all of `pending` applied
    pending: deque[Change] = field(default_factory=deque)
    told: int = 0  # the child was sent our knowledge up to here
    quiet: int = 0  # at least `told`: up to here there is only silence that was not sent yet
    unsent: RangeSet = field(default_factory=RangeSet)  # up to `told`: what it was not sent, or requested again and we lack
    coming: dict[Filter, None] | None = None  # the filters so far of a full interest that comes in several packets
    change: Change | None = None  # the change so far of an interest that comes in several packets

    def take(self, interest: Interest, filters: Callable[[str], Filter]) -> Change | None:
        """Add a packet of an interest; after its last packet, return the change to `latest`."""
        change = self.change if self.change is not None else Change(interest.epoch, {}, {})
        self.change, change.epoch = change, interest.epoch
        if interest.full:
            self.coming = {}
        for text in interest.remove:
            self._remove(change, filters(text))
        for text in interest.add:
            if self.coming is not None:
                self.coming[filters(text)] = None
            else:
                self._add(change, filters(text))
        if self.coming is not None and len(self.coming) > FILTERS_MAX:
            self.coming = {EVERYTHING: None}
        if self.coming is not None and not interest.more:
            self._become(self.coming, change)
        if len(self.latest) > FILTERS_MAX:
            self._add(change, EVERYTHING)
        if interest.more:
            return None
        self.change = self.coming = None
        return change

    def counted(self) -> Iterator[Filter]:
        """Yield the filters that count in our own interest, each as often as it counts."""
        yield from self.active
        for change in self.pending:
            yield from change.add

    def owe(self, lo: int, hi: int) -> None:
        """Send (lo, hi] when it becomes known, although it lies before what was sent last."""
        if len(self.unsent) >= UNSENT_RANGES_MAX:
            self.unsent = RangeSet()  # it requests again what it still lacks
        self.unsent.add(lo, hi)

    def is_owed(self, lo: int, hi: int) -> bool:
        """Tell whether a part that became known is to be sent, which settles it; what was sent before is not sent again."""
        if next(self.unsent.intersect(lo, hi), None) is None:
            return False
        self.unsent.remove(lo, hi)
        return True

    def suspend(self) -> None:
        """Make nothing active: the active filters become the first pending change."""
        if self.epoch:
            self.pending.appendleft(Change(self.epoch, self.active, {}))
        self.active, self.epoch, self.included_in = {}, 0, 0
        for change in self.pending:
            change.label = None

    def _become(self, filters: dict[Filter, None], change: Change) -> None:
        for filter_ in [each for each in self.latest if each not in filters]:
            self._remove(change, filter_)
        for filter_ in filters:
            self._add(change, filter_)

    def _add(self, change: Change, filter_: Filter) -> None:
        if filter_ in self.latest or (EVERYTHING in self.latest and len(self.latest) >= FILTERS_MAX):
            return
        self.latest[filter_] = None
        if filter_ in change.remove:
            del change.remove[filter_]
        else:
            change.add[filter_] = None

    def _remove(self, change: Change, filter_: Filter) -> None:
        if filter_ not in self.latest:
            return
        del self.latest[filter_]
        if filter_ in change.add:
            del change.add[filter_]
        else:
            change.remove[filter_] = None
