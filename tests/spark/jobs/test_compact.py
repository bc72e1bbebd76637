"""Compaction: fewer bytes, the same answers, and nothing lost or doubled on the way."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.synthetic import EPOCH_MS, World, some_subscribers

from postroad.spark.jobs.compact import Options, compact, join
from postroad.spark.jobs.trace import entries, trace
from postroad.spark.jobs.tracks import Tracks, open_tracks
from postroad.tracking.files import merging
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.tracking.histories.events import Published
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker

SETTINGS = TrackingSettings(strategy=Strategy.BLOOM, persistence_ms=1_000, few_as_ids=False)


@pytest.fixture(scope="module")
def low_rate(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A low rate and a short T_p: many blooms with few ids each."""
    settings = dict.fromkeys(range(1, 6), SETTINGS) | {3: TrackingSettings(persistence_ms=1_000)}
    world = World(tmp_path_factory.mktemp("low"), some_subscribers(6), settings=settings, origins=[1])
    world.run(40_000, rate=15, step_ms=250)
    world.finish()
    return world


def found_in(spark: SparkSession, tracks: Tracks, ids: list[bytes]) -> set[tuple[Any, ...]]:
    frame = spark.createDataFrame([(bytearray(item),) for item in ids], "id binary")
    rows = entries(trace(frame, tracks).traces).collect()
    return {(bytes(row["id"]), row["kind"], row["broker"], row["peer"], row["subscriber"]) for row in rows}


def entries_of(tracks: Tracks) -> int:
    found = tracks.elements.groupBy().sum("count").first()
    assert found is not None
    return int(found[0])


def test_bytes_fall_five_times_and_answers_stay(low_rate: World, spark: SparkSession, tmp_path: Path) -> None:
    """After a low-rate run the tracks shrink at least fivefold, and every trace is what it was."""
    before = open_tracks(spark, low_rate.data)
    rows = compact(spark, low_rate.data, Options(out=str(tmp_path / "out")))
    assert not [row["problem"] for row in rows if row["problem"]]
    assert sum(row["bytes"] for row in rows) >= 5 * sum(row["bytes_left"] for row in rows)
    after = open_tracks(spark, [str(tmp_path / "out")])
    assert entries_of(after) == entries_of(before)
    assert after.records.filter("kind = 'span'").count() < before.records.filter("kind = 'span'").count()
    ids = low_rate.truth.published
    found = found_in(spark, after, ids)
    assert found == found_in(spark, before, ids)
    assert {(each[0], each[2], each[4]) for each in found if each[1] == "subscriber"} == low_rate.truth.delivered
    before.close()
    after.close()


def test_in_place_a_crash_before_the_removal_doubles_nothing(low_rate: World, spark: SparkSession, tmp_path: Path) -> None:
    """Replaced files that still lie beside the compacted one do not count, for jobs and for a broker that starts there."""
    path = tmp_path / "broker2"
    shutil.copytree(low_rate.brokers[2].path / "tracks", path / "tracks")
    originals = {file: file.read_bytes() for file in (path / "tracks").glob("*.parquet")}
    before = open_tracks(spark, [str(path)])
    count = entries_of(before)
    before.close()
    compact(spark, [str(path)], Options())
    assert len(list((path / "tracks").glob("*.parquet"))) < len(originals) / 4
    for file, content in originals.items():
        if not file.exists():
            file.write_bytes(content)  # as if the process had been killed before it removed them
    tracks = open_tracks(spark, [str(path)])
    assert entries_of(tracks) == count
    tracks.close()
    store = TrackStore.open(path / "tracks", 2, 2, now_ms=low_rate.now_ms + 1_000)
    assert not store.damaged
    rows = compact(spark, [str(path)], Options())
    assert not [row["problem"] for row in rows if row["problem"]]
    again = open_tracks(spark, [str(path)])
    assert entries_of(again) == count
    again.close()


