"""The histories of some tracks, with the numbers that jobs use for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    found = (
        NumberedHistory(
            number=-1,
            **{name: row[name] for name in (*HISTORY, "elements", "count", "size")},
            from_ms=row["from_ms"] or 0,
            to_ms=row["to_ms"] or 0,
        )
        for row in rows
    )
    return numbered(found)


def numbered(histories: Iterable[NumberedHistory]) -> tuple[NumberedHistory, ...]:
    """Join what belongs to one history, and number them in a fixed order."""
    joined: dict[tuple[object, ...], NumberedHistory] = {}
    for each in histories:
        key = (each.broker, each.kind, each.origin, each.peer, each.subscriber)
        joined[key] = _join(joined[key], each) if key in joined else each
    return tuple(replace(joined[key], number=number) for number, key in enumerate(sorted(joined)))


def _join(one: NumberedHistory, other: NumberedHistory) -> NumberedHistory:
    """Add two parts of one history; a `from_ms` of 0 says that a part has no range."""
    begins = [each.from_ms for each in (one, other) if each.from_ms]
    return replace(
        one,
        elements=one.elements + other.elements,
        count=one.count + other.count,
        size=one.size + other.size,
        from_ms=min(begins, default=0),
        to_ms=max(one.to_ms, other.to_ms),
    )
