"""`ingest`: closed segments of pubend logs become rows of a lake, each message once, as often as it is run.

See `message_table`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from postroad.core.batch.schema import Kind
from postroad.errors import LakeError, StorageError
from postroad.spark.cluster import parallelism
from postroad.spark.jobs import message_table as lakes
from postroad.spark.jobs.arrow import array, record_batch
from postroad.spark.jobs.filesystems import place
from postroad.spark.jobs.lake_tables import TARGET_BYTES, LakeTable, NewFile, TableState, format_of, open_table, row_fields
from postroad.spark.jobs.message_table import Commit, Lake, RowKernel, Taken
from postroad.spark.jobs.published import LogFiles, log_paths, pieces, pieces_of
from postroad.spark.jobs.table_rows import FileWriter
from postroad.storage.remote import path_of
from postroad.storage.segment.external_reader import LogView, Part, layouts, observe
from postroad.storage.segment.reader import Segment

ROUND_SEGMENTS: Final = 32  # taken by one commit, at least
ROUND_TASKS: Final = 8  # segments of a commit for each task that the cluster runs at once
WRITTEN: Final = "path string, size long, rows long, day string, pubend long"
_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"


LakeFormat: TypeAlias = Literal["parquet", "delta", "iceberg"]


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one run added: rows, and what it could not have."""

    rows: int
    segments: int
    commits: int
    holes: tuple[Taken, ...]


@dataclass(frozen=True, slots=True)
class _NewRows:
    """A closed segment, or what of it is new."""

    pubend: int
    segment: Segment
    lo: int

    @property
    def rows(self) -> int | None:
        """How many rows it has, if all of it is new."""
        assert self.segment.trailer is not None
        return self.segment.trailer.rows if self.lo == self.segment.base else None

    def part(self) -> Part:
        return Part(self.pubend, self.segment, self.segment.start, self.segment.base, self.lo, self.segment.last)


def ingest(
    spark: SparkSession,
    directories: Sequence[str],
    path: str,
    *,
    form: LakeFormat | None = None,
    tolerant: bool = False,
    told: Callable[[Ingested], None] = lambda _: None,
) -> Ingested:
    """Bring a lake up to date with the logs in data directories. `told` hears of every commit.

    A lake that is there has its format; `form` is that of a new one.
    """
    views = [observe(where, pubend, tolerant=tolerant) for pubend, where in log_paths(directories)]
    target = _target(spark, path, form)
    units, holes = _plan(views, target.reached)
    total = Ingested(0, 0, 0, tuple(holes))
    most = max(ROUND_SEGMENTS, ROUND_TASKS * parallelism(spark))
    rounds = [units[start : start + most] for start in range(0, len(units), most)] or ([[]] if holes else [])
    for number, chosen in enumerate(rounds):
        rows = target.take(chosen, holes if number == 0 else [])
        total = Ingested(total.rows + rows, total.segments + len(chosen), total.commits + 1, total.holes)
        told(total)
    return total


class _Target(Protocol):
    """A lake that takes rows."""

    def reached(self, pubend: int) -> int | None: ...

    def take(self, units: Sequence[_NewRows], holes: Sequence[Taken]) -> int:
        """Add the rows of some segments, in one commit; return how many they are."""
        ...


def _target(spark: SparkSession, path: str, form: LakeFormat | None) -> _Target:
    there: LakeFormat | None = format_of(path)
    if there is None and place(spark, path).listed(f"{lakes.COMMITS}/*.json"):
        there = "parquet"
    if there is not None and form is not None and form != there:
        raise LakeError(path, f"it is a lake of the format {there}, not {form}")
    chosen = there or form or "parquet"
    if chosen == "parquet":
        return _ParquetTarget(spark, lakes.open_lake(spark, path, repair=True))
    return _TableTarget(spark, path, open_table(path, chosen))


class _ParquetTarget:
    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = spark, lake

    def reached(self, pubend: int) -> int | None:
        return self._lake.reached(pubend)

    def take(self, units: Sequence[_NewRows], holes: Sequence[Taken]) -> int:
        lake = self._lake
        commit = _take(self._spark, lake, units, holes)
        self._lake = Lake(lake.place, commit.number, (*lake.taken, *commit.taken), commit.attributes)
        return sum(taken.rows for taken in commit.taken)


class _TableTarget:
    def __init__(self, spark: SparkSession, root: str, table: LakeTable) -> None:
        self._spark, self._root, self._table = spark, str(path_of(root).absolute()), table

    def reached(self, pubend: int) -> int | None:
        return self._table.reached(pubend)

    def take(self, units: Sequence[_NewRows], holes: Sequence[Taken]) -> int:
        state = self._table.state
        attributes = lakes.columns_for(state.attributes, _attributes(self._spark, units))
        schema = row_fields(attributes, partitions=self._table.form == "iceberg")
        files: list[NewFile] = []
        if units:
            logs = LogFiles(self._spark, {}, (), tuple(unit.part() for unit in units))
            writer = FileWriter(self._root, RowKernel(attributes), schema, TARGET_BYTES)
            files = [NewFile(*row) for row in logs.map(writer, WRITTEN).collect()]
        counts = {unit.pubend: 0 for unit in units}
        for file in files:
            counts[file.pubend] += file.rows
        _check_counts(units, counts)
        begins = {pubend: _extent(units, pubend)[0] for pubend in counts}
        reached = {pubend: _extent(units, pubend)[1] for pubend in counts}
        for hole in holes:
            begins.setdefault(hole.pubend, hole.lo)
            reached[hole.pubend] = max(hole.hi, reached.get(hole.pubend, 0))
        known = tuple(dict.fromkeys((*state.holes, *holes)))
        self._table.commit(files, reached, TableState(attributes, {**begins, **state.begins}, known))
        return sum(counts.values())


