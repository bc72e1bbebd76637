"""The table of a track file: a row per element or record, and how its columns are encoded.

One schema for all rows, nulls where a column has no meaning, so that a directory of track files is one table to any reader of
Parquet. What is particular:

- `exact` ids stand in three lists, `milliseconds`, `counters`, `publishers`; the broker of the id is the row's `origin`. Sorted
  by time, the first takes a tenth of a byte per id (deltas), the second next to nothing, the third a byte for 200 publishers.
- `async` ids, and any ids of more than one broker, stand in `bits` as they are, 16 bytes each.
- Ticks are int64, as Spark has no unsigned type. The clock needs 57 bits of them; what is beyond 63 bits becomes the highest.
- A `crash` names the incarnation that ended by `number`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Ids
from postroad.tracking.histories.elements import (
    ID_DTYPE,
    NO_SINGLETONS,
    Crash,
    Element,
    Farewell,
    HistoryKey,
    Horizon,
    Kind,
    Links,
    Lost,
    Milliseconds,
    Record,
    Span,
)
from postroad.tracking.histories.pause import Pause, no_pause
from postroad.tracking.histories.settings import Strategy
from postroad.types import COUNTER_BITS, COUNTER_MAX, MESSAGE_ID_BYTES

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("broker", pa.int64()),
    pa.field("incarnation", pa.int64()),
    pa.field("sequence", pa.int64()),
    pa.field("kind", pa.string()),
    pa.field("strategy", pa.string()),
    pa.field("origin", pa.int64()),
    pa.field("peer", pa.int64()),
    pa.field("subscriber", pa.string()),
    pa.field("number", pa.int64()),
    pa.field("opened_ms", pa.int64()),
    pa.field("closed_ms", pa.int64()),
    pa.field("from_ms", pa.int64()),
    pa.field("to_ms", pa.int64()),
    pa.field("singletons", pa.list_(pa.field("element", pa.int64()))),
    pa.field("m", pa.int64()),
    pa.field("k", pa.int32()),
    pa.field("n", pa.int64()),
    pa.field("count", pa.int64()),
    pa.field("bits", pa.binary()),
    pa.field("milliseconds", pa.list_(pa.field("element", pa.int64()))),
    pa.field("counters", pa.list_(pa.field("element", pa.int32()))),
    pa.field("publishers", pa.list_(pa.field("element", pa.int64()))),
    pa.field("neighbours", pa.list_(pa.field("element", pa.int64()))),
    pa.field("pubend", pa.int64()),
    pa.field("from_tick", pa.int64()),
    pa.field("to_tick", pa.int64()),
    pa.field("filter", pa.string()),
]
SCHEMA: Final = pa.schema(_FIELDS)

DATA_COLUMNS: Final = frozenset({"bits", "milliseconds", "counters", "publishers"})
"""What an element is heavy by; everything else is read to find it."""
INDEX_COLUMNS: Final = tuple(name for name in SCHEMA.names if name not in DATA_COLUMNS)

INT64_MAX: Final = (1 << 63) - 1
_LISTS: Final = ("singletons", "milliseconds", "counters", "publishers", "neighbours")
_DELTA: Final = ("singletons.list.element", "milliseconds.list.element")
_PLAIN: Final = frozenset({"bits", "singletons", "milliseconds"})
_VOID: Final = np.dtype((np.void, MESSAGE_ID_BYTES))
_DETACHED_STILL: Final = 0
HISTORY_KINDS: Final = frozenset(kind.value for kind in Kind)

WRITE_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": {
        **dict.fromkeys((f"{name}.list.element" if name in _LISTS else name for name in SCHEMA.names), "zstd"),
        "bits": "none",  # a full bloom has no pattern left
    },
    "use_dictionary": [f"{name}.list.element" if name in _LISTS else name for name in SCHEMA.names if name not in _PLAIN],
    "column_encoding": dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
    "write_statistics": False,  # the store keeps its own index; statistics of `bits` would hold two whole blooms
    "store_schema": False,  # Arrow's own description of the schema would be a third of a small file
    "write_page_checksum": True,
    "version": "2.6",
}

Row: TypeAlias = dict[str, Any]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class RowError(ValueError):
    """A row makes no sense. Never leaves this package: the store says which file it is."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who wrote a row, and in which file of an incarnation."""

    broker: int
    incarnation: int
    sequence: int


