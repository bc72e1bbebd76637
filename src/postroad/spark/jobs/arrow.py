"""Arrow columns as numpy arrays and back, without copies where there is a choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Ids
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.types import COUNTER_BITS, MESSAGE_ID_BYTES

# The stubs take every array made from numpy for one of booleans, and do not know that all fields of a schema are fields.
array: Final[Callable[..., Any]] = pa.array
list_array: Final[Callable[..., Any]] = pa.ListArray.from_arrays
record_batch: Final[Callable[..., pa.RecordBatch]] = pa.RecordBatch.from_arrays
schema_of: Final[Callable[..., pa.Schema]] = pa.schema

Longs: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def integers(column: pa.Array[Any], null: int = 0) -> Longs:
    """Return a column of integers as 64-bit numbers, `null` where there is none."""
    values = column.fill_null(null) if column.null_count else column
    found: Longs = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def flags(column: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found: np.ndarray[Any, np.dtype[np.bool_]] = column.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def flat(column: Any) -> tuple[Longs, Longs]:
    """Return all values of a list column one after the other, and where each row's begin and end; a null is an empty list."""
    lengths = integers(column.value_lengths())
    values = integers(column.flatten())
    return values, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def floats(column: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return all values of a list column of numbers one after the other."""
    found: np.ndarray[Any, np.dtype[np.float64]] = column.flatten().to_numpy(zero_copy_only=False)
    return found


def lists(row: Longs, rows: int, values: Any) -> Any:
    """Make a list per row from values that are sorted by the row they belong to."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int32)
    return list_array(array(offsets), values)


def binaries(data: np.ndarray[Any, np.dtype[np.uint8]], offsets: Longs) -> pa.Array[Any]:
    """Make a binary column of bytes that lie one after the other."""
    places: Any = offsets.astype(np.int32)  # any, for the stubs: an array is a buffer
    content: Any = np.ascontiguousarray(data)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def binary_bytes(column: pa.Array[Any]) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Longs]:
    """Return the bytes of a binary column and where each value begins and ends. No nulls."""
    _, offsets, data = column.buffers()
    assert offsets is not None
    starts = np.frombuffer(memoryview(offsets), np.int32, count=len(column) + 1, offset=column.offset * 4).astype(np.int64)
    return np.frombuffer(memoryview(data), np.uint8) if data is not None else np.empty(0, np.uint8), starts


def ids_of(column: pa.Array[Any]) -> Ids:
    """Return a binary column of message ids as an array of 16-byte items; a value of another length is a ValueError."""
    data, starts = binary_bytes(column)
    if bool((np.diff(starts) != MESSAGE_ID_BYTES).any()):
        raise ValueError("a message id has 16 bytes")
    return data[starts[0] : starts[-1]].view(np.dtype((np.void, MESSAGE_ID_BYTES)))


def id_milliseconds(ids: Ids) -> Longs:
    found: Longs = (ids.view(ID_DTYPE)["tick"].astype(np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)
    return found


def id_column(ids: Ids) -> pa.Array[Any]:
    data = np.ascontiguousarray(ids).view(np.uint8)
    return binaries(data, np.arange(len(ids) + 1, dtype=np.int64) * MESSAGE_ID_BYTES)
