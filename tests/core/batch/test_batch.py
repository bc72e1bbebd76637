"""Batches: what goes in as rows or columns comes out as messages, in order and of the same types."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from postroad.core.batch.batch import Batch, concat
from postroad.core.batch.build import Row, build_batches
from postroad.core.batch.message import Message
from postroad.core.batch.schema import DEFAULT_LIMITS, KIND_OF, BatchLimits, check_message, layout_of, layout_of_schema
from postroad.errors import BatchError, BatchLimitError, InvalidValueError, PostroadError
from postroad.types import AttributeValue, MessageId, Tick

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

names = st.sampled_from(["a", "b", "tick", "id", "payload", "@a", "Preis €", "z" * 255])
values: st.SearchStrategy[AttributeValue] = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.text(max_size=5).filter(lambda text: text.isprintable())
    | st.binary(max_size=5)
)
rows_of_anything = st.lists(
    st.builds(
        Row, st.binary(min_size=16, max_size=16), st.dictionaries(names, values, max_size=4), st.binary(max_size=8)
    ),
    max_size=12,
)  # fmt: skip


@st.composite
def uniform_rows(draw: st.DrawFn) -> list[Row]:
    """Rows that all have the same names and types: the fast way through `build_batches`."""
    chosen = draw(st.dictionaries(names, st.sampled_from(sorted(KIND_OF, key=str)), max_size=4))
    attributes: st.SearchStrategy[dict[str, AttributeValue]] = st.fixed_dictionaries(
        {name: st.from_type(kind) for name, kind in chosen.items()}
    )
    return draw(st.lists(st.builds(Row, st.binary(min_size=16, max_size=16), attributes, st.binary(max_size=8)), max_size=12))


def exact(value: AttributeValue) -> tuple[type, AttributeValue | str]:
    """Give a form in which 1, 1.0 and True differ and NaN equals NaN."""
    return type(value), value.hex() if isinstance(value, float) else value


def content(rows: Sequence[tuple[bytes, Mapping[str, AttributeValue], bytes]]) -> list[Any]:
    return [(bytes(i), {name: exact(value) for name, value in a.items()}, bytes(p)) for i, a, p in rows]


def messages(batches: Sequence[Batch]) -> list[tuple[bytes, Mapping[str, AttributeValue], bytes]]:
    return [(bytes(m.id), m.attributes, m.payload) for batch in batches for m in batch]


def numbered(count: int, **attributes: AttributeValue) -> list[Row]:
    return [Row(n.to_bytes(16, "big"), attributes, b"p%d" % n) for n in range(count)]


def one(rows: Sequence[Row], ticks: Sequence[int] | None = None) -> Batch:
    [batch] = build_batches(rows, None if ticks is None else np.array(ticks, np.uint64))
    return batch


# --- rows ---------------------------------------------------------------------------------------------------------------


@given(rows_of_anything | uniform_rows())
@example([Row(bytes(16), {"a": 1}, b""), Row(bytes(16), {"a": 1.0}, b""), Row(bytes(16), {"a": True}, b"")])
def test_rows_come_back_in_order_with_their_exact_types(rows: list[Row]) -> None:
    """Whatever mixture of attributes goes in, the same messages come out."""
    try:
        plain = [check_message(row.attributes, row.payload) for row in rows]
    except InvalidValueError:
        return  # a lone surrogate, say
    del plain
    batches = build_batches(rows, np.arange(5, 5 + len(rows), dtype=np.uint64))
    assert content(messages(batches)) == content(rows)
    assert [m.tick for batch in batches for m in batch] == list(range(5, 5 + len(rows)))
    assert all(len(batch) for batch in batches)


@given(rows_of_anything)
def test_rows_are_cut_only_where_types_clash(rows: list[Row]) -> None:
    """The first row of each batch clashes with the batch before it."""
    batches = build_batches(rows)
    for left, right in itertools.pairwise(batches):
        before = dict(zip(left.layout.names, left.layout.kinds, strict=True))
        first = {name: KIND_OF[type(value)] for name, value in right.message(0).attributes.items()}
        assert any(before.get(name, kind) != kind for name, kind in first.items())


@given(rows_of_anything)
def test_every_batch_has_the_schema_of_its_layout(rows: list[Row]) -> None:
    """System columns first, then `@name`, sorted; and Arrow finds nothing wrong."""
    for batch in build_batches(rows):
        batch.columns.validate(full=True)
        assert batch.columns.schema.equals(batch.layout.schema)
        assert layout_of_schema(batch.columns.schema) is batch.layout
        assert list(batch.layout.names) == sorted(set(batch.layout.names))


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("given_value", "plain"),
    [
        (np.bool_(True), True),
        (np.int8(-1), -1),
        (np.uint64(7), 7),
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.str_("x"), "x"),
        (np.bytes_(b"x"), b"x"),
        (bytearray(b"y"), b"y"),
        (memoryview(b"z"), b"z"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
    ],
)
def test_numpy_scalars_and_subclasses_become_plain_values(given_value: Any, plain: AttributeValue) -> None:
    """They stand for one of the five types."""
    batch = one([Row(bytes(16), {"a": given_value}, b"")])
    assert exact(batch.message(0).attributes["a"]) == exact(plain)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1 << 63,
        -(1 << 63) - 1,
        np.uint64(1 << 63),
        "\ud800",
        [],
        {},
        (),
        1j,
        object(),
        np.datetime64("2026-01-01"),
        np.arange(2),
    ],
)
def test_a_value_of_no_kind_is_refused(value: Any) -> None:
    """Alone, in company, and in a column; always with a typed error."""
    with pytest.raises(InvalidValueError):
        build_batches([Row(bytes(16), {"a": value}, b"")])
    with pytest.raises(InvalidValueError):
        build_batches([Row(bytes(16), {"a": 1}, b""), Row(bytes(16), {"a": value}, b"")])
    with pytest.raises(InvalidValueError):
        check_message({"a": value}, b"")


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", 7, None, b"a"])
def test_a_name_that_is_no_name_is_refused(name: Any) -> None:
    """Empty, with a NUL, not Unicode, not text."""
    with pytest.raises(InvalidValueError):
        build_batches([Row(bytes(16), {name: 1}, b"")])
    with pytest.raises(InvalidValueError):
        build_batches([Row(bytes(16), {"a": 1}, b""), Row(bytes(16), {"a": 1, name: 1}, b"")])
    with pytest.raises(InvalidValueError):
        Batch.from_columns([bytes(16)], [b""], {"a": [1], name: [1]})


@pytest.mark.parametrize(
    ("message_id", "payload"),
    [(bytes(15), b""), (bytes(17), b""), ("x" * 16, b""), (None, b""), (bytes(16), "text"), (bytes(16), None), (bytes(16), 7)],
)
def test_an_id_or_payload_that_is_none_is_refused(message_id: Any, payload: Any) -> None:
    """Also when two wrong lengths add up."""
    with pytest.raises(InvalidValueError):
        build_batches([Row(message_id, {}, payload)])
    with pytest.raises(InvalidValueError):
        build_batches([Row(bytes(15), {}, b""), Row(bytes(17), {}, b"")])


def test_rows_of_different_names_take_no_slow_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers of different kinds share a pubend all the time; only a clash or a strange value is looked at row by row."""
    rows = [Row(bytes(16), {"a": 1, "b": "x"} if n % 2 else {"b": "y", "c": 0.5}, b"") for n in range(10)]
    monkeypatch.setattr("postroad.core.batch.build.check_message", lambda *_: pytest.fail("walked"))
    batch = one(rows)
    assert content(messages([batch])) == content(rows)
    assert batch.layout.names == ("a", "b", "c")


