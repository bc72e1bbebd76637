"""Packets to bytes and back, as the product's own wire does it: nothing crosses the simulated network in any other form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from postroad.core.batch import Batch
from postroad.wire.batches import BatchDecoder, encode_batch
from postroad.wire.codec import decode, encode
from postroad.wire.framing import FrameDecoder
from postroad.wire.packets.overlay import ASCENDING
from postroad.wire.registry import REGISTRY


class Received(NamedTuple):
    """A packet, the id of the request it belongs to, and the rows it carries."""

    packet: msgspec.Struct
    packet_id: int
    batch: Batch | None


def to_bytes(packet: msgspec.Struct, packet_id: int = 0, batch: Batch | None = None) -> bytes:
    """Return the frame of a packet."""
    body = None
    if REGISTRY.by_type[type(packet)].carries_body:
        body = () if batch is None else encode_batch(batch)
    return b"".join(encode(packet, packet_id, body))


class Reader:
    """Cuts what one connection receives into packets."""

    __slots__ = ("_batches", "_frames")

    def __init__(self) -> None:
        self._frames = FrameDecoder()
        self._batches = BatchDecoder()

    def feed(self, data: bytes) -> Iterator[Received]:
        for frame in self._frames.feed(data):
            packet, packet_id, body = decode(frame)
            batch = self._batches.decode(body, ascending=type(packet) in ASCENDING) if body is not None and len(body) else None
            yield Received(packet, packet_id, batch)
