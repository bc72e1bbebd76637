"""Messages as columns of a DataFrame.

Every message has `id`, `tick`, `pubend`, `publisher`, `timestamp` (of the tick, so it ascends with it) and `payload`; its
attributes follow, each under its name. An attribute whose name is one of those, or begins with `@`, stands behind an `@`: the
column `@id` is the attribute `id`. A given schema may leave columns out, which saves the work of making them.

An attribute has a kind per message, a column one type. Inferred types: of ints and floats together double, of any other mixture
string, with the values as text; the column's comment says so. A value that does not fit a given type is an error, or NULL if so
asked.

With the option `onGap=skip` there is one more column, `gap`: NULL for messages; a row with it stands in the place of ticks that
could not be read, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import ATTRIBUTE_PREFIX, ID, PAYLOAD, TICK, Kind, Layout
from postroad.errors import AttributeMismatchError, SparkSchemaError
from postroad.types import COUNTER_BITS, MESSAGE_ID_BYTES

GAP: Final = "gap"
SYSTEM_TYPES: Final[Mapping[str, t.DataType]] = {
    "id": t.BinaryType(),
    "tick": t.LongType(),
    "pubend": t.LongType(),
    "publisher": t.LongType(),
    "timestamp": t.TimestampType(),
    "payload": t.BinaryType(),
}
AS_TEXT: Final = "postroad.text"
INFERRED: Final = "postroad.inferred"
"""Marks the first column of a schema that was inferred from some of the messages: it may lack attributes of others."""
"""The mark, in the metadata of a string column, that values of every kind are shown as text."""

_KIND_TYPES: Final[Mapping[Kind, t.DataType]] = {
    "bool": t.BooleanType(),
    "int": t.LongType(),
    "float": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
}
_KINDS_OF: Final[Mapping[type[t.DataType], frozenset[Kind]]] = {
    t.BooleanType: frozenset({"bool"}),
    t.ByteType: frozenset({"int", "float"}),
    t.ShortType: frozenset({"int", "float"}),
    t.IntegerType: frozenset({"int", "float"}),
    t.LongType: frozenset({"int", "float"}),
    t.FloatType: frozenset({"int", "float"}),
    t.DoubleType: frozenset({"int", "float"}),
    t.StringType: frozenset({"string"}),
    t.BinaryType: frozenset({"binary"}),
}
_ARROW: Final[Mapping[type[t.DataType], Any]] = {
    t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.StringType: pa.string(),
    t.BinaryType: pa.binary(),
    t.TimestampType: pa.timestamp("us", tz="UTC"),
}
INTEGERS: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_KINDS: Final[tuple[Kind, ...]] = ("bool", "int", "float", "string", "binary")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the DataFrame: a system column or `gap` (`attribute` is None), or an attribute."""

    name: str
    attribute: str | None
    type: t.DataType
    as_text: bool = False


# --- schemas -------------------------------------------------------------------------------------------------------------


def inferred_schema(layouts: Iterable[Layout], *, gaps: bool) -> t.StructType:
    """Return the schema of messages with these layouts."""
    kinds: dict[str, set[Kind]] = {}
    for layout in layouts:
        for name, kind in zip(layout.names, layout.kinds, strict=True):
            kinds.setdefault(name, set()).add(kind)
    marks = [{INFERRED: True}, *[{}] * (len(SYSTEM_TYPES) - 1)]
    fields = [t.StructField(name, kind, metadata=mark) for (name, kind), mark in zip(SYSTEM_TYPES.items(), marks, strict=True)]
    fields += [_infer_field(name, kinds[name]) for name in sorted(kinds)]
    if gaps:
        fields.append(t.StructField(GAP, t.StringType()))
    _check_names([field.name for field in fields])
    return t.StructType(fields)


def columns_of(schema: t.StructType) -> tuple[Column, ...]:
    """Say what each column of a schema is, or raise `SparkSchemaError`."""
    _check_names(schema.names)
    return tuple(_column(field) for field in schema.fields)


def arrow_schema(schema: t.StructType) -> pa.Schema:
    """Return the Arrow schema Spark expects of batches for this one."""
    return pa.schema([pa.field(field.name, _ARROW[type(field.dataType)], field.nullable) for field in schema.fields])


