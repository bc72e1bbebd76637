"""What long filters cost the broker, and how much of it one connection and all of them may cause.

Two things grow with the length of a filter: the memory it takes, about a hundred bytes for each character; and, where no index
decides it (see `Filter.conditions`), the work for every message. Short filters do not count, since `subscriptions_max` bounds
those: the first `FREE_CHARACTERS` of each are free, and so are its first `FREE_CONDITIONS`.

Invariant: the sums are those of the subscriptions that exist.
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
        """Return why a connection may not have one more filter; None when it may."""
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
