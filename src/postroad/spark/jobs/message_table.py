"""A lake: the messages of pubends as Parquet tables, partitioned by day and pubend.

    <lake>/day=2026-03-01/pubend=1792/00000012-0003.parquet     rows; Spark and anybody else reads them as they are
    <lake>/_postroad/commits/00000012.json                      what commit 12 added: ranges of ticks, files, columns
    <lake>/_postroad/staging/00000013-<random>/                 files of a commit that has not happened yet

A commit happens when its JSON file appears, which is one atomic step; then its files are moved from the staging area to their
places. A crash before that leaves staged files that nobody reads and the next run removes; a crash after it leaves moves that the
next run makes up for. A message is in one commit only, since commits say up to which tick each pubend was taken. So no row is
ever there twice, and none is missing for longer than until the next run.

Columns: `id`, `tick`, `publisher`, `timestamp`, `payload`, and one per attribute. Attributes keep their kinds over the years: the
first kind seen has the attribute's name, another kind gets a column of its own (`price@float`). The commit says which is which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import ATTRIBUTE_PREFIX, KIND_TYPES, Kind, layout_of
from postroad.errors import LakeError
from postroad.spark.jobs.arrow import array, id_column, ids_of, integers, record_batch
from postroad.spark.jobs.directories import DataDirectory, data_directories
from postroad.spark.jobs.filesystems import Place, place
from postroad.spark.jobs.published import Kernel, LogHole, Numbered, joined, log_paths, not_checked, tick_bounds, touching
from postroad.storage.directory import logs_in
from postroad.storage.remote import path_of
from postroad.storage.segment.external_reader import observe
from postroad.types import COUNTER_BITS

VERSION: Final = 1
COMMITS: Final = "_postroad/commits"
STAGING: Final = "_postroad/staging"
SYSTEM: Final = ("id", "tick", "publisher", "timestamp", "payload", "day", "pubend")
SPARK_TYPES: Final[Mapping[Kind, str]] = {
    "bool": "boolean",
    "int": "long",
    "float": "double",
    "string": "string",
    "binary": "binary",
}
_DAY_MS: Final = 86_400_000
_SYSTEM_READ: Final = 4  # columns that a reader takes before those of attributes


class AttributeColumn(msgspec.Struct, frozen=True):
    """Where values of one kind of an attribute stand."""

    name: str
    kind: Kind
    column: str


class Taken(msgspec.Struct, frozen=True):
    """Ticks (lo, hi] of a pubend that a commit took; `rows` messages, or none and the reason why they could not be had."""

    pubend: int
    lo: int
    hi: int
    rows: int
    problem: str = ""


class Commit(msgspec.Struct, frozen=True):
    version: int
    number: int
    taken: tuple[Taken, ...]
    files: tuple[tuple[str, str], ...]  # staged name, final name
    attributes: tuple[AttributeColumn, ...]  # of the whole lake


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake as its commits describe it."""

    place: Place
    number: int  # of the last commit, 0 for none
    taken: tuple[Taken, ...]
    attributes: tuple[AttributeColumn, ...]

    def reached(self, pubend: int) -> int | None:
        """Return the tick up to which a pubend was taken, None if never."""
        return max((taken.hi for taken in self.taken if taken.pubend == pubend), default=None)

    @property
    def rows(self) -> int:
        return sum(taken.rows for taken in self.taken)


def open_lake(spark: SparkSession, path: str, *, repair: bool = False) -> Lake:
    """Read what a lake says of itself; with `repair`, finish or undo what a crash left half done."""
    where = place(spark, path)
    commits = [_read_commit(where, found.path) for found in where.listed(f"{COMMITS}/*.json")]
    for index, commit in enumerate(commits, 1):
        if commit.number != index:
            raise LakeError(path, f"commit {index} is missing")
    _settle(where, commits, repair=repair)
    attributes = commits[-1].attributes if commits else ()
    return Lake(where, len(commits), tuple(taken for commit in commits for taken in commit.taken), attributes)


def _read_commit(where: Place, path: str) -> Commit:
    name = path.rpartition("/")[2]
    try:
        commit = msgspec.json.decode(where.read(f"{COMMITS}/{name}"), type=Commit)
    except msgspec.MsgspecError as error:
        raise LakeError(where.root, f"{COMMITS}/{name} is invalid ({error})") from error
    if commit.version != VERSION:
        raise LakeError(where.root, f"{COMMITS}/{name} has version {commit.version}; this release reads version {VERSION}")
    return commit


def _settle(where: Place, commits: Sequence[Commit], *, repair: bool) -> None:
    """Look into the staging area: what a commit names there belongs in its place, the rest is nobody's."""
    for found in where.listed(f"{STAGING}/*"):
        staged = f"{STAGING}/{found.path.rpartition('/')[2]}"
        named = [commit for commit in commits if any(old.startswith(f"{staged}/") for old, _ in commit.files)]
        if repair:
            for commit in named:
                put_in_place(where, commit)
            where.remove(staged)
        elif any(not where.exists(new) for commit in named for _, new in commit.files):
            raise LakeError(where.root, "an ingest is running or was interrupted; wait for it, or run ingest again to finish it")


