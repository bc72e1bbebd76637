"""What was published: rows of pubend logs, or of a lake, brought batch by batch to a function in Spark's workers.

`Published.map` is what all jobs that look at messages are built on. The function gets (pubend, batch), ticks ascending within a
batch, in batches of a good size, and yields Arrow batches of the schema it states.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from postroad.core.batch.batch import Batch
from postroad.errors import LogsMissingError
from postroad.spark.cluster import parallelism
from postroad.spark.jobs.arrow import id_column, record_batch
from postroad.spark.jobs.directories import DataDirectory, data_directories
from postroad.storage.directory import logs_in
from postroad.storage.remote import path_of
from postroad.storage.segment.external_reader import LogView, Part, observe, parts, read_part, sound_parts
from postroad.types import COUNTER_BITS

PART_BYTES: Final = 16 << 20
ROWS_MIN: Final = 16_384  # smaller batches of one layout are joined, so that work per batch does not dominate

Numbered: TypeAlias = Iterator[tuple[int, Batch]]  # pubend, rows
Kernel: TypeAlias = Callable[[Numbered], Iterator[pa.RecordBatch]]


class LogHole(NamedTuple):
    """Ticks in (lo, hi] of a pubend that are not at hand, and why. `known`: their absence is on record, or was accepted."""

    pubend: int
    lo: int
    hi: int
    reason: str
    known: bool = True


class Published(Protocol):
    """Messages of pubends. `ranges` says which ticks (lo, hi] of each are at hand, `holes` what of them is not.

    `absent` is what lies before or behind the ranges and may have been published. `directories` are the brokers' as given.
    """

    @property
    def spark(self) -> SparkSession: ...

    @property
    def ranges(self) -> dict[int, tuple[int, int]]: ...

    @property
    def holes(self) -> tuple[LogHole, ...]: ...

    @property
    def absent(self) -> tuple[LogHole, ...]: ...

    @property
    def directories(self) -> tuple[DataDirectory, ...]: ...

    def behind(self, ticks: Mapping[int, int], checked: Mapping[int, int]) -> Published:
        """Return the same with only those messages of the named pubends that lie behind a tick.

        What is absent up to `checked` was at hand when it was checked.
        """
        ...

    def within(self, since_ms: int, until_ms: int) -> Published:
        """Return the same with only those messages that were published in [since_ms, until_ms), by their ticks."""
        ...

    def map(self, kernel: Kernel, schema: str, attributes: Iterable[str] | None = None, *, payloads: bool = False) -> DataFrame:
        """Run a function over all messages; it may look at these attributes only, or all when None, and perhaps at payloads."""
        ...


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The logs of brokers' data directories, running or not."""

    spark: SparkSession
    ranges: dict[int, tuple[int, int]]
    holes: tuple[LogHole, ...]
    parts: tuple[Part, ...]
    absent: tuple[LogHole, ...] = ()
    directories: tuple[DataDirectory, ...] = ()

    def behind(self, ticks: Mapping[int, int], checked: Mapping[int, int]) -> LogFiles:
        left = [part for part in self.parts if part.hi > ticks.get(part.pubend, -1)]
        parts = tuple(replace(part, lo=max(part.lo, ticks.get(part.pubend, -1))) for part in left)
        return replace(self, parts=parts, absent=not_checked(self.absent, checked))

    def within(self, since_ms: int, until_ms: int) -> LogFiles:
        lo, hi = tick_bounds(since_ms, until_ms)
        left = [part for part in self.parts if part.hi > lo and part.lo < hi]
        parts = tuple(replace(part, lo=max(part.lo, lo), hi=min(part.hi, hi)) for part in left)
        return replace(self, parts=parts, holes=touching(self.holes, lo, hi), absent=touching(self.absent, lo, hi))

    def map(
        self,
        kernel: Kernel,
        schema: str,
        attributes: Iterable[str] | None = None,  # noqa: ARG002  # all are there
        *,
        payloads: bool = False,  # noqa: ARG002
    ) -> DataFrame:
        return pieces(self.spark, self.parts).mapInArrow(_PartReader(kernel), schema)


def open_logs(spark: SparkSession, directories: Sequence[str], *, tolerant: bool = False) -> LogFiles:
    """Look at the logs in data directories, or in directories of them.

    What is damaged raises, or is a hole if `tolerant`; then every record is read once more, to find the damaged ones.
    """
    views = [observe(path, pubend, tolerant=tolerant) for pubend, path in log_paths(directories)]
    ranges = {view.pubend: (view.released, view.last) for view in views}
    holes = [LogHole(view.pubend, hole.lo, hole.hi, str(hole.error)) for view in views for hole in view.holes]
    if tolerant:
        listed, damaged = _sound(spark, views)
        holes += damaged
    else:
        listed = [part for view in views for part in cut(view, view.released, view.last)]
    absent = tuple(hole for view in views if (hole := released_hole(view)) is not None)
    return LogFiles(spark, ranges, tuple(holes), tuple(listed), absent, data_directories(directories))


