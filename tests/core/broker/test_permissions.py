"""What each identity may do at a broker: every packet of a client is compared with its permissions."""

from __future__ import annotations

from random import Random

import pytest
from tests.core.broker.machines import Machines
from tests.core.broker.odd_packets import OddPackets, packets_from
from tests.core.broker.overlay import Overlay, Publisher

from postroad.core.batch.build import build_batches
from postroad.core.broker.context import BrokerConfig
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import (
    Acknowledge,
    AcknowledgeRows,
    EpochOpened,
    Flow,
    ListPubends,
    OpenEpoch,
    OpenPublisher,
    Packet,
    Pubends,
    PublishColumns,
    SealEpoch,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from postroad.core.protocol.rights import EVERYTHING, NOTHING, OPEN, Rights
from postroad.errors import DurableFilterError, InvalidValueError, PermissionDeniedError, UnknownHandleError
from postroad.types import MessageId
from postroad.wire.registry import Direction

OF_THE_CONNECTION = (Acknowledge, AcknowledgeRows, Flow, Unsubscribe)  # they concern a subscription that was permitted
EU = Filter("region = 'EU'")


def shop(**changes: object) -> Rights:
    fields = {"owner": "shop", "publish": EVERYTHING, "subscribe": EVERYTHING, "admin": False, "trace": False, **changes}
    return Rights(**fields)  # type: ignore[arg-type]  # a test's own choice


def asked(machines: Machines, packet: Packet, *, link: int = 500, rights: Rights = NOTHING) -> list[Exception]:
    """Let a client of broker 1 send a packet; return what was refused."""
    node = machines.nodes[1]
    machines.rights = rights
    if link not in node.broker.clients:
        machines.client(1, link)
    before = len(node.refused)
    machines.give(1, packet, link=link, request=1)
    machines.run(0.2)
    return [error for _, error in node.refused[before:]]


@pytest.mark.parametrize("kind", packets_from(Direction.CLIENT_TO_BROKER), ids=lambda kind: kind.__name__)
def test_an_identity_without_permissions_is_refused_whatever_it_sends(kind: type[Packet]) -> None:
    """Derived from the registry of packets: one that is added tomorrow is closed until somebody decides who may send it."""
    if kind in OF_THE_CONNECTION or kind.__name__ == "AskTracks":
        pytest.skip("concerns a handle of the connection, or is compared beside the machine (tests/tracking/tap)")
    odd = OddPackets(Random(1), [1], ["name"], {"filter": ["", "n > 1"]})
    overlay = Overlay.line(1)
    for _ in range(3):
        packet, _ = odd.draw(kind)
        (error,) = asked(overlay, packet)
        assert isinstance(error, PermissionDeniedError), error


def test_a_subscription_gets_what_its_identity_may_see() -> None:
    overlay = Overlay.line(1, 2)
    overlay.rights = shop(subscribe=EU)
    subscriber = overlay.subscriber(2, "price > 10 OR region = 'US'")
    overlay.rights = OPEN
    publisher = overlay.publisher(1)
    publisher.publish("dear", price=20, region="EU")
    publisher.publish("cheap", price=1, region="EU")
    publisher.publish("american", price=20, region="US")
    publisher.publish("nowhere", price=20)
    overlay.run(2.0)
    assert subscriber.received == ["dear"]


def test_a_publisher_is_held_to_its_filter_message_by_message() -> None:
    overlay = Overlay.line(1)
    subscriber = overlay.subscriber(1)
    overlay.rights = shop(publish=EU)
    publisher = overlay.publisher(1)
    publisher.publish("good", region="EU")
    publisher.publish("bad", region="US")
    publisher.publish("none", n=1)
    publisher.publish("again", region="EU")
    overlay.run(1.0)
    assert subscriber.received == ["good", "again"]
    assert [refused.code for refused in publisher.refused] == [PermissionDeniedError.code] * 2


def test_columns_are_held_to_the_filter_as_rows_are() -> None:
    """Runs of messages that do not match are refused, with their ids; the others of the same batch are published."""
    overlay = Overlay.line(1)
    subscriber = overlay.subscriber(1)
    overlay.rights = shop(publish=EU)
    publisher = overlay.publisher(1)
    assert publisher.number is not None
    regions = ["EU", "US", "US", "EU", "US"]
    ids = [bytes(MessageId.make(publisher.number, 1, overlay.wall_ms, n)) for n in range(5)]
    (batch,) = build_batches([(ids[n], {"region": region}, str(n).encode()) for n, region in enumerate(regions)])
    overlay.nodes[1].broker.receive(PublishColumns(publisher.number), link=publisher.link, now=overlay.now, batch=batch, packet=1)
    overlay.settle()
    overlay.run(1.0)
    assert subscriber.received == ["0", "3"]
    assert [(refused.first, refused.last) for refused in publisher.refused] == [(ids[1], ids[2]), (ids[4], ids[4])]


def test_only_the_identity_that_opened_a_publisher_resumes_it_also_after_a_restart() -> None:
    """Otherwise another client publishes slightly ahead of its owner, whose next messages then look like repetitions."""
    overlay = Overlay.line(1)
    overlay.rights = shop()
    publisher = overlay.publisher(1)
    publisher.publish("mine")
    overlay.run(0.5)
    assert publisher.number is not None
    for _ in range(2):
        (error,) = asked(overlay, OpenPublisher(publisher.number), link=501, rights=Rights("desk"))
        assert isinstance(error, UnknownHandleError)
        overlay.crash(1)
        overlay.restart(1)
    overlay.rights = shop()
    publisher.reconnect()
    publisher.publish("still mine")
    overlay.run(0.5)
    assert publisher.acknowledged == ["mine", "still mine"]


def test_a_publisher_that_nobody_is_known_to_own_is_resumed_by_nobody() -> None:
    overlay = Overlay.line(1)
    opened = overlay.publisher(1)
    overlay.crash(1)
    overlay.restart(1)
    assert opened.number is not None
    (error,) = asked(overlay, OpenPublisher(opened.number), rights=shop())
    assert isinstance(error, UnknownHandleError)


def test_a_durable_name_belongs_to_its_identity() -> None:
    """Another identity with the same name has a subscription of its own, on whichever broker."""
    overlay = Overlay.line(1, 2)
    overlay.rights = shop()
    mine = overlay.subscriber(1, "n > 0", name="orders")
    overlay.rights = Rights("desk", admin=False)
    other = overlay.subscriber(2, "n > 5", name="orders")
    assert not other.refusals
    overlay.rights = OPEN
    overlay.publisher(1).publish("low", n=1)
    overlay.run(2.0)
    assert (mine.received, other.received) == (["low"], [])
    assert {name for name in overlay.nodes[1].metadata if name.startswith("durable/")} == {"durable/shop/orders"}


def test_a_durable_subscription_keeps_to_the_permission_when_it_returns() -> None:
    """What was published while it was away comes from the log, through the same permission."""
    overlay = Overlay.line(1, 2)
    overlay.rights = shop(subscribe=EU)
    subscriber = overlay.subscriber(1, "", name="orders")
    subscriber.disconnect()
    overlay.rights = OPEN
    publisher = overlay.publisher(2)
    publisher.publish("european", region="EU")
    publisher.publish("american", region="US")
    overlay.run(1.0)
    overlay.rights = shop(subscribe=EU)
    again = overlay.subscriber(2, "", name="orders")
    overlay.run(2.0)
    assert again.received == ["european"]


def test_a_durable_subscription_of_a_wider_permission_is_not_continued() -> None:
    overlay = Overlay.line(1)
    overlay.rights = shop()
    overlay.subscriber(1, "", name="orders").disconnect()
    errors = asked(overlay, Subscribe(1, "", "orders"), rights=shop(subscribe=EU))
    assert [type(error) for error in errors] == [DurableFilterError]


def test_an_administrator_reaches_a_name_of_another_identity() -> None:
    overlay = Overlay.line(1)
    overlay.rights = shop()
    overlay.subscriber(1, "n > 0", name="orders").disconnect()
    errors = asked(overlay, Subscribe(1, "n > 0", "/shop/orders"), link=501, rights=Rights("desk", admin=False))
    assert [type(error) for error in errors] == [PermissionDeniedError]
    assert asked(overlay, Subscribe(1, "n > 0", "/shop/orders"), link=502, rights=Rights("ops")) == []
    assert overlay.nodes[1].told(Subscribed)


def test_a_list_of_durable_names_shows_ones_own() -> None:
    overlay = Overlay.line(1, 2)
    for owner, broker in (("shop", 1), ("desk", 1), ("shop", 2)):
        overlay.rights = Rights(owner, admin=False)
        overlay.subscriber(broker, "n > 0", name=f"orders at {broker}")

    def listed(rights: Rights, link: int) -> list[str]:
        asked(overlay, ListPubends(durables=True), link=link, rights=rights)
        overlay.run(1.0)
        (answer,) = [p for at, p in overlay.nodes[1].sent if isinstance(p, Pubends) and at == link]
        assert isinstance(answer, Pubends)
        return [entry.name for entry in answer.durables]

    assert listed(shop(), 601) == ["orders at 1", "orders at 2"]
    assert listed(Rights("ops"), 602) == ["/desk/orders at 1", "/shop/orders at 1", "/shop/orders at 2"]
    assert listed(OPEN, 603) == ["desk/orders at 1", "shop/orders at 1", "shop/orders at 2"]


def test_a_long_list_ends_for_an_identity_where_its_names_end() -> None:
    """Pages of others' names are not walked through, and a page says that more follows only if one's own do."""
    overlay = Overlay.line(1)
    for owner in ("a", "b"):
        overlay.rights = Rights(owner, admin=False)
        for number in range(260):
            overlay.subscriber(1, "", name=f"n{number:03}", wait=False)
    overlay.run(3.0)
    found, after, more = [], "", True
    while more:
        asked(overlay, ListPubends(durables=True, after=after), link=700, rights=Rights("a", admin=False))
        answer = overlay.nodes[1].told(Pubends)[-1]
        assert isinstance(answer, Pubends)
        found += [entry.name for entry in answer.durables]
        after, more = found[-1], answer.more
    assert found == [f"n{number:03}" for number in range(260)]


def test_a_batch_of_a_named_writer_belongs_to_its_identity() -> None:
    """Nobody seals, or opens again, what another identity writes under the same name."""
    overlay = Overlay.line(1)
    assert asked(overlay, OpenEpoch("spark", 1), rights=shop()) == []
    (error,) = asked(overlay, SealEpoch("spark", 1, 5), link=501, rights=Rights("desk", admin=False))
    assert isinstance(error, UnknownHandleError)
    assert asked(overlay, OpenEpoch("spark", 1), link=501, rights=Rights("desk", admin=False)) == []
    publishers = {packet.publisher for packet in overlay.nodes[1].told(EpochOpened) if isinstance(packet, EpochOpened)}
    assert len(publishers) == 2


def test_a_name_is_bounded_together_with_its_identity() -> None:
    overlay = Overlay.line(1)
    (error,) = asked(overlay, Subscribe(1, "", "x" * 255), rights=shop())
    assert isinstance(error, InvalidValueError)


def test_packets_that_wait_for_the_first_ticks_keep_their_permission() -> None:
    """A broker with empty files parks subscriptions; what it carries out later has the permitted name and filter."""
    overlay = Overlay(BrokerConfig(newcomer_wait_s=2.0, has_neighbours=True))
    overlay.start(1)
    assert asked(overlay, Subscribe(1, "n > 0", "orders"), rights=shop(subscribe=EU)) == []
    overlay.start(2)
    overlay.link(1, 2)
    overlay.run(8.0)
    assert "durable/shop/orders" in overlay.nodes[1].metadata


def test_the_broker_forgets_the_permissions_of_a_lost_link() -> None:
    overlay = Overlay.line(1)
    overlay.rights = shop()
    Publisher(overlay, 1).disconnect()
    assert not overlay.nodes[1].broker.context.rights


def test_permitted_filters_cannot_be_asked_for_by_text() -> None:
    """The key under which the permitted part is kept is no text that a peer can send."""
    with pytest.raises(UnicodeEncodeError):
        shop(subscribe=EU).filter_key("n > 1").encode()
