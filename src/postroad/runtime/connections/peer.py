"""One connection of a broker, from its first byte to its end.

A peer must say who it is before anything else: until then it may send only small frames of a few kinds, and only for a few
seconds. Whatever it sends that breaks the protocol is answered by an error packet with a stable code, and the connection is
closed; the broker and its other connections do not notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import BatchLimits
from postroad.core.protocol.packets import Packet, Publish, PublishColumns
from postroad.errors import (
    BufferLimitError,
    FrameTooLargeError,
    HandshakeError,
    InternalError,
    NotIdentifiedError,
    PostroadError,
    UnknownMethodError,
    WireError,
    WrongDirectionError,
)
from postroad.runtime.services import Service, ServiceConnection
from postroad.security.gate import Admitted
from postroad.security.tls import PeerName, name_in
from postroad.transport.budget import Budget
from postroad.transport.channel import SERVICE, Channel
from postroad.transport.flush_scheduler import FlushScheduler
from postroad.transport.outbox import OutboxLimits
from postroad.transport.turns import Turns
from postroad.wire.codec import decode
from postroad.wire.deliveries import RowsDecoder
from postroad.wire.framing import HEADER_BYTES, Frame
from postroad.wire.packets.session import Error, Goodbye, Hello, Ping, Pong, Role, Welcome
from postroad.wire.registry import REGISTRY, Direction

log = logging.getLogger("postroad.peer")

LOG_CHARS_MAX: Final = 500
SKIPPED_NAMED_MAX: Final = 16  # kinds of unknown packets that the log names for one link

_CAME: Final[Mapping[Role, Direction]] = {Role.CLIENT: Direction.CLIENT_TO_BROKER, Role.BROKER: Direction.BROKER_TO_BROKER}


@lru_cache(maxsize=4)
def _methods(role: Role | None) -> frozenset[int]:
    """Return the method ids a peer may send."""
    if role is None:
        return frozenset(spec.method for spec in REGISTRY if not spec.needs_identification)
    return frozenset(spec.method for spec in REGISTRY if _CAME[role] in spec.direction)


def shorten(text: str) -> str:
    """Make one line of the log of a text that may quote what a peer sent: cut it, and escape what would break the line."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return text if len(text) <= LOG_CHARS_MAX else f"{text[:LOG_CHARS_MAX]}..."


