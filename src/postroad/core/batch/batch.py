"""The unit of the data path: a batch of messages as Arrow columns.

Columns, in this order: `tick` (uint64), `id` (16 bytes), `payload` (binary), then one column per attribute, named `@` followed
by the attribute's name, sorted by name. The prefix keeps an attribute called `tick` apart from the system column. A missing
attribute is a null; a column has one type (bool, int64, float64, string, binary), and messages whose types clash stand in
different batches.

Invariants of every `Batch`: the schema is that of its layout; the system columns hold no nulls; names are sorted and unique.
`Batch(columns)` trusts its caller in this; bytes from a peer become batches only through `postroad.wire.batches`.

A few rows that come from one client or go to one are looked at as values and never as columns, which would cost more to make
than the rest of their way. So the columns of a `view`, and of a batch made `of_values`, are made when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from postroad.core.batch.checks import (
    attribute_column,
    check_attribute_sizes,
    check_sizes,
    id_column,
    only_kind,
    payload_column,
    tick_column,
    value_columns,
)
from postroad.core.batch.message import Message, RowColumns, id_array, ids_of
from postroad.core.batch.schema import (
    ATTRIBUTE_PREFIX,
    DEFAULT_LIMITS,
    ID,
    KIND_TYPES,
    PAYLOAD,
    SYSTEM_COLUMNS,
    TICK,
    TICK_TYPE,
    BatchLimits,
    Kind,
    Layout,
    check_name,
    layout_of,
    layout_of_schema,
)
from postroad.errors import BatchError, BatchLimitError
from postroad.types import AttributeValue, Tick

Ticks: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]
Ids: TypeAlias = np.ndarray[tuple[int], np.dtype[np.void]]

_TICK_FIELD: Final = pa.field("tick", TICK_TYPE)
# Missing from the stubs, or wrong in them.
_concat: Final[Callable[[list[pa.RecordBatch]], pa.RecordBatch]] = pa.concat_batches  # type: ignore[attr-defined]
_take: Final[Callable[[pa.RecordBatch, pa.Array[Any]], pa.RecordBatch]] = pa.RecordBatch.take


class Values(NamedTuple):
    """Rows as lists of values; None where a row lacks an attribute."""

    ticks: list[Tick]
    ids: list[bytes]
    payloads: list[bytes]
    attributes: dict[str, list[AttributeValue | None]]


class Batch:
    """Messages as Arrow columns. `Subscription.batches` and `Client.read` give them.

    Immutable. Slices share the columns of the batch they come from and keep them alive; `compact` ends that.

    ```python
    quotes = await client.subscribe("price > 100")
    await client.publish({"symbol": "ACME", "price": 101.5})
    async for batch in quotes.batches():
        print(len(batch), batch.attribute("price"), batch.columns.schema.names)
        break
    ```
    """

    __slots__ = (
        "_columns",
        "_count",
        "_ids",
        "_layout",
        "_parent",
        "_rows",
        "_shared",
        "_size",
        "_start",
        "_ticks",
        "encoded",
        "encoded_values",
    )

    def __init__(self, columns: pa.RecordBatch, layout: Layout | None = None) -> None:
        self._columns: pa.RecordBatch | None = columns
        self._count: int = columns.num_rows
        self._begin(layout)

    def _begin(self, layout: Layout | None) -> None:
        # The bytes this batch was decoded from (then the columns are views of them), or those it was encoded to: its layout's
        # and the record batch's.
        self.encoded: tuple[bytes | memoryview, ...] | None = None
        self.encoded_values: bytes | None = None  # of a view: the same by `postroad.wire.deliveries`
        self._layout = layout
        self._parent: Batch | None = None  # of a view: what it is a view of, from the row `_start` on,
        self._shared: RowColumns | None = None  # and the values of that
        self._start = 0
        # Asked for by the log, the cache, the tracks and others; each time would be several objects.
        self._rows: RowColumns | None = None
        self._ids: Ids | None = None
        self._ticks: Ticks | None = None
        self._size: int | None = None

    @classmethod
    def from_columns(
        cls,
        ids: Any,
        payloads: Any,
        attributes: Mapping[str, Any],
        ticks: np.ndarray[Any, Any] | Sequence[int] | None = None,
        limits: BatchLimits = DEFAULT_LIMITS,
    ) -> Batch:
        """Build a batch from columns: lists, numpy arrays or Arrow arrays, one value per message.

        Ids may also be one bytes object of 16 bytes per message. In a list None stands for a missing attribute, as a null
        does in an Arrow array. Everything is checked; the first fault raises `InvalidValueError` or `BatchError`.
        """
        id_values = id_column(ids)
        rows = len(id_values)
        columns = [tick_column(ticks, rows), id_values, payload_column(payloads, limits)]
        for name in attributes:
            check_name(name)
        names, kinds = [], []
        for name in sorted(attributes):
            kind, column = attribute_column(attributes[name], name, limits)
            if kind is not None:
                names.append(name)
                kinds.append(kind)
                columns.append(column)
        layout = layout_of(tuple(names), tuple(kinds))
        return assemble(columns, layout, limits)

    @classmethod
    def of_values(
        cls,
        ticks: list[Tick],
        ids: list[bytes],
        payloads: list[bytes],
        attributes: Mapping[str, list[AttributeValue | None]],
        size: int | None = None,
        complete: Layout | None = None,
    ) -> Batch:
        """Make a batch of values that were checked, at least one row, which takes `size` bytes.

        None is a missing attribute. Where none is missing, `complete` may give the layout.
        """
        self = cls.__new__(cls)
        self._columns = None
        self._count = len(ticks)
        self._begin(complete)
        self._rows = RowColumns.of_values(ticks, ids, payloads, attributes)
        self._size = size
        return self

    @property
    def columns(self) -> pa.RecordBatch:
        """The Arrow record batch: `tick`, `id`, `payload`, and `@name` for each attribute."""
        if self._columns is None:
            self._columns = self._make_columns()
        return self._columns

    def _make_columns(self) -> pa.RecordBatch:
        if self._parent is not None:
            return self._parent.columns.slice(self._start, self._count)
        if self.encoded is not None:
            return pa.ipc.read_record_batch(pa.py_buffer(self.encoded[-1]), self.layout.schema)
        rows = self.rows()
        attributes = rows.all_attributes()
        kinds = tuple(kind for kind in map(only_kind, attributes.values()) if kind is not None)
        assert len(kinds) == len(attributes), "values are checked before they make a batch"
        ticks = tick_column(np.array(rows.ticks(), np.uint64), self._count)
        known = zip(attributes, kinds, attributes.values(), strict=True)
        complete = all(None not in values for values in attributes.values())
        self._layout = layout_of(tuple(attributes), kinds)
        columns = value_columns(ticks, rows.ids(), rows.payloads(), known, complete=complete)
        return pa.RecordBatch.from_arrays(columns, schema=self._layout.schema)

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            schema = self.columns.schema
            if self._layout is None:  # columns that were just made may have brought it
                self._layout = layout_of_schema(schema)
        return self._layout

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """The bytes of the columns when encoded, without the layout."""
        if self._size is None and self._columns is None and self.encoded is not None:
            self._size = len(self.encoded[-1])
        elif self._size is None:
            self._size = pa.ipc.get_record_batch_size(self.columns)
        return self._size

    def attribute(self, name: str) -> pa.Array[Any] | None:
        """Return the column of an attribute, or None when no message of the batch has it."""
        index = self.columns.schema.get_field_index(ATTRIBUTE_PREFIX + name)
        return None if index < 0 else self.columns.column(index)

    def ticks(self) -> Ticks:
        """Return the ticks, which ascend: the places of the messages in their stream."""
        if self._ticks is None:
            if self._columns is None and self._rows is not None:
                self._ticks = np.array(self._rows.ticks(), np.uint64)
            else:
                self._ticks = self.columns.column(TICK).to_numpy()
        return self._ticks

    @property
    def last_tick(self) -> int:
        """The tick of the last row."""
        if self._columns is None and self._rows is not None:
            return self._rows.ticks()[-1]
        return int(self.ticks()[-1])

    def ids(self) -> Ids:
        """Return the ids as 16-byte items without a copy; `.view(">u8").reshape(-1, 2)` gives them as numbers."""
        if self._ids is None:
            if self._columns is None and self._rows is not None:
                self._ids = ids_of(b"".join(self._rows.ids()))
            else:
                self._ids = id_array(self.columns.column(ID))
        return self._ids

    def id_pieces(self) -> Sequence[bytes]:
        """Return the ids apart from everything else of the batch: joined they stand one after the other."""
        if self._columns is None and self._rows is not None:
            return self._rows.ids()
        return (self.ids().tobytes(),)

    def payloads(self) -> pa.Array[Any]:
        """Return the payloads as an Arrow array."""
        return self.columns.column(PAYLOAD)

    def message(self, row: int) -> Message:
        """Return one message."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        return Message(self.rows(), row)

    def __iter__(self) -> Iterator[Message]:
        rows = self.rows()
        return (Message(rows, row) for row in range(len(self)))

    def values(self) -> Values:
        """Return the rows as lists of values. Views that were made together share the conversion; nobody else remembers it."""
        rows = self._shared or self._rows or RowColumns(self.columns)
        start, stop = self._start, self._start + self._count
        attributes = {name: values[start:stop] for name, values in rows.all_attributes().items()}
        return Values(rows.ticks()[start:stop], rows.ids()[start:stop], rows.payloads()[start:stop], attributes)

    def rows(self) -> RowColumns:
        """Return the columns as lists that messages share, each made when first asked for, and remember them."""
        if self._rows is None:
            self._rows = RowColumns(self.columns)
        return self._rows

    def remember(self, ids: list[bytes], payloads: list[bytes], attributes: Mapping[str, list[AttributeValue | None]]) -> None:
        """Keep the values that the columns were made of, for those who want values soon, until `forget`."""
        self._rows = RowColumns.of_values(None, ids, payloads, attributes, self.columns)

    def remembered(self, name: str) -> list[AttributeValue | None] | None:
        """Return an attribute's values if the batch has them, as values."""
        return None if self._rows is None else self._rows.attribute(name)

    def forget(self) -> None:
        """Keep the columns alone, or what they can be made of again: the values of a batch take several times the memory."""
        if self._columns is not None or self.encoded is not None:
            self._rows = None

    def slice(self, start: int, stop: int) -> Batch:
        """Return the rows [start, stop) without copying them."""
        if start <= 0 and stop >= self._count:
            return self
        start = max(start, 0)
        return Batch(self.columns.slice(start, max(stop - start, 0)), self._layout)

    def views(self, parts: Iterable[tuple[int, int]]) -> list[Batch]:
        """Return the rows of each part [start, stop), which must be there: slices whose columns are made when asked for.

        They keep everything that was made of the batch for any of them, so they are not for keeping.
        """
        shared = self._rows or RowColumns(self.columns)
        return [self._view(self, shared, start, stop) for start, stop in parts]

    @classmethod
    def _view(cls, parent: Batch, shared: RowColumns, start: int, stop: int) -> Batch:
        self = cls.__new__(cls)
        self._columns = None
        self._count = stop - start
        self._begin(parent._layout)
        self._parent, self._shared, self._start = parent, shared, start
        return self

    @property
    def is_view(self) -> bool:
        return self._parent is not None

    @property
    def complete_values(self) -> RowColumns | None:
        """The values of a batch that has no columns yet, if no row lacks an attribute."""
        return self._rows if self._columns is None and self._layout is not None else None

    def within(self, lo: int, hi: int) -> Batch:
        """Return the rows of the tick range (lo, hi]; ticks must ascend."""
        start, stop = np.searchsorted(self.ticks(), np.array([lo, hi], np.uint64), side="right").tolist()
        return self.slice(start, stop)

    def take(self, rows: np.ndarray[Any, Any] | Sequence[int]) -> Batch:
        """Return the rows at these positions, in the order given. Neighbouring rows are shared, not copied."""
        indices = np.asarray(rows, np.int64)
        count = len(indices)
        if count == 0:
            return self.slice(0, 0)
        first, last = int(indices[0]), int(indices[-1])
        if last - first == count - 1 and first >= 0 and last < len(self) and (count == 1 or bool((np.diff(indices) == 1).all())):
            return self.slice(first, last + 1)
        return Batch(_take(self.columns, pa.array(indices)), self._layout)

    def filter(self, mask: np.ndarray[Any, np.dtype[np.bool_]] | pa.BooleanArray) -> Batch:
        """Return the rows whose mask is true; a null in the mask is false."""
        if isinstance(mask, pa.Array):
            mask = mask.fill_null(False).to_numpy(zero_copy_only=False)
        if len(mask) != len(self):
            raise ValueError(f"a mask of {len(mask)} for a batch of {len(self)} rows")
        return self.take(np.flatnonzero(mask))

    def with_ticks(self, ticks: np.ndarray[Any, Any] | Sequence[int]) -> Batch:
        """Return the same messages at these ticks."""
        column = tick_column(ticks, len(self))
        return Batch(self.columns.set_column(TICK, _TICK_FIELD, column), self._layout)

    def compact(self) -> Batch:
        """Return a batch that owns just its rows: for slices that outlive the batch they come from."""
        return Batch(_concat([self.columns, self.columns.slice(0, 0)]), self._layout)

    def equals(self, other: Batch) -> bool:
        """Whether both hold the same messages in the same columns; NaN equals NaN of the same bits."""
        if self.columns.schema.names != other.columns.schema.names or len(self) != len(other):
            return False
        return all(_same(ours, theirs) for ours, theirs in zip(self.columns.columns, other.columns.columns, strict=True))

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name}: {kind}" for name, kind in zip(self.layout.names, self.layout.kinds, strict=True))
        return f"Batch({len(self)} rows; {kinds})"


