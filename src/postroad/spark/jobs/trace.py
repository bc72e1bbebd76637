"""`trace`: where messages came from, which way they went, who got them, for any number of ids at once (section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.spark.jobs.bucketed_search import NumberedHistory, histories_of, search
from postroad.spark.jobs.paths import TRACES, HistoryMap, Reconstruction
from postroad.spark.jobs.tracks import Tracks

ID_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Traced:
    """The outcome of a trace: one row per id (`paths.TRACES`), and what the search for it was like."""

    traces: DataFrame
    hits: DataFrame
    histories: tuple[NumberedHistory, ...]

    def expected_false_positives(self) -> float:
        """How many entries of all traces together are there only by chance, if every id were unknown; runs the search."""
        found = self.hits.filter(F.col("id").isNull()).agg(F.sum(F.expr("aggregate(probabilities, 0D, (a, b) -> a + b)"))).first()
        return float(found[0] or 0.0) if found is not None else 0.0

    def close(self) -> None:
        self.hits.unpersist()


def trace(ids: DataFrame, tracks: Tracks, *, keep: bool = True) -> Traced:
    """Trace the messages whose ids stand in the column `id` (16 bytes). With `keep`, hits are found once, whatever is asked."""
    histories = histories_of(tracks.elements)
    hits = search(tracks, ids, histories)
    if keep:
        hits = hits.persist(StorageLevel.DISK_ONLY)
    overlay = HistoryMap.of(histories, tracks.brokers, tracks.holes)
    return Traced(hits.mapInArrow(Reconstruction(overlay), TRACES), hits, histories)


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
