"""Faults that strike between a reservation and its decision, which others hit by luck only.

Each lies in wait for the next request that one broker sends another, and strikes once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeAlias

from postroad.core.broker.admission_settings import Policy
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import Reserve, Verdict
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Packet
from postroad.sim.brokers import BrokerNode
from postroad.sim.overlay import Overlay

DOWN_S: Final = 0.3
CUT_S: Final = (0.2, 3.0)
Strike: TypeAlias = Callable[[Overlay, random.Random, BrokerNode, LinkId, Reserve], None]


def admission_fault(overlay: Overlay, chance: random.Random) -> str:
    """Lie in wait for the next request for a reservation, and disturb it in one of the ways below."""
    kind = chance.choice(list(STRIKES))
    if all(node.config.admission.criterion.policy is Policy.OFF for node in overlay.nodes.values()):
        return ""

    def watch(node: BrokerNode, link: LinkId, packet: Packet, came: bool) -> None:
        if came and isinstance(packet, Reserve) and packet.wait_ms and not packet.dry and link in node.links:
            disarm(overlay)
            overlay.traits[f"admission: {kind}"] += 1
            overlay.world.note("fault", f"{kind}: broker {node.broker} was asked for {packet.filter}")
            STRIKES[kind](overlay, chance, node, link, packet)

    for node in overlay.nodes.values():
        node.watch_packet = watch
    return f"{kind}, at the next request"


def disarm(overlay: Overlay) -> None:
    for node in overlay.nodes.values():
        node.watch_packet = None


def asked_broker_dies(overlay: Overlay, chance: random.Random, node: BrokerNode, _link: LinkId, _packet: Reserve) -> None:
    """Let a broker die when it has reserved and does not know the decision yet."""
    _crash(overlay, chance, node)


def asking_broker_dies(overlay: Overlay, chance: random.Random, node: BrokerNode, link: LinkId, _packet: Reserve) -> None:
    _crash(overlay, chance, overlay.nodes[node.links[link][0]])


def verdict_lost(overlay: Overlay, _chance: random.Random, node: BrokerNode, link: LinkId, packet: Reserve) -> None:
    """Break the connection when the verdict is on its way."""

    def watch(sender: BrokerNode, by: LinkId, sent: Packet, came: bool) -> None:
        if not came and isinstance(sent, Verdict) and (sender, by, sent.number) == (node, link, packet.number):
            disarm(overlay)
            overlay.world.after(0.0, node.cable_of(link).reset)

    node.watch_packet = watch


def verdict_late(overlay: Overlay, _chance: random.Random, node: BrokerNode, link: LinkId, packet: Reserve) -> None:
    """Let the broker that was asked stand still until nobody waits for its verdict any more."""
    del link
    overlay.world.after(0.0, node.pause, 1.5 * packet.wait_ms / 1000)


def partition(overlay: Overlay, chance: random.Random, node: BrokerNode, link: LinkId, _packet: Reserve) -> None:
    cable = node.cable_of(link)
    overlay.world.after(0.0, cable.cut)
    overlay.world.after(chance.uniform(*CUT_S), cable.heal)


def competing_request(overlay: Overlay, chance: random.Random, _node: BrokerNode, _link: LinkId, packet: Reserve) -> None:
    """Let another client ask for the same while the brokers decide."""
    wanted = Filter(packet.filter)
    asked = [each for client in overlay.clients.values() for each in client.following if Filter(each.filter) == wanted]
    rivals = [client for client in overlay.clients.values() if client.alive and asked and asked[0] not in client.following]
    if not rivals:
        return
    count = overlay.traits["admission: rivals"] = overlay.traits["admission: rivals"] + 1
    chance.choice(rivals).follow(asked[0].filter, subscription=f"rival{count}")


def _crash(overlay: Overlay, chance: random.Random, node: BrokerNode) -> None:
    overlay.world.after(0.0, node.crash)
    overlay.world.after(DOWN_S * chance.uniform(0.1, 5.0), node.start_if_down)


STRIKES: Final[dict[str, Strike]] = {
    "a broker dies that was asked": asked_broker_dies,
    "a broker dies that asked": asking_broker_dies,
    "a verdict is lost": verdict_lost,
    "a verdict is late": verdict_late,
    "the link of a request is cut": partition,
    "a request competes": competing_request,
}
