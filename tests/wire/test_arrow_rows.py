"""Few rows as values: written as Arrow writes them, and the same batch in every respect as one of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import VALUES_MAX, Row, build_batches
from postroad.errors import PostroadError
from postroad.wire.batches import BatchDecoder, encode_batch

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "number": st.integers(-(1 << 63), (1 << 63) - 1),
    "price": st.floats(),
    "symbol": st.text(st.characters(codec="utf-8"), max_size=9),
    "blob": st.binary(max_size=9),
}


@st.composite
def complete_rows(draw: st.DrawFn) -> list[Row]:
    """Draw rows that all have the same attributes."""
    names = draw(st.sets(st.sampled_from(sorted(VALUES))))
    attributes = st.fixed_dictionaries({name: VALUES[name] for name in names})
    row = st.builds(Row, st.binary(min_size=16, max_size=16), attributes, st.binary(max_size=20))
    return draw(st.lists(row, min_size=1, max_size=VALUES_MAX))


def both(rows: list[Row]) -> tuple[Batch, Batch]:
    """Return the rows as a batch of values and as one of columns."""
    ticks = np.arange(7, 7 + len(rows), dtype=np.uint64)
    [values] = build_batches(rows, ticks, remember=True)
    [columns] = build_batches(rows, ticks)
    return values, columns


@given(complete_rows())
def test_the_bytes_are_those_of_arrow(rows: list[Row]) -> None:
    values, columns = both(rows)
    assert values.complete_values is not None
    assert columns.complete_values is None
    data = b"".join(encode_batch(values))
    assert data == b"".join(encode_batch(columns))
    assert BatchDecoder().decode(data, ascending=True).equals(columns)


@given(complete_rows(), st.booleans(), st.booleans())
def test_a_batch_of_values_is_the_same_as_one_of_columns(rows: list[Row], encode: bool, forget: bool) -> None:
    """Before and after it was encoded, and after its values were forgotten."""
    values, columns = both(rows)
    if encode:
        encode_batch(values)
    if forget:
        values.forget()
    assert values.ticks().tolist() == columns.ticks().tolist()
    assert values.ids().tolist() == columns.ids().tolist()
    assert values.last_tick == columns.last_tick
    assert values.size == columns.size
    assert values.layout is columns.layout
    assert list(values) == list(columns) or "price" in values.layout.names  # NaN is not equal to itself
    assert values.slice(1, 3).equals(columns.slice(1, 3))
    assert values.equals(columns)
    values.columns.validate(full=True)


@given(complete_rows(), st.data())
def test_a_view_of_values_that_were_forgotten_has_columns(rows: list[Row], data: st.DataObject) -> None:
    """As for a client that takes no rows as values."""
    values, columns = both(rows)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    encode_batch(values)
    [view] = values.views([(start, stop)])
    values.forget()
    assert view.equals(columns.slice(start, stop))


def test_forgetting_keeps_the_bytes_alone() -> None:
    rows = [Row(bytes(16), {"symbol": "A"}, b"payload")]
    values, _ = both(rows)
    values.forget()
    assert values.remembered("symbol") == ["A"], "what is nowhere else is kept"
    encode_batch(values)
    values.forget()
    assert values.remembered("symbol") is None
    assert values.values().attributes == {"symbol": ["A"]}


@pytest.mark.parametrize(
    "rows",
    [
        [Row(bytes(16), {"n": 1 << 63}, b"")],
        [Row(bytes(16), {"n": -(1 << 63) - 1}, b"")],
        [Row(bytes(16), {"s": "\ud800"}, b"")],
        [Row(bytes(15), {"n": 1}, b""), Row(bytes(17), {"n": 1}, b"")],
        [Row(bytes(16), {"s": "x" * 70_000}, b"")],
        [Row(bytes(16), {"b": b"x" * 70_000}, b"")],
        [Row(bytes(16), {"n": 1}, "text")],  # type: ignore[arg-type]
        [Row(bytes(16), {"x" * 300: 1}, b"")],
        [Row(bytes(16), {"": 1}, b"")],
        [Row(bytes(16), {f"a{n}": n for n in range(65)}, b"")],
    ],
)
def test_what_columns_refuse_values_refuse(rows: list[Row]) -> None:
    ticks = np.arange(1, 1 + len(rows), dtype=np.uint64)
    with pytest.raises(PostroadError) as columns:
        build_batches(rows, ticks)
    with pytest.raises(type(columns.value)) as values:
        build_batches(rows, ticks, remember=True)
    assert str(values.value) == str(columns.value)


@pytest.mark.parametrize(
    "rows",
    [
        [Row(bytes(16), {"n": 1}, b""), Row(bytes(16), {"m": 1}, b"")],  # a row lacks an attribute
        [Row(bytes(16), {"n": 1}, b"x" * 70_000)],  # a large payload
        [Row(bytes(16), {"n": n}, b"") for n in range(VALUES_MAX + 1)],
        [Row(bytes(16), {"n": 1}, bytearray(b"x"))],  # type: ignore[arg-type]
    ],
)
def test_other_rows_are_columns(rows: list[Row]) -> None:
    values, columns = both(rows)
    assert values.complete_values is None
    assert values.equals(columns)


def test_any_arrow_program_reads_them() -> None:
    values, columns = both([Row(bytes(16), {"symbol": "Ä", "up": True}, b"payload")])
    with pa.ipc.open_stream(b"".join(encode_batch(values))) as reader:
        assert reader.read_next_batch().equals(columns.columns)