def assemble(columns: list[pa.Array[Any]], layout: Layout, limits: BatchLimits) -> Batch:
    """Put checked columns together; refuse unequal lengths and what breaks the limits of a whole batch."""
    rows = len(columns[0])
    for column in columns:
        if len(column) != rows:
            raise BatchError(f"columns of {rows} and {len(column)} rows cannot be in one batch")
    layout.check(limits)
    if rows > limits.rows:
        raise BatchLimitError(f"a batch of {rows:,} rows", "rows", limits.rows)
    batch = Batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout)
    if batch.size > limits.bytes:
        raise BatchLimitError(f"a batch of {batch.size:,} bytes", "bytes", limits.bytes)
    check_attribute_counts(batch, limits)
    return batch


def check_values(batch: Batch, limits: BatchLimits) -> None:
    """Refuse a batch with a payload or attribute value beyond its limit."""
    check_sizes(batch.payloads(), limits.payload_bytes, "a payload", "payload_bytes")
    for index, (name, kind) in enumerate(zip(batch.layout.names, batch.layout.kinds, strict=True), SYSTEM_COLUMNS):
        if kind in {"string", "binary"}:
            check_attribute_sizes(batch.columns.column(index), kind, name, limits)


def check_attribute_counts(batch: Batch, limits: BatchLimits) -> None:
    """Refuse a message with too many attributes; only counts when there are columns enough for one."""
    if len(batch.layout.names) <= limits.attributes:
        return
    present = np.zeros(len(batch), np.int64)
    for column in batch.columns.columns[SYSTEM_COLUMNS:]:
        present += column.is_valid().to_numpy(zero_copy_only=False)
    most = int(present.max(initial=0))
    if most > limits.attributes:
        raise BatchLimitError(f"a message with {most} attributes", "attributes", limits.attributes)