# --- limits -------------------------------------------------------------------------------------------------------------


def test_too_many_rows_or_bytes_are_split_in_order() -> None:
    """Limits of a batch cut; they do not refuse."""
    rows = numbered(10, a=1)
    by_rows = build_batches(rows, limits=BatchLimits(rows=4))
    assert [len(batch) for batch in by_rows] == [4, 4, 2]
    heavy = [Row(row.id, row.attributes, bytes(1000)) for row in rows]
    by_bytes = build_batches(heavy, limits=BatchLimits(bytes=4096, value_bytes=1024))
    assert len(by_bytes) > 2
    assert max(batch.size for batch in by_bytes) <= 4096
    assert content(messages(by_rows)) == content(rows)
    assert content(messages(by_bytes)) == content(heavy)


@pytest.mark.parametrize(
    ("row", "limits", "limit"),
    [
        (Row(bytes(16), {}, bytes(2001)), BatchLimits(payload_bytes=2000, value_bytes=10), "payload_bytes"),
        (Row(bytes(16), {"a": "é" * 1001}, b""), BatchLimits(value_bytes=2000), "value_bytes"),
        (Row(bytes(16), {"a": bytes(2001)}, b""), BatchLimits(value_bytes=2000), "value_bytes"),
        (Row(bytes(16), {"a": 1, "b": 1}, b""), BatchLimits(attributes=1), "attributes"),
        (Row(bytes(16), {"é" * 128: 1}, b""), BatchLimits(), "name_bytes"),
        (Row(bytes(16), {}, bytes(3000)), BatchLimits(bytes=2000, value_bytes=1000), "bytes"),
    ],
)
def test_one_message_beyond_a_limit_is_refused(row: Row, limits: BatchLimits, limit: str) -> None:
    """The error names the limit, alone and between sound messages."""
    sound = Row(bytes(16), {}, b"")
    for rows in ([row], [sound, row, sound]):
        with pytest.raises(BatchLimitError) as caught:
            build_batches(rows, limits=limits)
        assert caught.value.limit == limit
        assert caught.value.maximum == getattr(limits, limit)


