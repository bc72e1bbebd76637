"""From `Subscribe` to `Subscribed`: what must be so before a client is told that its subscription is active.

Broker 1 hosts the pubend, broker 2 relays, the clients are at broker 3.
"""

from __future__ import annotations

import pytest
from tests.core.broker.overlay import Overlay, Subscriber

from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.packets import (
    CatchUp,
    HoldConfirmed,
    Interest,
    InterestActive,
    Packet,
    Started,
    Subscribe,
    Subscribed,
    pubend_id,
)
from postroad.errors import (
    DuplicateHandleError,
    DurableBusyError,
    DurableFilterError,
    FilterSyntaxError,
    PostroadError,
    TooManyError,
    UnknownHandleError,
)

HOST, RELAY, HERE, LATE = 1, 2, 3, 4


def line(config: BrokerConfig | None = None) -> Overlay:
    return Overlay.line(HOST, RELAY, HERE, config=config)


def refusal(subscriber: Subscriber) -> type[PostroadError]:
    (error,) = subscriber.refusals
    return type(error)


# --- when a subscription is active ---


def test_a_subscription_has_a_start_in_every_pubend_within_reach() -> None:
    """`Subscribed` names the tick in each of them after which every match will come."""
    overlay = line()
    subscriber = overlay.subscriber(at=HERE)
    assert set(subscriber.starts) == {pubend_id(HOST), pubend_id(RELAY), pubend_id(HERE)}


@pytest.mark.parametrize("awaited", [InterestActive, HoldConfirmed])
def test_it_is_reported_when_the_path_applies_its_filter_and_the_logs_are_held(awaited: type[Packet]) -> None:
    """Each of the two is waited for (trap 2)."""
    overlay = line()
    with overlay.keeping_back(awaited, to=HERE) as kept:
        subscriber = overlay.subscriber(at=HERE, wait=False)
        overlay.run(0.5)
        assert not subscriber.is_subscribed
        assert kept
    overlay.deliver(*kept)
    overlay.until(lambda: subscriber.is_subscribed)


def test_it_is_reported_when_what_must_be_remembered_of_it_is_on_disk() -> None:
    """A crash right after the answer must not forget what the logs are held for."""
    overlay = line()
    overlay.nodes[HERE].writes_finish = False
    subscriber = overlay.subscriber(at=HERE, wait=False)
    overlay.run(1.0)
    assert not subscriber.is_subscribed
    overlay.nodes[HERE].writes_finish = True
    overlay.finish_writes()
    overlay.until(lambda: subscriber.is_subscribed)


def test_every_match_after_the_start_comes_though_messages_were_published_all_the_time() -> None:
    """A subscription starts somewhere exact, on a stream that does not stop for it."""
    overlay = line()
    publisher = overlay.publisher(at=HOST)
    with overlay.keeping_back(InterestActive, to=RELAY) as kept:
        subscriber = overlay.subscriber(at=HERE, filter_="even", wait=False)
        for number in range(10):
            publisher.publish(f"m{number}", even=number % 2 == 0)
            overlay.run(0.1)
    overlay.deliver(*kept)
    for number in range(10, 20):
        publisher.publish(f"m{number}", even=number % 2 == 0)
        overlay.run(0.1)
    overlay.run(2.0)
    start = subscriber.starts[pubend_id(HOST)]
    due = [name for name, tick in overlay.log_with_ticks(HOST) if tick > start and int(name[1:]) % 2 == 0]
    assert subscriber.received == due
    assert "m18" in due


def test_a_pubend_that_is_out_of_reach_holds_up_no_answer() -> None:
    """The subscription begins where it can, and the pubend joins it later."""
    overlay = line()
    overlay.unlink(HOST, RELAY)
    subscriber = overlay.subscriber(at=HERE)
    assert set(subscriber.starts) == {pubend_id(RELAY), pubend_id(HERE)}


def test_a_pubend_that_comes_into_reach_joins_with_a_start_of_its_own() -> None:
    """`Started` is sent before its first message."""
    overlay = line()
    subscriber = overlay.subscriber(at=HERE)
    overlay.start(LATE)
    overlay.link(RELAY, LATE)
    overlay.until(lambda: pubend_id(LATE) in subscriber.starts)
    assert [packet.pubend for packet in subscriber.packets if isinstance(packet, Started)] == [pubend_id(LATE)]
    overlay.publisher(at=LATE).publish("a")
    assert subscriber.received == ["a"]


