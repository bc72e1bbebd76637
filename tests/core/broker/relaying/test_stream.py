"""One pubend's stream as a broker relays it: broker 1 hosts the pubend, broker 2 relays, brokers 3 and 4 stand below.

Upwards goes interest, downwards goes knowledge for the interest that is active, and NACKs are answered from the cache.
"""

from __future__ import annotations

import pytest
from tests.core.broker.overlay import Overlay

from postroad.core.protocol.packets import Interest, InterestActive, Knowledge, Nack, pubend_id

HOST, RELAY, LEFT, RIGHT = 1, 2, 3, 4
PUBEND = pubend_id(HOST)


def tree() -> Overlay:
    """Return a relay between the pubend's broker and two others."""
    overlay = Overlay.line(HOST, RELAY, LEFT)
    overlay.start(RIGHT)
    overlay.link(RELAY, RIGHT)
    overlay.run(0.2)
    return overlay


def interests(overlay: Overlay, source: int, target: int) -> list[Interest]:
    """Return what one broker asked another for in the pubend of broker 1."""
    return [packet for packet in overlay.sent(Interest, source=source, target=target) if packet.pubend == PUBEND]


def knowledge(overlay: Overlay, source: int, target: int) -> list[Knowledge]:
    """Return what one broker told another of the pubend of broker 1, without mere words of how far it is."""
    sent = overlay.sent(Knowledge, source=source, target=target)
    return [packet for packet in sent if packet.pubend == PUBEND and packet.lo < packet.hi]


# --- downwards: knowledge ---


def test_each_child_gets_what_it_asked_for() -> None:
    """The relay matches a batch once and sends each neighbour its part."""
    overlay = tree()
    overlay.subscriber(at=LEFT, filter_="x < 0")
    overlay.subscriber(at=RIGHT, filter_="x > 0")
    publisher = overlay.publisher(at=HOST)
    for x in (-1, 0, 1):
        publisher.publish(f"x is {x}", x=x)
    assert overlay.names_sent(RELAY, LEFT) == ["x is -1"]
    assert overlay.names_sent(RELAY, RIGHT) == ["x is 1"]


def test_a_child_gets_what_any_of_its_filters_matches() -> None:
    """A row that two of them match comes once."""
    overlay = tree()
    for filter_ in ("x < 0", "kind = 'order'"):
        overlay.subscriber(at=LEFT, filter_=filter_)
    publisher = overlay.publisher(at=HOST)
    overlay.writes_finish = False
    publisher.publish("being written")  # what follows meanwhile becomes one batch
    publisher.publish("first only", x=-1, kind="offer")
    publisher.publish("second only", x=1, kind="order")
    publisher.publish("both", x=-1, kind="order")
    publisher.publish("none", x=1, kind="offer")
    overlay.writes_finish = True
    overlay.finish_writes()
    assert overlay.names_sent(RELAY, LEFT) == ["first only", "second only", "both"]


def test_a_child_that_wants_every_row_gets_the_batch_as_it_came() -> None:
    """Nothing is copied or built anew for it."""
    overlay = tree()
    overlay.subscriber(at=LEFT)
    overlay.publisher(at=HOST).publish("a", "b", "c")
    (came,) = [each.order.batch for each in overlay.travelled(HOST, RELAY) if each.names]
    (went,) = [each.order.batch for each in overlay.travelled(RELAY, LEFT) if each.names]
    assert went is came


def test_a_neighbour_that_asked_for_nothing_is_sent_nothing() -> None:
    """Knowledge goes only where somebody wants it."""
    overlay = tree()
    overlay.subscriber(at=LEFT)
    overlay.publisher(at=HOST).publish("a")
    overlay.run(5.0)
    assert knowledge(overlay, RELAY, LEFT)
    assert knowledge(overlay, RELAY, RIGHT) == []


