"""The rate of a pubend under congestion: what every rule sees and says, and the settings' choice among the rules.

A rule is asked by `feedback` and asks nobody. It holds the rate of new messages of one pubend, None while it is not throttled.
To add a rule, write a module with one class like `paper_rule`, and name it in `make_rate_rule` and `settings.Rule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from postroad.core.broker.congestion.consolidation import Alert
from postroad.core.broker.congestion.improved_rule import ImprovedRule
from postroad.core.broker.congestion.paper_rule import PaperRule
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.settings import CongestionSettings, Rule


class RateRule(Protocol):
    """Decides the rate of one pubend, in messages per second."""

    rate: float | None  # None: not throttled

    def queried(self, sequence: int, published: PublishedCount, now: float) -> None:
        """A query was sent; this is what was published up to now. Also the time to raise the rate."""

    def alerted(self, alert: Alert, published: PublishedCount, now: float) -> None:
        """The answer to a query has come: somebody is congested."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """What a publisher is told: to what rate its pubend is held, since when (the broker's clock), and who is the reason."""

    rate: float
    since_ms: int
    broker: int


def make_rate_rule(settings: CongestionSettings) -> RateRule:
    return ImprovedRule(settings) if settings.rule is Rule.IMPROVED else PaperRule(settings)
