"""Traces of all messages against what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.conftest import SMALL, Opened
from tests.spark.jobs.synthetic import EPOCH_MS, Entry, World, some_subscribers

from postroad.spark.jobs import bucketed_search
from postroad.spark.jobs.bucketed_search import NumberedHistory, histories_of, plan
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
    allowed = 5 + 10 * traced.expected_false_positives()
    assert {bytes(row["id"]) for row in rows if row["kind"] == "publisher"} == set(truth.published)
    for found, expected in ((routed(rows), recorded[0]), (delivered(rows), recorded[1])):
        assert expected <= found
        assert len(found - expected) <= allowed
    assert len(truth.unrecorded) > 50, "the crash should have cost something"
    traced.close()


def test_what_a_crash_may_have_cost_is_said(mixed: Opened, spark: SparkSession) -> None:
    """Messages that a crash took from the tracks lie in a hole of that broker, and what is behind it is not isolated."""
    lost = sorted({entry[0] for entry in mixed.world.truth.unrecorded})
    behind = {entry[0] for entry in mixed.world.truth.routed if entry[1] == 5 and entry[2] == 4} & set(lost)
    assert behind, "broker 5 got some of them from broker 4"
    traced = trace(mixed.ids(spark, lost), mixed.tracks, keep=False)
    rows = {bytes(row["id"]): row for row in traced.traces.collect()}
    for item in lost:
        assert any(hole["broker"] == 4 and hole["kind"] == "crash" for hole in rows[item]["holes"])
    for item in behind:
        edge = next(edge for edge in rows[item]["path"] if edge["broker"] == 5)
        assert (edge["upstream"], edge["isolated"]) == (4, False)


def test_hops_count_from_the_origin_and_forwarding_is_told(mixed: Opened, spark: SparkSession) -> None:
    """An edge says how many hops from the origin it ends; a broker that keeps histories per neighbour says whom it sent to."""
    early = [item for item in mixed.world.truth.published if MessageId.from_bytes(item).milliseconds < EPOCH_MS + 3_000]
    rows = trace(mixed.ids(spark, early), mixed.tracks, keep=False).traces.collect()
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
    rows = trace(mixed.ids(spark, [known, stranger, known]), mixed.tracks, keep=False).traces.collect()
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
    expected = traced.expected_false_positives()
    assert expected > 200
    assert len(rows) == pytest.approx(expected, rel=0.25)
    false_paths = [row for row in rows if row["kind"] in {"routing", "subscriber"}]
    assert sum(row["isolated"] for row in false_paths) > 0.8 * len(false_paths)
    traced.close()
    tracks.close()


def test_narrow_and_wide_histories_are_searched_in_passes_of_their_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elements of seconds and elements of minutes: ids walk through both passes, and hits of the first are kept."""
    monkeypatch.setattr(bucketed_search, "GROUP_BYTES", 1 << 15)
    slow = TrackingSettings(strategy=Strategy.EXACT, persistence_ms=60_000)
    settings = {number: slow if number in {3, 4} else SMALL for number in range(1, 6)}
    world = World(tmp_path, some_subscribers(6), settings=settings, origins=[1])
    world.run(40_000, rate=20, step_ms=1_000)
    world.finish()
    tracks = open_tracks(spark, world.data)
    assert len(plan(histories_of(tracks.elements))) > 1
    ids = spark.createDataFrame([(bytearray(item),) for item in world.truth.published], "id binary")
    rows = entries(trace(ids, tracks, keep=False).traces).collect()
    assert (routed(rows), delivered(rows)) == (world.truth.routed, world.truth.delivered)
    tracks.close()


def history(number: int, mean_ms: int, size: int = 1 << 20) -> NumberedHistory:
    return NumberedHistory(number, 1, "routing", 1, 2, "", 10, 100, size, size * mean_ms, 0, 86_400_000)


def test_every_history_is_in_one_pass_with_few_copies() -> None:
    """A plan covers all histories once, and no history is copied many times over."""
    histories = [history(number, 10 ** (number % 8)) for number in range(40)]
    made = plan(histories)
    assert sorted(each.number for one in made for each in one.histories) == list(range(40))
    assert all(each.mean_ms <= (bucketed_search.COPIES_MAX - 1) * one.width_ms for one in made for each in one.histories)
    assert len(made) <= 5


def test_a_plan_of_nothing_is_empty() -> None:
    """No histories, no passes."""
    assert plan([]) == []
