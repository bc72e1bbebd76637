"""Packets of the queues service over TCP: a thin adapter between frames and `QueueService.handle`.

One connection is one session; `RequestWindow` keeps its requests under way. Reading stops while there are too many of them or the
peer does not read its answers. The broker's own listener mounts the service in the same way.

`python -m postroad.queues.server --listen 127.0.0.1:7070 --store queues.db` serves queues alone, without an overlay.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from typing import Final, Self, cast

from postroad.errors import InvalidValueError, MalformedFrameError, PostgresMissingError, PostroadError, QueueBusyError
from postroad.queues.request_window import RequestWindow
from postroad.queues.service import QueueService
from postroad.runtime.config import check_no_password
from postroad.security.gate import is_loopback
from postroad.storage.queues.base import QueueStorage
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.storage.queues.sqlite import SqliteQueueStorage
from postroad.wire.codec import decode, encode
from postroad.wire.framing import FRAME_BYTES_MAX, FRAME_BYTES_MAX_UNIDENTIFIED, Frame, FrameDecoder
from postroad.wire.packets.session import Error
from postroad.wire.registry import Packet

CONNECTIONS_MAX: Final = 10_000
FAIL_S_MAX: Final = 1.0
"""How long a connection that sent nonsense may wait for the answers to what it sent before."""


class _QueueProtocol(asyncio.Protocol):
    def __init__(self, server: QueueServer) -> None:
        self._server = server
        self._decoder = FrameDecoder(FRAME_BYTES_MAX_UNIDENTIFIED)
        self._transport: asyncio.Transport | None = None
        self._outbox: list[bytes | memoryview] = []
        self._paused = False  # the peer does not read
        self._closing: asyncio.Task[None] | None = None  # the stream made no sense; only this remains to be done
        self.window = RequestWindow(server.service, self._send, self._regulate)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        if not self._server.admit(self):
            self._send(Error.of(QueueBusyError("the server has reached its maximum of connections; try again later")), 0)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._server.forget(self)
        self.window.lost()

    def data_received(self, data: bytes) -> None:
        if self._closing is not None:
            return
        try:
            frames = self._decoder.feed(data)
        except MalformedFrameError as error:
            for frame in error.frames:
                self._start(frame)
            self._closing = asyncio.get_running_loop().create_task(self._fail(error))
            return
        for frame in frames:
            self._start(frame)
        self._regulate()

    def pause_writing(self) -> None:
        self._paused = True
        self.window.set_congested(True)
        self._regulate()

    def resume_writing(self) -> None:
        self._paused = False
        self.window.set_congested(False)
        self._regulate()

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _start(self, frame: Frame) -> None:
        try:
            packet = cast("Packet", decode(frame)[0])
        except PostroadError as error:
            self._send(Error.of(error), frame[1])
        else:
            self.window.receive(packet, frame[1], len(frame[2]))

    async def _fail(self, error: MalformedFrameError) -> None:
        """Answer what came before the nonsense, then say what was wrong and close."""
        await self.window.settle(FAIL_S_MAX)
        self._send(Error.of(error), 0)
        self.close()

    def _send(self, packet: Packet, packet_id: int) -> bool:
        """Collect what becomes ready in one turn of the loop for one write."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self.window.session.client is not None:
            self._decoder.max_bytes = FRAME_BYTES_MAX
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox += encode(packet, packet_id)
        return True

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and self._transport is not None:
            self._transport.write(b"".join(outbox))

    def _regulate(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._paused or self.window.full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class QueueServer:
    """Serves one service on one address. Use as an async context manager; `port` is known then."""

    def __init__(self, service: QueueService, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.service: Final = service
        self._host, self._wanted_port = host, port
        self._connections: set[_QueueProtocol] = set()
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        await self.service.start()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _QueueProtocol(self), self._host, self._wanted_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
            connection.window.lost()
        for connection in connections:
            await connection.window.settle()
        await self._listener.wait_closed()
        await self.service.stop()

    def admit(self, connection: _QueueProtocol) -> bool:
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _QueueProtocol) -> None:
        self._connections.discard(connection)

    def drop_connections(self) -> None:
        """Cut all connections, as a failing network would."""
        for connection in list(self._connections):
            connection.abort()


def open_storage(text: str) -> QueueStorage:
    """Return the storage an address names: `memory`, a PostgreSQL URL, or the path of an SQLite file."""
    if text == "memory":
        return MemoryQueueStorage()
    if text.startswith(("postgresql://", "postgres://")):
        try:
            from postroad.storage.queues.postgres import PostgresQueueStorage  # noqa: PLC0415 - asyncpg is an optional extra
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise PostgresMissingError("queues on PostgreSQL need asyncpg: pip install 'postroad[postgres]'") from error
        return PostgresQueueStorage(text)
    return SqliteQueueStorage(text)


async def _serve(host: str, port: int, store: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with QueueServer(QueueService(open_storage(store)), host=host, port=port) as server:
        sys.stdout.write(f"listening on {host}:{server.port}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve queues alone, without an overlay.")
    parser.add_argument(
        "--listen", default="127.0.0.1:7070", help="host:port to listen on; port 0 chooses a free port, which is printed"
    )
    parser.add_argument("--store", default="queues.db", help="an SQLite file, a postgresql:// URL, or `memory`")
    arguments = parser.parse_args()
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidValueError(f"--listen has the form host:port, not {arguments.listen!r}")
    if not is_loopback(host.strip("[]")):
        raise SystemExit(f"Error: {arguments.listen} can be reached by others; a guarded broker serves queues to them")
    try:
        check_no_password(arguments.store, "--store")
    except PostroadError as error:
        sys.exit(f"Error: {error}  [error {error.code}]")
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - optional

        uvloop.install()
    try:
        asyncio.run(_serve(host, int(port), arguments.store))
    except PostroadError as error:
        sys.exit(f"Error: {error}  [error {error.code}]")


if __name__ == "__main__":
    main()
