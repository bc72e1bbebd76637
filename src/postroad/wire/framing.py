"""Frames: how packets lie in a stream of bytes.

    length u32 | method u16 | packet id u32 | payload          (big-endian)

`length` counts the whole frame, its 10 bytes of header included, as in the Telesto report (section 3.2), whose 16 bits are
32 here. It is a claim of the peer: a frame above the connection's maximum is refused when its header is read, and below it
memory grows only with the bytes that really arrive. Bytes may come in any pieces; a frame comes out when it is whole.

A decoder that met a malformed frame has lost its place in the stream for good, so it stays failed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from postroad.errors import FrameTooLargeError, InvalidValueError, MalformedFrameError

Frame: TypeAlias = tuple[int, int, bytes | memoryview]
"""Method, packet id, payload. The payload belongs to the frame: nobody writes to it later."""

HEADER: Final = struct.Struct(">IHI")
HEADER_BYTES: Final = HEADER.size
LENGTH_MAX: Final = (1 << 32) - 1

FRAME_BYTES_MAX: Final = 16 << 20
"""Default maximum of a frame on an identified connection."""
FRAME_BYTES_MAX_UNIDENTIFIED: Final = 64 << 10
"""Default maximum of a frame before the peer has identified itself."""
FRAME_BYTES_MAX_LEAST: Final = 64 << 10
"""The least maximum a peer may state for itself: every answer and every error fits into it."""

FRAMES_MAX: Final = 1 << 30
"""No bound on the frames of one `feed`."""

# Frames up to here are put together when they are made: one buffer is written, counted and kept faster than four.
_JOINED_BYTES_MAX: Final = 16 << 10

# Payloads from here on are views of the received chunk; smaller ones are copied, so that a small batch kept for long does
# not keep a large chunk alive.
_VIEW_BYTES_MIN: Final = 16 << 10


class FrameDecoder:
    """Cuts a stream of bytes into frames. `buffered` never exceeds `max_bytes`."""

    __slots__ = ("_bad_length", "_header", "_payload", "_uncut", "_uncut_at", "_wanted", "max_bytes")

    def __init__(self, max_bytes: int = FRAME_BYTES_MAX) -> None:
        if not HEADER_BYTES <= max_bytes <= LENGTH_MAX:
            raise InvalidValueError(f"the maximum of a frame lies between {HEADER_BYTES} and {LENGTH_MAX}, not at {max_bytes}")
        self.max_bytes = max_bytes  # may be raised once the peer is identified
        self._bad_length: int | None = None  # set once, by the frame that ended it
        # A frame in the making: first its header; once that is whole, its payload, of which _wanted bytes are missing.
        self._header = b""
        self._payload: bytearray | None = None
        self._wanted = 0
        self._uncut = b""  # received, beyond the frames that were asked for; they begin at _uncut_at
        self._uncut_at = 0

    @property
    def uncut(self) -> int:
        """Bytes received that were not looked at yet: more frames than were asked for came at once."""
        return len(self._uncut) - self._uncut_at

    @property
    def expected(self) -> int:
        """Length of the frame that is being received, 0 when its header is not whole."""
        return 0 if self._payload is None else HEADER_BYTES + len(self._payload) + self._wanted

    def clear(self) -> None:
        """Forget what was received and is not cut; nothing more may come."""
        self._header, self._payload, self._wanted = b"", None, 0
        self._uncut, self._uncut_at = b"", 0

    @property
    def buffered(self) -> int:
        """Bytes held of a frame that is not whole yet."""
        return len(self._header) + (0 if self._payload is None else len(self._payload))

    def feed(self, data: bytes | bytearray | memoryview, frames_max: int = FRAMES_MAX) -> list[Frame]:
        """Take the next bytes of the stream and return the frames they complete, at most so many.

        What is left then is `uncut`; feed nothing to go on with it. Raises `MalformedFrameError` (or `FrameTooLargeError`), now
        and on every later call; sound frames that stood before the bad one in the same bytes are in its `frames`.
        """
        if self._bad_length is not None:
            raise self._refusal(self._bad_length)
        chunk = data if isinstance(data, bytes) else bytes(data)  # others may change under the frames
        frames: list[Frame] = []
        try:
            if self._uncut:
                chunk, position = self._uncut + chunk if chunk else self._uncut, self._uncut_at
                self._uncut, self._uncut_at = b"", 0
            else:
                position = self._resume(chunk, frames)
            if position >= 0:
                self._cut(chunk, position, frames, frames_max)
        except MalformedFrameError as error:
            error.frames = tuple(frames)
            self.clear()
            raise
        return frames

    def _resume(self, chunk: bytes, frames: list[Frame]) -> int:
        """Finish the frame in the making; return where the next begins, or -1 when the chunk is used up."""
        position = 0
        if self._payload is None:
            if not self._header:
                return 0
            position = HEADER_BYTES - len(self._header)
            self._header += chunk[:position]
            if len(self._header) < HEADER_BYTES:
                return -1
            self._start_payload(self._header)
        assert self._payload is not None
        end = position + self._wanted
        piece = memoryview(chunk)[position:end]
        self._payload += piece
        self._wanted -= len(piece)
        if self._wanted:
            return -1
        _, method, packet_id = HEADER.unpack(self._header)
        payload = memoryview(self._payload).toreadonly()
        frames.append((method, packet_id, payload if len(payload) >= _VIEW_BYTES_MIN else bytes(payload)))
        self._header, self._payload = b"", None
        return end

    def _cut(self, chunk: bytes, position: int, frames: list[Frame], frames_max: int) -> None:
        """Cut whole frames out of the chunk; keep the beginning of another for `_resume`."""
        room = frames_max - len(frames)
        unpack, maximum, append = HEADER.unpack_from, self.max_bytes, frames.append
        end = len(chunk)
        last_start = end - HEADER_BYTES
        while position <= last_start:
            length, method, packet_id = unpack(chunk, position)
            if length > maximum or length < HEADER_BYTES:
                self._bad_length = length
                raise self._refusal(length)
            stop = position + length
            if stop > end:
                break
            if not room:
                self._uncut, self._uncut_at = chunk, position
                return
            room -= 1
            start = position + HEADER_BYTES
            append((method, packet_id, chunk[start:stop] if length < _VIEW_BYTES_MIN else memoryview(chunk)[start:stop]))
            position = stop
        if position < end:
            self._header = chunk[position : position + HEADER_BYTES]
            if len(self._header) == HEADER_BYTES:
                self._start_payload(self._header)
                assert self._payload is not None
                self._payload += memoryview(chunk)[position + HEADER_BYTES :]
                self._wanted -= len(self._payload)

    def _start_payload(self, header: bytes) -> None:
        length = int.from_bytes(header[:4], "big")
        if not HEADER_BYTES <= length <= self.max_bytes:
            self._bad_length = length
            raise self._refusal(length)
        self._payload = bytearray()
        self._wanted = length - HEADER_BYTES

    def _refusal(self, length: int) -> MalformedFrameError:
        if length < HEADER_BYTES:
            return MalformedFrameError(f"a frame of {length} bytes is shorter than its own header of {HEADER_BYTES}")
        return FrameTooLargeError(length, self.max_bytes)


def encode_frame(
    method: int,
    packet_id: int,
    payload: bytes,
    body: Sequence[bytes | memoryview] = (),
    *,
    max_bytes: int = FRAME_BYTES_MAX,
) -> list[bytes | memoryview]:
    """Return the buffers of a frame, for `writelines`: one for a small frame, else the body's buffers are passed through."""
    length = HEADER_BYTES + len(payload) + sum(map(len, body))
    if length > max_bytes:
        raise FrameTooLargeError(length, max_bytes)
    head = HEADER.pack(length, method, packet_id) + payload
    return [b"".join((head, *body))] if body and length <= _JOINED_BYTES_MAX else [head, *body]