def test_rows_with_ever_new_names_do_not_make_a_batch_ever_wider() -> None:
    """The union of names is bounded; rows beyond it start another batch."""
    rows = [Row(bytes(16), {f"n{n}": n}, b"") for n in range(100)]
    batches = build_batches(rows, limits=BatchLimits(columns=30))
    assert [len(batch.layout.names) for batch in batches] == [30, 30, 30, 10]
    assert content(messages(batches)) == content(rows)


# --- columns ------------------------------------------------------------------------------------------------------------

IDS = [n.to_bytes(16, "big") for n in range(4)]


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        tuple(IDS),
        b"".join(IDS),
        memoryview(b"".join(IDS)),
        np.frombuffer(b"".join(IDS), "V16"),
        np.frombuffer(b"".join(IDS), np.uint8).reshape(4, 16),
        np.frombuffer(b"".join(IDS), ">u8").reshape(4, 2),
        pa.array(IDS, pa.binary(16)),
        pa.array(IDS, pa.binary()),
        pa.chunked_array([pa.array(IDS[:1], pa.binary(16)), pa.array(IDS[1:], pa.binary(16))]),
    ],
)  # fmt: skip
def test_ids_may_come_in_many_forms(ids: Any) -> None:
    """All give the same column."""
    batch = Batch.from_columns(ids, [b""] * 4, {})
    assert [bytes(m.id) for m in batch] == IDS


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1, None, 3, 4], [1, None, 3, 4]),
        (np.array([1, 2, 3, 4], np.int16), [1, 2, 3, 4]),
        (np.array([1, 2, 3, 4], np.uint64), [1, 2, 3, 4]),
        (np.array([0.5, 1, 2, 3], np.float32), [0.5, 1.0, 2.0, 3.0]),
        (np.array([True, False, True, False]), [True, False, True, False]),
        (np.array(["a", "b", "", "d"]), ["a", "b", "", "d"]),
        (np.arange(8)[::2], [0, 2, 4, 6]),
        (np.arange(4, dtype=">i8"), [0, 1, 2, 3]),
        (np.ma.masked_equal([1, 2, 3, 4], 2), [1, None, 3, 4]),
        (np.ma.masked_equal(["a", "b", "c", "d"], "b"), ["a", None, "c", "d"]),
        (np.array(["a", None, "b", "c"], object), ["a", None, "b", "c"]),
        (pa.array(["a", None, "b", "c"], pa.large_string()), ["a", None, "b", "c"]),
        (pa.array(["a", "a", None, "c"]).dictionary_encode(), ["a", "a", None, "c"]),
        (pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)), [b"ab", None, b"cd", b"ef"]),
        (pa.array([0, 1, 2, 3, 4, 5], pa.int32()).slice(1, 4), [1, 2, 3, 4]),
        ((value for value in [1, 2, 3, 4]), [1, 2, 3, 4]),
    ],
)
def test_attribute_columns_may_come_in_many_forms(column: Any, expected: list[AttributeValue | None]) -> None:
    """Lists, numpy and Arrow; a null or None is a missing attribute."""
    batch = Batch.from_columns(IDS, [b""] * 4, {"a": column})
    assert [None if v is None else exact(v) for v in (m.get("a") for m in batch)] == [
        None if v is None else exact(v) for v in expected
    ]
    assert batch.columns.schema.equals(batch.layout.schema)


