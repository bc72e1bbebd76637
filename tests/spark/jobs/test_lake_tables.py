"""Lakes as Delta Lake and Iceberg tables: each message once, schemas that grow, versions, small files, two ingests at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.object_store import object_store
from tests.spark.data import batch_of, tick_of, write_log

from postroad.core.protocol.packets import pubend_id
from postroad.errors import LakeError
from postroad.spark.jobs import ingest as ingesting
from postroad.spark.jobs.ingest import ingest
from postroad.spark.jobs.lake_tables import DeltaTable, TableFormat, open_table
from postroad.spark.jobs.published import all_ids, log_paths
from postroad.spark.jobs.table_rows import open_rows
from postroad.storage.segment.external_reader import observe
from postroad.types import COUNTER_BITS

pytestmark = pytest.mark.pipeline  # long: selected by `make pipeline`

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

FIRST = pubend_id(1)


@pytest.fixture(params=["delta", "iceberg"])
def form(request: pytest.FixtureRequest) -> TableFormat:
    return request.param  # type: ignore[no-any-return]


def more(path: Path, first: int, count: int, **attributes: Any) -> Path:
    """Let a broker publish and end: its segments are closed."""
    rows = {"n": list(range(first, first + count)), **{name: [value] * count for name, value in attributes.items()}}
    return write_log(path, {FIRST: [batch_of(first, count, rows)]})


def rows_of(lake: Path, form: TableFormat) -> list[dict[str, Any]]:
    """Read a table as others do, without us."""
    if form == "delta":
        found = deltalake.DeltaTable(str(lake)).to_pyarrow_table()
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("postroad", uri=f"sqlite:///{lake}/catalog.sqlite", warehouse=lake.as_uri())
        found = catalog.load_table("postroad.messages").scan().to_arrow()
    listed: list[dict[str, Any]] = found.sort_by("tick").to_pylist()
    return listed


def test_each_message_is_in_the_table_once_and_columns_come_with_attributes(
    spark: SparkSession, form: TableFormat, tmp_path: Path
) -> None:
    """A repeated run adds nothing; an attribute that comes later is a new column, null in the rows before it."""
    data, lake = more(tmp_path / "data", 0, 40), tmp_path / "lake"
    assert ingest(spark, [str(data)], str(lake), form=form).rows == 40
    assert ingest(spark, [str(data)], str(lake)).commits == 0
    more(data, 40, 10, late="x")
    assert ingest(spark, [str(data)], str(lake)).rows == 10
    rows = rows_of(lake, form)
    assert [row["n"] for row in rows] == list(range(50))
    assert [row["late"] for row in rows] == [None] * 40 + ["x"] * 10
    assert {row["pubend"] for row in rows} == {FIRST}
    assert all(len(row["id"]) == 16 and row["timestamp"].tzinfo is not None for row in rows)


def test_jobs_read_a_table_and_its_older_versions(spark: SparkSession, form: TableFormat, tmp_path: Path) -> None:
    """The rows are a source of jobs; an older version has what it had."""
    data, lake = more(tmp_path / "data", 0, 40), str(tmp_path / "lake")
    ingest(spark, [str(data)], lake, form=form)
    table = open_table(lake, form)
    old = table._table.version() if isinstance(table, DeltaTable) else table._table.current_snapshot().snapshot_id  # type: ignore[attr-defined]
    more(data, 40, 10, late="x")
    ingest(spark, [str(data)], lake)
    assert all_ids(open_rows(spark, lake)).distinct().count() == 50
    assert all_ids(open_rows(spark, lake, version=old)).count() == 40
    middle = tick_of(20) >> COUNTER_BITS
    assert all_ids(open_rows(spark, lake).within(middle, middle + 1)).count() == 10, "ten in each millisecond"
    assert all_ids(open_rows(spark, lake).behind({FIRST: tick_of(29)}, {})).count() == 20
    with pytest.raises(LakeError):
        open_rows(spark, lake, version=12_345)


def test_small_files_become_one_and_nothing_else_changes(spark: SparkSession, form: TableFormat, tmp_path: Path) -> None:
    """After several ingests, the files of a day and pubend are one."""
    data, lake = tmp_path / "data", tmp_path / "lake"
    for first in range(0, 50, 10):
        ingest(spark, [str(more(data, first, 10))], str(lake), form=form)
    before = rows_of(lake, form)
    assert open_table(str(lake), form).optimise() == (5, 1)
    assert rows_of(lake, form) == before
    assert ingest(spark, [str(data)], str(lake)).commits == 0
    assert all_ids(open_rows(spark, str(lake))).distinct().count() == 50


def test_an_ingest_that_died_before_its_commit_is_repeated(
    spark: SparkSession, form: TableFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that nobody committed are in no version."""
    data, lake = more(tmp_path / "data", 0, 20), tmp_path / "lake"
    target = ingesting._target(spark, str(lake), form)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(target._table), "commit", die)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            ingest(spark, [str(data)], str(lake), form=form)
    assert list(lake.rglob("*.parquet"))
    assert ingest(spark, [str(data)], str(lake), form=form).rows == 20
    assert [row["n"] for row in rows_of(lake, form)] == list(range(20))


def test_of_two_ingests_at_once_one_is_refused(spark: SparkSession, form: TableFormat, tmp_path: Path) -> None:
    """Both saw the same table; the second to commit fails, and no row is doubled."""
    data, lake = more(tmp_path / "data", 0, 20), tmp_path / "lake"
    ingest(spark, [str(data)], str(lake), form=form)
    more(data, 20, 20)
    slow = ingesting._target(spark, str(lake), form)
    taken = slow.reached
    views = [observe(where, pubend) for pubend, where in log_paths([str(data)])]
    units, _ = ingesting._plan(views, taken)
    assert ingest(spark, [str(data)], str(lake)).rows == 20
    with pytest.raises(LakeError, match="at the same time"):
        slow.take(units, [])
    assert [row["n"] for row in rows_of(lake, form)] == list(range(40))


def test_a_lake_keeps_its_format(spark: SparkSession, form: TableFormat, tmp_path: Path) -> None:
    """A second run with another format is refused."""
    data, lake = more(tmp_path / "data", 0, 20), tmp_path / "lake"
    ingest(spark, [str(data)], str(lake), form=form)
    with pytest.raises(LakeError, match=f"the format {form}, not parquet"):
        ingest(spark, [str(data)], str(lake), form="parquet")


@pytest.fixture
def store(spark: SparkSession) -> Iterator[None]:
    with object_store("lakes") as variables:
        environment = spark.sparkContext.environment
        environment.update(variables)
        yield
        for name in variables:
            del environment[name]


def test_a_delta_table_lies_in_an_object_store(spark: SparkSession, store: None, tmp_path: Path) -> None:
    """Tasks write the files there, the driver commits, jobs read: nothing of it goes through Java."""
    data = more(tmp_path / "data", 0, 30)
    assert ingest(spark, [str(data)], "s3://lakes/messages", form="delta").rows == 30
    assert ingest(spark, [str(data)], "s3://lakes/messages").rows == 0
    assert all_ids(open_rows(spark, "s3://lakes/messages")).distinct().count() == 30
