"""Batches of few rows: looking them up row by row gives what the join of all rows gives, order included."""

from __future__ import annotations

import math
import sys
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.filters import generated, strategies
from tests.core.filters.index.test_filter_index import batch_of, expected, found, index_of
from tests.core.filters.language.trees import both, compare, either, eq, ge, gt, like, lt, missing, ne, negation, one_of, present

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import Row, build_batches
from postroad.core.filters.evaluate.whole_batch import Columns
from postroad.core.filters.index import axis as cells
from postroad.core.filters.index import match_few as lookup
from postroad.core.filters.index.axis import Rows
from postroad.core.filters.index.filter_index import LOOSE_MAX, Entry, FilterIndex
from postroad.core.filters.index.match_few import ALONE_MAX, CANDIDATES_MAX, FEW_ROWS
from postroad.core.filters.index.shard import LOOSE_MATCHES_MAX, Found, Shard
from postroad.core.filters.language.ast import Arithmetic, Attribute, Condition, Literal
from postroad.core.filters.language.values import Kind
from postroad.errors import BatchError
from postroad.types import AttributeValue

Answer = list[tuple[int, list[int]]]


def rows_of(batch: Batch) -> Rows:
    return Rows(Columns(batch))


def answer(part: Found) -> Answer:
    """Read a result in every way it can be read."""
    items = [(place, rows.tolist()) for place, rows in part.items()]
    assert part.places() == [place for place, _ in items]
    assert part.counts() == [len(rows) for _, rows in items]
    assert [part.rows_at(i).tolist() for i in range(len(items))] == [rows for _, rows in items]
    assert all(rows.dtype == "int32" for _, rows in part.items())
    return items


