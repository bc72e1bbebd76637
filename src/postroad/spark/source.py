"""The Spark data source `postroad`: pubend streams as DataFrames, and DataFrames published as messages.

    spark.read.format("postroad").load("/var/lib/postroad/broker-1")
    spark.read.format("postroad").option("url", "postroad://127.0.0.1:7400").load()

`postroad.spark.messages(spark, ...)` gives the same with conditions pushed down. Planning happens in a Python process beside
the driver, reading in workers; both get the readers pickled.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from postroad.spark.batch import BatchReader, PushingReader
from postroad.spark.columns import inferred_schema
from postroad.spark.options import read_options, write_options
from postroad.spark.reading import origin_of
from postroad.spark.sink import BatchSink, StreamSink
from postroad.spark.stream import StreamReader


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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return StreamReader(schema, read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(schema, write_options(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        return StreamSink(schema, write_options(self.options), overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("postroad")` known to a session; `postroad.spark.session.start` has done so already."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PostroadDataSource)
