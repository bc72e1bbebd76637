"""Arrow columns from Python values, numpy arrays or Arrow arrays, with every value checked.

Arrow itself is generous: it turns 1.5 into the integer 1, True into 1.0 and bytes into text. A message must come out as it
went in, so the kind of a column is decided here, by the exact types of its values, before Arrow converts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from postroad.core.batch.schema import ID_TYPE, KIND_OF, KIND_TYPES, PAYLOAD_TYPE, TICK_TYPE, BatchLimits, Kind, plain_value
from postroad.errors import BatchError, BatchLimitError, InvalidValueError
from postroad.types import MESSAGE_ID_BYTES

_NUMBERS: Final[Mapping[Kind, Any]] = {"int": np.int64, "float": np.float64}
_NONE: Final = frozenset([type(None)])

# Arrow types of the same meaning that a caller's columns may have; they are cast without loss or the cast fails.
_CASTS: Final[Mapping[int, Kind]] = {
    **{arrow.id: kind for kind, arrow in KIND_TYPES.items()},
    **{arrow.id: "int" for arrow in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{arrow.id: "float" for arrow in (pa.float16(), pa.float32())},
    **{arrow.id: "string" for arrow in (pa.large_string(), pa.string_view())},
    **{arrow.id: "binary" for arrow in (pa.large_binary(), pa.binary_view(), pa.binary(1))},
}


def tick_column(ticks: np.ndarray[Any, Any] | Sequence[int] | None, rows: int) -> pa.Array[Any]:
    """Make the tick column; None stands for ticks not decided yet, which are 0."""
    if ticks is None:
        array = np.zeros(rows, np.uint64)
    elif isinstance(ticks, np.ndarray) and ticks.dtype == np.uint64:
        array = np.ascontiguousarray(ticks)
    else:
        array = _ticks_of(ticks)
    if array.shape != (rows,):
        raise BatchError(f"{rows} rows need as many ticks, not an array of shape {array.shape}")
    return _numbers(array, TICK_TYPE)


def _numbers(array: np.ndarray[Any, Any], arrow: Any) -> pa.Array[Any]:
    """Make a column of numbers that lie one after the other, sharing their memory: half the cost of `pa.array`."""
    return pa.Array.from_buffers(arrow, len(array), [None, pa.py_buffer(array.data)])


def _ticks_of(ticks: np.ndarray[Any, Any] | Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Turn integers of another form into ticks; numpy alone would cut 1.5 to 1 and wrap -1 around."""
    try:
        given = np.asarray(ticks)
        array = np.ascontiguousarray(ticks, np.uint64)
    except (OverflowError, TypeError, ValueError) as error:
        raise BatchError(f"ticks are integers of 64 bits without sign: {error}") from error
    if len(given) and (given.dtype.kind not in "iu" or (given.dtype.kind == "i" and given.min() < 0)):
        raise BatchError(f"ticks are integers of 64 bits without sign, not {given.dtype} from {given.min()}")
    return array


def id_column(ids: Any) -> pa.Array[Any]:
    """Make the id column from bytes objects, a numpy array, an Arrow array, or one run of bytes."""
    match ids:
        case pa.Array() | pa.ChunkedArray():
            return _without_nulls(_cast_safely(_one_chunk(ids), ID_TYPE, "id"), "id")
        case np.ndarray():
            data = _id_bytes_of_array(ids)
        case bytes() | bytearray() | memoryview():
            data = bytes(ids)
        case _:
            data = id_bytes(ids)
    if len(data) % MESSAGE_ID_BYTES:
        raise InvalidValueError(f"ids take {MESSAGE_ID_BYTES} bytes each; {len(data)} bytes is not a multiple")
    return id_array_of(data)