def test_silence_is_put_in_front_of_the_next_message() -> None:
    """Rows that do not match make no packets of their own."""
    overlay = tree()
    overlay.subscriber(at=LEFT, filter_="x > 0")
    overlay.subscriber(at=RIGHT)
    publisher = overlay.publisher(at=HOST)
    overlay.run(1.0)
    before = len(knowledge(overlay, RELAY, LEFT))
    for number in range(20):
        publisher.publish(f"no match {number}", x=-1)
    publisher.publish("match", x=1)
    (told,) = knowledge(overlay, RELAY, LEFT)[before:]
    assert len(overlay.names_sent(RELAY, RIGHT)) == 21
    assert told.hi - told.lo >= 20


def test_silence_is_told_by_itself_when_no_message_carries_it() -> None:
    """At the latest after `silence_s` a child knows what the relay knows."""
    overlay = tree()
    overlay.subscriber(at=LEFT, filter_="x > 0")
    publisher = overlay.publisher(at=HOST)
    publisher.publish("no match", x=-1)
    ((_, tick),) = overlay.log_with_ticks(HOST)
    overlay.run(2.5)
    assert overlay.horizon(HOST, at=LEFT) >= tick


def test_knowledge_that_comes_again_is_passed_on_once() -> None:
    """What a relay knows already is no news, so nothing is doubled on the way down."""
    overlay = tree()
    overlay.subscriber(at=LEFT)
    publisher = overlay.publisher(at=HOST)
    with overlay.keeping_back(Knowledge, to=RELAY) as kept:
        publisher.publish("a")
    overlay.deliver(*kept, *kept, *kept)
    assert overlay.names_sent(RELAY, LEFT) == ["a"]


# --- upwards: interest and its activation ---


def test_a_childs_interest_is_active_when_the_whole_path_applies_it() -> None:
    """The relay answers when its own parent has answered, not before."""
    overlay = tree()
    with overlay.keeping_back(InterestActive, to=RELAY) as kept:
        subscriber = overlay.subscriber(at=LEFT, wait=False)
        overlay.run(1.0)
        assert [p for p in overlay.sent(InterestActive, target=LEFT) if p.pubend == PUBEND] == []
        assert not subscriber.is_subscribed
    overlay.deliver(*kept)
    overlay.until(lambda: subscriber.is_subscribed)


def test_while_a_new_interest_waits_the_former_one_is_served() -> None:
    """A new subscription never holds up the others."""
    overlay = tree()
    former, publisher = overlay.subscriber(at=LEFT, filter_="x > 0"), overlay.publisher(at=HOST)
    with overlay.keeping_back(Interest, to=HOST) as kept:
        new = overlay.subscriber(at=LEFT, filter_="x <= 0", wait=False)
        publisher.publish("for the former", x=1)
        assert former.received == ["for the former"]
    overlay.deliver(*kept)
    overlay.until(lambda: new.is_subscribed)
    publisher.publish("for the new", x=0)
    assert new.received == ["for the new"]


def test_an_interest_that_is_covered_already_is_answered_without_asking_the_parent() -> None:
    """What the relay gets includes what the second child wants."""
    overlay = tree()
    overlay.subscriber(at=LEFT, filter_="x > 0")
    asked = len(interests(overlay, RELAY, HOST))
    overlay.subscriber(at=RIGHT, filter_="x > 10")
    assert len(interests(overlay, RELAY, HOST)) == asked


def test_a_lost_child_is_asked_for_no_longer() -> None:
    """Its filters leave the relay's own interest."""
    overlay = tree()
    overlay.subscriber(at=LEFT, filter_="x > 0")
    overlay.unlink(RELAY, LEFT)
    overlay.publisher(at=HOST).publish("a", x=1)
    assert overlay.names_sent(HOST, RELAY) == []
    assert overlay.nodes[RELAY].broker.streams()[PUBEND]["children"] == 0