@given(uniform_rows())
def test_columns_and_rows_give_the_same_batch(rows: list[Row]) -> None:
    """Bulk publishing is the same messages by another door."""
    if not rows:
        return
    attributes = {name: [row.attributes[name] for row in rows] for name in rows[0].attributes}
    try:
        [built] = build_batches(rows, np.arange(len(rows)))
    except InvalidValueError:
        with pytest.raises(InvalidValueError):
            Batch.from_columns([row.id for row in rows], [row.payload for row in rows], attributes)
        return
    made = Batch.from_columns([row.id for row in rows], [row.payload for row in rows], attributes, np.arange(len(rows)))
    assert made.equals(built)
    assert made.layout is built.layout


def test_a_column_without_any_value_is_left_out() -> None:
    """An attribute nobody has is no attribute."""
    batch = Batch.from_columns(IDS, [b""] * 4, {"a": [None] * 4, "b": pa.nulls(4), "c": pa.nulls(4, pa.string()), "d": [1] * 4})
    assert batch.layout.names == ("d",)


@pytest.mark.parametrize(
    ("ids", "payloads", "attributes", "ticks"),
    [
        (IDS, [b""] * 3, {}, None),
        (IDS, [b""] * 4, {"a": [1]}, None),
        (IDS, [b""] * 4, {"a": [1, 2.0, 3, 4]}, None),
        (IDS, [b""] * 4, {"a": [1, True, 3, 4]}, None),
        (IDS, [b""] * 4, {"a": ["x", b"x", "y", "z"]}, None),
        (IDS, [b""] * 4, {"a": np.array([1 << 63] * 4, np.uint64)}, None),
        (IDS, [b""] * 4, {"a": pa.array([[1]] * 4)}, None),
        (IDS, [b""] * 4, {"a": np.zeros((4, 2))}, None),
        (IDS, [b""] * 4, {"a": np.zeros(4, complex)}, None),
        (IDS, [b""] * 4, {"a": np.zeros((4, 2), object)}, None),
        (IDS, [b""] * 4, {"a": np.array(["2026-01-01"] * 4, "M8[D]")}, None),
        (IDS, [b"", None, b"", b""], {}, None),
        (IDS, pa.array([b"", None, b"", b""]), {}, None),
        (IDS, ["text"] * 4, {}, None),
        ([*IDS[:3], bytes(15)], [b""] * 4, {}, None),
        (pa.array([*IDS[:3], None], pa.binary(16)), [b""] * 4, {}, None),
        (pa.array([*IDS[:3], bytes(3)], pa.binary()), [b""] * 4, {}, None),
        (np.zeros((4, 15), np.uint8), [b""] * 4, {}, None),
        (b"x" * 17, [b""], {}, None),
        (IDS, [b""] * 4, {}, [1, 2, 3]),
        (IDS, [b""] * 4, {}, np.zeros((2, 2), np.uint64)),
        (IDS, [b""] * 4, {}, [1, 2, 3, -4]),
        (IDS, [b""] * 4, {}, [1.5, 2, 3, 4]),
    ],
)
def test_columns_that_do_not_fit_are_refused(ids: Any, payloads: Any, attributes: dict[str, Any], ticks: Any) -> None:
    """Lengths, kinds, nulls and ranges; always a typed error."""
    with pytest.raises((BatchError, InvalidValueError)):
        Batch.from_columns(ids, payloads, attributes, ticks)


