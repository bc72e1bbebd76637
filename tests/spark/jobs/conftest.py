"""Worlds that several tests look at; nobody changes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.jobs.synthetic import Subscriber, World, some_subscribers

from postroad.spark.jobs.tracks import Tracks, open_tracks
from postroad.tracking.histories.settings import Strategy, TrackingSettings

SMALL = TrackingSettings(strategy=Strategy.BLOOM, m=16_384, k=12, n=500, persistence_ms=2_000, few_as_ids=False)
MIXED = {
    1: TrackingSettings(strategy=Strategy.EXACT, persistence_ms=2_000, ids_max=300),
    2: SMALL,
    3: TrackingSettings(strategy=Strategy.ASYNC, persistence_ms=3_000),
    4: TrackingSettings(strategy=Strategy.BLOOM, m=40_000, k=9, n=800, persistence_ms=1_500, lifetime_min_ms=4_000),
    5: TrackingSettings(strategy=Strategy.BLOOM, m=65_536, k=16, n=2_521, persistence_ms=2_500, per_neighbour=True),
}


@dataclass(frozen=True)
class Opened:
    """A world with its tracks."""

    world: World
    tracks: Tracks

    def ids(self, spark: SparkSession, wanted: list[bytes] | None = None) -> DataFrame:
        items = self.world.truth.published if wanted is None else wanted
        return spark.createDataFrame([(bytearray(item),) for item in items], "id binary")


@pytest.fixture(scope="session")
def mixed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Every broker with another strategy; broker 4 crashes between two flushes; one subscriber gets little."""
    subscribers = [*some_subscribers(10), Subscriber("quiet", 3, (0,), 9)]
    world = World(tmp_path_factory.mktemp("mixed"), subscribers, settings=MIXED, origins=[1, 5])
    world.run(6_700, rate=120)
    world.crash(4)
    world.run(900, rate=120)
    world.restart(4)
    world.run(4_000, rate=120)
    world.finish()
    tracks = open_tracks(spark, world.data)
    yield Opened(world, tracks)
    tracks.close()
