"""The lowest acknowledged position in a pubend: what holds its log."""

from __future__ import annotations

from postroad.core.broker.subscribing.edge import LowestPosition
from postroad.core.broker.subscribing.subscription import Progress, Subscription
from postroad.core.filters.filter import Filter

P = 0x100


def test_a_place_that_was_replaced_holds_nothing() -> None:
    """A subscription that begins again in a pubend has a new place: the former one never rises any more."""
    subscription = Subscription(1, 1, 1, Filter(""), "name", {}, {}, earliest=False)
    lowest = LowestPosition()
    former, now = Progress(acknowledged=5), Progress(acknowledged=9)
    for progress in (former, now):
        subscription.progress[P] = progress
        lowest.add(1, progress, {1: subscription})
    assert lowest.find({1: subscription}, P) == 9
    assert lowest.find({}, P) is None
