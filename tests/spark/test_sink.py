"""DataFrames published with real Spark at a real broker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.integration.brokers import config
from tests.spark.feeds import everything, numbers_of

from postroad.runtime.process import BrokerProcess
from postroad.spark.sink import _as_attribute
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


def test_times_dates_and_decimals_become_attributes_that_filters_compare(spark: SparkSession, url: str) -> None:
    """Microseconds since 1970, text that sorts like the date, and the double that is nearest to the decimal."""
    rows = spark.sql(
        """select timestamp'2026-11-19 12:00:00.123456Z' at, timestamp_ntz'1970-01-01 00:00:01' local, date'2026-11-19' day,
        cast('12345678901.23' as decimal(13, 2)) price, cast(null as decimal(5, 2)) none"""
    )
    save(rows, url)
    (message,) = everything(url)
    expected = {"at": 1_795_089_600_123_456, "local": 1_000_000, "day": "2026-11-19", "price": 12_345_678_901.23}
    assert dict(message.attributes) == expected
    with pytest.raises(PySparkException, match=r"SparkSchemaError.*decimal\(16,2\).*15 digits"):
        save(spark.sql("select cast(1 as decimal(16, 2)) price"), url)


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
        ("array(1) as sent", r"SparkSchemaError.*column sent is array<int>; attributes can be.*cast it"),
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


def test_decimals_become_the_nearest_doubles() -> None:
    """Also in a part of a column, with nulls in it, below zero, and with as many digits as there may be."""
    values = [Decimal(number).scaleb(-3) for number in (-999_999_999_999_999, -1, 0, 7, 123_456_789_012_345)]
    column = pa.array([None, *values, None], pa.decimal128(15, 3)).slice(1)
    assert _as_attribute(column).to_pylist() == [*map(float, values), None]
    generator = random.Random(1)
    many = [Decimal(generator.randrange(-(10**15) + 1, 10**15)).scaleb(-10) for _ in range(2000)]
    assert _as_attribute(pa.array(many, pa.decimal128(15, 10))).to_pylist() == list(map(float, many))
