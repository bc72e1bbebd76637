"""The highest rate that a broker's CPU was seen to do (section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CPU_LIMIT: Final = 0.9


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