def both_ways(shard: Shard[Entry[int]], batch: Batch) -> tuple[Answer, Answer]:
    """Match by lookup, however many candidates there are, and by join."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "CANDIDATES_MAX", 1 << 20)
        looked_up = shard.looked_up(rows_of(batch))
    assert looked_up is not None
    return answer(looked_up), answer(shard.joined(rows_of(batch)))


def segment_of(*filters: Condition) -> Shard[Entry[int]]:
    """Compile filters that are all different."""
    index = index_of(*filters)
    index.match(batch_of({"x": [1]}))
    (shard,) = index._shards
    return shard


def some_batch(random: Random) -> Batch:
    rows = random.choice((1, 1, 2, 3, 5, 10, 20, FEW_ROWS))
    return batch_of(generated.some_columns(random, rows), rows)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_lookup_and_join_agree_on_any_filters_and_batches(random: Random) -> None:
    """The same entries with the same rows in the same order, as columns change their types and entries are removed."""
    index: FilterIndex[int] = FilterIndex(loose_max=0)
    for key in range(random.choice((1, 4, 30, 80))):
        index.add(key, generated.some_conjunction(random) if random.random() < 0.7 else generated.some_filter(random))
    for _ in range(4):
        batch = some_batch(random)
        index.match(batch)
        for shard in index._shards:
            looked_up, joined = both_ways(shard, batch)
            assert looked_up == joined
        if len(index) > 1:
            index.remove(next(iter(index._by_key)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(strategies.conditions, min_size=1, max_size=8), st.lists(strategies.batches(), min_size=1, max_size=3))
def test_lookup_and_join_agree_on_hostile_values(
    filters: list[Condition], data: list[tuple[list[dict[str, Any]], Batch]]
) -> None:
    """The edges of every type, conditions of every form, slices of longer batches; and both say what the oracle says."""
    index = index_of(*filters)
    for _, batch in data:
        assert found(index, batch) == expected(
            dict(enumerate(filters)), Batch(batch.columns.drop_columns(["tick", "id", "payload"]))
        )
        for shard in index._shards:
            looked_up, joined = both_ways(shard, batch)
            assert looked_up == joined


def test_the_order_of_entries_is_that_of_the_join() -> None:
    """Postings with and without checks, few and many candidates, sets, several postings and opaque entries, mixed up."""
    filters: list[Condition] = [
        both(eq("s", "a"), gt("x", 1)),
        eq("s", "a"),
        both(gt("x", 0), lt("y", 9)),
        either(eq("s", "b"), gt("x", 3)),
        both(eq("s", "b"), ne("y", 2)),
        gt(Arithmetic("+", Attribute("x"), Attribute("y")), 5),
        gt("x", 2),
        Literal(True),
        both(eq("s", "a"), gt(Arithmetic("*", Attribute("x"), Literal(2)), 3)),
        one_of("s", "a", "b"),
        missing("z"),
        both(missing("z"), eq("s", "c")),
        both(ge("y", 0), ne("x", 3)),
        like("s", "%b%"),
        negation(eq("s", "a")),
    ]
    shard = segment_of(*filters)
    for rows in (1, 2, 3, 10, FEW_ROWS):
        random = Random(rows)
        batch = batch_of(
            {
                "s": [random.choice("abc") for _ in range(rows)],
                "x": [random.randrange(6) for _ in range(rows)],
                "y": [random.choice((1.0, 2.0, math.nan, None, 8.5)) for _ in range(rows - 1)] + [3.5],
            }
        )
        looked_up, joined = both_ways(shard, batch)
        assert looked_up == joined
        assert dict(looked_up) == expected(dict(enumerate(filters)), batch)


def test_numbers_are_looked_up_exactly_whatever_type_came_before() -> None:
    """What is remembered of 1 holds for 1.0, not for true; integers beyond doubles, infinities and NaN keep their own cells."""
    edge = 2**53
    thresholds = (0, 1, 2.5, edge, edge + 1, float(edge + 2), -(2**63), 2**63 - 1, 1e300, -1e300)
    filters: list[Condition] = [compare("x", operator, value) for operator in ("=", "<>", "<=", ">") for value in thresholds]
    filters += [eq("x", True), ne("x", True), eq("x", "1"), present("x"), missing("x"), negation(lt("x", 5))]
    index = index_of(*filters)
    columns: list[list[AttributeValue | None]] = [
        [1, 0, edge, edge + 1, edge + 2, -(2**63), 2**63 - 1, None],
        [1.0, 0.0, -0.0, float(edge), edge + 2.0, math.nan, math.nan, math.inf, -math.inf, 2.0**63, None],
        [True, False, None],
        ["1", "0", "", None],
        [b"1", None],
        [1, 2, 3],
    ]
    for values in columns * 2:
        batch = batch_of({"x": values})
        assert found(index, batch) == expected(dict(enumerate(filters)), batch)


def test_a_removed_filter_is_not_found_in_the_segment_it_stood_in() -> None:
    """Its postings stay, and so does what is remembered of them."""
    index = index_of(*(eq("x", key) for key in range(10)), Literal(True))
    batch = batch_of({"x": [3, 4, 3]})
    index.match(batch)
    (shard,) = index._shards
    index.remove(3)
    looked_up, joined = both_ways(shard, batch)
    assert looked_up == joined == [(10, [0, 1, 2]), (4, [1])]


def test_many_candidates_are_left_to_the_join() -> None:
    """A cell with too many postings, and too many in all, are both noticed; the result is the same."""
    filters: list[Condition] = [gt("x", threshold) for threshold in range(CANDIDATES_MAX + 10)]
    index = index_of(*filters)
    crowded, few, in_all = batch_of({"x": [10_000]}), batch_of({"x": [10]}), batch_of({"x": [CANDIDATES_MAX // 2] * 3})
    assert found(index, few) == {key: [0] for key in range(10)}
    (shard,) = index._shards
    assert shard.looked_up(rows_of(few)) is not None
    assert shard.looked_up(rows_of(crowded)) is None
    assert shard.looked_up(rows_of(in_all)) is None
    assert found(index, crowded) == {key: [0] for key in range(len(filters))}
    assert found(index, in_all) == {key: [0, 1, 2] for key in range(CANDIDATES_MAX // 2)}


def test_an_opaque_filter_is_evaluated_for_its_candidates_or_for_all_rows() -> None:
    """Both sides of the limit, with NULL and an overflow among the rows."""
    filters: list[Condition] = [
        both(eq("s", "a"), gt(Arithmetic("+", Attribute("x"), Attribute("y")), 10)),
        like("s", "%a%"),
    ]
    index = index_of(*filters)
    for rows in (1, ALONE_MAX, ALONE_MAX + 1, FEW_ROWS):
        batch = batch_of(
            {
                "s": ["a" if row % 4 else "ba" for row in range(rows)],
                "x": [2**63 - 1 if row % 5 == 2 else row for row in range(rows)],
                "y": [None if row % 7 == 3 else row + 1 for row in range(rows)],
            }
        )
        assert found(index, batch) == expected(dict(enumerate(filters)), batch)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ever new values and cells are forgotten again, and the answers stay right."""
    for module, name in (
        (cells, "KNOWN_STRINGS_MAX"),
        (cells, "KNOWN_NUMBERS_MAX"),
        (lookup, "KNOWN_POSTINGS_MAX"),
    ):
        monkeypatch.setattr(module, name, 20)
    filters: dict[int, Condition] = {key: eq("s", f"s{key}") for key in range(100)}
    filters |= {100 + key: both(gt("x", key), lt("x", key + 2), ge("y", 0)) for key in range(100)}
    index = index_of(*filters.values())
    for start in range(0, 100, 5):
        rows = range(start, start + 5)
        batch = batch_of({"s": [f"s{row}" if row % 5 else None for row in rows], "x": [row + 0.5 for row in rows], "y": [1] * 5})
        assert found(index, batch) == expected(filters, batch)
        found(index, batch_of({"s": [f"other{row}" for row in rows]}))
    (shard,) = index._shards
    assert shard._lookup is not None
    assert all(len(known) <= 22 for _, known in shard._lookup._accesses)
    for axis in shard._table.axes:
        assert len(axis._string_cells) <= 30
        assert axis._number_cells is None or len(axis._number_cells) <= 22