def test_columns_beyond_a_limit_are_refused() -> None:
    """A caller who gives columns decides himself where to cut them."""
    for limit, maximum in {"rows": 3, "bytes": 100, "columns": 1, "payload_bytes": 1, "attributes": 1, "name_bytes": 0}.items():
        with pytest.raises(BatchLimitError) as caught:
            Batch.from_columns(IDS, [b"xy"] * 4, {"a": [1] * 4, "b": [2] * 4}, limits=BatchLimits(**{limit: maximum}))
        assert caught.value.limit == limit


# --- selecting ----------------------------------------------------------------------------------------------------------


@given(uniform_rows(), st.data())
def test_slice_take_and_filter_agree_with_a_list(rows: list[Row], data: st.DataObject) -> None:
    """The oracle is the list of messages."""
    try:
        batches = build_batches(rows)
    except InvalidValueError:
        return
    for batch in batches:
        plain = content(messages([batch]))
        start, stop = data.draw(st.integers(-1, 13)), data.draw(st.integers(-1, 13))
        assert content(messages([batch.slice(start, stop)])) == plain[max(start, 0) : max(stop, 0)]
        picked = data.draw(st.lists(st.integers(0, len(plain) - 1), max_size=6))
        assert content(messages([batch.take(picked)])) == [plain[row] for row in picked]
        mask = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=len(plain), max_size=len(plain)))
        kept = [row for row, keep in zip(plain, mask, strict=True) if keep]
        assert content(messages([batch.filter(pa.array(mask, pa.bool_()))])) == kept
        assert content(messages([batch.filter(np.array([keep is True for keep in mask], np.bool_))])) == kept


def test_selecting_everything_gives_the_batch_itself() -> None:
    """So a relay whose child wants every row forwards the received bytes."""
    batch = one(numbered(5))
    assert batch.slice(0, 5) is batch
    assert batch.take([0, 1, 2, 3, 4]) is batch
    assert batch.filter(np.ones(5, np.bool_)) is batch


@pytest.mark.parametrize("rows", [[0, 2, 1, 3], [1, 1, 3], [2, 0, 4], [4, 3, 2, 1, 0], [0, 0, 0]])
def test_take_keeps_the_order_given(rows: list[int]) -> None:
    """Rows that only look like neighbours, from first to last, are no slice."""
    assert [int.from_bytes(bytes(m.id), "big") for m in one(numbered(5)).take(rows)] == rows


def test_neighbouring_rows_are_shared_and_compact_lets_go() -> None:
    """A slice keeps its parent's memory; a compact batch owns its rows only."""
    batch = one([Row(bytes(16), {}, bytes(1000)) for _ in range(100)])
    part = batch.take([10, 11])
    assert part.payloads().buffers()[2].address == batch.payloads().buffers()[2].address  # type: ignore[union-attr]
    own = part.compact()
    assert own.equals(part)
    assert own.columns.get_total_buffer_size() < 4096 < part.columns.get_total_buffer_size()


@pytest.mark.parametrize("rows", [[5], [-1], [0, 5], [3, 4, 5]])
def test_rows_outside_the_batch_are_an_error(rows: list[int]) -> None:
    """Never a row of another batch's memory."""
    with pytest.raises(IndexError):
        one(numbered(5)).take(rows)


