"""Traces of all messages against what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.conftest import SMALL, Opened
from tests.spark.jobs.synthetic import EPOCH_MS, Entry, World, some_subscribers

from postroad.errors import TrackFileError
from postroad.spark.jobs import element_files, search
from postroad.spark.jobs.arrow import id_column
from postroad.spark.jobs.element_files import ElementFiles
from postroad.spark.jobs.histories import histories_of
from postroad.spark.jobs.paths import TraceRows
from postroad.spark.jobs.running import plain_errors
from postroad.spark.jobs.trace import entries, trace
from postroad.spark.jobs.tracks import open_tracks
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.types import MessageId


def routed(rows: list[Any]) -> set[Entry]:
    return {(bytes(row["id"]), row["broker"], row["peer"]) for row in rows if row["kind"] == "routing"}


def delivered(rows: list[Any]) -> set[Entry]:
    return {(bytes(row["id"]), row["broker"], row["subscriber"]) for row in rows if row["kind"] == "subscriber"}


def test_traces_of_mixed_strategies_are_what_happened(mixed: Opened, spark: SparkSession) -> None:
    """Exact, async and blooms of three shapes side by side: every edge and every delivery, and hardly anything else."""
    truth = mixed.world.truth
    traced = trace(mixed.ids(spark), mixed.tracks)
    rows = entries(traced.traces).collect()
    recorded = truth.routed - truth.unrecorded, truth.delivered - truth.unrecorded
    allowed = 5 + 10 * traced.summary().by_chance
    assert {bytes(row["id"]) for row in rows if row["kind"] == "publisher"} == set(truth.published)
    for found, expected in ((routed(rows), recorded[0]), (delivered(rows), recorded[1])):
        assert expected <= found
        assert len(found - expected) <= allowed
    assert len(truth.unrecorded) > 50, "the crash should have cost something"


def test_what_a_crash_may_have_cost_is_said(mixed: Opened, spark: SparkSession) -> None:
    """Messages that a crash took from the tracks lie in a hole of that broker, and what is behind it is not isolated."""
    lost = sorted({entry[0] for entry in mixed.world.truth.unrecorded})
    behind = {entry[0] for entry in mixed.world.truth.routed if entry[1] == 5 and entry[2] == 4} & set(lost)
    assert behind, "broker 5 got some of them from broker 4"
    traced = trace(mixed.ids(spark, lost), mixed.tracks)
    rows = {bytes(row["id"]): row for row in traced.traces.collect()}
    for item in lost:
        assert any(hole["broker"] == 4 and hole["kind"] == "crash" for hole in rows[item]["holes"])
    for item in behind:
        edge = next(edge for edge in rows[item]["path"] if edge["broker"] == 5)
        assert (edge["upstream"], edge["isolated"]) == (4, False)


def test_hops_count_from_the_origin_and_forwarding_is_told(mixed: Opened, spark: SparkSession) -> None:
    """An edge says how many hops from the origin it ends; a broker that keeps histories per neighbour says whom it sent to."""
    early = [item for item in mixed.world.truth.published if MessageId.from_bytes(item).milliseconds < EPOCH_MS + 3_000]
    rows = trace(mixed.ids(spark, early), mixed.tracks).traces.collect()
    parents = mixed.world.parents
    for row in rows:
        for edge in row["path"]:
            way, broker = 0, edge["broker"]
            while broker != row["origin"]:
                way, broker = way + 1, parents[row["origin"]][broker]
            assert edge["isolated"] or edge["hops"] == way
    forwarded = {(bytes(row["id"]), each["neighbour"]) for row in rows for each in row["forwarded"] if each["broker"] == 5}
    expected = {(item, broker) for item, broker, upstream in mixed.world.truth.routed if upstream == 5 and item in set(early)}
    assert expected <= forwarded


def test_an_id_nobody_published_is_found_nowhere(mixed: Opened, spark: SparkSession) -> None:
    """Unknown ids, of a known broker or of none, come back once each, and empty; one that is asked for twice comes back once."""
    known = bytes(MessageId.make(7, 1, EPOCH_MS + 2_000, 65_000))
    stranger = bytes(MessageId.make(7, 99, EPOCH_MS + 2_000))
    rows = trace(mixed.ids(spark, [known, stranger, known]), mixed.tracks).traces.collect()
    assert sorted(bytes(row["id"]) for row in rows) == sorted([known, stranger])
    for row in rows:
        assert (row["published"], row["path"], row["subscribers"]) == (False, [], [])
        assert row["origin"] == MessageId.from_bytes(bytes(row["id"])).broker


def test_false_positives_are_as_many_as_expected_and_mostly_isolated(spark: SparkSession, tmp_path: Path) -> None:
    """With an error of some percent per history, the false entries of unknown ids are about as many as the traces say."""
    rough = TrackingSettings(strategy=Strategy.BLOOM, m=4_096, k=4, n=700, persistence_ms=2_000, few_as_ids=False)
    world = World(tmp_path, some_subscribers(8), settings=rough, origins=[1])
    world.run(6_000, rate=400)
    world.finish()
    tracks = open_tracks(spark, world.data)
    low, high = EPOCH_MS + 500, EPOCH_MS + 5_500
    strangers = [bytes(MessageId.make(7, 1, low + number * (high - low) // 4_000, 60_000)) for number in range(4_000)]
    traced = trace(spark.createDataFrame([(bytearray(item),) for item in strangers], "id binary"), tracks)
    rows = entries(traced.traces).collect()
    expected = traced.summary().by_chance
    assert expected > 200
    assert len(rows) == pytest.approx(expected, rel=0.25)
    false_paths = [row for row in rows if row["kind"] in {"routing", "subscriber"}]
    assert sum(row["isolated"] for row in false_paths) > 0.8 * len(false_paths)
    tracks.close()


def test_small_chunks_and_tables_change_nothing(mixed: Opened, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids searched a few at a time, and none of the files kept, give the same traces; files are read again and again."""
    tracks, overlay = mixed.tracks, trace(mixed.ids(spark), mixed.tracks).overlay
    ids = np.array([np.void(item) for item in sorted(mixed.world.truth.published)], "V16")
    batch = pa.record_batch([id_column(ids)], names=["id"])
    run = search._Search(ElementFiles(tracks.files, histories_of(tracks.elements)), TraceRows(overlay))
    whole = rounded(pa.Table.from_batches(run([batch])).to_pylist())
    monkeypatch.setattr(search, "CHUNK_IDS", 700)
    monkeypatch.setattr(search, "CELLS_MAX", 8_000)
    monkeypatch.setattr(element_files, "CACHE_BYTES", 0)
    assert rounded(pa.Table.from_batches(run([batch])).to_pylist()) == whole
    assert {row["id"] for row in whole} == set(mixed.world.truth.published)


