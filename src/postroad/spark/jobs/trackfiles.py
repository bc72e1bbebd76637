"""Track files as Arrow batches, in Spark's workers: verified, damage named, ids and bits in one column.

A file is read once for its rows without ids and bits (the *index*), and again by the tasks that search it (`element_files`).
Copies of unfinished elements vanish when the broker writes newer ones, so their bodies come with the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.errors import TrackFileError
from postroad.spark.jobs.arrow import array, binaries, flags, integers, record_batch, schema_of
from postroad.spark.jobs.matching import Flags, pack_ids
from postroad.storage.remote import path_of, read_whole
from postroad.tracking.files.chain import digest_text
from postroad.tracking.files.format import FormatError, TrackTable, unpack
from postroad.tracking.files.schema import HISTORY_KINDS
from postroad.tracking.histories.blooms import K_MAX, M_MAX
from postroad.types import MESSAGE_ID_BYTES

COPIES_SUFFIX: Final = ".open.parquet"
FILE: Final = "file"
DAMAGED: Final = "damaged"
GONE: Final = "gone"

HEAD_TYPE: Final = pa.struct(
    [
        pa.field("written_ms", pa.int64()),
        pa.field("kept_from_ms", pa.int64()),
        pa.field("previous", pa.string()),
        pa.field("replaces", pa.list_(pa.string())),
        pa.field("size", pa.int64()),
        pa.field("problem", pa.string()),
        pa.field("digest", pa.string()),
        pa.field("previous_digest", pa.string()),
        pa.field("stands_for", pa.list_(pa.string())),
        pa.field("broken", pa.list_(pa.string())),
        pa.field("persistence_ms", pa.int64()),
        pa.field("low_ms", pa.int64()),
        pa.field("high_ms", pa.int64()),
    ]
)
HEAD: Final = (
    "struct<written_ms: long, kept_from_ms: long, previous: string, replaces: array<string>, size: long, problem: string, "
    "digest: string, previous_digest: string, stands_for: array<string>, broken: array<string>, persistence_ms: long, "
    "low_ms: long, high_ms: long>"
)
INDEX: Final = (
    "file string, row int, broker long, incarnation long, sequence long, kind string, strategy string, origin long, peer long, "
    "subscriber string, number long, opened_ms long, closed_ms long, from_ms long, to_ms long, singletons array<long>, m long, "
    "k int, n long, count long, neighbours array<long>, pubend long, from_tick long, to_tick long, filter string, "
    f"body binary, head {HEAD}"
)
_COLUMNS: Final = (
    *("broker", "incarnation", "sequence", "kind", "strategy", "origin", "peer", "subscriber", "number", "opened_ms"),
    *("closed_ms", "from_ms", "to_ms", "singletons", "m", "k", "n", "count", "neighbours", "pubend", "from_tick", "to_tick"),
    "filter",
)


def read_index(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn names of files (`file`) into their rows, each file's head first."""
    for name in (str(each) for batch in batches for each in batch.column("file").to_pylist()):
        try:
            data = read(name)
            table = open_table(name, data)
            rows = list(_index_rows(name, table))
        except FileNotFoundError:
            yield _head_row(name, {"kind": GONE, "head": {"problem": "the file is missing"}})
        except TrackFileError as error:
            yield _head_row(name, {"kind": DAMAGED, "head": {"problem": error.reason}})
        else:
            yield _head_row(name, _head(table, len(data)))
            yield from rows


def read(name: str) -> pa.Buffer:
    try:
        return read_whole(path_of(name))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TrackFileError(name, error.strerror or str(error)) from error
    except ValueError as error:
        raise TrackFileError(name, f"tasks cannot read it ({error})") from error


def open_table(name: str, data: pa.Buffer) -> TrackTable:
    try:
        return unpack(data)
    except FormatError as error:
        raise TrackFileError(name, str(error)) from error


def whole(name: str, table: TrackTable) -> pa.RecordBatch:
    try:
        return table.whole()
    except FormatError as error:
        raise TrackFileError(name, str(error)) from error


def _head(table: TrackTable, size: int) -> dict[str, Any]:
    head = table.head
    said: dict[str, Any] = {"written_ms": head.written_ms, "kept_from_ms": head.kept_from_ms, "size": size}
    said |= {"previous": head.previous, "replaces": list(head.replaces), "digest": digest_text(table.digest)}
    said |= {"previous_digest": head.previous_digest, "stands_for": list(head.stands_for), "broken": list(head.broken)}
    said["persistence_ms"] = head.persistence_ms
    said |= {"low_ms": table.summary.low_ms, "high_ms": table.summary.high_ms}
    return {"kind": FILE, "broker": head.broker, "incarnation": head.incarnation, "sequence": head.sequence, "head": said}


def _head_row(name: str, values: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"file": name, **values}], schema=INDEX_SCHEMA)


