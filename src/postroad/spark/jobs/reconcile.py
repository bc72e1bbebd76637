"""Closing the books by counts: what was claimed against what the histories counted, per account and interval. Ids do not matter.

An interval cannot be any: an element counts all its ids together. So elements whose ranges touch, and the claimed messages among
them, make one interval; within it the sums must be equal. Time is taken in grains of a second. That is a sweep over rows in
order of time, which needs no more memory than one row of state.

For routing histories the claims are a lower bound: a broker also routes what only others behind it want.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.batch.digest import LANE
from postroad.spark.cluster import parallelism
from postroad.spark.jobs.arrow import array, integers, record_batch
from postroad.spark.jobs.expectations import GRAIN_MS, Claims, Intervals, Standing, Target
from postroad.spark.jobs.histories import NumberedHistory
from postroad.spark.jobs.matching import Longs
from postroad.spark.jobs.tracks import HISTORY

BOOKS: Final = "target int, from_ms long, to_ms long, expected long, counted long, low long, high long, unlisted long"
_SUMS: Final = ("expected", "counted", "low", "high", "unlisted")
_NAMES: Final = ("target", "from_ms", "to_ms", *_SUMS)
_ROW: Final = "target int, lo long, hi long, " + ", ".join(f"{name} long" for name in _SUMS)
_STRIDE: Final = 1 << 40  # more grains than any clock has


def target_of(history: NumberedHistory) -> Target | None:
    """Say which account a history belongs to."""
    match history.kind:
        case "publisher" | "routing":
            return Target(history.kind, history.origin, history.broker, "")
        case "subscriber":
            return Target(history.kind, history.origin, 0, history.subscriber)
        case _:
            return None


def close_books(
    spark: SparkSession,
    claims: Claims,
    histories: Sequence[NumberedHistory],
    elements: DataFrame,
    counts: DataFrame,
    carried: Sequence[tuple[int, int, int, int, int]] = (),
    digests: DataFrame | None = None,
) -> DataFrame:
    """Return rows of `BOOKS`: intervals of accounts, each with what was expected and what the histories counted.

    `carried` are rows of an earlier audit: (target, lo, hi, expected, counted), the times as grains. `digests` are those of
    elements; `low` and `high` are the difference between the digests of what was expected and what was counted, and `unlisted` is
    how many of the entries counted have no digest.
    """
    promised = counts.filter((F.col("target") >= 0) & F.col("standing").isin(int(Standing.EXPECTED), int(Standing.SKIPPED)))
    span = (F.col("grain").alias("lo"), F.col("grain").alias("hi"), F.col("count").alias("expected"))
    none = F.lit(0).cast("long")
    rows = promised.select("target", *span, none.alias("counted"), "low", "high", none.alias("unlisted"))
    rows = rows.unionByName(count(spark, claims, histories, elements, digests))
    if carried:
        rows = rows.unionByName(spark.createDataFrame([(*row, 0, 0, row[4]) for row in carried], _ROW))
    tasks = 2 * parallelism(spark)
    return rows.repartition(tasks, "target").sortWithinPartitions("target", "lo").mapInArrow(sweep, BOOKS)


def count(
    spark: SparkSession,
    claims: Claims,
    histories: Sequence[NumberedHistory],
    elements: DataFrame,
    digests: DataFrame | None = None,
) -> DataFrame:
    """Return elements as rows for the sweep: what each counts, from when to when."""
    keys = [
        (*(getattr(history, name) for name in HISTORY), claims.target(target))
        for history in histories
        if (target := target_of(history)) is not None
    ]
    schema = "broker long, kind string, origin long, peer long, subscriber string, target int"
    rows = elements.join(F.broadcast(spark.createDataFrame(keys, schema)), list(HISTORY))
    if digests is None:
        low, high, unlisted = F.lit(0).cast("long"), F.lit(0).cast("long"), F.col("count")
    else:
        rows = rows.join(digests, ["file", "row"], "left")
        low, high = (-F.coalesce(name, F.lit(0)).cast("long") for name in ("low", "high"))
        unlisted = F.when(F.col("low").isNull(), F.col("count")).otherwise(F.lit(0))
    ranged = F.col("from_ms") <= F.col("to_ms")
    first = F.least(F.when(ranged, F.col("from_ms")), F.array_min("singletons"))
    last = F.greatest(F.when(ranged, F.col("to_ms")), F.array_max("singletons"))
    lo, hi = (F.floor(each / GRAIN_MS).cast("long") for each in (first, last))
    sums = (F.lit(0).cast("long"), F.col("count"), low, high, unlisted.cast("long"))
    chosen = rows.select(
        "target", lo.alias("lo"), hi.alias("hi"), *(each.alias(name) for each, name in zip(sums, _SUMS, strict=True))
    )
    return chosen.filter(F.col("lo").isNotNull())


def sweep(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join rows that touch; they come ordered by target and beginning."""
    state: dict[str, Longs] = {name: np.empty(0, np.int64) for name in ("target", "lo", "hi", *_SUMS)}
    for batch in batches:
        rows = {name: np.concatenate([state[name], integers(batch.column(name))]) for name in state}
        if not len(rows["target"]):
            continue
        joined = _join(rows)
        yield _books({name: values[:-1] for name, values in joined.items()})
        state = {name: values[-1:] for name, values in joined.items()}
    yield _books(state)