def tick_bounds(since_ms: int, until_ms: int) -> tuple[int, int]:
    """Return (lo, hi], the ticks of a period."""
    return (since_ms << COUNTER_BITS) - 1, (until_ms << COUNTER_BITS) - 1


def touching(holes: Iterable[LogHole], lo: int, hi: int) -> tuple[LogHole, ...]:
    return tuple(hole for hole in holes if hole.hi > lo and hole.lo < hi)


def not_checked(absent: Iterable[LogHole], checked: Mapping[int, int]) -> tuple[LogHole, ...]:
    """Return the absent ranges that reach beyond what was checked, from there on."""
    cut_off = (hole._replace(lo=max(hole.lo, checked.get(hole.pubend, -1))) for hole in absent)
    return tuple(hole for hole in cut_off if hole.lo < hole.hi)


def released_hole(view: LogView) -> LogHole | None:
    """Return what the log does not hold any more, and whether it says so itself."""
    if not view.released:
        return None
    if view.released <= view.marked:
        return LogHole(view.pubend, 0, view.released, "released by its broker")
    return LogHole(
        view.pubend, view.marked, view.released, "its oldest segments are missing, and the log did not release them", False
    )


def _sound(spark: SparkSession, views: Sequence[LogView]) -> tuple[list[Part], list[LogHole]]:
    """Read logs through; return parts without damaged records, and the damaged ranges."""
    listed = pieces(spark, [(view.pubend, segment) for view in views for segment in view.segments])
    parts, holes = [], []
    for row in listed.mapInArrow(_read_through, "piece binary").collect():
        found, damaged = pickle.loads(bytes(row["piece"]))  # noqa: S301  # our own, from `_read_through`
        parts += found
        holes += damaged
    return sorted(parts, key=lambda part: (part.pubend, part.after)), sorted(holes)


def _read_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for pubend, segment in pieces_of(batches):
        parts, holes = sound_parts(pubend, segment, PART_BYTES)
        damaged = [LogHole(pubend, hole.lo, hole.hi, str(hole.error)) for hole in holes]
        yield record_batch([pa.array([pickle.dumps((parts, damaged))], pa.binary())], names=["piece"])


def cut(view: LogView, lo: int, hi: int) -> list[Part]:
    return parts(view, lo, hi, PART_BYTES)


def log_paths(directories: Sequence[str]) -> list[tuple[int, Path]]:
    """Find the logs in data directories: (pubend, path), each once."""
    found: dict[int, Path] = {}
    for directory in directories:
        root = path_of(directory).absolute()  # tasks run elsewhere
        here = [logs_in(root)] if logs_in(root) else [logs_in(path) for path in sorted(root.glob("*"))]
        if not any(here):
            raise LogsMissingError(directory)
        for logs in here:
            found |= logs
    return sorted(found.items())


def pieces(spark: SparkSession, listed: Sequence[Any]) -> DataFrame:
    """Make a DataFrame of things to work on, spread evenly over tasks in their order."""
    rows = [(bytearray(pickle.dumps(each)),) for each in listed]
    frame = spark.createDataFrame(rows, "piece binary")
    tasks = max(1, min(len(rows), 4 * parallelism(spark)))
    return frame.repartition(tasks) if rows else frame


def pieces_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        found: list[Any] = batch.column("piece").to_pylist()
        for piece in found:
            yield pickle.loads(piece)  # noqa: S301  # our own, from `pieces`


class _PartReader:
    """For `mapInArrow`: parts of logs to what a kernel makes of their rows."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._kernel(joined(self._rows(batches)))

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Numbered:
        for part in pieces_of(batches):
            for batch in read_part(part):
                yield part.pubend, batch


def joined(rows: Numbered) -> Numbered:
    """Join small batches that have one layout and follow each other in one stream."""
    waiting: list[Batch] = []
    count, owner, reached = 0, 0, 0
    for pubend, batch in rows:
        if not len(batch):
            continue
        follows = pubend == owner and int(batch.ticks()[0]) > reached
        if waiting and (count >= ROWS_MIN or not follows or batch.layout is not waiting[0].layout):
            yield owner, _join(waiting)
            waiting, count = [], 0
        waiting.append(batch)
        owner, count, reached = pubend, count + len(batch), int(batch.ticks()[-1])
    if waiting:
        yield owner, _join(waiting)


def _join(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    columns = pa.Table.from_batches([batch.columns for batch in batches]).combine_chunks().to_batches()[0]
    return Batch(columns, batches[0].layout)


def ids_kernel(rows: Numbered) -> Iterator[pa.RecordBatch]:
    for _, batch in rows:
        yield record_batch([id_column(batch.ids())], names=["id"])


def all_ids(published: Published) -> DataFrame:
    """Return the ids of all messages, as a column `id`."""
    return published.map(ids_kernel, "id binary", ())
