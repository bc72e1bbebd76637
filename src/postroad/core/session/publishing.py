"""What a publisher has sent and does not yet know to be durable.

A *registration* is one publisher id at one broker. Every message gets its id when the application publishes it; the id names
the publisher and the broker, so a message belongs to one registration for ever, and only that broker may be asked to take it
(again). Ticks of ids ascend strictly within a registration, also when the wall clock steps back.

Messages wait as rows while a frame is on its way and become a frame when that one is acknowledged, so frames grow by
themselves under load and a lone message leaves at once. Frames stay until the broker says that they are durable; after a
reconnect the broker tells the last tick it accepted, and the frames beyond it leave again, in order.

Credit: when the broker's pubend is held to a rate, it says how many messages may be unacknowledged; that replaces the window.

Skew: an id's timestamp is the client's clock plus `skew_ms`, which makes it the broker's clock as far as we know it. Each
acknowledgement bounds that clock: it shows at least `wall_ms` now, and at most that plus the time since the frame left. So
`skew_ms` follows a drift, and steps of either clock. A registration whose last id is far ahead of the broker's clock, because
that was set back, would be refused for as long: it takes no more messages (`retiring`), and a new one follows when it holds none.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.batch.row_codec import Row, split_rows
from postroad.core.batch.schema import DEFAULT_LIMITS, INT_MAX, INT_MIN, check_message
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Credit, Packet, Publish, PublishColumns
from postroad.types import COUNTER_BITS, AttributeValue, MessageId, Tick, tick_milliseconds

ROW_OVERHEAD_BYTES: Final = 48
NAMES_MAX: Final = 4096
_ID = struct.Struct(">IIQ")
_ID_DTYPE: Final = np.dtype([("publisher", ">u4"), ("broker", ">u4"), ("tick", ">u8")])
_QUICK_STRING_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class PublishingConfig:
    """Bounds of one publisher. The broker's window in bytes is another bound, told when the publisher opens."""

    window_messages: int = 65_536
    frame_rows: int = 2_000
    frame_bytes: int = 512 << 10
    columns_from: int = 64  # a frame of at least this many rows leaves as columns


@dataclass(slots=True)
class Frame:
    """Messages that left, or will leave, together: as rows or as a batch."""

    first: int  # ticks of ids
    last: int
    rows: Sequence[Row]
    batch: Batch | None
    bytes: int
    sent: bool = False
    sent_ms: int = 0  # when, by the client's clock

    def __len__(self) -> int:
        return len(self.rows) if self.batch is None else len(self.batch)

    def without(self, first: int, last: int) -> list[Frame]:
        """Return what is left when the messages from `first` to `last` are taken out."""
        ticks = self.ticks()
        start = int(np.searchsorted(ticks, np.uint64(first), "left"))
        stop = int(np.searchsorted(ticks, np.uint64(last), "right"))
        return [self._part(lo, hi, ticks) for lo, hi in ((0, start), (stop, len(ticks))) if lo < hi]

    def ticks(self) -> np.ndarray[Any, Any]:
        if self.batch is not None:
            return id_ticks(self.batch)
        return np.array([id_tick(row[0]) for row in self.rows], np.uint64)

    def _part(self, start: int, stop: int, ticks: np.ndarray[Any, Any]) -> Frame:
        size = self.bytes * (stop - start) // len(self)
        batch = None if self.batch is None else self.batch.slice(start, stop)
        return Frame(int(ticks[start]), int(ticks[stop - 1]), self.rows[start:stop], batch, size, self.sent, self.sent_ms)


def id_tick(message_id: bytes) -> int:
    return int.from_bytes(message_id[8:], "big")


