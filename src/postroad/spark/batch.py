"""The batch side of the source: everything there is when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from postroad.spark.columns import columns_of
from postroad.spark.options import ReadOptions
from postroad.spark.pushdown import Pushed, push
from postroad.spark.reading import origin_of, packed, read_partition


class BatchReader(DataSourceReader):
    """Reads everything there is when the query is planned."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        columns_of(schema)
        self._schema = schema
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        origin = origin_of(self._options)
        lo, hi = self._options.cut(*self._pushed.span())
        pubends = [pubend for pubend in origin.spans() if self._pushed.wants(pubend)]
        return packed(origin.plan(None, lo, hi, pubends))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema, self._options, self._pushed)


class PushingReader(BatchReader):
    """Does conditions of the query itself; see `frames` for when that is safe."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        columns = columns_of(self._schema)
        self._pushed, left = push(filters, columns, self._schema.names, null_mismatches=self._options.null_mismatches)
        return left
