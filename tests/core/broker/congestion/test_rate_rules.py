"""What both rules do with alerts, and without."""

from __future__ import annotations

import pytest

from postroad.core.broker.congestion.consolidation import Alert
from postroad.core.broker.congestion.doubt_meter import DoubtReading
from postroad.core.broker.congestion.improved_rule import CUT_MOST
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
        self.backlog = 0.0
        self.smoothed = 1.0
        self.rates: list[float] = []

    def run(self, seconds: int) -> None:
        for sequence in range(int(self.now) + 1, int(self.now) + 1 + seconds):
            rate = DEMAND if self.rule.rate is None else min(self.rule.rate, DEMAND)
            self.rates.append(rate)
            self.now += 1.0
            passed = min(self.backlog + rate, self.capacity)
            moved = passed / rate if self.backlog + rate > self.capacity else 1.0
            self.backlog += rate - passed
            self.smoothed += (1 - 0.9**4) * (moved - self.smoothed)  # four samples a second
            self.published.add(round(rate))
            self.published.held_back = self.rule.rate is not None and self.rule.rate < DEMAND
            self.published.sample(self.now, int(self.now * 1000) << COUNTER_BITS)
            self.rule.queried(sequence, self.published, self.now)
            lag_ms = int(1000 * self.backlog / max(self.capacity, 1))
            late = lag_ms > (400 if type(self.rule).__name__ == "ImprovedRule" else 4_000)
            if lag_ms and (self.smoothed < 0.95 or late):
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
    assert way.rates[-1] == DEMAND


def test_the_improved_rule_uses_what_passes() -> None:
    """In steady congestion at least 95% of the capacity is used, with less than two seconds of queue."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=40.0)
    way.run(60)
    way.rates.clear()
    way.run(60)
    assert sum(way.rates) / 60 > 0.95 * 40
    assert way.backlog < 2 * 40


def test_the_improved_rule_cuts_more_where_more_is_lacking() -> None:
    """The step has the size of the congestion."""
    cuts = []
    for slow in (0.95, 0.8, 0.2):
        way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=1e9)
        way.run(5)
        way.rule.alerted(Alert(5, DoubtReading(slow, 500, 3), None), way.published, way.now)
        assert way.rule.rate is not None
        cuts.append(way.rule.rate / DEMAND)
    assert cuts[0] > cuts[1] > cuts[2] == CUT_MOST


def test_a_recovering_broker_at_its_target_costs_nothing() -> None:
    """Alerts of live and of recovering brokers are weighed apart."""
    way = Bottleneck(make_rate_rule(CongestionSettings(rule=Rule.IMPROVED)), capacity=1e9)
    way.run(5)
    way.rule.alerted(Alert(5, None, DoubtReading(2.0, 60_000, 3)), way.published, way.now)
    assert way.rule.rate == pytest.approx(DEMAND)