def id_array_of(data: bytes) -> pa.Array[Any]:
    return pa.Array.from_buffers(ID_TYPE, len(data) // MESSAGE_ID_BYTES, [None, pa.py_buffer(data)])


def id_bytes(ids: Sequence[bytes]) -> bytes:
    """Join ids given one by one; each must have its 16 bytes."""
    try:
        data = b"".join(ids)
    except TypeError:
        raise InvalidValueError("every message needs an id, given as bytes") from None
    if list(map(len, ids)).count(MESSAGE_ID_BYTES) != len(ids) or len(data) != len(ids) * MESSAGE_ID_BYTES:
        raise InvalidValueError(f"a message id has {MESSAGE_ID_BYTES} bytes")
    return data


def _id_bytes_of_array(ids: np.ndarray[Any, Any]) -> bytes:
    if ids.ndim not in {1, 2} or ids.dtype.hasobject or ids.nbytes != len(ids) * MESSAGE_ID_BYTES:
        raise InvalidValueError(f"an id array has {MESSAGE_ID_BYTES} bytes per message, not shape {ids.shape} of {ids.dtype}")
    return ids.tobytes()


def payload_column(payloads: Any, limits: BatchLimits) -> pa.Array[Any]:
    """Make the payload column from bytes objects or an Arrow array."""
    if isinstance(payloads, pa.Array | pa.ChunkedArray):
        column = _cast_safely(_one_chunk(payloads), PAYLOAD_TYPE, "payload")
    else:
        column = payload_array(list(payloads))
    check_sizes(column, limits.payload_bytes, "payload", "payload_bytes")
    return _without_nulls(column, "payload")


def payload_array(payloads: Sequence[bytes]) -> pa.Array[Any]:
    """Make the payload column; Arrow alone would take text as bytes and None as null."""
    if not all_of_type(payloads, bytes):
        payloads = [_payload_bytes(payload) for payload in payloads]
    column: pa.Array[Any] | pa.ChunkedArray[Any] = pa.array(payloads, PAYLOAD_TYPE)
    if isinstance(column, pa.ChunkedArray):
        raise BatchLimitError("too many bytes of payload for one batch", "int32 offsets", np.iinfo(np.int32).max)
    return column


def _payload_bytes(payload: Any) -> bytes:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidValueError(f"a payload is bytes, not {type(payload).__name__}")
    return bytes(payload)


def attribute_column(values: Any, name: str, limits: BatchLimits) -> tuple[Kind | None, pa.Array[Any]]:
    """Make an attribute's column and say its kind; None when every value is missing."""
    if isinstance(values, np.ndarray):
        values = values.tolist() if values.dtype.kind in "OSU" else _arrow_of_numpy(values, name)
    elif hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_array__"):
        values = pa.array(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _attribute_of_arrow(_one_chunk(values), name, limits)
    values = list(values)
    kind = exact_kind(values)
    complete = kind is not None
    if kind is None:
        values = [None if value is None else plain_value(value, name) for value in values]
        kind = _find_mixed_kind(values, name)
        if kind is None:
            return None, pa.nulls(len(values))
    column = kind_column(values, kind, name, complete=complete)
    check_attribute_sizes(column, kind, name, limits)
    return kind, column


def _arrow_of_numpy(values: np.ndarray[Any, Any], name: str) -> pa.Array[Any]:
    """Convert numbers; Arrow knows masked values and strides, but only the machine's byte order."""
    try:
        column: pa.Array[Any] = pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))
    except pa.ArrowException as error:
        raise BatchError(f"attribute {name[:80]!r}: {error}") from error
    return column


def all_of_type(values: Sequence[Any], wanted: type) -> bool:
    """Whether every value has exactly this type: half the cost of a set of the types."""
    return list(map(type, values)).count(wanted) == len(values)


def exact_kind(values: Sequence[Any]) -> Kind | None:
    """Return the kind when every value is present and of one plain type; None asks for a closer look."""
    first = type(values[0]) if values else type(None)
    return KIND_OF.get(first) if all_of_type(values, first) else None


def only_kind(values: Sequence[Any]) -> Kind | None:
    """Return the kind of the values that are not None, when they are all of one plain type."""
    types = set(map(type, values)) - _NONE
    return KIND_OF.get(types.pop()) if len(types) == 1 else None


