"""Congestion control in a reliable scalable MOM (Pietzuch and Bhola): the delivery guarantees it builds on, claim by claim.

Each test states one claim of section 1.1 (the system model) or of section 4 (the guaranteed delivery service of the Gryphon
broker) and cites it. The overlay is that of the paper's figure 1 with one subscriber-hosting broker, unless a test says
otherwise: broker 1 hosts the pubend (PHB), broker 2 stands in between (IB), broker 3 hosts the subscribers (SHB).

What sections 3 and 4 say about congestion (DCQ, UCA, NACK window, withheld acknowledgements) is not here.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.core.broker.overlay import Overlay

from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.packets import Knowledge, Nack, pubend_id
from postroad.errors import StorageFullError
from postroad.types import tick_milliseconds

PHB, IB, SHB = 1, 2, 3
PUBEND = pubend_id(PHB)
T_SILENCE_S = 1.0  # table 1


def figure_1(config: BrokerConfig | None = None) -> Overlay:
    """Return a publisher-hosting broker, an intermediate one and a subscriber-hosting one, in a line."""
    return Overlay.line(PHB, IB, SHB, config=config)


def names(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


# --- section 1.1: the system model ---


def test_a_broker_can_perform_all_three_roles() -> None:
    """1.1: "Brokers can perform multiple roles"."""
    overlay = Overlay.line(PHB)
    subscriber, publisher = overlay.subscriber(at=PHB), overlay.publisher(at=PHB)
    publisher.publish("a", "b")
    assert subscriber.received == ["a", "b"]


def test_a_pubend_is_one_ordered_stream_that_every_subscriber_sees_alike() -> None:
    """1.1: "Each pubend represents an ordered stream of messages"."""
    overlay = figure_1()
    near, far = overlay.subscriber(at=PHB), overlay.subscriber(at=SHB)
    first, second = overlay.publisher(at=PHB), overlay.publisher(at=PHB)
    for number in range(10):
        first.publish(f"first {number}")
        second.publish(f"second {number}")
    assert sorted(near.received) == sorted([f"first {n}" for n in range(10)] + [f"second {n}" for n in range(10)])
    assert far.received == near.received
    assert far.ticks == near.ticks


def test_publishers_of_one_broker_may_share_a_pubend_and_keep_their_own_order() -> None:
    """1.1: "Messages published from different publishing clients may be assigned to the same pubend"."""
    overlay = figure_1()
    subscriber = overlay.subscriber(at=SHB)
    first, second = overlay.publisher(at=PHB), overlay.publisher(at=PHB)
    assert first.pubend == second.pubend == PUBEND
    for number in range(5):
        second.publish(f"second {number}")
        first.publish(f"first {number}")
    for publisher in ("first", "second"):
        mine = [name for name in subscriber.received if name.startswith(publisher)]
        assert mine == [f"{publisher} {number}" for number in range(5)]


def test_the_pubend_logs_a_message_before_it_sends_it_downstream() -> None:
    """1.1: the pubend "logs the message to persistent store. After that, the pubend sends the message downstream"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    overlay.writes_finish = False
    publisher.publish("a")
    overlay.run(2.0)
    assert overlay.names_sent(PHB, IB) == []
    assert publisher.acknowledged == []
    overlay.finish_writes()
    assert overlay.names_sent(PHB, IB) == ["a"]
    assert publisher.acknowledged == ["a"]
    assert subscriber.received == ["a"]


def test_a_message_is_logged_once_and_only_at_its_pubend() -> None:
    """1.1: each pubend "maintains this stream in persistent storage"; the other brokers need no copy of it."""
    overlay = figure_1()
    subscribers = [overlay.subscriber(at=broker) for broker in (PHB, IB, SHB, SHB)]
    publisher = overlay.publisher(at=PHB)
    publisher.publish(*names(5))
    overlay.run(2.0)
    assert all(subscriber.received == names(5) for subscriber in subscribers)
    assert overlay.logged(PHB) == names(5)
    assert overlay.logged(IB) == overlay.logged(SHB) == []


