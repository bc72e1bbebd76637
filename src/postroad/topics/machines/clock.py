"""The hybrid logical clock that stamps subscriptions and puts.

A stamp has the layout of a tick: 48 bits of milliseconds, 16 of counter. Two laws (Kulkarni et al., 2014, in the
one-integer form): `tick` gives a stamp greater than every stamp given or observed before, and not below the physical clock;
`observe` takes over a peer's greater stamp. So whatever is causally later is stamped later, and stamps stay close to the
physical clocks.

Bound: a stamp more than `ahead_ms_max` in front of our physical clock is not taken over. A hostile or broken peer could
otherwise push every clock of the service into the future for good.
"""

from __future__ import annotations

from typing import Final

from postroad.types import COUNTER_BITS, TICK_MAX

AHEAD_MS_MAX: Final = 10_000


def milliseconds(stamp: int) -> int:
    return stamp >> COUNTER_BITS


class HybridClock:
    """`now` is the physical clock in seconds since the epoch, handed in by the caller."""

    __slots__ = ("ahead_ms_max", "last")

    def __init__(self, last: int = 0, *, ahead_ms_max: int = AHEAD_MS_MAX) -> None:
        self.last = last
        self.ahead_ms_max = ahead_ms_max

    def tick(self, now: float) -> int:
        """Give a new stamp, greater than all before."""
        self.last = max(self.last + 1, int(now * 1000) << COUNTER_BITS)
        return self.last

    def acceptable(self, stamp: int, now: float) -> bool:
        return 0 <= stamp <= TICK_MAX and milliseconds(stamp) <= int(now * 1000) + self.ahead_ms_max

    def observe(self, stamp: int, now: float) -> bool:
        """Take over a peer's stamp; False when it is too far ahead to be believed."""
        if not self.acceptable(stamp, now):
            return False
        self.last = max(self.last, stamp)
        return True
