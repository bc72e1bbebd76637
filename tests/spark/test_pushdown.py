"""Conditions done by the source give what Spark itself would give, row for row."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from tests.spark.data import START_MS, batch_of, tick_of, write_log

from postroad.core.protocol.packets import pubend_id
from postroad.spark import messages
from postroad.types import MessageId, Tick

FIRST, SECOND = pubend_id(1, 0), pubend_id(1, 1)
BIG = 1 << 53
NAN = math.nan


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attributes of every kind with nulls, NaN, infinities, clashing kinds, wildcards, and ints a double cannot hold."""
    floats = [0.0, -0.0, 1.5, NAN, math.inf, -math.inf, None, 5.0, float(BIG), 1e300]
    ints = [0, 1, -5, None, BIG + 1, BIG, -(BIG + 1), 5, (1 << 63) - 1, -(1 << 63)]
    strings = ["", "a", "abc", "a%c", "a_c", "it's", None, "!x", "ABC", "äbc\n"]
    bools = [True, False, None, True, False, None, True, True, False, None]
    first = batch_of(0, 10, {"f": floats, "i": ints, "s": strings, "b": bools, "mixed": ints, "text": ints})
    second = batch_of(10, 10, {"f": floats[::-1], "s": strings[::-1], "mixed": floats, "text": strings})
    third = batch_of(20, 10, {"i": ints, "b": bools, "text": bools, "odd name": strings})
    return write_log(tmp_path_factory.mktemp("mixed") / "data", {FIRST: [first, second], SECOND: [third]})


CONDITIONS = [
    line.strip()
    for line in r"""
    f > 1.5;  f >= 1.5;  f < 1.5;  f <= 1.5;  f = 1.5;  f <> 1.5;  not f > 1.5;  not (f <= 5);  f = 0;  f > 9007199254740992
    f = double('NaN');  f > double('NaN');  f < double('Infinity');  f = double('Infinity');  f in (1.5, 5.0, -0.0)
    f not in (1.5, 5);  f is null;  f is not null;  f <=> 1.5;  not (f <=> 1.5);  f <=> null;  f > 1e299;  f between 0 and 5
    i > 0;  i >= 9007199254740993;  i = 9007199254740993;  i <> 5;  i in (5, 0, -5);  i not in (5, 0);  i in (5, null)
    i is null;  i < 0.5;  i > 4.5;  i = 9223372036854775807;  i < -9223372036854775807;  not (i <=> 5)
    s = 'abc';  s <> 'abc';  s in ('a', '');  s not in ('a', '');  s like 'a%';  s like '%c';  s like '%b%';  s like 'a\\%c'
    s like 'a_c';  not s like 'a%';  s = 'it''s';  s > 'a';  s is null;  s <=> 'a';  not (s <=> 'a');  startswith(s, 'a%')
    contains(s, '_');  contains(s, '!');  endswith(s, '\n');  contains(s, '');  s = 'A';  upper(s) = 'ABC'
    b;  not b;  b = true;  b = false;  b is null;  b <=> true;  not (b <=> false)
    mixed > 1;  mixed = 9007199254740992;  mixed = 9007199254740993;  mixed >= 9007199254740992;  mixed < 9007199254740993
    mixed in (5, 9007199254740992);  mixed <> 5;  mixed is null;  mixed < 0
    text = '5';  text = 'true';  text <> '5';  text like '9%';  text is not null;  text in ('0', 'a');  not (text <=> 'abc')
    `odd name` = 'abc';  `odd name` is not null;  `odd name` is null and f > 0
    f > 1 and s like 'a%';  f > 1 or i > 1;  i > 0 and i < 100 and b;  s = 'a' and f is not null and i >= 0
    """.replace("\n", ";").split(";")
    if line.strip()
]

SYSTEM_CONDITIONS = [
    line.strip()
    for line in f"""
    tick = {tick_of(3)};  tick > {tick_of(12)};  tick >= {tick_of(12)};  tick < {tick_of(12)};  tick <= {tick_of(12)}
    tick in ({tick_of(1)}, {tick_of(25)}, 7);  tick not in ({tick_of(1)}, {tick_of(25)});  tick <> {tick_of(5)}
    tick between {tick_of(5)} and {tick_of(22)};  tick > 9223372036854775806;  tick < -5;  tick is null;  tick is not null
    pubend = {FIRST};  pubend <> {FIRST};  pubend in ({SECOND}, 9);  pubend = 9;  pubend > {FIRST};  pubend <= {FIRST}
    publisher = 2;  publisher in (1, 3);  publisher > 1;  publisher <> 2
    id = X'{MessageId(2, 1, Tick(tick_of(1))).__bytes__().hex()}';  id <> X'00';  id in (X'00', X'01');  id > X'000000020000'
    timestamp = timestamp_millis({START_MS + 1});  timestamp > timestamp_millis({START_MS + 1});  id is null
    timestamp >= timestamp_micros({START_MS * 1000 + 500});  timestamp < timestamp_micros({START_MS * 1000 + 1500})
    timestamp <= timestamp_micros({START_MS * 1000 + 1000});  timestamp > '2030-01-01';  timestamp < '1960-01-01'
    timestamp in (timestamp_millis({START_MS}), timestamp_millis({START_MS + 2}));  to_date(timestamp) = '2023-11-14'
    payload is not null;  payload = X'00';  tick > {tick_of(12)} and f > 0 and publisher = 1
    """.replace("\n", ";").split(";")
    if line.strip()
]


def both(spark: SparkSession, path: Path, **options: Any) -> tuple[DataFrame, DataFrame]:
    """Return the source, and the same rows as a table of Spark's own, which knows no push-down."""
    frame = messages(spark, str(path), **options)
    return frame, spark.createDataFrame(frame.collect(), frame.schema)


