"""DataFrames published as messages, each row exactly once.

A task writes its partition as a batch of a named writer (`core/broker/publishing/named_writers.py`): the broker fixes the
ids of its rows when the batch is opened first, so a task that is tried again, or a micro-batch that is repeated after a
crash, sends rows the broker recognises. The writer is named by the query (or the option `name`) and the partition, the batch
by the number of the micro-batch (or the option `batch`). Two things follow. The rows must come in the same partitions and
the same order when a batch is repeated, which holds for everything that is computed from the same input without a random
order. And a partition must go to the same broker each time: with several urls it is the one its number chooses.

The columns of a row become attributes; `payload` is the payload. Everything is checked before anything is sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from postroad.client.connection import Client
from postroad.client.writer import Writer
from postroad.core.batch.schema import ATTRIBUTE_PREFIX
from postroad.errors import SparkError, SparkSchemaError
from postroad.spark.columns import GAP, SYSTEM_TYPES
from postroad.spark.live import connected
from postroad.spark.options import WriteOptions

PAYLOAD: Final = "payload"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
QUERY_PROPERTY: Final = "sql.streaming.queryId"
"""Under these names Spark tells a task of which micro-batch and query it is; they are not documented, and tested."""

_ATTRIBUTE_TYPES: Final = (
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.StringType,
    t.BinaryType,
    t.TimestampType,
    t.TimestampNTZType,
    t.DateType,
)
DECIMAL_DIGITS_MAX: Final = 15
"""A decimal of so many digits and the nearest double are each other's nearest."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task published."""

    rows: int


def check_schema(schema: t.StructType) -> None:
    """Refuse columns that cannot be published, or that would not mean what they seem to."""
    seen: dict[str, str] = {}
    for field in schema.fields:
        name = field.name
        if name.lower() == PAYLOAD:
            if not isinstance(field.dataType, t.BinaryType | t.StringType):
                raise SparkSchemaError(f"column payload is {field.dataType.simpleString()}; a payload is binary or a string")
            continue
        if name.lower() in SYSTEM_TYPES or name.lower() == GAP:
            text = f"column {name} is made by the broker: drop it, or rename it to {ATTRIBUTE_PREFIX}{name}"
            raise SparkSchemaError(f"{text} to publish an attribute of that name")
        if isinstance(field.dataType, t.DecimalType):
            if field.dataType.precision > DECIMAL_DIGITS_MAX:
                text = (
                    f"column {name} is {field.dataType.simpleString()}; attributes hold decimals of {DECIMAL_DIGITS_MAX} digits"
                )
                raise SparkSchemaError(f"{text}: cast it to a shorter one, to double, or to string")
        elif not isinstance(field.dataType, _ATTRIBUTE_TYPES):
            types = ", ".join(each().simpleString() for each in _ATTRIBUTE_TYPES)
            raise SparkSchemaError(f"column {name} is {field.dataType.simpleString()}; attributes can be {types}: cast it")
        attribute = name.removeprefix(ATTRIBUTE_PREFIX)
        if not attribute:
            raise SparkSchemaError(f"column {name!r} names no attribute")
        if seen.setdefault(attribute, name) != name:
            raise SparkSchemaError(f"columns {seen[attribute]!r} and {name!r} are the same attribute")


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame. Without a name every write is a new one, and only its own tasks are repetitions of each other."""

    def __init__(self, schema: t.StructType, options: WriteOptions, *, overwrite: bool) -> None:
        check_schema(schema)
        if overwrite:
            raise SparkSchemaError("messages cannot be overwritten; use the mode append")
        self._options = options
        self._name = options.name or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as its base does
        return write_part(self._options, self._name, self._options.batch or 0, iterator)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, schema: t.StructType, options: WriteOptions, *, overwrite: bool) -> None:
        check_schema(schema)
        if overwrite:
            raise SparkSchemaError("messages cannot be overwritten; use the output mode append")
        if options.batch is not None:
            raise SparkSchemaError("the option batch is only for batch writes; a stream has its own batch numbers")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as its base does
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
        query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
        if batch is None or query is None:
            raise SparkError("this version of Spark does not tell a task its query and micro-batch; write with foreachBatch")
        return write_part(self._options, self._options.name or query, int(batch), iterator)


def write_part(options: WriteOptions, name: str, epoch: int, rows: Iterable[pa.RecordBatch]) -> Written:
    """Publish the rows of one partition as batch `epoch`, and wait until they are durable."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    url = options.urls[partition % len(options.urls)]
    with connected((url,), options.timeout_s) as (loop, client):
        writer = loop.call(_open(client, f"spark/{name}/{partition}", epoch, options.timeout_s))
        for batch in rows:
            loop.call(writer.write(*_columns(batch)))
        return Written(loop.call(writer.finish()))


async def _open(client: Client, name: str, epoch: int, timeout_s: float) -> Writer:
    return client.writer(name, epoch, timeout=timeout_s)


def _as_attribute(column: Any) -> Any:
    """Return a column in a kind that attributes have: times as microseconds since 1970, dates as text, decimals as doubles."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.string())
    return _doubles(column) if pa.types.is_decimal(column.type) else column


def _doubles(column: Any) -> Any:
    """Return decimals of up to 15 digits as the nearest doubles, which Arrow's cast misses in the last place."""
    words = np.frombuffer(column.buffers()[1], "<i8")  # two for each value; the lower one holds all of it
    unscaled = words[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    return pa.array(unscaled / 10.0**column.type.scale, mask=np.asarray(column.is_null()))


def _columns(batch: pa.RecordBatch) -> tuple[dict[str, Any], Any]:
    """Return the attributes and payloads of rows."""
    attributes: dict[str, Any] = {}
    payloads: Any = None
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name.lower() == PAYLOAD:
            payloads = column.cast(pa.binary()).fill_null(b"")
        else:
            attributes[name.removeprefix(ATTRIBUTE_PREFIX)] = _as_attribute(column)
    if payloads is None:
        payloads = pa.array([b""] * len(batch), pa.binary())
    return attributes, payloads
