"""Links to other brokers: dial the configured neighbours, again and again, with growing pauses.

Two brokers that name each other would end up with two links. The one dialled by the broker with the lower id stays; of two
dialled by the same side the newer stays, since the older is most likely dead without knowing it. Both ends decide alike.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import Final

from postroad.runtime.config import Links as LinksConfig
from postroad.runtime.config import Neighbour, split_address
from postroad.runtime.connections.peer import Peer
from postroad.wire.packets.session import Hello

log = logging.getLogger("postroad.links")

QUICK_S: Final = 10.0  # after a link was lost: a broker that restarts is back within that
QUICK_PAUSE_S_MAX: Final = 0.25


def newer_wins(existing: Peer, new: Peer, own_id: int) -> bool:
    """Decide which of two links to one broker stays."""
    if existing.channel.closing or existing.incarnation != new.incarnation:
        return True

    def dialled_by(peer: Peer) -> int:
        return own_id if peer.dialled else peer.broker

    return dialled_by(new) <= dialled_by(existing)


class Dialler:
    """Keeps a link to one neighbour."""

    def __init__(
        self,
        neighbour: Neighbour,
        config: LinksConfig,
        make: Callable[[Hello | None, int], Peer],
        hello: Callable[[int], Hello],
        linked: Callable[[int], Peer | None],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self.neighbour: Final = neighbour
        self._config: Final = config
        self._make: Final = make
        self._hello: Final = hello
        self._linked: Final = linked
        self._context: Final = context
        self._broker: int | None = None  # who was found there

    async def run(self) -> None:
        """Dial for ever; cancel to end."""
        failures = 0
        loop = asyncio.get_running_loop()
        lost_at = loop.time()
        while True:
            peer = self._linked(self._broker) if self._broker is not None else None
            if peer is None:
                peer = await self._dial()
            if peer is not None:
                await asyncio.shield(peer.gone)
                if peer.role is not None:
                    failures, lost_at = 0, loop.time()
                else:
                    failures += 1
                self._broker = peer.broker or self._broker
            else:
                failures += 1
            await asyncio.sleep(self._pause(failures, loop.time() - lost_at))

    async def _dial(self) -> Peer | None:
        host, port = split_address(self.neighbour.address)
        peer = self._make(self._hello(self.neighbour.cost), self.neighbour.cost)
        peer.bandwidth_bytes_per_s = self.neighbour.bandwidth_bytes_per_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await loop.create_connection(lambda: peer.channel, host, port, ssl=self._context())
        except ssl.SSLError as error:
            log.warning("no TLS with %s: %s", self.neighbour.address, error)
            peer.lost()
            return None
        except (OSError, TimeoutError) as error:
            log.debug("cannot reach %s: %s", self.neighbour.address, error)
            peer.lost()
            return None
        peer.limit_handshake(self._config.timeout_s)
        return peer

    def _pause(self, failures: int, lost_s: float) -> float:
        """Return how long to wait: not long soon after a loss, since most brokers that go away are being restarted."""
        longest = min(self._config.retry_s * 2.0 ** min(failures, 16), self._config.retry_s_max)
        if lost_s < QUICK_S:
            longest = min(longest, QUICK_PAUSE_S_MAX)
        return random.uniform(longest / 2, longest)  # noqa: S311  # not a secret