def _same(ours: pa.Array[Any], theirs: pa.Array[Any]) -> bool:
    if ours.type != theirs.type:
        return False
    if pa.types.is_floating(ours.type):
        return ours.view(pa.int64()).equals(theirs.view(pa.int64()))
    return ours.equals(theirs)


def concat(batches: Iterable[Batch], limits: BatchLimits = DEFAULT_LIMITS) -> list[Batch]:
    """Join neighbouring batches as far as their types and the limits allow; the order of messages stays.

    An attribute that only some of the batches have is null in the others' rows. Empty batches vanish.
    """
    return [_join(run) for run in _runs((batch for batch in batches if len(batch)), limits)]


def _runs(batches: Iterable[Batch], limits: BatchLimits) -> Iterator[list[Batch]]:
    run: list[Batch] = []
    kinds: dict[str, Kind] = {}
    layout: Layout | None = None
    rows = size = 0
    for batch in batches:
        same = batch.layout is layout
        fits = rows + len(batch) <= limits.rows and size + batch.size <= limits.bytes
        merged = kinds if same else _merge(kinds, batch.layout, limits)
        if run and (merged is None or not fits):
            yield run
            run, rows, size = [], 0, 0
            merged = _merge({}, batch.layout, limits)
        if merged is None:
            raise BatchLimitError(f"a batch with {len(batch.layout.names)} attribute columns", "columns", limits.columns)
        run.append(batch)
        kinds, layout, rows, size = merged, batch.layout, rows + len(batch), size + batch.size
    if run:
        yield run