def test_a_mask_of_another_length_is_an_error() -> None:
    """Too short or too long."""
    for size in (4, 6):
        with pytest.raises(ValueError, match="mask"):
            one(numbered(5)).filter(np.ones(size, np.bool_))


@given(st.lists(st.integers(0, 50), unique=True, min_size=1).map(sorted), st.integers(0, 55), st.integers(0, 55))
def test_within_gives_the_rows_of_a_tick_range(ticks: list[int], lo: int, hi: int) -> None:
    """Half-open: lo < tick <= hi."""
    batch = one(numbered(len(ticks)), ticks)
    assert batch.within(lo, hi).ticks().tolist() == [tick for tick in ticks if lo < tick <= hi]


def test_within_reaches_the_last_tick_there_is() -> None:
    """No signed arithmetic on the way."""
    batch = one(numbered(3), [1, 1 << 63, (1 << 64) - 1])
    assert batch.within(1 << 63, (1 << 64) - 1).ticks().tolist() == [(1 << 64) - 1]


def test_ticks_can_be_set_afterwards() -> None:
    """The pubend places messages that are already columns."""
    batch = one(numbered(3, a="x"))
    placed = batch.with_ticks(np.array([7, 8, 9], np.uint64))
    assert batch.ticks().tolist() == [0, 0, 0]
    assert placed.ticks().tolist() == [7, 8, 9]
    assert content(messages([placed])) == content(messages([batch]))
    with pytest.raises(BatchError):
        batch.with_ticks([1, 2])


# --- joining ------------------------------------------------------------------------------------------------------------


@given(st.lists(rows_of_anything, max_size=4))
def test_concat_keeps_all_messages_in_order(groups: list[list[Row]]) -> None:
    """Missing columns become nulls, clashing types another batch."""
    batches = [batch for rows in groups for batch in build_batches(rows)]
    joined = concat(batches)
    assert content(messages(joined)) == content(messages(batches))
    assert len(joined) <= len(batches)
    for batch in joined:
        batch.columns.validate(full=True)
        assert batch.columns.schema.equals(batch.layout.schema)


def test_concat_joins_what_fits_and_drops_empty_batches() -> None:
    """Compatible neighbours become one; types or limits part them."""
    ints, texts = one(numbered(3, a=1)), one(numbered(2, a="x"))
    other = one(numbered(4, b=2.0))
    assert [len(batch) for batch in concat([ints, ints.slice(0, 0), other, texts, texts])] == [7, 4]
    assert [len(batch) for batch in concat([ints, ints, ints], BatchLimits(rows=6))] == [6, 3]
    assert concat([ints])[0] is ints
    assert concat([]) == []


# --- comparing and reading ----------------------------------------------------------------------------------------------


def test_equals_sees_every_difference_and_no_other() -> None:
    """NaN equals itself; 1 does not equal 1.0; an offset does not matter."""
    nan = one(numbered(3, a=float("nan")))
    assert nan.equals(one(numbered(3, a=float("nan"))))
    assert one(numbered(3, a=1)).slice(1, 3).equals(one(numbered(3, a=1)[1:]))
    for other in (numbered(3, a=1), numbered(3, b=float("nan")), numbered(2, a=float("nan")), numbered(3, a=0.0)):
        assert not nan.equals(one(other))


def test_messages_read_only_the_columns_they_are_asked_for() -> None:
    """A thousand messages share one list per column read."""
    batch = one(numbered(3, a=1, b=2))
    first, second, _ = batch
    assert first["a"] == second["a"] == 1
    assert set(batch.rows()._attributes) == {"a"}
    assert first._columns is second._columns


