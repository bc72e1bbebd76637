"""Arrow keeps booleans and validity as bits; numpy wants bytes."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask: TypeAlias = npt.NDArray[np.bool_]


def bits(buffer: pa.Buffer, offset: int, length: int) -> Mask:
    """Unpack the bits of a buffer that belongs to an array with that offset and length."""
    skipped = offset & 7
    packed = np.frombuffer(cast("Any", buffer), np.uint8, count=(skipped + length + 7) >> 3, offset=offset >> 3)
    return np.unpackbits(packed, count=skipped + length, bitorder="little")[skipped:].view(np.bool_)


def truth(result: pa.Array[Any]) -> Mask:
    """Return the values of a boolean array; a row that is null may say anything."""
    values = result.buffers()[1]
    assert values is not None
    return bits(values, result.offset, len(result))