def test_a_new_parent_is_asked_in_full_and_the_former_one_is_told() -> None:
    """A link straight to the pubend's broker is shorter than the way over the relay."""
    overlay = tree()
    subscriber, publisher = overlay.subscriber(at=LEFT, filter_="x > 0"), overlay.publisher(at=HOST)
    overlay.link(LEFT, HOST)
    overlay.run(1.0)
    (asked,) = interests(overlay, LEFT, HOST)
    assert (asked.full, asked.add) == (True, ["x > 0"])
    assert interests(overlay, LEFT, RELAY)[-1].add == []
    publisher.publish("a", x=1)
    assert subscriber.received == overlay.names_sent(HOST, LEFT) == ["a"]
    assert overlay.names_sent(RELAY, LEFT) == []


def test_knowledge_of_a_former_parent_is_left_out() -> None:
    """It is asked for again, so a broker believes one neighbour at a time about a stream."""
    overlay = tree()
    subscriber, publisher = overlay.subscriber(at=LEFT), overlay.publisher(at=HOST)
    with overlay.keeping_back(Knowledge, to=LEFT) as late:
        publisher.publish("a")
        overlay.link(LEFT, HOST)
    overlay.deliver(*(each for each in late if each.source == RELAY and each.names))
    assert overlay.nodes[LEFT].broker.stats()["disbelieved"] == 1
    overlay.until(lambda: subscriber.received == ["a"])


# --- upwards: NACKs ---


def test_a_nack_for_what_the_relay_has_is_answered_from_its_cache() -> None:
    """Only the child's link carries the message a second time."""
    overlay = tree()
    subscriber, publisher = overlay.subscriber(at=LEFT), overlay.publisher(at=HOST)
    with overlay.losing(Knowledge, to=LEFT):
        publisher.publish("a")
    publisher.publish("b")
    overlay.until(lambda: subscriber.received == ["a", "b"])
    assert overlay.names_sent(HOST, RELAY) == ["a", "b"]
    assert overlay.names_sent(RELAY, LEFT) == ["a", "b", "a"]


def test_of_a_nack_only_what_the_relay_lacks_goes_on() -> None:
    """The relay answers what it can, and asks for the rest."""
    overlay = tree()
    subscriber, publisher = overlay.subscriber(at=LEFT), overlay.publisher(at=HOST)
    publisher.publish("a")
    with overlay.losing(Knowledge, to=LEFT):
        publisher.publish("lost on the second link")
        with overlay.losing(Knowledge, to=RELAY):
            publisher.publish("lost on the first link")
    publisher.publish("b")
    overlay.until(lambda: len(subscriber.received) == 4)
    assert subscriber.received == ["a", "lost on the second link", "lost on the first link", "b"]
    assert overlay.names_sent(HOST, RELAY).count("lost on the second link") == 1


@pytest.mark.parametrize("children", [(LEFT,), (LEFT, RIGHT)])
def test_what_was_asked_a_moment_ago_is_not_asked_again(children: tuple[int, ...]) -> None:
    """However many children miss something, the parent hears of it once."""
    overlay = tree()
    subscribers = [overlay.subscriber(at=child) for child in children]
    publisher = overlay.publisher(at=HOST)
    with overlay.losing(Knowledge, to=RELAY):
        publisher.publish("a")
    publisher.publish("b")
    overlay.until(lambda: all(subscriber.received == ["a", "b"] for subscriber in subscribers))
    assert len(overlay.sent(Nack, source=RELAY, target=HOST)) == 1


def test_what_is_gone_from_the_log_is_told_to_all_below() -> None:
    """A NACK for released ticks is answered by `Released`: those who wait are told a gap instead of waiting for ever."""
    overlay = tree()
    subscriber, publisher = overlay.subscriber(at=LEFT), overlay.publisher(at=HOST)
    with overlay.losing(Knowledge, to=RELAY):
        publisher.publish("gone")
    ((_, tick),) = overlay.log_with_ticks(HOST)
    overlay.crash(HOST)  # its cache still had it
    overlay.run_out_of_space(HOST, up_to=tick)
    overlay.restart(HOST)
    overlay.run(5.0)
    assert subscriber.gaps == [(PUBEND, subscriber.starts[PUBEND], tick)]
    publisher.reconnect()
    publisher.publish("next")
    overlay.run(1.0)
    assert subscriber.received == ["next"]
