"""Batches as bytes: an Arrow IPC stream of one schema and one record batch, without the end mark.

So any Arrow implementation reads what we send. The schema is the layout's, encoded once; the record batch is one copy of the
columns. Decoding copies nothing: the columns are views of the received bytes, which must therefore never change.

Bytes from a peer are hostile until checked, in this order: their size, the layout (cached by its bytes, per decoder, so that a
peer pays with its own cache only), the record batch's metadata (`postroad.wire.arrow_ipc`), then Arrow reads the columns and
validates every offset and every string. What passes is a `Batch` with all its invariants; all else is a `BatchError`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from postroad.core.batch.batch import Batch, check_attribute_counts, check_values
from postroad.core.batch.schema import DEFAULT_LIMITS, BatchLimits, Layout
from postroad.errors import BatchError, BatchLimitError
from postroad.wire.arrow_ipc import message_length, read_batch_header, read_layout
from postroad.wire.arrow_rows import encode_rows

LAYOUTS_MAX: Final = 64
"""Layouts a decoder remembers; the oldest is forgotten first."""


def encode_batch(batch: Batch) -> tuple[bytes | memoryview, ...]:
    """Return the batch's bytes as buffers to write one after the other.

    The batch remembers them, for the log and the next link; a batch that was received gives the received bytes.
    """
    if batch.encoded is None:
        rows = batch.complete_values
        message = memoryview(batch.columns.serialize()) if rows is None else encode_rows(batch, rows)
        batch.encoded = (batch.layout.encoded, message)
    return batch.encoded


class BatchDecoder:
    """Decodes what one peer sends."""

    __slots__ = ("_layouts", "limits")

    def __init__(self, limits: BatchLimits = DEFAULT_LIMITS) -> None:
        self.limits: Final = limits
        self._layouts: dict[bytes, Layout] = {}

    def decode(self, data: bytes | memoryview, *, ascending: bool = False) -> Batch:
        """Return the batch in these bytes, or raise `BatchError`. With `ascending` its ticks must strictly ascend."""
        view = memoryview(data)
        limits = self.limits
        if len(view) > limits.bytes + limits.schema_bytes:
            raise BatchLimitError(f"an encoded batch of {len(view):,} bytes", "bytes", limits.bytes)
        schema_length = message_length(view, 0)
        layout = self._layout(view, schema_length)
        header = read_batch_header(view, schema_length, layout)
        if header.rows > limits.rows:
            raise BatchLimitError(f"a batch of {header.rows:,} rows", "rows", limits.rows)
        try:
            columns = pa.ipc.read_record_batch(pa.py_buffer(view[schema_length:]), layout.schema)
            columns.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise BatchError(f"malformed columns: {error}") from error
        batch = Batch(columns, layout)
        if header.payload_bytes > limits.payload_bytes or header.value_bytes > limits.value_bytes:
            check_values(batch, limits)
        check_attribute_counts(batch, limits)
        if ascending:
            _check_ascending(batch)
        batch.encoded = (view,)
        return batch

    def layout(self, data: bytes | memoryview) -> Layout:
        """Return the layout of the batch that begins with these bytes, or raise `BatchError`."""
        view = memoryview(data)
        return self._layout(view, message_length(view, 0))

    def _layout(self, view: memoryview, length: int) -> Layout:
        if length > self.limits.schema_bytes:
            raise BatchLimitError(f"a layout of {length:,} bytes", "schema_bytes", self.limits.schema_bytes)
        key = bytes(view[:length])
        layout = self._layouts.get(key)
        if layout is None:
            layout = read_layout(key, self.limits)
            if len(self._layouts) >= LAYOUTS_MAX:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[key] = layout
        return layout


def _check_ascending(batch: Batch) -> None:
    if len(batch) < 2:
        return
    ticks = batch.ticks()
    if not bool((ticks[1:] > ticks[:-1]).all()):
        raise BatchError("ticks must strictly ascend")
