"""Admission along the path of a subscription: requests, verdicts, decisions, and what is released when.

Brokers stand in a line, PHB - IB - SHB, and every link and CPU has room for a few messages a second.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.broker.overlay import Overlay, Publisher, Subscriber

from postroad.core.broker.admission.ledger import CPU, size_of
from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.core.broker.context import BrokerConfig
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import (
    AdmissionExplained,
    Decision,
    ExplainAdmission,
    Refusal,
    Reserve,
    SubscriptionRejected,
    Unadvertise,
    Verdict,
)
from postroad.core.protocol.packets import Subscribe
from postroad.errors import DuplicateHandleError, DurableElsewhereError, InvalidValueError, UnknownHandleError

PHB, IB, SHB, OTHER = 1, 2, 3, 4
FULL = AdmissionSettings(Criterion(Policy.FULL))


def config(settings: AdmissionSettings = FULL, **limits: object) -> BrokerConfig:
    return BrokerConfig(admission=replace(settings, **limits))  # type: ignore[arg-type]


def line(settings: AdmissionSettings = FULL, *brokers: int, configs: dict[int, BrokerConfig] | None = None) -> Overlay:
    return Overlay.line(*(brokers or (PHB, IB, SHB)), config=config(settings), configs=configs)


def limited(broker: int, **limits: object) -> dict[int, BrokerConfig]:
    return {broker: config(FULL, **limits)}


def advertising(overlay: Overlay, filter_: str = "", rate: float = 10.0, *, at: int = PHB) -> Publisher:
    publisher = overlay.publisher(at=at)
    publisher.advertise(filter_, rate)
    overlay.run(0.1)
    return publisher


def reserved(overlay: Overlay) -> dict[int, int]:
    """Return how much each broker's CPU has reserved, where that is anything, in messages per second."""
    used = {number: node.broker.admission.ledger.brought(CPU) // 1000 for number, node in overlay.nodes.items()}
    return {number: rate for number, rate in used.items() if rate}


def is_clean(overlay: Overlay) -> bool:
    """Tell whether no broker has any reservation left."""
    roles = [node.broker.admission for node in overlay.nodes.values()]
    return all(role.ledger.is_empty and not len(role.reservations) for role in roles)


def rejection(subscriber: Subscriber) -> SubscriptionRejected:
    assert subscriber.rejected is not None
    return subscriber.rejected


def is_rejected(subscriber: Subscriber) -> bool:
    return subscriber.rejected is not None


# --- admission ---


def test_a_subscription_that_fits_is_admitted_and_reserved_on_its_path() -> None:
    """Each broker of the path has what the advertisements bring, once."""
    overlay = line()
    publisher = advertising(overlay, rate=10.0)
    subscriber = overlay.subscriber(SHB, "price > 5")
    assert subscriber.is_subscribed
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}
    publisher.publish("m", price=7)
    overlay.until(lambda: subscriber.received == ["m"])


def test_a_broker_off_the_path_has_no_part_in_it() -> None:
    overlay = line(FULL, PHB, IB, SHB, OTHER)
    advertising(overlay, at=IB)
    overlay.subscriber(SHB)
    assert reserved(overlay) == {IB: 10, SHB: 10}
    assert not overlay.sent(Reserve, target=PHB)
    assert not overlay.sent(Reserve, target=OTHER)


def test_without_a_matching_advertisement_nobody_is_asked() -> None:
    overlay = line()
    advertising(overlay, "price > 100")
    assert overlay.subscriber(SHB, "price < 50").is_subscribed
    assert not overlay.sent(Reserve)


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ({"cpu_rate": 8.0}, Refusal(IB, "cpu", 0, 10_000, 8_000)),
        ({"link_rate": 7.0}, Refusal(IB, "bandwidth", SHB, 10_000, 7_000)),
        ({"link_rates": ((SHB, 6.0),)}, Refusal(IB, "bandwidth", SHB, 10_000, 6_000)),
    ],
)
def test_a_broker_that_has_too_little_left_refuses_and_says_why(limits: dict[str, object], refusal: Refusal) -> None:
    """The rejection names the broker, the resource, what was demanded and what there is; and nothing stays reserved."""
    overlay = line(configs=limited(IB, **limits))
    advertising(overlay)
    subscriber = overlay.subscriber(SHB)
    told = rejection(subscriber)
    assert told.refusals == [refusal]
    assert sorted(told.brokers) == [PHB, IB, SHB]
    assert told.largest == refusal.available
    assert is_clean(overlay)
    assert not subscriber.is_subscribed


