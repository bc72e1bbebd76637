"""A strict reader of the two Arrow IPC messages we use: a schema and a record batch.

An IPC message is `0xFFFFFFFF | metadata length i32 | metadata | body`, little-endian; the metadata is a FlatBuffers table.
Arrow's own reader is general: it accepts compressed buffers (16 MiB may unpack to gigabytes), dictionaries, nested and
extension types, foreign byte order (it swaps into new memory) and columns that share one stretch of the body (a message
that grows when written again). It can be told to refuse none of these. So the metadata of a peer is read here first, with
every offset checked, and only what our own encoder could have written goes on to Arrow:

- a schema gives names and kinds, from which we build the Arrow schema ourselves: Arrow never parses a peer's schema;
- a record batch must have the rows, columns and buffers its layout asks for, uncompressed, one after the other in the body.

The tables and their fields are those of Arrow's `Message.fbs` and `Schema.fbs`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from postroad.core.batch.schema import ATTRIBUTE_PREFIX, LAYOUTS_MAX, SYSTEM_COLUMNS, BatchLimits, Kind, Layout, layout_of
from postroad.errors import BatchError, BatchLimitError, InvalidValueError
from postroad.types import MESSAGE_ID_BYTES

PREFIX: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFF_FFFF
_VERSION_5: Final = 4
_SCHEMA_HEADER: Final = 1
_BATCH_HEADER: Final = 3
_LITTLE_ENDIAN: Final = 0
_TABLE_FIELDS_MAX: Final = 16  # more than any table of Arrow has

_U8: Final = struct.Struct("<B")
_I16: Final = struct.Struct("<h")
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")

_BUFFERS: Final[Mapping[Kind, int]] = {"bool": 2, "int": 2, "float": 2, "string": 3, "binary": 3}
_SYSTEM_BUFFERS: Final = (2, 2, 3)  # tick, id, payload
_PAYLOAD_DATA: Final = 6  # the buffer of the payloads' bytes


class BatchHeader(NamedTuple):
    """The metadata of a record batch, checked."""

    rows: int
    payload_bytes: int  # of all payloads together
    value_bytes: int  # of the largest string or binary column


class Places(NamedTuple):
    """Where the four numbers or vectors of a record batch stand in its metadata; 0 for a number left out, which is 0."""

    rows: int
    body: int
    nodes: int
    buffers: int


class Shape(NamedTuple):
    """What a record batch of one layout must look like."""

    columns: int
    buffers: int
    value_data: tuple[int, ...]  # which buffers hold the bytes of strings and binaries
    node_numbers: struct.Struct
    buffer_numbers: struct.Struct


def message_length(data: memoryview, start: int) -> int:
    """Return the length of the prefix and metadata of the message at `start`."""
    if len(data) - start < PREFIX.size:
        raise BatchError("the batch ends within a message prefix")
    continuation, length = PREFIX.unpack_from(data, start)
    if continuation != _CONTINUATION or length <= 0 or length % 8 or length > len(data) - start - PREFIX.size:
        raise BatchError(f"no Arrow message of {length} bytes of metadata can start here")
    return int(PREFIX.size + length)


def read_layout(message: bytes, limits: BatchLimits) -> Layout:
    """Read a schema message, prefix included."""
    try:
        layout = _read_schema(message[PREFIX.size :], limits)
    except (struct.error, UnicodeDecodeError, InvalidValueError) as error:
        raise BatchError(f"malformed schema: {error}") from error
    layout.check(limits)
    return layout


def read_batch_header(data: memoryview, start: int, layout: Layout) -> BatchHeader:
    """Read and check the record batch message at `start`, whose body must be the rest of `data`."""
    body_start = start + message_length(data, start)
    meta = bytes(data[start + PREFIX.size : body_start])
    shape = shape_of(layout)
    try:
        return _read_batch(meta, shape, locate(meta, shape), len(data) - body_start)
    except struct.error as error:
        raise BatchError(f"malformed record batch: {error}") from error


@lru_cache(maxsize=LAYOUTS_MAX)
def shape_of(layout: Layout) -> Shape:
    counts = [*_SYSTEM_BUFFERS, *(_BUFFERS[kind] for kind in layout.kinds)]
    ends = list(accumulate(counts))
    data = tuple(end - 1 for end, count in zip(ends, counts, strict=True) if count == 3)
    return Shape(len(counts), ends[-1], data[1:], struct.Struct(f"<{2 * len(counts)}q"), struct.Struct(f"<{2 * ends[-1]}q"))


def _fields(meta: bytes, position: int, count: int) -> list[int]:
    """Return the absolute positions of a table's first `count` fields, 0 for absent ones; later fields must be absent."""
    vtable = position - _I32.unpack_from(meta, position)[0]
    size = _U16.unpack_from(meta, vtable)[0] if vtable >= 0 else 0
    if vtable < 0 or vtable + size > len(meta):
        raise BatchError("a table points outside its message")
    return [position + offset if offset else 0 for offset in _offsets(meta[vtable : vtable + size], count)]


