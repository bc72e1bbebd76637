"""The port of a broker: clients and other brokers connect to the same one, and hello tells them apart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from postroad.errors import ListenError, TooManyConnectionsError
from postroad.runtime.config import Limits, split_address
from postroad.runtime.peer import Peer
from postroad.transport.channel import Channel
from postroad.wire.packets.session import Hello

log = logging.getLogger("postroad.listener")

BACKLOG: Final = 1024


class Listener:
    """Accepts connections while there is room; `make` gives each new one its peer."""

    def __init__(
        self, address: str, limits: Limits, make: Callable[[Hello | None], Peer], count: Callable[[], tuple[int, int]]
    ) -> None:
        self.address: Final = address
        self.port = 0
        self._limits: Final = limits
        self._make: Final = make
        self._count: Final = count
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        host, port = split_address(self.address)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        except OSError as error:
            raise ListenError(f"cannot listen on {self.address}: {error.strerror or error}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self) -> Channel:
        peer = self._make(None)
        connections, handshakes = self._count()
        if connections > self._limits.connections_max or handshakes > self._limits.handshakes_max:
            peer.refuse(TooManyConnectionsError(f"{connections} connections, {handshakes} of them unidentified"))
        else:
            peer.limit_handshake(self._limits.handshake_s)
        return peer.channel

    async def stop(self) -> None:
        """Accept nothing more; connections that exist stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
