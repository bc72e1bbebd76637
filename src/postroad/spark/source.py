"""The Spark data source `postroad`: pubend streams as DataFrames.

    spark.read.format("postroad").load("/var/lib/postroad/broker-1")
    spark.read.format("postroad").option("url", "postroad://127.0.0.1:7400").load()

`postroad.spark.messages(spark, ...)` gives the same with conditions pushed down.

Planning happens in a Python process beside the driver, reading in workers; both get this module's objects pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from postroad.core.layout import Layout
from postroad.spark.columns import Converter, columns_of, inferred_schema
from postroad.spark.files import Files
from postroad.spark.options import ReadOptions, read_options
from postroad.spark.pieces import MessagePartition, Missing, Piece, gathered
from postroad.spark.pushdown import Pushed, Selection, push


class Origin(Protocol):
    """Where streams come from: files or an overlay."""

    def spans(self) -> dict[int, tuple[int, int]]: ...

    def layouts(self) -> Iterator[Layout]: ...

    def plan(
        self, ranges: dict[int, tuple[int, int]] | None, lo: int, hi: int, pubends: Sequence[int]
    ) -> list[tuple[float, Piece]]: ...


def origin_of(options: ReadOptions) -> Origin:
    return Files(options)


class PostroadDataSource(DataSource):
    """What Spark makes of `format("postroad")`."""

    @classmethod
    def name(cls) -> str:
        return "postroad"

    def schema(self) -> StructType:
        options = read_options(self.options)
        return inferred_schema(origin_of(options).layouts(), gaps=options.skip_gaps)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        return PushingReader(schema, options) if options.pushdown else BatchReader(schema, options)


class BatchReader(DataSourceReader):
    """Reads everything there is when the query is planned."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        columns_of(schema)
        self._schema = schema
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        origin = origin_of(self._options)
        lo, hi = self._pushed.span()
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


def read_partition(
    partition: InputPartition, schema: StructType, options: ReadOptions, pushed: Pushed
) -> Iterator[pa.RecordBatch]:
    """Read the pieces of a partition as record batches of a schema."""
    converter = Converter(schema, null_mismatches=options.null_mismatches)
    selection = Selection(pushed, converter, options.filter)
    for piece in partition.pieces if isinstance(partition, MessagePartition) else ():
        for found in gathered(piece.read(selection.raw, skip_gaps=options.skip_gaps)):
            if isinstance(found, Missing):
                rows = selection.gap(converter.gap(piece.pubend, found.hi, str(found)))
            else:
                rows = selection.rows(converter.convert(found, piece.pubend))
            if len(rows):
                yield rows


def packed(pieces: list[tuple[float, Piece]]) -> list[InputPartition]:
    """Put small pieces that follow each other into one partition; each comes with its share of one."""
    partitions: list[InputPartition] = []
    together: list[Piece] = []
    filled = 0.0
    for share, piece in pieces:
        if together and (filled + share > 1.0 or piece.pubend != together[-1].pubend):
            partitions.append(MessagePartition(together))
            together, filled = [], 0.0
        together.append(piece)
        filled += share
    if together:
        partitions.append(MessagePartition(together))
    return partitions


def register(spark: SparkSession) -> None:
    """Make `format("postroad")` known to a session; `postroad.spark.session.start` has done so already."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PostroadDataSource)
