"""How much one identity may keep of what a broker remembers for all: names, named writers, owners of publishers."""

from __future__ import annotations

import pytest
from tests.core.broker.overlay import Overlay
from tests.core.broker.test_permissions import asked, shop

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.publishing import publishers
from postroad.core.protocol.packets import OpenEpoch, OpenPublisher, PublisherOpened, Subscribe
from postroad.core.protocol.rights import Rights
from postroad.errors import TooManyError, UnknownHandleError

DESK = Rights("desk", admin=False)


def overlay_with_names(most: int) -> Overlay:
    overlay = Overlay(BrokerConfig(names_per_identity_max=most))
    overlay.start(1)
    overlay.run(1.0)
    return overlay


def test_an_identity_cannot_take_all_durable_names() -> None:
    """Names without a client count, too: otherwise one identity takes every name of the overlay, connection by connection."""
    overlay = overlay_with_names(2)
    for number in range(2):
        overlay.rights = shop()
        overlay.subscriber(1, "n > 0", name=f"n{number}").disconnect()
    errors = asked(overlay, Subscribe(1, "n > 0", "n2"), link=700, rights=shop())
    assert [type(error) for error in errors] == [TooManyError]
    assert asked(overlay, Subscribe(2, "n > 0", "n1"), link=700, rights=shop()) == []  # its own ones go on
    assert asked(overlay, Subscribe(1, "n > 0", "n2"), link=701, rights=DESK) == []
    assert overlay.nodes[1].broker.uses_by_identity(["shop", "desk"])["shop"]["durable_subscriptions"] == 2


def test_a_name_that_is_deleted_makes_room_for_another() -> None:
    overlay = overlay_with_names(1)
    overlay.rights = shop()
    first = overlay.subscriber(1, "n > 0", name="first")
    first.unsubscribe(forget=True)
    overlay.run(1.0)
    assert asked(overlay, Subscribe(1, "n > 0", "second"), link=700, rights=shop()) == []


def test_an_identity_cannot_take_all_named_writers() -> None:
    overlay = overlay_with_names(2)
    for number in range(2):
        assert asked(overlay, OpenEpoch(f"w{number}", 1), link=700, rights=shop()) == []
    errors = asked(overlay, OpenEpoch("w2", 1), link=700, rights=shop())
    assert [type(error) for error in errors] == [TooManyError]
    assert asked(overlay, OpenEpoch("w1", 2), link=700, rights=shop()) == []
    assert asked(overlay, OpenEpoch("w2", 1), link=701, rights=DESK) == []


def test_who_opens_many_publishers_loses_his_own_and_not_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "PUBLISHERS_OF_IDENTITY_MAX", 2)
    monkeypatch.setattr(publishers, "PUBLISHERS_MAX", 4)
    overlay = Overlay.line(1)

    def opened(link: int, rights: Rights) -> int:
        assert asked(overlay, OpenPublisher(), link=link, rights=rights) == []
        packet = overlay.nodes[1].told(PublisherOpened)[-1]
        assert isinstance(packet, PublisherOpened)
        return packet.publisher

    of_desk = opened(701, DESK)
    of_shop = [opened(700, shop()) for _ in range(6)]
    assert asked(overlay, OpenPublisher(resume=of_desk), link=702, rights=DESK) == []
    assert asked(overlay, OpenPublisher(resume=of_shop[-1]), link=703, rights=shop()) == []
    (error,) = asked(overlay, OpenPublisher(resume=of_shop[0]), link=704, rights=shop())
    assert isinstance(error, UnknownHandleError)
    owners = {key for key in overlay.nodes[1].metadata if key.startswith("publisher-owner/")}
    assert len(owners) == 3
