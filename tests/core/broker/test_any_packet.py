"""Whatever packet comes, and whenever: no exception, no poisoned packet, no broken record, and service goes on.

The packets are drawn from the registry (`odd_packets.py`), so a new packet is attacked as soon as it exists. A seed that fails
repeats with `pytest -k 'test_no_packet_stops_a_broker[SEED]'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tests.core.broker.machines import Machine
from tests.core.broker.odd_packets import OddPackets, packets_from
from tests.core.broker.overlay import Overlay

from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import ClientUp, Fact, LinkLost, LinkUp, Send
from postroad.core.protocol.packets import pubend_id
from postroad.wire.codec import validate
from postroad.wire.registry import Direction

ATTACKER = 9
FROM_CLIENT, FROM_BROKER = 4000, 4001  # the links of the attacker
PACKETS = 400


class CheckedOverlay(Overlay):
    """An overlay in which every packet that is sent is one that its receiver accepts."""

    def _do(self, node: Machine, order: Output) -> None:
        if isinstance(order, Send):
            validate(order.message)
        super()._do(node, order)


def attack(overlay: Overlay, target: int, chance: Random) -> None:
    """Send a broker odd packets as a client and as a neighbour, between the steps of its ordinary work."""
    broker = overlay.nodes[target].broker
    now_tick = overlay.wall_ms << 16
    pubends = [pubend_id(number) for number in (1, 2, 3, ATTACKER)]
    sensible: dict[str, Sequence[Any]] = {
        "pubend": pubends,
        "target": [target, 1, 3],
        "source": [ATTACKER, 1, 2, 3],
        "origin": [ATTACKER, 1, 2],
        "hops": [32, 3],
        "name": ["known", "new"],
        "handle": [1, 2],
        "publisher": [1, 2],
        "epoch": [0, 1, 1 << 32, (1 << 32) + 1],
        "lo": [0, now_tick - 1000, now_tick],
        "hi": [now_tick + 1, now_tick + (1 << 16)],
        "tick": [now_tick, now_tick + 5],
        "version": [1, 2, 3],
    }
    odd = OddPackets(chance, [*pubends, 1, 2, 3, ATTACKER, now_tick, now_tick + 1000], ["known", "new"], sensible)
    kinds = {
        FROM_CLIENT: packets_from(Direction.CLIENT_TO_BROKER),
        FROM_BROKER: packets_from(Direction.BROKER_TO_BROKER),
    }
    facts: dict[int, Fact] = {FROM_CLIENT: ClientUp(FROM_CLIENT), FROM_BROKER: LinkUp(FROM_BROKER, ATTACKER, 1)}
    for fact in facts.values():
        broker.fact(fact, now=overlay.now)
    for _ in range(PACKETS):
        link = chance.choice((FROM_CLIENT, FROM_BROKER))
        packet, rows = odd.draw(chance.choice(kinds[link]))
        broker.receive(packet, link=link, now=overlay.now, batch=rows, packet=chance.getrandbits(32))
        if chance.random() < 0.3:
            overlay.settle()
        if chance.random() < 0.1:
            overlay.run(chance.choice((0.05, 0.3, 1.1)))
        if chance.random() < 0.01:
            broker.fact(LinkLost(link), now=overlay.now)
            broker.fact(facts[link], now=overlay.now)
    for link in facts:
        broker.fact(LinkLost(link), now=overlay.now)


@pytest.mark.parametrize("seed", range(16))
def test_no_packet_stops_a_broker(seed: int) -> None:
    """After hundreds of odd packets, new and old subscribers get what is published, and the broker starts again from its disk."""
    chance = Random(seed)
    target = chance.choice((1, 2, 3))
    overlay = CheckedOverlay.line(1, 2, 3, config=BrokerConfig(has_neighbours=True))
    publisher = overlay.publisher(1)
    old = overlay.subscriber(3, "n = 2", name="known" if chance.random() < 0.5 else None)

    attack(overlay, target, chance)
    overlay.run(40)  # until nobody waits for an answer of the attacker any more

    publisher.connect(1)
    publisher.number = None
    publisher.open()
    new = overlay.subscriber(3, "n = 2")
    publisher.publish("afterwards", n=2)
    overlay.run(10)
    assert new.received == ["afterwards"]
    assert "afterwards" in old.received or old.gaps or old.ended  # a broker that we trust may take a name; its client is told

    overlay.crash(target)
    overlay.restart(target)
    overlay.run(2)
    assert overlay.nodes[target].broker.stats()["damaged_records"] == 0
