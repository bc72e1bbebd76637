"""`trace`: where messages came from, which way they went, who got them, for any number of ids at once (section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.spark.jobs.histories import NumberedHistory, histories_of
from postroad.spark.jobs.paths import FOUND, SUMMARY, TRACES, FoundRows, HistoryMap, SummaryRow, TraceRows
from postroad.spark.jobs.search import search
from postroad.spark.jobs.tracks import HISTORY, Tracks

ID_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What was found of all ids together."""

    ids: int
    published: int
    hops: int
    deliveries: int
    isolated: int
    in_holes: int
    by_chance: float  # entries of all traces that are there only by chance, if every id were unknown


@dataclass(frozen=True, slots=True)
class Traced:
    """The outcome of a trace, in three forms. Each is searched for when it is used, so use one, or write it down.

    `traces` has everything, one row per id (`paths.TRACES`). `found` has the numbers of the histories that hold the id, and of
    those that are isolated; `histories` says what these are. Spark copies every value of a row, so `found` takes a fraction of
    the time. `summary` counts.
    """

    tracks: Tracks
    ids: DataFrame
    numbered: tuple[NumberedHistory, ...]
    overlay: HistoryMap
    ordered: bool

    @property
    def traces(self) -> DataFrame:
        return self._search(TraceRows(self.overlay), TRACES)

    @property
    def found(self) -> DataFrame:
        return self._search(FoundRows(self.overlay), FOUND)

    @property
    def histories(self) -> DataFrame:
        """Return what the numbers in `found` stand for."""
        rows = [(each.number, *(getattr(each, name) for name in HISTORY)) for each in self.numbered]
        return self.tracks.spark.createDataFrame(
            rows, "history int, broker long, kind string, origin long, peer long, subscriber string"
        )

    def summary(self) -> TraceSummary:
        names = [name.split()[0] for name in SUMMARY.split(", ")]
        row = self._search(SummaryRow(self.overlay), SUMMARY).agg(*(F.sum(name).alias(name) for name in names)).first()
        assert row is not None
        return TraceSummary(**{name: row[name] or 0 for name in names})

    def _search(self, answer: Any, schema: str) -> DataFrame:
        return search(self.tracks, self.ids, self.numbered, answer, schema, ordered=self.ordered)


def trace(ids: DataFrame, tracks: Tracks, *, ordered: bool = False) -> Traced:
    """Trace the messages whose ids stand in the column `id` (16 bytes).

    `ordered` says that the ids are different ones and come in order of time, as those of a log: then they need no sorting.
    """
    histories = histories_of(tracks.elements)
    return Traced(tracks, ids.select("id"), histories, HistoryMap.of(histories, tracks.brokers, tracks.holes), ordered)


def entries(traces: DataFrame) -> DataFrame:
    """Flatten traces: a row per entry, of the kinds publisher, routing, neighbour and subscriber."""
    published = traces.filter("published").select(
        "id",
        F.lit("publisher").alias("kind"),
        F.col("origin").alias("broker"),
        F.lit(None).cast("long").alias("peer"),
        F.lit(None).cast("string").alias("subscriber"),
        F.col("published_probability").alias("probability"),
        F.lit(False).alias("isolated"),
        F.lit(0).alias("hops"),
    )
    routed = traces.select("id", F.inline("path")).select(
        *("id", F.lit("routing").alias("kind"), "broker", F.col("upstream").alias("peer")),
        *(F.lit(None).cast("string").alias("subscriber"), "probability", "isolated", "hops"),
    )
    forwarded = traces.select("id", F.inline("forwarded")).select(
        *("id", F.lit("neighbour").alias("kind"), "broker", F.col("neighbour").alias("peer")),
        *(F.lit(None).cast("string").alias("subscriber"), "probability", "isolated", F.lit(None).cast("int").alias("hops")),
    )
    delivered = traces.select("id", F.inline("subscribers")).select(
        *("id", F.lit("subscriber").alias("kind"), "broker", F.lit(None).cast("long").alias("peer"), "subscriber"),
        *("probability", "isolated", F.lit(None).cast("int").alias("hops")),
    )
    return published.unionByName(routed).unionByName(forwarded).unionByName(delivered)


def text_of(message_id: Column) -> Column:
    """Return an id as people read it: `publisher-broker-milliseconds-counter` in hexadecimal digits."""
    digits = F.lower(F.hex(message_id))
    parts = [F.substring(digits, start, length) for start, length in ((1, 8), (9, 8), (17, 12), (29, 4))]
    return F.concat_ws("-", *parts)


def id_of(text: Column) -> Column:
    """Return the 16 bytes of an id written in hexadecimal digits, with or without dashes; null where it is none."""
    digits = F.regexp_replace(F.trim(text), "-", "")
    return F.when(digits.rlike(f"^[0-9A-Fa-f]{{{ID_DIGITS}}}$"), F.unhex(digits))
