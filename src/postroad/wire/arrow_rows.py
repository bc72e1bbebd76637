"""Few rows as an Arrow record batch message, written by hand: byte for byte what Arrow writes, in half the time.

Arrow takes 30 us to make columns of two rows and to encode them, nearly all of it to make objects that nobody looks at. Its
message for a layout is always the same but for some numbers: the rows, the length of the body, and where each buffer lies in it.
So the metadata is Arrow's own, of an example, with these numbers put in; the buffers follow, each padded to 8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa

from postroad.core.batch.batch import Batch
from postroad.core.batch.checks import tick_column, value_columns
from postroad.core.batch.message import RowColumns
from postroad.core.batch.schema import LAYOUTS_MAX, Kind, Layout
from postroad.types import AttributeValue
from postroad.wire.arrow_ipc import PREFIX, Places, locate, message_length, shape_of

_EXAMPLES: Final[dict[Kind, AttributeValue]] = {"bool": True, "int": 1, "float": 1.0, "string": "x", "binary": b"x"}
_FORMATS: Final[dict[Kind, str]] = {"int": "q", "float": "d"}
_I64: Final = struct.Struct("<q")
_PADDING: Final = [bytes(-length % 8) for length in range(8)]


class _Template(NamedTuple):
    """The metadata of a layout's record batches, prefix included, and where its numbers stand."""

    metadata: bytes
    places: Places
    columns: int
    node_numbers: struct.Struct
    buffer_numbers: struct.Struct


class _Body:
    """Buffers one after the other; none of them has a bitmap of nulls."""

    __slots__ = ("buffers", "length", "places")

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self.places: list[int] = []  # of each buffer its start and length, that of the bitmap included
        self.length = 0

    def column(self, *buffers: bytes) -> None:
        self.places += (self.length, 0)
        for buffer in buffers:
            length = len(buffer)
            self.places += (self.length, length)
            self.buffers.append(buffer)
            if length % 8:
                self.buffers.append(_PADDING[length % 8])
            self.length += -(-length // 8) * 8

    def binary(self, values: Sequence[bytes]) -> None:
        offsets = _numbers("i", len(values) + 1).pack(0, *accumulate(map(len, values)))
        self.column(offsets, b"".join(values))


def encode_rows(batch: Batch, rows: RowColumns) -> bytes:
    """Return the record batch message of rows none of which lacks an attribute, prefix included."""
    layout, count, body = batch.layout, len(batch), _Body()
    body.column(batch.ticks().tobytes())
    body.column(batch.ids().tobytes())
    body.binary(rows.payloads())
    attributes = rows.all_attributes()
    for name, kind in zip(layout.names, layout.kinds, strict=True):
        values = cast("list[Any]", attributes[name])
        match kind:
            case "string":
                body.binary([value.encode() for value in values])
            case "binary":
                body.binary(values)
            case "bool":
                bits = sum(value << place for place, value in enumerate(values))
                body.column(bits.to_bytes(-(-count // 8), "little"))
            case _:
                body.column(_numbers(_FORMATS[kind], count).pack(*values))
    template = _template(layout)
    metadata, places = bytearray(template.metadata), template.places
    _I64.pack_into(metadata, places.rows, count)
    _I64.pack_into(metadata, places.body, body.length)
    template.node_numbers.pack_into(metadata, places.nodes, *(count, 0) * template.columns)
    template.buffer_numbers.pack_into(metadata, places.buffers, *body.places)
    return b"".join((metadata, *body.buffers))


@lru_cache(maxsize=256)
def _numbers(kind: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{kind}")


@lru_cache(maxsize=LAYOUTS_MAX)
def _template(layout: Layout) -> _Template:
    kinds = zip(layout.names, layout.kinds, ([_EXAMPLES[kind]] for kind in layout.kinds), strict=True)
    columns = value_columns(tick_column(None, 1), [bytes(16)], [b"x"], kinds, complete=True)
    message = pa.RecordBatch.from_arrays(columns, schema=layout.schema).serialize().to_pybytes()
    length, shape = message_length(memoryview(message), 0), shape_of(layout)
    found = locate(message[PREFIX.size : length], shape)
    assert all(found), "an example with a row and a body has all its numbers"
    places = Places(*(place + PREFIX.size for place in found))
    return _Template(message[:length], places, shape.columns, shape.node_numbers, shape.buffer_numbers)
