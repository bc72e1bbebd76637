"""Is the other end of a connection still there? A ping when it is quiet, and the end of a connection that stays quiet."""

from __future__ import annotations

import logging

from postroad.errors import BufferLimitError
from postroad.runtime.config import Links
from postroad.runtime.connections.peer import Peer
from postroad.wire.packets.session import Role

log = logging.getLogger("postroad.node")


def probe(peer: Peer, links: Links, now: float) -> None:
    """Ping a quiet peer, and give up one that has been quiet, or has read nothing, for too long."""
    if peer.role is None:
        return
    if peer.channel.unread:
        unread_s = now - peer.channel.taken_at
        if unread_s > links.client_timeout_s:
            peer.refuse(BufferLimitError(f"the peer did not read for {unread_s:.0f} s"))
        return
    if not peer.channel.reading:
        peer.channel.ping()  # we do not hear its probes, so we tell it by ourselves that we are there
        return
    broker = peer.role is Role.BROKER
    quiet = now - peer.channel.received_at
    if quiet > (links.timeout_s if broker else links.client_timeout_s):
        log.warning("received nothing from %r for %.1f s", peer, quiet)
        peer.channel.abort()
    elif quiet >= (links.heartbeat_s if broker else links.client_heartbeat_s) * 0.9:
        peer.channel.ping()