def _index_rows(name: str, table: TrackTable) -> Iterator[pa.RecordBatch]:
    try:
        copies = name.endswith(COPIES_SUFFIX)
        rows = table.whole() if copies else table.index()
        check_rows(name, rows)
        history = np.asarray(pc.is_in(rows.column("kind"), array(sorted(HISTORY_KINDS))))
        for part in (np.flatnonzero(history), np.flatnonzero(~history)):
            if len(part):
                taken = rows.take(array(part))
                bodies = _copy_bodies(name, taken) if copies and history[part[0]] else pa.nulls(len(part), pa.binary())
                yield _with_place(name, part, taken, bodies)
    except FormatError as error:
        raise TrackFileError(name, str(error)) from error


def _copy_bodies(name: str, rows: pa.RecordBatch) -> Any:
    listed = rows.column("milliseconds").is_valid()
    return pc.if_else(listed, _list_bodies(name, rows), rows.column("bits"))


def _with_place(name: str, part: np.ndarray[Any, Any], rows: pa.RecordBatch, bodies: pa.Array[Any]) -> pa.RecordBatch:
    count = len(part)
    columns: dict[str, pa.Array[Any]] = {
        "file": array([name]).take(array(np.zeros(count, np.int64))),
        "row": array(part.astype(np.int32)),
        "body": bodies,
        "head": pa.nulls(count, HEAD_TYPE),
    }
    columns |= {column: rows.column(column) for column in _COLUMNS}
    columns["peer"] = columns["peer"].fill_null(0)
    columns["subscriber"] = columns["subscriber"].fill_null("")
    return record_batch([columns[field.name].cast(field.type) for field in INDEX_SCHEMA], schema=INDEX_SCHEMA)


def check_rows(name: str, rows: pa.RecordBatch) -> None:
    """Refuse what no broker writes and what would lead a search astray."""
    history = np.asarray(pc.is_in(rows.column("kind"), array(sorted(HISTORY_KINDS))))
    bloom = history & _is_bloom(rows)
    m, k, count = (integers(rows.column(column), 0) for column in ("m", "k", "count"))
    if bool((bloom & ((m <= 0) | (m > M_MAX) | (k <= 0) | (k > K_MAX))).any()) or bool((history & (count < 0)).any()):
        raise TrackFileError(name, "an element has parameters that no bloom has")


def _is_bloom(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return flags(pc.is_in(rows.column("strategy"), pa.array(["bloom"])))


def listed_ids(name: str, rows: pa.RecordBatch) -> tuple[tuple[Any, Any, Any], Any]:
    """Return the columns of elements that list their ids, and where those of each row begin and end."""
    columns = [rows.column(column) for column in ("milliseconds", "counters", "publishers")]
    found = tuple(np.asarray(column.flatten()) for column in columns)  # type: ignore[attr-defined]  # list arrays
    lengths = [integers(column.value_lengths()) for column in columns]  # type: ignore[attr-defined]
    if any(not np.array_equal(lengths[0], other) for other in lengths[1:]):
        raise TrackFileError(name, "the lists of an element's ids differ in length")
    return found, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[0])])  # type: ignore[return-value]  # three


def _list_bodies(name: str, rows: pa.RecordBatch) -> pa.Array[Any]:
    """Pack the ids of elements that list them by columns."""
    columns, offsets = listed_ids(name, rows)
    data, _ = pack_ids(columns, offsets, integers(rows.column("origin")))
    return binaries(data, offsets * MESSAGE_ID_BYTES)


def bit_bodies(name: str, rows: pa.RecordBatch) -> tuple[pa.Array[Any], Flags]:
    """Return the bits of elements, and which of them are ids as they are."""
    bits: Any = rows.column("bits")
    if bits.null_count:
        raise TrackFileError(name, "an element has neither bits nor ids")
    bloom = _is_bloom(rows)
    size, m = np.asarray(pc.binary_length(bits)).astype(np.int64), integers(rows.column("m"), 0)
    if bool((bloom & (size != (m + 7) >> 3)).any()) or bool((~bloom & (size % MESSAGE_ID_BYTES != 0)).any()):
        raise TrackFileError(name, "the bits of an element do not have the stated length")
    return bits, ~bloom


_LONGS: Final = pa.list_(pa.int64())
INDEX_SCHEMA: Final = schema_of(
    [
        *(pa.field("file", pa.string()), pa.field("row", pa.int32())),
        *(pa.field(name, pa.int64()) for name in ("broker", "incarnation", "sequence")),
        *(pa.field(name, pa.string()) for name in ("kind", "strategy")),
        *(pa.field(name, pa.int64()) for name in ("origin", "peer")),
        pa.field("subscriber", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("number", "opened_ms", "closed_ms", "from_ms", "to_ms")),
        *(pa.field("singletons", _LONGS), pa.field("m", pa.int64()), pa.field("k", pa.int32())),
        *(pa.field("n", pa.int64()), pa.field("count", pa.int64()), pa.field("neighbours", _LONGS)),
        *(pa.field(name, pa.int64()) for name in ("pubend", "from_tick", "to_tick")),
        *(pa.field("filter", pa.string()), pa.field("body", pa.binary()), pa.field("head", HEAD_TYPE)),
    ]
)
