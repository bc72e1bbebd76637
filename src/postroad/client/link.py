"""A client's connection to one broker: the handshake, then packets."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from postroad.client.addresses import Address
from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import Packet
from postroad.errors import (
    BufferLimitError,
    CertificateError,
    HandshakeError,
    NotConnectedError,
    PostroadError,
    WireError,
    error_of_code,
)
from postroad.security.credentials import OPEN, Credentials
from postroad.security.tls import name_in
from postroad.transport.channel import Channel
from postroad.transport.flush_scheduler import FlushScheduler
from postroad.transport.outbox import OutboxLimits
from postroad.version import VERSION
from postroad.wire.codec import decode
from postroad.wire.deliveries import ROWS, RowsDecoder
from postroad.wire.framing import FRAME_BYTES_MAX, Frame
from postroad.wire.packets.session import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_OLDEST,
    Error,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Role,
    Welcome,
)
from postroad.wire.registry import Packet as ServicePacket

log = logging.getLogger("postroad.client")

# What the application has published and the network has not taken is bounded by the publishers' windows, not here.
_LIMITS: Final = OutboxLimits(1 << 62, 1 << 62, 1 << 62, 0)


class LinkOwner(Protocol):
    """Whoever the link belongs to. Called on the event loop."""

    def _link_packet(self, link: Link, packet: Packet, batch: Batch | None, packet_id: int) -> None:
        """Take a packet."""

    def _link_answer(self, link: Link, packet: msgspec.Struct, packet_id: int) -> None:
        """Take a service's answer to a request."""

    def _link_error(self, link: Link, error: PostroadError, packet_id: int) -> None:
        """Take the refusal of a request."""

    def _link_arrived(self) -> None:
        """Act on all that was handed over since the last time."""


class Link:
    """`welcome` is done when the broker has answered; `gone` when the connection has ended."""

    def __init__(
        self,
        owner: LinkOwner,
        number: int,
        name: str,
        loop: asyncio.AbstractEventLoop,
        writes: FlushScheduler,
        credentials: Credentials,
    ) -> None:
        self.number: Final = number
        self.channel: Final = Channel(loop, _LIMITS, ordered=True, writes=writes)
        self.channel.owner = self
        self.welcome: Final[asyncio.Future[Welcome]] = loop.create_future()
        self.gone: Final[asyncio.Future[None]] = loop.create_future()
        self.broker = 0
        self._owner: Final = owner
        self._name: Final = name
        self._credentials: Final = credentials
        self._rows: Final = RowsDecoder()

    def opened(self) -> None:
        """Say hello, with the token; but only to a broker."""
        try:
            self._credentials.check_server(name_in(self.channel.tls))
        except PostroadError as error:
            self._take_refusal(error, 1)
            self.channel.abort()
            return
        hello = Hello(
            PROTOCOL_VERSION_OLDEST,
            PROTOCOL_VERSION,
            Role.CLIENT,
            0,
            self._name,
            f"postroad-python {VERSION}",
            features=(ROWS,),
            token=self._credentials.token,
        )
        self.channel.send(hello, 1, control=False)

    def received(self, frames: Sequence[Frame]) -> None:
        try:
            for frame in frames:
                self._take(frame)
        except PostroadError as error:
            self._give_up(error)
        self._owner._link_arrived()

    def _take(self, frame: Frame) -> None:
        packet, packet_id, body = decode(frame)
        if isinstance(packet, Packet):
            batch = self._rows.rows_of(packet, body, len(frame[2]))
            self._owner._link_packet(self, packet, batch, packet_id)
        else:
            self._session_packet(packet, packet_id)

    def _session_packet(self, packet: msgspec.Struct, packet_id: int) -> None:
        match packet:
            case Welcome():
                self._take_welcome(packet)
            case Error():
                self._take_refusal(error_of_code(packet.code, packet.text), packet_id)
            case Ping():
                self.channel.pong(packet_id)
            case Pong():
                pass
            case Goodbye():
                self._give_up(NotConnectedError(f"the broker closed the connection: {packet.reason}"))
            case ServicePacket():
                self._owner._link_answer(self, packet, packet_id)
            case _:
                raise HandshakeError(f"a broker must not send {type(packet).__name__} to this client")

    def _take_welcome(self, welcome: Welcome) -> None:
        if not PROTOCOL_VERSION_OLDEST <= welcome.version <= PROTOCOL_VERSION:
            raise HandshakeError(f"the broker chose version {welcome.version}, which this client did not offer")
        self._credentials.check_server(name_in(self.channel.tls), welcome.broker_id)
        self.broker = welcome.broker_id
        self.channel.identified(FRAME_BYTES_MAX)
        self.channel.frame_bytes_max = welcome.frame_bytes_max
        if not self.welcome.done():
            self.welcome.set_result(welcome)

    def _take_refusal(self, error: PostroadError, packet_id: int) -> None:
        if not self.welcome.done():
            self.welcome.set_exception(error)
        elif packet_id:
            self._owner._link_error(self, error, packet_id)
        else:
            log.warning("the broker closed the connection: %s [error %d]", error, error.code)

    def _give_up(self, error: PostroadError) -> None:
        log.info("closed the connection to broker %d: %s", self.broker, error)
        self.channel.abort()

    def malformed(self, error: WireError) -> None:
        self._give_up(error)

    def congested(self) -> None:
        pass

    def drained(self) -> None:
        pass

    def exceeded(self, error: BufferLimitError) -> None:
        self._give_up(error)

    def lost(self) -> None:
        if not self.welcome.done():
            failure = self.channel.failure
            if isinstance(failure, ssl.SSLError):
                self.welcome.set_exception(CertificateError(f"the broker refused the TLS connection: {failure}"))
            else:
                self.welcome.set_exception(NotConnectedError("the broker closed the connection without an answer"))
            self.welcome.exception()  # whoever dialled may have given up waiting
        if not self.gone.done():
            self.gone.set_result(None)
        self._owner._link_arrived()


async def dial(
    owner: LinkOwner,
    number: int,
    name: str,
    address: Address,
    timeout_s: float,
    writes: FlushScheduler,
    credentials: Credentials = OPEN,
) -> Link:
    """Connect and shake hands, or raise `NotConnectedError` or what the broker said."""
    loop = asyncio.get_running_loop()
    link = Link(owner, number, name, loop, writes, credentials)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: link.channel, address.host, address.port, ssl=credentials.context)
            await asyncio.shield(link.welcome)
    except ssl.SSLError as error:
        link.channel.abort()
        raise CertificateError(f"{address}: no TLS with this broker: {error}") from error
    except (OSError, TimeoutError) as error:
        link.channel.abort()
        raise NotConnectedError(f"{address}: {str(error) or 'no answer in time'}") from error
    except BaseException:
        link.channel.abort()
        raise
    return link
