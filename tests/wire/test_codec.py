"""Packets: every one survives its frame."""

from __future__ import annotations

from postroad.wire.codec import decode, encode
from postroad.wire.framing import FrameDecoder
from postroad.wire.packets.telesto import PutMessage


def test_a_packet_survives_its_frame() -> None:
    """Encode, cut, decode."""
    packet = PutMessage((1, 2), None, 7, 10, b"hello")
    [frame] = FrameDecoder().feed(b"".join(encode(packet, 42)))
    assert decode(frame) == (packet, 42, None)
