"""Batches from rows: what a pubend does once per group commit.

Rows arrive one by one, with any mixture of attributes. The common case, all rows with the same names and types, is
recognised with C-speed passes over whole columns, and so is the next common one, rows with different names but one type per
name. Otherwise a walk over the rows cuts them into consecutive runs without a type clash; within a run a missing attribute is
a null. Order is kept, always: a tick assigned to row i stays with row i.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Batch, check_values
from postroad.core.batch.checks import (
    all_of_type,
    exact_kind,
    id_bytes,
    only_kind,
    tick_column,
    value_columns,
)
from postroad.core.batch.schema import DEFAULT_LIMITS, INT_MAX, INT_MIN, KIND_OF, BatchLimits, Kind, check_message, layout_of
from postroad.errors import BatchLimitError
from postroad.types import AttributeValue, Tick

VALUES_MAX: Final = 64
"""Rows that stay values until somebody wants columns: to make these costs 30 us, however few the rows are."""


class Row(NamedTuple):
    """A message on its way to a pubend. Any tuple of this shape will do."""

    id: bytes
    attributes: Mapping[str, AttributeValue]
    payload: bytes


class _Columns(NamedTuple):
    """Attributes of some rows, by name; `complete` when no row lacks one."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    values: list[list[AttributeValue | None]]
    complete: bool


class _Run(NamedTuple):
    """Rows [start, stop) with the union of their attributes."""

    start: int
    stop: int
    kinds: dict[str, Kind]


def build_batches(
    rows: Sequence[tuple[bytes, Mapping[str, AttributeValue], bytes]],
    ticks: np.ndarray[Any, Any] | None = None,
    limits: BatchLimits = DEFAULT_LIMITS,
    *,
    remember: bool = False,
) -> list[Batch]:
    """Build batches that hold the rows in order; one batch unless types clash or limits force a cut.

    Without `ticks` the tick column is 0 and `Batch.with_ticks` sets it later. With `remember` a batch keeps its values, as far as
    that costs nothing, until `Batch.forget`; few rows are values alone. Values are checked as publishers' values are:
    the first fault raises `InvalidValueError` or `BatchLimitError` and nothing is built.
    """
    if not rows:
        return []
    ids, attributes, payloads = zip(*rows, strict=True)
    columns = None
    if len(rows) <= limits.rows:
        columns = _same_names(attributes, limits)
        if columns is not None and remember and ticks is not None and len(rows) <= VALUES_MAX:
            batch = _as_values(ids, payloads, ticks, columns, limits)
            if batch is not None:
                return [batch]
        columns = columns or _same_kinds(attributes, limits)
    tick_values = tick_column(ticks, len(rows))
    if columns is not None:
        batches = _assemble(ids, payloads, tick_values, columns, limits)
        if remember and len(batches) == 1:
            batches[0].remember(list(ids), list(payloads), dict(zip(columns.names, columns.values, strict=True)))
        return batches
    plain = [check_message(each, payload, limits) for each, payload in zip(attributes, payloads, strict=True)]
    batches = []
    for start, stop, union in _cut(plain, limits):
        names = tuple(sorted(union))
        kinds = tuple(union[name] for name in names)
        values = [[each.get(name) for each in plain[start:stop]] for name in names]
        columns = _Columns(names, kinds, values, complete=False)
        part = tick_values.slice(start, stop - start)
        batches += _assemble(ids[start:stop], payloads[start:stop], part, columns, limits)
    return batches


def _same_names(attributes: Sequence[Mapping[str, AttributeValue]], limits: BatchLimits) -> _Columns | None:
    """Transpose rows that all have the same names and plain types; None when they do not."""
    count = len(attributes[0])
    if count > limits.attributes or list(map(len, attributes)).count(count) != len(attributes):
        return None
    try:
        names = tuple(sorted(attributes[0]))
        columns = [list(map(itemgetter(name), attributes)) for name in names]
    except (KeyError, TypeError):
        return None
    kinds = []
    for column in columns:
        kind = exact_kind(column)
        if kind is None:
            return None
        kinds.append(kind)
    return _Columns(names, tuple(kinds), columns, complete=True)


