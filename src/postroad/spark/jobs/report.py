"""`report`: traffic, latencies, storage and links of an overlay, from its logs and tracks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.broker.stats import Histogram
from postroad.core.protocol.packets import pubend_broker
from postroad.figures import Cell, Document, Plot, Section, Table
from postroad.spark.jobs.arrow import array, record_batch
from postroad.spark.jobs.histories import NumberedHistory, histories_of
from postroad.spark.jobs.published import Numbered, Published
from postroad.spark.jobs.rates import payload_sizes
from postroad.spark.jobs.tracks import Tracks
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.types import COUNTER_BITS

POINTS: Final = 120  # of a series over time
LATENCY_MS_MAX: Final = 600_000  # beyond it, values are counted as this
SUBSCRIBERS_SHOWN_MAX: Final = 100
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


def gather(published: Published | None, tracks: Tracks | None) -> Facts:
    """Run the queries of a report."""
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
    return Facts(traffic, width, latencies, histories_of(tracks.elements), _describe_costs(tracks, sizes), sizes, _delays(tracks))


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
    """Arrange facts for a reader."""
    sections = []
    if facts.traffic:
        sections += [_traffic_section(facts), _latency_section(facts)]
    if facts.histories:
        sections += [_storage_section(facts), _link_section(facts), _subscriber_section(facts)]
    return Document("Postroad: report", _period(facts), tuple(sections))


def _period(facts: Facts) -> str:
    if not facts.traffic:
        return "From tracks alone; no logs were given."
    first, last = min(row[1] for row in facts.traffic), max(row[1] for row in facts.traffic) + facts.width_s
    return f"Messages from {_clock(first)} to {_clock(last)}."


def _clock(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _traffic_section(facts: Facts) -> Section:
    first = min(row[1] for row in facts.traffic)
    totals: dict[int, list[int]] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for pubend, bucket, messages, size in facts.traffic:
        total = totals.setdefault(pubend, [0, 0, 0])
        total[0], total[1], total[2] = total[0] + messages, total[1] + size, max(total[2], messages)
        series.setdefault(f"pubend {pubend:x}", []).append(((bucket - first) / 60, messages / facts.width_s))
    rows = [
        (f"{pubend:x}", pubend_broker(pubend), messages, size, size / messages, peak / facts.width_s)
        for pubend, (messages, size, peak) in sorted(totals.items())
    ]
    columns = ("pubend", "broker", "messages", "payload bytes", "bytes per message", f"peak messages/s over {facts.width_s} s")
    plot = Plot("Messages per second", "minutes", "messages/s", series, note=f"averages over {facts.width_s} s")
    return Section("Traffic", "", (Table("", columns, tuple(rows)), plot))


def _latency_section(facts: Facts) -> Section:
    text = (
        "From the timestamp a publisher's client gave a message to the tick at which the pubend decided it, just before it was "
        "made durable. The clocks of client and broker agree to within the skew tolerance only, so small values may be off by "
        "that, or negative."
    )
    rows: list[tuple[Cell, ...]] = []
    series = {}
    for pubend, found in sorted(facts.latencies.items()):
        rows.append((f"{pubend:x}", found.total, *found.percentiles(PERCENTILES).values()))
        share = np.cumsum(found.counts) / found.total
        kept = np.unique(np.searchsorted(share, np.linspace(0, 1, POINTS), "left").clip(0, len(share) - 1))
        series[f"pubend {pubend:x}"] = [(float(found.values[i]), float(share[i])) for i in kept]
    columns = ("pubend", "messages", *(f"p{percent:g} ms" for percent in PERCENTILES))
    plot = Plot("Share of messages decided within", "ms", "share", series, kind="step")
    return Section("Commit latency", text, (Table("", columns, tuple(rows)), plot))


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