def rounded(value: Any) -> Any:
    """Round all numbers in a row: probabilities are sums, and these depend on their order in the last digits."""
    if isinstance(value, float):
        return round(value, 12)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def test_the_three_forms_of_a_trace_agree(mixed: Opened, spark: SparkSession) -> None:
    """Numbers of histories stand for the same entries as the full traces; the summary counts them."""
    traced = trace(mixed.ids(spark), mixed.tracks)
    full, short, told = traced.traces.collect(), traced.found.collect(), traced.summary()
    names = {row["history"]: row for row in traced.histories.collect()}
    shown = {bytes(row["id"]): row for row in short}
    assert (told.ids, told.published) == (len(full), sum(row["published"] for row in full))
    assert told.hops == sum(len(row["path"]) for row in full)
    assert told.deliveries == sum(len(row["subscribers"]) for row in full)
    assert told.in_holes == sum(bool(row["holes"]) for row in full)
    assert told.isolated == sum(each["isolated"] for row in full for each in (*row["path"], *row["subscribers"]))
    for row in full:
        found = shown.pop(bytes(row["id"]))
        hits = [names[number] for number in found["hits"]]
        alone = [names[number] for number in found["isolated"]]
        assert found["published"] == row["published"]
        routed = {(hit["broker"], hit["peer"]) for hit in hits if hit["kind"] == "routing"}
        assert routed == {(edge["broker"], edge["upstream"]) for edge in row["path"]}
        assert [hit["subscriber"] for hit in hits if hit["kind"] == "subscriber"] == [
            each["subscriber"] for each in row["subscribers"]
        ]
        assert len(alone) == sum(each["isolated"] for kind in ("path", "subscribers", "forwarded") for each in row[kind])
    assert not shown


def test_copies_of_unfinished_elements_are_searched_though_they_vanish(spark: SparkSession, tmp_path: Path) -> None:
    """What a running broker has not finished was read with the index; then the broker may remove it."""
    settings = TrackingSettings(strategy=Strategy.BLOOM, m=8_192, k=9, n=150, persistence_ms=1_000, lifetime_min_ms=3_000)
    world = World(tmp_path, some_subscribers(4), settings=settings, origins=[1])
    world.run(4_500, rate=100)
    world.finish(farewell=False)
    tracks = open_tracks(spark, [tmp_path.as_uri()])
    copies = list(tmp_path.glob("*/tracks/*.open.parquet"))
    assert copies
    for file in copies:
        file.unlink()
    asked = [*world.truth.published, world.truth.published[-1], bytes(MessageId.make(7, 1, EPOCH_MS - 1))]
    ids = spark.createDataFrame([(bytearray(item),) for item in asked], "id binary")
    traced = trace(ids, tracks)
    rows = entries(traced.traces).collect()
    assert world.truth.routed <= routed(rows)
    assert world.truth.delivered <= delivered(rows)
    assert {bytes(row["id"]) for row in rows if row["kind"] == "publisher"} == set(world.truth.published)
    assert traced.summary().ids == len(set(asked))
    tracks.close()


def test_a_file_that_changes_or_vanishes_under_a_job_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    """Never a trace without it."""
    world = World(tmp_path, some_subscribers(3), settings=SMALL, origins=[1])
    world.run(3_000, rate=50)
    world.finish()
    tracks = open_tracks(spark, world.data)
    ids = spark.createDataFrame([(bytearray(item),) for item in world.truth.published], "id binary")
    file, other = [Path(each.path) for each in tracks.files if each.broker == 1 and each.low_ms <= each.high_ms][:2]
    former = file.read_bytes()
    file.write_bytes(other.read_bytes())
    with pytest.raises(TrackFileError, match="it was replaced while the job was reading"), plain_errors():
        trace(ids, tracks).summary()
    damaged = bytearray(former)
    damaged[len(damaged) // 3] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(TrackFileError, match="checksum"), plain_errors():
        trace(ids, tracks).summary()
    file.unlink()
    with pytest.raises(TrackFileError, match="it was removed while the job was reading"), plain_errors():
        trace(ids, tracks).summary()
    tracks.close()
