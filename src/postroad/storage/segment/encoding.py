"""Batches to bytes and back, as the segments hold them."""

from __future__ import annotations

import pyarrow as pa

from postroad.core.batch import Batch
from postroad.errors import BatchError
from postroad.storage.segment.format import Bytes


def encode(batch: Batch) -> Bytes:
    return pa.concat_buffers([batch.columns.schema.serialize(), batch.columns.serialize()])


def decode(data: pa.Buffer) -> Batch:
    try:
        reader = pa.BufferReader(data)
        schema = pa.ipc.read_schema(reader)
        columns = pa.ipc.read_record_batch(pa.ipc.read_message(reader), schema)
        columns.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BatchError(str(error)) from error
    return Batch(columns)