def put_in_place(where: Place, commit: Commit) -> None:
    """Move the files of a commit to their places, as far as they are not there."""
    for old, new in commit.files:
        if not where.exists(new):
            if not where.exists(old):
                raise LakeError(where.root, f"{new} of commit {commit.number} is missing")
            where.rename(old, new)


def commit_name(number: int) -> str:
    return f"{COMMITS}/{number:08d}.json"


def columns_for(known: Sequence[AttributeColumn], found: Iterable[tuple[str, Kind]]) -> tuple[AttributeColumn, ...]:
    """Give columns to attributes and kinds that have none; names are told apart as Spark does, without regard to case."""
    columns = list(known)
    used = {column.column.lower() for column in columns} | set(SYSTEM)
    have = {(column.name, column.kind) for column in columns}
    for name, kind in sorted(set(found) - have):
        plain = ATTRIBUTE_PREFIX + name if name.lower() in SYSTEM or name.startswith(ATTRIBUTE_PREFIX) else name
        candidates = [plain, f"{name}@{kind}", *(f"{name}@{kind}@{number}" for number in range(2, len(used) + 3))]
        column = next(each for each in candidates if each.lower() not in used)
        used.add(column.lower())
        columns.append(AttributeColumn(name, kind, column))
    return tuple(columns)


def row_schema(attributes: Sequence[AttributeColumn]) -> str:
    fields = ["id binary", "tick long", "publisher long", "timestamp timestamp", "payload binary", "day string", "pubend long"]
    fields += [f"`{column.column.replace('`', '``')}` {SPARK_TYPES[column.kind]}" for column in attributes]
    return ", ".join(fields)


