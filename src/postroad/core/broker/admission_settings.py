"""When a subscription is admitted, and what an operator may set of admission control.

`full` admits a subscription if no broker of its path refuses: a hard guarantee. `percentage` admits
it as long as not more than a share of the brokers refuse; more of the capacity is used then, and
less is guaranteed. `off` asks nobody (section 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroad.errors import InvalidValueError

PERCENTAGE: Final = 20.0


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

    @classmethod
    def parse(cls, text: str) -> Criterion:
        """Read `off`, `full`, `percentage`, or a share such as `20%`."""
        if text.endswith("%"):
            try:
                return cls(Policy.PERCENTAGE, float(text[:-1]))
            except ValueError:
                text = repr(text)
        elif text in set(Policy):
            return cls(Policy(text))
        raise InvalidValueError(
            f"an admission criterion is off, full, or the share of brokers that may refuse, like 20%; not {text}"
        )

    def __str__(self) -> str:
        return f"{self.percentage:g}%" if self.policy is Policy.PERCENTAGE else self.policy.value

    def admits(self, verdicts: int, refusals: int) -> bool:
        """Decide by the number of verdicts and how many of them refuse."""
        return refusals <= self.refusals_allowed(verdicts)

    def refusals_allowed(self, verdicts: int) -> int:
        """Return how many of so many brokers may refuse."""
        match self.policy:
            case Policy.OFF:
                return verdicts
            case Policy.FULL:
                return 0
            case Policy.PERCENTAGE:
                return int(self.percentage * verdicts // 100)


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """The settings of one broker; rates in messages per second.

    A limit of None is no limit; those of the CPU and of the memory are then measured.
    """

    criterion: Criterion = Criterion()
    overridable: bool = True  # a subscription may bring its own criterion
    verdict_s: float = 3.0  # how long a request waits for verdicts; who is silent then, refuses
    cpu_rate: float | None = None
    link_rate: float | None = None  # of each link without an entry in `link_rates`
    link_rates: tuple[tuple[int, float], ...] = ()  # (neighbour, rate)
    memory_bytes: int | None = None
    default_rate: float = 1_000.0  # of a publisher that declared none and of which nothing is known
    burst_s: float = 1.0  # a publisher that was quiet may send so many seconds of its rate at once
    publisher_rates: tuple[tuple[int, float], ...] = ()  # (publisher, rate), from a rate profile
    estimate: bool = False  # sample what is published, and reserve what a filter is expected to bring instead of the most