def test_memory_is_refused_with_bytes() -> None:
    """What is advertised takes memory as well as what is reserved."""
    advertised = size_of(Filter("price > 0"))
    overlay = line(configs=limited(PHB, memory_bytes=advertised + 1_030))
    advertising(overlay, "price > 0")
    assert overlay.subscriber(SHB, "a").is_subscribed
    (refusal,) = rejection(overlay.subscriber(SHB, "b")).refusals
    assert (refusal.broker, refusal.resource, refusal.demanded, refusal.available) == (PHB, "memory", 1_020, 10)


def test_all_brokers_that_refuse_are_named() -> None:
    """Also under `full`, where one is enough."""
    overlay = line(configs={PHB: config(cpu_rate=3.0), SHB: config(cpu_rate=4.0)})
    advertising(overlay)
    told = rejection(overlay.subscriber(SHB))
    assert [(each.broker, each.available) for each in told.refusals] == [(SHB, 4_000), (PHB, 3_000)]
    assert told.largest == 3_000
    assert is_clean(overlay)


def test_what_admitted_interest_brings_already_is_not_charged_again() -> None:
    overlay = line(configs=limited(IB, cpu_rate=10.0, link_rate=10.0))
    advertising(overlay)
    first, second = overlay.subscriber(SHB, "price > 1"), overlay.subscriber(SHB, "price > 2")
    assert first.is_subscribed
    assert second.is_subscribed
    first.unsubscribe()
    second.unsubscribe()
    assert is_clean(overlay)


def test_a_second_client_with_the_same_filter_costs_no_packet() -> None:
    overlay = line()
    advertising(overlay)
    first = overlay.subscriber(SHB, "price > 1")
    asked = len(overlay.sent(Reserve))
    second = overlay.subscriber(SHB, "price > 1")
    assert second.is_subscribed
    assert len(overlay.sent(Reserve)) == asked
    first.unsubscribe()
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}
    second.unsubscribe()
    assert is_clean(overlay)


def test_equal_filters_of_different_texts_leave_nothing_behind() -> None:
    """Their memory is counted by the text of the first (seed 700008 counted one and released the other)."""
    overlay = line()
    advertising(overlay)
    first, second = overlay.subscriber(SHB, "price > 1"), overlay.subscriber(SHB, "((price > 1))")
    first.unsubscribe()
    second.unsubscribe()
    assert is_clean(overlay)


# --- criteria ---


@pytest.mark.parametrize(("share", "admitted"), [("40%", True), ("30%", False), ("full", False), ("off", True)])
def test_a_subscription_may_bring_its_own_criterion(share: str, admitted: bool) -> None:
    """One of three brokers refuses."""
    overlay = line(configs=limited(IB, cpu_rate=5.0))
    advertising(overlay)
    subscriber = overlay.subscriber(SHB, criterion=share)
    assert subscriber.is_subscribed is admitted
    if admitted:
        assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}, "also where it was refused: its load is there"
        subscriber.unsubscribe()
    assert is_clean(overlay)


def test_a_criterion_may_not_be_brought_where_the_operator_forbids_it() -> None:
    overlay = line(configs=limited(SHB, overridable=False))
    subscriber = overlay.subscriber(SHB, criterion="off", wait=False)
    assert [type(each) for each in subscriber.refusals] == [InvalidValueError]


def test_off_sends_and_reserves_nothing() -> None:
    """The default: a subscription is what it was without admission control."""
    overlay = line(AdmissionSettings())
    advertising(overlay)
    assert overlay.subscriber(SHB).is_subscribed
    assert not overlay.sent(Reserve)
    assert is_clean(overlay)


# --- lost and late verdicts ---


def test_a_lost_verdict_counts_as_a_refusal_and_nothing_stays_reserved() -> None:
    overlay = line()
    advertising(overlay)
    with overlay.losing(Verdict, to=IB):
        subscriber = overlay.subscriber(SHB)
    assert [(each.broker, each.resource) for each in rejection(subscriber).refusals] == [(PHB, "no answer")]
    assert is_clean(overlay)


