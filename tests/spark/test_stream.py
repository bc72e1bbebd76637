"""Streaming reads with real Spark, from files and from a live overlay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.integration.brokers import config, wait_until
from tests.spark.data import batch_of, tick_of, write_log
from tests.spark.feeds import publish

import postroad.sync
from postroad.core.protocol.packets import pubend_id
from postroad.runtime.process import BrokerProcess
from postroad.spark.options import read_options
from postroad.spark.stream import StreamReader
from postroad.storage import LogOptions, SegmentLog
from postroad.testing import free_ports

FIRST, SECOND = pubend_id(1), pubend_id(2)
SCHEMA = "n bigint, tick bigint, pubend bigint"


def run(spark: SparkSession, place: Path, **options: Any) -> list[list[int]]:
    """Read all that is there now, going on from the checkpoint in `place`; return the numbers of each micro-batch."""
    batches: list[list[int]] = []
    reader = spark.readStream.format("postroad").schema(SCHEMA).options(**options)
    writer = reader.load().writeStream.foreachBatch(lambda rows, _: batches.append(sorted(row["n"] for row in rows.collect())))
    query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert not query.isActive
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    return [n for batch in batches for n in batch]


def log_of(path: Path, first: int, count: int) -> Path:
    return write_log(path, {FIRST: [batch_of(i, 50, {"n": list(range(i, i + 50))}) for i in range(first, first + count, 50)]})


def append(path: Path, first: int, count: int) -> None:
    """Add rows to the log of a data directory, as a broker does."""
    log = SegmentLog.open(path / "pubends" / f"{FIRST:016x}", FIRST, LogOptions(segment_bytes=8000))
    for i in range(first, first + count, 50):
        log.append([batch_of(i, 50, {"n": list(range(i, i + 50))})])
    log.close()


def test_files_are_read_on_from_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Each run reads what came since the last, in batches no larger than asked for; nothing is missing or read twice."""
    path = log_of(tmp_path / "data", 0, 500)
    first = run(spark, tmp_path / "checkpoint", path=str(path), maxRowsPerTrigger=120)
    assert flat(first) == list(range(500))
    assert max(map(len, first)) == 120
    append(path, 500, 300)
    assert flat(run(spark, tmp_path / "checkpoint", path=str(path))) == list(range(500, 800))
    assert flat(run(spark, tmp_path / "checkpoint", path=str(path))) == []


def test_a_filter_counts_what_matches(spark: SparkSession, tmp_path: Path) -> None:
    """The option is evaluated where messages are read; the limit counts matching rows."""
    path = log_of(tmp_path / "data", 0, 500)
    batches = run(spark, tmp_path / "checkpoint", path=str(path), filter="n >= 100 AND n < 200", maxRowsPerTrigger=30)
    assert flat(batches) == list(range(100, 200))
    assert max(map(len, batches)) == 30


def test_a_log_that_appears_later_joins(spark: SparkSession, tmp_path: Path) -> None:
    """Everything in it is read, once."""
    log_of(tmp_path / "data" / "one", 0, 100)
    options = {"path": str(tmp_path / "data" / "*")}
    assert flat(run(spark, tmp_path / "checkpoint", **options)) == list(range(100))
    write_log(tmp_path / "data" / "two", {SECOND: [batch_of(1000, 50, {"n": list(range(1000, 1050))}, broker=2)]}, broker=2)
    assert flat(run(spark, tmp_path / "checkpoint", **options)) == list(range(1000, 1050))


def reader(**options: str) -> StreamReader:
    return StreamReader(StructType().add("n", "long"), read_options(options))