def test_what_was_acknowledged_survives_a_crash_of_the_pubends_broker() -> None:
    """1.1: the stream is in persistent storage, so a message that was logged is delivered after any crash."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    with overlay.losing(Knowledge):
        publisher.publish("a", "b")
        assert publisher.acknowledged == ["a", "b"]
        overlay.crash(PHB)
    overlay.run(1.0)
    overlay.restart(PHB)
    overlay.until(lambda: subscriber.received == ["a", "b"])


def test_a_message_that_was_not_acknowledged_is_taken_once_when_it_comes_again() -> None:
    """1.1: the publisher does not know whether a message was logged; the guarantee is exactly once all the same."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    publisher.publish("logged")
    overlay.writes_finish = False
    publisher.publish("not logged")
    overlay.crash(PHB)
    overlay.writes_finish = True
    overlay.restart(PHB)
    publisher.reconnect()
    publisher.send_again("logged", "not logged")
    overlay.run(3.0)
    assert subscriber.received == overlay.logged(PHB) == ["logged", "not logged"]


def test_a_message_that_could_not_be_logged_is_refused_and_reaches_nobody() -> None:
    """1.1: logging comes first, so what the disk does not take is never announced."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    overlay.fail_appends(PHB, StorageFullError("the log", "the disk is full"))
    publisher.publish("lost")
    overlay.fail_appends(PHB, None)
    publisher.publish("kept")
    overlay.run(2.0)
    assert len(publisher.refused) == 1
    assert subscriber.received == overlay.logged(PHB) == ["kept"]


def test_an_intermediate_broker_forwards_messages_to_all_brokers_below_it() -> None:
    """1.1: "The IBs forward data and control messages to the SHBs"."""
    overlay = figure_1()
    overlay.start(4)
    overlay.link(IB, 4)
    overlay.run(0.2)
    subscribers = [overlay.subscriber(at=SHB), overlay.subscriber(at=4)]
    overlay.publisher(at=PHB).publish("a")
    assert [subscriber.received for subscriber in subscribers] == [["a"], ["a"]]
    assert overlay.names_sent(PHB, IB) == ["a"]


def test_a_subscriber_gets_the_messages_that_match_its_filter_and_no_others() -> None:
    """1: "only messages that match the filter are delivered to the subscriber"."""
    overlay = figure_1()
    high, low = overlay.subscriber(at=SHB, filter_="price > 10"), overlay.subscriber(at=SHB, filter_="price <= 10")
    publisher = overlay.publisher(at=PHB)
    for price in (5, 20, 10, 30):
        publisher.publish(f"price {price}", price=price)
    assert high.received == ["price 20", "price 30"]
    assert low.received == ["price 5", "price 10"]


def test_a_message_that_matches_nobody_behind_a_link_does_not_cross_it() -> None:
    """1.1: brokers filter "such that an SHB does not receive messages that do not match any of its subscribers' filters"."""
    overlay = figure_1()
    near = overlay.subscriber(at=IB, filter_="price > 0")
    far = overlay.subscriber(at=SHB, filter_="price > 10")
    publisher = overlay.publisher(at=PHB)
    for price in (-1, 5, 20):
        publisher.publish(f"price {price}", price=price)
    overlay.run(2.0)
    assert near.received == overlay.names_sent(PHB, IB) == ["price 5", "price 20"]
    assert far.received == overlay.names_sent(IB, SHB) == ["price 20"]


@pytest.mark.parametrize("link_to", [IB, SHB])
def test_delivery_is_in_order_and_exactly_once_when_packets_are_lost(link_to: int) -> None:
    """1.1: "preserving the guarantee of in-order exactly-once delivery to subscribers", whatever link loses them."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    for number in range(12):
        if number % 3 == 1:
            with overlay.losing(Knowledge, to=link_to):
                publisher.publish(f"m{number}")
        else:
            publisher.publish(f"m{number}")
    overlay.until(lambda: len(subscriber.received) >= 12)
    overlay.run(5.0)
    assert subscriber.received == names(12)


