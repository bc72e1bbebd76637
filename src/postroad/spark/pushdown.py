"""Conditions of a Spark query, done by the source.

Spark offers the conjuncts of a WHERE as simple filters on columns. Those on attributes become filters of our language; those on
`tick`, `timestamp`, `pubend` and `id` also say where nothing needs to be read. What is taken here, Spark does not check again, so
the answer must be exactly the one it would give; what would not be, is left to it. The differences that matter:

- Spark takes NaN for greater than every number, we do not compare it: `x > 5` becomes `x > 5 OR x <> x`.
- Only numbers have an order in our language, so an order of strings stays with Spark.
- A column shows an attribute in one type. A condition is checked on messages as they are (`raw`, also by a broker, before they
  are sent) where that cannot lose a row, and once more on what the column shows where the two may differ (`exact`): ints beyond
  2^53 in a column of doubles, kinds shown as text or as NULL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as d
from pyspark.sql import types as t

from postroad.core.batch.batch import Batch
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import pubend_broker
from postroad.errors import FilterError
from postroad.spark.columns import GAP, INTEGERS, Column, Converter
from postroad.types import COUNTER_BITS, TICK_MAX

EXACT_INTS: Final = 1 << 53  # a double holds every int up to here
_LIKE_ESCAPE: Final = "!"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def all_of(conditions: Iterable[str]) -> str:
    return " AND ".join(f"({each})" for each in conditions)


@dataclass(frozen=True, slots=True)
class SystemTest:
    """A condition on a system column: one of = <> < <= > >= in, with values as Arrow holds them."""

    column: str
    operator: str
    values: tuple[Any, ...]

    def holds(self, rows: pa.RecordBatch, index: int) -> Any:
        column = rows.column(index)
        listed = pa.array(self.values, column.type)
        match self.operator:
            case "in":
                return pc.is_in(column, value_set=listed)
            case "not in":
                return pc.and_(column.is_valid(), pc.invert(pc.is_in(column, value_set=listed)))
            case operator:
                return pc.call_function(_FUNCTIONS[operator], [column, listed[0]])


_FUNCTIONS: Final = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


@dataclass(slots=True)
class Pushed:
    """What the source has taken of a query's conditions."""

    raw: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    system: list[SystemTest] = field(default_factory=list)
    null_tests: list[tuple[str, bool]] = field(default_factory=list)  # (system column, whether NULL is wanted)

    def raw_filter(self, given: str = "") -> str:
        """Return the filter for messages as they are, together with the one the user gave."""
        return all_of([*([given] if given.strip() else []), *self.raw])

    def span(self) -> tuple[int, int]:
        """Return (lo, hi]: no tick outside can satisfy the conditions."""
        lo, hi = 0, TICK_MAX
        for test in self.system:
            if test.column in {"tick", "timestamp"}:
                low, high = _hull(test)
                lo, hi = max(lo, low), min(hi, high)
        return lo, hi

    def wants(self, pubend: int) -> bool:
        """Tell whether rows of a pubend can satisfy the conditions."""
        for test in self.system:
            if test.column == "pubend" and not _compare(_as_signed(pubend), test):
                return False
            if test.column == "id" and test.operator == "in":
                brokers = {int.from_bytes(value[4:8], "big") for value in test.values if len(value) == 16}
                if pubend_broker(pubend) not in brokers:
                    return False
        return True


class Selection:
    """Applies what was pushed to converted rows. Made once per task."""

    def __init__(self, pushed: Pushed, converter: Converter, given: str) -> None:
        self.raw = Filter(text) if (text := pushed.raw_filter(given)) else None
        self._exact = Filter(all_of(pushed.exact)) if pushed.exact else None
        self._everything = Filter(all_of([*pushed.exact, *pushed.raw]))
        self._converter = converter
        places = {column.name: index for index, column in enumerate(converter.columns) if column.attribute is None}
        self._tests = [(test, places[test.column]) for test in pushed.system]
        self._null_tests = [(places[name], null) for name, null in pushed.null_tests]

    def messages(self, batch: Batch) -> Batch:
        """Return the messages that may satisfy the conditions."""
        return batch if self.raw is None else batch.filter(self.raw.evaluate(batch))

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the converted rows that satisfy them."""
        if self._exact is not None:
            rows = _filter(rows, self._exact.evaluate(self._converter.view(rows, self._exact.attributes)))
        return self._by_system(rows)

    def gap(self, row: pa.RecordBatch) -> pa.RecordBatch:
        """Return the row of a gap if it satisfies the conditions, as Spark would see it: without any attribute."""
        if not self._everything.matches({}):
            row = row.slice(0, 0)
        return self._by_system(row)

    def _by_system(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for test, index in self._tests:
            rows = _filter(rows, test.holds(rows, index))
        for index, null in self._null_tests:
            column = rows.column(index)
            rows = _filter(rows, column.is_null() if null else column.is_valid())
        return rows


def push(
    filters: Sequence[d.Filter], columns: Iterable[Column], names: Sequence[str], *, null_mismatches: bool
) -> tuple[Pushed, list[d.Filter]]:
    """Take what can be taken; return it and what is left to Spark. `names` are Spark's names of the columns."""
    by_name = {name.lower(): column for name, column in zip(names, columns, strict=True)}
    pushed = Pushed()
    left = [each for each in filters if not _push_one(each, by_name, pushed, null_mismatches=null_mismatches)]
    return pushed, left


