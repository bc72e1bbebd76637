"""What a broker and its tracking process say to each other, over a pair of sockets that nobody else has.

Frames of the wire with one method; the payload says what it is. Arrays stand behind the message, which says of each only which
it is and how long, so that they are copied by the system alone; one that a message holds twice travels once. Both ends are the
same program, so what cannot be decoded is an error of ours, and ends the process.

    length of the message u32 | message | arrays
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeAlias, get_args

import msgspec
import numpy as np

from postroad.core.protocol.orders import BrokerState
from postroad.errors import PostroadError, StorageError, error_of_code
from postroad.tracking.files.catalog import TrackOptions
from postroad.tracking.histories.elements import Horizon
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.process.backlog import Missed
from postroad.tracking.process.recording import Figures
from postroad.tracking.queries.answers import Covered, Findings, Searched
from postroad.tracking.queries.questions import CoverageQuestion, TracksQuestion
from postroad.tracking.tap.orders import Track
from postroad.types import MESSAGE_ID_BYTES
from postroad.wire.framing import HEADER, HEADER_BYTES, LENGTH_MAX, FrameDecoder, encode_frame


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Problem(msgspec.Struct, frozen=True, array_like=True):
    """An error, as far as the other side needs it."""

    code: int
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        known = error if isinstance(error, PostroadError) else StorageError(f"{type(error).__name__}: {error}")
        return cls(known.code, str(known))

    def error(self) -> PostroadError:
        return error_of_code(self.code, self.text)


# --- from the broker -----------------------------------------------------------------------------------------------------------


class Begin(_Message, frozen=True):
    """Said first, and once."""

    path: str  # of the tracks
    state: BrokerState
    pubends: tuple[int, ...]  # whose logs can be read
    settings: TrackingSettings
    options: TrackOptions
    started_ms: int  # when the broker did
    title: str
    log_level: str


class Ask(_Message, frozen=True):
    """Answer a question, with all that was said before it."""

    number: int
    question: TracksQuestion | CoverageQuestion


class Read(_Message, frozen=True):
    """What a log holds: the answer to `Want`."""

    number: int
    hi: int = 0
    ids: tuple[bytes, ...] = ()
    problem: Problem | None = None


ToTracker: TypeAlias = Begin | Track | Missed | Ask | Read

# --- from the tracking process -------------------------------------------------------------------------------------------------


class Want(_Message, frozen=True):
    """Read (lo, hi] of a pubend's log."""

    number: int
    pubend: int
    lo: int
    hi: int
    bytes_max: int


class Answer(_Message, frozen=True):
    """One of the three is there."""

    number: int
    searched: Searched | None = None
    covered: Covered | None = None
    problem: Problem | None = None

    @classmethod
    def of(cls, number: int, found: Findings) -> Answer:
        return cls(number, found) if isinstance(found, Searched) else cls(number, covered=found)


class Durable(_Message, frozen=True):
    """Publisher histories are on disk up to here."""

    horizons: tuple[Horizon, ...]


class Progress(_Message, frozen=True):
    """How much of what was given has been taken, in bytes, and how it goes."""

    taken: int
    figures: Figures


FromTracker: TypeAlias = Want | Answer | Durable | Progress

_LENGTH: Final = struct.Struct(">I")


def _exactly(end: socket.socket, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    got = 0
    while got < size:
        more = end.recv_into(data[got:], flags=socket.MSG_WAITALL)
        if not more:
            raise EOFError
        got += more
    return data.toreadonly()


@cache
def _dtype(kind: Any) -> np.dtype[Any]:
    """Return what an annotation says of the elements of an array; those without a type of numpy's are ids."""
    (scalar,) = get_args(get_args(kind)[1])
    return np.dtype((np.void, MESSAGE_ID_BYTES)) if scalar is np.void else np.dtype(scalar)


def encode(message: ToTracker | FromTracker) -> list[bytes | memoryview]:
    """Return buffers for `writelines`. The larger ones are the arrays themselves: nobody writes to them."""
    numbers: dict[int, int] = {}
    arrays: list[memoryview] = []

    def array(value: Any) -> tuple[int, int]:
        assert isinstance(value, np.ndarray)
        number = numbers.setdefault(id(value), len(numbers))
        if number == len(arrays):
            arrays.append(np.ascontiguousarray(value).view(np.uint8).data)
        return number, value.nbytes

    text = msgspec.msgpack.Encoder(enc_hook=array).encode(message)
    return encode_frame(0, 0, _LENGTH.pack(len(text)) + text, arrays, max_bytes=LENGTH_MAX)


class Decoder:
    """Takes bytes as they come and gives messages. `kinds` is `ToTracker` or `FromTracker`."""

    def __init__(self, kinds: Any) -> None:
        self._frames: Final = FrameDecoder(LENGTH_MAX)
        self._decoder: Final = msgspec.msgpack.Decoder(kinds, dec_hook=self._array)
        self._arrays: list[Any] = []  # of the message that is being decoded,
        self._behind = memoryview(b"")  # and the bytes of those that were not met yet

    def feed(self, data: bytes) -> Iterator[Any]:
        for _, _, payload in self._frames.feed(data):
            yield self._decode(memoryview(payload))

    def receive(self, end: socket.socket) -> Iterator[Any]:
        """Yield what comes, without a copy, until the other side is gone, in whatever way. Blocks."""
        with suppress(ConnectionError, EOFError):
            while True:
                length, _, _ = HEADER.unpack(_exactly(end, HEADER_BYTES))
                yield self._decode(_exactly(end, length - HEADER_BYTES))

    def _decode(self, payload: memoryview) -> Any:
        stop = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
        self._arrays.clear()
        self._behind = payload[stop:]
        return self._decoder.decode(payload[_LENGTH.size : stop])

    def _array(self, kind: Any, value: tuple[int, int]) -> Any:
        number, size = value
        if number == len(self._arrays):
            self._arrays.append(np.frombuffer(self._behind[:size], _dtype(kind)))
            self._behind = self._behind[size:]
        return self._arrays[number]
