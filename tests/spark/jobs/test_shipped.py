"""Jobs read what was shipped to an object store, and say the same of it as of the brokers' own files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.object_store import object_store
from tests.spark.jobs.conftest import SMALL
from tests.spark.jobs.synthetic import World, some_subscribers

from postroad import shipping
from postroad.spark.jobs.audit import audit
from postroad.spark.jobs.compact import Options, compact
from postroad.spark.jobs.evidence import Scope, Verdict
from postroad.spark.jobs.ingest import ingest
from postroad.spark.jobs.message_table import open_lake
from postroad.spark.jobs.published import all_ids, open_logs
from postroad.spark.jobs.rates import profile, rates
from postroad.spark.jobs.trace import trace
from postroad.spark.jobs.tracks import open_tracks

pytestmark = pytest.mark.pipeline  # long: selected by `make pipeline`


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("shipped"), some_subscribers(4), settings=SMALL, origins=[1, 5])
    made.run(2_500, rate=60)
    made.finish()
    return made


@pytest.fixture(scope="module")
def archive(spark: SparkSession, world: World) -> Iterator[str]:
    """Ship the brokers to a store that speaks S3; Spark's workers get its address as executors of a cluster do."""
    with object_store() as variables:
        environment = spark.sparkContext.environment
        environment.update(variables)
        assert not shipping.ship(world.data, "s3://archive/brokers", unfinished=True).problems
        yield "s3://archive/brokers"
        for name in variables:
            del environment[name]


def test_an_audit_of_the_archive_gives_the_verdict_of_the_brokers_own_files(
    spark: SparkSession, world: World, archive: str
) -> None:
    """Logs, tracks, their chains and the metadata are read from the store; counts are equal."""
    told = []
    for sources in (world.data, [archive]):
        done = audit(open_logs(spark, sources), open_tracks(spark, sources), scope=Scope(world.now_ms + 1000))
        said = done.summary
        told.append((said.verdict, said.published, said.expected, said.counted, said.intervals, said.doubts))
        done.close()
    assert told[0] == told[1]
    assert told[1][0] is Verdict.CLOSES


def test_traces_and_rates_are_those_of_the_brokers_own_files(spark: SparkSession, world: World, archive: str) -> None:
    """Every message is found with its deliveries; rates are equal."""
    told = []
    for sources in (world.data, [archive]):
        logs = open_logs(spark, sources)
        found = trace(all_ids(logs), open_tracks(spark, sources), ordered=True).summary()
        told.append((found, profile(rates(logs), None)))
    assert told[0] == told[1]
    assert told[1][0].published == len(world.truth.published)


def test_segments_are_ingested_from_the_store(spark: SparkSession, world: World, archive: str, tmp_path: Path) -> None:
    """A cluster that reaches no broker's disk fills a lake."""
    done = ingest(spark, [archive], str(tmp_path / "lake"))
    assert done.rows == len(world.truth.published)
    assert open_lake(spark, str(tmp_path / "lake")).rows == done.rows


def test_tracks_in_the_store_are_compacted_to_a_directory(spark: SparkSession, archive: str, tmp_path: Path) -> None:
    """Fewer files hold the same; nothing in the store changes."""
    rows = compact(spark, [archive], Options(out=str(tmp_path / "compacted")))
    assert not [row["problem"] for row in rows if row["problem"]]
    assert open_tracks(spark, [str(tmp_path / "compacted")]).brokers == open_tracks(spark, [archive]).brokers