def test_a_late_verdict_changes_nothing() -> None:
    overlay = line()
    advertising(overlay)
    with overlay.keeping_back(Verdict, to=SHB) as kept:
        subscriber = overlay.subscriber(SHB)
    assert [(each.broker, each.resource) for each in rejection(subscriber).refusals] == [(IB, "no answer")]
    overlay.deliver(*kept)
    assert not subscriber.is_subscribed
    assert is_clean(overlay)


def test_a_silent_broker_is_one_refusal_of_a_percentage() -> None:
    overlay = line()
    advertising(overlay)
    with overlay.losing(Verdict, to=IB):
        assert overlay.subscriber(SHB, criterion="40%").is_subscribed
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}


# --- competing requests ---


def test_of_two_requests_for_the_last_capacity_at_most_one_is_admitted() -> None:
    """Both are on their way at the same time, from different brokers."""
    overlay = line(FULL, PHB, IB, SHB, configs=limited(PHB, cpu_rate=10.0))
    overlay.start(OTHER)
    overlay.link(IB, OTHER)
    publisher = overlay.publisher(at=PHB)
    publisher.advertise("kind = 'a'", 10.0)
    publisher.advertise("kind = 'b'", 10.0)
    overlay.run(0.1)
    with overlay.keeping_back(Reserve, to=IB) as kept:
        one = overlay.subscriber(SHB, "kind = 'a'", wait=False)
        other = overlay.subscriber(OTHER, "kind = 'b'", wait=False)
    overlay.deliver(*kept)
    overlay.until(lambda: all(each.is_subscribed or each.rejected is not None for each in (one, other)))
    assert sorted([one.is_subscribed, other.is_subscribed]) == [False, True]
    assert reserved(overlay)[PHB] == 10


def test_capacity_that_is_given_back_can_be_had_again() -> None:
    overlay = line(configs=limited(IB, cpu_rate=10.0))
    publisher = overlay.publisher(at=PHB)
    publisher.advertise("kind = 'a'", 10.0)
    publisher.advertise("kind = 'b'", 10.0)
    overlay.run(0.1)
    first = overlay.subscriber(SHB, "kind = 'a'")
    assert is_rejected(overlay.subscriber(SHB, "kind = 'b'"))
    first.unsubscribe()
    assert overlay.subscriber(SHB, "kind = 'b'").is_subscribed


# --- the end of a reservation ---


def test_a_lost_client_releases_what_it_reserved() -> None:
    overlay = line()
    advertising(overlay)
    subscriber = overlay.subscriber(SHB)
    subscriber.disconnect()
    assert is_clean(overlay)


def test_a_client_that_goes_before_the_verdict_leaves_nothing() -> None:
    overlay = line()
    advertising(overlay)
    with overlay.keeping_back(Verdict) as kept:
        subscriber = overlay.subscriber(SHB, wait=False)
        subscriber.disconnect()
    overlay.deliver(*kept)
    assert is_clean(overlay)


def test_a_client_that_gives_up_before_the_verdict_leaves_nothing() -> None:
    overlay = line()
    advertising(overlay)
    with overlay.keeping_back(Verdict) as kept:
        subscriber = overlay.subscriber(SHB, wait=False)
        subscriber.unsubscribe()
    overlay.deliver(*kept)
    overlay.run(5.0)
    assert subscriber.ended
    assert not subscriber.is_subscribed
    assert is_clean(overlay)


def test_a_durable_subscription_that_waits_for_its_admission_is_not_called_deleted() -> None:
    """Its home is another broker, where it would stay for ever (seed 5000316)."""
    overlay = line()
    advertising(overlay)
    subscriber = overlay.subscriber(IB, name="d")
    subscriber.disconnect()
    with overlay.keeping_back(Verdict) as kept:
        subscriber.come_back(SHB, wait=False)
        subscriber.unsubscribe(forget=True)
        overlay.run(1.0)
    overlay.deliver(*kept)
    overlay.run(5.0)
    assert [type(error) for error in subscriber.refusals] == [DurableElsewhereError]
    assert not overlay.nodes[SHB].broker.admission.stats()["reservations"]
    subscriber.come_back(IB)
    subscriber.unsubscribe(forget=True)
    overlay.run(1.0)
    assert subscriber.ended
    assert is_clean(overlay)


