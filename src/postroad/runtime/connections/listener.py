"""The port of a broker: clients and other brokers connect to the same one, and hello tells them apart.

Connections are accepted here and not by the event loop's server, for three reasons: the port is bound before the services start
and opened after them; a burst is accepted a few at a time; and a connection too many costs one descriptor for a moment.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from postroad.errors import ListenError, TooManyConnectionsError
from postroad.runtime.config import Limits, split_address
from postroad.runtime.connections.peer import Peer, shorten
from postroad.wire.codec import encode
from postroad.wire.packets.session import Error

log = logging.getLogger("postroad.listener")

BACKLOG: Final = 1024
ACCEPTS_PER_TURN: Final = 32
SHUTDOWN_S: Final = 5.0  # how long the end of TLS may take
RETRY_S: Final = 0.5  # after the operating system had no room for another connection
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Accepts connections while there is room; `make` gives each new one its peer. `bind`, then `start`, then `stop`."""

    def __init__(
        self,
        address: str,
        limits: Limits,
        connections_max: int,
        make: Callable[[str], Peer],
        count: Callable[[], tuple[int, int]],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self.address: Final = address
        self.port = 0
        self.connections_max: Final = connections_max
        self.refused = 0  # connections that were one too many
        self.failures = 0  # the operating system had no room
        self._limits: Final = limits
        self._make: Final = make
        self._count: Final = count
        self._context: Final = context  # for TLS; asked for each connection, since certificates are renewed
        self.tls_failures = 0  # connections whose TLS handshake failed
        self._sockets: list[socket.socket] = []
        self._attaching: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    async def bind(self) -> None:
        """Take the port. Nobody can connect yet."""
        self._loop = asyncio.get_running_loop()
        host, port = split_address(self.address)
        with self._describe_errors():
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(bind_socket(family, kind, protocol, address))
        self.port = self._sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Open the port."""
        with self._describe_errors():
            for each in self._sockets:
                each.listen(BACKLOG)
        self._watch()

    async def stop(self) -> None:
        """Accept nothing more; connections that exist stay."""
        if self._retry is not None:
            self._retry.cancel()
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            self._loop.remove_reader(each.fileno())
            each.close()
        if self._attaching:
            await asyncio.wait(self._attaching)

    @contextmanager
    def _describe_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            for each in self._sockets:
                each.close()
            self._sockets = []
            raise ListenError(f"cannot listen on {self.address}: {error.strerror or error}") from error

    # --- connections -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._retry = None
        for each in self._sockets:
            self._loop.add_reader(each.fileno(), self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        """Accept those who wait, a few at a time: the other connections have their turn in between."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._wait_for_room(error)
                return
            accepted.setblocking(False)
            self._admit(accepted, str(address[0]))

    def _wait_for_room(self, error: OSError) -> None:
        """Look again in a moment: with the socket watched, the loop would turn without a pause."""
        if error.errno not in _NO_ROOM:
            log.warning("a connection could not be accepted: %s", error)
            return
        self.failures += 1
        log.error("no connection can be accepted: %s; trying again in %g s", error.strerror, RETRY_S)
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_S, self._watch)

    def _admit(self, accepted: socket.socket, host: str) -> None:
        connections, handshakes = self._count()
        try:
            if connections >= self.connections_max or handshakes >= self._limits.handshakes_max:
                raise TooManyConnectionsError(f"{connections} connections, {handshakes} of them unidentified")  # noqa: TRY301
            peer = self._make(host)
        except TooManyConnectionsError as error:
            self.refused += 1
            _turn_away(accepted, None if self._context() is not None else error)
            return
        task = self._loop.create_task(self._attach(accepted, peer))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, accepted: socket.socket, peer: Peer) -> None:
        context = self._context()
        handshake_s, shutdown_s = (None, None) if context is None else (self._limits.handshake_s, SHUTDOWN_S)
        try:
            await self._loop.connect_accepted_socket(
                lambda: peer.channel,
                accepted,
                ssl=context,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=shutdown_s,
            )
        except OSError as error:
            self.tls_failures += context is not None
            log.info("a connection was closed before it was set up: %s", shorten(str(error)))
            accepted.close()
            peer.lost()
        else:
            peer.limit_handshake(self._limits.handshake_s)


def bind_socket(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    """Return a socket with this address, which does not listen yet."""
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def _turn_away(accepted: socket.socket, error: TooManyConnectionsError | None) -> None:
    """Say why, as far as that goes without waiting (not where TLS would come first), and close."""
    with suppress(OSError):
        if error is not None:
            accepted.send(b"".join(encode(Error.of(error), 0)))
        accepted.shutdown(socket.SHUT_WR)
        accepted.recv(1 << 16)  # unread bytes would make the end a reset, which may overtake the error
    accepted.close()
