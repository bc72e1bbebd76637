"""Search for any number of ids in any number of elements, in bounded memory.

Ids come in order of time, so that the ids of a task are close together: those of logs are, others are sorted first. A task takes
some ids at a time, reads the files of elements that may hold them (`element_files`), and lays one after the other under the ids
(`matching`). It holds these ids, a bit for each of them and each history of their origins, and the files it read lately. What
becomes of the table of ids and histories is the business of an `Answer`, in the same process: hits for the audit, traces, or
numbers only. So an id goes through Spark as 16 bytes, and elements do not go through it at all.

Copies of unfinished elements are the exception. Brokers that run remove them at any time, so they were read with the index. Each
goes to the tasks whose ids it may hold: ids and copies are divided by buckets of time, and the copies of a bucket come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.batch.batch import Ids
from postroad.spark.jobs.arrow import array, id_milliseconds, ids_of, integers, lists, record_batch
from postroad.spark.jobs.element_files import ElementFiles, ascending, copied_elements, in_turns
from postroad.spark.jobs.histories import NumberedHistory
from postroad.spark.jobs.matching import Elements, Found, Longs, Sheet
from postroad.spark.jobs.trackfiles import COPIES_SUFFIX
from postroad.spark.jobs.tracks import HISTORY, Tracks
from postroad.tracking.histories.elements import ID_DTYPE

CHUNK_IDS: Final = 1 << 17  # ids searched at a time
CELLS_MAX: Final = 1 << 25  # of the table of ids and histories
COPY_BUCKETS: Final = 64  # of the time that copies reach over

HITS: Final = "hits array<int>, probabilities array<double>"
_PART_COPY, _PART_ID = 0, 1
_BUCKET, _PART, _COPY = "bucket_", "part_", "copy_"  # beside the columns of the ids


class Answer(Protocol):
    """What is made of ids and the histories they were found in. Each task has its own, made by `fresh`."""

    def fresh(self) -> Answer: ...

    def take(self, rows: pa.RecordBatch, ids: Ids, sheet: Sheet, found: Found) -> Iterator[pa.RecordBatch]: ...

    def finish(self) -> Iterator[pa.RecordBatch]: ...


def search(
    tracks: Tracks,
    ids: DataFrame,
    histories: Sequence[NumberedHistory],
    answer: Answer,
    schema: Any,
    *,
    ordered: bool = False,
) -> DataFrame:
    """Search for the rows of `ids` (a column `id` of 16 bytes, and any others), each id once; return what the answer yields.

    `ordered` says that the ids are different ones and come in order of time, more or less, as those of a log.
    """
    files = ElementFiles(tracks.files, histories)
    asked = ids.filter(F.col("id").isNotNull())
    copies = _copies(tracks, histories)
    if copies is not None:
        return _with_copies(asked, *copies).mapInArrow(_Search(files, answer), schema)
    if not ordered:
        asked = asked.repartitionByRange(_tick(), F.col("id")).sortWithinPartitions(_tick(), "id")
    return asked.mapInArrow(_Search(files, answer), schema)


def find_hits(tracks: Tracks, ids: DataFrame, histories: Sequence[NumberedHistory], *, ordered: bool = False) -> DataFrame:
    """Return the rows of `ids` with the columns `HITS`, each id once.

    A row without an id says what was tested: per history, how many false positives to expect among its candidates.
    """
    empty = ("CAST(array() AS array<int>) AS hits", "CAST(array() AS array<double>) AS probabilities")
    return search(tracks, ids, histories, HitLists(), ids.selectExpr("*", *empty).schema, ordered=ordered)


def _tick() -> Column:
    return F.substring("id", 9, 8)


def milliseconds_of(message_id: Column) -> Column:
    return F.conv(F.hex(F.substring(message_id, 9, 6)), 16, 10).cast("long")


# --- copies of unfinished elements ----------------------------------------------------------------------------------------


def _copies(tracks: Tracks, histories: Sequence[NumberedHistory]) -> tuple[DataFrame, int, int] | None:
    """Return the copies with the bucket of each place they reach, the first moment and the length of a bucket."""
    if not any(file.copies for file in tracks.files):
        return None
    keys = [(*(getattr(history, name) for name in HISTORY), history.number) for history in histories]
    schema = "broker long, kind string, origin long, peer long, subscriber string, history int"
    numbered = tracks.spark.createDataFrame(keys, schema)
    copies = tracks.elements.filter(F.col("file").endswith(COPIES_SUFFIX)).join(F.broadcast(numbered), list(HISTORY))
    ranged = F.col("from_ms") <= F.col("to_ms")
    low = F.least(F.when(ranged, F.col("from_ms")), F.array_min("singletons"))
    high = F.greatest(F.when(ranged, F.col("to_ms")), F.array_max("singletons"))
    extent = copies.agg(F.min(low), F.max(high)).first()
    if extent is None or extent[0] is None:
        return None
    begin, width = int(extent[0]), max((int(extent[1]) - int(extent[0])) // COPY_BUCKETS + 1, 1)
    first, last = (F.floor((F.col(name) - begin) / width) for name in ("from_ms", "to_ms"))
    in_range = F.when(ranged, F.sequence(first, last)).otherwise(F.array().cast("array<bigint>"))
    late = F.transform(
        F.coalesce("singletons", F.array().cast("array<bigint>")), lambda moment: F.floor((moment - begin) / width)
    )
    sets = F.greatest(F.size("neighbours"), F.lit(0)).cast("int").alias("sets")
    packed = (F.col("strategy") != "bloom").alias("packed")
    same = ("history", "origin", "broker", "from_ms", "to_ms", "singletons", "m", "k", "count")
    placed = copies.select(*same, sets, packed, "body", F.explode(F.array_union(in_range, late)).alias(_BUCKET))
    return placed.mapInArrow(_pack_copies, f"{_BUCKET} long, {_COPY} binary"), begin, width


def _pack_copies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make one value of each copy, so that rows of ids beside it stay narrow."""
    for batch in batches:
        values = [_one_row(batch, row) for row in range(batch.num_rows)]
        yield record_batch([batch.column(_BUCKET), array(values, pa.binary())], names=[_BUCKET, _COPY])


