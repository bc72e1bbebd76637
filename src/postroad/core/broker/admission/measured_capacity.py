"""Capacities that a broker measures where its operator has not configured any (section 4.1).

The CPU: the highest rate at which messages came while the CPU was at its limit. Memory: what is
reserved already, and a share of what the machine still has available. The bandwidth of a link is a
fixed value in the paper, so it is configured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CPU_LIMIT: Final = 0.9
MEMORY_SHARE: Final = 0.5  # of what is available; the rest is for messages, caches and other programs


@dataclass(slots=True)
class CpuCapacity:
    """The highest rate at which a broker handled messages while its CPU was at the limit; None before that was seen.

    The paper begins with 0, which would refuse everything before the first overload. Until then we
    limit nothing.
    """

    limit: float = CPU_LIMIT
    millirate: int | None = None

    def sample(self, utilisation: float, millirate: int) -> None:
        """Take what was measured over the last interval."""
        if utilisation >= self.limit and millirate > (self.millirate or 0):
            self.millirate = millirate


def memory_capacity(used: int, available: int) -> int:
    """Return how much memory subscriptions and advertisements may take, with `available` bytes left on the machine."""
    return used + int(available * MEMORY_SHARE)