def found(frame: DataFrame, condition: str) -> list[int]:
    return sorted(row["tick"] for row in frame.where(condition).select("tick").collect())


def expected(plain: DataFrame, conditions: list[str]) -> dict[str, list[int]]:
    """Return the ticks of the rows for which Spark itself says that a condition is true; one job for all."""
    rows = plain.select("tick", *(F.expr(text).alias(f"c{i}") for i, text in enumerate(conditions))).collect()
    return {text: sorted(row["tick"] for row in rows if row[f"c{i}"]) for i, text in enumerate(conditions)}


Pair = tuple[DataFrame, DataFrame]


@pytest.fixture(scope="module")
def pair(spark: SparkSession, mixed: Path) -> Pair:
    return both(spark, mixed)


def check(pair: Pair, conditions: list[str]) -> None:
    pushed, plain = pair
    assert {text: found(pushed, text) for text in conditions} == expected(plain, conditions)


def test_conditions_on_attributes_mean_what_they_mean_to_spark(pair: Pair) -> None:
    """NULL, NaN, infinities, signed zero, wildcards, quotes and big numbers included."""
    check(pair, CONDITIONS)


def test_conditions_on_system_columns_mean_what_they_mean_to_spark(pair: Pair) -> None:
    """Ranges of ticks and times, sets, negations, other pubends and bytes of ids."""
    check(pair, SYSTEM_CONDITIONS)


def test_random_conjunctions_mean_what_they_mean_to_spark(pair: Pair) -> None:
    """Several conditions at once; the seed is in the output of a failure."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    chosen = random.Random(seed)
    check(pair, [" and ".join(chosen.sample(CONDITIONS, 2) + chosen.sample(SYSTEM_CONDITIONS, 1)) for _ in range(20)])


def test_values_read_as_null_are_null_to_conditions_too(spark: SparkSession, mixed: Path) -> None:
    """With onMismatch=null a condition sees the column, not the attribute behind it."""
    frame = messages(spark, str(mixed), schema="tick bigint, text bigint, mixed int, s string", onMismatch="null")
    plain = spark.createDataFrame(frame.collect(), frame.schema)
    nulls = ["text is null", "text is not null", "not (text <=> 5)", "mixed is null"]
    check((frame, plain), [*nulls, "text > 0", "text <> 5", "mixed = 5", "text in (0, 5)"])


def test_a_frame_used_twice_has_its_own_conditions_each_time(spark: SparkSession, mixed: Path) -> None:
    """In a union, in a self-join, with a condition and then without: no use sees the condition of another."""
    frame = messages(spark, str(mixed))
    low, high = frame.where("i < 0"), frame.where("i > 0")
    assert (low.union(high).count(), low.count(), high.count(), frame.count()) == (16, 6, 10, 30)
    joined = low.alias("l").join(high.alias("h"), F.expr("l.i = -h.i"))
    assert {(row[0], row[1]) for row in joined.select("l.i", "h.i").collect()} == {(-5, 5), (-BIG - 1, BIG + 1)}
    assert high.cache().count() == 10
    assert "InMemory" in high._jdf.queryExecution().executedPlan().toString()
    high.unpersist()


def test_without_pushdown_a_plain_frame_may_be_used_in_any_way(spark: SparkSession, mixed: Path) -> None:
    """What `format("postroad")` gives by default leaves every condition to Spark."""
    frame = spark.read.format("postroad").load(str(mixed))
    low, high = frame.where("i < 0"), frame.where("i > 0")
    assert (low.union(high).count(), low.count(), high.count(), frame.count()) == (16, 6, 10, 30)


def test_explain_shows_what_was_pushed_and_what_was_not(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """Taken conditions stand at the scan; Spark filters the rest."""
    frame = pair[0].where(f"s = 'abc' and f > 1.5 and tick > {tick_of(3)} and s > 'a'")
    frame.explain("formatted")
    shown = capsys.readouterr().out
    assert "Filter" in shown
    (pushed,) = [line for line in shown.splitlines() if line.startswith("PushedFilters")]
    for part in ("EqualTo(s,abc)", "GreaterThan(f,1.5)", "GreaterThan(tick"):
        assert part in pushed
    assert "GreaterThan(s,a)" not in pushed


def test_ranges_of_ticks_and_pubends_are_not_even_planned(spark: SparkSession, tmp_path: Path) -> None:
    """A condition on tick, timestamp, pubend or id leaves out the parts that cannot match."""
    batches: Callable[[int], list[Any]] = lambda first: [batch_of(i, 50, {}) for i in range(first, first + 1000, 50)]  # noqa: E731
    path = write_log(tmp_path / "data", {FIRST: batches(0), SECOND: batches(1000)}, segment_bytes=10_000)
    frame = messages(spark, str(path), partitionBytes=1)
    whole = frame.rdd.getNumPartitions()
    assert whole > 8
    for condition in (
        f"tick <= {tick_of(49)}",
        f"tick = {tick_of(120)}",
        f"timestamp < timestamp_millis({START_MS + 4})",
        f"timestamp between timestamp_millis({START_MS + 20}) and timestamp_millis({START_MS + 21})",
    ):
        narrowed = frame.where(condition)
        assert narrowed.rdd.getNumPartitions() <= whole // 4, condition
        assert narrowed.count() > 0
    assert frame.where(f"pubend = {SECOND}").rdd.getNumPartitions() <= whole // 2 + 1
    assert frame.where("id = X'00000001000000090000000000000000'").count() == 0