def test_nothing_is_prepared_before_the_first_batch_of_few_rows() -> None:
    """Adding, removing and matching long batches cost what they did."""
    index = index_of(*(eq("x", key) for key in range(50)))
    index.match(batch_of({"x": [1] * (FEW_ROWS + 1)}))
    (shard,) = index._shards
    assert shard._lookup is None
    index.match(batch_of({"x": [1] * FEW_ROWS}))
    assert shard._lookup is not None


def test_loose_filters_are_compiled_for_batches_of_few_rows_that_keep_coming() -> None:
    """With the same result in the same order; the next filter makes them loose again."""
    filters: list[Condition] = [
        like("s", "%a"),
        both(gt("x", 0), lt("x", 3)),
        eq("s", "a"),
        either(eq("x", 1), eq("s", "b")),
        Literal(True),
    ]
    index = index_of(*filters, loose_max=LOOSE_MAX)
    batch = batch_of({"x": [0, 1, 2, 3], "s": ["a", "b", None, "ca"]})
    answers = [list(found(index, batch).items()) for _ in range(LOOSE_MATCHES_MAX + 2)]
    assert index._placed_loose._compiled is not None
    assert answers[0] == list(expected(dict(enumerate(filters)), batch).items())
    assert all(each == answers[0] for each in answers)
    assert index.match(batch).rows_of(1).tolist() == [1, 2]
    index.remove(1)
    assert list(found(index, batch)) == [0, 2, 3, 4]
    assert index._placed_loose._compiled is None


def test_a_column_no_filter_can_read_is_refused() -> None:
    """Few rows or many, unless they are all NULL."""
    index = index_of(eq("x", 1), missing("x"))
    column = pa.array([1, 2], pa.int8())
    with pytest.raises(BatchError, match="int8"):
        index.match(Batch(pa.RecordBatch.from_arrays([column], names=["@x"])))
    assert found(index, Batch(pa.RecordBatch.from_arrays([pa.nulls(2, pa.int8())], names=["@x"]))) == {1: [0, 1]}


def test_few_rows_are_looked_up_with_a_fraction_of_the_calls_of_a_join() -> None:
    """Calls are counted, not time, so that a numpy call too many is noticed on any machine."""
    shard = segment_of(*(eq("topic", f"T{key}") for key in range(500)))
    batch = batch_of({"topic": [f"T{row * 7}" for row in range(10)], "n": list(range(10))})

    def calls(match: Any) -> int:
        match(rows_of(batch))
        events: list[str] = []
        rows = rows_of(batch)
        sys.setprofile(lambda _frame, event, _argument: events.append(event))
        try:
            match(rows)
        finally:
            sys.setprofile(None)
        return sum(event in {"call", "c_call"} for event in events)

    looked_up, joined = calls(shard.looked_up), calls(shard.joined)
    assert looked_up < joined / 3, (looked_up, joined)


def test_values_that_a_batch_remembers_are_read_as_its_columns_are() -> None:
    """Whatever the kinds, and also where the first rows lack the attribute, or all do."""
    values: dict[str, AttributeValue] = {"flag": False, "n": 1, "price": 1.5, "symbol": "x", "blob": b"y"}
    rows = [Row(bytes(16), {}, b""), Row(bytes(16), values, b""), Row(bytes(16), {"n": 2}, b"")]
    [remembered] = build_batches(rows, remember=True)
    [plain] = build_batches(rows)
    for name in (*values, "none"):
        assert Columns(remembered).listed(name) == Columns(plain).listed(name)
    assert Columns(remembered).listed("price") == (Kind.NUMBER, [None, 1.5, None])