def _infer_field(name: str, kinds: set[Kind]) -> t.StructField:
    reserved = name.lower() in {*SYSTEM_TYPES, GAP} or name.startswith(ATTRIBUTE_PREFIX)
    column = ATTRIBUTE_PREFIX + name if reserved else name
    if len(kinds) == 1:
        return t.StructField(column, _KIND_TYPES[next(iter(kinds))])
    listed = " and ".join(kind for kind in _KINDS if kind in kinds)
    if kinds == {"int", "float"}:
        return t.StructField(column, t.DoubleType(), metadata={"comment": f"{listed} values, read as double"})
    return t.StructField(column, t.StringType(), metadata={"comment": f"{listed} values, shown as text", AS_TEXT: True})


def _column(field: t.StructField) -> Column:
    name, type_ = field.name, field.dataType
    system = SYSTEM_TYPES.get(name.lower(), t.StringType() if name.lower() == GAP else None)
    if system is not None:
        if type(type_) is not type(system):
            raise SparkSchemaError(f"column {name} is {system.simpleString()}, not {type_.simpleString()}")
        return Column(name.lower(), None, type_)
    if type(type_) not in _KINDS_OF or (isinstance(type_, t.StringType) and type_ != t.StringType()):
        types = ", ".join(sorted(each().simpleString() for each in _KINDS_OF))
        raise SparkSchemaError(f"column {name} is {type_.simpleString()}; attributes can be read as {types}")
    attribute = name.removeprefix(ATTRIBUTE_PREFIX)
    if not attribute:
        raise SparkSchemaError(f"column {name!r} is not the name of an attribute")
    return Column(name, attribute, type_, bool((field.metadata or {}).get(AS_TEXT)))