def _join(rows: dict[str, Longs]) -> dict[str, Longs]:
    base = rows["target"] * _STRIDE
    reach = np.maximum.accumulate(base + rows["hi"])
    begins = np.ones(len(base), np.bool_)
    begins[1:] = base[1:] + rows["lo"][1:] > reach[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(base)) - 1
    return {
        "target": rows["target"][starts],
        "lo": rows["lo"][starts],
        "hi": reach[ends] - base[starts],
        **{name: np.add.reduceat(rows[name], starts) for name in _SUMS},
    }


def _books(rows: dict[str, Longs]) -> pa.RecordBatch:
    arrays: list[pa.Array[Any]] = [
        array(rows["target"].astype(np.int32)),
        array(rows["lo"] * GRAIN_MS),
        array(rows["hi"] * GRAIN_MS + (GRAIN_MS - 1)),
        *(array(rows[name]) for name in _SUMS),
    ]
    return record_batch(arrays, names=list(_NAMES))


def with_targets(spark: SparkSession, claims: Claims, rows: DataFrame) -> DataFrame:
    """Put the names of accounts in place of their numbers."""
    named = [(number, *target) for number, target in enumerate(claims.targets)]
    schema = "target int, kind string, origin long, broker long, subscriber string"
    return rows.join(F.broadcast(spark.createDataFrame(named, schema)), "target", "left").drop("target")


def closes() -> Any:
    """Say for a row of `BOOKS` with the kind of its account whether it closes: by count, and by digest if all ids are listed."""
    least = (F.col("kind") == "routing") & (F.col("counted") >= F.col("expected"))
    same = (F.col("unlisted") > 0) | ((F.col("low") % LANE == 0) & (F.col("high") % LANE == 0))
    return least | ((F.col("counted") == F.col("expected")) & same)


def intervals_of(claims: Claims, rows: Sequence[Any]) -> Intervals:
    """Join the intervals of some rows of `BOOKS`, by origin."""
    by_origin: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        by_origin.setdefault(claims.targets[row["target"]].origin, []).append((row["from_ms"], row["to_ms"]))
    return Intervals({origin: _union(found) for origin, found in by_origin.items()})


def _union(found: list[tuple[int, int]]) -> tuple[Longs, Longs]:
    low, high = np.array(sorted(found), np.int64).T
    reach = np.maximum.accumulate(high)
    begins = np.append(True, low[1:] > reach[:-1])  # a value of the array
    starts = np.flatnonzero(begins)
    return low[starts], reach[np.append(starts[1:], len(low)) - 1]