def _one_row(batch: pa.RecordBatch, row: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch.take(array([row])))
    return sink.getvalue().to_pybytes()


def _with_copies(asked: DataFrame, copies: DataFrame, begin: int, width: int) -> DataFrame:
    """Bring ids and copies together: rows in order of buckets, and in each the copies before the ids, by time."""
    bucket = F.floor((milliseconds_of(F.col("id")) - begin) / width).alias(_BUCKET)
    rows = asked.select("*", bucket, F.lit(_PART_ID).alias(_PART)).unionByName(
        copies.withColumn(_PART, F.lit(_PART_COPY)), allowMissingColumns=True
    )
    return rows.repartitionByRange(_BUCKET).sortWithinPartitions(_BUCKET, _PART, _tick(), "id")


# --- in the workers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Search:
    """A function for `mapInArrow`: rows of ids, perhaps with copies among them, to what the answer makes of them."""

    files: ElementFiles
    answer: Answer

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _Task(self.files, self.answer.fresh())
        for batch in batches:
            if _COPY in batch.schema.names:
                for rows, is_copy in _runs(batch):
                    yield from task.take_copies(rows) if is_copy else task.take(_only_asked(rows))
            else:
                yield from task.take(batch)
        yield from task.finish()


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
    bucket, part = integers(batch.column(_BUCKET)), integers(batch.column(_PART))
    changes = np.flatnonzero((bucket[1:] != bucket[:-1]) | (part[1:] != part[:-1])) + 1
    for start, stop in pairwise([0, *changes.tolist(), batch.num_rows]):
        if start < stop:
            yield batch.slice(start, stop - start), int(part[start]) == _PART_COPY