@lru_cache(maxsize=1024)
def _offsets(vtable: bytes, count: int) -> tuple[int, ...]:
    """Return where a vtable puts the first `count` fields of its tables; tables share vtables, so most are known."""
    present = (len(vtable) - 4) // 2
    if not 0 <= present <= _TABLE_FIELDS_MAX:
        raise BatchError("a table has fields of no known version")
    offsets = struct.unpack_from(f"<{present}H", vtable, 4)
    if any(offsets[count:]):
        raise BatchError("a table has fields that a batch may not have")
    return offsets[:count] + (0,) * (count - present)


def _follow(meta: bytes, position: int) -> int:
    """Return where an offset field points to. Offsets only point forward."""
    return int(position + _U32.unpack_from(meta, position)[0])


def _read_message(meta: bytes, wanted: int) -> tuple[int, int]:
    """Return the positions of the header table and of the body length (0 when absent)."""
    version, header_type, header, body_length = _fields(meta, _follow(meta, 0), 4)
    if not version or _I16.unpack_from(meta, version)[0] != _VERSION_5:
        raise BatchError("only version 5 of Arrow's format is accepted")
    if not header_type or not header or _U8.unpack_from(meta, header_type)[0] != wanted:
        raise BatchError("a batch is one schema and one record batch, nothing else")
    return _follow(meta, header), body_length


def locate(meta: bytes, shape: Shape) -> Places:
    """Walk the tables of a record batch message."""
    header, body = _read_message(meta, _BATCH_HEADER)
    rows, nodes, buffers = _fields(meta, header, 3)  # a fourth would be compression
    if not nodes or not buffers:
        raise BatchError("a record batch needs nodes and buffers")
    return Places(rows, body, _vector(meta, nodes, shape.columns), _vector(meta, buffers, shape.buffers))


def _vector(meta: bytes, position: int, count: int) -> int:
    """Return where the items of a vector begin; it must have `count` of them."""
    start = _follow(meta, position)
    found = _U32.unpack_from(meta, start)[0]
    if found != count:
        raise BatchError(f"the layout asks for {count} entries, the record batch has {found}")
    return start + 4


def _read_batch(meta: bytes, shape: Shape, places: Places, body_length: int) -> BatchHeader:
    stated = _I64.unpack_from(meta, places.body)[0] if places.body else 0
    if stated != body_length:
        raise BatchError(f"a body of {stated} bytes is announced, {body_length} came")
    rows = _I64.unpack_from(meta, places.rows)[0] if places.rows else 0
    nodes = shape.node_numbers.unpack_from(meta, places.nodes)
    buffers = shape.buffer_numbers.unpack_from(meta, places.buffers)
    if nodes != (rows, 0) * shape.columns or rows < 0:
        _check_nodes(nodes, rows)
    _check_buffers(buffers, body_length)
    largest = 0
    for index in shape.value_data:
        largest = max(largest, buffers[2 * index + 1])
    return BatchHeader(rows, buffers[2 * _PAYLOAD_DATA + 1], largest)


def _check_nodes(nodes: tuple[int, ...], rows: int) -> None:
    lengths, nulls = nodes[::2], nodes[1::2]
    if rows < 0 or lengths.count(rows) != len(lengths):
        raise BatchError(f"every column has as many rows as the batch ({rows})")
    if any(nulls[:SYSTEM_COLUMNS]):
        raise BatchError("tick, id and payload are never null")
    if min(nulls) < 0 or max(nulls) > rows:
        raise BatchError("a column has as many nulls as it has rows, at most")


