"""Search for any number of ids in any number of elements, in bounded memory.

An id and an element meet in a *group*: (origin, bucket of time). Elements stand in every bucket that their range or a singleton
touches, each time bounded to that bucket; an id stands in one. Spark brings the rows of a group together, elements first, and
the kernel (`matching`) goes through them as a stream: it holds the elements of a group and as many ids as it searches at a time.

How wide buckets are is a choice between copies of elements (narrow ones) and memory (wide ones). Histories differ: the elements
of a busy one span seconds, those of a quiet one hours. So histories are divided into *passes*, each with a width that suits its
own, and the ids walk through one pass after the other, taking their hits along. Most tracks need one pass.

A history is in one pass only, so the matching set of an id is complete there, and with it the probability of a hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.batch.batch import Ids
from postroad.spark.jobs.arrow import array, binary_bytes, flags, flat, floats, ids_of, integers, lists, record_batch, schema_of
from postroad.spark.jobs.matching import Elements, Matches, match
from postroad.spark.jobs.trackfiles import BODIES
from postroad.spark.jobs.tracks import HISTORY, Tracks
from postroad.types import MILLISECONDS_MAX

WIDTH_MS_MIN: Final = 1_000
WIDTH_MS_MAX: Final = 1 << 42  # more than a century: everything in one bucket
STEP: Final = 4  # from one width to the next
COPIES_MAX: Final = 4  # of the average element of a history, about
GROUP_BYTES: Final = 48 << 20  # elements of a group that a worker should hold
CHUNK_IDS: Final = 1 << 16  # ids searched at a time
CHUNK_BYTES: Final = 32 << 20  # small groups are searched together up to this much
TASK_BYTES: Final = 64 << 20

HITS: Final = "hits array<int>, probabilities array<double>"
_PART_ELEMENT, _PART_ID = 0, 1
_ASKED: Final = "asked_"  # before the columns of the ids, to keep them apart from those of elements
_EMPTY_LISTS: Final = ("CAST(array() AS array<int>) AS hits", "CAST(array() AS array<double>) AS probabilities")


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
    weight: int  # sum over elements of size * length of the range: how much copying costs
    from_ms: int
    to_ms: int

    @property
    def mean_ms(self) -> float:
        """How long the average element is, by bytes."""
        return self.weight / self.size if self.size else 0.0


@dataclass(frozen=True, slots=True)
class Pass:
    width_ms: int
    histories: tuple[NumberedHistory, ...]


def histories_of(elements: DataFrame) -> tuple[NumberedHistory, ...]:
    """List the histories there are, in a fixed order."""
    length = F.greatest(F.col("to_ms") - F.col("from_ms"), F.lit(0))
    rows = (
        elements.groupBy(*HISTORY)
        .agg(
            F.count("*").alias("elements"),
            F.sum("count").alias("count"),
            F.sum("size").alias("size"),
            F.sum(F.col("size") * length.cast("double")).alias("weight"),
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
            weight=int(row["weight"]),
            from_ms=row["from_ms"] or 0,
            to_ms=row["to_ms"] or 0,
        )
        for number, row in enumerate(rows)
    )


def plan(histories: Sequence[NumberedHistory]) -> list[Pass]:
    """Divide histories into passes: as few as possible, with neither too many copies nor too much memory."""
    left = sorted(histories, key=lambda history: (history.mean_ms, history.number))
    passes = []
    while left:
        width = _width(left)
        taken = [history for history in left if history.mean_ms <= (COPIES_MAX - 1) * width]
        left = [history for history in left if history.mean_ms > (COPIES_MAX - 1) * width]
        passes.append(Pass(width, tuple(taken)))
    return passes


def _width(histories: Sequence[NumberedHistory]) -> int:
    """Return the widest buckets whose elements fit into memory, but wide enough for the shortest of the histories."""
    density = max(_densities(histories).values())
    needed = histories[0].mean_ms / (COPIES_MAX - 1)
    width = WIDTH_MS_MIN
    while width < WIDTH_MS_MAX and (width < needed or density * width * STEP <= GROUP_BYTES):
        width *= STEP
    return width


def _densities(histories: Sequence[NumberedHistory]) -> dict[int, float]:
    """Return the bytes of elements per millisecond, by origin."""
    found: dict[int, float] = {}
    for history in histories:
        duration = max(history.to_ms - history.from_ms, WIDTH_MS_MIN)
        found[history.origin] = found.get(history.origin, 0.0) + history.size / duration
    return found


# --- where elements and ids meet ------------------------------------------------------------------------------------------


def search(tracks: Tracks, ids: DataFrame, histories: Sequence[NumberedHistory]) -> DataFrame:
    """Return the rows of `ids` (a column `id` of 16 bytes, and any others) with the columns `HITS`, each id once.

    A row without an id says what was tested: per history, how many false positives to expect among its candidates.
    """
    spark = tracks.spark
    found = ids.filter(F.col("id").isNotNull()).selectExpr("*", *_EMPTY_LISTS)
    passes = plan(histories) or [Pass(WIDTH_MS_MAX, ())]
    for each in passes:
        for shard in _shards(spark, tracks, each):
            found = _walk(spark, tracks, found, shard)
    return found


def origin_of(message_id: Column) -> Column:
    return F.conv(F.hex(F.substring(message_id, 5, 4)), 16, 10).cast("long")


def milliseconds_of(message_id: Column) -> Column:
    return F.conv(F.hex(F.substring(message_id, 9, 6)), 16, 10).cast("long")


def _shards(spark: SparkSession, tracks: Tracks, each: Pass) -> list[Pass]:
    """Split a pass whose fullest group is too large for a worker even so."""
    if sum(history.size for history in each.histories) * COPIES_MAX <= GROUP_BYTES:
        return [each]
    fullest = _place(spark, tracks, each).groupBy("origin", "bucket").agg(F.sum("size").alias("size")).agg(F.max("size")).first()
    shards = ceil((fullest[0] or 0) / (4 * GROUP_BYTES)) if fullest is not None else 1
    return [
        Pass(each.width_ms, each.histories[index::shards]) for index in range(max(shards, 1)) if each.histories[index::shards]
    ]


def _place(spark: SparkSession, tracks: Tracks, each: Pass) -> DataFrame:
    """Say in which buckets elements stand: file, row, history, origin, bucket, size."""
    width = F.lit(each.width_ms)
    keys = [(*(getattr(history, name) for name in HISTORY), history.number) for history in each.histories]
    schema = "broker long, kind string, origin long, peer long, subscriber string, history int"
    numbered = tracks.elements.join(F.broadcast(spark.createDataFrame(keys, schema)), list(HISTORY))
    first, last = (F.floor(F.col(name) / width) for name in ("from_ms", "to_ms"))
    in_range = F.when(F.col("from_ms") <= F.col("to_ms"), F.sequence(first, last)).otherwise(F.array().cast("array<bigint>"))
    late = F.transform(F.coalesce("singletons", F.array().cast("array<bigint>")), lambda ms: F.floor(ms / width))
    buckets = F.array_union(in_range, late)
    return numbered.select("file", "row", "history", "origin", "size", F.explode(buckets).alias("bucket"))


def _walk(spark: SparkSession, tracks: Tracks, found: DataFrame, each: Pass) -> DataFrame:
    """Bring ids and the elements of one pass together and search."""
    width = F.lit(each.width_ms)
    names = found.columns
    asked = found.select(
        F.coalesce(origin_of(F.col("id")), F.lit(-1)).alias("origin"),
        F.coalesce(F.floor(milliseconds_of(F.col("id")) / width), F.lit(-1)).alias("bucket"),
        F.lit(_PART_ID).alias("part"),
        *(F.col(name).alias(f"{_ASKED}{name}") for name in names),
    )
    if not each.histories:
        rows = asked
        for name, kind in _element_columns():
            rows = rows.withColumn(name, F.lit(None).cast(kind))
    else:
        rows = asked.unionByName(_elements(spark, tracks, asked, each), allowMissingColumns=True)
    size = COPIES_MAX * sum(history.size for history in each.histories)
    tasks = max(2 * spark.sparkContext.defaultParallelism, ceil(size / TASK_BYTES))
    # Ids in order of time: those searched together then have few elements in common with those before and after them.
    tick = F.substring(f"{_ASKED}id", 9, 8)
    ordered = rows.repartition(tasks, "origin", "bucket").sortWithinPartitions("origin", "bucket", "part", tick, f"{_ASKED}id")
    return ordered.mapInArrow(_search_stream, found.schema)


def _element_columns() -> list[tuple[str, str]]:
    fields = [field.strip().split(" ", 1) for field in BODIES.split(", ")]
    return [(name, kind) for name, kind in fields if name != "origin"]


def _elements(spark: SparkSession, tracks: Tracks, asked: DataFrame, each: Pass) -> DataFrame:
    """Read the elements that stand in a bucket with at least one id."""
    buckets = asked.select("origin", "bucket").distinct()
    placed = _place(spark, tracks, each).join(buckets, ["origin", "bucket"], "left_semi")
    low = F.col("bucket") * each.width_ms
    bounded = placed.select("file", "row", "history", low.alias("low_ms"), (low + (each.width_ms - 1)).alias("high_ms"))
    bodies = tracks.bodies(bounded)
    bucket = F.floor(F.col("low_ms") / F.lit(each.width_ms)).alias("bucket")
    return bodies.select("*", bucket, F.lit(_PART_ELEMENT).alias("part"))


# --- in the workers -------------------------------------------------------------------------------------------------------


def _search_stream(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Go through the rows of a partition in order: of every group its elements, then its ids."""
    stream = _Stream()
    for batch in batches:
        yield from stream.take(batch)
    yield from stream.finish()


