"""The edge: how a broker delivers to its own clients. Broker 1 hosts the pubend, broker 2 the subscribers.

A subscription is live (it has everything up to the doubt horizon) or catches up; it moves between the two, and its application
sees only that messages come in order, each once.
"""

from __future__ import annotations

from itertools import pairwise

from tests.core.broker.overlay import Overlay

from postroad.core.broker.subscribing.edge import NACK_TRIES_MAX
from postroad.core.protocol.packets import Advance, CatchUp, Deliver, Knowledge, Nack, Subscribed, pubend_id

HOST, HERE = 1, 2
PUBEND = pubend_id(HOST)


def two_brokers() -> Overlay:
    return Overlay.line(HOST, HERE)


def test_a_live_subscription_gets_a_message_as_soon_as_it_is_known() -> None:
    """Live delivery needs no turn of the clock: what arrives is sent on."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    before = overlay.now
    publisher.publish("a")
    assert subscriber.received == ["a"]
    assert overlay.now == before


def test_the_client_knows_its_start_before_the_first_message() -> None:
    """`Subscribed` comes first, though messages arrive while the start is being stored."""
    overlay = two_brokers()
    publisher = overlay.publisher(at=HOST)
    overlay.nodes[HERE].writes_finish = False
    subscriber = overlay.subscriber(at=HERE, wait=False)
    overlay.run(0.5)
    publisher.publish("a")
    overlay.run(0.5)
    assert subscriber.packets == []
    overlay.nodes[HERE].writes_finish = True
    overlay.finish_writes()
    overlay.run(0.5)
    assert isinstance(subscriber.packets[0], Subscribed)
    assert subscriber.received == ["a"]


def test_each_delivery_joins_the_one_before() -> None:
    """`Deliver` names the range it tells all about, so a client sees that nothing is missing between two of them."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE, filter_="x > 0"), overlay.publisher(at=HOST)
    for x in (1, -1, 2, -2, 3):
        publisher.publish(f"x is {x}", x=x)
        overlay.run(0.3)
    position = subscriber.starts[PUBEND]
    for packet in subscriber.packets:
        if isinstance(packet, Advance):
            position = packet.positions.get(PUBEND, position)
        elif isinstance(packet, Deliver):
            assert packet.lo == position
            position = packet.hi
    assert subscriber.received == ["x is 1", "x is 2", "x is 3"]


def test_messages_behind_a_gap_wait_until_it_is_closed() -> None:
    """Nothing beyond the doubt horizon is delivered, however much of it is here."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    with overlay.keeping_back(Knowledge, to=HERE) as kept:
        publisher.publish("first")
    publisher.publish("second")
    publisher.publish("third")
    assert subscriber.received == []
    overlay.deliver(*kept)
    assert subscriber.received == ["first", "second", "third"]


def test_a_gap_is_not_asked_for_at_once_since_it_may_close_by_itself() -> None:
    """Packets may overtake each other on different paths: a NACK goes out only after a short wait."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    with overlay.keeping_back(Knowledge, to=HERE) as kept:
        publisher.publish("first")
    publisher.publish("second")
    overlay.deliver(*kept)
    overlay.run(2.0)
    assert subscriber.received == ["first", "second"]
    assert overlay.sent(Nack) == []


def test_a_gap_that_does_not_close_is_left_to_catching_up() -> None:
    """After some NACKs each subscription gets its own past, and the stream goes on for the others."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    with overlay.losing(Nack):
        with overlay.losing(Knowledge, to=HERE):
            publisher.publish("first")
        publisher.publish("second")
        overlay.until(lambda: subscriber.received == ["first", "second"])
    assert 1 < len(overlay.sent(Nack)) <= NACK_TRIES_MAX
    assert len(overlay.sent(CatchUp)) == 1
    publisher.publish("third")
    assert subscriber.received == ["first", "second", "third"]


def test_nacks_for_the_same_gap_become_rarer() -> None:
    """Each NACK that is not answered doubles the wait for the next, up to a bound."""
    overlay = two_brokers()
    overlay.subscriber(at=HERE)
    publisher = overlay.publisher(at=HOST)
    asked_at: list[float] = []
    with overlay.losing(Nack):
        with overlay.losing(Knowledge, to=HERE):
            publisher.publish("first")
        publisher.publish("second")
        while not overlay.sent(CatchUp):
            overlay.run(0.05)
            asked_at += [overlay.now] * (len(overlay.sent(Nack)) - len(asked_at))
    waits = [later - earlier for earlier, later in pairwise(asked_at)]
    assert len(waits) > 1
    assert all(later > earlier for earlier, later in pairwise(waits))


def test_a_full_connection_gets_no_rows_and_catches_up_when_it_is_drained() -> None:
    """Nothing waits for a slow reader in the edge: it is served from the cache or the log later."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    publisher.publish("live")
    subscriber.read_slowly()
    publisher.publish("late", "later")
    overlay.run(2.0)
    assert subscriber.received == ["live"]
    subscriber.read_on()
    overlay.run(0.2)
    publisher.publish("live again")
    assert subscriber.received == ["live", "late", "later", "live again"]


