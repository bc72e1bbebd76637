"""DataFrames published with real Spark at a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.integration.brokers import config
from tests.spark.feeds import everything, numbers_of

from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with BrokerProcess(config(1, "one", free_ports(1)[0], tmp_path, []), tmp_path) as process:
        yield process.url


def frame(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    rows = spark.range(0, count, 1, partitions)
    return rows.selectExpr("id as n", "cast(id % 2 = 0 as boolean) even", "concat('row ', id) payload")


def save(rows: DataFrame, url: str, **options: Any) -> None:
    rows.write.format("postroad").mode("append").options(url=url, **options).save()


def test_rows_become_messages(spark: SparkSession, url: str) -> None:
    """Each column is an attribute of its kind, NULL is a missing one, and payload is the payload."""
    rows = spark.sql(
        """select * from values
        (1S, 2.5F, true, 'a', X'00ff', 'text', 'plain'), (null, null, null, null, null, null, null)
        as t(small, single, flag, name, raw, payload, `@id`)"""
    ).coalesce(1)
    save(rows, url)
    first, second = everything(url)
    assert dict(first.attributes) == {"small": 1, "single": 2.5, "flag": True, "name": "a", "raw": b"\x00\xff", "id": "plain"}
    assert first.payload == b"text"
    assert (dict(second.attributes), second.payload) == ({}, b"")


def test_a_named_batch_is_published_once(spark: SparkSession, url: str) -> None:
    """The same name and batch again adds nothing; without a name every write is new."""
    rows = frame(spark, 3000)
    for _ in range(2):
        save(rows, url, name="daily", batch=1)
    save(frame(spark, 10), url, name="daily", batch=2)
    assert numbers_of(url) == sorted([*range(3000), *range(10)])
    with pytest.raises(PySparkException, match="EpochChangedError"):
        save(frame(spark, 2000), url, name="daily", batch=1)
    save(frame(spark, 10), url)
    save(frame(spark, 10), url)
    assert len(numbers_of(url)) == 3030


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("now() as sent", "SparkSchemaError.*column sent is timestamp; attributes can be.*cast it"),
        ("array(id) as many", "SparkSchemaError.*column many is array<bigint>"),
        ("id as tick", "SparkSchemaError.*column tick is made by the broker: drop it, or rename it to @tick"),
        ("id as payload", "SparkSchemaError.*column payload is bigint"),
        ("id as a, id as `@a`", "SparkSchemaError.*'a' and '@a' are the same attribute"),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_sent(
    spark: SparkSession, url: str, columns: str, text: str
) -> None:
    """The error names the column and the way out."""
    with pytest.raises(PySparkException, match=text):
        save(spark.range(5).selectExpr(*columns.split(", ")), url)
    assert everything(url) == []


def test_bad_options_and_modes_are_refused(spark: SparkSession, url: str) -> None:
    """Nothing is guessed."""
    rows = frame(spark, 1)
    with pytest.raises(PySparkException, match=r"SparkOptionError.*give url"):
        rows.write.format("postroad").mode("append").save()
    with pytest.raises(PySparkException, match=r"SparkOptionError.*needs the option name"):
        save(rows, url, batch=1)
    with pytest.raises(PySparkException, match=r"SparkSchemaError.*cannot be overwritten"):
        rows.write.format("postroad").mode("overwrite").option("url", url).save()
    with pytest.raises(PySparkException, match=r"NotConnectedError"):
        save(rows, f"postroad://127.0.0.1:{free_ports(1)[0]}", timeoutSeconds=1)
