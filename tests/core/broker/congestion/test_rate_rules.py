"""What both rules do with alerts, and without."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from postroad.core.broker.congestion.consolidation import Alert
from postroad.core.broker.congestion.doubt_meter import DoubtReading
from postroad.core.broker.congestion.improved_rule import QUEUE_MS_ALERT
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.rate_rule import RateRule, make_rate_rule
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.types import COUNTER_BITS

DEMAND = 125.0


class Bottleneck:
    """A pubend before a link that passes so many messages per second; whoever is behind it answers queries as a broker does."""

    def __init__(self, rule: RateRule, capacity: float) -> None:
        self.rule = rule
        self.capacity = capacity
        self.published = PublishedCount()
        self.now = 0.0
        self.total = 0.0
        self.arrived = 0.0  # messages that came through
        self.smoothed = 1.0
        self.totals = [0.0]  # by second
        self.rates: list[float] = []

    def published_at(self, total: float) -> float:
        """Return when so many messages had been published."""
        second = bisect_left(self.totals, total)
        before = self.totals[second - 1] if second else 0.0
        return second - 1 + (total - before) / (self.totals[second] - before) if second else 0.0

    @property
    def backlog(self) -> float:
        return self.total - self.arrived

    def run(self, seconds: int) -> None:
        for sequence in range(int(self.now) + 1, int(self.now) + 1 + seconds):
            rate = (DEMAND if self.rule.rate is None else min(self.rule.rate, DEMAND)) * (0.99 if sequence % 2 else 1.0)
            self.rates.append(rate)
            waited_s = self.backlog / self.capacity  # until what was published before the query before came
            self.now += 1.0
            self.published.add(round(self.total + rate) - round(self.total))
            self.total += rate
            before, self.arrived = self.arrived, min(self.arrived + self.capacity, self.total)
            self.smoothed += (1 - 0.9**4) * (min((self.arrived - before) / rate, 1.0) - self.smoothed)  # four samples a second
            self.published.held_back = self.rule.rate is not None and self.rule.rate < DEMAND
            self.published.sample(self.now, int(self.now * 1000) << COUNTER_BITS)
            self.rule.queried(sequence, self.published, self.now)
            self.totals.append(self.total)
            lag_ms = int(1000 * (waited_s if waited_s <= 1 else self.now - self.published_at(self.arrived)))
            if type(self.rule).__name__ == "ImprovedRule":
                is_congested = lag_ms >= QUEUE_MS_ALERT
            else:
                is_congested = lag_ms > 4_000 or (lag_ms > 1_000 and self.smoothed < 0.95)
            if is_congested:
                self.rule.alerted(Alert(sequence, DoubtReading(self.smoothed, lag_ms, 3), None), self.published, self.now)


def rules() -> list[RateRule]:
    return [make_rate_rule(CongestionSettings(rule=rule)) for rule in (Rule.PAPER, Rule.IMPROVED)]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: type(rule).__name__)
def test_a_rate_follows_the_bottleneck_down_and_comes_back(rule: RateRule) -> None:
    """It settles near what passes, keeps the queue bounded, and ends when the bottleneck has gone."""
    way = Bottleneck(rule, capacity=40.0)
    way.run(120)
    late = way.rates[-60:]
    assert 0.6 * 40 < sum(late) / len(late) <= 1.05 * 40
    assert way.backlog < 40 * 12
    way.capacity = 1_000.0
    way.run(120)
    assert way.rates[-2:] == [0.99 * DEMAND, DEMAND]


def test_the_improved_rule_uses_what_passes() -> None:
    """In steady congestion at least 95% of the capacity is used, with less than two seconds of queue."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=40.0)
    way.run(60)
    way.rates.clear()
    way.run(60)
    assert sum(way.rates) / 60 > 0.95 * 40
    assert way.backlog < 2 * 40


@pytest.mark.parametrize("capacity", [100.0, 40.0, 20.0])
def test_the_improved_rule_measures_the_bottleneck_within_seconds(capacity: float) -> None:
    """It goes to what passes, however much that is less than before, and is near it twenty seconds later."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=1e9)
    way.run(5)
    way.capacity = capacity
    way.run(40)
    assert way.rates[-20:] == pytest.approx([capacity] * 20, rel=0.15)


def test_the_improved_rule_takes_what_is_free_within_seconds() -> None:
    """A bottleneck that passes more again is used again, and one that has gone is forgotten."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=40.0)
    way.run(30)
    way.capacity = 100.0
    way.run(15)
    assert way.rates[-1] == pytest.approx(100.0, rel=0.2)
    way.capacity = 1e9
    way.run(15)
    assert way.rule.rate is None


def test_a_broker_that_stands_still_for_a_moment_costs_a_part_of_the_rate_only() -> None:
    """Nothing was delivered between two queries: what a bottleneck passes is measured by more than one alert."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=1e9)
    way.run(5)
    way.capacity = 0.001
    way.run(2)
    assert way.rule.rate == pytest.approx(DEMAND / 4, rel=0.02)
    way.capacity = 1e9
    way.run(12)
    assert way.rates[-1] == pytest.approx(DEMAND, rel=0.02)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: type(rule).__name__)
def test_who_published_nothing_is_not_slowed_down(rule: RateRule) -> None:
    """A broker that is behind when the first message comes is no reason to hold that one back."""
    way = Bottleneck(rule, capacity=40.0)
    way.published.sample(1.0, 1000 << COUNTER_BITS)
    way.published.sample(2.0, 2000 << COUNTER_BITS)
    rule.queried(1, way.published, 2.0)
    rule.alerted(Alert(1, DoubtReading(0.5, 5_000, 3), None), way.published, 2.0)
    assert rule.rate is None


def test_a_recovering_broker_at_its_target_costs_nothing() -> None:
    """Alerts of live and of recovering brokers are weighed apart."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=1e9)
    way.run(5)
    way.rule.alerted(Alert(5, None, DoubtReading(2.0, 60_000, 3)), way.published, way.now)
    assert way.rule.rate == pytest.approx(DEMAND, rel=0.02)


def test_what_is_left_to_a_recovering_broker_is_not_taken_by_new_messages() -> None:
    """Its reading is missing in an alert that others sent first; a live broker finds the bottleneck free, and it is not."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=1e9)
    way.run(5)
    for sequence in (5, 6, 7):
        way.rule.alerted(Alert(sequence, None, DoubtReading(0.3, 3_000, 9)), way.published, way.now)
    given_way = way.rule.rate
    assert given_way is not None
    assert given_way < DEMAND / 4
    way.rule.alerted(Alert(8, DoubtReading(1.0, 300, 3), None), way.published, way.now + 1)
    assert (way.rule.rate or DEMAND) <= given_way