def _check_buffers(buffers: tuple[int, ...], body_length: int) -> None:
    """Every buffer lies in the body behind the one before: together they are no larger than the body."""
    end = 0
    numbers = iter(buffers)
    for start, length in zip(numbers, numbers, strict=True):
        if length:
            if length < 0 or start < end:
                raise BatchError("buffers must lie one after the other")
            end = start + length
    if end > body_length:
        raise BatchError(f"the buffers end at {end}, the body at {body_length}")


def _read_schema(meta: bytes, limits: BatchLimits) -> Layout:
    header, body_length = _read_message(meta, _SCHEMA_HEADER)
    if body_length and _I64.unpack_from(meta, body_length)[0]:
        raise BatchError("a schema has no body")
    endianness, fields = _fields(meta, header, 2)
    if endianness and _I16.unpack_from(meta, endianness)[0] != _LITTLE_ENDIAN:
        raise BatchError("only little-endian columns are accepted")
    tables = _tables(meta, fields)
    if len(tables) > SYSTEM_COLUMNS + limits.columns:
        raise BatchLimitError(f"a batch with {len(tables)} columns", "columns", limits.columns)
    columns = [_read_field(meta, position) for position in tables]
    for (name, kind), expected in zip(columns, (("tick", "tick"), ("id", "id"), ("payload", "binary")), strict=False):
        if (name, kind) != expected:
            raise BatchError(f"column {expected[0]} expected, found {name[:80]!r} ({kind})")
    if len(columns) < SYSTEM_COLUMNS:
        raise BatchError("a batch has the columns tick, id and payload")
    return _layout_of_columns(columns[SYSTEM_COLUMNS:])


def _layout_of_columns(columns: list[tuple[str, str]]) -> Layout:
    kinds: list[Kind] = []
    for name, kind in columns:
        if not name.startswith(ATTRIBUTE_PREFIX):
            raise BatchError(f"column {name[:80]!r} is no attribute: it lacks the prefix {ATTRIBUTE_PREFIX}")
        match kind:
            case "bool" | "int" | "float" | "string" | "binary":
                kinds.append(kind)
            case _:
                raise BatchError(f"column {name[:80]!r} has a type that no attribute has")
    return layout_of(tuple(name[len(ATTRIBUTE_PREFIX) :] for name, _ in columns), tuple(kinds))


def _tables(meta: bytes, position: int) -> list[int]:
    """Return the positions of the tables in a vector of tables."""
    if not position:
        return []
    start = _follow(meta, position)
    count = _U32.unpack_from(meta, start)[0]
    if count > len(meta) // 4:
        raise BatchError("a vector is longer than its message")
    return [_follow(meta, start + 4 + 4 * index) for index in range(count)]


def _read_field(meta: bytes, position: int) -> tuple[str, str]:
    """Return a column's name and kind; the kinds `tick` and `id` are those of the system columns."""
    name, _nullable, type_type, type_table, dictionary, children = _fields(meta, position, 6)  # then custom metadata
    if dictionary or not name or not type_type or not type_table:
        raise BatchError("a column has a name and a plain type")
    if _tables(meta, children):
        raise BatchError("a column has no children")
    return _string(meta, name), _kind(meta, _U8.unpack_from(meta, type_type)[0], _follow(meta, type_table))


def _string(meta: bytes, position: int) -> str:
    start = _follow(meta, position)
    length = _U32.unpack_from(meta, start)[0]
    if length > len(meta) - start - 4:
        raise BatchError("a name is longer than its message")
    return meta[start + 4 : start + 4 + length].decode()


def _kind(meta: bytes, type_id: int, position: int) -> str:
    first, second = _fields(meta, position, 2)
    match type_id:
        case 2:  # Int: bit width, signed
            width = _I32.unpack_from(meta, first)[0] if first else 0
            signed = bool(second and _U8.unpack_from(meta, second)[0])
            return {(64, True): "int", (64, False): "tick"}.get((width, signed), f"int of {width} bits")
        case 3:  # FloatingPoint: precision, where 2 is double
            return "float" if first and _I16.unpack_from(meta, first)[0] == 2 else "float of another precision"
        case 4:
            return "binary"
        case 5:
            return "string"
        case 6:
            return "bool"
        case 15:  # FixedSizeBinary: width
            return "id" if first and _I32.unpack_from(meta, first)[0] == MESSAGE_ID_BYTES else "fixed binary"
        case _:
            return f"type {type_id}"
