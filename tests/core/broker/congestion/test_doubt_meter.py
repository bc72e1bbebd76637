"""How long data waits on the way to a live broker, as its answers to queries say (for the improved rule)."""

from __future__ import annotations

import pytest

from postroad.core.broker.congestion.doubt_meter import DoubtMeter, DoubtReading
from postroad.core.broker.congestion.settings import CongestionSettings
from postroad.types import COUNTER_BITS

LOOK_S = 0.05
ALERT_MS = 200


class Way:
    """Data and silence take so long to a broker; queries overtake them and come at once."""

    def __init__(self, queue_s: float, *, queue_ms_alert: int | None = ALERT_MS) -> None:
        self.meter = DoubtMeter(CongestionSettings(), 3, queue_ms_alert)
        self.queue_s = queue_s
        self.now = 100.0

    @property
    def doubt_horizon(self) -> int:
        return tick(self.now - self.queue_s)

    def query(self) -> DoubtReading | None:
        """Let a second pass, and answer the query at its end."""
        for _ in range(round(1 / LOOK_S)):
            self.now += LOOK_S
            self.meter.sample(self.doubt_horizon, recovering=False, now=self.now)
        return self.meter.queried(tick(self.now), self.doubt_horizon, recovering=False)


def tick(seconds: float) -> int:
    return round(seconds * 1000) << COUNTER_BITS


@pytest.mark.parametrize("queue_s", [0.25, 0.5, 0.9, 1.5, 3.0])
def test_the_lag_is_the_length_of_the_queue(queue_s: float) -> None:
    """Shorter than the time between two queries, or longer."""
    way = Way(queue_s)
    way.query()
    reading = way.query()
    assert reading is not None
    assert reading.lag_ms == pytest.approx(1000 * queue_s, abs=1001 * LOOK_S)


@pytest.mark.parametrize("queue_s", [0.0, 0.1])
def test_a_short_queue_is_no_congestion(queue_s: float) -> None:
    """Below the threshold nobody is slowed down."""
    way = Way(queue_s)
    assert [way.query() for _ in range(10)] == [None] * 10


def test_a_position_that_was_reached_since_the_last_look_counts() -> None:
    """A queue of just a second is not taken for none."""
    way = Way(0.999)
    way.query()
    reading = way.query()
    assert reading is not None
    assert reading.lag_ms >= 900


def test_before_anything_was_measured_there_is_no_alert() -> None:
    """The first query of a pubend comes to a meter that knows no time."""
    meter = DoubtMeter(CongestionSettings(), 3, ALERT_MS)
    assert meter.queried(tick(100.0), tick(99.9), recovering=False) is None
    meter.sample(tick(101.0), recovering=False, now=7.0)
    assert meter.queried(tick(101.0), tick(101.0), recovering=False) is None


def test_without_the_threshold_a_queue_alone_is_no_alert() -> None:
    """The paper's rule looks at the rate and at the larger lag only."""
    way = Way(0.9, queue_ms_alert=None)
    assert [way.query() for _ in range(10)] == [None] * 10
