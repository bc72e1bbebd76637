"""What waits to be tracked: counted in bytes, and dropped beyond a bound."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from postroad.tracking.tap.orders import Track

log = logging.getLogger("postroad.tracking")

BACKLOG_BYTES_MAX: Final = 64 << 20
ORDER_BYTES: Final = 128  # what an order costs beside its events


class Missed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Events of this time were dropped: the tracks have a hole."""

    entries: int
    from_ms: int
    to_ms: int


def order_bytes(order: Track) -> int:
    return order.size + ORDER_BYTES


class Backlog:
    """Who gives counts `given`, who takes counts `taken`: they may be two threads, or two processes with word between them."""

    def __init__(self, bytes_max: int = BACKLOG_BYTES_MAX) -> None:
        self.bytes_max: Final = bytes_max
        self.given = 0
        self.taken = 0
        self._missed: Missed | None = None  # since the bound was reached

    @property
    def waiting(self) -> int:
        return self.given - self.taken

    def admit(self, order: Track) -> bool:
        """Count an order in, or drop it; the last one of all is never dropped."""
        if self.waiting + order_bytes(order) <= self.bytes_max or order.farewell:
            self.given += order_bytes(order)
            return True
        if self._missed is None:
            log.error("tracking is too slow: some events are not tracked")
        self.drop(order)
        return False

    def drop(self, order: Track) -> None:
        """Drop an order, and remember that."""
        self._miss(order.entries, order.wall_ms)

    def start_over(self, wall_ms: int) -> None:
        """Take in that what was given is gone, at this time: whoever takes next begins to count at nothing."""
        self.given = self.taken = 0
        self._miss(0, wall_ms)

    def _miss(self, entries: int, wall_ms: int) -> None:
        before = self._missed or Missed(0, wall_ms, wall_ms)
        self._missed = Missed(before.entries + entries, before.from_ms, max(before.to_ms, wall_ms))

    @property
    def missed_entries(self) -> int:
        """How many entries were dropped that nobody was told of yet."""
        return 0 if self._missed is None else self._missed.entries

    def pop_missed(self) -> Missed | None:
        """Return what was dropped before the order that was just admitted."""
        missed, self._missed = self._missed, None
        return missed