class RowKernel:
    """Messages as rows of a lake."""

    def __init__(self, attributes: Sequence[AttributeColumn]) -> None:
        self._attributes = tuple(attributes)

    def __call__(self, rows: Numbered) -> Iterator[pa.RecordBatch]:
        for pubend, batch in rows:
            yield self._rows(pubend, batch)

    def _rows(self, pubend: int, batch: Batch) -> pa.RecordBatch:
        count = len(batch)
        ticks = batch.ticks().astype(np.int64)
        milliseconds = ticks >> COUNTER_BITS
        days, code = np.unique(milliseconds // _DAY_MS, return_inverse=True)
        texts = array(np.datetime_as_string(days.astype("datetime64[D]")).tolist(), pa.string())
        columns: dict[str, pa.Array[Any]] = {
            "id": id_column(batch.ids()),
            "tick": array(ticks),
            "publisher": array(batch.ids().view(">u4").reshape(-1, 4)[:, 0].astype(np.int64)),
            "timestamp": array(milliseconds * 1000).view(pa.timestamp("us", tz="UTC")),
            "payload": batch.payloads(),
            "day": texts.take(array(code)),
            "pubend": array(np.full(count, pubend, np.int64)),
        }
        kinds = dict(zip(batch.layout.names, batch.layout.kinds, strict=True))
        for column in self._attributes:
            values = batch.attribute(column.name) if kinds.get(column.name) == column.kind else None
            columns[column.column] = pa.nulls(count, KIND_TYPES[column.kind]) if values is None else values
        return record_batch(list(columns.values()), names=list(columns))


# --- reading --------------------------------------------------------------------------------------------------------------


def read_lake(spark: SparkSession, path: str) -> DataFrame:
    """Return all rows of a lake with all columns any of its files has."""
    return spark.read.option("mergeSchema", "true").option("basePath", path).parquet(path)


@dataclass(frozen=True, slots=True)
class LakeRows:
    """A lake as a source of published messages; see `published.Published`."""

    spark: SparkSession
    ranges: dict[int, tuple[int, int]]
    holes: tuple[LogHole, ...]
    path: str
    attributes: tuple[AttributeColumn, ...]
    absent: tuple[LogHole, ...] = ()
    directories: tuple[DataDirectory, ...] = ()
    after: Mapping[int, int] | None = None  # of each pubend only what lies behind this tick
    to: int | None = None  # only what does not lie behind this tick

    def within(self, since_ms: int, until_ms: int) -> LakeRows:
        lo, hi = tick_bounds(since_ms, until_ms)
        every = dict.fromkeys(self.ranges, lo)
        return replace(self, after=every, to=hi, holes=touching(self.holes, lo, hi), absent=touching(self.absent, lo, hi))

    def behind(self, ticks: Mapping[int, int], checked: Mapping[int, int]) -> LakeRows:
        return replace(self, after=ticks, absent=not_checked(self.absent, checked))

    def map(self, kernel: Kernel, schema: str, attributes: Iterable[str] | None = None, *, payloads: bool = False) -> DataFrame:
        wanted = None if attributes is None else set(attributes)
        columns = [column for column in self.attributes if wanted is None or column.name in wanted]
        rows = read_lake(self.spark, self.path)
        present = {name.lower() for name in rows.columns}
        columns = [column for column in columns if column.column.lower() in present]
        payload = F.col("payload") if payloads else F.lit(b"").alias("payload")
        if self.after is not None:
            rows = rows.filter(self._lies_behind(self.after))
        if self.to is not None:
            rows = rows.filter(F.col("tick") <= self.to)
        chosen = rows.select("id", "tick", F.col("pubend").cast("long"), payload, *(_quote(column.column) for column in columns))
        return chosen.mapInArrow(LakeReader(kernel, columns), schema)

    @staticmethod
    def _lies_behind(after: Mapping[int, int]) -> Column:
        """Choose rows, and days, so that files of earlier ones are not read."""
        wanted = ~F.col("pubend").isin(sorted(after))
        for pubend, tick in after.items():
            day = str(np.datetime64(max(tick, 0) >> COUNTER_BITS, "ms").astype("datetime64[D]"))
            wanted = wanted | ((F.col("pubend") == pubend) & (F.col("day") >= day) & (F.col("tick") > tick))
        return wanted


def open_lake_rows(spark: SparkSession, path: str, directories: Sequence[str] = ()) -> LakeRows:
    """Open a lake; of data directories, if given, it is said what the lake lacks of their logs."""
    lake = open_lake(spark, path)
    if not lake.number:
        raise LakeError(path, "nothing was ingested into it")
    ranges: dict[int, tuple[int, int]] = {}
    for taken in lake.taken:
        lo, hi = ranges.get(taken.pubend, (taken.lo, taken.hi))
        ranges[taken.pubend] = (min(lo, taken.lo), max(hi, taken.hi))
    holes = [LogHole(taken.pubend, taken.lo, taken.hi, taken.problem) for taken in lake.taken if taken.problem]
    absent = absent_from(ranges, directories)
    return LakeRows(spark, ranges, tuple(holes), path, lake.attributes, absent, data_directories(directories))


def absent_from(ranges: dict[int, tuple[int, int]], directories: Sequence[str]) -> tuple[LogHole, ...]:
    """Say what a lake lacks: what was before it began, and what of the logs at hand it does not have yet."""
    absent = [LogHole(pubend, 0, lo, "released before the lake began") for pubend, (lo, _) in sorted(ranges.items()) if lo > 0]
    for pubend, where in log_paths(directories_with_logs(directories)) if directories_with_logs(directories) else ():
        view = observe(where, pubend, tolerant=True)
        reached = ranges.setdefault(pubend, (view.released, view.released))[1]
        if view.last > reached:
            absent.append(LogHole(pubend, reached, view.last, "not in the lake; run `postroad pipeline ingest` first", False))
    return tuple(absent)


def directories_with_logs(sources: Sequence[str]) -> list[str]:
    """Return the sources that hold logs which can be looked at."""
    found = []
    for source in sources:
        root = path_of(source)
        if root.is_dir() and (logs_in(root) or any(logs_in(path) for path in root.glob("*"))):
            found.append(source)
    return found


def _quote(name: str) -> Any:
    return F.col(f"`{name.replace('`', '``')}`")


class LakeReader:
    """For `mapInArrow`: rows of a lake to what a kernel makes of them."""

    def __init__(self, kernel: Kernel, attributes: Sequence[AttributeColumn]) -> None:
        self._kernel, self._attributes = kernel, tuple(attributes)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._kernel(joined(each for batch in batches if batch.num_rows for each in self._messages(batch)))

    def _messages(self, rows: pa.RecordBatch) -> Numbered:
        """Yield messages by pubend and layout: a message has at most one of the kinds of an attribute."""
        order = np.lexsort((integers(rows.column("tick")), integers(rows.column("pubend"))))
        rows = rows.take(array(order))
        shape = integers(rows.column("pubend")).copy()
        for column in self._split():
            valid = rows.column(_SYSTEM_READ + column).is_valid().to_numpy(zero_copy_only=False)
            shape = np.unique(shape * 2 + valid, return_inverse=True)[1]
        _, first, code = np.unique(shape, return_index=True, return_inverse=True)
        for number in np.argsort(first).tolist():
            part = rows if len(first) == 1 else rows.take(array(np.flatnonzero(code == number)))
            yield int(part.column("pubend")[0].as_py()), self._batch(part)

    def _split(self) -> list[int]:
        names = [column.name for column in self._attributes]
        return [index for index, name in enumerate(names) if names.count(name) > 1]

    def _batch(self, rows: pa.RecordBatch) -> Batch:
        values: dict[str, tuple[Kind, pa.Array[Any]]] = {}
        for index, column in enumerate(self._attributes):
            found = rows.column(_SYSTEM_READ + index)
            if column.name not in values or found.null_count < len(found):
                values[column.name] = (column.kind, found)
        names = tuple(sorted(values))
        layout = layout_of(names, tuple(values[name][0] for name in names))
        ids = pa.Array.from_buffers(pa.binary(16), rows.num_rows, [None, pa.py_buffer(ids_of(rows.column("id")).tobytes())])
        ticks = array(integers(rows.column("tick")).astype(np.uint64))
        arrays = [ticks, ids, rows.column("payload"), *(values[name][1] for name in names)]
        return Batch(record_batch(arrays, schema=layout.schema), layout)