def _only_asked(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select([name for name in rows.schema.names if name not in {_PART, _COPY}])


class _Task:
    """What a task holds: ids that wait to be searched, and the copies of their bucket."""

    def __init__(self, files: ElementFiles, answer: Answer) -> None:
        self._files = files
        self._answer = answer
        self._waiting: list[pa.RecordBatch] = []
        self._count = 0
        self._last: bytes | None = None  # the id taken last
        self._copies: list[Elements] = []
        self._copies_of: int | None = None  # their bucket
        self._forward = True

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if _BUCKET in rows.schema.names:
            if self._copies and integers(rows.column(_BUCKET))[0] != self._copies_of:
                yield from self._search()
                self._copies = []
            rows = rows.select([name for name in rows.schema.names if name != _BUCKET])
        for start in range(0, rows.num_rows, CHUNK_IDS):
            part = self._drop_repeated(rows.slice(start, CHUNK_IDS))
            self._waiting.append(part)
            self._count += part.num_rows
            if self._count >= CHUNK_IDS:
                yield from self._search()

    def take_copies(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from self._search()
        bucket = int(integers(rows.column(_BUCKET))[0])
        if bucket != self._copies_of:
            self._copies, self._copies_of = [], bucket
        read = [pa.ipc.open_stream(each.as_buffer()).read_next_batch() for each in rows.column(_COPY)]
        table = pa.Table.from_batches(read).combine_chunks().to_batches()[0]
        self._copies.append(copied_elements(table, integers(table.column("history"))))

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield from self._search()
        yield from self._answer.finish()

    def _drop_repeated(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Drop ids that stand more than once; equal ones follow each other."""
        if not rows.num_rows:
            return rows
        words = np.ascontiguousarray(ids_of(rows.column("id"))).view(np.uint64).reshape(-1, 2)
        fresh = np.ones(len(words), np.bool_)
        fresh[1:] = (words[1:] != words[:-1]).any(axis=1)
        fresh[0] = words[0].tobytes() != self._last
        self._last = words[-1].tobytes()
        return rows if bool(fresh.all()) else rows.filter(array(fresh))

    def _search(self) -> Iterator[pa.RecordBatch]:
        waiting, self._waiting, self._count = [each for each in self._waiting if each.num_rows], [], 0
        if not waiting:
            return
        rows = pa.Table.from_batches(waiting).combine_chunks().to_batches()[0] if len(waiting) > 1 else waiting[0]
        ids = ids_of(rows.column("id"))
        known = self._files.histories_of(np.unique(ids.view(ID_DTYPE)["broker"]).astype(np.int64))
        step = max(CELLS_MAX // max(len(known), 1), 1)
        for start in range(0, len(ids), step):
            yield from self._look(rows.slice(start, step), ids[start : start + step], known)

    def _look(self, rows: pa.RecordBatch, ids: Ids, known: Longs) -> Iterator[pa.RecordBatch]:
        sheet = Sheet(ids, known)
        near = self._files.over(ascending(id_milliseconds(ids)))
        for file in in_turns(near, forward=self._forward):
            sheet.put_under(self._files.read(file))
        self._forward = not self._forward
        for copies in self._copies:
            sheet.put_under(copies)
        yield from self._answer.take(rows, ids, sheet, sheet.found())


class HitLists:
    """An answer: the rows with the columns `HITS`, and at the end what was tested."""

    def __init__(self) -> None:
        self._tested: dict[int, float] = {}
        self._schema: pa.Schema | None = None

    def fresh(self) -> HitLists:
        return HitLists()

    def take(self, rows: pa.RecordBatch, ids: Ids, sheet: Sheet, found: Found) -> Iterator[pa.RecordBatch]:
        row, column = found.pairs()
        for history, (_, expected) in sheet.tested.items():
            self._tested[history] = self._tested.get(history, 0.0) + expected
        made = rows.append_column("hits", lists(row, len(ids), array(found.histories[column].astype(np.int32))))
        made = made.append_column("probabilities", lists(row, len(ids), array(found.probabilities(row, column))))
        self._schema = made.schema
        yield made

    def finish(self) -> Iterator[pa.RecordBatch]:
        if self._tested:
            row = {"hits": list(self._tested), "probabilities": list(self._tested.values())}
            yield pa.RecordBatch.from_pylist([row], schema=self._schema)
