"""Track files as Arrow batches, in Spark's workers: verified, damage named, ids and bits in one column.

A file is read twice at most: once for its rows without ids and bits (the *index*), and once for the bodies of the elements that a
search needs. Copies of unfinished elements vanish when the broker writes newer ones, so their bodies come with the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.errors import TrackFileError
from postroad.spark.jobs.arrow import array, binaries, flags, flat, integers, record_batch, schema_of
from postroad.tracking.files.chain import digest_text
from postroad.tracking.files.format import FormatError, TrackTable, unpack
from postroad.tracking.files.schema import HISTORY_KINDS
from postroad.tracking.histories.blooms import K_MAX, M_MAX
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.types import COUNTER_BITS, MESSAGE_ID_BYTES

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
    ]
)
HEAD: Final = (
    "struct<written_ms: long, kept_from_ms: long, previous: string, replaces: array<string>, size: long, problem: string, "
    "digest: string, previous_digest: string, stands_for: array<string>, broken: array<string>, persistence_ms: long>"
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
BODIES: Final = (
    "history int, origin long, broker long, low_ms long, high_ms long, from_ms long, to_ms long, singletons array<long>, "
    "m long, k int, count long, sets int, packed boolean, body binary"
)


def read_index(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn names of files (`file`, and `content` where Spark read it) into their rows, each file's head first."""
    for name, content in _files(batches):
        try:
            data = _read(name) if content is None else content
            table = _open(name, data)
            rows = list(_index_rows(name, table))
        except FileNotFoundError:
            yield _head_row(name, {"kind": GONE, "head": {"problem": "the file is missing"}})
        except TrackFileError as error:
            yield _head_row(name, {"kind": DAMAGED, "head": {"problem": error.reason}})
        else:
            yield _head_row(name, _head(table, len(data)))
            yield from rows


def read_bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn names of files with the places wanted of each into rows of `BODIES`."""
    for batch in batches:
        for index, (name, content) in enumerate(_files([batch])):
            try:
                whole = _whole(name, _open(name, _read(name) if content is None else content))
            except FileNotFoundError:
                raise TrackFileError(name, "it was removed while the job was reading; run the job again") from None
            places = batch.column("places")[index].values
            yield from element_batches(name, whole, pa.RecordBatch.from_struct_array(places))


def element_batches(name: str, whole: pa.RecordBatch, places: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return the elements at the rows that `places` names, as rows of `BODIES`, in pieces that fit into memory twice over."""
    rows = integers(places.column("row"))
    listed = np.asarray(whole.column("milliseconds").is_valid())[rows]
    for chosen in (listed, ~listed):
        for part in _pieces(np.flatnonzero(chosen), integers(whole.column("count"))[rows], integers(whole.column("m"))[rows]):
            taken = whole.take(array(rows[part]))
            body, packed = _list_bodies(name, taken) if chosen is listed else _bit_bodies(name, taken)
            yield _body_rows(taken, places.take(array(part)), body, packed)


PIECE_BYTES_MAX: Final = 8 << 20


def _pieces(chosen: np.ndarray[Any, Any], count: Any, m: Any) -> Iterator[np.ndarray[Any, Any]]:
    size = np.maximum(count[chosen] * MESSAGE_ID_BYTES, m[chosen] >> 3).cumsum()
    start = 0
    while start < len(chosen):
        spent = 0 if start == 0 else size[start - 1]
        stop = max(int(np.searchsorted(size, spent + PIECE_BYTES_MAX, "right")), start + 1)
        yield chosen[start:stop]
        start = stop


def _files(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Buffer | None]]:
    for batch in batches:
        has_content = "content" in batch.schema.names
        for index, name in enumerate(batch.column("file").to_pylist()):
            yield str(name), _buffer(batch.column("content"), index) if has_content else None


def _buffer(column: Any, index: int) -> pa.Buffer:
    found: pa.Buffer = column[index].as_buffer()
    return found


def _read(name: str) -> pa.Buffer:
    try:
        return pa.py_buffer(Path(name).read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TrackFileError(name, error.strerror or str(error)) from error


def _open(name: str, data: pa.Buffer) -> TrackTable:
    try:
        return unpack(data)
    except FormatError as error:
        raise TrackFileError(name, str(error)) from error


def _whole(name: str, table: TrackTable) -> pa.RecordBatch:
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
    return pc.if_else(listed, _list_bodies(name, rows)[0], rows.column("bits"))


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


def _list_bodies(name: str, rows: pa.RecordBatch) -> tuple[pa.Array[Any], bool]:
    """Pack the ids of elements that list them by columns."""
    milliseconds, offsets = flat(rows.column("milliseconds"))
    counters, same = flat(rows.column("counters"))
    publishers, also = flat(rows.column("publishers"))
    if not np.array_equal(offsets, same) or not np.array_equal(offsets, also):
        raise TrackFileError(name, "the lists of an element's ids differ in length")
    ids = np.empty(len(milliseconds), ID_DTYPE)
    ids["publisher"] = publishers
    ids["broker"] = np.repeat(integers(rows.column("origin")), np.diff(offsets))
    ids["tick"] = milliseconds.astype(np.uint64) << np.uint64(COUNTER_BITS) | counters.astype(np.uint64)
    return binaries(ids.view(np.uint8), offsets * MESSAGE_ID_BYTES), True


def _bit_bodies(name: str, rows: pa.RecordBatch) -> tuple[pa.Array[Any], bool | np.ndarray[Any, Any]]:
    bits: Any = rows.column("bits")
    if bits.null_count:
        raise TrackFileError(name, "an element has neither bits nor ids")
    bloom = _is_bloom(rows)
    size, m = np.asarray(pc.binary_length(bits)).astype(np.int64), integers(rows.column("m"), 0)
    if bool((bloom & (size != (m + 7) >> 3)).any()) or bool((~bloom & (size % MESSAGE_ID_BYTES != 0)).any()):
        raise TrackFileError(name, "the bits of an element do not have the stated length")
    return bits, ~bloom


def _body_rows(rows: pa.RecordBatch, places: pa.RecordBatch, body: pa.Array[Any], packed: Any) -> pa.RecordBatch:
    count = rows.num_rows
    sets = rows.column("neighbours").value_lengths().fill_null(0)  # type: ignore[attr-defined]  # a list array
    is_packed = np.broadcast_to(np.asarray(packed, np.bool_), count)
    columns: dict[str, Any] = {name: places.column(name) for name in ("history", "low_ms", "high_ms")}
    columns |= {name: rows.column(name) for name in ("origin", "broker", "from_ms", "to_ms", "singletons", "m", "k", "count")}
    columns |= {"sets": sets, "packed": array(is_packed), "body": body}
    return record_batch([columns[field.name].cast(field.type) for field in BODIES_SCHEMA], schema=BODIES_SCHEMA)


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
BODIES_SCHEMA: Final = schema_of(
    [
        pa.field("history", pa.int32()),
        *(pa.field(name, pa.int64()) for name in ("origin", "broker", "low_ms", "high_ms", "from_ms", "to_ms")),
        *(pa.field("singletons", _LONGS), pa.field("m", pa.int64()), pa.field("k", pa.int32()), pa.field("count", pa.int64())),
        *(pa.field("sets", pa.int32()), pa.field("packed", pa.bool_()), pa.field("body", pa.binary())),
    ]
)
