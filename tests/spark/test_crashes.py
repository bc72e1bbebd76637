"""Source and sink while Spark's query and the brokers are killed at random: every row once, in and out."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.crashing import Brokers, Collector, Feeder, SparkProcess, disturb, finish, forget_commit
from tests.spark.feeds import numbers_of, publish


def seeded(name: str) -> random.Random:
    """Return a generator; a failure shows how to repeat it."""
    seed = int(os.environ.get("POSTROAD_SEED", random.randrange(1 << 32)))
    print(f"repeat with: POSTROAD_SEED={seed} python -m pytest tests/spark/test_crashes.py -k {name}")  # noqa: T201  # on failure
    return random.Random(seed)


def test_every_message_goes_through_spark_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    """A broker is read, another is published at; both and the query are killed; a subscriber gets each message once."""
    chosen = seeded("exactly_once")
    with Brokers(tmp_path) as brokers, Collector(brokers.sink.url) as collector:
        feeder = Feeder(brokers.source.url, 1200, 8.0)
        feeder.start()
        disturb(spark, brokers, tmp_path / "checkpoint", chosen, rounds=5)
        feeder.finish()
        finish(spark, brokers.source.url, brokers.sink.url, tmp_path / "checkpoint")
        collector.wait_for(1200)
    assert sorted(collector.numbers) == list(range(1200))


def test_a_repeated_micro_batch_is_recognised(spark: SparkSession, tmp_path: Path) -> None:
    """Spark died after publishing and before its commit, and the broker was killed, too: the repetition adds nothing."""
    with Brokers(tmp_path) as brokers:
        publish(brokers.source.url, range(400))
        finish(spark, brokers.source.url, brokers.sink.url, tmp_path / "checkpoint")
        for crash in (False, True):
            assert forget_commit(tmp_path / "checkpoint")
            if crash:
                brokers.crash(brokers.sink, 0.0)
            finish(spark, brokers.source.url, brokers.sink.url, tmp_path / "checkpoint")
            assert numbers_of(brokers.sink.url) == list(range(400))


def test_files_of_a_broker_that_is_killed_are_read_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    """Reading the log beside the broker: what Spark has written equals what was published."""
    chosen = seeded("files")
    output, checkpoint = tmp_path / "output", tmp_path / "checkpoint"

    def start(*, to_the_end: bool = False) -> StreamingQuery:
        rows = spark.readStream.format("postroad").schema("n bigint").option("maxRowsPerTrigger", 100)
        writing = rows.load(str(tmp_path / "source")).writeStream.format("parquet")
        writing = writing.option("checkpointLocation", str(checkpoint)).option("path", str(output))
        return (writing.trigger(availableNow=True) if to_the_end else writing).start()

    with Brokers(tmp_path) as brokers:
        feeder = Feeder(brokers.source.url, 600, 4.0)
        feeder.start()
        for _ in range(3):
            query = start()
            time.sleep(0.5 + chosen.random())
            if chosen.random() < 0.6:
                brokers.crash(brokers.source, 0.1)
            with suppress(PySparkException):
                query.stop()
        feeder.finish()
        last = start(to_the_end=True)
        assert last.awaitTermination(120)
    assert sorted(row["n"] for row in spark.read.parquet(str(output)).collect()) == list(range(600))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_soak_of_kills(spark: SparkSession, tmp_path: Path) -> None:
    """As above for minutes, and the whole Spark process is killed, too."""
    chosen = seeded("soak")
    with Brokers(tmp_path) as brokers, Collector(brokers.sink.url) as collector:
        feeder = Feeder(brokers.source.url, 12_000, 150.0)
        feeder.start()
        for _ in range(5):
            process = SparkProcess(brokers.source.url, brokers.sink.url, tmp_path / "checkpoint")
            time.sleep(chosen.random() * 10)
            if chosen.random() < 0.5:
                brokers.crash(chosen.choice((brokers.source, brokers.sink)), chosen.random())
            process.kill()
            disturb(spark, brokers, tmp_path / "checkpoint", chosen, rounds=6)
        feeder.finish()
        finish(spark, brokers.source.url, brokers.sink.url, tmp_path / "checkpoint")
        collector.wait_for(12_000)
    assert sorted(collector.numbers) == list(range(12_000))
