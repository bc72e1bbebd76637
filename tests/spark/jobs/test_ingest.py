"""A lake holds each message once, whatever happens while it is filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.synthetic import EPOCH_MS, World, some_subscribers

from postroad.core.batch.batch import Batch
from postroad.errors import CorruptSegmentError, LakeError
from postroad.spark.jobs import message_table as lakes
from postroad.spark.jobs.audit import audit
from postroad.spark.jobs.filesystems import LocalPlace
from postroad.spark.jobs.ingest import ingest
from postroad.spark.jobs.message_table import AttributeColumn, columns_for, open_lake, open_lake_rows, read_lake
from postroad.spark.jobs.published import all_ids
from postroad.spark.jobs.tracks import open_tracks
from postroad.storage.segment.log import LogOptions, SegmentLog
from postroad.tracking.histories.elements import ID_DTYPE


def make_world(path: Path) -> World:
    world = World(path / "data", some_subscribers(3), origins=[1, 5], segment_bytes=12_000)
    world.run(2_000, rate=100)
    return world


def ids_in(spark: SparkSession, path: str) -> list[bytes]:
    return sorted(bytes(row["id"]) for row in read_lake(spark, path).select("id").collect())


def test_each_message_once_however_often_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    """A first run takes closed segments, a second adds nothing, a later one only what is new; an audit may read the lake."""
    world, path = make_world(tmp_path), f"file://{tmp_path}/lake"
    first = ingest(spark, world.data, path)
    assert 0 < first.rows < len(world.truth.published)
    assert ingest(spark, world.data, path).rows == 0
    world.run(1_000, rate=100)
    world.finish()
    last = ingest(spark, world.data, path)
    assert first.rows + last.rows == len(world.truth.published)
    assert ids_in(spark, path) == sorted(world.truth.published)
    rows = read_lake(spark, path).filter("day = '2023-11-14' and pubend = 256 and kind = 'trade'").select("id", "value").collect()
    expected = {item: value for item, (kind, value) in world.truth.attributes.items() if kind == 1 and item[7] == 1}
    assert {bytes(row["id"]): row["value"] for row in rows} == expected
    done = audit(open_lake_rows(spark, path), open_tracks(spark, world.data))
    assert done.summary.closes
    assert done.summary.published == len(world.truth.published)
    done.close()


@pytest.mark.parametrize("moment", ["before the commit", "after the commit", "between two moves"])
def test_a_crash_leaves_neither_duplicates_nor_holes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Wherever an ingest is cut off, the next run finishes or repeats it, and readers see no message twice meanwhile."""
    world, path = make_world(tmp_path), str(tmp_path / "lake")
    world.finish()
    moves = 0

    def create(self: LocalPlace, name: str, data: bytes) -> None:
        if moment == "before the commit":
            raise KeyboardInterrupt
        real_create(self, name, data)

    def rename(self: LocalPlace, old: str, new: str) -> None:
        nonlocal moves
        moves += 1
        if moves > {"after the commit": 0, "between two moves": 2}.get(moment, 1 << 30):
            raise KeyboardInterrupt
        real_rename(self, old, new)

    real_create, real_rename = LocalPlace.create, LocalPlace.rename
    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "create", create)
        patched.setattr(LocalPlace, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            ingest(spark, world.data, path)
    assert any((tmp_path / "lake" / lakes.STAGING).iterdir())
    if moment != "before the commit":
        with pytest.raises(LakeError, match="run ingest again"):
            open_lake_rows(spark, path)
    ingest(spark, world.data, path)
    assert ids_in(spark, path) == sorted(world.truth.published)
    assert not any((tmp_path / "lake" / lakes.STAGING).iterdir())


def write_log(path: Path, pubend: int, batches: list[Batch]) -> None:
    log = SegmentLog.open(path / "pubends" / f"{pubend:016x}", pubend, LogOptions(segment_bytes=1))
    for batch in batches:
        log.append([batch])
    log.close()


def batch_of(first: int, attributes: dict[str, Any]) -> Batch:
    count = len(next(iter(attributes.values())))
    ids = np.empty(count, ID_DTYPE)
    ids["publisher"], ids["broker"] = 3, 9
    ids["tick"] = (EPOCH_MS << 16) + first + np.arange(count)
    return Batch.from_columns(ids.tobytes(), [b"p"] * count, attributes, (EPOCH_MS << 16) + first + np.arange(count))


def test_an_attribute_keeps_its_kinds_over_the_years(spark: SparkSession, tmp_path: Path) -> None:
    """Values of another kind, names that differ in case and names of our own columns get columns of their own, for good."""
    first = [batch_of(1, {"price": [1, 2], "tick": ["a", "b"]}), batch_of(10, {"price": [1.5, None], "Price": ["x", "y"]})]
    write_log(tmp_path / "one", 9 << 8, first)
    path = str(tmp_path / "lake")
    ingest(spark, [str(tmp_path / "one")], path)
    rows = {row["tick"] - (EPOCH_MS << 16): row.asDict() for row in read_lake(spark, path).collect()}
    columns = {(column.name, column.kind): column.column for column in open_lake(spark, path).attributes}
    assert columns["price", "float"] != columns["price", "int"]
    assert rows[1][columns["price", "int"]] == 1
    assert rows[10][columns["price", "float"]] == 1.5
    assert rows[11][columns["Price", "string"]] == "y"
    assert rows[2]["@tick"] == "b"
    assert all_ids(open_lake_rows(spark, path)).distinct().count() == 4


def test_columns_once_given_stay() -> None:
    """New kinds never take a column that is in use, whatever the case of its letters."""
    known = columns_for([], [("a", "int"), ("id", "string")])
    later = columns_for(known, [("A", "int"), ("a", "float"), ("a", "int"), ("a@float", "bool")])
    assert later[: len(known)] == known
    assert known == (AttributeColumn("a", "int", "a"), AttributeColumn("id", "string", "@id"))
    names = [column.column.lower() for column in later]
    assert len(set(names)) == len(names) == 5


def test_what_was_released_or_damaged_before_is_stated(spark: SparkSession, tmp_path: Path) -> None:
    """Segments that are gone or bad are holes of the lake, which the run reports; without leave a bad one ends it by name."""
    data = tmp_path / "one"
    write_log(data, 9 << 8, [batch_of(100 * number, {"a": [1, 2, 3]}) for number in range(1, 6)])
    path = str(tmp_path / "lake")
    segments = sorted((data / "pubends" / f"{9 << 8:016x}").glob("*.segment"))
    kept = {segment: segment.read_bytes() for segment in segments}
    for segment in segments[2:]:
        segment.unlink()
    ingest(spark, [str(data)], path, tolerant=True)
    for segment, content in kept.items():
        segment.write_bytes(content)
    segments[2].unlink()
    segments[0].unlink()
    segments[1].unlink()
    bad = bytearray(kept[segments[3]])
    bad[:8] = b"garbage!"
    segments[3].write_bytes(bad)
    with pytest.raises(CorruptSegmentError, match=segments[3].name):
        ingest(spark, [str(data)], path)
    done = ingest(spark, [str(data)], path, tolerant=True)
    assert next(hole.problem[:8] for hole in done.holes) == "released"
    assert any(segments[3].name in hole.problem for hole in done.holes)
    assert len(open_lake_rows(spark, path).holes) == len(done.holes) == 2