def _plan(views: Sequence[LogView], taken: Callable[[int], int | None]) -> tuple[list[_NewRows], list[Taken]]:
    """Choose what is closed and new; what was released or damaged before it could be taken is a hole."""
    units, holes = [], []
    for view in views:
        reached = taken(view.pubend)
        if reached is not None and view.released > reached:
            holes.append(Taken(view.pubend, reached, view.released, 0, "released before it was ingested"))
        reached = max(reached or 0, view.released)
        fresh = [hole for hole in view.holes if hole.hi > reached]
        holes += [Taken(view.pubend, max(hole.lo, reached), hole.hi, 0, str(hole.error)) for hole in fresh]
        units += [
            _NewRows(view.pubend, segment, max(segment.base, reached))
            for segment in view.segments
            if segment.trailer is not None and segment.last > reached
        ]
    return units, holes


def _take(spark: SparkSession, lake: Lake, units: Sequence[_NewRows], holes: Sequence[Taken]) -> Commit:
    """Write the rows of some segments aside, commit them, and put them in place."""
    number = lake.number + 1
    staging = f"{lakes.STAGING}/{number:08d}-{secrets.token_hex(4)}"
    attributes = lakes.columns_for(lake.attributes, _attributes(spark, units))
    files: tuple[tuple[str, str], ...] = ()
    counts: dict[int, int] = {}
    if units:
        counts = _write(spark, lake, units, attributes, staging)
        files = tuple(_places(lake, staging, number))
    taken = [Taken(pubend, *_extent(units, pubend), rows) for pubend, rows in sorted(counts.items())]
    commit = Commit(lakes.VERSION, number, (*taken, *holes), files, attributes)
    for old, _ in files:
        lake.place.settle(old)
    try:
        lake.place.create(lakes.commit_name(number), msgspec.json.encode(commit))
    except FileExistsError as error:
        raise LakeError(lake.place.root, "another ingest ran at the same time; run this one again") from error
    lakes.put_in_place(lake.place, commit)
    lake.place.remove(staging)
    return commit


def _write(
    spark: SparkSession, lake: Lake, units: Sequence[_NewRows], attributes: Sequence[lakes.AttributeColumn], staging: str
) -> dict[int, int]:
    logs = LogFiles(spark, {}, (), tuple(unit.part() for unit in units))
    rows = logs.map(RowKernel(attributes), lakes.row_schema(attributes))
    target = f"{lake.place.root}/{staging}"
    before = spark.conf.get(_WRITERS)
    spark.conf.set(_WRITERS, "64")  # the rows of a task come in order; without this Spark sorts them, and not by tick
    try:
        rows.write.partitionBy("day", "pubend").parquet(target)
    finally:
        spark.conf.set(_WRITERS, before or "0")
    written = spark.read.option("basePath", target).parquet(target).groupBy("pubend").count().collect()
    counts = {unit.pubend: 0 for unit in units} | {int(row["pubend"]): int(row["count"]) for row in written}
    _check_counts(units, counts)
    return counts


def _check_counts(units: Sequence[_NewRows], counts: Mapping[int, int]) -> None:
    """Compare what was written with what the segments say of themselves."""
    for pubend, count in counts.items():
        known = [unit.rows for unit in units if unit.pubend == pubend]
        if None not in known and count != sum(rows for rows in known if rows is not None):
            raise StorageError(f"of pubend {pubend:x} {count:,} rows were written, but its segments contain another number")


def _places(lake: Lake, staging: str, number: int) -> Iterator[tuple[str, str]]:
    found = lake.place.listed(f"{staging}/day=*/pubend=*/*.parquet")
    for index, each in enumerate(found):
        *_, day, pubend, name = each.path.split("/")
        yield f"{staging}/{day}/{pubend}/{name}", f"{day}/{pubend}/{number:08d}-{index:04d}.parquet"


def _extent(units: Sequence[_NewRows], pubend: int) -> tuple[int, int]:
    mine = [unit for unit in units if unit.pubend == pubend]
    return min(unit.lo for unit in mine), max(unit.segment.last for unit in mine)


def _attributes(spark: SparkSession, units: Sequence[_NewRows]) -> list[tuple[str, Kind]]:
    found = pieces(spark, [(unit.pubend, unit.segment) for unit in units]).mapInArrow(_layout_rows, "name string, kind string")
    return [(row["name"], row["kind"]) for row in found.distinct().collect()]


def _layout_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for pubend, segment in pieces_of(batches):
        view = LogView(segment.path.parent, pubend, (segment,), segment.base, segment.last)
        found = {pair for layout in layouts(view, None) for pair in zip(layout.names, layout.kinds, strict=True)}
        names, kinds = zip(*sorted(found), strict=True) if found else ((), ())
        yield record_batch([array(names, pa.string()), array(kinds, pa.string())], names=["name", "kind"])