# --- to Arrow -------------------------------------------------------------------------------------------------------------


def to_table(stamp: Stamp, elements: Iterable[Element], records: Iterable[Record], pause: Pause = no_pause) -> pa.Table:
    """Return the rows of elements and records, in this order. Elements may be thousands: no row of theirs is looked at alone."""
    held = tuple(elements)
    rows: list[Row] = []
    for record in records:
        rows.append(_record_row(record))
        pause()
    ids = _IdLists(held)
    pause()
    size = len(held) + len(rows)
    known = {"strategy": ids.strategies, "bits": ids.bits}
    columns: list[pa.Array[Any]] = []
    for field in SCHEMA:
        name = field.name
        if name in _STAMPS:
            columns.append(pa.array(np.full(size, getattr(stamp, name), np.int64)))
        elif name in _ID_LISTS:
            columns.append(ids.column(field, size))
        else:
            values = known[name]() if name in known else map(_OF_ELEMENT.get(name, _nothing), held)
            columns.append(_column(field, [*values, *(row.get(name) for row in rows)]))
        pause()
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _nothing(_element: Element) -> None:
    """Return what an element has in the columns of records."""


class _IdLists:
    """The ids that elements hold in order of time: the parts of all of them, one element's after the other's."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self._elements: Final = elements
        self._listed: Sequence[bool] = [each.ids is not None and each.strategy is not Strategy.ASYNC for each in elements]
        self._join()
        origins = np.array([element.key.origin for element in elements], np.int64)
        foreign = self._parts["broker"] != np.repeat(origins, self._lengths)
        if foreign.any():  # ids that do not say their origin: they are kept as they are
            unfit = set(np.repeat(np.arange(len(elements)), self._lengths)[foreign].tolist())
            self._listed = [is_listed and number not in unfit for number, is_listed in enumerate(self._listed)]
            self._join()

    def _join(self) -> None:
        ids = [element.ids for element in compress(self._elements, self._listed) if element.ids is not None]
        self._lengths: Numbers = np.zeros(len(self._elements), np.int64)
        self._lengths[np.array(self._listed, np.bool_)] = [*map(len, ids)]
        self._parts: Numbers = np.concatenate([np.empty(0, _VOID), *ids]).view(ID_DTYPE)

    def column(self, field: pa.Field[Any], size: int) -> pa.Array[Any]:
        """Return one of the three columns, with nulls up to a size."""
        if field.name == "publishers":
            values = self._parts["publisher"].astype(np.int64)
        else:
            ticks = self._parts["tick"].astype(np.uint64)
            part = ticks >> np.uint64(COUNTER_BITS) if field.name == "milliseconds" else ticks & np.uint64(COUNTER_MAX)
            values = part.astype(np.int64)
        rest = size - len(self._elements)
        is_null = ~np.array([*self._listed, *[False] * rest], np.bool_)
        return _lists(np.concatenate([self._lengths, np.zeros(rest, np.int64)]), is_null, values, field.type)

    def strategies(self) -> Iterator[Strategy]:
        for element, is_listed in zip(self._elements, self._listed, strict=True):
            yield element.strategy if element.ids is None or is_listed else Strategy.ASYNC

    def bits(self) -> Iterator[bytes | memoryview | None]:
        """Yield what stands in `bits`: blooms, and ids that are kept as they are."""
        for element, is_listed in zip(self._elements, self._listed, strict=True):
            if element.ids is not None:
                yield None if is_listed else element.ids.tobytes()
            else:
                bits = b"" if element.bits is None else element.bits
                yield bits.data if isinstance(bits, np.ndarray) else bits


def _peer(element: Element) -> int | None:
    kind = element.key.kind
    return element.key.peer if kind is Kind.ROUTING or kind is Kind.NEIGHBOUR else None


_STAMPS: Final = frozenset({"broker", "incarnation", "sequence"})
_ID_LISTS: Final = frozenset({"milliseconds", "counters", "publishers"})
_VALUES: Final = ("number", "opened_ms", "closed_ms", "from_ms", "to_ms", "singletons", "m", "k", "n", "count")
_OF_ELEMENT: Final[Mapping[str, Callable[[Element], Any]]] = {
    **{name: attrgetter(name) for name in _VALUES},
    "kind": attrgetter("key.kind"),
    "origin": attrgetter("key.origin"),
    "peer": _peer,
    "subscriber": lambda element: element.key.subscriber if element.key.kind is Kind.SUBSCRIBER else None,
    "neighbours": lambda element: element.neighbours or None,
}


def _column(field: pa.Field[Any], values: Sequence[Any]) -> pa.Array[Any]:
    if field.name in _LISTS:
        return _list_column(values, field.type)
    if field.name == "bits":
        return _binary_column(values)
    made: pa.Array[Any] = pa.array(values, field.type)
    return made


def _binary_column(values: Sequence[bytes | memoryview | None]) -> pa.Array[Any]:
    """Join blooms, which are long, into one column: copied once."""
    stops = np.cumsum([0, *(0 if each is None else len(each) for each in values)], dtype=np.int32)
    present = pa.array([each is not None for each in values], pa.bool_())
    joined = b"".join(each for each in values if each is not None)
    return pa.Array.from_buffers(pa.binary(), len(values), [present.buffers()[1], pa.py_buffer(stops.data), pa.py_buffer(joined)])


def _list_column(lists: Sequence[Numbers | Sequence[int] | None], kind: Any) -> pa.Array[Any]:
    """Join arrays into one list column."""
    lengths = np.array([0 if each is None else len(each) for each in lists], np.int64)
    filled = [np.asarray(each, np.int64) for each in lists if each is not None and len(each)]
    values = np.concatenate(filled) if filled else np.empty(0, np.int64)
    return _lists(lengths, np.array([each is None for each in lists], np.bool_), values, kind)


def _lists(lengths: Numbers, is_null: Numbers, values: Numbers, kind: Any) -> pa.Array[Any]:
    """Return a list column; an offset that is null makes the list null."""
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    nulls = np.append(is_null, np.False_)
    made: pa.Array[Any] = pa.ListArray.from_arrays(pa.array(offsets, mask=nulls), pa.array(values, kind.value_type), type=kind)
    return made


def _record_row(record: Record) -> Row:
    match record:
        case Span():
            row = {"kind": "span", **_ticks(record), "number": record.number, "filter": record.filter}
            detached = None if record.detached_ms == _DETACHED_STILL else record.detached_ms
            return {**row, "opened_ms": record.attached_ms, "closed_ms": detached}
        case Lost():
            return {"kind": "lost", **_ticks(record), "opened_ms": record.told_ms}
        case Crash():
            return {"kind": "crash", "number": record.incarnation, "from_ms": record.from_ms, "to_ms": record.to_ms}
        case Links():
            return {"kind": "links", "opened_ms": record.since_ms, "neighbours": record.neighbours}
        case Horizon():
            return {"kind": "horizon", "pubend": record.pubend, "to_tick": min(record.tick, INT64_MAX)}
        case Farewell():
            return {"kind": "farewell", "opened_ms": record.at_ms}


def _ticks(record: Span | Lost) -> Row:
    return {
        "subscriber": record.subscriber,
        "pubend": record.pubend,
        "from_tick": min(record.from_tick, INT64_MAX),
        "to_tick": min(record.to_tick, INT64_MAX),
    }


# --- from Arrow -----------------------------------------------------------------------------------------------------------


def elements_of(table: pa.Table) -> Iterator[Element]:
    """Yield the elements of a table with all columns; the arrays share the table's memory where they can."""
    batch = one_batch(table)
    kinds = batch.column("kind").to_pylist()
    for row, kind in enumerate(kinds):
        if kind in HISTORY_KINDS:
            yield element_of(batch, row)


