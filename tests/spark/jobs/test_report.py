"""Rates and reports say what the logs and tracks hold."""

from __future__ import annotations

import re

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.conftest import Opened
from tests.spark.jobs.synthetic import KINDS

from postroad.figures import markdown, page
from postroad.spark.jobs.audit import Summary, audit
from postroad.spark.jobs.published import open_logs
from postroad.spark.jobs.rates import Profile, encode, profile, rates
from postroad.spark.jobs.report import Account, Books, Facts, document, gather
from postroad.spark.jobs.tracks import TrackHole


def test_a_profile_tells_publishers_and_values_apart(mixed: Opened, spark: SparkSession) -> None:
    """Counts per publisher and value add up, peaks bound means, and the file can be read back."""
    truth = mixed.world.truth
    made = profile(rates(open_logs(spark, mixed.world.data), by="kind"), "kind")
    assert sum(entry.messages for entry in made.entries) == len(truth.published)
    counts: dict[tuple[int, str], int] = {}
    for item, (kind, _) in truth.attributes.items():
        key = (int.from_bytes(item[:4], "big"), KINDS[kind])
        counts[key] = counts.get(key, 0) + 1
    assert {(entry.publisher, entry.value): entry.messages for entry in made.entries} == counts
    for entry in made.entries:
        assert entry.peak_1s >= entry.peak_10s >= entry.peak_60s > 0
        assert entry.peak_60s * 60 <= entry.messages
        assert entry.bytes == 20 * entry.messages
    assert msgspec.json.decode(encode(made), type=Profile) == made


def test_a_report_shows_traffic_latency_storage_and_links(mixed: Opened, spark: SparkSession) -> None:
    """Its numbers are those of the world: messages per pubend, latencies of the publishers, what came over each link."""
    truth = mixed.world.truth
    done = audit(open_logs(spark, mixed.world.data), mixed.tracks)
    facts = gather(open_logs(spark, mixed.world.data), mixed.tracks, done)
    assert sum(row[2] for row in facts.traffic) == len(truth.published)
    assert {pubend: found.total for pubend, found in facts.latencies.items()} == {
        pubend: sum(1 for item in truth.published if item[7] == pubend >> 8) for pubend in (0x100, 0x500)
    }
    for found in facts.latencies.values():
        assert 0 <= found.percentile(0) <= found.percentile(50) <= found.percentile(100) < 50
    assert {row[1] for row in facts.stored} == {"exact", "async", "bloom"}
    text = markdown(document(facts))
    assert "## Commit latency" in text
    assert "## Links" in text
    routed = sum(1 for _, broker, upstream in truth.routed if (broker, upstream) == (2, 1))
    assert f"| 1 | 2 | {routed:,} |" in text
    assert text.index("## Verdict") < text.index("## Overlay") < text.index("## Traffic")
    assert "The books close." in text
    of_quiet = len([1 for _, _, name in truth.delivered if name == "quiet"])
    assert f"| quiet | 3 | kind IN ('quote') AND value >= 9 | {of_quiet:,} | {of_quiet:,} | closes |" in text
    assert f"| 1 | 2 | {routed:,} |" in text[text.index("## Overlay") : text.index("## Traffic")]
    assert re.search(r"\| pubend 100 \| 2023-11-14 22:13:2\d \|", text)


def test_a_report_of_a_thousand_subscribers_begins_with_those_that_miss_messages() -> None:
    """Twenty rows are seen, the others are folded away; what is missing is named."""
    accounts = tuple(Account(f"sub{number}", 1, "price > 1", 10, 10, 0) for number in range(999))
    bad = Account("unlucky", 2, "", 10, 9, 1)
    holes = (TrackHole(1, "crash", 0, 1, "incarnation 1 did not shut down cleanly"),)
    found = Summary(1, 10_000, 9_999, 5, 1, 1, 0, 0, 0.0, 0, 0, 0, 0, False, holes, ("pubend 100: released",), 1)
    books = Books(found, (bad, *accounts), ("missing: 1-2-3-4, unlucky",))
    made = page(document(Facts((), 1, {}, (), (), {}, {}, books)))
    assert '<p class="bad">The books do not close.' in made
    assert made.index("unlucky</td><td class=number>2</td><td>(everything)") < made.index("sub0<") < made.index("<details>")
    assert "<summary>980 more</summary>" in made
    assert "pubend 100: released" in made


def test_a_report_of_logs_alone_is_shorter(mixed: Opened, spark: SparkSession) -> None:
    """Without tracks there is traffic and latency only."""
    titles = [section.title for section in document(gather(open_logs(spark, mixed.world.data), None)).sections]
    assert titles == ["Traffic", "Commit latency"]


@pytest.mark.parametrize("by", [None, "no such attribute"])
def test_without_a_value_a_publisher_is_one_entry(mixed: Opened, spark: SparkSession, by: str | None) -> None:
    """An attribute that messages do not have tells nothing apart."""
    made = profile(rates(open_logs(spark, mixed.world.data), by=by), by)
    assert len(made.entries) == 6
    assert all(entry.value is None for entry in made.entries)
