"""Opening tracks: where they are looked for, what of them counts, and what happens when some cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.conftest import Opened
from tests.spark.jobs.synthetic import World, some_subscribers

from postroad.errors import TrackFileError, TracksMissingError
from postroad.spark.jobs.running import plain_errors
from postroad.spark.jobs.tracks import Tracks, open_tracks, track_files
from postroad.tracking.histories.settings import Strategy, TrackingSettings


def entries_of(tracks: Tracks) -> int:
    found = tracks.elements.groupBy().sum("count").first()
    assert found is not None
    return int(found[0] or 0)


def test_sources_may_be_data_directories_parents_globs_and_uris(mixed: Opened, spark: SparkSession) -> None:
    """All ways to name the same files find the same files."""
    parent = Path(mixed.world.data[0]).parent
    wanted = sorted(str(path) for path in parent.glob("*/tracks/*.parquet"))
    assert track_files(mixed.world.data) == wanted
    assert track_files([str(parent)]) == wanted
    assert track_files([f"{parent}/broker*"]) == wanted
    assert track_files([f"{parent}/broker*/tracks/*.parquet"]) == wanted
    assert [path.removeprefix("file:") for path in track_files([f"file://{parent}"])] == wanted


def test_no_tracks_are_an_error_that_names_the_place(spark: SparkSession, tmp_path: Path) -> None:
    """An empty directory is not an empty answer."""
    with pytest.raises(TracksMissingError, match=str(tmp_path)):
        open_tracks(spark, [str(tmp_path)])


def test_copies_of_living_elements_count_once_and_through_a_uri_as_well(spark: SparkSession, tmp_path: Path) -> None:
    """Of an element with copies on disk the newest counts; what Spark reads through a URI is the same."""
    settings = TrackingSettings(strategy=Strategy.BLOOM, m=8_192, k=5, n=150, persistence_ms=1_000, lifetime_min_ms=3_000)
    world = World(tmp_path, some_subscribers(4), settings=settings, origins=[1])
    world.run(4_500, rate=100)
    world.finish(farewell=False)
    truth = world.truth
    files = list(tmp_path.glob("*/tracks/*.open.parquet"))
    assert files
    for sources in (world.data, [f"file://{tmp_path}"]):
        tracks = open_tracks(spark, sources)
        assert entries_of(tracks) == len(truth.published) + len(truth.routed) + len(truth.delivered)
        assert tracks.brokers == {1, 2, 3, 4, 5}
        tracks.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(
        tmp_path_factory.mktemp("plain"), some_subscribers(4), origins=[1], settings=TrackingSettings(persistence_ms=1_000)
    )
    world.run(6_000, rate=60)
    world.finish()
    return world


def copied(world: World, tmp_path: Path) -> tuple[list[str], Path]:
    """Copy a world's tracks; returns the data directories and the tracks of broker 2."""
    for broker in world.brokers.values():
        shutil.copytree(broker.path / "tracks", tmp_path / broker.path.name / "tracks")
    return [str(tmp_path / broker.path.name) for broker in world.brokers.values()], tmp_path / "broker2" / "tracks"


@pytest.mark.parametrize("harm", ["flipped bit", "cut short", "empty", "removed"])
def test_a_bad_file_is_named_or_becomes_a_hole(plain: World, spark: SparkSession, tmp_path: Path, harm: str) -> None:
    """Damage and a missing file end the job with the file's name; passed over, they are stated with broker and time."""
    data, tracks_path = copied(plain, tmp_path)
    victim = sorted(tracks_path.glob("*.parquet"))[3]
    content = bytearray(victim.read_bytes())
    match harm:
        case "flipped bit":
            content[len(content) // 2] ^= 4
            victim.write_bytes(content)
        case "cut short":
            victim.write_bytes(content[: len(content) // 2])
        case "empty":
            victim.write_bytes(b"")
        case _:
            victim.unlink()
    with pytest.raises(TrackFileError, match=victim.name), plain_errors():
        open_tracks(spark, data)
    tracks = open_tracks(spark, data, on_damage="skip")
    holes = [hole for hole in tracks.holes if hole.kind in {"damaged", "missing"}]
    assert [(hole.broker, victim.name in hole.reason) for hole in holes] == [(2, True)]
    assert plain.now_ms - 6_000 - 20_000 < holes[0].from_ms < holes[0].to_ms <= plain.now_ms + 20_000
    tracks.close()