def id_ticks(batch: Batch) -> np.ndarray[Any, Any]:
    return batch.ids().view(_ID_DTYPE)["tick"].astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Messages that were given to a broker which has not said that it has them. Only that broker may be asked again."""

    broker: int
    publisher: int
    messages: int
    first: MessageId
    last: MessageId


@dataclass(frozen=True, slots=True)
class Throttled:
    """The overlay cannot take more of this stream: `broker` is the slowest one, and `rate` is for all publishers of the stream.

    `since` is seconds since 1970 by the broker's clock; `rate` is messages per second.

    ```python
    publisher = client.publisher()
    if publisher.throttled is not None:
        print("slow down to", publisher.throttled.rate, "because of broker", publisher.throttled.broker)
    ```
    """

    since: float
    rate: float
    broker: int


class Registration:
    """One publisher id at one broker. `frames` ascend; `sent` frames stand before those that are not."""

    def __init__(self, config: PublishingConfig, publisher: int, broker: int, pubend: int) -> None:
        self.publisher: Final = publisher
        self.broker: Final = broker
        self.pubend: Final = pubend
        self.link: LinkId | None = None  # where it is open
        self.window_bytes = 0
        self.skew_ms = 0  # add it to our clock to get the broker's
        self.tolerance_ms = 0  # how far ids may be from it; 0: unknown
        self.retiring = False
        self.credit: Credit | None = None  # None: nobody is congested
        self.last_tick = 0  # of the last id made
        self.messages = 0  # not acknowledged, waiting ones included
        self.bytes = 0
        self._config: Final = config
        self._frames: deque[Frame] = deque()
        self._in_flight = 0
        self._waiting: list[Row] = []
        self._sizes: list[int] = []  # of the waiting rows
        self._waiting_bytes = 0
        self._names: set[str] = set()

    def opened(self, link: LinkId, window_bytes: int, skew_ms: int, last: int, tolerance_ms: int = 0) -> None:
        """Go on at this link: what the broker accepted is done, the rest leaves again."""
        self.closed()
        self.link = link
        self.window_bytes, self.skew_ms, self.tolerance_ms = window_bytes, skew_ms, tolerance_ms
        self.last_tick = max(self.last_tick, last)
        self.acknowledged(last)

    def closed(self) -> None:
        """Take in that the link is gone: nothing that was sent may be taken as received."""
        self.link = None
        for frame in self._frames:
            frame.sent = False
        self._in_flight = 0

    def has_room(self) -> bool:
        most = self._config.window_messages if self.credit is None else self.credit.messages
        return self.messages < most and self.bytes < self.window_bytes and self.link is not None and not self.retiring

    def room(self) -> int:
        """Return how many messages may be added to what has room: as a batch, beyond the window without a credit."""
        return self._config.window_messages if self.credit is None else self.credit.messages - self.messages

    @property
    def throttled(self) -> Throttled | None:
        """Why the broker gives less credit than the window, if it does."""
        credit = self.credit
        if credit is None or self.link is None:
            return None
        return Throttled(credit.since_ms / 1000, credit.rate, credit.broker)

    def add(self, attributes: Mapping[str, AttributeValue], payload: bytes, clock_ms: int) -> MessageId:
        """Take one message and give it its id; a value that no message may hold raises before anything changed."""
        size = quick_size(attributes, payload, self._names)
        if size < 0:
            attributes = check_message(attributes, payload)
            payload = bytes(payload)
            size = _slow_size(attributes, payload)
            if len(self._names) < NAMES_MAX:
                self._names.update(attributes)
        tick = (clock_ms + self.skew_ms) << COUNTER_BITS
        if tick <= self.last_tick:
            tick = self.last_tick + 1
        self.last_tick = tick
        self._waiting.append((_ID.pack(self.publisher, self.broker, tick), dict(attributes), payload))
        self._sizes.append(size)
        self._waiting_bytes += size
        self.bytes += size
        self.messages += 1
        return MessageId(self.publisher, self.broker, tick)  # type: ignore[arg-type]  # Tick() would cost a call per message

    def add_batch(self, batch: Batch, size: int) -> None:
        """Take a batch whose ids were made by `ids_for`."""
        self._seal()
        ticks = id_ticks(batch)
        self._frames.append(Frame(int(ticks[0]), int(ticks[-1]), (), batch, size))
        self.messages += len(batch)
        self.bytes += size

    def ids_for(self, count: int, clock_ms: int) -> np.ndarray[Any, Any]:
        """Make ids for this many messages at once, as 16-byte items."""
        first = self._next_tick(clock_ms)
        self.last_tick = first + count - 1
        ids = np.empty(count, _ID_DTYPE)
        ids["publisher"], ids["broker"] = self.publisher, self.broker
        ids["tick"] = np.arange(first, first + count, dtype=np.uint64)
        return ids.view(np.dtype((np.void, 16)))

    def _next_tick(self, clock_ms: int) -> int:
        tick = (clock_ms + self.skew_ms) << COUNTER_BITS
        return tick if tick > self.last_tick else self.last_tick + 1

    def acknowledged(self, last: int) -> int | None:
        """Forget everything up to this tick: it is durable at the broker. Return when the last frame of it left, if it did."""
        frames, sent_ms = self._frames, None
        while frames and frames[0].last <= last:
            frame = frames.popleft()
            sent_ms = frame.sent_ms if frame.sent else sent_ms
            self._forget(frame)
        if frames and frames[0].first <= last:
            self._cut(0, last)
        return sent_ms

    def adjust(self, broker_ms: int, clock_ms: int, sent_ms: int) -> None:
        """Correct our idea of the broker's clock by an acknowledgement of what left at `sent_ms`."""
        ours = clock_ms + self.skew_ms
        least, most = broker_ms, broker_ms + max(clock_ms - sent_ms, 0)
        self.skew_ms += min(max(ours, least), most) - ours

    def is_ahead(self, clock_ms: int) -> bool:
        """Tell whether our ids are so far ahead of the broker's clock that it would soon refuse them."""
        ahead_ms = tick_milliseconds(self.last_tick) - clock_ms - self.skew_ms
        return self.tolerance_ms > 0 and 2 * ahead_ms > self.tolerance_ms

    def drop_after(self, tick: int) -> tuple[int, int] | None:
        """Give up the messages after a tick; return the ticks of the first and the last of them."""
        self._seal()
        after = [frame for frame in self._frames if frame.last > tick]
        if not after:
            return None
        ticks = after[0].ticks()
        first, last = int(ticks[np.searchsorted(ticks, np.uint64(tick), "right")]), after[-1].last
        self._cut(first, last)
        return first, last

    def refused(self, first: int, last: int) -> None:
        """Forget the messages from `first` to `last`: the broker will never take them."""
        self._cut(first, last)

    def _cut(self, first: int, last: int) -> None:
        kept: deque[Frame] = deque()
        for frame in self._frames:
            if frame.last < first or frame.first > last:
                kept.append(frame)
                continue
            self._forget(frame)
            for part in frame.without(first, last):
                self._keep(part)
                kept.append(part)
        self._frames = kept

    def _forget(self, frame: Frame) -> None:
        self.messages -= len(frame)
        self.bytes -= frame.bytes
        self._in_flight -= frame.sent

    def _keep(self, frame: Frame) -> None:
        self.messages += len(frame)
        self.bytes += frame.bytes
        self._in_flight += frame.sent

    def take(self, clock_ms: int) -> list[tuple[Packet, Batch | None]]:
        """Return what should leave now."""
        config = self._config
        if self._waiting and (
            self._in_flight == 0 or len(self._waiting) >= config.frame_rows or self._waiting_bytes >= config.frame_bytes
        ):
            self._seal()
        leaving: list[tuple[Packet, Batch | None]] = []
        for frame in reversed(self._frames):
            if frame.sent:
                break
            frame.sent, frame.sent_ms = True, clock_ms
            self._in_flight += 1
            leaving.append(self._packet(frame, clock_ms))
        leaving.reverse()
        return leaving

    def _packet(self, frame: Frame, clock_ms: int) -> tuple[Packet, Batch | None]:
        age_ms = max(clock_ms + self.skew_ms - tick_milliseconds(frame.last), 0)
        if frame.batch is not None:
            return PublishColumns(self.publisher, age_ms), frame.batch
        return Publish(self.publisher, *split_rows(frame.rows), age_ms), None

    def _seal(self) -> None:
        """Turn the waiting rows into frames."""
        rows, sizes = self._waiting, self._sizes
        self._waiting, self._sizes, self._waiting_bytes = [], [], 0
        for start, stop in _chunks(sizes, self._config):
            part = rows[start:stop]
            if len(part) < self._config.columns_from:
                self._frames.append(Frame(id_tick(part[0][0]), id_tick(part[-1][0]), part, None, sum(sizes[start:stop])))
                continue
            for batch in build_batches(part):
                end = start + len(batch)
                first, last = id_tick(rows[start][0]), id_tick(rows[end - 1][0])
                self._frames.append(Frame(first, last, (), batch, sum(sizes[start:end])))
                start = end  # noqa: PLW2901  # the batches of one part follow each other

    def first_outstanding(self) -> int | None:
        """Return the tick of the first id that is neither durable nor refused, if there is one."""
        if self._frames:
            return self._frames[0].first
        return id_tick(self._waiting[0][0]) if self._waiting else None

    def doubt(self) -> Doubt | None:
        """Say what is not acknowledged, if anything."""
        if not self.messages:
            return None
        first = self._frames[0].first if self._frames else id_tick(self._waiting[0][0])
        last = id_tick(self._waiting[-1][0]) if self._waiting else self._frames[-1].last
        return Doubt(
            self.broker,
            self.publisher,
            self.messages,
            MessageId(self.publisher, self.broker, Tick(first)),
            MessageId(self.publisher, self.broker, Tick(last)),
        )


