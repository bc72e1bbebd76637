"""Writing a batch that may be repeated, seen from the client. The broker's part: `core/broker/publishing/named_writers.py`.

The ids of the rows are fixed when the batch is opened: row n has `base + n`, in this attempt and in every other. Rows leave as
frames within the broker's window and stay until they are durable. After a lost connection the batch is opened again; the broker
says what it has, and the rest leaves again. A batch that was sealed before is only counted.

A refused frame ends the writer: what follows it must not be taken before it, so the whole batch has to be tried again.

Invariants: the rows of frames follow on each other without a hole; a frame is forgotten only when its broker called it durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import (
    EpochOpened,
    EpochSealed,
    OpenEpoch,
    Packet,
    PublishAcknowledged,
    PublishColumns,
    PublishRefused,
    SealEpoch,
)
from postroad.core.session.events import Event, WriterChanged, WriterFailed, WriterSealed
from postroad.errors import EpochChangedError, PostroadError, PublishRefusedError, error_of_code
from postroad.types import COUNTER_BITS

_ID_DTYPE: Final = np.dtype([("publisher", ">u4"), ("broker", ">u4"), ("tick", ">u8")])


@dataclass(slots=True)
class _Frame:
    last: int  # tick of the last id
    batch: Batch
    size: int
    sent: bool = False


@dataclass(slots=True)
class Writer:
    """One batch of a named writer."""

    key: int
    name: str
    epoch: int
    opened: EpochOpened | None = None
    open: bool = False  # on the present connection
    rows: int = 0  # given by the application
    sealing: bool = False
    packet: int = 0  # of the question under way
    tries: int = 0
    retry_at: float | None = None
    skew_ms: int = 0  # of the broker's clock
    bytes: int = 0  # not durable
    frames: deque[_Frame] = field(default_factory=deque)

    @property
    def sealed(self) -> int | None:
        """With how many rows the batch was sealed before."""
        return None if self.opened is None else self.opened.rows

    def has_room(self) -> bool:
        return self.opened is not None and (self.sealed is not None or self.bytes < self.opened.window_bytes)

    def ids(self, count: int) -> np.ndarray[Any, Any]:
        """Return the ids of the next rows, as 16-byte items."""
        assert self.opened is not None
        first = self.opened.base + self.rows
        ids = np.empty(count, _ID_DTYPE)
        ids["publisher"], ids["broker"] = self.opened.publisher, self.opened.broker
        ids["tick"] = np.arange(first, first + count, dtype=np.uint64)
        return ids.view(np.dtype((np.void, 16)))


class SessionWriters:
    """All writers of a session. `ask` and `send` go to the main link; `ask` returns the packet id, 0 when there is none."""

    def __init__(
        self,
        ask: Callable[[Packet], int],
        send: Callable[[Packet, Batch], None],
        tell: Callable[[Event], None],
        delay: Callable[[int], float],
    ) -> None:
        self._ask = ask
        self._send = send
        self._tell = tell
        self._delay = delay
        self.writers: Final[dict[int, Writer]] = {}

    # --- the application ---

    def begin(self, key: int, name: str, epoch: int) -> None:
        self.writers[key] = writer = Writer(key, name, epoch)
        self._question(writer)

    def write(self, key: int, batch: Batch, size: int) -> None:
        """Take rows with the ids `Writer.ids` gave."""
        writer = self.writers[key]
        writer.rows += len(batch)
        assert writer.opened is not None
        last = writer.opened.base + writer.rows - 1
        if writer.sealed is None and last > writer.opened.last:
            writer.frames.append(_Frame(last, batch, size))
            writer.bytes += size

    def seal(self, key: int) -> None:
        """No more rows follow: `WriterSealed` comes when all are durable."""
        writer = self.writers[key]
        writer.sealing = True
        self._finish(writer)

    def end(self, key: int) -> None:
        self.writers.pop(key, None)

    # --- the broker ---

    def connected(self) -> None:
        for writer in self.writers.values():
            self._question(writer)

    def disconnected(self) -> None:
        for writer in self.writers.values():
            writer.open, writer.packet, writer.retry_at = False, 0, None
            for frame in writer.frames:
                frame.sent = False

    def opened(self, message: EpochOpened, packet: int, clock_ms: int) -> None:
        writer = self._of_packet(packet)
        if writer is None:
            return
        before = writer.opened
        if before is not None and (before.publisher, before.broker, before.base) != (
            message.publisher,
            message.broker,
            message.base,
        ):
            self._fail(
                writer, EpochChangedError(f"batch {writer.epoch} of {writer.name!r} is not open at the broker where it was begun")
            )
            return
        writer.opened, writer.open, writer.packet, writer.tries = message, True, 0, 0
        writer.skew_ms = message.wall_ms - clock_ms
        self._durable(writer, message.last if message.rows is None else message.base + message.rows)
        self._tell(WriterChanged(writer.key))
        self._finish(writer)

    def acknowledged(self, message: PublishAcknowledged) -> bool:
        """Take note of durable rows; tell whether they were a writer's."""
        writer = self._of_publisher(message.publisher)
        if writer is None:
            return False
        self._durable(writer, message.last)
        self._tell(WriterChanged(writer.key))
        self._finish(writer)
        return True

    def publish_refused(self, message: PublishRefused) -> bool:
        writer = self._of_publisher(message.publisher)
        if writer is None:
            return False
        error = PublishRefusedError(message.first, message.last, error_of_code(message.code, message.reason))
        self._fail(writer, error)
        return True

    def sealed(self, message: EpochSealed, packet: int) -> None:
        writer = self._of_packet(packet)
        if writer is not None:
            self._complete(writer, message.rows)

    def refused(self, packet: int, error: PostroadError, now: float) -> None:
        writer = self._of_packet(packet)
        if writer is None:
            return
        writer.packet = 0
        if not error.retryable:
            self._fail(writer, error)
            return
        writer.retry_at = now + self._delay(writer.tries)
        writer.tries += 1
        self._tell(WriterFailed(writer.key, error))

    # --- time ---

    def wake(self, now: float) -> None:
        for writer in list(self.writers.values()):
            if writer.retry_at is not None and writer.retry_at <= now:
                writer.retry_at = None
                self._question(writer)

    def deadlines(self) -> list[float | None]:
        return [writer.retry_at for writer in self.writers.values()]

    def send_frames(self, clock_ms: int) -> None:
        """Send what has not left yet."""
        for writer in self.writers.values():
            if not writer.open or writer.opened is None:
                continue
            for frame in writer.frames:
                if not frame.sent:
                    frame.sent = True
                    age_ms = max(0, clock_ms + writer.skew_ms - (frame.last >> COUNTER_BITS))
                    self._send(PublishColumns(writer.opened.publisher, age_ms), frame.batch)

    # --- inside ---

    def _question(self, writer: Writer) -> None:
        if writer.packet or writer.retry_at is not None:
            return
        if not writer.open:
            writer.packet = self._ask(OpenEpoch(writer.name, writer.epoch))
        else:
            self._finish(writer)

    def _finish(self, writer: Writer) -> None:
        """Seal a batch whose rows are all durable."""
        if not writer.sealing or writer.frames or not writer.open or writer.packet:
            return
        if writer.sealed is not None:
            self._complete(writer, writer.sealed)
        elif writer.retry_at is None:
            writer.packet = self._ask(SealEpoch(writer.name, writer.epoch, writer.rows))

    def _complete(self, writer: Writer, rows: int) -> None:
        if rows != writer.rows:
            text = f"batch {writer.epoch} of {writer.name!r} was written with {rows:,} rows, and has {writer.rows:,} now"
            self._fail(writer, EpochChangedError(f"{text}; what it was before stays published"))
            return
        self.end(writer.key)
        self._tell(WriterSealed(writer.key))

    def _durable(self, writer: Writer, last: int) -> None:
        while writer.frames and writer.frames[0].last <= last:
            writer.bytes -= writer.frames.popleft().size

    def _fail(self, writer: Writer, error: PostroadError) -> None:
        self.end(writer.key)
        self._tell(WriterFailed(writer.key, error))

    def _of_packet(self, packet: int) -> Writer | None:
        return next((writer for writer in self.writers.values() if writer.packet == packet), None) if packet else None

    def _of_publisher(self, publisher: int) -> Writer | None:
        found = (w for w in self.writers.values() if w.open and w.opened is not None and w.opened.publisher == publisher)
        return next(found, None)