def test_a_repeated_batch_has_the_same_partitions_whatever_became_of_the_files(tmp_path: Path) -> None:
    """They are cut between records, also after the open segment was closed and another begun: the sink counts on that."""
    path = log_of(tmp_path / "data", 0, 100)
    log = SegmentLog.open(path / "pubends" / f"{FIRST:016x}", FIRST, LogOptions(segment_bytes=8000))
    for i in range(100, 900, 50):
        log.append([batch_of(i, 50, {"n": list(range(i, i + 50))})])
    reading = reader(path=str(path), rowsPerPartition="120")
    start, end = {str(FIRST): tick_of(30)}, {str(FIRST): tick_of(777)}

    def rows() -> list[list[int]]:
        parts = reading.partitions(start, end)
        return [[int(str(n)) for batch in reading.read(part) for n in batch.column(0).to_pylist()] for part in parts]

    before = rows()
    log.close()
    append(path, 900, 100)
    assert before == rows()
    assert flat(before) == list(range(31, 778))
    assert [len(part) for part in before][:2] == [119, 150]


def test_starting_ticks_are_earliest_latest_or_given(spark: SparkSession, tmp_path: Path) -> None:
    """A tick given is where reading begins; one that was released is an error, or a stated gap."""
    path = log_of(tmp_path / "data", 0, 100)
    key = str(FIRST)
    assert reader(path=str(path)).initialOffset() == {key: 0}
    assert reader(path=str(path), startingTicks="latest").initialOffset() == {key: tick_of(99)}
    given = json.dumps({key: tick_of(59)})
    assert reader(path=str(path), startingTicks=given).initialOffset() == {key: tick_of(59)}
    assert flat(run(spark, tmp_path / "checkpoint", path=str(path), startingTicks=given)) == list(range(60, 100))


def test_offsets_already_released_are_an_error_or_a_stated_gap(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint older than what the log still holds."""
    path = log_of(tmp_path / "data", 0, 50)
    run(spark, tmp_path / "checkpoint", path=str(path))
    append(path, 50, 500)
    oldest = sorted((path / "pubends" / f"{FIRST:016x}").glob("*.segment"))
    for released in oldest[:3]:
        released.unlink()
    with pytest.raises(PySparkException, match="GapError: messages of pubend 100 in the ticks"):
        run(spark, tmp_path / "checkpoint", path=str(path))
    reading = spark.readStream.format("postroad").schema(SCHEMA + ", gap string").options(path=str(path), onGap="skip").load()
    found: list[Any] = []
    query = reading.writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start().awaitTermination(60)
    (gap,) = [row["gap"] for row in found if row["gap"]]
    numbers = sorted(row["n"] for row in found if not row["gap"])
    assert f"ticks ({tick_of(49)}, " in gap
    assert numbers == list(range(numbers[0], 550))
    assert numbers[0] > 50


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    with BrokerProcess(config(1, "one", free_ports(1)[0], directory, []), directory) as process:
        yield process


def test_a_live_stream_survives_a_kill_of_the_broker_between_runs(
    spark: SparkSession, tmp_path: Path, broker: BrokerProcess
) -> None:
    """The checkpoint goes on where it was, whatever happened to the broker; an idle stream makes no empty batches."""
    options = {"url": broker.url, "maxRowsPerTrigger": 400}
    publish(broker.url, range(1000))
    first = run(spark, tmp_path / "checkpoint", **options)
    assert flat(first) == list(range(1000))
    assert max(map(len, first)) == 400
    broker.kill()
    broker.start()
    publish(broker.url, range(1000, 1500))
    assert flat(run(spark, tmp_path / "checkpoint", **options)) == list(range(1000, 1500))
    assert run(spark, tmp_path / "checkpoint", **options) == []
    matching = run(spark, tmp_path / "other", url=broker.url, filter="n IN (5, 1400)")
    assert flat(matching) == [5, 1400]


def test_a_broker_that_appears_later_joins_a_live_stream(spark: SparkSession, tmp_path: Path, broker: BrokerProcess) -> None:
    """Its pubend is read from the beginning, once."""
    publish(broker.url, range(5000, 5010))
    run(spark, tmp_path / "checkpoint", url=broker.url)
    port = int(broker.url.rsplit(":", 1)[1])
    with BrokerProcess(config(2, "two", free_ports(1)[0], tmp_path, [port]), tmp_path) as second:
        publish(second.url, range(7000, 7100))
        with postroad.sync.connect(broker.url) as client:
            wait_until(lambda: SECOND in client.pubends())
        assert flat(run(spark, tmp_path / "checkpoint", url=broker.url)) == list(range(7000, 7100))