def _check_names(names: list[str]) -> None:
    """Refuse names Spark would take for one."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise SparkSchemaError(
                f"columns {other!r} and {name!r} differ only in upper and lower case, which Spark does not tell apart; "
                "give a schema with one of them"
            )


# --- rows ----------------------------------------------------------------------------------------------------------------

_Make = Callable[[Batch, int], "pa.Array[Any]"]


class Converter:
    """Turns batches of messages into record batches of one schema."""

    def __init__(self, schema: t.StructType, *, null_mismatches: bool = False, ignore_new: bool = True) -> None:
        self.columns: Final = columns_of(schema)
        self.schema: Final = arrow_schema(schema)
        self._null_mismatches = null_mismatches
        inferred = any((field.metadata or {}).get(INFERRED) for field in schema.fields)
        self._known = {column.attribute for column in self.columns} if inferred and not ignore_new else None
        self._checked: Layout | None = None
        self._makers = [self._maker(column) for column in self.columns]

    def convert(self, batch: Batch, pubend: int) -> pa.RecordBatch:
        if self._known is not None and batch.layout is not self._checked:
            self._check_known(batch, pubend, self._known)
        return pa.RecordBatch.from_arrays([make(batch, pubend) for make in self._makers], schema=self.schema)

    def _check_known(self, batch: Batch, pubend: int, known: Collection[str | None]) -> None:
        """Refuse messages with attributes that an inferred schema lacks: they would be absent without anybody knowing."""
        new = [name for name in batch.layout.names if name not in known]
        if new:
            tick, names = int(batch.ticks()[0]), ", ".join(map(repr, new))
            raise SparkSchemaError(
                f"messages of pubend {pubend} from tick {tick} on have attributes that the inferred schema lacks: {names}; give "
                "a schema, or infer it from all messages (inferRecords=all), or leave them out (onNewAttribute=ignore)"
            )
        self._checked = batch.layout

    def gap(self, pubend: int, tick: int, text: str) -> pa.RecordBatch:
        """Return the row that stands for ticks up to `tick` which could not be read."""
        told = {"pubend": _as_signed(pubend), "tick": _as_signed(tick), "timestamp": (tick >> COUNTER_BITS) * 1000, GAP: text}
        arrays: list[pa.Array[Any]] = []
        for column, field in zip(self.columns, self.schema, strict=True):
            value = told.get(column.name) if column.attribute is None else None
            arrays.append(pa.array([value], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def view(self, rows: pa.RecordBatch, attributes: Iterable[str]) -> Batch:
        """Return converted rows as a batch again, with these attributes as they are shown: what a filter of Spark sees."""
        wanted = dict.fromkeys(attributes)
        names = ["tick", "id", "payload"]
        arrays: list[Any] = [pa.nulls(len(rows), kind) for kind in (pa.uint64(), pa.binary(16), pa.binary())]
        for index, column in enumerate(self.columns):
            if column.attribute in wanted:
                array = rows.column(index)
                names.append(ATTRIBUTE_PREFIX + str(column.attribute))
                arrays.append(array.cast(pa.int64()) if isinstance(column.type, INTEGERS) else array)
        return Batch(pa.RecordBatch.from_arrays(arrays, names=names))

    def _maker(self, column: Column) -> _Make:
        if column.attribute is not None:
            return _attribute_maker(column, null_mismatches=self._null_mismatches)
        return _SYSTEM_MAKERS[column.name]


def _attribute_maker(column: Column, *, null_mismatches: bool) -> _Make:
    attribute, type_, arrow = str(column.attribute), type(column.type), _ARROW[type(column.type)]
    fits = frozenset(_KINDS) if column.as_text else _KINDS_OF[type_]

    def make(batch: Batch, pubend: int) -> Any:
        values = batch.attribute(attribute)
        if values is None or values.null_count == len(values):
            return pa.nulls(len(batch), arrow)
        if values.type == arrow:
            return values
        kind = batch.layout.kinds[batch.layout.names.index(attribute)]
        if column.as_text:
            return _text(values, kind)
        fitting = _cast(values, arrow) if kind in fits else pa.nulls(len(values), arrow)
        if fitting.null_count == values.null_count or null_mismatches:
            return fitting
        bad = pc.and_(values.is_valid(), fitting.is_null()).to_numpy(zero_copy_only=False)
        raise AttributeMismatchError(attribute, kind, column.type.simpleString(), pubend, int(batch.ticks()[bad.argmax()]))

    return make


def _cast(values: Any, arrow: Any) -> Any:
    """Cast numbers; those that do not fit become null."""
    try:
        return values.cast(arrow, safe=not pa.types.is_floating(arrow))
    except pa.ArrowInvalid:
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
        info = np.iinfo(arrow.to_pandas_dtype())
        with np.errstate(invalid="ignore"):
            good = (np.floor(numbers) == numbers) & (numbers >= float(info.min)) & (numbers < float(info.max) + 1.0)
        kept = pc.if_else(pa.array(good), values, pa.scalar(None, values.type))
        return kept.cast(arrow)


def _text(values: pa.Array[Any], kind: Kind) -> pa.Array[Any]:
    if kind == "binary":
        return pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.string())
    return values.cast(pa.string())


def _as_signed(number: int) -> int:
    """Return the 64 bits of an unsigned number as Spark's long."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _ids(batch: Batch, _pubend: int) -> pa.Array[Any]:
    column = batch.columns.column(ID)
    rows = len(column)
    offsets = np.arange(column.offset, column.offset + rows + 1, dtype=np.int32) * MESSAGE_ID_BYTES
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.array(offsets).buffers()[1], column.buffers()[1]])


def _ticks(batch: Batch, _pubend: int) -> pa.Array[Any]:
    return batch.columns.column(TICK).view(pa.int64())


def _pubends(batch: Batch, pubend: int) -> pa.Array[Any]:
    return pa.array(np.full(len(batch), _as_signed(pubend), np.int64))


def _publishers(batch: Batch, _pubend: int) -> pa.Array[Any]:
    return pa.array(batch.ids().view(">u4").reshape(-1, 4)[:, 0].astype(np.int64))


def _timestamps(batch: Batch, _pubend: int) -> pa.Array[Any]:
    microseconds = (batch.ticks() >> np.uint64(COUNTER_BITS)).astype(np.int64) * 1000
    return pa.array(microseconds).view(_ARROW[t.TimestampType])


def _payloads(batch: Batch, _pubend: int) -> pa.Array[Any]:
    return batch.columns.column(PAYLOAD)


def _gaps(batch: Batch, _pubend: int) -> pa.Array[Any]:
    return pa.nulls(len(batch), pa.string())


_SYSTEM_MAKERS: Final[Mapping[str, _Make]] = {
    "id": _ids,
    "tick": _ticks,
    "pubend": _pubends,
    "publisher": _publishers,
    "timestamp": _timestamps,
    "payload": _payloads,
    GAP: _gaps,
}
