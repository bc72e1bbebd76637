"""`report`: traffic, latencies, storage and links of an overlay, from its logs and tracks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.broker.stats import Histogram
from postroad.core.protocol.packets import pubend_broker
from postroad.drawing import Edge, Graph
from postroad.figures import Cell, Document, Plot, Section, Table
from postroad.spark.jobs.arrow import array, record_batch
from postroad.spark.jobs.audit import Audit, Summary
from postroad.spark.jobs.evidence import Verdict
from postroad.spark.jobs.histories import NumberedHistory, histories_of
from postroad.spark.jobs.published import Numbered, Published
from postroad.spark.jobs.rates import payload_sizes
from postroad.spark.jobs.tracks import Tracks
from postroad.spark.jobs.verdicts.continuing import named_missing
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.types import COUNTER_BITS

POINTS: Final = 120  # of a series over time
LATENCY_MS_MAX: Final = 600_000  # beyond it, values are counted as this
SUBSCRIBERS_SHOWN_MAX: Final = 100
SHOWN: Final = 20  # rows of a table that are seen at once
SERIES_MAX: Final = 8  # in one plot
WIDTHS_S: Final = (1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800, 2_592_000)
_TRAFFIC: Final = "pubend long, second long, latency long, messages long, bytes long"
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report is made of, and experiments as well."""

    traffic: tuple[tuple[int, int, int, int], ...]  # pubend, second the bucket begins with, messages, bytes
    width_s: int
    latencies: dict[int, Histogram]  # by pubend, in ms
    histories: tuple[NumberedHistory, ...]
    stored: tuple[tuple[Any, ...], ...]  # broker, strategy, elements, entries, bytes
    file_bytes: dict[int, int]  # by broker
    delays: dict[tuple[int, str], Histogram]  # by broker and kind of history
    books: Books | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """What one subscriber was promised and was sent, of all origins together."""

    subscriber: str
    broker: int  # where it was last
    filter: str
    expected: int
    counted: int
    open_intervals: int


@dataclass(frozen=True, slots=True)
class Books:
    """What an audit says, for a report."""

    summary: Summary
    accounts: tuple[Account, ...]
    named: tuple[str, ...]  # missing messages


def close_books(done: Audit) -> Books:
    """Take from an audit what a report shows."""
    claims = done.outcome.claims
    where: dict[str, tuple[int, str]] = {}
    for claim, broker in sorted(zip(claims.claims, claims.broker_of, strict=True), key=lambda each: each[0].hi):
        where[claims.targets[claim.target].subscriber] = (broker, claims.filters[claim.filter])
    own = done.counts.filter(F.col("kind") == "subscriber").groupBy("subscriber")
    sums = (F.sum(column).alias(name) for name, column in (("expected", "expected"), ("counted", "counted")))
    rows = own.agg(*sums, F.sum((~F.col("closes")).cast("long")).alias("open")).collect()
    accounts = [
        Account(row["subscriber"], *where.get(row["subscriber"], (0, "")), row["expected"], row["counted"], row["open"])
        for row in rows
    ]
    accounts.sort(key=lambda each: (-each.open_intervals, -abs(each.expected - each.counted), each.subscriber))
    return Books(done.summary, tuple(accounts), tuple(named_missing(done)))


def gather(published: Published | None, tracks: Tracks | None, done: Audit | None = None) -> Facts:
    """Run the queries of a report; `done` is an audit of the same."""
    traffic: tuple[tuple[int, int, int, int], ...] = ()
    latencies: dict[int, Histogram] = {}
    width = 1
    if published is not None:
        seconds = published.map(_traffic_kernel, _TRAFFIC, (), payloads=True).persist(StorageLevel.MEMORY_AND_DISK)
        width = _width(seconds)
        traffic, latencies = _traffic(seconds, width), _latencies(seconds)
        seconds.unpersist()
    if tracks is None:
        return Facts(traffic, width, latencies, (), (), {}, {})
    sizes: dict[int, int] = {}
    for file in tracks.files:
        sizes[file.broker] = sizes.get(file.broker, 0) + file.size
    histories, costs, delays = histories_of(tracks.elements), _describe_costs(tracks, sizes), _delays(tracks)
    books = None if done is None else close_books(done)
    return Facts(traffic, width, latencies, histories, costs, sizes, delays, books)


