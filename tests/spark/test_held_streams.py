"""The option `subscription`, and attributes that come later than a schema was inferred, with a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.spark.feeds import publish

import postroad.sync
import postroad.testing
from postroad.errors import SparkOptionError
from postroad.spark import messages
from postroad.spark.options import read_options
from postroad.spark.stream import StreamReader
from postroad.types import COUNTER_BITS


@pytest.fixture
def url() -> Iterator[str]:
    with postroad.testing.broker() as found:
        yield found


def test_a_subscription_moves_with_what_is_committed(spark: SparkSession, url: str) -> None:
    """It exists from the first look on, stands still while batches are only planned, and moves when they are committed."""
    publish(url, range(100))
    options = read_options({"url": url, "subscription": "spark/orders", "maxRowsPerTrigger": "60"})
    reader = StreamReader(spark.createDataFrame([], "n long").schema, options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert cursor(url) == sum(map(int, start.values()))
    assert reader.reportLatestOffset() != end, "there is more than a micro-batch takes"
    reader.commit(end)
    assert cursor(url) == sum(map(int, end.values()))
    again = StreamReader(spark.createDataFrame([], "n long").schema, options)
    again.latestOffset(start, again.getDefaultReadLimit())
    assert cursor(url) == sum(map(int, end.values())), "a query that begins again at an older batch does not move it back"


def cursor(url: str) -> int:
    """Return the sum of the positions of the only durable subscription."""
    with postroad.sync.connect(url) as client:
        (durable,) = client.durables()
        assert durable.name == "spark/orders"
        assert not durable.connected
        with client.subscribe(name=durable.name, auto_ack=False) as subscription:
            return sum(subscription.positions().values())


def test_a_query_with_a_subscription_reads_everything_once(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """The durable subscription is listed beside the query, and follows it to the end."""
    publish(url, range(50))
    reader = spark.readStream.format("postroad").schema("n long").options(url=url, subscription="held")
    written = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = written.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(50))
    with postroad.sync.connect(url) as client:
        assert [each.name for each in client.durables()] == ["held"]


def test_a_subscription_needs_a_broker(tmp_path: Path) -> None:
    """Files are not kept for anybody."""
    with pytest.raises(SparkOptionError, match="subscription needs url"):
        read_options({"path": str(tmp_path), "subscription": "x"})


def test_an_attribute_that_the_inferred_schema_lacks_is_an_error_and_not_absent(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with its place; it can be left out on purpose, or found by looking at all messages."""
    with postroad.sync.connect(url) as client:
        publisher = client.publisher()
        publisher.publish_many({"n": list(range(3000))}, [b""] * 3000)
        publisher.flush()
        publisher.publish({"n": 3000, "late": 1})
        publisher.publish_many({"n": list(range(3001, 6000))}, [b""] * 2999)
        publisher.flush()
        (span,) = client.pubends().values()
    sampled = spark.read.format("postroad").options(url=url, startingTimestamp=str((span.released >> COUNTER_BITS) or 1))
    frame = sampled.schema(_without(sampled.load().schema, "late")).load()
    with pytest.raises(PySparkException, match=r"SparkSchemaError.*'late'.*inferRecords=all"):
        frame.groupBy().sum("n").collect()
    assert frame.sparkSession.read.format("postroad").options(url=url, onNewAttribute="ignore").load().count() == 6000
    assert "late" in messages(spark, url=url, inferRecords="all").columns
    assert messages(spark, url=url, schema="n long").count() == 6000, "a given schema may leave attributes out"


def _without(schema: StructType, name: str) -> StructType:
    return StructType([field for field in schema.fields if field.name != name])
