"""Rows of a lake in a table format, as a source of published messages: tasks read the table's files themselves.

The files are those of one version of the table, so time travel is reading the files of an older one. A column that a file lacks,
because its attribute is younger, is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from postroad.core.batch.schema import KIND_TYPES
from postroad.errors import LakeError
from postroad.spark.jobs.arrow import array, integers, record_batch
from postroad.spark.jobs.directories import DataDirectory, data_directories
from postroad.spark.jobs.lake_tables import format_of, open_table
from postroad.spark.jobs.message_table import AttributeColumn, LakeReader, LakeRows, absent_from, open_lake_rows
from postroad.spark.jobs.published import Kernel, LogHole, not_checked, pieces, pieces_of, tick_bounds, touching
from postroad.storage.remote import RemotePath, located, path_of

_PUBEND: Final = re.compile(r"/pubend=(\d+)/")
_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class TableRows:
    """A version of a table; see `published.Published`."""

    spark: SparkSession
    ranges: dict[int, tuple[int, int]]
    holes: tuple[LogHole, ...]
    files: tuple[str, ...]
    attributes: tuple[AttributeColumn, ...]
    absent: tuple[LogHole, ...] = ()
    directories: tuple[DataDirectory, ...] = ()
    after: Mapping[int, int] | None = None  # of each pubend only what lies behind this tick
    to: int | None = None  # only what does not lie behind this tick

    def within(self, since_ms: int, until_ms: int) -> TableRows:
        lo, hi = tick_bounds(since_ms, until_ms)
        every = dict.fromkeys(self.ranges, lo)
        return replace(self, after=every, to=hi, holes=touching(self.holes, lo, hi), absent=touching(self.absent, lo, hi))

    def behind(self, ticks: Mapping[int, int], checked: Mapping[int, int]) -> TableRows:
        return replace(self, after=ticks, absent=not_checked(self.absent, checked))

    def map(self, kernel: Kernel, schema: str, attributes: Iterable[str] | None = None, *, payloads: bool = False) -> DataFrame:
        wanted = None if attributes is None else set(attributes)
        columns = [column for column in self.attributes if wanted is None or column.name in wanted]
        reader = _FileReader(LakeReader(kernel, columns), columns, payloads=payloads, after=self.after or {}, to=self.to)
        return pieces(self.spark, self.files).mapInArrow(reader, schema)


def open_rows(
    spark: SparkSession, path: str, directories: Sequence[str] = (), *, version: int | None = None
) -> LakeRows | TableRows:
    """Open a lake of any format. `version` looks back in time, which plain Parquet cannot."""
    form = format_of(path)
    if form is None:
        if version is not None:
            raise LakeError(path, "only Delta and Iceberg tables have versions")
        return open_lake_rows(spark, path, directories)
    table = open_table(path, form, version)
    state = table.state
    ranges = {pubend: (begin, table.reached(pubend) or begin) for pubend, begin in state.begins.items()}
    if not ranges:
        raise LakeError(path, "nothing was ingested into it")
    holes = tuple(LogHole(hole.pubend, hole.lo, hole.hi, hole.problem) for hole in state.holes)
    absent = absent_from(ranges, directories)
    return TableRows(spark, ranges, holes, tuple(table.files()), state.attributes, absent, data_directories(directories))


class _FileReader:
    """For `mapInArrow`: files of a table to what a kernel makes of their rows."""

    def __init__(
        self,
        rows: LakeReader,
        columns: Sequence[AttributeColumn],
        *,
        payloads: bool,
        after: Mapping[int, int],
        to: int | None,
    ) -> None:
        self._rows, self._payloads, self._after, self._to = rows, payloads, dict(after), to
        self._fields: list[tuple[str, Any]] = [
            ("id", pa.binary()),
            ("tick", pa.int64()),
            ("pubend", pa.int64()),
            ("payload", pa.binary()),
        ]
        self._fields += [(column.column, KIND_TYPES[column.kind]) for column in columns]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._rows(rows for file in pieces_of(batches) for rows in self._read(str(file)))

    def _read(self, file: str) -> Iterator[pa.RecordBatch]:
        path = path_of(file)
        source: Any = path.open() if isinstance(path, RemotePath) else str(path)
        found = _PUBEND.search(file)
        with pq.ParquetFile(source) as opened:
            present = set(opened.schema_arrow.names) - ({"payload"} if not self._payloads else set())
            chosen = [name for name, _ in self._fields if name in present]
            for batch in opened.iter_batches(_BATCH_ROWS, columns=chosen):
                rows = len(batch)
                columns = {name: batch.column(name) for name in chosen}
                if "pubend" not in columns and found is not None:
                    columns["pubend"] = array(np.full(rows, int(found[1]), np.int64))
                if not self._payloads:
                    columns["payload"] = pa.repeat(pa.scalar(b"", pa.binary()), rows)
                arrays = [columns[name].cast(kind) if name in columns else pa.nulls(rows, kind) for name, kind in self._fields]
                yield self._wanted(record_batch(arrays, names=[name for name, _ in self._fields]))

    def _wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        ticks, pubends = integers(rows.column("tick")), integers(rows.column("pubend"))
        chosen = np.ones(len(rows), bool)
        for pubend, tick in self._after.items():
            chosen &= (pubends != pubend) | (ticks > tick)
        if self._to is not None:
            chosen &= ticks <= self._to
        return rows if chosen.all() else rows.filter(array(chosen))


class FileWriter:
    """A kernel: messages to Parquet files of a table, a file per day and pubend; yields a row per file (`WRITTEN`)."""

    def __init__(self, root: str, rows: Any, schema: pa.Schema, bytes_max: int) -> None:
        self._root, self._rows, self._schema, self._bytes_max = root, rows, schema, bytes_max

    def __call__(self, numbered: Any) -> Iterator[pa.RecordBatch]:
        current: _OpenFile | None = None
        for batch in self._rows(numbered):
            days = batch.column("day")
            pubend = int(batch.column("pubend")[0].as_py())
            for day in days.unique().to_pylist():
                part = batch.filter(pa.compute.equal(days, day))
                if current is not None and (current.key != (day, pubend) or current.bytes >= self._bytes_max):
                    yield current.close()
                    current = None
                if current is None:
                    current = _OpenFile(self._root, day, pubend, self._schema)
                current.write(part)
        if current is not None:
            yield current.close()


class _OpenFile:
    def __init__(self, root: str, day: str, pubend: int, schema: pa.Schema) -> None:
        import secrets  # noqa: PLC0415  # in the task: a name that no other attempt has

        self.key = (day, pubend)
        self.bytes = 0
        self._rows = 0
        self._schema = schema
        self._path = path_of(root) / f"day={day}" / f"pubend={pubend}" / f"{secrets.token_hex(16)}.parquet"
        if isinstance(self._path, RemotePath):
            filesystem, name = located(self._path)
            self._stream: Any = filesystem.open_output_stream(name)
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = pa.OSFile(str(self._path), "wb")
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows.select(self._schema.names).cast(self._schema))
        self._rows += len(rows)
        self.bytes += rows.nbytes

    def close(self) -> pa.RecordBatch:
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        day, pubend = self.key
        row = {"path": str(self._path), "size": size, "rows": self._rows, "day": day, "pubend": pubend}
        return pa.RecordBatch.from_pylist([row])
