"""250 subscribers with overlapping filters behind one broker that recovers: what they missed comes over the link once.

Broker 1 hosts the publisher, 2 relays with a small cache, 3 has the subscribers. The link between 1 and 2 is the bottleneck.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from experiments.congestion.layouts import message_bytes
from experiments.congestion.load import GROUPS, NoHistory, Reader, Writer, client

from postroad.core.batch.batch import Batch
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.core.filters.filter import Filter
from postroad.sim.network import Cable, CableProfile
from postroad.sim.overlay import Overlay
from postroad.tracking.tap.tracked_broker import TrackedConfig

SUBSCRIBERS = 250
WIDTH = 20  # groups that a subscriber wants, of `GROUPS`
AWAY_S = 12.0
LIMIT_BYTES_PER_S = 12_000.0
RECOVERY_S_MAX = 200.0


class Crowd:
    """The overlay, its load, and the crowd of subscribers."""

    def __init__(self, rule: Rule) -> None:
        config = TrackedConfig(congestion=CongestionSettings(rule=rule, receive_window_ms=4_000, lag_ms_max=2_000))
        self.overlay = Overlay(1, config=config, history=NoHistory())
        self.overlay.broker(1)
        self.overlay.broker(2, config=replace(config, cache_bytes=4_000))
        self.overlay.broker(3)
        self.bottleneck = self.overlay.link(2, 1, CableProfile(bytes_per_s=LIMIT_BYTES_PER_S * 10, backlog_bytes_max=100_000))
        self.last = self.overlay.link(3, 2, CableProfile(bytes_per_s=LIMIT_BYTES_PER_S * 10, backlog_bytes_max=100_000))
        self.overlay.run(1.0)
        self.reader = cast("Reader", client(self.overlay, Reader, "crowd", 3))
        self.filters = [self._wanted(n) for n in range(SUBSCRIBERS)]
        for n, text in enumerate(self.filters):
            self.reader.follow(text, subscription=f"s{n}")
        self.overlay.run(6.0)
        self.writer = cast("Writer", client(self.overlay, Writer, "writer", 1))
        self.overlay.run(7.0)
        self.writer.begin()
        self.overlay.run(10.0)

    @staticmethod
    def _wanted(number: int) -> str:
        low = number % (GROUPS - WIDTH + 1)
        return f"group >= {low} AND group < {low + WIDTH}"

    @property
    def log(self) -> list[Batch]:
        (log,) = self.overlay.node(1).disk.logs.values()
        return log.batches

    def rows(self) -> int:
        return sum(len(batch) for batch in self.log)

    def due(self) -> int:
        """Return how many deliveries what is logged makes."""
        filters = [Filter(text) for text in self.filters]
        return sum(len(batch.filter(filter_.evaluate(batch))) for batch in self.log for filter_ in filters)

    def until_all_is_delivered(self) -> None:
        """Stop the publisher, and let everything arrive."""
        self.writer.stopped = True
        self.overlay.run(self.overlay.world.now + 0.5)
        due, until = self.due(), self.overlay.world.now + RECOVERY_S_MAX
        while self.reader.delivered < due:
            assert self.overlay.world.now < until, f"{self.reader.delivered} of {due} deliveries after {RECOVERY_S_MAX:g} s"
            self.overlay.run(self.overlay.world.now + 1.0)
        assert self.reader.delivered == due
        assert self.overlay.failure is None


def sent(cable: Cable, broker: int) -> int:
    """Return how many bytes a broker has sent over a cable."""
    assert cable.connection is not None
    ends = (cable.connection.a, cable.connection.b)
    return next(end.sent for end in ends if getattr(end.peer, "broker", 0) == broker)


@pytest.mark.parametrize("rule", [Rule.PAPER, Rule.IMPROVED])
@pytest.mark.parametrize("lost", ["link", "broker"])
def test_the_bottleneck_carries_what_was_missed_once(rule: Rule, lost: str) -> None:
    """All bytes of recovery, requests and answers, are at most 1.1 times those of the missed messages."""
    crowd = Crowd(rule)
    before, rows = crowd.overlay.world.now, crowd.rows()
    if lost == "link":
        crowd.last.cut()
    else:
        crowd.overlay.node(3).crash()
    crowd.overlay.run(before + AWAY_S)
    crowd.writer.stopped = True
    crowd.overlay.run(before + AWAY_S + 2.0)
    missed = (crowd.rows() - rows) * message_bytes()
    crowd.bottleneck.squeeze(0.1)
    carried = sent(crowd.bottleneck, 1)
    if lost == "link":
        crowd.last.heal()
    else:
        crowd.overlay.node(3).start()
    crowd.until_all_is_delivered()
    assert missed > 100_000
    assert sent(crowd.bottleneck, 1) - carried <= 1.1 * missed
