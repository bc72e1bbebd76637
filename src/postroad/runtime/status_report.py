"""How a running broker is: what its machine, its connections and its disk report, in one `BrokerReport`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from postroad.core.protocol.status import (
    CLIENTS_MAX,
    LINKS_MAX,
    BrokerReport,
    ClientReport,
    LinkReport,
    StreamReport,
    SubscriptionReport,
)
from postroad.runtime.connections.peer import Peer
from postroad.wire.packets.session import Role

NAME_SHOWN_MAX: Final = 255


def make_report(
    *,
    stats: Mapping[str, object],
    name: str,
    software: str,
    address: str,
    started_ms: int,
    wall_ms: int,
    peers: Iterable[Peer],
    streams: Sequence[StreamReport],
    subscriptions: Sequence[SubscriptionReport],
    notices: Sequence[str],
) -> BrokerReport:
    """Put a report together; `stats` are the figures that the metrics have, too."""
    identified = [peer for peer in peers if peer.role is not None]
    figures = {key: float(value) for key, value in stats.items() if isinstance(value, int | float)}
    links = [_report_link(peer) for peer in identified if peer.role is Role.BROKER]
    clients = [_report_client(peer) for peer in identified if peer.role is Role.CLIENT]
    return BrokerReport(
        int(figures["broker"]),
        name,
        software,
        address,
        int(figures["incarnation"]),
        started_ms,
        wall_ms,
        figures,
        sorted(links, key=lambda link: link.broker)[:LINKS_MAX],
        list(streams),
        clients[:CLIENTS_MAX],
        list(subscriptions),
        int(figures["subscriptions"]),
        list(notices),
    )


def _report_link(peer: Peer) -> LinkReport:
    channel = peer.channel
    return LinkReport(
        peer.broker,
        peer.name[:NAME_SHOWN_MAX],
        peer.cost,
        channel.backlog,
        channel.sent_bytes,
        channel.received_bytes,
        channel.outbox.dropped_frames,
        channel.bandwidth_bytes_per_s,
    )


def _report_client(peer: Peer) -> ClientReport:
    channel = peer.channel
    return ClientReport(
        peer.link, peer.name[:NAME_SHOWN_MAX], peer.publishes, channel.backlog, channel.sent_bytes, channel.received_bytes
    )
