"""Packets to bytes and back, as the product's own wire does it: nothing crosses the simulated network in any other form.

Releases of one version of the protocol differ in two ways, and so may simulated brokers: an older one lacks a feature (rows as
values), a newer one has appended a field to every packet.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from postroad.core.batch.batch import Batch
from postroad.wire.codec import decode
from postroad.wire.deliveries import RowsDecoder, encode_with_rows
from postroad.wire.framing import FrameDecoder, encode_frame
from postroad.wire.registry import REGISTRY

_FEW_FIELDS_LAST: Final = 0x9F  # an array of up to 15 elements has their number in its first byte
_MANY_FIELDS: Final = 0xDC  # in the next two bytes
_LENGTH: Final = struct.Struct(">I")
_UNKNOWN_FIELD: Final = msgspec.msgpack.encode({"of": "a later release"})


class Release(enum.Enum):
    """Which release of the product a simulated broker runs."""

    OLDER = "older"
    PRESENT = "present"
    NEWER = "newer"


class Received(NamedTuple):
    """A packet, the id of the request it belongs to, and the rows it carries."""

    packet: msgspec.Struct
    packet_id: int
    batch: Batch | None


def to_bytes(
    packet: msgspec.Struct, packet_id: int = 0, batch: Batch | None = None, *, release: Release = Release.PRESENT
) -> bytes:
    """Return the frame of a packet as a release sends it."""
    frame = b"".join(encode_with_rows(packet, packet_id, batch, few=release is not Release.OLDER))
    return _with_unknown_field(frame) if release is Release.NEWER else frame


def _with_unknown_field(frame: bytes) -> bytes:
    """Append a field to the packet of a frame."""
    ((method, packet_id, payload),) = FrameDecoder().feed(frame)
    payload, body = bytes(payload), b""
    carries_body = REGISTRY.by_method[method].carries_body
    if carries_body:
        (length,) = _LENGTH.unpack_from(payload)
        end = _LENGTH.size + length
        payload, body = payload[_LENGTH.size : end], payload[end + -end % 8 :]
    payload = _with_one_more(payload) + _UNKNOWN_FIELD
    if carries_body:
        payload = _LENGTH.pack(len(payload)) + payload
        payload += bytes(-len(payload) % 8) + body
    return b"".join(encode_frame(method, packet_id, payload))


def _with_one_more(fields: bytes) -> bytes:
    """Raise the number of elements in the head of an array."""
    if 0x90 <= fields[0] <= _FEW_FIELDS_LAST:
        count, rest = fields[0] - 0x90 + 1, fields[1:]
    else:
        assert fields[0] == _MANY_FIELDS, f"a packet begins with {fields[0]:#x}"
        count, rest = int.from_bytes(fields[1:3], "big") + 1, fields[3:]
    head = bytes((0x90 + count,)) if 0x90 + count <= _FEW_FIELDS_LAST else bytes((_MANY_FIELDS,)) + count.to_bytes(2, "big")
    return head + rest


class Reader:
    """Cuts what one connection receives into packets."""

    __slots__ = ("_frames", "_rows")

    def __init__(self) -> None:
        self._frames = FrameDecoder()
        self._rows = RowsDecoder()

    def feed(self, data: bytes) -> Iterator[Received]:
        for frame in self._frames.feed(data):
            packet, packet_id, body = decode(frame)
            yield Received(packet, packet_id, self._rows.rows_of(packet, body, len(frame[2])))
