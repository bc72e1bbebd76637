"""What an operator sees of a broker's admission control: the covering graph, the reservations, and the free capacity."""

from __future__ import annotations

from itertools import islice
from typing import Final

from postroad.core.broker.admission.advertisements import AdvertisementGraph
from postroad.core.broker.admission.ledger import CPU, LOCAL
from postroad.core.broker.admission.reservations import Reservations
from postroad.core.broker.admission.spreading import AdvertisementSpread
from postroad.core.broker.admission_settings import AdmissionSettings
from postroad.core.protocol import admission as a
from postroad.core.protocol.packets import pubend_broker

RESERVATIONS_LISTED: Final = 1_000


def admission_state(
    broker: int,
    settings: AdmissionSettings,
    question: a.AskAdmission,
    graph: AdvertisementGraph,
    reservations: Reservations,
    spread: AdvertisementSpread,
) -> a.AdmissionState:
    """Describe the state of a broker, within the limits of the question."""
    return a.AdmissionState(
        broker,
        str(settings.criterion),
        _nodes(graph, question.nodes),
        len(graph),
        len(spread),
        _resources(settings, reservations),
        _reservations(reservations),
        len(reservations),
    )


def _nodes(graph: AdvertisementGraph, most: int) -> list[a.AdvertisedFilter]:
    """List the nodes with the highest rates; covering ones come before those they cover, since rates grow upwards."""
    nodes = sorted(graph.nodes(), key=lambda node: (-node.millirate, -node.count, str(node.filter)))[:most]
    places = {id(node): place for place, node in enumerate(nodes)}
    return [
        a.AdvertisedFilter(
            str(node.filter),
            node.count,
            node.millirate,
            node.own.millirate,
            sorted({pubend_broker(pubend) for pubend in node.shares}),
            sorted(places[id(each)] for each in node.successors if id(each) in places),
        )
        for node in nodes
    ]


def _resources(settings: AdmissionSettings, reservations: Reservations) -> list[a.ResourceUse]:
    ledger = reservations.ledger
    capacities = ledger.capacities
    found = [
        a.ResourceUse(a.CPU, 0, ledger.brought(CPU), capacities.cpu_millirate, settings.cpu_rate is None),
        a.ResourceUse(a.MEMORY, 0, ledger.memory_used, capacities.memory_bytes, settings.memory_bytes is None),
    ]
    for link, broker in sorted(reservations.neighbours.items(), key=lambda item: item[1]):
        found.append(a.ResourceUse(a.LINK, broker, ledger.brought(link), capacities.of_link(link)))
    return found


def _reservations(reservations: Reservations) -> list[a.ReservedFilter]:
    return [
        a.ReservedFilter(
            str(entry.filter),
            reservations.flow_origin(entry.holder),
            0 if entry.holder.link == LOCAL else reservations.neighbours.get(entry.holder.link, 0),
            entry.count,
            entry.decided,
        )
        for entry in islice(reservations.entries(), RESERVATIONS_LISTED)
    ]
