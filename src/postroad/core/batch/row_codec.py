"""Messages as values: how single publishes travel before a pubend makes a batch of them, and how few rows leave again.

A packet that carries rows has two fields, `rows: Rows` and `binary: Binary = field(default_factory=dict)`. A row is `[id,
attributes, payload]`; the attributes whose values are bytes stand apart, by the row's number, because msgspec cannot tell text
from bytes in one union and decoding to anything at all would let 16 MiB of empty lists become a gigabyte of objects. Binary
attributes are rare, so rows usually go from the frame to `build_batches` as they are.

On the way to a subscriber the values stand in lists (`FewRows`), as messages look them up: one list for each attribute, with nil
where a row lacks it, and again the binary ones apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias, cast

import msgspec
from msgspec import Meta

from postroad.core.batch.schema import DEFAULT_LIMITS, INT_MAX, INT_MIN
from postroad.errors import BatchError
from postroad.types import MESSAGE_ID_BYTES, AttributeValue

IdBytes: TypeAlias = Annotated[bytes, Meta(min_length=MESSAGE_ID_BYTES, max_length=MESSAGE_ID_BYTES)]

ROWS_MAX: Final = 65_536
"""Rows of one packet."""

_AttributeName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=DEFAULT_LIMITS.name_bytes)]
_Integer: TypeAlias = Annotated[int, Meta(ge=INT_MIN, le=INT_MAX)]
_String: TypeAlias = Annotated[str, Meta(max_length=DEFAULT_LIMITS.value_bytes)]
_Scalars: TypeAlias = Annotated[
    dict[_AttributeName, bool | _Integer | float | _String], Meta(max_length=DEFAULT_LIMITS.attributes)
]
_Bytes: TypeAlias = Annotated[bytes, Meta(max_length=DEFAULT_LIMITS.value_bytes)]
_Payload: TypeAlias = Annotated[bytes, Meta(max_length=DEFAULT_LIMITS.payload_bytes)]
_RowNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=ROWS_MAX)]

Row: TypeAlias = tuple[bytes, Mapping[str, AttributeValue], bytes]
"""A message as a row: id, attributes, payload."""

WireRow: TypeAlias = tuple[IdBytes, _Scalars, _Payload]
Rows: TypeAlias = Annotated[list[WireRow], Meta(max_length=ROWS_MAX)]
Binary: TypeAlias = Annotated[
    dict[_RowNumber, Annotated[dict[_AttributeName, _Bytes], Meta(max_length=DEFAULT_LIMITS.attributes)]],
    Meta(max_length=ROWS_MAX),
]

FEW_ROWS: Final = 16
"""So few rows leave as values: columns of them take longer to make, to read and to carry."""

FEW_ROWS_MAX: Final = 64
"""Rows that a packet may have in lists: a sender may see that differently."""

_FEW: Final = Meta(min_length=1, max_length=FEW_ROWS_MAX)
_Tick: TypeAlias = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 64 bits


class FewRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows in lists of equal length. An attribute's values are of one type, and not all nil; no name is in both."""

    ticks: Annotated[list[_Tick], _FEW]
    ids: Annotated[list[IdBytes], _FEW]
    payloads: Annotated[list[_Payload], _FEW]
    attributes: Annotated[
        dict[_AttributeName, Annotated[list[bool | _Integer | float | _String | None], _FEW]],
        Meta(max_length=DEFAULT_LIMITS.attributes),
    ]
    binary: Annotated[dict[_AttributeName, Annotated[list[_Bytes | None], _FEW]], Meta(max_length=DEFAULT_LIMITS.attributes)] = (
        msgspec.field(default_factory=dict)
    )


def split_rows(
    rows: Iterable[Row],
) -> tuple[list[WireRow], dict[int, dict[str, bytes]]]:
    """Return rows of plain values (see `check_message`) as the two fields of a packet."""
    plain: list[WireRow] = []
    binary: dict[int, dict[str, bytes]] = {}
    for number, (message_id, attributes, payload) in enumerate(rows):
        scalars = attributes
        if bytes in set(map(type, attributes.values())):
            binary[number] = {name: value for name, value in attributes.items() if isinstance(value, bytes)}
            scalars = {name: value for name, value in attributes.items() if not isinstance(value, bytes)}
        plain.append((message_id, cast("dict[str, bool | int | float | str]", scalars), payload))
    return plain, binary


def join_rows(rows: list[WireRow], binary: Mapping[int, Mapping[str, bytes]]) -> list[Row]:
    """Return the rows of a packet with their binary attributes back in place, or raise `BatchError`."""
    joined: list[Row] = list(rows)
    for number, values in binary.items():
        if number >= len(rows):
            raise BatchError(f"binary attributes for row {number} of {len(rows)}")
        message_id, attributes, payload = rows[number]
        if not attributes.keys().isdisjoint(values):
            raise BatchError(f"row {number} has an attribute twice")
        joined[number] = (message_id, {**attributes, **values}, payload)
    return joined