def test_files_that_the_broker_merged_are_not_compacted_again(
    low_rate: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker leaves the files that it merged for a while: their rows count once, whatever is compacted."""
    path = tmp_path / "broker2" / "tracks"
    shutil.copytree(low_rate.brokers[2].path / "tracks", path)
    before = open_tracks(spark, [str(path.parent)])
    count = entries_of(before)
    before.close()
    settled = [file for file in path.glob("*.parquet") if ".open." not in file.name]
    monkeypatch.setattr(merging, "MERGE_FILES", len(settled) // 2)
    store = TrackStore.open(path, 2, 2, now_ms=low_rate.now_ms + 1_000)
    store.retain(low_rate.now_ms + 10_000_000)
    assert list(path.glob("*.merged.parquet"))
    assert all(file.exists() for file in settled)
    rows = compact(spark, [str(path.parent)], Options())
    assert not [row["problem"] for row in rows if row["problem"]]
    assert sum(row["files"] for row in rows) < len(settled)
    after = open_tracks(spark, [str(path.parent)])
    assert entries_of(after) == count
    after.close()


def test_expired_elements_are_dropped_and_the_loss_is_stated(low_rate: World, spark: SparkSession, tmp_path: Path) -> None:
    """What ends before the given time is gone, and a trace of it says that it may be incomplete."""
    limit = EPOCH_MS + 20_000
    compact(spark, low_rate.data[:1], Options(expire_ms=limit, out=str(tmp_path / "out")))
    tracks = open_tracks(spark, [str(tmp_path / "out")])
    assert entries_of(tracks) > 0
    assert tracks.elements.filter(f"to_ms < {limit}").count() == 0
    assert any(hole.kind == "dropped" and hole.to_ms == limit - 1 for hole in tracks.holes)
    tracks.close()


def test_a_damaged_file_is_left_alone_and_named(low_rate: World, spark: SparkSession, tmp_path: Path) -> None:
    """Compaction of a directory with a damaged file touches nothing of that run."""
    path = tmp_path / "broker2"
    shutil.copytree(low_rate.brokers[2].path / "tracks", path / "tracks")
    victim = sorted((path / "tracks").glob("*.parquet"))[5]
    victim.write_bytes(victim.read_bytes()[:-3])
    names = sorted(file.name for file in (path / "tracks").glob("*.parquet"))
    rows = compact(spark, [str(path)], Options())
    assert victim.name in " ".join(row["problem"] for row in rows if row["problem"])
    assert sorted(file.name for file in (path / "tracks").glob("*.parquet")) == names


def test_joined_elements_keep_to_their_capacity_and_their_history() -> None:
    """Only elements of one history and shape are joined, in order of time, and never beyond what they may hold."""
    tracker_settings = TrackingSettings(strategy=Strategy.BLOOM, m=4_096, k=4, n=100, persistence_ms=1_000, few_as_ids=False)
    world_elements = []
    for broker in (1, 2):
        tracker = Tracker(broker, 1, tracker_settings, wall_ms=0)
        world_elements += _elements_of(tracker, broker)
    joined = join(world_elements)
    assert sum(element.count for element in joined) == sum(element.count for element in world_elements)
    assert len(joined) < len(world_elements)
    assert all(element.count <= 100 for element in joined)
    for key in {element.key for element in joined}:
        mine = sorted((element for element in joined if element.key == key), key=lambda element: element.from_ms)
        assert all(before.to_ms < after.from_ms for before, after in itertools.pairwise(mine))


def _elements_of(tracker: Tracker, broker: int) -> list[Any]:

    found: list[Any] = []
    for second in range(20):
        ids = np.empty(30, ID_DTYPE)
        ids["publisher"], ids["broker"] = 1, broker
        ids["tick"] = (np.arange(30, dtype=np.uint64) + np.uint64(second * 1_000 + 1)) << np.uint64(16)
        tracker.take([Published(broker << 8, ids.view(np.dtype((np.void, 16))))], second * 1_000 + 500)
        found += tracker.flush(second * 1_000 + 1_000).closed
    return found
