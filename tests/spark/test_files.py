"""Batch reads of log files with real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from tests.spark.data import START_MS, batch_of, tick_of, write_log

from postroad.core.protocol.packets import pubend_id
from postroad.storage import LogOptions, SegmentLog
from postroad.types import MessageId, Tick

FIRST, SECOND = pubend_id(1, 0), pubend_id(1, 1)


def load(spark: SparkSession, *paths: Path, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("postroad")
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load(",".join(map(str, paths)))


def numbers(frame: DataFrame) -> list[int]:
    """Return the row numbers the payloads hold, in order."""
    return sorted(int.from_bytes(row["payload"][:8], "big") for row in frame.select("payload").collect())


@pytest.fixture(scope="module")
def quotes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pubends of one broker, 3,000 and 500 rows, in several segments."""
    first = [
        batch_of(i, 100, {"price": [float(i + j) for j in range(100)], "symbol": [f"S{(i + j) % 7}" for j in range(100)]})
        for i in range(0, 3000, 100)
    ]
    second = [
        batch_of(i, 50, {"size": [i + j for j in range(50)], "urgent": [j % 2 == 0 for j in range(50)]})
        for i in range(3000, 3500, 50)
    ]
    return write_log(tmp_path_factory.mktemp("quotes") / "data", {FIRST: first, SECOND: second}, segment_bytes=40_000)


def test_every_message_becomes_a_row_with_its_columns(spark: SparkSession, quotes: Path) -> None:
    """All rows of all pubends are there once; the system columns say what the message ids and ticks say."""
    frame = load(spark, quotes)
    assert frame.dtypes == [
        ("id", "binary"),
        ("tick", "bigint"),
        ("pubend", "bigint"),
        ("publisher", "bigint"),
        ("timestamp", "timestamp"),
        ("payload", "binary"),
        ("price", "double"),
        ("size", "bigint"),
        ("symbol", "string"),
        ("urgent", "boolean"),
    ]
    rows = frame.orderBy("tick").collect()
    assert len(rows) == 3500
    for number, row in enumerate(rows):
        assert bytes(row["id"]) == bytes(MessageId(number % 3 + 1, 1, Tick(tick_of(number))))
        assert (row["tick"], row["publisher"]) == (tick_of(number), number % 3 + 1)
        assert row["pubend"] == (FIRST if number < 3000 else SECOND)
        assert row["payload"][:8] == number.to_bytes(8, "big")
        assert (row["price"], row["size"]) == ((float(number), None) if number < 3000 else (None, number))
        assert row["symbol"] == (f"S{number % 7}" if number < 3000 else None)
    assert rows[25]["timestamp"].timestamp() * 1000 == START_MS + 2


def test_a_given_schema_reads_only_its_columns(spark: SparkSession, quotes: Path) -> None:
    """Columns may be left out and have narrower types; an attribute nobody has is NULL."""
    frame = load(spark, quotes, schema="size int, tick bigint, nobody string")
    assert frame.columns == ["size", "tick", "nobody"]
    found = frame.where("size is not null").orderBy("tick").collect()
    assert [row["size"] for row in found] == list(range(3000, 3500))
    assert {row["nobody"] for row in found} == {None}


@pytest.mark.parametrize("options", [{"partitionBytes": 1}, {"partitionBytes": 20_000}, {"rowsPerPartition": 250}, {}])
def test_partitions_of_any_size_give_every_row_once(spark: SparkSession, quotes: Path, options: dict[str, Any]) -> None:
    """How the ticks are cut into tasks changes nothing in the result."""
    frame = load(spark, quotes, **options)
    assert numbers(frame) == list(range(3500))
    if options:
        assert frame.rdd.getNumPartitions() > 4


def test_several_directories_and_patterns_are_read_together(spark: SparkSession, quotes: Path, tmp_path: Path) -> None:
    """A list, a pattern or Spark's own list of paths name directories of several brokers."""
    other = pubend_id(2)
    write_log(tmp_path / "two", {other: [batch_of(5000, 10, {"size": list(range(10))}, broker=2)]}, broker=2)
    write_log(tmp_path / "three", {pubend_id(3): [batch_of(6000, 5, {}, broker=3)]}, broker=3)
    (tmp_path / "lost+found").mkdir()
    assert numbers(load(spark, tmp_path / "t*")) == [*range(5000, 5010), *range(6000, 6005)]
    assert load(spark, quotes, tmp_path / "two").count() == 3510
    assert spark.read.format("postroad").load([str(quotes), str(tmp_path / "three")]).count() == 3505
    assert numbers(load(spark, tmp_path / "two", tmp_path / "three", pubends=hex(other))) == list(range(5000, 5010))


