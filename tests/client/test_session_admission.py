"""The session and admission: advertisements on every connection, and what becomes of a subscription that is not admitted."""

from __future__ import annotations

from postroad.core.protocol.admission import (
    Advertise,
    AdvertiseAccepted,
    Refusal,
    SubscriptionRejected,
    Unadvertise,
    Unadvertised,
)
from postroad.core.protocol.orders import Send
from postroad.core.protocol.packets import OpenPublisher, Packet, Subscribe, Subscribed
from postroad.core.session.events import (
    AdvertisementAccepted,
    AdvertisementEnded,
    AdvertisementFailed,
    SubscriptionActive,
    SubscriptionFailed,
)
from postroad.core.session.machine import Session
from postroad.errors import AdmissionError, FilterSyntaxError

LINK, BROKER = 1, 7
REFUSAL = Refusal(3, "cpu", 0, 10_000, 4_000)


def connected(session: Session, link: int = LINK) -> None:
    session.connected(link, BROKER, now=0.0)


def sent(session: Session) -> list[Send]:
    return session.outputs()


def packets(orders: list[Send]) -> list[Packet]:
    return [each.message for each in orders]


def test_an_advertisement_is_made_before_a_publisher_opens_and_again_after_a_reconnect() -> None:
    """A publisher that opens first would be held to a default rate."""
    session = Session()
    session.open_publisher()
    key = session.advertise("a", 5_000)
    connected(session)
    first = sent(session)
    assert packets(first) == [Advertise(key, "a", 5_000), OpenPublisher(reopens=True)]
    session.receive(AdvertiseAccepted(key, 5_000), link=LINK, now=0.0, packet=first[0].packet)
    assert session.events() == [AdvertisementAccepted(key, 5_000)]
    session.disconnected(LINK, now=1.0)
    connected(session, 2)
    assert packets(sent(session))[0] == Advertise(key, "a", 5_000)


def test_an_advertisement_is_made_on_every_link() -> None:
    session = Session()
    key = session.advertise("a", 5_000)
    connected(session)
    session.connected(2, 8, now=0.0, main=False)
    assert packets(sent(session)).count(Advertise(key, "a", 5_000)) == 2


def test_a_withdrawn_advertisement_is_not_made_again() -> None:
    session = Session()
    key = session.advertise("a", 5_000, "feed")
    connected(session)
    sent(session)
    session.unadvertise(key)
    (order,) = sent(session)
    assert order.message == Unadvertise(key, "feed")
    session.receive(Unadvertised(key), link=LINK, now=0.0, packet=order.packet)
    assert session.events() == [AdvertisementEnded(key)]
    session.disconnected(LINK, now=1.0)
    connected(session, 2)
    assert packets(sent(session)) == []


def test_a_refused_advertisement_is_told_and_given_up() -> None:
    session = Session()
    key = session.advertise("a >", 5_000)
    connected(session)
    (order,) = sent(session)
    error = FilterSyntaxError("no value", "a >", 3)
    session.refused(order.packet, error, link=LINK, now=0.0)
    assert session.events() == [AdvertisementFailed(key, error)]
    session.disconnected(LINK, now=1.0)
    connected(session, 2)
    assert packets(sent(session)) == []


def test_a_subscription_that_is_not_admitted_fails_with_the_reasons() -> None:
    session = Session()
    connected(session)
    key = session.subscribe("price > 1", criterion="full")
    (order,) = sent(session)
    assert isinstance(order.message, Subscribe)
    assert order.message.criterion == "full"
    rejected = SubscriptionRejected(order.message.handle, [3, 7], [REFUSAL], 4_000, "price > 1 AND price < 2")
    session.receive(rejected, link=LINK, now=0.0, packet=order.packet)
    (event,) = session.events()
    assert isinstance(event, SubscriptionFailed)
    assert event.subscription == key
    error = event.error
    assert isinstance(error, AdmissionError)
    assert (error.refusals, error.brokers, error.largest_rate) == ((REFUSAL,), (3, 7), 4.0)
    assert error.fitting_filter == "price > 1 AND price < 2"
    assert "broker 3 would have 10 messages/s more on its CPU, which has room for 4" in str(error)


def test_a_subscription_that_was_active_asks_again_until_there_is_room() -> None:
    """It lost its place with its connection. Its positions say where it goes on, so nothing is lost meanwhile."""
    session = Session()
    connected(session)
    key = session.subscribe("price > 1")
    (order,) = sent(session)
    assert isinstance(order.message, Subscribe)
    session.receive(Subscribed(order.message.handle, {5: 100}), link=LINK, now=0.0, packet=order.packet)
    session.disconnected(LINK, now=1.0)
    connected(session, 2)
    again = next(each for each in sent(session) if isinstance(each.message, Subscribe))
    assert isinstance(again.message, Subscribe)
    session.events()
    session.receive(SubscriptionRejected(again.message.handle, [3], [REFUSAL]), link=2, now=1.0, packet=again.packet)
    assert session.events() == []
    assert key in session.subscriptions
    session.wake(now=10.0)
    third = next(each for each in sent(session) if isinstance(each.message, Subscribe))
    assert isinstance(third.message, Subscribe)
    assert third.message.positions == {5: 100}
    session.receive(Subscribed(third.message.handle, {5: 100}), link=2, now=10.0, packet=third.packet)
    assert [type(each) for each in session.events()] == [SubscriptionActive]