def test_values_that_are_remembered_are_those_of_the_columns() -> None:
    """Until they are forgotten; then the columns are asked."""
    rows = [Row(bytes([n] * 16), {"a": n} if n else {"b": "x"}, bytes(n)) for n in range(3)]
    [batch] = build_batches(rows, np.array([5, 6, 7], np.uint64), remember=True)
    [plain] = build_batches(rows, np.array([5, 6, 7], np.uint64))
    assert (batch._rows is None, plain._rows is None) == (False, True)
    assert batch.values() == plain.values()
    assert batch.last_tick == plain.last_tick == 7
    [view] = batch.views([(1, 3)])
    batch.forget()
    assert batch._rows is None
    assert view.values() == plain.slice(1, 3).values() == batch.slice(1, 3).values()
    assert list(view) == list(plain)[1:]


def test_a_batch_of_values_has_columns_when_asked_and_never_forgets_its_values_before() -> None:
    """What was not asked for in columns exists as values alone."""
    batch = Batch.of_values([Tick(5), Tick(6)], [bytes(16)] * 2, [b"", b"x"], {"b": [None, "y"], "a": [1, 2]}, size=77)
    batch.forget()
    assert (len(batch), batch.size, batch.last_tick) == (2, 77, 6)
    assert [dict(message.attributes) for message in batch] == [{"a": 1}, {"a": 2, "b": "y"}]
    assert batch._columns is None
    assert batch.layout.names == ("a", "b")
    assert batch.equals(Batch.from_columns([bytes(16)] * 2, [b"", b"x"], {"a": [1, 2], "b": [None, "y"]}, [5, 6]))


def test_a_message_answers_like_a_mapping() -> None:
    """`[]`, `get` and `attributes` agree on what is there."""
    batch = one([Row(bytes(16), {"a": 1}, b""), Row(bytes(16), {"b": False}, b"")])
    first, second = batch
    assert (first.get("a"), first.get("b"), first.get("c", 5)) == (1, None, 5)
    assert dict(second.attributes) == {"b": False}
    assert second["b"] is False
    for name in ("a", "c"):
        with pytest.raises(KeyError):
            second[name]


def test_messages_are_equal_by_content() -> None:
    """A message from a batch equals one made by hand."""
    name = MessageId.make(1, 2, 3)
    made = Message.of(name, {"a": 1}, b"x", Tick(9))
    [read] = one([Row(bytes(name), {"a": 1}, b"x")], [9])
    assert made == read
    assert hash(made) == hash(read)
    assert made != Message.of(name, {"a": 2}, b"x", Tick(9))
    assert "00000001-00000002" in repr(read)


def test_ids_are_seen_as_numbers_without_a_copy() -> None:
    """Also in a slice, and when there are none."""
    batch = one([Row(bytes(MessageId.make(n, 2, n)), {}, b"") for n in range(4)])
    assert (batch.slice(2, 4).ids().view(">u8").reshape(-1, 2)[:, 0] >> 32).tolist() == [2, 3]
    assert batch.slice(1, 1).ids().tolist() == []
    with pytest.raises(IndexError):
        batch.message(4)


NOTHING = layout_of((), ()).schema  # the system columns alone


@pytest.mark.parametrize(
    "schema",
    [
        NOTHING.remove(2),
        NOTHING.set(0, pa.field("tick", pa.int64())),
        NOTHING.remove(0).insert(1, NOTHING.field(0)),
        NOTHING.append(pa.field("a", pa.int64())),
        NOTHING.append(pa.field("@a", pa.int32())),
        NOTHING.append(pa.field("@b", pa.int64())).append(pa.field("@a", pa.int64())),
        NOTHING.append(pa.field("@a", pa.int64())).append(pa.field("@a", pa.int64())),
        NOTHING.append(pa.field("@", pa.int64())),
    ],
)
def test_a_schema_that_is_no_layout_is_refused(schema: pa.Schema) -> None:
    """Columns, order, types, names."""
    with pytest.raises(PostroadError):
        layout_of_schema(schema)


def test_the_default_batch_fits_the_default_frame() -> None:
    """A batch at its limit, its layout at its limit and a packet's fields fit in 16 MiB."""
    assert DEFAULT_LIMITS.bytes + DEFAULT_LIMITS.schema_bytes + 16_384 <= 16 << 20
