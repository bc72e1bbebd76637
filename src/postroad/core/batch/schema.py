"""What columns a batch has: kinds of attribute values, names, layouts, limits.

A layout is the sorted attribute names of a batch with the kind of each; together with the three system columns it fixes the
Arrow schema. Batches of one layout share one `Layout` object, so the schema is built and encoded once, not per batch. There
are five kinds. Python's `bool` is not an `int` here, and an `int` is never turned into a `float`: the same attribute sent as
1 and as 1.0 has two kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa

from postroad.errors import BatchError, BatchLimitError, InvalidValueError
from postroad.types import MESSAGE_ID_BYTES, AttributeValue

Kind: TypeAlias = Literal["bool", "int", "float", "string", "binary"]

ATTRIBUTE_PREFIX: Final = "@"
SYSTEM_COLUMNS: Final = 3
TICK, ID, PAYLOAD = 0, 1, 2  # positions of the system columns

TICK_TYPE: Final = pa.uint64()
ID_TYPE: Final = pa.binary(MESSAGE_ID_BYTES)
PAYLOAD_TYPE: Final = pa.binary()
_SYSTEM_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("tick", TICK_TYPE),
    pa.field("id", ID_TYPE),
    pa.field("payload", PAYLOAD_TYPE),
)

# Typed Any: the stubs have an overload per Arrow type, and a kind is known only at run time.
KIND_TYPES: Final[Mapping[Kind, Any]] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}
KIND_OF: Final[Mapping[type, Kind]] = {bool: "bool", int: "int", float: "float", str: "string", bytes: "binary"}
_KIND_OF_TYPE_ID: Final[Mapping[int, Kind]] = {arrow.id: kind for kind, arrow in KIND_TYPES.items()}

_ALWAYS_PLAIN: Final = frozenset([bool, float, bytes])

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
LAYOUTS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large things may be. What breaks `rows` or `bytes` is split when built and refused when decoded."""

    rows: int = 65_536
    bytes: int = (16 << 20) - (64 << 10)  # encoded; leaves room for a frame's header within the default maximum of 16 MiB
    attributes: int = 64  # of one message
    columns: int = 256  # attribute columns of one batch: the union over its messages
    name_bytes: int = 255
    value_bytes: int = 64 << 10  # of one string or binary attribute
    payload_bytes: int = 4 << 20
    schema_bytes: int = 32 << 10  # of an encoded layout


DEFAULT_LIMITS: Final = BatchLimits()


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Names and kinds of a batch's attributes, with the Arrow schema they give. Get one from `layout_of`."""

    names: tuple[str, ...]  # sorted, unique
    kinds: tuple[Kind, ...]
    schema: pa.Schema
    encoded: bytes  # the schema as an Arrow IPC message: every encoded batch of this layout starts with it
    name_bytes: int  # of the longest name

    def index(self, name: str) -> int | None:
        """Return the position of an attribute's column in the batch, or None."""
        index = self.schema.get_field_index(ATTRIBUTE_PREFIX + name)
        return None if index < 0 else index

    def check(self, limits: BatchLimits) -> None:
        """Refuse more columns or longer names than the limits allow."""
        if len(self.names) > limits.columns:
            raise BatchLimitError(f"a batch with {len(self.names)} attribute columns", "columns", limits.columns)
        if self.name_bytes > limits.name_bytes:
            raise BatchLimitError(f"an attribute name of {self.name_bytes:,} bytes", "name_bytes", limits.name_bytes)


@lru_cache(maxsize=LAYOUTS_MAX)
def layout_of(names: tuple[str, ...], kinds: tuple[Kind, ...]) -> Layout:
    """Return the layout of these attributes. Names must be sorted and unique; each is checked."""
    assert len(names) == len(kinds)
    sizes = [check_name(name) for name in names]
    if any(left >= right for left, right in pairwise(names)):
        raise BatchError("attribute columns must be sorted by name, each name once")
    fields: list[pa.Field[Any]] = [
        pa.field(ATTRIBUTE_PREFIX + name, KIND_TYPES[kind]) for name, kind in zip(names, kinds, strict=True)
    ]
    schema = pa.schema([*_SYSTEM_FIELDS, *fields])
    return Layout(names, kinds, schema, schema.serialize().to_pybytes(), max(sizes, default=0))