def _find_mixed_kind(values: Sequence[Any], name: str) -> Kind | None:
    types = set(map(type, values)) - _NONE
    if len(types) > 1:
        kinds = ", ".join(sorted(KIND_OF[each] for each in types))
        raise BatchError(f"attribute {name[:80]!r} has values of several kinds in one batch: {kinds}")
    return KIND_OF[types.pop()] if types else None


def value_columns(
    ticks: pa.Array[Any],
    ids: Sequence[bytes],
    payloads: Sequence[bytes],
    attributes: Iterable[tuple[str, Kind, Sequence[Any]]],
    *,
    complete: bool,
) -> list[pa.Array[Any]]:
    """Make all columns of a batch of values, of known kinds and in the order of the layout; `complete` as in `kind_column`."""
    columns = [ticks, id_array_of(id_bytes(ids)), payload_array(payloads)]
    columns += [kind_column(values, kind, name, complete=complete) for name, kind, values in attributes]
    return columns


def kind_column(values: Sequence[Any], kind: Kind, name: str, *, complete: bool) -> pa.Array[Any]:
    """Convert values already known to be of this kind or, unless `complete`, None."""
    column: pa.Array[Any] | pa.ChunkedArray[Any]
    try:
        if complete and kind in _NUMBERS:  # numpy's conversion is the faster one, by half for integers
            column = _numbers(np.fromiter(values, _NUMBERS[kind], len(values)), KIND_TYPES[kind])
        else:
            column = pa.array(values, KIND_TYPES[kind])
    except OverflowError:
        raise InvalidValueError(f"attribute {name[:80]!r}: an integer does not fit in 64 bits with sign") from None
    except UnicodeEncodeError:
        raise InvalidValueError(f"attribute {name[:80]!r} must be valid Unicode without lone surrogates") from None
    if isinstance(column, pa.ChunkedArray):
        raise BatchLimitError(f"attribute {name[:80]!r} is too large for one batch", "int32 offsets", np.iinfo(np.int32).max)
    return column


def check_attribute_sizes(column: pa.Array[Any], kind: Kind, name: str, limits: BatchLimits) -> None:
    if kind in {"string", "binary"}:
        check_sizes(column, limits.value_bytes, f"attribute {name[:80]!r}", "value_bytes")


def check_sizes(column: pa.Array[Any], maximum: int, what: str, limit: str) -> None:
    """Refuse a value longer than the maximum. Costs one comparison when the whole column is not."""
    _, index, data = column.buffers()
    if index is None or data is None or data.size <= maximum:
        return
    offsets = np.frombuffer(memoryview(index), np.int32, count=len(column) + 1, offset=4 * column.offset)
    largest = int(np.diff(offsets).max(initial=0))
    if largest > maximum:
        raise BatchLimitError(f"{what} of {largest:,} bytes", limit, maximum)


def _attribute_of_arrow(column: pa.Array[Any], name: str, limits: BatchLimits) -> tuple[Kind | None, pa.Array[Any]]:
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type) or (len(column) and column.null_count == len(column)):
        return None, column
    kind = _CASTS.get(column.type.id)
    if kind is None:
        raise BatchError(f"attribute {name[:80]!r}: a column of {column.type} is none of bool, int, float, string, binary")
    column = _cast_safely(column, KIND_TYPES[kind], f"attribute {name[:80]!r}")
    check_attribute_sizes(column, kind, name, limits)
    return kind, column


def _cast_safely(column: pa.Array[Any], wanted: Any, what: str) -> pa.Array[Any]:
    """Cast without loss; foreign memory is checked in full, since it may come from anywhere."""
    try:
        column.validate(full=True)
        return column if column.type == wanted else column.cast(wanted)
    except pa.ArrowException as error:
        raise BatchError(f"{what}: {error}") from error


def _one_chunk(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def _without_nulls(column: pa.Array[Any], name: str) -> pa.Array[Any]:
    if column.null_count:
        raise BatchError(f"every message needs its {name}; {column.null_count} are null")
    return column