def _push_one(given: d.Filter, by_name: dict[str, Column], pushed: Pushed, *, null_mismatches: bool) -> bool:
    negated = isinstance(given, d.Not)
    inner: Any = given.child if isinstance(given, d.Not) else given
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    column = by_name.get(path[0].lower()) if len(path) == 1 else None
    if column is None:
        return False
    if column.attribute is None:
        return _push_system(inner, column, pushed, negated=negated)
    return _push_attribute(inner, column, pushed, negated=negated, null_mismatches=null_mismatches)


# --- attributes ----------------------------------------------------------------------------------------------------------


def _push_attribute(inner: Any, column: Column, pushed: Pushed, *, negated: bool, null_mismatches: bool) -> bool:
    text = _condition(inner, column, negated=negated)
    if text is None:
        return False
    try:
        Filter(all_of([*pushed.raw, *pushed.exact, text]))
    except FilterError:  # beyond a limit of the language
        return False
    tests_null = isinstance(inner, d.IsNull | d.EqualNullSafe)
    if not column.as_text and not (null_mismatches and tests_null) and _fits_raw(inner, column):
        pushed.raw.append(text)
        if not null_mismatches:
            return True
    pushed.exact.append(text)
    return True


def _fits_raw(inner: Any, column: Column) -> bool:
    """Tell whether messages as they are give the same answer, also where an int is shown as a double."""
    if not isinstance(column.type, t.DoubleType):
        return True
    values = inner.value if isinstance(inner, d.In) else [getattr(inner, "value", None)]
    return all(value is None or abs(value) < EXACT_INTS for value in values)


def _condition(inner: Any, column: Column, *, negated: bool) -> str | None:
    """Write a filter of Spark in our language; None if it cannot be."""
    assert column.attribute is not None
    name = '"' + column.attribute.replace('"', '""') + '"'
    match inner:
        case d.IsNull() | d.IsNotNull():
            return f"{name} IS NULL" if isinstance(inner, d.IsNull) is not negated else f"{name} IS NOT NULL"
        case d.EqualTo(_, value):
            literal = _literal(value, column.type)
            return None if literal is None else f"{name} {'<>' if negated else '='} {literal}"
        case d.EqualNullSafe(_, value):
            literal = _literal(value, column.type)
            if literal is None:
                return None
            return f"{name} <> {literal} OR {name} IS NULL" if negated else f"{name} = {literal}"
        case d.In(_, values):
            return _membership(name, values, column.type, negated=negated)
        case d.StringStartsWith(_, value) | d.StringEndsWith(_, value) | d.StringContains(_, value):
            return _pattern(name, inner, value, column.type, negated=negated)
        case d.GreaterThan(_, value) | d.GreaterThanOrEqual(_, value) | d.LessThan(_, value) | d.LessThanOrEqual(_, value):
            return _order(name, _OPERATORS[type(inner)], value, column.type, negated=negated)
        case _:
            return None


_OPERATORS: Final[dict[type, str]] = {d.GreaterThan: ">", d.GreaterThanOrEqual: ">=", d.LessThan: "<", d.LessThanOrEqual: "<="}
_OPPOSITE: Final = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


def _literal(value: Any, type_: t.DataType) -> str | None:
    """Write a value as a literal of our language, if the column's type is one that it stands for exactly."""
    match type_, value:
        case t.BooleanType(), bool():
            return "TRUE" if value else "FALSE"
        case t.StringType(), str():
            return "'" + value.replace("'", "''") + "'"
        case t.DoubleType(), float() if math.isfinite(value):
            return repr(value)
        case _, int() if isinstance(type_, INTEGERS) and not isinstance(value, bool):
            return str(value)
        case _:
            return None