def test_delivery_is_in_order_and_exactly_once_when_packets_are_reordered_and_doubled() -> None:
    """1.1: "in-order exactly-once delivery"; knowledge of a tick may come at any time and any number of times."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    with overlay.keeping_back(Knowledge, to=SHB) as kept:
        for name in names(6):
            publisher.publish(name)
    overlay.deliver(*reversed(kept), *kept, *reversed(kept))
    overlay.run(5.0)
    assert subscriber.received == names(6)


def test_an_intermediate_broker_answers_a_nack_from_its_cache() -> None:
    """1.1: "IBs also cache stream data and can respond to NACKs"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    with overlay.losing(Knowledge, to=SHB):
        publisher.publish("a")
    publisher.publish("b")
    overlay.until(lambda: subscriber.received == ["a", "b"])
    assert overlay.sent(Nack, source=SHB, target=IB)
    assert not overlay.sent(Nack, source=IB, target=PHB)
    assert overlay.names_sent(PHB, IB) == ["a", "b"]


def test_a_nack_that_no_cache_can_answer_goes_on_to_the_pubend() -> None:
    """1.1: "NACKs not satisfied by an IB are forwarded towards the pubend"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    with overlay.losing(Knowledge, to=IB):
        publisher.publish("a")
    publisher.publish("b")
    overlay.until(lambda: subscriber.received == ["a", "b"])
    assert overlay.sent(Nack, source=IB, target=PHB)


def test_a_broker_behind_a_failed_link_gets_everything_it_missed_and_then_what_is_recent() -> None:
    """1.1: "eventually all SHBs are being able to receive and deliver in-order recent messages"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    publisher.publish("before")
    overlay.unlink(IB, SHB)
    for name in names(20):
        publisher.publish(name)
        overlay.run(0.3)
    overlay.link(IB, SHB)
    overlay.until(lambda: len(subscriber.received) >= 21)
    publisher.publish("after")
    overlay.run(1.0)
    assert subscriber.received == ["before", *names(20), "after"]


def test_the_path_to_a_broker_may_change_without_loss_or_repetition() -> None:
    """2: "We allow for the path from a pubend to a particular SHB to change"."""
    overlay = figure_1()
    overlay.start(4)
    overlay.link(PHB, 4)
    overlay.link(4, SHB)
    overlay.run(0.5)
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    for number in range(0, 12, 3):
        publisher.publish(f"m{number}")
        way = next(each.source for each in reversed(overlay.travelled(target=SHB)) if each.names)
        overlay.unlink(way, SHB)
        publisher.publish(f"m{number + 1}")
        overlay.run(1.0)
        publisher.publish(f"m{number + 2}")
        overlay.link(way, SHB)
        overlay.run(1.0)
    overlay.run(5.0)
    assert subscriber.received == names(12)
    assert overlay.names_sent(IB, SHB)
    assert overlay.names_sent(4, SHB)


def test_an_intermediate_broker_keeps_nothing_that_its_crash_could_lose() -> None:
    """1.1: persistence is the pubend's; a broker in between may crash and come back empty."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    publisher.publish("before")
    overlay.crash(IB)
    publisher.publish("meanwhile")
    overlay.run(2.0)
    overlay.restart(IB)
    publisher.publish("after")
    overlay.until(lambda: len(subscriber.received) >= 3)
    overlay.run(5.0)
    assert subscriber.received == ["before", "meanwhile", "after"]


def test_a_slow_application_holds_up_nobody_else_and_gets_everything_later() -> None:
    """1.1: the system goes by "the slowest link or broker inside the system, but not to the slowest subscribing application"."""
    overlay = figure_1()
    slow, quick = overlay.subscriber(at=SHB), overlay.subscriber(at=SHB)
    publisher = overlay.publisher(at=PHB)
    slow.read_slowly()
    for name in names(5):
        publisher.publish(name)
        overlay.run(0.2)
    assert quick.received == names(5)
    assert slow.received == []
    slow.read_on()
    overlay.run(1.0)
    assert slow.received == names(5)


def test_ticks_are_the_real_time_of_the_pubend() -> None:
    """1.1: "The messages in a pubend stream are assigned timestamps based on realtime"; 4: a tick is a timestamp."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    published_ms = []
    for name in names(4):
        overlay.run(1.3)
        published_ms.append(overlay.wall_ms)
        publisher.publish(name)
    assert [tick_milliseconds(tick) for _, tick in subscriber.ticks] == published_ms


