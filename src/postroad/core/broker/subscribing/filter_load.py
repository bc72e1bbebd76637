"""Limits for long filters, per connection and for the whole broker; all connections of one identity count as one.

Two costs grow with the length of a filter: memory (see `Filter.size`) and, for conditions that the index cannot decide (see
`Filter.conditions`), work for every message. Short filters are not counted, because `subscriptions_max` bounds them: the first
`FREE_BYTES` and the first `FREE_CONDITIONS` of each filter are free.

Invariant: the sums are those of the existing subscriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.rights import Rights
from postroad.errors import TooManyError

FREE_BYTES: Final = 1 << 14
FREE_CONDITIONS: Final = 16
LINK_BYTES_MAX: Final = 1 << 28
BROKER_BYTES_MAX: Final = 1 << 29
LINK_CONDITIONS_MAX: Final = 1 << 13  # one to two milliseconds for each message
BROKER_CONDITIONS_MAX: Final = 1 << 14


@dataclass(slots=True)
class _Load:
    size: int = 0
    conditions: int = 0


class FilterLoad:
    """The load of all subscriptions, by connection."""

    def __init__(self) -> None:
        self._all = _Load()
        self._by_whom: dict[LinkId | str, _Load] = {}
        self.rights: Mapping[LinkId, Rights] = {}

    def check(self, link: LinkId, filter_: Filter) -> TooManyError | None:
        """Return the error for a connection that would exceed a limit with one more filter, else None."""
        size, conditions = _load_of(filter_)
        if not size and not conditions:
            return None
        own = self._by_whom.get(self._whose(link), _Load())
        if own.size + size > LINK_BYTES_MAX or self._all.size + size > BROKER_BYTES_MAX:
            return TooManyError(
                f"long filters may take {LINK_BYTES_MAX:,} bytes of the broker's memory for one connection "
                f"and {BROKER_BYTES_MAX:,} for all connections"
            )
        if own.conditions + conditions > LINK_CONDITIONS_MAX or self._all.conditions + conditions > BROKER_CONDITIONS_MAX:
            return TooManyError(
                f"long filters without indexable conditions may have {LINK_CONDITIONS_MAX:,} conditions for one connection "
                f"and {BROKER_CONDITIONS_MAX:,} for all connections; use IN for alternatives, or several subscriptions"
            )
        return None

    def add(self, link: LinkId, filter_: Filter) -> None:
        self._change(link, filter_, 1)

    def remove(self, link: LinkId, filter_: Filter) -> None:
        self._change(link, filter_, -1)

    def size_of(self, identity: str) -> int:
        """Return the memory of an identity's long filters."""
        return self._by_whom.get(identity, _Load()).size

    def _change(self, link: LinkId, filter_: Filter, sign: int) -> None:
        size, conditions = _load_of(filter_)
        if not size and not conditions:
            return
        whose = self._whose(link)
        own = self._by_whom.setdefault(whose, _Load())
        for load in (own, self._all):
            load.size += sign * size
            load.conditions += sign * conditions
        assert own.size >= 0 <= own.conditions
        if not own.size and not own.conditions:
            del self._by_whom[whose]

    def _whose(self, link: LinkId) -> LinkId | str:
        rights = self.rights.get(link)
        return link if rights is None or not rights.owner else rights.owner


def _load_of(filter_: Filter) -> tuple[int, int]:
    return max(0, filter_.size - FREE_BYTES), max(0, filter_.conditions - FREE_CONDITIONS)
