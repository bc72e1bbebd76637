"""Batches to bytes and back, as the segments hold them: the bytes of the wire, written as they are."""

from __future__ import annotations

import threading
from typing import Final

import pyarrow as pa

from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import BatchLimits, Layout
from postroad.wire.batches import BatchDecoder, encode_batch

encode = encode_batch

# A log takes back whatever it once accepted, also after the configured limits were lowered. What stands in a checked record is no
# stranger's, and its size is bounded by that of the file.
_ANYTHING: Final = 0xFFFF_FFFF
LIMITS: Final = BatchLimits(
    rows=_ANYTHING,
    bytes=_ANYTHING,
    attributes=_ANYTHING,
    columns=_ANYTHING,
    name_bytes=_ANYTHING,
    value_bytes=_ANYTHING,
    payload_bytes=_ANYTHING,
    schema_bytes=_ANYTHING,
)


class _Decoders(threading.local):
    """A decoder per thread: it caches layouts, and several threads may read logs at once."""

    def __init__(self) -> None:
        self.decoder = BatchDecoder(LIMITS)


_decoders: Final = _Decoders()


def decode(data: pa.Buffer) -> Batch:
    """Return the batch in these bytes, sharing their memory, or raise `BatchError`."""
    return _decoders.decoder.decode(memoryview(data), ascending=True)


def decode_layout(data: pa.Buffer) -> Layout:
    """Return the layout of the batch that begins with these bytes, or raise `BatchError`."""
    return _decoders.decoder.layout(memoryview(data))