# --- section 4: the guaranteed delivery service ---


def test_no_two_messages_share_a_tick() -> None:
    """4: "Ticks are fine-grained such that no two data messages can be assigned to the same tick"."""
    overlay = figure_1()
    subscriber = overlay.subscriber(at=SHB)
    for publisher in (overlay.publisher(at=PHB), overlay.publisher(at=PHB)):
        publisher.publish(*names(500, prefix=f"{publisher.number} "))
    ticks = [tick for _, tick in subscriber.ticks]
    assert len(ticks) == 1000
    assert all(earlier < later for earlier, later in pairwise(ticks))
    assert len({tick_milliseconds(tick) for tick in ticks}) < len(ticks)


def test_ticks_ascend_over_a_crash_with_a_clock_that_went_back() -> None:
    """4: a tick that was told to be silence never becomes data, whatever the clock of the pubend says after a crash."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    publisher.publish("before")
    overlay.run(5.0)
    told = overlay.horizon(PHB, at=SHB)
    overlay.crash(PHB)
    overlay.set_clock_back(PHB, seconds=3.0)
    overlay.restart(PHB)
    publisher.reconnect()
    publisher.publish("after", at_ms=overlay.wall_ms - 3000)
    overlay.until(lambda: subscriber.received == ["before", "after"])
    assert subscriber.ticks[-1][1] > told


def test_silence_is_told_explicitly_when_nothing_is_published() -> None:
    """4: "A pubend will send an explicit silence message [...] every t_silence ms"."""
    overlay = figure_1()
    overlay.subscriber(at=SHB)
    overlay.run(2.0)
    sent, horizon = len(overlay.sent(Knowledge, source=PHB)), overlay.horizon(PHB, at=SHB)
    overlay.run(10 * T_SILENCE_S)
    assert 8 <= len(overlay.sent(Knowledge, source=PHB)) - sent <= 12
    silent_ms = tick_milliseconds(overlay.horizon(PHB, at=SHB)) - tick_milliseconds(horizon)
    assert silent_ms >= 8 * T_SILENCE_S * 1000


def test_a_message_is_prefixed_with_the_silence_since_the_last_one() -> None:
    """4: "A data message is prefixed with all silence ticks since the last message"."""
    overlay = figure_1()
    overlay.subscriber(at=SHB)
    publisher = overlay.publisher(at=PHB)
    for name in names(6):
        overlay.run(0.7)
        publisher.publish(name)
    told = [each for each in overlay.sent(Knowledge, source=IB) if each.pubend == PUBEND and each.lo < each.hi]
    assert len(told) >= 6
    assert all(earlier.hi == later.lo for earlier, later in pairwise(told))


def test_what_was_filtered_upstream_is_silence_downstream() -> None:
    """4: a tick is silence "when no message was published or was filtered upstream"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB, filter_="price > 10"), overlay.publisher(at=PHB)
    before = overlay.horizon(PHB, at=SHB)
    publisher.publish("cheap", price=1)
    publisher.publish("dear", price=20)
    assert subscriber.received == ["dear"]
    assert overlay.horizon(PHB, at=SHB) == subscriber.ticks[-1][1] > before
    assert not overlay.sent(Nack)


def test_unknown_ticks_are_asked_for_and_nothing_else() -> None:
    """4: the SHB resolves "all unknown ticks to either data or silence states by sending NACK messages upstream"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    publisher.publish("a")
    known_to = overlay.horizon(PHB, at=SHB)
    with overlay.losing(Knowledge, to=SHB):
        publisher.publish("b")
    publisher.publish("c")
    (unknown_to,) = [each.lo for each in overlay.sent(Knowledge, target=SHB)][-1:]
    overlay.until(lambda: subscriber.received == ["a", "b", "c"])
    (nack,) = overlay.sent(Nack, source=SHB)
    assert nack.ranges == [(known_to, unknown_to)]


def test_what_was_lost_last_is_missed_although_nothing_follows_it() -> None:
    """4: "Explicit silence messages ensure that SHBs know that no messages were published" - and when one was."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    with overlay.losing(Knowledge, to=SHB):
        publisher.publish("last")
    overlay.run(3 * T_SILENCE_S)
    assert subscriber.received == ["last"]