def quick_size(attributes: Mapping[str, AttributeValue], payload: bytes, names: set[str]) -> int:
    """Return the size of a message that is plainly within every limit, or -1 when a closer look is needed.

    `names` are attribute names already checked. Called for every message, hence one loop and no calls.
    """
    if type(payload) is not bytes:
        return -1
    size = ROW_OVERHEAD_BYTES + len(payload)
    if size > DEFAULT_LIMITS.payload_bytes or len(attributes) > DEFAULT_LIMITS.attributes:
        return -1
    for name, value in attributes.items():
        if name not in names:
            return -1
        kind = type(value)
        if kind is float or kind is bool:
            size += 16
        elif kind is str:
            length = len(value)  # type: ignore[arg-type]  # it is a str
            if length > _QUICK_STRING_MAX or not value.isascii():  # type: ignore[union-attr]  # it is a str
                return -1
            size += length + 16
        elif kind is int and INT_MIN <= value <= INT_MAX:  # type: ignore[operator]  # it is an int
            size += 16
        else:
            return -1
    return size


def _slow_size(attributes: Mapping[str, AttributeValue], payload: bytes) -> int:
    """Return the size `quick_size` gives, for any message."""
    lengths = sum(len(value) for value in attributes.values() if isinstance(value, str | bytes))
    return ROW_OVERHEAD_BYTES + len(payload) + 16 * len(attributes) + lengths


def _chunks(sizes: Sequence[int], config: PublishingConfig) -> list[tuple[int, int]]:
    """Cut rows of these sizes into [start, stop) within the bounds of a frame."""
    chunks, start, total = [], 0, 0
    for index, size in enumerate(sizes):
        if index > start and (index - start >= config.frame_rows or total + size > config.frame_bytes):
            chunks.append((start, index))
            start, total = index, 0
        total += size
    if sizes:
        chunks.append((start, len(sizes)))
    return chunks
