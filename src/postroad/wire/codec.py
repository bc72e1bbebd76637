"""Packets to frames and back.

A packet without a body has as payload the MessagePack array of its fields. One with a body (an Arrow batch) has

    header length u32 | MessagePack array | zeros up to a multiple of 8 | body

so that the body lies at a multiple of 8 from the start of the payload, as Arrow and numpy like it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from postroad.errors import MalformedPacketError
from postroad.wire.framing import FRAME_BYTES_MAX, Frame, encode_frame
from postroad.wire.registry import REGISTRY, Packet

_ALIGNMENT: Final = 8
_HEADER_LENGTH: Final = struct.Struct(">I")
_encode: Final = msgspec.msgpack.Encoder().encode


class Decoded(NamedTuple):
    """What a frame held. `body` is None for packets that carry none."""

    packet: Packet
    packet_id: int
    body: memoryview | None


def encode(
    packet: Packet, packet_id: int, body: Sequence[bytes | memoryview] | None = None, *, max_bytes: int = FRAME_BYTES_MAX
) -> list[bytes | memoryview]:
    """Return the buffers of the packet's frame. The body is passed through uncopied."""
    spec = REGISTRY.by_type[type(packet)]
    payload = _encode(packet)
    if body is None:
        assert not spec.carries_body, f"{spec.name} carries a body"
        return encode_frame(spec.method, packet_id, payload, max_bytes=max_bytes)
    assert spec.carries_body, f"{spec.name} carries no body"
    head = _HEADER_LENGTH.pack(len(payload)) + payload
    return encode_frame(spec.method, packet_id, head + bytes(-len(head) % _ALIGNMENT), body, max_bytes=max_bytes)


def decode(frame: Frame) -> Decoded:
    """Return the packet of a frame, or raise a `WireError` whatever its bytes are."""
    method, packet_id, payload = frame
    spec = REGISTRY.by_method.get(method) or REGISTRY.of_method(method)
    body = None
    if spec.carries_body:
        payload, body = _split(spec.name, memoryview(payload))
    try:
        return Decoded(spec.decoder.decode(payload), packet_id, body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPacketError(spec.name, str(error)) from error


def _split(name: str, payload: memoryview) -> tuple[memoryview, memoryview]:
    if len(payload) < _HEADER_LENGTH.size:
        raise MalformedPacketError(name, "its header length is missing")
    (length,) = _HEADER_LENGTH.unpack_from(payload)
    end = _HEADER_LENGTH.size + length
    start = end + -end % _ALIGNMENT
    if start > len(payload):
        raise MalformedPacketError(name, f"its header of {length} bytes is longer than its payload")
    return payload[_HEADER_LENGTH.size : end], payload[start:]