def _merge(kinds: dict[str, Kind], layout: Layout, limits: BatchLimits) -> dict[str, Kind] | None:
    """Return the union of the attributes, or None when a type clashes or there would be too many columns."""
    merged = dict(kinds)
    for name, kind in zip(layout.names, layout.kinds, strict=True):
        if merged.setdefault(name, kind) != kind:
            return None
    return merged if len(merged) <= limits.columns else None


def _join(run: list[Batch]) -> Batch:
    if len(run) == 1:
        return run[0]
    layout = run[0].layout
    if any(batch.layout is not layout for batch in run):
        kinds = {name: kind for batch in run for name, kind in zip(batch.layout.names, batch.layout.kinds, strict=True)}
        names = tuple(sorted(kinds))
        layout = layout_of(names, tuple(kinds[name] for name in names))
    parts = [widen(batch, layout).columns for batch in run]
    return Batch(_concat(parts), layout)


def widen(batch: Batch, layout: Layout) -> Batch:
    """Return the batch with the columns of a larger layout; added ones are null."""
    if batch.layout is layout and batch.columns.schema.equals(layout.schema):
        return batch
    columns = [batch.columns.column(index) for index in range(SYSTEM_COLUMNS)]
    for name, kind in zip(layout.names, layout.kinds, strict=True):
        column = batch.attribute(name)
        columns.append(pa.nulls(len(batch), KIND_TYPES[kind]) if column is None else column)
    return Batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout)
