"""A link state costs what it changes, however many pubends are known."""

from __future__ import annotations

from collections import Counter

import pytest

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.holding.release import Releasing
from postroad.core.broker.machine import Broker
from postroad.core.broker.relaying.link_state import PUBENDS_MAX
from postroad.core.broker.relaying.stream import Stream
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import BrokerState, ClientUp, LinkUp, Store, Stored
from postroad.core.protocol.packets import LinkState, Subscribe

LINK, CLIENT, NEIGHBOUR = 1, 2, 9
EACH = 256
OTHERS = range(100, 120)


def drain(broker: Broker) -> list[Output]:
    """Take all orders; what is to be stored is stored at once."""
    taken: list[Output] = []
    while orders := broker.outputs():
        taken += orders
        for order in orders:
            if isinstance(order, Store):
                broker.fact(Stored(order.token), now=0.0)
    return taken


def state(origin: int, sequence: int, *, pubends: int = EACH, cost: int = 1) -> LinkState:
    return LinkState(origin, 1, sequence, [(NEIGHBOUR, cost)], [origin << 8 | place for place in range(pubends)])


def broker_with_others(subscriptions: int = 0) -> Broker:
    """Return a broker with a neighbour, behind which others host hundreds of pubends each."""
    broker = Broker(BrokerState(1, 1, ()), BrokerConfig())
    broker.clock(1_700_000_000_000)
    broker.fact(LinkUp(LINK, NEIGHBOUR, 1, 1), now=0.0)
    broker.fact(ClientUp(CLIENT, "client"), now=0.0)
    broker.receive(LinkState(NEIGHBOUR, 1, 1, [(1, 1), *((each, 1) for each in OTHERS)], []), link=LINK, now=0.0)
    drain(broker)
    for handle in range(subscriptions):
        broker.receive(Subscribe(handle, f"x = {handle}"), link=CLIENT, now=0.0, packet=handle + 1)
    drain(broker)
    for each in OTHERS:
        broker.receive(state(each, 1), link=LINK, now=0.0)
        drain(broker)
    return broker


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often parents of streams are set and holds are looked through."""
    counted: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counting(self: object, *arguments: object, **keywords: object) -> object:
            counted[name] += 1
            return original(self, *arguments, **keywords)

        monkeypatch.setattr(owner, name, counting)

    count(Stream, "set_parent")
    count(Releasing, "tell")
    return counted


def test_a_link_state_without_news_touches_no_stream(calls: Counter[str]) -> None:
    """A new sequence alone changes no way, and no pubend is looked at."""
    broker = broker_with_others()
    calls.clear()
    for sequence in range(2, 12):
        broker.receive(state(100, sequence), link=LINK, now=0.0)
        drain(broker)
    assert not calls


def test_other_pubends_of_one_broker_touch_only_its_streams(calls: Counter[str]) -> None:
    """Of the thousands that are known, those of the broker concerned are looked at."""
    broker = broker_with_others()
    calls.clear()
    broker.receive(state(100, 2, pubends=EACH - 1), link=LINK, now=0.0)
    drain(broker)
    assert calls == {"set_parent": EACH - 1, "tell": 1}


def test_holds_for_new_pubends_are_told_once_for_all_subscriptions(calls: Counter[str]) -> None:
    """A broker with 256 pubends that comes to four subscriptions is no 1,024 looks at all holds."""
    broker = broker_with_others(subscriptions=4)
    calls.clear()
    broker.receive(LinkState(NEIGHBOUR, 1, 2, [(1, 1), *((each, 1) for each in (*OTHERS, 200))], []), link=LINK, now=0.0)
    broker.receive(state(200, 1), link=LINK, now=0.0)
    drain(broker)
    assert calls == {"set_parent": EACH, "tell": 2}


def test_known_brokers_are_stored_once_for_all_that_were_heard_of_together() -> None:
    """Each record of them names all: one write for one turn, not one for each packet."""
    broker = broker_with_others()
    for each in OTHERS:
        broker.receive(state(each, 2, pubends=3), link=LINK, now=0.0)
    stores = [order for order in drain(broker) if isinstance(order, Store)]
    assert sum(key == "known-brokers" for order in stores for key, _ in order.changes) == 1


def test_pubends_beyond_the_maximum_are_not_followed() -> None:
    """A neighbour with a bug cannot make a broker follow any number of pubends."""
    broker = broker_with_others()
    neighbours = [(1, 1), *((each, 1) for each in range(100, 100 + 2 * PUBENDS_MAX // EACH))]
    broker.receive(LinkState(NEIGHBOUR, 1, 2, neighbours, []), link=LINK, now=0.0)
    for each, _ in neighbours[1:]:
        broker.receive(state(each, 2), link=LINK, now=0.0)
        drain(broker)
    assert len(broker.streams()) == PUBENDS_MAX
