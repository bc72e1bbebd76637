"""Audits against what happened: exactly what is missing is named, and everything else is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.conftest import SMALL, Opened
from tests.spark.jobs.synthetic import World, some_subscribers

from postroad.errors import UnclaimedPubendError
from postroad.spark.jobs.audit import Audit, audit
from postroad.spark.jobs.expectations import is_temporary
from postroad.spark.jobs.published import open_logs
from postroad.spark.jobs.reconcile import sweep
from postroad.spark.jobs.tracks import open_tracks
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import omitted


def run(spark: SparkSession, data: list[str], **options: Any) -> Audit:
    on_damage: Literal["fail", "skip"] = "skip" if options.get("tolerant") else "fail"
    return audit(open_logs(spark, data), open_tracks(spark, data, on_damage=on_damage), **options)


def named(done: Audit, verdict: str) -> set[tuple[bytes, str]]:
    rows = done.findings.filter(f"verdict = '{verdict}'").collect()
    return {(bytes(row["id"]), row["subscriber"]) for row in rows}


@pytest.mark.parametrize("full", [False, True])
def test_the_books_of_sound_brokers_close_although_one_crashed(mixed: Opened, spark: SparkSession, full: bool) -> None:
    """Nothing is missing or unexpected; what the crash left untold is explained, in counts as by names."""
    truth = mixed.world.truth
    done = audit(open_logs(spark, mixed.world.data), mixed.tracks, full=full)
    found = done.summary
    assert found.closes
    assert (found.missing, found.skipped, found.lost) == (0, 0, 0)
    assert found.unexpected <= 2 + 10 * found.unexpected_by_chance
    assert found.published == len(truth.published)
    unrecorded = {entry for entry in truth.unrecorded if isinstance(entry[2], str)}
    assert found.explained == len(unrecorded) > 20
    assert found.expected == len(truth.delivered) - len(unrecorded)
    if full:
        assert named(done, "explained") == {(item, str(name)) for item, _, name in unrecorded}
    else:
        assert found.open_intervals == 0
    done.close()


@pytest.mark.parametrize("strategy", [Strategy.EXACT, Strategy.BLOOM])
def test_exactly_the_deliveries_that_were_left_out_are_named(spark: SparkSession, tmp_path: Path, strategy: Strategy) -> None:
    """With the tracker's hook for tests, the audit names what the hook left out: quickly and in full, from logs and lake."""
    one_in = 150
    settings = TrackingSettings(strategy, SMALL.m, SMALL.k, SMALL.n, persistence_ms=2_000, few_as_ids=False, omit_one_in=one_in)
    world = World(tmp_path, some_subscribers(8), settings=settings, origins=[1, 5])
    world.run(5_000, rate=120)
    world.finish()
    left_out = {(item, str(name)) for item, _, name in world.truth.delivered if omitted(str(name), item, one_in)}
    assert len(left_out) > 10
    done = run(spark, world.data, full=strategy is Strategy.BLOOM)
    assert named(done, "missing") == left_out
    assert done.summary.missing == len(left_out)
    assert done.summary.unexpected <= 2 + 10 * done.summary.unexpected_by_chance
    assert not done.summary.closes
    assert done.summary.open_intervals > 0
    done.close()


def test_counts_sweep_touching_intervals_together() -> None:
    """Rows of one account that touch in time are one interval, over any borders of batches; others are not."""
    rows = [(1, 0, 3, 5, 0), (1, 2, 6, 0, 4), (1, 7, 7, 1, 0), (2, 0, 0, 2, 2), (2, 0, 9, 1, 0), (2, 9, 9, 0, 1)]
    columns = np.array([(*row, 100 * row[3], -100 * row[4], row[4]) for row in rows]).T

    def batches(size: int) -> list[pa.RecordBatch]:
        names = ["target", "lo", "hi", "expected", "counted", "low", "high", "unlisted"]
        return [
            pa.RecordBatch.from_arrays([pa.array(column[start : start + size]) for column in columns], names=names)
            for start in range(0, len(rows), size)
        ]

    expected = [(1, 0, 6_999, 5, 4, 500, -400, 4), (1, 7_000, 7_999, 1, 0, 100, 0, 0), (2, 0, 9_999, 3, 3, 300, -300, 3)]
    for size in (1, 2, 6):
        swept = pa.Table.from_batches([batch for batch in sweep(batches(size)) if batch.num_rows])
        assert [tuple(row.values()) for row in swept.to_pylist()] == expected


def test_a_pubend_without_its_log_is_refused_or_stated(mixed: Opened, spark: SparkSession) -> None:
    """Tracks that speak of a pubend whose log is not given: an error that says what to add, or a stated gap."""
    some = [path for path in mixed.world.data if not path.endswith("broker5")]
    with pytest.raises(UnclaimedPubendError, match="data directory of broker 5"):
        audit(open_logs(spark, some), mixed.tracks)
    done = audit(open_logs(spark, some), mixed.tracks, tolerant=True)
    assert any("pubend 500" in text for text in done.summary.unread)
    assert done.summary.missing == 0
    done.close()


def test_tracks_that_were_damaged_explain_what_they_should_hold(spark: SparkSession, tmp_path: Path) -> None:
    """A file that cannot be read is named; passing over it explains what its elements held, and the books close."""
    world = World(tmp_path, some_subscribers(4), settings=SMALL, origins=[1])
    world.run(7_000, rate=100)
    world.finish()
    broken = sorted((world.brokers[2].path / "tracks").glob("*.parquet"))[2]
    data = bytearray(broken.read_bytes())
    data[100] ^= 0xFF
    broken.write_bytes(data)
    done = run(spark, world.data, tolerant=True)
    assert done.summary.closes
    assert done.summary.explained > 0
    assert any(hole.broker == 2 and hole.kind == "damaged" and str(broken) in hole.reason for hole in done.summary.track_holes)
    assert {row["reason"].split(":")[0] for row in done.findings.collect()} == {"damaged tracks of broker 2"}
    done.close()


def test_names_of_temporary_subscribers_are_known() -> None:
    """Only a tilde and a digit begin a name that is used once."""
    assert is_temporary("~7.1.3@client")
    assert not is_temporary("~~7")
    assert not is_temporary("orders")