def test_clashing_kinds_become_double_or_text_and_the_schema_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """Ints beside floats are doubles; any other mixture is text. The comment of the column states it."""
    batches = [
        batch_of(0, 2, {"x": [1, 2], "y": [1, None], "z": [True, False]}),
        batch_of(2, 2, {"x": [0.5, None], "y": ["one", "two"], "z": [b"\x01\xff", b""]}),
    ]
    frame = load(spark, write_log(tmp_path / "data", {FIRST: batches}))
    assert dict(frame.dtypes)["x"] == "double"
    assert dict(frame.dtypes)["y"] == dict(frame.dtypes)["z"] == "string"
    assert frame.schema["x"].metadata["comment"] == "int and float values, read as double"
    assert frame.schema["y"].metadata["comment"] == "int and string values, shown as text"
    rows = frame.orderBy("tick").collect()
    assert [row["x"] for row in rows] == [1.0, 2.0, 0.5, None]
    assert [row["y"] for row in rows] == ["1", None, "one", "two"]
    assert [row["z"] for row in rows] == ["true", "false", "01ff", ""]


def test_attributes_named_like_system_columns_stand_behind_an_at_sign(spark: SparkSession, tmp_path: Path) -> None:
    """The attribute `id` is the column `@id`, and one with an at sign of its own gets another."""
    batches = [batch_of(0, 2, {"id": ["a", "b"], "Tick": [7, 8], "@x": [1.0, 2.0]})]
    frame = load(spark, write_log(tmp_path / "data", {FIRST: batches}))
    rows = frame.where("`@id` = 'b' and `@Tick` > 7 and `@@x` = 2").collect()
    assert [(row["@id"], row["@Tick"], row["@@x"], row["tick"]) for row in rows] == [("b", 8, 2.0, tick_of(1))]