def test_a_filter_that_another_subscription_has_needs_no_word_to_other_brokers() -> None:
    """The second one is answered at once, from what is known here."""
    overlay = line()
    overlay.subscriber(at=HERE, filter_="x > 0")
    before = len(overlay.sent(Interest))
    second = overlay.subscriber(at=HERE, filter_="x > 0", wait=False)
    overlay.run(0.1)
    assert second.is_subscribed
    assert len(overlay.sent(Interest)) == before


# --- where it starts ---


def test_a_subscription_begins_now_unless_it_asks_for_more() -> None:
    """What was published before is not for it, though the log may still have it."""
    overlay = line(BrokerConfig(keep_s=100.0))
    publisher = overlay.publisher(at=HOST)
    publisher.publish("before")
    overlay.run(2.0)
    subscriber = overlay.subscriber(at=HERE)
    publisher.publish("after")
    overlay.run(2.0)
    assert subscriber.received == ["after"]


def test_the_earliest_start_is_the_oldest_message_that_is_held() -> None:
    """Everything in the log comes first, then what is published now."""
    overlay = line(BrokerConfig(keep_s=100.0))
    publisher = overlay.publisher(at=HOST)
    publisher.publish("before")
    overlay.run(2.0)
    subscriber = overlay.subscriber(at=HERE, earliest=True)
    publisher.publish("after")
    overlay.run(2.0)
    assert subscriber.received == ["before", "after"]
    assert subscriber.gaps == []


def test_a_client_that_reconnects_goes_on_from_the_positions_it_brings() -> None:
    """Within the grace nothing is lost, and nothing comes twice."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    publisher.publish("first")
    subscriber.disconnect()
    publisher.publish("second")
    overlay.run(10.0)
    subscriber.come_back()
    publisher.publish("third")
    overlay.run(2.0)
    assert subscriber.received == ["first", "second", "third"]


def test_a_client_may_reconnect_to_another_broker() -> None:
    """Its positions name ticks of pubends, which mean the same everywhere."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    publisher.publish("first")
    subscriber.disconnect()
    publisher.publish("second")
    overlay.run(1.0)
    subscriber.come_back(at=RELAY)
    overlay.run(1.0)
    assert subscriber.received == ["first", "second"]


def test_a_long_past_comes_in_pieces() -> None:
    """Each piece is bounded in bytes; the subscription joins the live ones after the last."""
    overlay = line(BrokerConfig(cache_bytes=64 << 10))
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    subscriber.disconnect()
    names = [f"{number} {'x' * 50_000}" for number in range(60)]
    for name in names:
        publisher.publish(name)
    overlay.run(1.0)
    subscriber.come_back()
    overlay.run(10.0)
    assert subscriber.received == names
    assert len(overlay.sent(CatchUp, source=HERE)) > 1


# --- the end ---