def _traffic_kernel(rows: Numbered) -> Iterator[pa.RecordBatch]:
    """Count messages and bytes per second and per latency from the publisher's clock to the pubend's decision."""
    for pubend, batch in rows:
        if not len(batch):
            continue
        ticked = (batch.ticks() >> np.uint64(COUNTER_BITS)).astype(np.int64)
        made = (batch.ids().view(ID_DTYPE)["tick"].astype(np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)
        latency = np.clip(ticked - made, -LATENCY_MS_MAX, LATENCY_MS_MAX)
        found, place = np.unique(np.stack([ticked // 1000, latency], axis=1), axis=0, return_inverse=True)
        place = place.reshape(-1)
        size = payload_sizes(batch.payloads())
        arrays: list[pa.Array[Any]] = [
            *(array(np.full(len(found), pubend, np.int64)), array(found[:, 0]), array(found[:, 1])),
            array(np.bincount(place, minlength=len(found))),
            array(np.bincount(place, size, len(found)).astype(np.int64)),
        ]
        yield record_batch(arrays, names=["pubend", "second", "latency", "messages", "bytes"])


def _width(seconds: DataFrame) -> int:
    found = seconds.agg(F.max("second") - F.min("second") + 1).first()
    spent = int(found[0] or 1) if found is not None else 1
    return next((width for width in WIDTHS_S if spent / width <= POINTS), WIDTHS_S[-1])


def _traffic(seconds: DataFrame, width: int) -> tuple[tuple[int, int, int, int], ...]:
    bucket = (F.floor(F.col("second") / width) * width).alias("bucket")
    rows = seconds.groupBy("pubend", bucket).agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")).collect()
    return tuple(sorted((int(r[0]), int(r[1]), int(r[2]), int(r[3])) for r in rows))


def _latencies(seconds: DataFrame) -> dict[int, Histogram]:
    counts: dict[int, list[tuple[float, int]]] = {}
    for row in seconds.groupBy("pubend", "latency").agg(F.sum("messages").alias("messages")).collect():
        counts.setdefault(int(row["pubend"]), []).append((float(row["latency"]), int(row["messages"])))
    return {pubend: Histogram.of_counts(found) for pubend, found in counts.items()}


def _describe_costs(tracks: Tracks, sizes: dict[int, int]) -> tuple[tuple[Any, ...], ...]:
    """Say what each strategy costs: blooms their bits, the ids that are kept as they are the rest of the files."""
    rows = (
        tracks.elements.groupBy("broker", "strategy")
        .agg(F.count("*").alias("elements"), F.sum("count").alias("entries"), F.sum("size").alias("size"))
        .collect()
    )
    blooms: dict[int, int] = {}
    others: dict[int, int] = {}
    for row in rows:
        where = blooms if row["strategy"] == "bloom" else others
        where[row["broker"]] = where.get(row["broker"], 0) + int(row["size"])
    stored = []
    for row in rows:
        broker, size = row["broker"], int(row["size"])
        if row["strategy"] != "bloom":
            size = round(max(sizes.get(broker, 0) - blooms.get(broker, 0), 0) * size / others[broker])
        stored.append((broker, row["strategy"], int(row["elements"]), int(row["entries"]), size))
    return tuple(sorted(stored))


def _delays(tracks: Tracks) -> dict[tuple[int, str], Histogram]:
    """How much later than its oldest timestamp an element began: for one message in each element, an upper bound of its way."""
    delay = F.least(F.col("opened_ms") - F.col("from_ms"), F.lit(LATENCY_MS_MAX))
    rows = (
        tracks.elements.filter(F.col("from_ms") <= F.col("to_ms"))
        .groupBy("broker", "kind", delay.alias("delay"))
        .agg(F.count("*").alias("elements"))
        .collect()
    )
    counts: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for row in rows:
        counts.setdefault((row["broker"], row["kind"]), []).append((float(row["delay"]), int(row["elements"])))
    return {key: Histogram.of_counts(found) for key, found in counts.items()}


# --- the document ---------------------------------------------------------------------------------------------------------


def document(facts: Facts) -> Document:
    """Arrange facts for a reader: the verdict first, then what flowed where, then the costs."""
    sections = []
    if facts.books is not None:
        sections += [_verdict_section(facts.books)]
    if facts.histories:
        sections += [_overlay_section(facts)]
    if facts.traffic:
        sections += [_traffic_section(facts), _latency_section(facts)]
    if facts.histories:
        sections += [_storage_section(facts), _link_section(facts)]
        if facts.books is None:
            sections += [_subscriber_section(facts)]
    return Document("Postroad: report", _period(facts), tuple(sections))


_VERDICTS: Final[dict[Verdict, tuple[str, Literal["good", "bad", "unsure"]]]] = {
    Verdict.CLOSES: ("The books close.", "good"),
    Verdict.DOES_NOT_CLOSE: ("The books do not close.", "bad"),
    Verdict.CANNOT_TELL: ("It cannot be decided whether the books close: evidence is missing.", "unsure"),
}


def _verdict_section(books: Books) -> Section:
    found = books.summary
    text, mood = _VERDICTS[found.verdict]
    missing = found.missing + found.skipped
    lack = "1 message is missing" if missing == 1 else f"{missing:,} messages are missing"
    text += f" {found.expected:,} deliveries were expected, {found.counted:,} are recorded, {lack}."
    reasons = [("not checked", line) for line in found.unread if line not in found.doubts]
    reasons += [("in doubt", line) for line in found.doubts]
    reasons += [("hole", f"broker {hole.broker}, {hole.kind}: {hole.reason}") for hole in found.track_holes]
    parts = [Table("What the verdict does not cover", ("", "reason"), tuple(reasons), shown=SHOWN)] if reasons else []
    if books.named:
        parts.append(Table("Missing messages", ("message and subscriber",), tuple((line,) for line in books.named), shown=SHOWN))
    rows = tuple(
        (each.subscriber, each.broker, each.filter or "(everything)", each.expected, each.counted, _say_closes(each))
        for each in books.accounts
    )
    columns = ("subscriber", "broker", "filter", "expected", "recorded", "")
    note = "Subscribers whose books do not close come first." if len(rows) > SHOWN else ""
    parts.append(Table(f"Expected and recorded deliveries: {len(rows):,} subscribers", columns, rows, note, shown=SHOWN))
    return Section("Verdict", text, tuple(parts), mood)


def _say_closes(account: Account) -> str:
    if account.open_intervals:
        return "does not close" if account.expected != account.counted else "closes in sum only"
    return "closes"


def _overlay_section(facts: Facts) -> Section:
    links: dict[tuple[int, int], int] = {}
    published: dict[int, int] = {}
    delivered: dict[int, int] = {}
    for history in facts.histories:
        if history.kind == "routing":
            links[history.peer, history.broker] = links.get((history.peer, history.broker), 0) + history.count
        elif history.kind == "publisher":
            published[history.broker] = published.get(history.broker, 0) + history.count
        elif history.kind == "subscriber":
            delivered[history.broker] = delivered.get(history.broker, 0) + history.count
    brokers = sorted({broker for link in links for broker in link} | published.keys() | delivered.keys())
    rows = tuple((each, published.get(each, 0), delivered.get(each, 0)) for each in brokers)
    nodes = tuple(
        (str(each), f"broker {each}: {published.get(each, 0):,} published, {delivered.get(each, 0):,} delivered")
        for each in brokers
    )
    edges = tuple(Edge(str(one), str(other), count, f"{count:,}") for (one, other), count in sorted(links.items()))
    note = "An arrow is as wide as the number of messages that came over the link."
    graph = Graph("Messages over each link", nodes, edges, "messages", note)
    return Section("Overlay", "", (graph, Table("By broker", ("broker", "published", "delivered"), rows, shown=SHOWN)))


def _period(facts: Facts) -> str:
    if not facts.traffic:
        return "From tracks alone; no logs were given."
    first, last = min(row[1] for row in facts.traffic), max(row[1] for row in facts.traffic) + facts.width_s
    return f"Messages from {_clock(first)} to {_clock(last)}."


def _clock(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _traffic_section(facts: Facts) -> Section:
    totals: dict[int, list[int]] = {}
    for pubend, _, messages, size in facts.traffic:
        total = totals.setdefault(pubend, [0, 0, 0])
        total[0], total[1], total[2] = total[0] + messages, total[1] + size, max(total[2], messages)
    rows = [
        (f"{pubend:x}", pubend_broker(pubend), messages, size, size / messages, peak / facts.width_s)
        for pubend, (messages, size, peak) in sorted(totals.items())
    ]
    columns = ("pubend", "broker", "messages", "payload bytes", "bytes per message", f"peak messages/s over {facts.width_s} s")
    busiest = sorted(totals, key=lambda pubend: (-totals[pubend][0], pubend))[:SERIES_MAX]
    plot = Plot(
        "Messages per second",
        "time (UTC)",
        "messages/s",
        _series(facts, busiest),
        note=f"averages over {facts.width_s} s",
        clock=True,
    )
    return Section("Traffic", "", (Table("", columns, tuple(rows), shown=SHOWN), plot))


def _series(facts: Facts, busiest: Sequence[int]) -> dict[str, list[tuple[float, float]]]:
    """Return rates over time of the busiest pubends, and of all others together; nothing in a bucket is a rate of 0."""
    rates: dict[str, dict[int, float]] = {}
    buckets = sorted({row[1] for row in facts.traffic})
    for pubend, bucket, messages, _ in facts.traffic:
        found = rates.setdefault(f"pubend {pubend:x}" if pubend in busiest else "all others", dict.fromkeys(buckets, 0.0))
        found[bucket] += messages / facts.width_s
    return {name: [(float(bucket), rate) for bucket, rate in rates[name].items()] for name in sorted(rates, key=_others_last)}


def _others_last(name: str) -> tuple[bool, str]:
    return not name.startswith("pubend"), name


def _latency_section(facts: Facts) -> Section:
    text = (
        "From the timestamp a publisher's client gave a message to the tick at which the pubend decided it, just before it was "
        "made durable. The clocks of client and broker agree to within the skew tolerance only, so small values may be off by "
        "that, or negative."
    )
    rows: list[tuple[Cell, ...]] = []
    series = {}
    busiest = sorted(facts.latencies, key=lambda pubend: (-facts.latencies[pubend].total, pubend))[:SERIES_MAX]
    for pubend, found in sorted(facts.latencies.items()):
        rows.append((f"{pubend:x}", found.total, *found.percentiles(PERCENTILES).values()))
        if pubend not in busiest:
            continue
        share = np.cumsum(found.counts) / found.total
        kept = np.unique(np.searchsorted(share, np.linspace(0, 1, POINTS), "left").clip(0, len(share) - 1))
        series[f"pubend {pubend:x}"] = [(float(found.values[i]), float(share[i])) for i in kept]
    columns = ("pubend", "messages", *(f"p{percent:g} ms" for percent in PERCENTILES))
    plot = Plot("Share of messages decided within", "ms", "share", series, kind="step")
    return Section("Commit latency", text, (Table("", columns, tuple(rows), shown=SHOWN), plot))


def _storage_section(facts: Facts) -> Section:
    text = (
        "An entry is one message in one history. For blooms the bytes are those of their bits; what else is in the files is "
        "counted for the ids that are kept as they are."
    )
    rows = [(*row, row[4] / row[3] if row[3] else None) for row in facts.stored]
    table = Table(
        "By broker and strategy", ("broker", "strategy", "elements", "entries", "bytes", "bytes per entry"), tuple(rows)
    )
    entries: dict[int, int] = {}
    published: dict[int, int] = {}
    for history in facts.histories:
        entries[history.broker] = entries.get(history.broker, 0) + history.count
        if history.kind == "publisher":
            published[history.broker] = published.get(history.broker, 0) + history.count
    whole = [
        (broker, size, entries.get(broker, 0), size / entries[broker] if entries.get(broker) else None)
        for broker, size in sorted(facts.file_bytes.items())
    ]
    everything = sum(facts.file_bytes.values())
    messages = sum(published.values())
    note = f"All files together: {everything:,} bytes"
    note += f", {everything / messages:.3g} per message published." if messages else "."
    return Section(
        "Storage of tracks",
        text,
        (table, Table("By broker", ("broker", "bytes of files", "entries", "bytes per entry"), tuple(whole), note)),
    )


def _link_section(facts: Facts) -> Section:
    links: dict[tuple[int, int], list[int]] = {}
    for history in facts.histories:
        if history.kind == "routing":
            link = links.setdefault((history.peer, history.broker), [0, history.from_ms, history.to_ms])
            link[:] = [link[0] + history.count, min(link[1], history.from_ms), max(link[2], history.to_ms)]
    rows = [
        (upstream, broker, count, count / max((high - low) / 1000, 1))
        for (upstream, broker), (count, low, high) in sorted(links.items())
    ]
    delays: list[tuple[Cell, ...]] = [
        (broker, kind, found.total, *found.percentiles((50.0, 90.0, 99.0)).values())
        for (broker, kind), found in sorted(facts.delays.items())
    ]
    note = (
        "How much later, by the broker's clock, an element began than the oldest timestamp in it: an upper bound for one message "
        "of each element. Tracks hold no times of single arrivals."
    )
    return Section(
        "Links",
        "What came over each link, by the routing histories of the receiving broker.",
        (
            Table("", ("from", "to", "messages", "messages/s"), tuple(rows)),
            Table(
                "Delay at the beginning of elements",
                ("broker", "history", "elements", "p50 ms", "p90 ms", "p99 ms"),
                tuple(delays),
                note,
                shown=SHOWN,
            ),
        ),
    )


def _subscriber_section(facts: Facts) -> Section:
    counts: dict[tuple[str, int], int] = {}
    for history in facts.histories:
        if history.kind == "subscriber":
            key = (history.subscriber, history.broker)
            counts[key] = counts.get(key, 0) + history.count
    most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:SUBSCRIBERS_SHOWN_MAX]
    rows = [(name, broker, count) for (name, broker), count in most]
    note = f"The busiest {SUBSCRIBERS_SHOWN_MAX} of {len(counts):,}." if len(counts) > SUBSCRIBERS_SHOWN_MAX else ""
    return Section("Deliveries", "", (Table("", ("subscriber", "broker", "deliveries"), tuple(rows), note),))
