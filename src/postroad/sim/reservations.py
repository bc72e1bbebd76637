"""What the brokers of a run have reserved, compared with each other once nobody asks for anything any more.

Each reservation must have a reason, and each admitted subscription all of its reservations: a leak
and a half admission are the two ways in which they can differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from postroad.core.broker.admission.admission import Admission
from postroad.core.broker.admission.reservations import ReservationEntry
from postroad.sim.brokers import BrokerNode


def reservation_faults(nodes: Mapping[int, BrokerNode]) -> Iterator[str]:
    """Say where reservations and subscriptions, or those of two neighbours, do not agree."""
    for node in nodes.values():
        if node.machine is None:
            continue
        role = node.machine.machine.admission
        for entry in role.reservations.entries():
            if not entry.decided:
                yield f"broker {node.broker} has {entry.filter} reserved and not decided"
            elif entry.holder.link not in node.links and not entry.is_local:
                yield f"broker {node.broker} has {entry.filter} reserved for a link that is gone"
            else:
                yield from _of_entry(nodes, node, role, entry)
        for other in nodes.values():
            theirs = _role(nodes, other.broker)
            if theirs is not None and theirs.spread.of_broker(other.broker) != role.spread.of_broker(other.broker):
                yield f"broker {node.broker} knows other advertisements of broker {other.broker} than that broker itself"
        if role.stats()["subscriptions_unreserved"]:
            yield f"broker {node.broker} serves subscriptions that have nothing reserved"
        if not len(role.reservations) and not role.ledger.is_empty:
            yield f"broker {node.broker} has no reservation, and its ledger is not empty"


def _of_entry(nodes: Mapping[int, BrokerNode], node: BrokerNode, role: Admission, entry: ReservationEntry) -> Iterator[str]:
    if entry.is_local:
        users = role.users(entry)
        if users != entry.count:
            yield f"broker {node.broker} has {entry.filter} reserved for {entry.count} subscriptions, and there are {users}"
    else:
        neighbour, link = node.links[entry.holder.link]
        theirs = _role(nodes, neighbour)
        if theirs is None or theirs.reservations.sent_as(link, entry.key[1]) is None:
            yield f"broker {node.broker} has {entry.filter} reserved for broker {neighbour}, which has not reserved it"
    for link in role.reservations.links_needed(entry):
        if link not in entry.sent:
            yield f"broker {node.broker} admitted {entry.filter} without reserving it at broker {node.links[link][0]}"
    for link, number in entry.sent.items():
        neighbour, far_link = node.links[link]
        theirs = _role(nodes, neighbour)
        there = None if theirs is None else theirs.reservations.find((far_link, number))
        if there is None or not there.decided:
            yield f"broker {neighbour} has not reserved {entry.filter}, which broker {node.broker} admitted"


def _role(nodes: Mapping[int, BrokerNode], broker: int) -> Admission | None:
    node = nodes.get(broker)
    return node.machine.machine.admission if node is not None and node.machine is not None else None
