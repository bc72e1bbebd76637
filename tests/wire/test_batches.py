"""Batches as bytes."""

from __future__ import annotations

from postroad.core.rows import build_batches
from postroad.wire.batches import BatchDecoder, encode_batch


def test_a_batch_survives_its_bytes() -> None:
    """Encode, decode, compare."""
    [batch] = build_batches([(bytes(16), {"a": 1}, b"x"), (bytes(16), {"b": "y"}, b"")])
    assert BatchDecoder().decode(b"".join(encode_batch(batch))).equals(batch)
