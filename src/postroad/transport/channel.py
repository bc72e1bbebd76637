"""One connection: bytes in, frames out, and the other way round.

Writes are gathered (`Writes`): everything sent within one turn leaves with one `writelines`, a megabyte at a time, and only while
the operating system takes it; what it does not take waits in the outbox, where it is counted and bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import msgspec

from postroad.core.batch import Batch
from postroad.errors import MalformedFrameError, PostroadError, WireError
from postroad.transport.outbox import Buffer, Outbox, OutboxLimits
from postroad.transport.writes import Writes
from postroad.wire.deliveries import encode_with_rows
from postroad.wire.framing import FRAME_BYTES_MAX, FRAME_BYTES_MAX_UNIDENTIFIED, Frame, FrameDecoder
from postroad.wire.packets.session import Goodbye
from postroad.wire.packets.telesto import Error, Ping, Pong

WRITE_BYTES_MAX: Final = 1 << 20
TRANSPORT_HIGH_BYTES: Final = 256 << 10


class ChannelOwner(Protocol):
    """Whoever acts on what a channel receives. Called on the event loop."""

    def opened(self) -> None:
        """Act on the connection being there."""

    def received(self, frames: Sequence[Frame]) -> None:
        """Take whole frames, in order."""

    def malformed(self, error: WireError) -> None:
        """Act on bytes that are no frames; nothing more will be received."""

    def congested(self) -> None:
        """Act on the backlog having passed its high mark."""

    def drained(self) -> None:
        """Act on the backlog having fallen to its low mark."""

    def lost(self) -> None:
        """Act on the end of the connection. Called once, whoever ended it."""


class Channel(asyncio.Protocol):
    """A connection as the event loop sees it; `owner` must be set before it is used."""

    owner: ChannelOwner

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: OutboxLimits, *, ordered: bool, writes: Writes | None = None
    ) -> None:
        self.outbox: Final = Outbox(limits, ordered=ordered)
        self.frame_bytes_max = FRAME_BYTES_MAX  # of what we send
        self.takes_values = False  # the peer has the feature `rows`
        self.received_at = loop.time()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.closed = False
        self.reading = True
        self._loop: Final = loop
        self._decoder: Final = FrameDecoder(FRAME_BYTES_MAX_UNIDENTIFIED)
        self._transport: asyncio.Transport | None = None
        self._writes: Final = writes or Writes(loop)
        self._flush_planned = False
        self._writable = True
        self._congested = False
        self._closing = False

    # --- sending ---------------------------------------------------------------------------------------------------------

    def send(self, packet: msgspec.Struct, packet_id: int = 0, batch: Batch | None = None, *, control: bool = True) -> bool:
        """Send a packet; False when it was dropped."""
        frame = encode_with_rows(packet, packet_id, batch, few=self.takes_values, max_bytes=self.frame_bytes_max)
        return self.send_frame(frame, control=control)

    def send_frame(self, frame: list[Buffer], *, control: bool) -> bool:
        if self.closed or self._closing:
            return False
        outbox = self.outbox
        taken = outbox.put(frame, control=control)
        if not self._flush_planned:
            self._flush_planned = True
            self._writes.add(self._flush)
        if len(outbox) > outbox.limits.high_bytes:
            self._check_marks()
        return taken

    def send_error(self, error: PostroadError, packet_id: int = 0, *, control: bool = True) -> None:
        self.send(Error.of(error), packet_id, control=control)

    def ping(self) -> None:
        self.send(Ping())

    def pong(self, packet_id: int) -> None:
        self.send(Pong(), packet_id)

    @property
    def backlog(self) -> int:
        """Bytes not yet given to the operating system."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None and not self.closed else 0
        return len(self.outbox) + waiting

    def _flush(self) -> None:
        self._flush_planned = False
        while self._writable and not self.closed and self._transport is not None:
            buffers, size = self.outbox.take(WRITE_BYTES_MAX)
            if not buffers:
                break
            self.sent_bytes += size
            self._transport.writelines(buffers)
        if self._congested:
            self._check_marks()
        if self._closing and not self.outbox and self._transport is not None:
            self._transport.close()

    def _check_marks(self) -> None:
        outbox = self.outbox
        backlog = len(outbox)
        if self._congested:
            if backlog <= outbox.limits.low_bytes:
                self._congested = False
                self.owner.drained()
        elif backlog > outbox.limits.high_bytes:
            self._congested = True
            self.owner.congested()
        if outbox.overflown:
            self.abort()

    # --- the owner's wishes ------------------------------------------------------------------------------------------------

    def identified(self, frame_bytes_max: int) -> None:
        """Allow frames of full size: the peer has said who it is."""
        self._decoder.max_bytes = frame_bytes_max

    def pause(self) -> None:
        """Read no more for now; the peer feels it."""
        if self.reading and self._transport is not None and not self.closed:
            self.reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self.reading and self._transport is not None and not self.closed:
            self.reading = True
            self.received_at = self._loop.time()
            self._transport.resume_reading()

    def close(self, error: PostroadError | None = None, packet_id: int = 0, *, reason: str | None = None) -> None:
        """Send what waits, an error or a goodbye if given, and end the connection."""
        if self.closed or self._closing:
            return
        if error is not None:
            self.send_error(error, packet_id)
        if reason is not None:
            self.send(Goodbye(reason))
        self._closing = True
        self._writes.add(self._flush)

    def abort(self) -> None:
        """End the connection at once."""
        self._closing = True
        self.outbox.clear()
        if self._transport is not None and not self.closed:  # asyncio's transports cannot be aborted once they are lost
            self._transport.abort()

    @property
    def closing(self) -> bool:
        return self.closed or self._closing

    def address(self) -> str:
        peer: Any = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "?"

    # --- the event loop's calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by type
        self._transport.set_write_buffer_limits(high=TRANSPORT_HIGH_BYTES)
        self.owner.opened()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.received_at = self._loop.time()
        self.received_bytes += len(data)
        if self._closing:
            return
        try:
            frames = self._decoder.feed(data)
        except MalformedFrameError as error:
            if error.frames:
                self.owner.received(error.frames)
            self.owner.malformed(error)
            return
        if frames:
            self.owner.received(frames)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # why it ended makes no difference
        if not self.closed:
            self.closed = True
            self.outbox.clear()
            self.owner.lost()