def test_nothing_beyond_the_doubt_horizon_is_delivered() -> None:
    """4: the doubt horizon is "the position in the stream until which there are no unknown ticks"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    publisher.publish("a")
    horizon = overlay.horizon(PHB, at=SHB)
    with overlay.losing(Nack):
        with overlay.losing(Knowledge, to=SHB):
            publisher.publish("b")
        publisher.publish("c")
        overlay.run(0.5)
        assert overlay.frontier(PHB, at=SHB) > horizon
        assert overlay.horizon(PHB, at=SHB) == horizon
        assert subscriber.received == ["a"]
    overlay.until(lambda: subscriber.received == ["a", "b", "c"])


def test_the_doubt_horizon_never_falls() -> None:
    """4: ticks before the doubt horizon "already were or can be delivered", so it only moves on."""
    overlay = figure_1()
    overlay.subscriber(at=SHB)
    publisher = overlay.publisher(at=PHB)
    seen = [overlay.horizon(PHB, at=SHB)]
    for number in range(30):
        if number % 5 == 0:
            overlay.unlink(IB, SHB)
        if number % 5 == 2:
            overlay.link(IB, SHB)
        publisher.publish(f"m{number}")
        overlay.run(0.4)
        seen.append(overlay.horizon(PHB, at=SHB))
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


def test_a_tick_becomes_final_when_its_receipt_was_acknowledged_and_not_before() -> None:
    """4: "Once a tick has been successfully processed by the SHB, the receipt is acknowledged and its state [...] final"."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    publisher.publish("a", "b")
    overlay.run(5.0)
    assert subscriber.received == ["a", "b"]
    assert overlay.logged(PHB) == ["a", "b"]
    subscriber.acknowledge()
    overlay.run(5.0)
    assert overlay.logged(PHB) == []


def test_a_tick_is_final_when_the_last_broker_has_done_with_it() -> None:
    """4: a tick is final "when it is no longer needed": by no SHB, on whatever path it lies."""
    overlay = figure_1()
    far, near = overlay.subscriber(at=SHB), overlay.subscriber(at=IB)
    overlay.publisher(at=PHB).publish("a")
    near.acknowledge()
    overlay.run(5.0)
    assert overlay.logged(PHB) == ["a"]
    far.acknowledge()
    overlay.run(5.0)
    assert overlay.logged(PHB) == []


def test_one_consolidated_stream_serves_all_subscribers_of_a_broker() -> None:
    """4: "An SHB maintains a consolidated message stream that is used to service all subscribers"."""
    overlay = figure_1()
    subscribers = [overlay.subscriber(at=SHB, filter_=f"price > {number}") for number in range(10)]
    overlay.publisher(at=PHB).publish("a", price=100)
    assert all(subscriber.received == ["a"] for subscriber in subscribers)
    assert overlay.names_sent(IB, SHB) == ["a"]


def test_a_lost_message_is_asked_for_once_for_all_subscribers() -> None:
    """4: recovery belongs to the consolidated stream, not to each of its subscribers."""
    overlay = figure_1()
    subscribers = [overlay.subscriber(at=SHB) for _ in range(10)]
    publisher = overlay.publisher(at=PHB)
    with overlay.losing(Knowledge, to=SHB):
        publisher.publish("a")
    publisher.publish("b")
    overlay.until(lambda: all(subscriber.received == ["a", "b"] for subscriber in subscribers))
    assert len(overlay.sent(Nack, source=SHB)) == 1
    assert overlay.names_sent(IB, SHB) == ["a", "b", "a"]


def test_two_brokers_that_miss_the_same_make_one_nack_to_the_pubend() -> None:
    """1.1: NACKs that an IB forwards are consolidated: what it has just asked for it does not ask for again."""
    overlay = figure_1()
    overlay.start(4)
    overlay.link(IB, 4)
    overlay.run(0.2)
    subscribers = [overlay.subscriber(at=SHB), overlay.subscriber(at=4)]
    publisher = overlay.publisher(at=PHB)
    with overlay.losing(Knowledge, to=IB):
        publisher.publish("a")
    publisher.publish("b")
    overlay.until(lambda: all(subscriber.received == ["a", "b"] for subscriber in subscribers))
    assert len(overlay.sent(Nack, source=IB)) == 1
    assert overlay.names_sent(PHB, IB) == ["a", "b", "a"]