def test_names_that_differ_only_in_case_are_refused_with_advice(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would take them for one column; a given schema chooses."""
    path = write_log(tmp_path / "data", {FIRST: [batch_of(0, 1, {"Price": [1.0], "price": [2.0]})]})
    with pytest.raises(PySparkException, match=r"SparkSchemaError.*'Price' and 'price' differ only in upper and lower case"):
        load(spark, path)
    assert [row["Price"] for row in load(spark, path, schema="Price double").collect()] == [1.0]


def test_a_value_that_does_not_fit_its_column_is_an_error_or_null(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the attribute, what it is, where, and the way out."""
    batches = [batch_of(0, 2, {"x": [1, 2]}), batch_of(2, 3, {"x": [3.0, 4.5, None]}), batch_of(5, 1, {"x": ["six"]})]
    path = write_log(tmp_path / "data", {FIRST: batches})
    text = f"AttributeMismatchError: attribute 'x' is float at tick {tick_of(3)} of pubend {FIRST}, but its column is bigint"
    with pytest.raises(PySparkException, match=text):
        load(spark, path, schema="x bigint").collect()
    nulled = load(spark, path, schema="x bigint, tick bigint", onMismatch="null").orderBy("tick").collect()
    assert [row["x"] for row in nulled] == [1, 2, 3, None, None, None]
    with pytest.raises(PySparkException, match="AttributeMismatchError: attribute 'x' is string"):
        load(spark, path, schema="x double").collect()


def test_the_open_segment_of_a_running_broker_is_read_up_to_its_last_append(spark: SparkSession, tmp_path: Path) -> None:
    """A log that is locked and being written is read as far as it is durable, and its torn tail is not looked at."""
    path = write_log(tmp_path / "data", {FIRST: [batch_of(0, 10, {})]})
    log = SegmentLog.open(path / "pubends" / f"{FIRST:016x}", FIRST, LogOptions())
    log.append([batch_of(10, 10, {})])
    assert numbers(load(spark, path)) == list(range(20))
    with max(log.path.glob("*.segment")).open("ab") as file:
        file.write(b"PRrecord, but only the beginning")
    assert numbers(load(spark, path)) == list(range(20))
    log.close()


# --- bad input -----------------------------------------------------------------------------------------------------------


def damaged(tmp_path: Path) -> tuple[Path, list[Path]]:
    batches = [batch_of(i, 50, {"n": list(range(i, i + 50))}) for i in range(0, 1000, 50)]
    path = write_log(tmp_path / "data", {FIRST: batches}, segment_bytes=15_000)
    return path, sorted((path / "pubends" / f"{FIRST:016x}").glob("*.segment"))


@pytest.mark.parametrize("where", ["cut", "flip", "remove"])
def test_a_damaged_log_is_refused_with_its_file_or_its_gap_is_stated(spark: SparkSession, tmp_path: Path, where: str) -> None:
    """Never a silent loss: an error that names the file, or with onGap=skip a row that names the ticks."""
    path, segments = damaged(tmp_path)
    whole = load(spark, path).orderBy("tick").collect()
    data = segments[1].read_bytes()
    match where:
        case "cut":
            segments[1].write_bytes(data[:-100])
        case "flip":
            middle = len(data) // 2
            segments[1].write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case _:
            segments[1].unlink()
    with pytest.raises(PySparkException, match=r"CorruptSegmentError.*\.segment"):
        load(spark, path).collect()
    frame = load(spark, path, onGap="skip")
    (gap,) = frame.where("gap is not null").collect()
    assert "are missing" in gap["gap"]
    assert (gap["pubend"], gap["id"], gap["payload"]) == (FIRST, None, None)
    rest = {row["tick"] for row in frame.where("gap is null").collect()}
    lost = [row["tick"] for row in whole if row["tick"] not in rest]
    assert lost
    assert lost[-1] == gap["tick"]
    assert len(rest) + len(lost) == 1000
    assert frame.where("n >= 0").count() == len(rest)
    assert frame.where("n is null").count() == 1


def test_ticks_released_between_planning_and_reading_are_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame that was planned keeps its ranges; what was released since is an error or stated."""
    for skip in (False, True):
        path, segments = damaged(tmp_path / str(skip))
        frame = load(spark, path, onGap="skip" if skip else "fail")
        rdd = frame.rdd  # plans the read
        assert rdd.getNumPartitions() >= 1
        segments[0].unlink()
        if skip:
            assert [row["gap"][:5] for row in rdd.collect() if row["gap"]] == ["ticks"]
        else:
            with pytest.raises(Exception, match="GapError: messages of pubend 100 in the ticks"):
                rdd.collect()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pubends": "777"}, "UnknownPubendError.*no given directory contains a log of pubend 777; there are: 256, 257"),
        ({"pubend": "256"}, "SparkOptionError.*there is no option 'pubend'; did you mean pubends"),
        ({"pubends": "abc"}, "SparkOptionError.*a pubend is a number such as 256"),
        ({"onGap": "ignore"}, "SparkOptionError.*option onGap is one of fail, skip, not 'ignore'"),
        ({"filter": "price >"}, "SparkOptionError.*option filter"),
        ({"partitionBytes": "-1"}, "SparkOptionError.*option partitionBytes: a whole number"),
        ({"url": "postroad://127.0.0.1:1"}, "SparkOptionError.*give either path"),
    ],
)
def test_bad_options_are_refused_with_what_was_meant(
    spark: SparkSession, quotes: Path, options: dict[str, str], text: str
) -> None:
    """A wrong option is told before anything is read."""
    with pytest.raises(PySparkException, match=text):
        load(spark, quotes, **options)


def test_a_directory_that_is_no_brokers_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The error says what is missing."""
    with pytest.raises(PySparkException, match=r"StorageFormatError.*not the data directory of a broker"):
        load(spark, tmp_path)
    with pytest.raises(PySparkException, match=r"SparkOptionError.*no data directory of a broker matches"):
        load(spark, tmp_path / "*")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("tick string", "SparkSchemaError.*column tick is bigint, not string"),
        ("price decimal(10,2)", r"SparkSchemaError.*column price is decimal\(10,2\); attributes can be read as"),
        ("`@` string", "SparkSchemaError.*is not the name of an attribute"),
    ],
)
def test_a_schema_that_messages_cannot_have_is_refused(spark: SparkSession, quotes: Path, schema: str, text: str) -> None:
    """The error names the column."""
    with pytest.raises(PySparkException, match=text):
        load(spark, quotes, schema=schema).collect()


def test_a_user_filter_is_applied_where_the_messages_are_read(spark: SparkSession, quotes: Path) -> None:
    """The option takes the whole filter language, OR included."""
    frame = load(spark, quotes, filter="symbol = 'S1' OR size BETWEEN 3100 AND 3104")
    expected = [n for n in range(3000) if n % 7 == 1] + list(range(3100, 3105))
    assert numbers(frame) == expected
    assert frame.select(F.min("tick")).collect()[0][0] == tick_of(1)
