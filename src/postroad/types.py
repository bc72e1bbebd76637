"""Ids and value types: the tick and the message id, with their exact layouts.

A tick is a u64, `milliseconds << 16 | counter`; a message id is 16 bytes, big-endian,
`publisher (4) | broker (4) | milliseconds (6) | counter (2)`, so its last 8 bytes have the layout of a tick.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NewType, Self

from postroad.errors import InvalidValueError

Tick = NewType("Tick", int)


AttributeValue = bool | int | float | str | bytes

COUNTER_BITS: Final = 16
COUNTER_MAX: Final = (1 << COUNTER_BITS) - 1
TICK_MAX: Final = (1 << 64) - 1
MILLISECONDS_MAX: Final = (1 << 48) - 1
MESSAGE_ID_BYTES: Final = 16

_ID = struct.Struct(">IIQ")


def make_tick(milliseconds: int, counter: int = 0) -> Tick:
    if not 0 <= milliseconds <= MILLISECONDS_MAX:
        raise InvalidValueError(f"milliseconds {milliseconds} do not fit in 48 bits")
    if not 0 <= counter <= COUNTER_MAX:
        raise InvalidValueError(f"counter {counter} does not fit in 16 bits")
    return Tick(milliseconds << COUNTER_BITS | counter)


def tick_milliseconds(tick: int) -> int:
    return tick >> COUNTER_BITS


def tick_counter(tick: int) -> int:
    return tick & COUNTER_MAX


def format_time(milliseconds: int) -> str:
    """Write a timestamp as a person reads it."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def format_tick(tick: int) -> str:
    """Write the time of a tick as a person reads it."""
    return format_time(tick_milliseconds(tick))


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """Names one message for ever. Made by the publisher's client; equal ids are the same message.

    ```python
    message_id = await client.publish({"symbol": "ACME"})
    assert postroad.MessageId.parse(str(message_id)) == message_id
    ```
    """

    publisher: int
    broker: int
    tick: Tick

    @classmethod
    def make(cls, publisher: int, broker: int, milliseconds: int, counter: int = 0) -> Self:
        """Make an id from its parts. `milliseconds` is the publisher's time since 1970."""
        if not 0 <= publisher <= 0xFFFF_FFFF or not 0 <= broker <= 0xFFFF_FFFF:
            raise InvalidValueError(f"publisher {publisher} and broker {broker} must fit in 32 bits each")
        return cls(publisher, broker, make_tick(milliseconds, counter))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Read the 16 bytes of an id."""
        if len(data) != MESSAGE_ID_BYTES:
            raise InvalidValueError(f"a message id has {MESSAGE_ID_BYTES} bytes, not {len(data)}")
        publisher, broker, tick = _ID.unpack(data)
        return cls(publisher, broker, Tick(tick))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form: 32 hexadecimal digits, with or without the dashes `str()` puts in."""
        try:
            data = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            raise InvalidValueError(f"a message id is written as 32 hexadecimal digits, not {text[:60]!r}") from None
        return cls.from_bytes(data)

    @property
    def milliseconds(self) -> int:
        """When it was published, in milliseconds since 1970."""
        return tick_milliseconds(self.tick)

    @property
    def counter(self) -> int:
        """Its number among the messages of one millisecond."""
        return tick_counter(self.tick)

    def __bytes__(self) -> bytes:
        return _ID.pack(self.publisher, self.broker, self.tick)

    def __str__(self) -> str:
        return f"{self.publisher:08x}-{self.broker:08x}-{self.milliseconds:012x}-{self.counter:04x}"
