"""ZeroMQ under the machines: a ROUTER for those who ask us, a DEALER for each address we ask.

The seed uses REQ and REP, which lose step with each other when an answer is lost. ROUTER and DEALER speak the same framing
(an envelope, an empty frame, the message), so REQ and REP peers are understood, and the envelope carries our request id: a
late answer is recognised and dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

from postroad.errors import InvalidValueError, TopicsDependencyError, TopicsError
from postroad.topics.machines.messages import INTEGER_DIGITS_MAX, PAYLOAD_BYTES_MAX
from postroad.topics.machines.orders import Answered, Route

FRAMES_MAX: Final = 16
HIGH_WATER_MARK: Final = 10_000
SILENT_S: Final = 1.0
UNANSWERED_MAX: Final = 32


def import_zmq() -> Any:
    """Give the zmq module, or say how to install it."""
    try:
        import zmq  # noqa: PLC0415 - optional: postroad works without it
    except ImportError as error:
        raise TopicsDependencyError("topics need pyzmq, which is not installed: pip install 'postroad[topics]'") from error
    return zmq


def endpoint(address: str | bytes) -> str:
    """Read `host:port` or `tcp://host:port`; port 0 or * lets the system choose."""
    text = address.decode("utf-8", "replace") if isinstance(address, bytes) else address
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not host or "/" in host or not (port == "*" or (port.isascii() and port.isdigit() and int(port) < 65_536)):
        raise InvalidValueError(f"{text!r} is not an address; write host:port, for example 127.0.0.1:7101")
    return f"tcp://{host}:{'*' if port == '0' else port}"


def prepare(socket: Any) -> None:
    """Bound what a peer can make us hold, and forget what cannot be delivered when closing."""
    zmq = import_zmq()
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, PAYLOAD_BYTES_MAX)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)


class SocketKey(Protocol):
    """Keys of CURVE, see `keys`."""

    def dial(self, socket: Any) -> None:
        """Prepare a socket that connects."""

    def listen(self, socket: Any) -> None:
        """Prepare a socket that others connect to."""


class WallClock:
    """Seconds since the epoch that never go back: the monotonic clock, moved forward to the wall clock when that is ahead."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        monotonic = time.monotonic()
        self._offset = max(self._offset, time.time() - monotonic)
        return monotonic + self._offset


class Listener:
    """The ROUTER others ask us on."""

    def __init__(self, context: Any, bind: str, key: SocketKey | None = None) -> None:
        zmq = import_zmq()
        self.socket = context.socket(zmq.ROUTER)
        prepare(self.socket)
        if key is not None:
            key.listen(self.socket)
        self._key = key
        try:
            self.socket.bind(endpoint(bind))
        except zmq.ZMQError as error:
            self.socket.close()
            raise TopicsError(f"cannot listen on {bind}: {error}") from error
        self.address: bytes = self.socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0")

    def receive(self) -> tuple[Route, bytes, str] | None:
        """Give one request and by whose key it came; None when there is none. What is not framed as a request is dropped."""
        zmq = import_zmq()
        while True:
            try:
                received = self.socket.recv_multipart(zmq.NOBLOCK, copy=self._key is None)
            except zmq.Again:
                return None
            frames = received if self._key is None else [frame.bytes for frame in received]
            if 3 <= len(frames) <= FRAMES_MAX and frames[-2] == b"":
                return tuple(frames[:-1]), frames[-1], "" if self._key is None else received[-1].get("User-Id")

    def send(self, route: Route, payload: bytes) -> None:
        zmq = import_zmq()
        try:
            self.socket.send_multipart([*route, payload], zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # the asker is gone or does not read: it will ask again


class Dealer:
    """The DEALER we ask one address on. After a long silence it is opened anew, so that old requests do not pile up in it."""

    def __init__(self, context: Any, address: bytes, key: SocketKey | None = None) -> None:
        self._key = key
        self._context = context
        self._address = endpoint(address)
        self.socket = self._open()
        self._unanswered = 0
        self._heard = time.monotonic()

    def _open(self) -> Any:
        zmq = import_zmq()
        socket = self._context.socket(zmq.DEALER)
        prepare(socket)
        if self._key is not None:
            self._key.dial(socket)
        socket.connect(self._address)
        return socket

    @property
    def clogged(self) -> bool:
        return self._unanswered > UNANSWERED_MAX and time.monotonic() > self._heard + SILENT_S

    def reopen(self) -> None:
        self.socket.close()
        self.socket = self._open()
        self._unanswered = 0
        self._heard = time.monotonic()

    def send(self, request: int, payload: bytes) -> Any:
        zmq = import_zmq()
        self._unanswered += 1
        try:
            return self.socket.send_multipart([b"%d" % request, b"", payload], zmq.NOBLOCK)
        except zmq.ZMQError:
            return None  # counts as lost: the machine tries again

    def read(self, frames: list[bytes]) -> Answered | None:
        """Understand frames that came in; None for what is no answer to us."""
        if len(frames) != 3 or frames[1] != b"" or not frames[0].isdigit() or len(frames[0]) > INTEGER_DIGITS_MAX:
            return None
        self._unanswered = 0
        self._heard = time.monotonic()
        return Answered(int(frames[0]), frames[2])

    def receive(self) -> Iterator[Answered]:
        zmq = import_zmq()
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            answer = self.read(frames)
            if answer is not None:
                yield answer
