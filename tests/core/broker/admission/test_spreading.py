"""How advertisements get to every broker, how long they live, and how publishers are held to them."""

from __future__ import annotations

from dataclasses import replace

from tests.core.broker.overlay import Overlay, Publisher

from postroad.core.broker.admission.publisher_gate import RateHistory
from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.admission import AdvertisementEntry, Advertisements, AdvertisementsWanted
from postroad.core.protocol.packets import PublishRefused, pubend_id
from postroad.core.protocol.rights import OPEN
from postroad.errors import OutsideAdvertisementError, SkewError

A, B, C, D = 1, 2, 3, 4
ON = AdmissionSettings(Criterion(Policy.FULL))


def line(*brokers: int, settings: AdmissionSettings | None = None) -> Overlay:
    return Overlay.line(*brokers, config=BrokerConfig(admission=settings or AdmissionSettings()))


def known(overlay: Overlay, at: int) -> list[tuple[str, int]]:
    """Return the advertised filters that a broker knows, with their rates in messages per second."""
    graph = overlay.nodes[at].broker.admission.graph
    return sorted((str(node.filter), node.own.millirate // 1000) for node in graph.nodes())


def advertising(overlay: Overlay, filter_: str, rate: float, *, at: int = A, name: str | None = None) -> Publisher:
    publisher = overlay.publisher(at=at)
    publisher.advertise(filter_, rate, name=name)
    overlay.run(0.1)
    return publisher


def test_every_broker_knows_every_advertisement() -> None:
    overlay = line(A, B, C)
    advertising(overlay, "price > 1", 5.0)
    advertising(overlay, "price > 2", 7.0, at=C)
    assert known(overlay, A) == known(overlay, B) == known(overlay, C) == [("price > 1", 5), ("price > 2", 7)]


def test_an_advertisement_goes_down_the_tree_of_its_broker_once() -> None:
    """In a ring, each broker gets it from its neighbour on the way to the publisher, and from nobody else."""
    overlay = line(A, B, C)
    overlay.link(C, A)
    overlay.run(0.2)
    publisher = advertising(overlay, "a", 1.0)
    before = len(overlay.travels)
    publisher.advertise("b", 1.0)
    overlay.run(0.1)
    news = [(each.source, each.target) for each in overlay.travels[before:] if isinstance(each.packet, Advertisements)]
    assert sorted(news) == [(A, B), (A, C)]


def test_an_advertisement_ends_when_it_is_withdrawn() -> None:
    overlay = line(A, B)
    publisher = advertising(overlay, "a", 1.0)
    handle = publisher.advertise("b", 1.0)
    publisher.unadvertise(handle)
    overlay.run(0.1)
    assert known(overlay, B) == [("a", 1)]


def test_an_advertisement_ends_with_the_connection_of_its_client() -> None:
    overlay = line(A, B)
    advertising(overlay, "a", 1.0).disconnect()
    overlay.run(0.1)
    assert known(overlay, B) == []


def test_a_durable_advertisement_lives_until_it_is_withdrawn() -> None:
    """Also over the loss of its client and a restart of its broker."""
    overlay = line(A, B)
    publisher = advertising(overlay, "a", 1.0, name="feed")
    publisher.disconnect()
    overlay.run(0.1)
    assert known(overlay, B) == [("a", 1)]
    overlay.crash(A)
    overlay.restart(A)
    assert known(overlay, A) == known(overlay, B) == [("a", 1)]
    other = overlay.publisher(at=A)
    other.unadvertise(9, name="feed")
    overlay.run(0.1)
    assert known(overlay, A) == known(overlay, B) == []
    overlay.crash(A)
    overlay.restart(A)
    assert known(overlay, B) == []


def test_a_durable_advertisement_is_accepted_when_it_is_on_disk() -> None:
    overlay = line(A)
    publisher = overlay.publisher(at=A)
    overlay.writes_finish = False
    publisher.advertise("a", 1.0, name="feed", wait=False)
    overlay.run(0.5)
    assert not publisher.advertised
    overlay.writes_finish = True
    overlay.finish_writes()
    overlay.until(lambda: bool(publisher.advertised))


def test_a_durable_advertisement_that_is_made_again_elsewhere_ends_here() -> None:
    overlay = line(A, B)
    advertising(overlay, "a", 1.0, name="feed").disconnect()
    overlay.run(1.0)
    advertising(overlay, "a", 2.0, at=B, name="feed")
    overlay.run(0.5)
    assert known(overlay, A) == known(overlay, B) == [("a", 2)]


def test_a_session_advertisement_of_a_broker_that_restarted_is_gone() -> None:
    overlay = line(A, B)
    advertising(overlay, "a", 1.0)
    overlay.crash(A)
    overlay.restart(A)
    overlay.run(0.5)
    assert known(overlay, B) == []


def test_a_broker_that_was_cut_off_learns_what_changed() -> None:
    overlay = line(A, B)
    publisher = advertising(overlay, "a", 1.0)
    first = publisher.advertise("b", 1.0)
    overlay.unlink(A, B)
    publisher.unadvertise(first)
    publisher.advertise("c", 1.0)
    assert known(overlay, B) == [("a", 1), ("b", 1)], "its publisher may be there all the time"
    overlay.link(A, B)
    overlay.run(0.5)
    assert known(overlay, B) == [("a", 1), ("c", 1)]


def test_advertisements_follow_a_changed_route() -> None:
    overlay = line(A, B, C)
    overlay.link(C, A)
    overlay.run(0.2)
    publisher = advertising(overlay, "a", 1.0)
    overlay.unlink(A, C)
    publisher.advertise("b", 1.0)
    overlay.run(0.5)
    assert known(overlay, C) == [("a", 1), ("b", 1)]
    assert overlay.sent(AdvertisementsWanted, source=C, target=B)[-1].version > 0, "it asks with the version that it has"


def test_a_list_that_is_long_comes_in_several_packets() -> None:
    overlay = line(A, B)
    overlay.unlink(A, B)
    publisher = overlay.publisher(at=A)
    for number in range(1000):
        publisher.advertise(f"symbol = 'a rather long name of a symbol {number}'", 1.0, wait=False)
    overlay.link(A, B)
    overlay.run(0.5)
    assert len(overlay.sent(Advertisements, target=B)) > 1
    assert known(overlay, A) == known(overlay, B)
    assert len(known(overlay, B)) == 1000


def test_a_broker_cannot_advertise_for_the_pubends_of_another() -> None:
    overlay = line(A, B)
    advertising(overlay, "a", 1.0)
    (link,) = overlay.nodes[B].links
    entry = AdvertisementEntry(1, pubend_id(B), "b", 1000)
    forged = Advertisements(A, 1 << 60, 0, [entry], [])
    overlay.nodes[B].broker.receive(forged, link=link, now=overlay.now)
    overlay.settle()
    assert known(overlay, B) == [("a", 1)]
    assert len(overlay.nodes[B].refused) == 1


# --- publishers ---


def test_a_message_outside_of_the_advertisement_is_refused_with_a_reason() -> None:
    overlay = line(A)
    publisher = advertising(overlay, "price > 5", 100.0)
    publisher.publish("in", price=6)
    publisher.publish("out", price=5)
    overlay.run(0.2)
    assert overlay.logged(A) == ["in"]
    (refused,) = publisher.refused
    assert isinstance(refused, PublishRefused)
    assert refused.code == OutsideAdvertisementError.code
    assert "price = 5" in refused.reason


def test_what_waits_is_dropped_when_its_publisher_is_opened_again() -> None:
    """Its repetition may be refused, as here by the clock, and must not be taken then (seed 5000265)."""
    overlay = line(A)
    overlay.subscriber(A, name="keeps the log")
    publisher = advertising(overlay, "", 2.0)
    publisher.publish("a", "b", "c", "d")
    overlay.run(0.1)
    publisher.open()
    overlay.set_clock_back(A, seconds=20.0)
    overlay.run(0.1)
    publisher.send_again("c", "d")
    assert publisher.refused[0].code == SkewError.code
    overlay.run(3.0)
    assert overlay.logged(A) == ["a", "b"]


def test_a_client_that_advertises_nothing_may_publish_anything() -> None:
    overlay = line(A)
    publisher = overlay.publisher(at=A)
    publisher.publish(*"abcdefgh", price=1)
    overlay.run(0.1)
    assert len(overlay.logged(A)) == 8


def test_a_publisher_is_held_to_its_rate() -> None:
    """It may send a burst of one second, and what exceeds the rate waits; nothing is lost, and the order stays."""
    overlay = line(A)
    overlay.subscriber(A, name="keeps the log")
    publisher = advertising(overlay, "", 10.0)
    names = [f"m{number:02}" for number in range(40)]
    publisher.publish(*names)
    overlay.run(0.05)
    assert overlay.logged(A) == names[:10]
    overlay.run(1.0)
    assert 19 <= len(overlay.logged(A)) <= 21
    overlay.run(3.0)
    assert overlay.logged(A) == names
    assert publisher.acknowledged == names


def test_what_waits_is_dropped_with_its_connection_and_can_be_sent_again() -> None:
    overlay = line(A)
    overlay.subscriber(A, name="keeps the log")
    publisher = advertising(overlay, "", 2.0)
    publisher.publish("a", "b", "c", "d")
    publisher.disconnect()
    overlay.run(5.0)
    assert overlay.logged(A) == ["a", "b"]
    publisher.reconnect()
    publisher.send_again("a", "b", "c", "d")
    overlay.run(1.0)
    assert overlay.logged(A) == ["a", "b", "c", "d"]


def test_each_advertisement_has_its_own_rate() -> None:
    overlay = line(A)
    publisher = advertising(overlay, "kind = 'a'", 1.0)
    publisher.advertise("kind = 'b'", 5.0)
    publisher.publish("b1", "b2", kind="b")
    publisher.publish("a1", "a2", kind="a")
    overlay.run(0.05)
    assert overlay.logged(A) == ["b1", "b2", "a1"]


def test_a_publisher_that_declares_nothing_gets_the_configured_default() -> None:
    """Only where admission control is on: the default counts like an advertisement of everything."""
    overlay = line(A, B, settings=replace(ON, default_rate=50.0))
    publisher = overlay.publisher(at=A)
    overlay.run(0.1)
    assert known(overlay, B) == [("TRUE", 50)]
    publisher.advertise("a", 3.0)
    overlay.run(0.1)
    assert known(overlay, B) == [("a", 3)]


def test_the_rate_profile_comes_before_the_configured_default() -> None:
    overlay = line(A, settings=replace(ON, publisher_rates=((0, 12.0),)))
    assert overlay.publisher(at=A).number == 0
    assert [rate for _, rate in known(overlay, A)] == [12]


def test_the_recent_history_of_a_client_comes_before_the_configured_default() -> None:
    overlay = line(A, settings=replace(ON, default_rate=100.0))
    link = 9_999
    role = overlay.nodes[A].broker.admission
    role.own.client_up(link, "feed")
    for second in range(11):
        role.own.published(link, 20, float(second))
        if second in {9, 10}:
            role.own.link_lost(link)
            role.own.client_up(link, "feed")
            role.own.publisher_opened(link, second, pubend_id(A), float(second))
            overlay.run(0.1)
            assert [rate for _, rate in known(overlay, A)] == [100 if second == 9 else 40], (
                "twice the peak, once it is known for long"
            )


def test_a_history_keeps_the_most_of_a_second_and_forgets_it_after_some_minutes() -> None:
    """Silence after a burst does not make the burst look slow."""
    history = RateHistory()
    history.add(30, 0.2)
    assert history.peak == 30, "also before the second is over"
    history.add(20, 0.9)
    history.add(1, 100.0)
    assert history.peak == 50
    history.add(2, 301.0)
    assert history.peak == 50
    history.add(2, 602.0)
    assert history.peak == 2


def test_a_client_that_withdraws_its_last_advertisement_is_held_to_a_default_again() -> None:
    overlay = line(A, B, settings=replace(ON, default_rate=50.0))
    publisher = overlay.publisher(at=A)
    first, second = publisher.advertise("a", 3.0), publisher.advertise("b", 4.0)
    publisher.unadvertise(first)
    overlay.run(0.1)
    assert known(overlay, B) == [("b", 4)]
    publisher.unadvertise(second)
    overlay.run(0.1)
    assert known(overlay, B) == [("TRUE", 50)]
    names = [f"m{number}" for number in range(70)]
    publisher.publish(*names)
    assert overlay.logged(A) == names[:50], "a second of the default rate"
    publisher.disconnect()
    overlay.run(0.1)
    assert known(overlay, B) == []


def test_a_durable_advertisement_that_another_client_changes_does_not_come_back_with_the_first() -> None:
    overlay = line(A, B)
    first = advertising(overlay, "a", 1.0, name="feed")
    advertising(overlay, "b", 2.0, name="feed")
    assert known(overlay, B) == [("b", 2)]
    first.open()
    overlay.run(0.1)
    assert known(overlay, B) == [("b", 2)]


def test_the_rate_profile_finds_a_client_that_returns_with_another_number_by_its_identity() -> None:
    """Its first publisher was measured; after a restart of the broker with that profile, a new one gets its rate."""
    overlay = line(A, settings=ON)
    overlay.rights = replace(OPEN, owner="shop")
    measured = overlay.publisher(at=A).number
    assert measured is not None
    overlay.crash(A)
    overlay.configs[A] = BrokerConfig(admission=replace(ON, publisher_rates=((measured, 12.0),)))
    overlay.restart(A)
    publisher = overlay.publisher(at=A)
    assert publisher.number != measured
    assert [rate for _, rate in known(overlay, A)] == [12]
    assert publisher.advertised[publisher.advertise("a")] == 12_000
