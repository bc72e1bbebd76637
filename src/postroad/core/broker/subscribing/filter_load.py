"""Limits for long filters, per connection and for the whole broker.

Two costs grow with the length of a filter: memory (about a hundred bytes per character) and, for conditions that the index cannot
decide (see `Filter.conditions`), work for every message. Short filters are not counted, because `subscriptions_max` bounds them:
the first `FREE_CHARACTERS` and the first `FREE_CONDITIONS` of each filter are free.

Invariant: the sums are those of the existing subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId
from postroad.errors import TooManyError

FREE_CHARACTERS: Final = 128
FREE_CONDITIONS: Final = 16
LINK_CHARACTERS_MAX: Final = 1 << 21  # 200 MB
BROKER_CHARACTERS_MAX: Final = 1 << 23
LINK_CONDITIONS_MAX: Final = 1 << 13  # one to two milliseconds for each message
BROKER_CONDITIONS_MAX: Final = 1 << 14


@dataclass(slots=True)
class _Load:
    characters: int = 0
    conditions: int = 0


class FilterLoad:
    """The load of all subscriptions, by connection."""

    def __init__(self) -> None:
        self._all = _Load()
        self._by_link: dict[LinkId, _Load] = {}

    def check(self, link: LinkId, filter_: Filter) -> TooManyError | None:
        """Return the error for a connection that would exceed a limit with one more filter, else None."""
        characters, conditions = _load_of(filter_)
        if not characters and not conditions:
            return None
        own = self._by_link.get(link, _Load())
        if own.characters + characters > LINK_CHARACTERS_MAX or self._all.characters + characters > BROKER_CHARACTERS_MAX:
            return TooManyError(
                f"long filters may have {LINK_CHARACTERS_MAX:,} characters in total for one connection "
                f"and {BROKER_CHARACTERS_MAX:,} for all connections"
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

    def _change(self, link: LinkId, filter_: Filter, sign: int) -> None:
        characters, conditions = _load_of(filter_)
        if not characters and not conditions:
            return
        own = self._by_link.setdefault(link, _Load())
        for load in (own, self._all):
            load.characters += sign * characters
            load.conditions += sign * conditions
        assert own.characters >= 0 <= own.conditions
        if not own.characters and not own.conditions:
            del self._by_link[link]


def _load_of(filter_: Filter) -> tuple[int, int]:
    return max(0, filter_.length - FREE_CHARACTERS), max(0, filter_.conditions - FREE_CONDITIONS)