def test_an_anonymous_and_a_durable_subscription_share_a_reservation() -> None:
    overlay = line()
    advertising(overlay)
    one, other = overlay.subscriber(SHB, "price > 1", name="d"), overlay.subscriber(SHB, "price > 1")
    one.disconnect()
    other.unsubscribe()
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}
    one.come_back()
    one.unsubscribe(forget=True)
    overlay.run(0.5)
    assert is_clean(overlay)


def test_a_subscription_that_is_refused_after_its_admission_leaves_nothing() -> None:
    """Its name is in use; that is found out after the brokers have admitted it."""
    overlay = line()
    advertising(overlay)
    overlay.subscriber(SHB, "price > 1", name="mine")
    overlay.subscriber(IB, "price > 1", name="mine", wait=False)
    overlay.run(5.0)
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}
    assert len(overlay.nodes[IB].broker.admission.reservations) == 1, "that of the other broker"


@pytest.mark.parametrize("dies", [SHB, IB])
def test_a_broker_that_dies_between_reserve_and_decide_leaves_nothing(dies: int) -> None:
    overlay = line()
    advertising(overlay)
    with overlay.keeping_back(Verdict):
        subscriber = overlay.subscriber(SHB, wait=False)
        assert reserved(overlay)
        overlay.crash(dies)
    overlay.run(5.0)
    assert not subscriber.is_subscribed
    assert not reserved(overlay)
    overlay.restart(dies)
    overlay.run(5.0)
    assert is_clean(overlay) or dies == IB
    assert overlay.subscriber(SHB).is_subscribed
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}


def test_what_a_dead_broker_had_reserved_is_free_again() -> None:
    overlay = line()
    advertising(overlay)
    overlay.subscriber(SHB)
    overlay.crash(SHB)
    assert is_clean(overlay)


def test_a_partition_releases_and_its_end_reserves_again() -> None:
    overlay = line()
    publisher = advertising(overlay)
    subscriber = overlay.subscriber(SHB)
    overlay.unlink(IB, SHB)
    assert reserved(overlay) == {}
    overlay.link(IB, SHB)
    overlay.run(1.0)
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}
    publisher.publish("m")
    overlay.until(lambda: subscriber.received == ["m"])


def test_a_reservation_moves_with_the_route() -> None:
    overlay = line()
    overlay.start(OTHER)
    overlay.link(PHB, OTHER)
    overlay.link(OTHER, SHB)
    overlay.run(0.2)
    advertising(overlay)
    overlay.subscriber(SHB)
    before = next(number for number in (IB, OTHER) if number in reserved(overlay))
    after = IB if before == OTHER else OTHER
    overlay.unlink(before, SHB)
    overlay.run(1.0)
    assert reserved(overlay) == {PHB: 10, after: 10, SHB: 10}


# --- durable subscriptions ---


def test_a_durable_subscription_keeps_its_reservation_while_its_client_is_away() -> None:
    overlay = line(configs=limited(IB, cpu_rate=10.0))
    publisher = overlay.publisher(at=PHB)
    publisher.advertise("kind = 'a'", 10.0)
    publisher.advertise("kind = 'b'", 10.0)
    overlay.run(0.1)
    subscriber = overlay.subscriber(SHB, "kind = 'a'", name="d")
    subscriber.disconnect()
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}
    assert is_rejected(overlay.subscriber(SHB, "kind = 'b'"))
    subscriber.come_back()
    assert subscriber.is_subscribed
    subscriber.unsubscribe(forget=True)
    overlay.run(0.5)
    assert is_clean(overlay)


def test_a_durable_reservation_survives_a_restart_of_its_broker() -> None:
    overlay = line()
    advertising(overlay)
    overlay.subscriber(SHB, name="d")
    overlay.crash(SHB)
    assert reserved(overlay) == {}
    overlay.restart(SHB)
    overlay.run(1.0)
    assert reserved(overlay) == {PHB: 10, IB: 10, SHB: 10}


