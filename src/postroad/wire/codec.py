"""Packets to frames and back.

A packet without a body has as payload the MessagePack array of its fields. One with a body (an Arrow batch) has

    header length u32 | MessagePack array | zeros up to a multiple of 8 | body

so that the body lies at a multiple of 8 from the start of the payload, as Arrow and numpy like it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from postroad.errors import InvalidValueError, MalformedPacketError
from postroad.wire import packets
from postroad.wire.framing import FRAME_BYTES_MAX, Frame, encode_frame
from postroad.wire.registry import REGISTRY

__all__ = ["Decoded", "decode", "encode", "packets", "validate"]

Decoded: TypeAlias = tuple[msgspec.Struct, int, memoryview | None]
"""Packet, packet id, and the body of packets that carry one."""

_ALIGNMENT: Final = 8
_HEADER_LENGTH: Final = struct.Struct(">I")
_encoder: Final = msgspec.msgpack.Encoder()


def encode(
    packet: msgspec.Struct, packet_id: int, body: Sequence[bytes | memoryview] | None = None, *, max_bytes: int = FRAME_BYTES_MAX
) -> list[bytes | memoryview]:
    """Return the buffers of the packet's frame. The body of a large one is passed through uncopied.

    Lengths and bounds of fields are the receiver's to check; `validate` checks them here, for values a user gave.
    """
    spec = REGISTRY.by_type[type(packet)]
    assert spec.carries_body is (body is not None), f"{spec.name} must {'' if spec.carries_body else 'not '}have a body"
    payload = _fields(packet)
    if body is None:
        return encode_frame(spec.method, packet_id, payload, max_bytes=max_bytes)
    head = _HEADER_LENGTH.pack(len(payload)) + payload
    return encode_frame(spec.method, packet_id, head + bytes(-len(head) % _ALIGNMENT), body, max_bytes=max_bytes)


def validate(packet: msgspec.Struct) -> None:
    """Refuse a packet that a peer would refuse: raise `InvalidValueError`."""
    spec = REGISTRY.by_type[type(packet)]
    try:
        spec.decoder.decode(_fields(packet))
    except msgspec.MsgspecError as error:
        raise InvalidValueError(f"{spec.name}: {error}") from error


def decode(frame: Frame) -> Decoded:
    """Return the packet of a frame, or raise a `WireError` whatever its bytes are."""
    method, packet_id, payload = frame
    spec = REGISTRY.by_method.get(method) or REGISTRY.of_method(method)
    body = None
    if spec.carries_body:
        payload, body = _split(spec.name, memoryview(payload))
    try:
        return spec.decoder.decode(payload), packet_id, body
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPacketError(spec.name, str(error)) from error


def _fields(packet: msgspec.Struct) -> bytes:
    try:
        return _encoder.encode(packet)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidValueError(f"{type(packet).__name__}: {error}") from error


def _split(name: str, payload: memoryview) -> tuple[memoryview, memoryview]:
    if len(payload) < _HEADER_LENGTH.size:
        raise MalformedPacketError(name, "its header length is missing")
    (length,) = _HEADER_LENGTH.unpack_from(payload)
    end = _HEADER_LENGTH.size + length
    start = end + -end % _ALIGNMENT
    if start > len(payload):
        raise MalformedPacketError(name, f"its header of {length} bytes is longer than its payload")
    return payload[_HEADER_LENGTH.size : end], payload[start:]
