"""Holds and release: a pubend's log keeps what some broker still needs, and lets go of the rest.

Broker 1 hosts the pubend; brokers 2 and 3 host subscribers. A hold names the broker that needs the log, so it means the same
whatever links there are.
"""

from __future__ import annotations

import pytest
from tests.core.broker.overlay import Overlay

from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.packets import Hold, HoldConfirmed, pubend_id

HOST, NEAR, FAR = 1, 2, 3
PUBEND = pubend_id(HOST)
GRACE_S = 30.0


def line(config: BrokerConfig | None = None) -> Overlay:
    return Overlay.line(HOST, NEAR, FAR, config=config)


def holds_on_the_pubend(overlay: Overlay, source: int) -> list[int]:
    """Return the ticks that one broker held the log of broker 1 from, in the order it said so."""
    sent = overlay.sent(Hold, source=source)
    return [packet.ticks[PUBEND] for packet in sent if packet.source == source and PUBEND in packet.ticks]


# --- what holds a log ---


def test_a_log_that_nobody_needs_is_released_up_to_its_last_message() -> None:
    """Without subscribers messages go as soon as they are durable."""
    overlay = line()
    publisher = overlay.publisher(at=HOST)
    publisher.publish("a", "b")
    ((_, last),) = overlay.log_with_ticks(HOST)[-1:]
    overlay.run(3.0)
    assert overlay.logged(HOST) == []
    assert overlay.released(HOST) == last


def test_messages_are_kept_for_the_configured_time_though_nobody_needs_them() -> None:
    """`keep_s` lets someone who subscribes later read what was before."""
    overlay = line(BrokerConfig(keep_s=20.0))
    overlay.publisher(at=HOST).publish("a")
    overlay.run(15.0)
    assert overlay.logged(HOST) == ["a"]
    overlay.run(10.0)
    assert overlay.logged(HOST) == []


def test_a_log_is_held_until_the_application_has_done_with_it() -> None:
    """To have received a message is not enough."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=FAR), overlay.publisher(at=HOST)
    publisher.publish("a")
    overlay.run(10.0)
    assert (subscriber.received, overlay.logged(HOST)) == (["a"], ["a"])
    subscriber.acknowledge()
    overlay.run(3.0)
    assert overlay.logged(HOST) == []


def test_the_slowest_of_all_brokers_decides() -> None:
    """A log is released up to the lowest of the holds on it."""
    overlay = line()
    near, far = overlay.subscriber(at=NEAR), overlay.subscriber(at=FAR)
    publisher = overlay.publisher(at=HOST)
    publisher.publish("first")
    near.acknowledge()
    far.acknowledge()
    publisher.publish("second")
    near.acknowledge()
    overlay.run(5.0)
    assert overlay.logged(HOST) == ["second"]


def test_the_slowest_subscription_decides_for_its_broker() -> None:
    """A broker tells one tick per pubend: the lowest that any of its subscriptions needs."""
    overlay = line()
    quick, slow = overlay.subscriber(at=FAR), overlay.subscriber(at=FAR)
    publisher = overlay.publisher(at=HOST)
    publisher.publish("a")
    quick.acknowledge()
    overlay.run(5.0)
    assert holds_on_the_pubend(overlay, FAR)[-1] == slow.starts[PUBEND]
    assert overlay.logged(HOST) == ["a"]


# --- when a hold counts ---


def test_a_subscription_is_not_reported_before_its_hold_is_confirmed() -> None:
    """Else the first messages could be released before they arrive."""
    overlay = line()
    with overlay.keeping_back(HoldConfirmed, to=FAR) as kept:
        subscriber = overlay.subscriber(at=FAR, wait=False)
        overlay.run(0.5)
        assert not subscriber.is_subscribed
    overlay.deliver(*kept)
    overlay.until(lambda: subscriber.is_subscribed)


def test_a_new_hold_is_on_disk_before_it_is_confirmed() -> None:
    """A crash of the pubend's broker does not let go of what it promised to keep."""
    overlay = line()
    overlay.nodes[HOST].writes_finish = False
    subscriber = overlay.subscriber(at=FAR, wait=False)
    overlay.run(2.0)
    assert not subscriber.is_subscribed
    overlay.nodes[HOST].writes_finish = True
    overlay.finish_writes()
    overlay.until(lambda: subscriber.is_subscribed)