def test_an_ended_subscription_is_asked_for_no_longer() -> None:
    """Its filter leaves the interest of every broker on the path."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=HERE, filter_="x > 0"), overlay.publisher(at=HOST)
    publisher.publish("before", x=1)
    subscriber.unsubscribe()
    publisher.publish("after", x=1)
    overlay.run(1.0)
    assert subscriber.ended
    assert subscriber.received == overlay.names_sent(HOST, RELAY) == ["before"]


def test_a_filter_is_asked_for_until_its_last_subscription_ends() -> None:
    """Two subscriptions with one filter count twice."""
    overlay = line()
    first, second = overlay.subscriber(at=HERE, filter_="x > 0"), overlay.subscriber(at=HERE, filter_="x > 0")
    first.unsubscribe()
    overlay.publisher(at=HOST).publish("a", x=1)
    assert second.received == ["a"]


# --- refusals ---


def test_a_filter_with_an_error_is_refused() -> None:
    """The client is told what is wrong with it, and nothing else happens."""
    overlay = line()
    subscriber = overlay.subscriber(at=HERE, filter_="x >", wait=False)
    assert refusal(subscriber) is FilterSyntaxError
    assert overlay.nodes[HERE].broker.stats()["subscriptions"] == 0


def test_a_handle_names_one_subscription_of_a_connection() -> None:
    """A second one with the same handle is refused."""
    overlay = line()
    subscriber = overlay.subscriber(at=HERE)
    subscriber.send(Subscribe(1, "x > 0"))
    assert refusal(subscriber) is DuplicateHandleError


def test_an_unknown_handle_cannot_be_unsubscribed() -> None:
    """It is an error of the client, and its other subscriptions stay."""
    overlay = line()
    subscriber = overlay.subscriber(at=HERE)
    subscriber.unsubscribe()
    subscriber.unsubscribe()
    assert refusal(subscriber) is UnknownHandleError


def test_the_subscriptions_of_a_broker_are_bounded() -> None:
    """One more than configured is refused; when one ends there is room again."""
    overlay = line(BrokerConfig(subscriptions_max=1))
    first = overlay.subscriber(at=HERE)
    refused = overlay.subscriber(at=HERE, wait=False)
    assert refusal(refused) is TooManyError
    first.unsubscribe()
    assert overlay.subscriber(at=HERE).is_subscribed


# --- names ---


def test_a_name_serves_one_client_at_a_time() -> None:
    """A second client with the same name is refused while the first is connected, at whatever broker it asks."""
    overlay = line()
    overlay.subscriber(at=HERE, name="orders")
    for broker in (HERE, RELAY):
        second = overlay.subscriber(at=broker, name="orders", wait=False)
        overlay.run(1.0)
        assert refusal(second) is DurableBusyError


def test_a_name_keeps_its_filter() -> None:
    """A client that comes back with another filter is refused: its cursor would mean nothing."""
    overlay = line()
    subscriber = overlay.subscriber(at=HERE, filter_="x > 0", name="orders")
    subscriber.disconnect()
    other = overlay.subscriber(at=HERE, filter_="x > 1", name="orders", wait=False)
    overlay.run(1.0)
    assert refusal(other) is DurableFilterError


def test_a_deleted_name_is_free_for_another_filter() -> None:
    """The new subscription begins now and knows nothing of the former one."""
    overlay = line()
    former, publisher = overlay.subscriber(at=HERE, filter_="x > 0", name="orders"), overlay.publisher(at=HOST)
    former.unsubscribe(forget=True)
    publisher.publish("between", x=5)
    overlay.run(1.0)
    new = overlay.subscriber(at=HERE, filter_="x > 1", name="orders")
    publisher.publish("after", x=5)
    overlay.run(1.0)
    assert new.received == ["after"]
    assert isinstance(new.packets[0], Subscribed)


def test_what_was_acknowledged_under_a_name_does_not_come_again() -> None:
    """The cursor is on the disk of its home, and counts when the client itself remembers nothing."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=HERE, name="orders"), overlay.publisher(at=HOST)
    publisher.publish("acknowledged")
    subscriber.acknowledge(confirm=True)
    publisher.publish("received")
    overlay.crash(HERE)
    overlay.restart(HERE)
    subscriber.come_back(knows=False)
    overlay.run(2.0)
    assert subscriber.received == ["acknowledged", "received", "received"]


def test_a_name_takes_its_cursors_along_to_another_broker() -> None:
    """The new home asks the former one where the subscription is, if the client does not know."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=HERE, name="orders"), overlay.publisher(at=HOST)
    publisher.publish("acknowledged")
    subscriber.acknowledge()
    publisher.publish("received")
    subscriber.disconnect()
    publisher.publish("missed")
    subscriber.come_back(at=RELAY, knows=False)
    overlay.run(2.0)
    assert subscriber.received == ["acknowledged", "received", "received", "missed"]


def test_the_former_home_of_a_name_holds_the_logs_no_longer() -> None:
    """Once the new home holds them, what is acknowledged there is released."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(at=HERE, name="orders"), overlay.publisher(at=HOST)
    subscriber.disconnect()
    publisher.publish("missed")
    subscriber.come_back(at=RELAY)
    overlay.run(2.0)
    subscriber.acknowledge()
    overlay.run(5.0)
    assert subscriber.received == ["missed"]
    assert overlay.logged(HOST) == []