class _Stream:
    """What is in memory: elements of the groups begun, and ids that wait to be searched for in them."""

    def __init__(self) -> None:
        self._elements: list[pa.RecordBatch] = []
        self._element_bytes = 0
        self._prepared: Elements | None = None  # of `_elements`
        self._ids: list[pa.RecordBatch] = []
        self._id_count = 0
        self._group: tuple[int, int] | None = None  # of the rows taken last
        self._group_start = 0  # of its elements in `_elements`
        self._last: bytes | None = None  # the id taken last
        self._tested: dict[int, float] = {}
        self._schema: pa.Schema | None = None  # of the rows to return

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._schema is None:
            fields = [batch.schema.field(name) for name in batch.schema.names if name.startswith(_ASKED)]
            self._schema = schema_of([field.with_name(field.name.removeprefix(_ASKED)) for field in fields])
        columns = [integers(batch.column(name)) for name in ("origin", "bucket", "part")]
        changes = np.zeros(batch.num_rows, np.bool_)
        for column in columns:
            changes[1:] |= column[1:] != column[:-1]
        bounds = [0, *np.flatnonzero(changes).tolist(), batch.num_rows]
        for start, stop in pairwise(bounds):
            if start < stop:
                group = (int(columns[0][start]), int(columns[1][start]))
                yield from self._take_run(group, int(columns[2][start]), batch.slice(start, stop - start))

    def _take_run(self, group: tuple[int, int], part: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if group != self._group:
            if self._id_count >= CHUNK_IDS or self._element_bytes >= CHUNK_BYTES:
                yield from self._search()
                self._keep([])
            self._group, self._group_start = group, len(self._elements)
        if part == _PART_ELEMENT:
            self._elements.append(rows)
            self._element_bytes += rows.nbytes
            self._prepared = None
            return
        rows = self._ask(rows)
        if group == _NOBODY:
            yield rows
            return
        rows = self._drop_repeated(rows)
        self._ids.append(rows)
        self._id_count += rows.num_rows
        if self._id_count >= CHUNK_IDS:
            yield from self._search()
            if self._group_start:
                self._keep(self._elements[self._group_start :])
            self._group_start = 0

    def _keep(self, elements: list[pa.RecordBatch]) -> None:
        self._elements, self._prepared = elements, None
        self._element_bytes = sum(each.nbytes for each in elements)

    def _drop_repeated(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Drop ids that stand more than once; equal ones follow each other."""
        words = ids_of(rows.column("id")).view(np.uint64).reshape(-1, 2)
        fresh = np.ones(len(words), np.bool_)
        fresh[1:] = (words[1:] != words[:-1]).any(axis=1)
        fresh[0] = words[0].tobytes() != self._last
        self._last = words[-1].tobytes()
        return rows if bool(fresh.all()) else rows.filter(array(fresh))

    def _ask(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        assert self._schema is not None
        return record_batch([rows.column(_ASKED + name) for name in self._schema.names], schema=self._schema)

    def _search(self) -> Iterator[pa.RecordBatch]:
        rows = [each for each in self._ids if each.num_rows]
        self._ids, self._id_count = [], 0
        if not rows:
            return
        asked = pa.Table.from_batches(rows).combine_chunks()
        self._prepared = self._prepared or _join(self._elements)
        for start in range(0, len(asked), CHUNK_IDS):
            chunk = asked.slice(start, CHUNK_IDS).to_batches()[0]
            ids = ids_of(chunk.column("id"))
            matches = match(ids, self._prepared)
            for history, (_, expected) in matches.tested.items():
                self._tested[history] = self._tested.get(history, 0.0) + expected
            yield _with_hits(chunk, ids, matches)

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield from self._search()
        if self._tested:
            row = {"hits": list(self._tested), "probabilities": list(self._tested.values())}
            yield pa.RecordBatch.from_pylist([row], schema=self._schema)


_NOBODY: Final = (-1, -1)  # the group of rows without an id


def _join(batches: Sequence[pa.RecordBatch]) -> Elements:
    """Put elements side by side for the kernel."""
    if not batches:
        return _NO_ELEMENTS
    table = pa.Table.from_batches(batches).combine_chunks()
    column: dict[str, Any] = {name: table.column(name).chunk(0) for name in table.column_names}
    number = {
        name: integers(column[name]) for name in ("history", "origin", "broker", "low_ms", "high_ms", "m", "k", "count", "sets")
    }
    singletons, offsets = flat(column["singletons"])
    data, starts = binary_bytes(column["body"])
    return Elements(
        history=number["history"],
        origin=number["origin"],
        broker=number["broker"],
        low_ms=number["low_ms"],
        high_ms=number["high_ms"],
        from_ms=np.clip(integers(column["from_ms"]), 0, MILLISECONDS_MAX),
        to_ms=np.clip(integers(column["to_ms"]), -1, MILLISECONDS_MAX),
        singletons=np.clip(singletons, 0, MILLISECONDS_MAX),
        singleton_of=np.repeat(np.arange(table.num_rows), np.diff(offsets)),
        m=number["m"],
        k=number["k"],
        count=number["count"],
        neighbours=number["sets"],
        packed=flags(column["packed"]),
        starts=starts,
        data=data,
    )


_NONE: Final = np.empty(0, np.int64)
_NO_ELEMENTS: Final = Elements(
    *(_NONE,) * 13, packed=np.empty(0, np.bool_), starts=np.zeros(1, np.int64), data=np.empty(0, np.uint8)
)


def _with_hits(chunk: pa.RecordBatch, ids: Ids, matches: Matches) -> pa.RecordBatch:
    """Append hits to those that the ids brought along."""
    former, bounds = flat(chunk.column("hits"))
    doubts = floats(chunk.column("probabilities"))
    rows = np.concatenate([np.repeat(np.arange(len(ids)), np.diff(bounds)), matches.row])
    order = np.argsort(rows, kind="stable")
    hits = np.concatenate([former, matches.history])[order].astype(np.int32)
    probabilities = np.concatenate([doubts, matches.probability])[order]
    columns: dict[str, pa.Array[Any]] = {name: chunk.column(name) for name in chunk.schema.names}
    columns["hits"] = lists(rows, len(ids), array(hits))
    columns["probabilities"] = lists(rows, len(ids), array(probabilities))
    return record_batch([columns[name].cast(chunk.schema.field(name).type) for name in columns], schema=chunk.schema)