class PeerHost(Protocol):
    """What a peer needs of the broker it belongs to."""

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame the broker takes from an identified peer."""

    def greet(self, peer: Peer, hello: Hello) -> Welcome:
        """Accept a peer that said hello, or raise."""

    def welcomed(self, peer: Peer, welcome: Welcome) -> None:
        """Accept a broker that answered our hello, or raise."""

    def packet(self, peer: Peer, packet: Packet, batch: Batch | None, packet_id: int, size: int) -> None:
        """Take a packet of an identified peer."""

    def note_skipped(self, peer: Peer) -> None:
        """Count a packet of a neighbour that this release does not know."""

    def backlog_high(self, peer: Peer) -> None:
        """Send this client no more rows for now."""

    def backlog_low(self, peer: Peer) -> None:
        """Go on sending rows."""

    def service(self, method: int) -> Service | None:
        """Return the service that answers a method, if there is one."""

    def admit(self, peer: Peer) -> Admitted:
        """Return what a peer may do that asks a service without a hello, or raise."""

    def note_known(self, peer: Peer) -> None:
        """The peer has said who it is."""

    def lost(self, peer: Peer) -> None:
        """Forget the peer."""


class Peer:
    """`link` is its number, never used twice. `role` is None until the peer is identified."""

    def __init__(
        self,
        host: PeerHost,
        loop: asyncio.AbstractEventLoop,
        link: int,
        hello: Hello | None,
        cost: int = 1,
        writes: FlushScheduler | None = None,
        turns: Turns | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.link: Final = link
        self.channel: Final = Channel(loop, OutboxLimits(), ordered=True, writes=writes, turns=turns, budget=budget)
        self.channel.owner = self
        self.role: Role | None = None
        self.broker = 0
        self.incarnation = 0
        self.name = "?"
        self.cost = cost
        self.bandwidth_bytes_per_s = 0  # the limit that is configured for the broker at this address; 0: none
        self.dialled: Final = hello is not None
        self.gone: Final = loop.create_future()
        self.publishes = False
        self.host = ""  # the address it connected from; empty for one that we dialled
        self.quota = ""  # the identity that its connection counts for
        self.unidentified_bytes_left = 1 << 62  # that it may send before it says who it is
        self.named = PeerName()  # by its certificate
        self.admitted: Admitted | None = None  # a client that may do something
        self._host: Final = host
        self._hello: Final = hello
        self._rows = RowsDecoder()
        self._allowed = _methods(None)
        self._handshake: asyncio.TimerHandle | None = None
        self._loop: Final = loop
        self._exchanges: ServiceConnection | None = None
        self._known_to_service = False
        self._skipped: dict[int, None] = {}  # unknown methods that the log has named

    @property
    def known(self) -> bool:
        """Whether the peer has said who it is, to us or to a service."""
        return self.role is not None or self._known_to_service

    def __repr__(self) -> str:
        kind = "peer" if self.role is None else self.role.name.lower()
        return f"{kind} {shorten(self.name)} ({self.channel.address()}, link {self.link})"

    def limit_handshake(self, seconds: float) -> None:
        """Give the peer this long to say who it is, unless it has said so already."""
        if self.role is not None or self.channel.closing:
            return
        late = HandshakeError(f"the peer did not identify itself within {seconds:g} s")
        self._handshake = self._loop.call_later(seconds, self.refuse, late)

    def identified(
        self, role: Role, *, broker: int, incarnation: int, name: str, limits: OutboxLimits, frame_bytes_max: int
    ) -> None:
        """Let the peer do what its role allows."""
        if not self.known:
            self._host.note_known(self)
        self.role, self.broker, self.incarnation, self.name = role, broker, incarnation, name
        self._allowed = _methods(role)
        self._rows = RowsDecoder(BatchLimits(bytes=frame_bytes_max - (64 << 10)))
        self.channel.outbox.ordered = role is Role.CLIENT
        self.channel.outbox.limits = limits
        if role is Role.BROKER:
            self.channel.account.serve_link()
        self.channel.identified(frame_bytes_max)
        if self._handshake is not None:
            self._handshake.cancel()

    def refuse(self, error: PostroadError, packet_id: int = 0) -> None:
        """Tell the peer what was wrong and close the connection."""
        if not self.channel.closing:
            log.warning("closing %r: %s [error %d]", self, shorten(str(error)), error.code)
            self.channel.close(error, packet_id)

    def cut(self, error: PostroadError) -> None:
        """End the connection at once: what waits for it is not sent any more, except the error."""
        if not self.channel.closing:
            self.channel.outbox.clear()
            self.refuse(error)
            if self._exchanges is not None:
                self._exchanges.lost()
                self._exchanges = None

    # --- the channel's owner ---------------------------------------------------------------------------------------------

    def opened(self) -> None:
        self.named = name_in(self.channel.tls)
        if self._hello is not None:
            self.channel.send(self._hello, 1)

    def received(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if self.channel.closing:
                return
            try:
                if not self.known:
                    self._count_unidentified(len(frame[2]))
                self._take(frame)
            except PostroadError as error:
                self.refuse(error, frame[1])
                return
            except Exception:
                log.exception("a frame of %r could not be processed", self)
                self.refuse(InternalError("the broker failed to process this frame; see the log of the broker"), frame[1])
                return

    def _count_unidentified(self, size: int) -> None:
        """Bound what a stranger may send, and so what we answer it."""
        self.unidentified_bytes_left -= size + HEADER_BYTES
        if self.unidentified_bytes_left < 0:
            raise HandshakeError("the peer sent too much before it identified itself")

    def malformed(self, error: WireError) -> None:
        self.refuse(error)

    def congested(self) -> None:
        if self._exchanges is not None:
            self._exchanges.set_congested(True)
        self._host.backlog_high(self)

    def drained(self) -> None:
        if self._exchanges is not None:
            self._exchanges.set_congested(False)
        self._host.backlog_low(self)

    def exceeded(self, error: BufferLimitError) -> None:
        self.refuse(error)

    def lost(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
        if self._exchanges is not None:
            self._exchanges.lost()
        self.channel.account.close()  # one that was never connected is not closed by its end
        self._host.lost(self)
        if not self.gone.done():
            self.gone.set_result(None)

    # --- packets ---------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        service = self._host.service(frame[0])
        if service is not None:
            self._ask(service, frame)
            return
        if frame[0] not in self._allowed:
            if self.role is Role.BROKER and frame[0] not in REGISTRY.by_method:
                self._skip_unknown(frame[0])
                return
            self._not_allowed(frame[0])
        packet, packet_id, body = decode(frame)
        if isinstance(packet, Packet):
            batch = self._rows.rows_of(packet, body, len(frame[2]))
            self.publishes = self.publishes or isinstance(packet, Publish | PublishColumns)
            self._host.packet(self, packet, batch, packet_id, len(frame[2]))
        else:
            self._session_packet(packet, packet_id, frame[0])

    def _session_packet(self, packet: msgspec.Struct, packet_id: int, method: int) -> None:
        match packet:
            case Ping():
                self.channel.pong(packet_id)
            case Pong():
                pass
            case Hello() if self.role is None and not self.dialled:
                self.channel.send(self._host.greet(self, packet), packet_id)
            case Welcome() if self.role is None and self.dialled:
                self._host.welcomed(self, packet)
            case Goodbye():
                log.info("%r closed the connection: %s", self, shorten(packet.reason))
                self.channel.close()
            case Error():
                log.warning("%r refused the connection: %s [error %d]", self, shorten(packet.text), packet.code)
                self.channel.close()
            case Hello() | Welcome():
                raise HandshakeError(
                    f"{type(packet).__name__} is not allowed here: the handshake is finished, or the other side must send it"
                )
            case _:
                raise UnknownMethodError(method)  # of a service this broker does not offer

    def _ask(self, service: Service, frame: Frame) -> None:
        """Hand a request to a service; it answers, and refuses, by itself."""
        if self.role is Role.BROKER:
            self._not_allowed(frame[0])
        if self._exchanges is None:
            if self.admitted is None:
                self.admitted = self._host.admit(self)
            self._exchanges = service.open(self._answer, lambda: self.channel.resume(SERVICE), self.admitted.rights)
        try:
            packet, packet_id, _ = decode(frame)
        except WireError as error:
            self.channel.send_error(error, frame[1], control=False)
            return
        self._exchanges.receive(packet, packet_id, len(frame[2]))
        self.channel.account.note_requests(self._exchanges.bytes)
        if self._exchanges.full:
            self.channel.pause(SERVICE)

    def _answer(self, packet: msgspec.Struct, packet_id: int) -> bool:
        """Send a service's answer; once it knows the peer, larger frames are taken and no hello is waited for."""
        if self.role is None and not self._known_to_service and self._exchanges is not None and self._exchanges.identified:
            self._host.note_known(self)
            self._known_to_service = True
            self.channel.identified(self._host.frame_bytes_max)
            if self._handshake is not None:
                self._handshake.cancel()
        if self._exchanges is not None:
            self.channel.account.note_requests(self._exchanges.bytes)
        try:
            return self.channel.send(packet, packet_id, control=False)
        except FrameTooLargeError as error:
            self.channel.send_error(error, packet_id, control=False)
            return False

    def _skip_unknown(self, method: int) -> None:
        """Leave out a packet of a newer neighbour: it may not depend on an answer, and the link stays."""
        self._host.note_skipped(self)
        if method not in self._skipped and len(self._skipped) < SKIPPED_NAMED_MAX:
            self._skipped[method] = None
            log.warning("%r sends packets 0x%04x, which this release does not know; they are left out", self, method)

    def _not_allowed(self, method: int) -> None:
        spec = REGISTRY.of_method(method)
        if self.role is None:
            raise NotIdentifiedError(spec.name)
        raise WrongDirectionError(spec.name, _CAME[self.role].describe())