def test_a_hold_that_was_not_confirmed_is_told_again() -> None:
    """A lost packet delays a subscription, no more."""
    overlay = line()
    with overlay.losing(HoldConfirmed, to=FAR):
        subscriber = overlay.subscriber(at=FAR, wait=False)
        overlay.run(3.0)
        assert not subscriber.is_subscribed
    overlay.until(lambda: subscriber.is_subscribed)


def test_an_older_hold_that_arrives_late_changes_nothing() -> None:
    """Holds have rising versions; the newest counts in whatever order they come."""
    overlay = line()
    with overlay.keeping_back(Hold, to=HOST) as kept:
        subscriber = overlay.subscriber(at=NEAR, wait=False)
        overlay.run(2.5)
    overlay.deliver(*reversed([each for each in kept if each.source == NEAR]))
    overlay.until(lambda: subscriber.is_subscribed)
    overlay.publisher(at=HOST).publish("a")
    overlay.run(5.0)
    assert overlay.logged(HOST) == ["a"]


# --- what a hold outlives ---


def test_a_lost_link_lets_go_of_nothing() -> None:
    """A hold belongs to a broker, not to a link (trap 5)."""
    overlay = line()
    far, publisher = overlay.subscriber(at=FAR), overlay.publisher(at=HOST)
    overlay.unlink(NEAR, FAR)
    publisher.publish("a")
    overlay.run(100.0)
    assert overlay.logged(HOST) == ["a"]
    overlay.link(NEAR, FAR)
    overlay.until(lambda: far.received == ["a"])
    assert far.gaps == []


def test_a_crash_of_the_pubends_broker_lets_go_of_nothing() -> None:
    """It finds the holds on its disk, before any link is up again."""
    overlay = line()
    far, publisher = overlay.subscriber(at=FAR), overlay.publisher(at=HOST)
    overlay.unlink(HOST, NEAR)
    publisher.publish("a")
    overlay.crash(HOST)
    overlay.restart(HOST)
    overlay.run(100.0)
    assert overlay.logged(HOST) == ["a"]
    overlay.link(HOST, NEAR)
    overlay.until(lambda: far.received == ["a"])


@pytest.mark.parametrize(("away_s", "kept"), [(GRACE_S - 5, ["a"]), (GRACE_S + 5, [])])
def test_the_log_is_held_for_a_while_for_a_client_that_lost_its_connection(away_s: float, kept: list[str]) -> None:
    """A subscription without a name ends with its connection, but its client may come back within the grace."""
    overlay = line(BrokerConfig(subscriber_grace_s=GRACE_S))
    subscriber, publisher = overlay.subscriber(at=FAR), overlay.publisher(at=HOST)
    subscriber.disconnect()
    publisher.publish("a")
    overlay.run(away_s)
    assert overlay.logged(HOST) == kept


@pytest.mark.parametrize(("down_s", "kept"), [(GRACE_S - 5, ["a"]), (GRACE_S + 5, [])])
def test_the_log_is_held_for_a_while_for_the_clients_of_a_broker_that_crashed(down_s: float, kept: list[str]) -> None:
    """After a restart a broker keeps what its former life held until its clients had time to come back."""
    overlay = line(BrokerConfig(subscriber_grace_s=GRACE_S))
    overlay.subscriber(at=FAR)
    publisher = overlay.publisher(at=HOST)
    overlay.run(6.0)  # what must be remembered of it is stored
    overlay.crash(FAR)
    publisher.publish("a")
    overlay.run(2 * GRACE_S)
    assert overlay.logged(HOST) == ["a"]
    overlay.restart(FAR)
    overlay.run(down_s)
    assert overlay.logged(HOST) == kept


def test_a_durable_subscription_holds_the_log_as_long_as_it_exists() -> None:
    """Its client may be away for any time; when it is deleted the log is free."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=FAR, name="orders"), overlay.publisher(at=HOST)
    subscriber.disconnect()
    publisher.publish("a")
    overlay.run(200.0)
    assert overlay.logged(HOST) == ["a"]
    subscriber.come_back()
    subscriber.unsubscribe(forget=True)
    overlay.run(5.0)
    assert overlay.logged(HOST) == []
