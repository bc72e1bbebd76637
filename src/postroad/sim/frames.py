"""Packets to bytes and back, as the product's own wire does it: nothing crosses the simulated network in any other form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from postroad.core.batch.batch import Batch
from postroad.wire.codec import decode
from postroad.wire.deliveries import RowsDecoder, encode_with_rows
from postroad.wire.framing import FrameDecoder


class Received(NamedTuple):
    """A packet, the id of the request it belongs to, and the rows it carries."""

    packet: msgspec.Struct
    packet_id: int
    batch: Batch | None


def to_bytes(packet: msgspec.Struct, packet_id: int = 0, batch: Batch | None = None) -> bytes:
    """Return the frame of a packet."""
    return b"".join(encode_with_rows(packet, packet_id, batch, few=True))


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
