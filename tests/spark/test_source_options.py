"""Options of the source that say from when, how much at a time and in how many parts; most need no Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import StructType
from tests.spark.data import batch_of, tick_of, write_log

import postroad.sync
import postroad.testing
from postroad.core.protocol.packets import pubend_id
from postroad.errors import SparkOptionError
from postroad.spark.batch import BatchReader
from postroad.spark.options import moment_of, read_options
from postroad.spark.stream import StreamReader
from postroad.types import COUNTER_BITS

PUBEND = pubend_id(1)
SCHEMA = StructType().add("n", "long")
ROWS = 1_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand messages in records of fifty and several segments."""
    batches = [batch_of(i, 50, {"n": list(range(i, i + 50))}) for i in range(0, ROWS, 50)]
    return write_log(tmp_path_factory.mktemp("log") / "data", {PUBEND: batches}, segment_bytes=20_000)


def read(reader: BatchReader) -> list[list[int]]:
    parts = reader.partitions()
    return [[int(str(n)) for batch in reader.read(part) for n in batch.column(0).to_pylist()] for part in parts]


def batch(log: Path, **options: str) -> list[list[int]]:
    return read(BatchReader(SCHEMA, read_options({"path": str(log), **options})))


def flat(parts: list[list[int]]) -> list[int]:
    return [n for part in parts for n in part]


def milliseconds(number: int) -> int:
    return tick_of(number) >> COUNTER_BITS


def test_a_batch_is_cut_by_timestamps(log: Path) -> None:
    """From the first moment on, up to before the last; as milliseconds or as a time."""
    expected = [n for n in range(ROWS) if milliseconds(200) <= milliseconds(n) < milliseconds(700)]
    assert 0 < len(expected) < ROWS
    cut = {"startingTimestamp": str(milliseconds(200)), "endingTimestamp": str(milliseconds(700))}
    assert flat(batch(log, **cut)) == expected
    told = {name: datetime.fromtimestamp(int(ms) / 1000, UTC).isoformat(timespec="milliseconds") for name, ms in cut.items()}
    assert flat(batch(log, **told)) == expected
    assert batch(log, startingTimestamp=str(milliseconds(ROWS) + 1_000_000)) == []


def test_a_stream_begins_at_a_timestamp(log: Path) -> None:
    """An offset before the first message of that moment; never beyond what is there."""
    key = str(PUBEND)

    def begins(**options: str) -> int:
        return int(StreamReader(SCHEMA, read_options({"path": str(log), **options})).initialOffset()[key])

    assert begins(startingTimestamp=str(milliseconds(500))) == (milliseconds(500) << COUNTER_BITS) - 1
    assert begins(startingTimestamp=str(milliseconds(ROWS) + 1_000_000)) == tick_of(ROWS - 1)
    assert begins(startingOffsets="latest") == tick_of(ROWS - 1)
    with pytest.raises(SparkOptionError, match="for batches"):
        begins(endingTimestamp="2026-01-01")


def test_a_batch_has_about_so_many_partitions(log: Path) -> None:
    """As many as the log can be cut into; every message in one of them, once."""
    assert len(batch(log)) == 1
    parts = batch(log, minPartitions="4")
    assert len(parts) == 4
    assert flat(parts) == list(range(ROWS))


def test_micro_batches_are_limited_by_bytes(log: Path) -> None:
    """Each has about so many bytes of the log, at least one record, and together they have everything."""
    for size, records in ((1, 1), (10_000, 20)):
        reader = StreamReader(SCHEMA, read_options({"path": str(log), "maxBytesPerTrigger": str(size)}))
        limit = reader.getDefaultReadLimit()
        assert isinstance(limit, ReadMaxBytes)
        position, steps = reader.initialOffset(), []
        while (after := reader.latestOffset(position, limit)) != position:
            rows = [
                n for part in reader.partitions(position, after) for each in reader.read(part) for n in each.column(0).to_pylist()
            ]
            steps.append(rows)
            position = after
        assert [n for rows in steps for n in rows] == list(range(ROWS))
        assert all(len(rows) <= 50 * records for rows in steps)
        assert len(steps) > 1


def test_a_live_overlay_is_cut_in_the_same_way() -> None:
    """By time, by number of partitions and by bytes."""
    with postroad.testing.broker() as url:
        with postroad.sync.connect(url) as client, client.publisher() as publisher:
            for n in range(200):
                publisher.publish({"n": n}, b"x" * 100)
            publisher.flush()
        parts = read(BatchReader(SCHEMA, read_options({"url": url, "minPartitions": "5"})))
        assert flat(parts) == list(range(200))
        assert flat(read(BatchReader(SCHEMA, read_options({"url": url, "endingTimestamp": "2001-01-01"})))) == []
        reader = StreamReader(SCHEMA, read_options({"url": url, "maxBytesPerTrigger": "1"}))
        first = reader.initialOffset()
        assert reader.latestOffset(first, reader.getDefaultReadLimit()) != first


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingTimestamp": "yesterday"}, "milliseconds or a time such as"),
        ({"maxRowsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "give either maxRowsPerTrigger or maxBytesPerTrigger"),
        ({"startingTicks": "latest", "startingOffsets": "latest"}, "give either startingTicks or startingOffsets"),
        ({"minPartitions": "0"}, "must not be 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(log: Path, options: dict[str, str], text: str) -> None:
    """With what is expected."""
    with pytest.raises(SparkOptionError, match=text):
        read_options({"path": str(log), **options})


def test_moments_are_read_with_and_without_a_zone() -> None:
    """Without one they are in UTC, as everything in Spark's session here."""
    assert moment_of("1970-01-02") == 86_400_000
    assert moment_of("1970-01-01T01:00:00.005+01:00") == 5
    assert moment_of(" 17 ") == 17


def test_a_view_can_be_made_of_the_source_and_a_table_says_why_not(spark: SparkSession, log: Path) -> None:
    """Spark 4.3 hands the options of a view on to the source, and those of a table only when it is made."""
    spark.sql(f"CREATE TEMPORARY VIEW numbers USING postroad OPTIONS (path '{log}', minPartitions '4')")
    assert spark.sql("SELECT count(*), sum(n) FROM numbers WHERE n < 10").first() == (10, 45)
    spark.catalog.dropTempView("numbers")
    with pytest.raises(PySparkException, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE numbers USING postroad OPTIONS (path '{log}')")
