"""When a request is admitted: the criteria of section 4.3, and the highest rate a CPU was seen to do (section 4.1).

`full` admits a subscription if no broker of its path refuses: a hard guarantee. `percentage` admits it as long as not more
than a share of the brokers refuse; more of the capacity is used then, and less is guaranteed. `off` asks nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroad.errors import InvalidValueError

PERCENTAGE: Final = 20.0
CPU_LIMIT: Final = 0.9


class Policy(StrEnum):
    OFF = "off"
    FULL = "full"
    PERCENTAGE = "percentage"


@dataclass(frozen=True, slots=True)
class Criterion:
    """How many brokers may refuse. `percentage` is the share of them in percent; it counts for that policy only."""

    policy: Policy = Policy.OFF
    percentage: float = PERCENTAGE

    def __post_init__(self) -> None:
        if not 0 <= self.percentage <= 100:
            raise InvalidValueError(f"the share of brokers that may refuse is between 0 and 100 percent, not {self.percentage}")

    def admits(self, verdicts: int, refusals: int) -> bool:
        """Decide by the number of verdicts and how many of them refuse."""
        if self.policy is Policy.OFF:
            return True
        if self.policy is Policy.FULL:
            return refusals == 0
        return refusals * 100 <= self.percentage * verdicts


@dataclass(slots=True)
class CpuCapacity:
    """The highest rate at which a broker handled messages while its CPU was at the limit; None before that was seen.

    The paper begins with 0, which would refuse everything before the first overload. Until then we limit nothing.
    """

    limit: float = CPU_LIMIT
    millirate: int | None = None

    def sample(self, utilisation: float, millirate: int) -> None:
        """Take what was measured over the last interval."""
        if utilisation >= self.limit and millirate > (self.millirate or 0):
            self.millirate = millirate