def test_what_a_broker_keeps_while_it_waits_for_a_gap_is_bounded() -> None:
    """4: "the receive window bounds the memory usage", and what lies outside comes when the window has advanced."""
    cache_bytes = 256 << 10
    overlay = figure_1(BrokerConfig(cache_bytes=cache_bytes))
    subscriber, publisher = overlay.subscriber(at=SHB), overlay.publisher(at=PHB)
    overlay.unlink(IB, SHB)
    for name in names(200):
        publisher.publish(name)
        assert overlay.nodes[IB].broker.stats()["cache_bytes"] <= cache_bytes
    overlay.link(IB, SHB)
    overlay.until(lambda: len(subscriber.received) >= 200)
    overlay.run(2.0)
    assert subscriber.received == names(200)
    assert overlay.nodes[SHB].broker.stats()["cache_bytes"] <= cache_bytes


# --- subscribers that go away: the service that sections 1.1 and 4 refer to as guaranteed delivery [4] ---


def test_a_connected_subscriber_misses_nothing_from_its_start_on() -> None:
    """1.1 and [4]: a subscription starts at a tick that is told, and every match after it is delivered."""
    overlay = figure_1()
    publisher = overlay.publisher(at=PHB)
    publisher.publish("before")
    subscriber = overlay.subscriber(at=SHB, wait=False)
    for name in names(10):
        publisher.publish(name)
        overlay.run(0.05)
    overlay.run(2.0)
    expected = [name for name, tick in overlay.log_with_ticks(PHB) if tick > subscriber.starts[PUBEND]]
    assert subscriber.received == expected
    assert expected[-1] == "m9"
    assert "before" not in expected


def test_a_durable_subscriber_gets_what_was_published_while_it_was_away() -> None:
    """1.1 and [4]: exactly once, in order, across disconnects."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB, name="orders"), overlay.publisher(at=PHB)
    publisher.publish("before")
    subscriber.acknowledge()
    subscriber.disconnect()
    publisher.publish("while away", "still away")
    overlay.run(60.0)
    subscriber.come_back()
    publisher.publish("after")
    overlay.run(2.0)
    assert subscriber.received == ["before", "while away", "still away", "after"]
    assert subscriber.gaps == []


def test_a_durable_subscriber_goes_on_after_a_crash_of_its_broker() -> None:
    """1.1 and [4]: what the SHB must remember of a durable subscription is on its disk."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB, name="orders"), overlay.publisher(at=PHB)
    publisher.publish("before")
    subscriber.acknowledge()
    overlay.crash(SHB)
    publisher.publish("meanwhile")
    overlay.run(10.0)
    overlay.restart(SHB)
    subscriber.come_back()
    overlay.run(2.0)
    assert subscriber.received == ["before", "meanwhile"]


def test_a_durable_subscriber_that_lost_its_memory_gets_again_what_it_did_not_acknowledge() -> None:
    """4: a tick is final when its receipt was acknowledged; anything else is delivered to the next life of the subscriber."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB, name="orders"), overlay.publisher(at=PHB)
    publisher.publish("acknowledged")
    subscriber.acknowledge()
    publisher.publish("received")
    subscriber.disconnect()
    subscriber.come_back(knows=False)
    overlay.run(2.0)
    assert subscriber.received == ["acknowledged", "received", "received"]


def test_a_durable_subscriber_may_come_back_at_another_broker() -> None:
    """1.1: SHBs are "edge brokers to which subscribing clients connect"; the guarantee is not bound to one of them."""
    overlay = figure_1()
    subscriber, publisher = overlay.subscriber(at=SHB, name="orders"), overlay.publisher(at=PHB)
    publisher.publish("at the first")
    subscriber.acknowledge()
    subscriber.disconnect()
    publisher.publish("between")
    overlay.run(2.0)
    subscriber.come_back(at=IB)
    publisher.publish("at the second")
    overlay.run(2.0)
    assert subscriber.received == ["at the first", "between", "at the second"]