def test_a_durable_subscription_takes_its_reservation_to_another_broker() -> None:
    overlay = line()
    advertising(overlay)
    subscriber = overlay.subscriber(SHB, name="d")
    subscriber.disconnect()
    subscriber.come_back(IB)
    overlay.run(3.0)
    assert reserved(overlay) == {PHB: 10, IB: 10}


# --- what is advertised later ---


def test_an_advertisement_that_comes_later_is_reserved_on_its_path() -> None:
    """Nobody is thrown out, and nothing more is admitted that would bring the full link anything."""
    overlay = line(configs=limited(IB, cpu_rate=10.0))
    assert overlay.subscriber(SHB, "kind = 'a'").is_subscribed
    assert reserved(overlay) == {}
    publisher = advertising(overlay, "kind = 'a'", 30.0)
    overlay.run(0.5)
    assert reserved(overlay) == {PHB: 30, IB: 30, SHB: 30}
    publisher.advertise("kind = 'b'", 1.0)
    assert is_rejected(overlay.subscriber(SHB, "kind = 'b'"))
    publisher.disconnect()
    overlay.run(0.5)
    assert reserved(overlay) == {}


# --- what would fit ---


def test_the_narrower_filter_of_a_rejection_fits() -> None:
    overlay = line(configs=limited(IB, cpu_rate=25.0))
    publisher = overlay.publisher(at=PHB)
    for low in range(0, 50, 10):
        publisher.advertise(f"price >= {low} AND price < {low + 10}", 10.0)
    overlay.run(0.1)
    told = rejection(overlay.subscriber(SHB, "price >= 0 AND price < 50"))
    assert told.largest == 25_000
    assert told.fitting is not None
    assert overlay.subscriber(SHB, told.fitting).is_subscribed
    assert reserved(overlay)[IB] == 20


def test_an_explanation_is_what_a_subscription_would_get_and_reserves_nothing() -> None:
    overlay = line(configs=limited(IB, cpu_rate=5.0))
    advertising(overlay, "price > 3", 10.0)
    asker = overlay.subscriber(SHB, "price < 0")
    asker.send(ExplainAdmission("price > 5"))
    overlay.until(lambda: any(isinstance(each, AdmissionExplained) for each in asker.packets))
    told = next(each for each in asker.packets if isinstance(each, AdmissionExplained))
    assert not told.admitted
    assert [each.broker for each in told.refusals] == [IB]
    assert (told.lowest, told.highest, told.publishers) == (0, 10_000, (0, 1))
    asker.unsubscribe()
    assert is_clean(overlay)


# --- hostile input ---


def test_a_handle_that_waits_for_admission_cannot_be_used_again() -> None:
    overlay = line()
    advertising(overlay)
    with overlay.keeping_back(Verdict):
        subscriber = overlay.subscriber(SHB, wait=False)
        subscriber.send(Subscribe(1, "price > 1"))
        assert [type(each) for each in subscriber.refusals] == [DuplicateHandleError]


def test_a_decision_about_an_unknown_reservation_is_ignored() -> None:
    overlay = line()
    (link,) = [link for link, (other, _) in overlay.nodes[IB].links.items() if other == SHB]
    overlay.nodes[IB].broker.receive(Decision(77, admitted=True), link=link, now=overlay.now)
    overlay.nodes[IB].broker.receive(Verdict(77, [SHB], []), link=link, now=overlay.now)
    overlay.settle()
    assert is_clean(overlay)
    assert overlay.nodes[IB].refused == []


def test_a_reservation_of_a_flow_that_was_never_told_is_refused() -> None:
    overlay = line()
    (link,) = [link for link, (other, _) in overlay.nodes[IB].links.items() if other == SHB]
    overlay.nodes[IB].broker.receive(Reserve(1, 5, "a"), link=link, now=overlay.now)
    overlay.settle()
    assert len(overlay.nodes[IB].refused) == 1
    assert is_clean(overlay)


def test_an_unknown_advertisement_cannot_be_withdrawn() -> None:
    overlay = line()
    publisher = overlay.publisher(at=PHB)
    handle = publisher.advertise("a", 1.0)
    publisher.unadvertise(handle)
    publisher.withdrawn.clear()
    publisher.send(Unadvertise(handle))
    assert [type(each) for each in publisher.refusals] == [UnknownHandleError]
