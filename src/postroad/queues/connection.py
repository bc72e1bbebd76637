"""A client's connection: requests out, each answered by the packet with its id."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from itertools import count
from typing import Final, TypeVar, cast

from postroad import errors
from postroad.errors import CertificateError, ConnectionLostError, PostroadError, QueueBusyError, RemoteError, WireError
from postroad.security.credentials import OPEN, Credentials
from postroad.security.tls import name_in
from postroad.wire.codec import decode, encode
from postroad.wire.framing import FRAME_BYTES_MAX, FrameDecoder
from postroad.wire.packets.session import PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST, Error, Hello, Role, Welcome
from postroad.wire.registry import Packet

PacketT = TypeVar("PacketT", bound=Packet)

REQUESTS_UNDER_WAY_MAX: Final = 10_000
_ID_MASK: Final = 0xFFFF_FFFF


def _by_code() -> dict[int, type[PostroadError]]:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, PostroadError)]
    return {c.code: c for c in classes}


_ERRORS: Final = _by_code()


def error_from(packet: Error) -> PostroadError:
    """Return the exception an Error packet describes.

    A class that keeps more than a text gets the text only: what else it knew stayed with the broker. One that needs more to
    describe itself is replaced by the base that does not, and an unknown code by `RemoteError`.
    """
    found = _ERRORS.get(packet.code)
    if found is None:
        return RemoteError(f"{packet.text} [error {packet.code}]")
    plain = next(c for c in found.__mro__ if issubclass(c, PostroadError) and not _keeps_str(c))
    error = plain.__new__(plain, packet.text)
    error.args = (packet.text,)
    return error


def _keeps_str(found: type[PostroadError]) -> bool:
    return found.__str__ is not PostroadError.__str__


class Connection(asyncio.Protocol):
    """Made by `open`. After a loss every call raises `ConnectionLostError`; the client makes a new one."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._pending: dict[int, asyncio.Future[Packet]] = {}
        self._ids = count(1)
        self._outbox: list[bytes | memoryview] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._reason = "the connection was closed"

    @classmethod
    async def open(cls, host: str, port: int, *, timeout_s: float = 10.0, credentials: Credentials = OPEN) -> Connection:
        loop = asyncio.get_running_loop()
        context = credentials.context
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(cls, host, port, ssl=context)
                if context is not None:
                    await connection.introduce(credentials)
        except ssl.SSLError as error:
            raise CertificateError(f"{host}:{port}: no TLS with this broker: {error}") from error
        except (OSError, TimeoutError) as error:
            raise ConnectionLostError(f"no connection to {host}:{port}: {str(error) or 'it does not answer'}") from error
        return connection

    async def introduce(self, credentials: Credentials) -> None:
        """Say hello, with the token; but only to a broker."""
        try:
            assert self._transport is not None
            name = name_in(self._transport.get_extra_info("ssl_object"))
            credentials.check_server(name)
            hello = Hello(PROTOCOL_VERSION_OLDEST, PROTOCOL_VERSION, Role.CLIENT, 0, "queue client", token=credentials.token)
            credentials.check_server(name, (await self.call(hello, Welcome)).broker_id)
        except BaseException:
            await self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def call(self, packet: Packet, expected: type[PacketT]) -> PacketT:
        return await (await self.send(packet, expected))

    async def send(self, packet: Packet, expected: type[PacketT]) -> Awaitable[PacketT]:
        """Send a request as soon as there is room, and return what waits for its answer."""
        if len(self._pending) >= REQUESTS_UNDER_WAY_MAX:
            raise QueueBusyError(f"{REQUESTS_UNDER_WAY_MAX:,} requests are in progress on this connection")
        await self._writable.wait()
        if not self.is_open:
            raise ConnectionLostError(self._reason)
        packet_id = next(self._ids) & _ID_MASK or next(self._ids) & _ID_MASK
        buffers = encode(packet, packet_id)
        future: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._pending[packet_id] = future
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox += buffers
        return self._answer(packet_id, future, expected)

    async def _answer(self, packet_id: int, future: asyncio.Future[Packet], expected: type[PacketT]) -> PacketT:
        try:
            answer = await future
        finally:
            self._pending.pop(packet_id, None)
        if isinstance(answer, Error):
            raise error_from(answer)
        if not isinstance(answer, expected):
            raise WireError(f"{type(answer).__name__} was received, {expected.__name__} was expected")
        return answer

    async def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()
            await asyncio.sleep(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is not None:
            self._reason = f"the connection was lost: {exc}"
        self._writable.set()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionLostError(self._reason))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                packet, packet_id, _ = decode(frame)
                self._take_packet(cast("Packet", packet), packet_id)
        except WireError as error:
            self._reason = f"the broker sent an invalid packet: {error}"
            if self._transport is not None:
                self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _take_packet(self, packet: Packet, packet_id: int) -> None:
        if packet_id == 0 and isinstance(packet, Error):
            self._reason = packet.text
        future = self._pending.get(packet_id)
        if future is not None and not future.done():
            future.set_result(packet)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and self._transport is not None:
            self._transport.write(b"".join(outbox))