def layout_of_schema(schema: pa.Schema) -> Layout:
    """Recognise an Arrow schema as a layout, or raise `BatchError`."""
    if len(schema) < SYSTEM_COLUMNS:
        raise BatchError(f"a batch has the columns tick, id and payload; this one has {schema.names}")
    for ours, theirs in zip(_SYSTEM_FIELDS, schema, strict=False):
        if ours.name != theirs.name or ours.type != theirs.type:
            raise BatchError(f"column {ours.name} ({ours.type}) expected, found {theirs.name[:80]} ({theirs.type})")
    names, kinds = [], []
    for column in list(schema)[SYSTEM_COLUMNS:]:
        kind = _KIND_OF_TYPE_ID.get(column.type.id)
        if kind is None or not column.name.startswith(ATTRIBUTE_PREFIX):
            raise BatchError(f"column {column.name[:80]!r} ({column.type}) is not an attribute")
        names.append(column.name[len(ATTRIBUTE_PREFIX) :])
        kinds.append(kind)
    return layout_of(tuple(names), tuple(kinds))


@lru_cache(maxsize=4096)
def check_name(name: str) -> int:
    """Refuse an attribute name that is empty, holds a NUL or is no valid Unicode; return its length in UTF-8 bytes."""
    if not isinstance(name, str):
        raise InvalidValueError(f"an attribute name is a string, not {type(name).__name__}")
    if not name or "\0" in name:
        raise InvalidValueError(f"an attribute name must not be empty or hold a NUL: {name[:80]!r}")
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise InvalidValueError(f"an attribute name must be valid Unicode without lone surrogates: {name[:80]!a}") from None


def plain_value(value: Any, name: str = "?") -> AttributeValue:
    """Return the value as one of the five plain types, or raise `InvalidValueError`.

    Numpy scalars and subclasses (enumerations, for example) become the plain value they stand for.
    """
    kind = type(value)
    if kind in _ALWAYS_PLAIN or (kind is str and value.isascii()) or (kind is int and INT_MIN <= value <= INT_MAX):
        return cast("AttributeValue", value)
    plain: AttributeValue
    match value:
        case bool() | np.bool_():
            plain = bool(value)
        case int() | np.integer():
            plain = int(value)
            if not INT_MIN <= plain <= INT_MAX:
                raise InvalidValueError(f"attribute {name[:80]!r}: {plain} does not fit in 64 bits with sign")
        case float() | np.floating():
            plain = float(value)
        case str():
            plain = _plain_string(value, name)
        case bytes() | bytearray() | memoryview():
            plain = bytes(value)
        case None:
            raise InvalidValueError(f"attribute {name[:80]!r} is None: leave a missing attribute out")
        case _:
            raise InvalidValueError(
                f"attribute {name[:80]!r} must be a bool, int, float, str or bytes, not {type(value).__name__}"
            )
    return plain


def _plain_string(value: str, name: str) -> str:
    plain = str.__str__(value)
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(f"attribute {name[:80]!r} must be valid Unicode without lone surrogates") from None
    return plain


def check_message(attributes: Mapping[str, Any], payload: Any, limits: BatchLimits = DEFAULT_LIMITS) -> dict[str, AttributeValue]:
    """Check one message as a publisher gives it, and return its attributes as plain values."""
    if len(attributes) > limits.attributes:
        raise BatchLimitError(f"a message with {len(attributes)} attributes", "attributes", limits.attributes)
    if (size := _payload_size(payload)) > limits.payload_bytes:
        raise BatchLimitError(f"a payload of {size:,} bytes", "payload_bytes", limits.payload_bytes)
    plain = {}
    for name, value in attributes.items():
        if (size := check_name(name)) > limits.name_bytes:
            raise BatchLimitError(f"an attribute name of {size:,} bytes", "name_bytes", limits.name_bytes)
        plain[name] = _within(plain_value(value, name), name, limits)
    return plain


def _payload_size(payload: Any) -> int:
    if type(payload) is bytes:
        return len(payload)
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidValueError(f"a payload is bytes, not {type(payload).__name__}")
    return memoryview(payload).nbytes


def _within(value: AttributeValue, name: str, limits: BatchLimits) -> AttributeValue:
    if isinstance(value, str):
        size = len(value) if value.isascii() else len(value.encode())
    elif isinstance(value, bytes):
        size = len(value)
    else:
        return value
    if size > limits.value_bytes:
        raise BatchLimitError(f"attribute {name!r} of {size:,} bytes", "value_bytes", limits.value_bytes)
    return value
