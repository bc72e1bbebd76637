"""Bound queues, fed by the brokers of an overlay: each matching message once, whichever of them feeds."""

from __future__ import annotations

from functools import partial

from postroad.sim.history import Delivered, Gapped
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything


def two_feeders() -> Overlay:
    """Brokers 1 and 2 feed; messages are published at broker 3."""
    overlay = Overlay(1)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    for number in (1, 2):
        overlay.queues.feed_from(overlay.node(number))
    text = overlay.filter(everything())
    overlay.at(0.5, partial(overlay.queues.bind, text))
    overlay.client("writer", 3)
    return overlay


def publish(overlay: Overlay, count: int, begin: float, end: float) -> None:
    for number in range(count):
        when = begin + (end - begin) * number / count
        overlay.at(when, partial(overlay.clients["writer"].publish, {"n": number}, f"{when}".encode()))


def fed(overlay: Overlay) -> int:
    return sum(isinstance(event, Delivered) and event.subscription == "queue1" for event in overlay.history)


def test_another_broker_goes_on_when_the_one_that_feeds_crashes() -> None:
    """The cursors of the database say where; what was on its way to the database comes again or is there."""
    overlay = two_feeders()
    publish(overlay, 200, 3.0, 12.0)
    for step in range(4):
        node = overlay.node(1 + step % 2)
        overlay.at(4.0 + 2 * step, node.crash)
        overlay.at(5.5 + 2 * step, node.start)
    overlay.run(13.0)
    overlay.heal()
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    assert fed(overlay) == 200


def test_a_paused_feeder_that_goes_on_puts_nothing_twice() -> None:
    """Meanwhile another one has taken its claim and fed what it had under way."""
    overlay = two_feeders()
    publish(overlay, 100, 3.0, 8.0)
    for number in (1, 2):
        overlay.at(3.0 + 2 * number, partial(overlay.node(number).pause, 4.0))
    overlay.run(12.0)
    overlay.heal()
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    assert fed(overlay) == 100


def test_a_queue_stays_with_its_broker_while_nothing_comes() -> None:
    """The claim was once renewed with messages only, so that brokers took a quiet queue from each other all the time."""
    overlay = two_feeders()
    publish(overlay, 3, 3.0, 4.0)
    overlay.run(5.0)
    before = [dict(feeder.clients) for feeder in overlay.queues.feeders]
    assert sum(map(len, before)) == 1
    for second in range(6, 16):
        overlay.run(float(second))
        assert [dict(feeder.clients) for feeder in overlay.queues.feeders] == before
    assert overlay.settle(10.0)
    assert overlay.violations() == []
    assert fed(overlay) == 3


def test_a_queue_without_a_cursor_is_told_a_gap_when_its_home_is_retired() -> None:
    """Only its home knew where it began. Nothing was put into the queue yet, so the database knows no place either."""
    overlay = two_feeders()
    overlay.link(1, 3)
    publish(overlay, 50, 6.0, 9.0)
    overlay.run(3.0)
    (home,) = [feeder for feeder in overlay.queues.feeders if feeder.clients]
    overlay.retire(home.node.broker)
    overlay.run(12.0)
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    assert any(isinstance(event, Gapped) and not event.lo for event in overlay.history)
    assert 0 < fed(overlay) <= 50


def test_queues_go_on_elsewhere_when_the_only_broker_that_feeds_is_retired() -> None:
    """Another one feeds from the cursors of the database. The hold went with the home: what was released meanwhile is a gap."""
    overlay = Overlay(1)
    overlay.brokers(1, 2, 3)
    for one, other in ((1, 2), (2, 3), (1, 3)):
        overlay.link(one, other)
    overlay.queues.feed_from(overlay.node(1))
    text = overlay.filter(everything())
    overlay.at(0.5, partial(overlay.queues.bind, text))
    overlay.client("writer", 3)
    publish(overlay, 40, 3.0, 5.5)
    overlay.at(6.0, partial(overlay.retire, 1))
    publish(overlay, 40, 9.0, 11.0)
    overlay.run(13.0)
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    assert fed(overlay) == 80
