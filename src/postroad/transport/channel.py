"""One connection: bytes in, frames out, and the other way round.

Writes are gathered (`FlushScheduler`): everything that is sent within one turn of the event loop leaves with one `writelines`, a
megabyte at a time, and only while the operating system accepts it. The rest waits in the outbox, where it is counted and bounded.

Frames are processed in turns (`Turns`): a few at a time, and the connection is not read while more wait. What waits in either
direction counts against the connection's account (`Budget`). A peer that does not read what it asked for is not read either.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, Protocol, cast

import msgspec

from postroad.core.batch.batch import Batch
from postroad.errors import BufferLimitError, MalformedFrameError, PostroadError, WireError
from postroad.transport.bandwidth import BandwidthLimit
from postroad.transport.budget import FREE_BYTES, Account, Budget
from postroad.transport.flush_scheduler import FlushScheduler
from postroad.transport.outbox import Buffer, Outbox, OutboxLimits
from postroad.transport.turns import FRAMES_PER_SLICE, QUICK_S, SLICES_PER_TURN, TURN_S, Turns
from postroad.wire.deliveries import encode_with_rows
from postroad.wire.framing import FRAME_BYTES_MAX, FRAME_BYTES_MAX_UNIDENTIFIED, FRAMES_MAX, Frame, FrameDecoder
from postroad.wire.packets.session import Error, Goodbye, Ping, Pong

WRITE_BYTES_MAX: Final = 1 << 20
TRANSPORT_HIGH_BYTES: Final = 256 << 10
CHECK_BYTES: Final = 64 << 10  # more that waits before the bounds are looked at again
CLOSE_S_MAX: Final = 5.0  # that a closing connection may take to read the last frames
EXCEED_S_MAX: Final = 0.5  # the same of one that is closed for what it holds
NO_BYTES_MAX: Final = 1 << 62

# Why a connection is not read.
OWNER: Final = 1  # its owner asked for it
SERVICE: Final = 2  # a service works on as much as it takes of one connection
OUTPUT: Final = 4  # the peer does not read what it was sent
MEMORY: Final = 8  # a large frame waits for room
TURN: Final = 16  # what was received is not processed yet
FILTER: Final = 32  # the filters of what it sent are being prepared
RATE: Final = 64  # too much of what it published waits for a rate
QUOTA: Final = 128  # its identity published more than it may
ANY: Final = OWNER | SERVICE | OUTPUT | MEMORY | TURN | FILTER | RATE | QUOTA


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

    def exceeded(self, error: BufferLimitError) -> None:
        """Close the connection: it holds too many bytes."""

    def lost(self) -> None:
        """Act on the end of the connection. Called once, whoever ended it."""


class Channel(asyncio.Protocol):
    """A connection as the event loop sees it; `owner` must be set before it is used."""

    owner: ChannelOwner

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: OutboxLimits,
        *,
        ordered: bool,
        writes: FlushScheduler | None = None,
        turns: Turns | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.outbox: Final = Outbox(limits, ordered=ordered)
        self.frame_bytes_max = FRAME_BYTES_MAX  # of what we send
        self.takes_values = False  # the peer has the feature `rows`
        self.received_at = loop.time()
        self.taken_at = self.received_at  # when the operating system last took something
        self.received_bytes = 0
        self.sent_bytes = 0
        self.closed = False
        self.failure: Exception | None = None  # why the connection was lost, where the event loop says so
        self.account: Final[Account] = (Budget(NO_BYTES_MAX, loop.time) if budget is None else budget).open(
            self._exceed, self._resume_reading
        )
        self._loop: Final = loop
        self._decoder: Final = FrameDecoder(FRAME_BYTES_MAX_UNIDENTIFIED)
        self._transport: asyncio.Transport | None = None
        self._writes: Final = writes or FlushScheduler(loop)
        self._turns: Final = turns
        self._frames_per_slice = FRAMES_MAX if turns is None else FRAMES_PER_SLICE
        self._paused = 0  # why it is not read
        self._in_turns = False
        self._flush_planned = False
        self._writable = True
        self._congested = False
        self._check_at = CHECK_BYTES
        self._closing = False
        self._limit: BandwidthLimit | None = None
        self._limit_timer: asyncio.TimerHandle | None = None  # data waits for it
        self._ending = False  # the transport was told to close
        self._close_timer: asyncio.TimerHandle | None = None

    # --- sending ---------------------------------------------------------------------------------------------------------

    def send(self, packet: msgspec.Struct, packet_id: int = 0, batch: Batch | None = None, *, control: bool = True) -> bool:
        """Send a packet; False when it was dropped."""
        if self.closed or self._closing:
            return False
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
        if outbox.held > self._check_at:
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
            buffers, size = self.outbox.take(WRITE_BYTES_MAX) if self._limit is None else self._take_limited(self._limit)
            if not buffers:
                break
            self.sent_bytes += size
            self.taken_at = self._loop.time()
            self._transport.writelines(buffers)
        if self._congested or self.account.output or not self._writable:
            self._check_marks()
        if self._closing and not self.outbox and self._transport is not None and not self._ending:
            self._ending = True  # asyncio's TLS takes a second `close` for an `abort`
            self._transport.close()

    def _take_limited(self, limit: BandwidthLimit) -> tuple[list[Buffer], int]:
        """Take one frame, or only control frames while data has to wait; then come back when it may leave."""
        wait_s = limit.wait_s(self._loop.time())
        buffers, size = self.outbox.take(1, with_data=not wait_s)
        limit.take(size)
        if not buffers and self.outbox and self._limit_timer is None:
            self._limit_timer = self._loop.call_later(wait_s, self._go_on)
        return buffers, size

    def _go_on(self) -> None:
        self._limit_timer = None
        self._flush()

    def _check_marks(self) -> None:
        """Count what waits, and tell the owner when it has passed a mark."""
        outbox, limits = self.outbox, self.outbox.limits
        held = outbox.held
        if outbox.overflown and not self._closing:
            self._exceed(BufferLimitError(f"{held:,} bytes wait for this connection, which reads too slowly"))
            return
        beyond = 0 if self._writable or self._transport is None or self.closed else self._transport.get_write_buffer_size()
        self._check_at = held + CHECK_BYTES
        self.account.note_output(held + beyond)
        high = self.account.share(limits.high_bytes) if outbox.ordered else limits.high_bytes
        if self._congested:
            if held <= min(limits.low_bytes, high):
                self._congested = False
                self.resume(OUTPUT)
                self.owner.drained()
        elif held > high and not self._closing:
            self._congested = True
            if outbox.ordered:
                self.pause(OUTPUT)
            self.owner.congested()

    def _exceed(self, error: BufferLimitError) -> None:
        """Drop what waits, which makes room at once, and let the owner say why."""
        if not self.closed:
            self.outbox.clear()
            self._decoder.clear()
            self.account.close()
            self.owner.exceeded(error)
            self._loop.call_later(EXCEED_S_MAX, self.abort)  # what the operating system did not take is kept until then

    # --- the owner's wishes ------------------------------------------------------------------------------------------------

    def identified(self, frame_bytes_max: int) -> None:
        """Allow frames of full size: the peer has said who it is."""
        self._decoder.max_bytes = frame_bytes_max

    def limit_bandwidth(self, bytes_per_s: int) -> None:
        """Send no more bytes per second than this from now on, on average; 0: no limit."""
        self._limit = BandwidthLimit(bytes_per_s, self._loop.time()) if bytes_per_s else None
        if self._limit_timer is not None:
            self._limit_timer.cancel()
            self._limit_timer = None
        self._flush()

    @property
    def bandwidth_bytes_per_s(self) -> int:
        """The limit; 0: none."""
        return 0 if self._limit is None else self._limit.bytes_per_s

    @property
    def reading(self) -> bool:
        """Whether the connection is read; while it has its turns, it is."""
        return not self._paused & ~TURN

    @property
    def unread(self) -> bool:
        """The peer does not read what it was sent."""
        return self._congested

    def pause(self, reason: int = OWNER) -> None:
        """Read no more for now; the peer feels it."""
        if self._transport is None or self.closed or self._closing:
            return
        before = self._paused
        self._paused |= reason
        if not before:
            self._transport.pause_reading()

    def resume(self, reason: int = OWNER) -> None:
        """Read on, unless there is another reason not to."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if self._transport is None or self.closed or self._closing:
            return
        if not self._paused:
            self.received_at = self._loop.time()
            self._transport.resume_reading()
        elif self._paused == TURN:
            self._wait_for_turn()

    def close(self, error: PostroadError | None = None, packet_id: int = 0, *, reason: str | None = None) -> None:
        """Send what waits, an error or a goodbye if given, and end the connection."""
        if self.closed or self._closing:
            return
        if error is not None:
            self.send_error(error, packet_id)
        if reason is not None:
            self.send(Goodbye(reason))
        self._closing = True
        self._decoder.clear()
        self._writes.add(self._flush)
        self._close_timer = self._loop.call_later(CLOSE_S_MAX, self.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self._closing = True
        self.outbox.clear()
        self._decoder.clear()
        if self._transport is not None and not self.closed:  # asyncio's transports cannot be aborted once they are lost
            self._transport.abort()

    @property
    def closing(self) -> bool:
        return self.closed or self._closing

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS of the connection, None without."""
        found: ssl.SSLObject | None = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return found

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
        if not self._closing:
            began = monotonic()
            self._process(data)
            # uvloop calls again at once while there is more to read: after a costly frame, others have their turn first.
            if self._turns is not None and not self._in_turns and (self._decoder.uncut or monotonic() - began > TURN_S):
                self.pause(TURN)
                self._wait_for_turn()

    def take_turn(self) -> bool:
        """Process some of the frames that were received; tell whether more wait that may be processed now."""
        self._in_turns = False
        now = monotonic()
        until = now + TURN_S
        for _ in range(SLICES_PER_TURN):
            if self._closing or self._paused & ~TURN:
                return False
            self._process(b"")
            if not self._decoder.uncut:
                self.resume(TURN)
                return False
            before, now = now, monotonic()
            self._frames_per_slice = FRAMES_PER_SLICE if now - before < QUICK_S else 1
            if now >= until:
                break
        self._in_turns = True
        return True

    def _wait_for_turn(self) -> None:
        if not self._in_turns and self._turns is not None:
            self._in_turns = True
            self._turns.add(self)

    def _process(self, data: bytes) -> None:
        """Cut a slice of frames and hand it over; count what is left."""
        try:
            frames = self._decoder.feed(data, self._frames_per_slice)
        except MalformedFrameError as error:
            if error.frames:
                self.owner.received(error.frames)
            self.owner.malformed(error)
            return
        if frames:
            self.owner.received(frames)
        decoder, account = self._decoder, self.account
        if account.grant and decoder.expected != account.grant:
            account.release()
        held = decoder.buffered + decoder.uncut
        if held != account.input:
            account.note_input(held)
        if decoder.expected > FREE_BYTES and not account.grant and not self._closing and not account.ask(decoder.expected):
            self.pause(MEMORY)

    def _resume_reading(self) -> None:
        """Read on: there is room for the frame now."""
        self.resume(MEMORY)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.taken_at = self._loop.time()
        self._flush()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self.failure = exc
            self.outbox.clear()
            self._decoder.clear()
            self.account.close()
            for timer in (self._close_timer, self._limit_timer):
                if timer is not None:
                    timer.cancel()
            self.owner.lost()
