"""What the console shows of admission control at its own broker: what is advertised, reserved and free, and what would fit."""

from __future__ import annotations

from typing import Any, Final

from postroad.client.connection import Client
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import MEMORY, MILLI, ResourceUse
from postroad.core.protocol.rights import Rights

ROWS_MAX: Final = 200


async def describe_admission(client: Client) -> dict[str, Any]:
    """Return the broker's resources, reservations and advertisements as plain values."""
    state = await client.admission_state(ROWS_MAX)
    advertised = sorted(state.nodes, key=lambda node: (-node.millirate, node.filter))
    return {
        "broker": state.broker,
        "criterion": state.criterion,
        "resources": [_describe_use(use) for use in state.resources],
        "advertisements": state.advertisements,
        "advertised": [
            {"filter": node.filter, "count": node.count, "per_s": node.millirate / MILLI, "brokers": node.brokers}
            for node in advertised[:ROWS_MAX]
        ],
        "reservation_count": state.reservation_count,
        "reservations": [
            {
                "filter": each.filter,
                "origin": each.origin,
                "neighbour": each.neighbour,
                "subscriptions": each.subscriptions,
                "decided": each.decided,
            }
            for each in state.reservations[:ROWS_MAX]
        ],
    }


def _describe_use(use: ResourceUse) -> dict[str, Any]:
    unit = 1 if use.resource == MEMORY else MILLI
    return {
        "name": f"link to broker {use.neighbour}" if use.neighbour else use.resource,
        "unit": "bytes" if use.resource == MEMORY else "msg/s",
        "used": use.used / unit,
        "limit": None if use.limit is None else use.limit / unit,
        "measured": use.measured,
    }


async def explain_admission(client: Client, rights: Rights, text: str) -> dict[str, Any]:
    """Tell whether a subscription would be admitted, and who would refuse it why. Nothing is reserved."""
    told = await client.explain_subscription(rights.subscribable(Filter(text)))
    return {
        "admitted": told.admitted,
        "brokers": told.brokers,
        "refusals": [str(each) for each in told.refusals],
        "largest_per_s": None if told.largest is None else told.largest / MILLI,
        "fitting": told.fitting,
        "lowest_per_s": told.lowest / MILLI,
        "highest_per_s": told.highest / MILLI,
    }
