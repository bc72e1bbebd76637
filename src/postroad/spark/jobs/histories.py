"""The histories of some tracks, with the numbers that jobs use for them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.spark.jobs.tracks import HISTORY


@dataclass(frozen=True, slots=True)
class NumberedHistory:
    """One history, with the number it has in `hits`."""

    number: int
    broker: int
    kind: str
    origin: int
    peer: int
    subscriber: str
    elements: int
    count: int
    size: int
    from_ms: int
    to_ms: int


def histories_of(elements: DataFrame) -> tuple[NumberedHistory, ...]:
    """List the histories there are, in a fixed order."""
    rows = (
        elements.groupBy(*HISTORY)
        .agg(
            F.count("*").alias("elements"),
            F.sum("count").alias("count"),
            F.sum("size").alias("size"),
            F.min(F.when(F.col("from_ms") <= F.col("to_ms"), F.col("from_ms"))).alias("from_ms"),
            F.max(F.when(F.col("from_ms") <= F.col("to_ms"), F.col("to_ms"))).alias("to_ms"),
        )
        .collect()
    )
    rows.sort(key=lambda row: tuple(row[name] for name in HISTORY))
    return tuple(
        NumberedHistory(
            number=number,
            **{name: row[name] for name in (*HISTORY, "elements", "count", "size")},
            from_ms=row["from_ms"] or 0,
            to_ms=row["to_ms"] or 0,
        )
        for number, row in enumerate(rows)
    )
