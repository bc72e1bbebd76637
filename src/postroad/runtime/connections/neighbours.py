"""The links to other brokers: at most one for each, with the bandwidth that is configured or set for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from postroad.core.protocol.orders import LinkLost, LinkUp
from postroad.errors import HandshakeError, TooManyConnectionsError
from postroad.runtime.connections.links import newer_wins
from postroad.runtime.connections.peer import Peer

log = logging.getLogger("postroad.node")

NEIGHBOURS_MAX: Final = 1024  # a link state names at most 4,096


class Neighbours:
    """The brokers that this one has a link to. `tell` takes each link that comes or goes."""

    def __init__(self, broker: int, tell: Callable[[LinkUp | LinkLost], None]) -> None:
        self._broker: Final = broker
        self._tell: Final = tell
        self._by_broker: dict[int, Peer] = {}
        self._bandwidths: dict[int, int] = {}  # by broker: the limits that were configured or set, in bytes per second

    def find(self, broker: int) -> Peer | None:
        """Return the present link to a broker."""
        return self._by_broker.get(broker)

    def check(self, broker: int) -> None:
        """Raise if this broker takes no link to the other one."""
        if not broker:
            raise HandshakeError("a broker must state its id, a number above 0")
        if len(self._by_broker) >= NEIGHBOURS_MAX and broker not in self._by_broker:
            raise TooManyConnectionsError(f"this broker has links to {NEIGHBOURS_MAX} other brokers and takes no more")
        if broker == self._broker:
            raise HandshakeError(f"broker {broker} was configured to link to itself, or two brokers have this id")

    def adopt(self, peer: Peer) -> None:
        """Use a new link, unless there is a better one already."""
        existing = self._by_broker.get(peer.broker)
        if peer.bandwidth_bytes_per_s:
            self._bandwidths.setdefault(peer.broker, peer.bandwidth_bytes_per_s)
            self._apply_bandwidth(peer.broker)
        if existing is not None:
            if not newer_wins(existing, peer, self._broker):
                peer.channel.close(reason="a link between these brokers exists already")
                return
            self.drop(existing)
            existing.channel.close(reason="a newer link replaces this one")
        self._by_broker[peer.broker] = peer
        self._apply_bandwidth(peer.broker)
        log.info("link to %r is up", peer)
        self._tell(LinkUp(peer.link, peer.broker, peer.incarnation, peer.cost))

    def drop(self, peer: Peer) -> None:
        """Forget a link, if it is the present one."""
        if self._by_broker.get(peer.broker) is peer:
            del self._by_broker[peer.broker]
            log.info("link to %r is down", peer)
            self._tell(LinkLost(peer.link))

    def limit_bandwidth(self, broker: int, bytes_per_s: int) -> None:
        """Limit what goes to a broker, on its present link and on later ones; 0 for no limit."""
        self._bandwidths[broker] = bytes_per_s
        self._apply_bandwidth(broker)

    def _apply_bandwidth(self, broker: int) -> None:
        peer, bytes_per_s = self._by_broker.get(broker), self._bandwidths.get(broker, 0)
        if peer is not None and peer.channel.bandwidth_bytes_per_s != bytes_per_s:
            log.info("sending at most %s bytes per second to %r", bytes_per_s or "any number of", peer)
            peer.channel.limit_bandwidth(bytes_per_s)
