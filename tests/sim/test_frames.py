"""Releases of one version of the protocol understand each other."""

from __future__ import annotations

import pytest

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import Deliver, HoldConfirmed, HomeReply, Knowledge, Packet, Remembered
from postroad.sim.frames import Reader, Release, to_bytes
from postroad.types import MessageId

BATCH = Batch.from_columns([bytes(MessageId.make(7, 1, 0, 5))], [b"payload"], {"n": [1]}, ticks=[5])
PACKETS: list[tuple[Packet, Batch | None]] = [
    (HoldConfirmed(2, 1, 32, 1, 7, {256: 4}), None),
    (HomeReply(2, 1, 32, "orders", 1, True, False, "n > 1", {256: 4}, begun=[256]), None),  # more than 15 fields
    (Remembered(2, 1, 32, 7, [1_000], {256: 4}, {256: 3}, {256: 9}), None),
    (Knowledge(256, 4, 5, 9), BATCH),
    (Deliver(3, 256, 4, 5), BATCH),
]


@pytest.mark.parametrize(("packet", "batch"), PACKETS)
@pytest.mark.parametrize("release", Release)
def test_what_any_release_sends_is_read_as_it_was_meant(release: Release, packet: Packet, batch: Batch | None) -> None:
    """A field that is not known is ignored, and rows come as columns or as values."""
    (received,) = Reader().feed(to_bytes(packet, 4, batch, release=release))
    assert received.packet_id == 4
    assert type(received.packet).__name__ in {type(packet).__name__, "DeliverRows"}
    if batch is None:
        assert received.packet == packet
    else:
        assert received.batch is not None
        assert [(each.tick, each.payload) for each in received.batch] == [(5, b"payload")]


def test_releases_send_different_bytes() -> None:
    """Else they would test nothing."""
    frames = {release: to_bytes(Deliver(3, 256, 4, 5), 0, BATCH, release=release) for release in Release}
    assert len(set(frames.values())) == len(Release)