def test_a_subscription_whose_application_pauses_gets_no_rows_until_it_goes_on() -> None:
    """`Flow` does for one subscription what a full connection does for all of its client."""
    overlay = two_brokers()
    paused, other = overlay.subscriber(at=HERE), overlay.subscriber(at=HERE)
    publisher = overlay.publisher(at=HOST)
    paused.pause()
    publisher.publish("a")
    overlay.run(2.0)
    assert (paused.received, other.received) == ([], ["a"])
    paused.go_on()
    publisher.publish("b")
    assert paused.received == ["a", "b"]


def test_a_slow_reader_asks_the_host_only_for_what_the_cache_here_has_dropped() -> None:
    """Catching up begins in the nearest cache."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE), overlay.publisher(at=HOST)
    subscriber.read_slowly()
    publisher.publish("a")
    subscriber.read_on()
    overlay.run(1.0)
    assert subscriber.received == ["a"]
    assert overlay.sent(CatchUp) == []


def test_silence_for_another_filter_is_not_taken_for_silence_of_this_one() -> None:
    """A cache knows under which interest it learned a stretch: what was filtered then is asked for again (trap 1)."""
    overlay = two_brokers()
    high, publisher = overlay.subscriber(at=HERE, filter_="x > 10"), overlay.publisher(at=HOST)
    publisher.publish("low", x=1)
    publisher.publish("high", x=20)
    overlay.run(2.0)
    everything = overlay.subscriber(at=HERE, earliest=True)
    overlay.run(1.0)
    assert high.received == ["high"]
    assert everything.received == ["low", "high"]


def test_a_subscription_that_stops_leaves_the_others_alone() -> None:
    """Nothing is sent for a subscription that has ended, and the next message still reaches the others."""
    overlay = two_brokers()
    leaving, staying = overlay.subscriber(at=HERE), overlay.subscriber(at=HERE)
    publisher = overlay.publisher(at=HOST)
    publisher.publish("a")
    leaving.unsubscribe()
    publisher.publish("b")
    assert leaving.ended
    assert (leaving.received, staying.received) == (["a"], ["a", "b"])


def test_a_lost_connection_ends_all_subscriptions_of_its_client() -> None:
    """The broker keeps no state of a client that is gone, but for what it may come back for."""
    overlay = two_brokers()
    subscribers = [overlay.subscriber(at=HERE) for _ in range(3)]
    assert overlay.nodes[HERE].broker.stats()["subscriptions"] == 3
    for subscriber in subscribers:
        subscriber.disconnect()
    assert overlay.nodes[HERE].broker.stats()["subscriptions"] == 0


def test_a_client_for_which_nothing_matches_hears_how_far_the_stream_is() -> None:
    """Its position follows the stream, so that it holds up no log; see `test_telling.py` for how often."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HERE, filter_="x > 10"), overlay.publisher(at=HOST)
    for number in range(10):
        publisher.publish(f"low {number}", x=1)
        overlay.run(1.0)
    assert any(isinstance(packet, Advance) for packet in subscriber.packets)
    assert subscriber.positions[PUBEND] > subscriber.starts[PUBEND]
    assert subscriber.received == []


def test_what_was_released_before_a_slow_reader_got_it_is_told_as_a_gap() -> None:
    """Retention may pass its bound; then the client learns exactly what it lost, and goes on behind it."""
    overlay = two_brokers()
    subscriber, publisher = overlay.subscriber(at=HOST), overlay.publisher(at=HOST)
    publisher.publish("received")
    position = subscriber.positions[PUBEND]
    subscriber.disconnect()
    publisher.publish("lost")
    ((_, lost_at),) = [entry for entry in overlay.log_with_ticks(HOST) if entry[0] == "lost"]
    publisher.publish("kept")
    overlay.run_out_of_space(HOST, up_to=lost_at)
    overlay.crash(HOST)  # and with it the cache
    overlay.restart(HOST)
    subscriber.come_back()
    overlay.run(1.0)
    assert subscriber.gaps == [(PUBEND, position, lost_at)]
    assert subscriber.received == ["received", "kept"]