def _same_kinds(attributes: Sequence[Mapping[str, AttributeValue]], limits: BatchLimits) -> _Columns | None:
    """Transpose rows of different names but one plain type per name; None when there is anything else about them."""
    lengths = list(map(len, attributes))
    found: set[str] = set().union(*attributes)
    if max(lengths) > limits.attributes or len(found) > limits.columns or not all_of_type(list(found), str):
        return None
    names = tuple(sorted(found))
    columns = [[each.get(name) for each in attributes] for name in names]
    kinds = tuple(kind for kind in map(only_kind, columns) if kind is not None)
    if len(kinds) < len(names):
        return None
    missing = sum(column.count(None) for column in columns)
    if len(attributes) * len(names) - missing != sum(lengths):
        return None  # a None was given as a value
    return _Columns(names, kinds, columns, complete=False)


def _cut(rows: Sequence[Mapping[str, AttributeValue]], limits: BatchLimits) -> Iterator[_Run]:
    """Cut rows of plain values where a type clashes, the union grows too wide or a batch too long."""
    start = 0
    union: dict[str, Kind] = {}
    for index, row in enumerate(rows):
        kinds = {name: KIND_OF[type(value)] for name, value in row.items()}
        clash = any(union.get(name, kind) != kind for name, kind in kinds.items())
        if clash or index - start == limits.rows or len(union.keys() | kinds.keys()) > limits.columns:
            if index > start:
                yield _Run(start, index, union)
            start, union = index, {}
        union.update(kinds)
    yield _Run(start, len(rows), union)


def _as_values(
    ids: Sequence[bytes], payloads: Sequence[bytes], ticks: np.ndarray[Any, Any], attributes: _Columns, limits: BatchLimits
) -> Batch | None:
    """Return complete rows as a batch that has no columns yet; None where that takes a closer look."""
    names, kinds, values, _ = attributes
    if not all_of_type(payloads, bytes):
        return None
    id_bytes(ids)
    size = sum(map(len, payloads))
    for kind, column in zip(kinds, values, strict=True):
        if kind == "string":
            text = "".join(cast("list[str]", column))
            try:
                size += len(text) if text.isascii() else len(text.encode())
            except UnicodeEncodeError:
                return None
        elif kind == "binary":
            size += sum(map(len, cast("list[bytes]", column)))
        elif kind == "int":
            numbers = cast("list[int]", column)
            if min(numbers) < INT_MIN or max(numbers) > INT_MAX:
                return None
    if size > limits.value_bytes:  # then a single value may be too large
        return None
    layout = layout_of(names, kinds)
    layout.check(limits)
    known = cast("list[Tick]", ticks.tolist())
    return Batch.of_values(known, list(ids), list(payloads), dict(zip(names, values, strict=True)), complete=layout)


def _assemble(
    ids: Sequence[bytes], payloads: Sequence[bytes], ticks: pa.Array[Any], attributes: _Columns, limits: BatchLimits
) -> list[Batch]:
    names, kinds, values, complete = attributes
    layout = layout_of(names, kinds)
    layout.check(limits)
    columns = value_columns(ticks, ids, payloads, zip(names, kinds, values, strict=True), complete=complete)
    batch = Batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout)
    if batch.size <= limits.value_bytes:  # then no single value is larger either
        return [batch]
    check_values(batch, limits)
    return list(_within_bytes(batch, limits))


def _within_bytes(batch: Batch, limits: BatchLimits) -> Iterator[Batch]:
    """Halve a batch until each part fits."""
    if batch.size <= limits.bytes:
        yield batch
    elif len(batch) == 1:
        raise BatchLimitError(f"a message of {batch.size:,} bytes", "bytes", limits.bytes)
    else:
        half = len(batch) // 2
        yield from _within_bytes(batch.slice(0, half), limits)
        yield from _within_bytes(batch.slice(half, len(batch)), limits)