def records_of(table: pa.Table) -> Iterator[Record]:
    """Yield the records of a table; the columns of ids may be missing."""
    batch = one_batch(table)
    kinds = batch.column("kind").to_pylist()
    unknown = [kind for kind in kinds if kind not in HISTORY_KINDS and kind not in _RECORDS]
    if unknown:
        raise RowError(f"a row of the unknown kind {unknown[0]!r}")
    return record_rows(batch, [row for row, kind in enumerate(kinds) if kind in _RECORDS])


def record_rows(batch: pa.RecordBatch, rows: Sequence[int]) -> Iterator[Record]:
    """Yield the records in these rows."""
    for row in rows:
        values = _values(batch, row, _RECORD_COLUMNS)
        yield _RECORDS[values["kind"]](values)


def element_of(batch: pa.RecordBatch, row: int) -> Element:
    """Return the element of one row, or raise `RowError`."""
    values = _values(batch, row, _ELEMENT_COLUMNS)
    try:
        kind, strategy = Kind(values["kind"]), Strategy(values["strategy"])
        key = HistoryKey(kind, values["origin"], values["peer"] or 0, values["subscriber"] or "")
        bits, ids = _element_data(batch, row, strategy, key.origin, values["m"])
        return Element(
            key=key,
            incarnation=values["incarnation"],
            number=values["number"],
            strategy=strategy,
            opened_ms=values["opened_ms"],
            closed_ms=values["closed_ms"],
            from_ms=values["from_ms"],
            to_ms=values["to_ms"],
            singletons=numbers(batch.column("singletons"), row),
            count=values["count"],
            m=values["m"],
            k=values["k"],
            n=values["n"],
            bits=bits,
            ids=ids,
            neighbours=tuple(numbers(batch.column("neighbours"), row).tolist()),
            broker=values["broker"],
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise RowError(f"row {row} is not an element: {error}") from error


def _element_data(batch: pa.RecordBatch, row: int, strategy: Strategy, origin: int, m: int) -> tuple[Numbers | None, Ids | None]:
    if batch.column("milliseconds")[row].is_valid:
        return None, _ids_of_lists(batch, row, origin)
    data = batch.column("bits")[row].as_buffer()
    if data is None:
        raise RowError("it has neither bits nor ids")
    if strategy is Strategy.BLOOM:
        if data.size * 8 != m:
            raise RowError(f"a bloom of {m} bits in {data.size} bytes")
        return np.frombuffer(data, np.uint8), None
    if data.size % MESSAGE_ID_BYTES:
        raise RowError(f"ids of {MESSAGE_ID_BYTES} bytes in {data.size} bytes")
    return None, np.frombuffer(data, _VOID)


def _ids_of_lists(batch: pa.RecordBatch, row: int, origin: int) -> Ids:
    milliseconds = numbers(batch.column("milliseconds"), row)
    counters, publishers = numbers(batch.column("counters"), row), numbers(batch.column("publishers"), row)
    if not len(milliseconds) == len(counters) == len(publishers):
        raise RowError("its lists of ids differ in length")
    ids = np.empty(len(milliseconds), ID_DTYPE)
    ids["publisher"], ids["broker"] = publishers, origin
    ids["tick"] = milliseconds.astype(np.uint64) << np.uint64(COUNTER_BITS) | counters.astype(np.uint64)
    return ids.view(_VOID)


def numbers(column: pa.Array[Any], row: int) -> Milliseconds:
    """Return the list in one row, empty for a null."""
    values = column[row].values
    if values is None:
        return NO_SINGLETONS
    found: Milliseconds = values.to_numpy(zero_copy_only=False)
    return found


def _values(batch: pa.RecordBatch, row: int, names: Sequence[str]) -> Row:
    return {name: batch.column(name)[row].as_py() for name in names}


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


_ELEMENT_COLUMNS: Final = tuple(
    name
    for name in INDEX_COLUMNS
    if name not in {"sequence", "singletons", "neighbours", "pubend", "from_tick", "to_tick", "filter"}
)
_RECORD_COLUMNS: Final = (
    *("kind", "subscriber", "number", "opened_ms", "closed_ms", "from_ms", "to_ms"),
    *("neighbours", "pubend", "from_tick", "to_tick", "filter"),
)


def _span(row: Row) -> Span:
    return Span(
        subscriber=row["subscriber"],
        number=row["number"],
        pubend=row["pubend"],
        filter=row["filter"],
        from_tick=row["from_tick"],
        to_tick=row["to_tick"],
        attached_ms=row["opened_ms"],
        detached_ms=row["closed_ms"] or _DETACHED_STILL,
    )


_RECORDS: Final[Mapping[str, Callable[[Row], Record]]] = {
    "span": _span,
    "lost": lambda row: Lost(row["subscriber"], row["pubend"], row["from_tick"], row["to_tick"], row["opened_ms"]),
    "crash": lambda row: Crash(row["number"], row["from_ms"], row["to_ms"]),
    "links": lambda row: Links(row["opened_ms"], tuple(row["neighbours"] or ())),
    "horizon": lambda row: Horizon(row["pubend"], row["to_tick"]),
    "farewell": lambda row: Farewell(row["opened_ms"]),
}