def _membership(name: str, values: Iterable[Any], type_: t.DataType, *, negated: bool) -> str | None:
    listed = list(values)
    if negated and None in listed:
        return None
    literals = [_literal(value, type_) for value in listed if value is not None]
    if not literals or any(literal is None for literal in literals):
        return None
    return f"{name} {'NOT ' if negated else ''}IN ({', '.join(map(str, literals))})"


def _pattern(name: str, inner: Any, value: Any, type_: t.DataType, *, negated: bool) -> str | None:
    if not isinstance(type_, t.StringType) or not isinstance(value, str):
        return None
    pattern = value.replace("'", "''")
    for special in (_LIKE_ESCAPE, "%", "_"):
        pattern = pattern.replace(special, _LIKE_ESCAPE + special)
    before = "" if isinstance(inner, d.StringStartsWith) else "%"
    after = "" if isinstance(inner, d.StringEndsWith) else "%"
    return f"{name} {'NOT ' if negated else ''}LIKE '{before}{pattern}{after}' ESCAPE '{_LIKE_ESCAPE}'"


def _order(name: str, operator: str, value: Any, type_: t.DataType, *, negated: bool) -> str | None:
    if not isinstance(type_, t.DoubleType | t.ByteType | t.ShortType | t.IntegerType | t.LongType):
        return None
    literal = _literal(value, type_)
    if literal is None:
        return None
    if negated:
        operator = _OPPOSITE[operator]
    text = f"{name} {operator} {literal}"
    return f"{text} OR {name} <> {name}" if isinstance(type_, t.DoubleType) and operator in {">", ">="} else text


# --- system columns ------------------------------------------------------------------------------------------------------


def _push_system(inner: Any, column: Column, pushed: Pushed, *, negated: bool) -> bool:
    match inner:
        case d.IsNull() | d.IsNotNull():
            pushed.null_tests.append((column.name, isinstance(inner, d.IsNull) is not negated))
            return True
        case _ if column.name in {"payload", GAP}:
            return False
        case d.EqualTo(_, value):
            test = SystemTest(column.name, "not in" if negated else "in", (value,))
        case d.In(_, values) if not (negated and None in values):
            test = SystemTest(column.name, "not in" if negated else "in", tuple(v for v in values if v is not None))
        case d.GreaterThan(_, value) | d.GreaterThanOrEqual(_, value) | d.LessThan(_, value) | d.LessThanOrEqual(_, value):
            operator = _OPERATORS[type(inner)]
            test = SystemTest(column.name, _OPPOSITE[operator] if negated else operator, (value,))
        case _:
            return False
    if column.name == "id" and (test.operator not in {"in", "not in"} or not all(isinstance(v, bytes) for v in test.values)):
        return False
    pushed.system.append(test)
    return True


def _hull(test: SystemTest) -> tuple[int, int]:
    """Return the ticks (lo, hi] that a condition on tick or timestamp allows at most."""
    spans = [_ticks_of(test.column, value) for value in test.values]
    match test.operator:
        case "in":
            return (max(min(low for low, _ in spans), 0), max(high for _, high in spans)) if spans else (0, 0)
        case ">" | ">=":
            return max(spans[0][0], 0), TICK_MAX
        case "<" | "<=":
            return 0, min(max(spans[0][1], 0), TICK_MAX)
        case _:
            return 0, TICK_MAX


def _ticks_of(column: str, value: Any) -> tuple[int, int]:
    """Return the ticks (lo, hi] that a value of tick or timestamp may stand for; for a timestamp, the millisecond around it."""
    if column == "tick":
        return value - 1, value
    delta = value - _EPOCH
    milliseconds = (delta.days * 86_400_000_000 + delta.seconds * 1_000_000 + delta.microseconds) // 1000
    return (milliseconds << COUNTER_BITS) - 1, ((milliseconds + 1) << COUNTER_BITS) - 1


def _compare(value: int, test: SystemTest) -> bool:
    match test.operator:
        case "in":
            return value in test.values
        case "not in":
            return value not in test.values
        case "<":
            return bool(value < test.values[0])
        case "<=":
            return bool(value <= test.values[0])
        case ">":
            return bool(value > test.values[0])
        case _:
            return bool(value >= test.values[0])


def _as_signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _filter(rows: pa.RecordBatch, mask: Any) -> pa.RecordBatch:
    if isinstance(mask, np.ndarray):
        mask = pa.array(mask)
    count = pc.sum(mask).as_py() or 0
    if count == len(rows):
        return rows
    return rows.filter(mask) if count else rows.slice(0, 0)
