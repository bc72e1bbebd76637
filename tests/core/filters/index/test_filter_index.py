"""The filter index: what it promises beyond the property tests, case by case."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.core.filters.evaluate import reference
from tests.core.filters.language.trees import (
    between,
    both,
    compare,
    either,
    eq,
    ge,
    gt,
    like,
    lt,
    missing,
    ne,
    negation,
    one_of,
    present,
)
from tests.counting import count_calls

from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import ATTRIBUTE_PREFIX
from postroad.core.filters.index.filter_index import LOOSE_MAX, SHARD_RATIO, FilterIndex
from postroad.core.filters.index.shard import ROWS_MAX
from postroad.core.filters.language.ast import Arithmetic, Attribute, Condition, Literal
from postroad.types import AttributeValue

TYPES: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


def batch_of(columns: Mapping[str, Sequence[AttributeValue | None]], rows: int | None = None) -> Batch:
    """Make a batch of attribute columns; the type is that of the first value that is not None."""
    arrays: list[pa.Array[Any]] = []
    for values in columns.values():
        kind = next((type(value) for value in values if value is not None), int)
        arrays.append(pa.array(values, TYPES[kind]))
    names = [ATTRIBUTE_PREFIX + name for name in columns]
    if not names:
        return Batch(pa.RecordBatch.from_arrays([pa.array(range(rows or 0), pa.uint64())], names=["tick"]))
    return Batch(pa.RecordBatch.from_arrays(arrays, names=names))


LARGEST = sys.float_info.max


def index_of(*filters: Condition, loose_max: int = 0) -> FilterIndex[int]:
    """Make an index that compiles even a single filter, so that few filters test the same code as many."""
    index: FilterIndex[int] = FilterIndex(loose_max=loose_max)
    for key, condition in enumerate(filters):
        index.add(key, condition)
    return index


def found(index: FilterIndex[int], batch: Batch) -> dict[int, list[int]]:
    return {key: rows.tolist() for key, rows in index.match(batch).items()}


def expected(filters: Mapping[int, Condition], batch: Batch) -> dict[int, list[int]]:
    messages = [
        {name.removeprefix(ATTRIBUTE_PREFIX): value for name, value in row.items() if value is not None}
        for row in batch.columns.to_pylist()
    ]
    table = {key: [i for i, message in enumerate(messages) if reference.truth(f, message)] for key, f in filters.items()}
    return {key: rows for key, rows in table.items() if rows}


def test_each_kind_of_filter_finds_its_rows() -> None:
    """Points, ranges, prefixes, null tests, unions, everything and nothing, side by side."""
    batch = batch_of(
        {
            "symbol": ["ibm", "ati", None, "ibm", "ic"],
            "price": [10.0, 20.0, 30.0, math.nan, None],
            "hot": [True, False, None, True, True],
        }
    )
    filters: list[Condition] = [
        eq("symbol", "ibm"),
        both(eq("symbol", "ibm"), gt("price", 5)),
        between("price", 10, 20),
        one_of("symbol", "ibm", "ic"),
        like("symbol", "i%"),
        missing("price"),
        either(gt("price", 25), eq("symbol", "ic")),
        negation(gt("price", 15)),
        Attribute("hot"),
        Literal(True),
        Literal(False),
        gt("price", 1000),
        ne("symbol", "ibm"),
        like("symbol", "%m"),
        gt(Arithmetic("+", Attribute("price"), Literal(1)), 20),
        present("nowhere"),
        missing("nowhere"),
    ]
    assert found(index_of(*filters), batch) == {
        0: [0, 3],
        1: [0],
        2: [0, 1],
        3: [0, 3, 4],
        4: [0, 3, 4],
        5: [4],
        6: [2, 4],
        7: [0, 3],
        8: [0, 3, 4],
        9: [0, 1, 2, 3, 4],
        12: [1, 4],
        13: [0, 3],
        14: [1, 2],
        16: [0, 1, 2, 3, 4],
    }


def test_numbers_are_compared_exactly_in_columns_of_either_type() -> None:
    """Neither a huge integer nor a threshold between two doubles is rounded."""
    edge = 2**53
    thresholds = (
        edge - 1,
        edge,
        edge + 1,
        edge + 2,
        float(edge),
        2.5,
        -(2**63),
        2**63 - 1,
        1e300,
        -1e300,
        0.0,
        -0.0,
        LARGEST,
        -LARGEST,
    )
    filters = [compare("x", operator, value) for operator in ("=", "<>", "<", ">=", ">") for value in thresholds]
    index = index_of(*filters)
    integers = [edge - 1, edge, edge + 1, edge + 2, 2, 3, -(2**63), 2**63 - 1, 0, None]
    doubles = [
        edge - 1.0,
        edge + 0.0,
        edge + 2.0,
        2.5,
        -math.inf,
        math.inf,
        math.nan,
        -0.0,
        0.0,
        1e300,
        LARGEST,
        -LARGEST,
        -(2.0**63),
        2.0**63,
        None,
    ]
    for values in (integers, doubles, integers):
        batch = batch_of({"x": values})
        matches = expected(dict(enumerate(filters)), batch)
        assert found(index, batch) == matches
        for key, condition in enumerate(filters):  # alone, so that no other threshold stands near
            assert found(index_of(condition), batch).get(0) == matches.get(key), condition


def test_few_filters_are_evaluated_one_by_one_with_the_same_result() -> None:
    """Nothing is compiled for a handful of filters."""
    filters: list[Condition] = [gt("x", 1), both(gt("x", 0), lt("x", 3)), eq("y", "a")]
    batch = batch_of({"x": [0, 1, 2, 3]})
    loose, compiled = index_of(*filters, loose_max=LOOSE_MAX), index_of(*filters)
    assert found(loose, batch) == found(compiled, batch) == expected(dict(enumerate(filters)), batch)
    assert (len(loose._shards), len(compiled._shards)) == (0, 1)
    assert loose.match(batch).rows_of(0).tolist() == [2, 3]
    assert loose.remove(0)
    assert found(loose, batch) == {1: [1, 2]}
    assert len(loose._loose) == 2


def test_a_column_may_change_its_type_from_batch_to_batch() -> None:
    """The same filters meet numbers, strings, booleans, bytes and nothing."""
    filters: list[Condition] = [
        eq("x", 1),
        gt("x", 0),
        eq("x", "a"),
        like("x", "a%"),
        Attribute("x"),
        present("x"),
        missing("x"),
        ne("x", 1),
    ]
    index = index_of(*filters)
    batches: list[list[AttributeValue | None]] = [
        [1, 2, None],
        [1.0, math.nan],
        ["a", "ab", None],
        [True, False],
        [b"a", None],
        [None],
    ]
    for values in batches:
        batch = batch_of({"x": values})
        assert found(index, batch) == expected(dict(enumerate(filters)), batch)
    assert found(index, batch_of({}, rows=2)) == {6: [0, 1]}


def test_equal_filters_share_an_entry_and_all_their_keys_are_reported() -> None:
    """Also when they are written differently; removing one key leaves the others."""
    index: FilterIndex[str] = FilterIndex(loose_max=0)
    index.add("a", between("x", 1, 5))
    index.add("b", both(ge("x", 1), negation(gt("x", 5)), lt("x", 100)))
    index.add("c", between("x", 1.0, 5.0))
    batch = batch_of({"x": [0, 3]})
    assert {key: rows.tolist() for key, rows in index.match(batch).items()} == {"a": [1], "b": [1], "c": [1]}
    assert index.remove("a")
    assert {key for key, _ in index.match(batch).items()} == {"b", "c"}
    assert not index.remove("a")
    assert len(index) == 2
    assert "b" in index
    assert "a" not in index


def test_adding_a_key_again_replaces_its_filter() -> None:
    """The old filter is gone at once."""
    index = index_of(gt("x", 1))
    batch = batch_of({"x": [0, 5]})
    assert found(index, batch) == {0: [1]}
    index.add(0, lt("x", 1))
    assert found(index, batch) == {0: [0]}


def test_the_result_answers_by_key_and_as_pairs() -> None:
    """All views of a result agree."""
    filters: list[Condition] = [
        gt("x", 1),
        ge("x", 0),
        gt("x", 100),
        both(gt("x", 0), lt("y", 3)),
        either(eq("x", 0), eq("y", 9)),
    ]
    batch = batch_of({"x": [0, 1, 2, 3] * 20, "y": [1, 2, 3, 9] * 20})
    matches = index_of(*filters).match(batch)
    by_key = {key: rows.tolist() for key, rows in matches.items()}
    assert by_key == expected(dict(enumerate(filters)), batch)
    assert {key: matches.rows_of(key).tolist() for key in range(5)} == {key: by_key.get(key, []) for key in range(5)}
    assert sorted(matches.keys()) == sorted(by_key)
    assert matches.keys_matching_all_rows() == [1]
    keys, places, rows = matches.pairs()
    assert (np.diff(places) >= 0).all()
    by_place = zip([keys[place] for place in places], rows.tolist(), strict=True)
    assert sorted(by_place) == [(key, row) for key in sorted(by_key) for row in by_key[key]]


def test_a_result_must_be_read_before_the_index_changes() -> None:
    """Reading it later would mix up filters, so it fails."""
    index = index_of(gt("x", 1))
    matches = index.match(batch_of({"x": [5]}))
    index.add(1, gt("x", 2))
    with pytest.raises(AssertionError, match="changed"):
        matches.keys()


@pytest.mark.parametrize("loose_max", [0, LOOSE_MAX])
def test_several_results_can_be_read_side_by_side(loose_max: int) -> None:
    """Another match does not change the index."""
    index = index_of(gt("x", 1), both(gt("x", 2), lt("y", 3)), loose_max=loose_max)
    first, second = index.match(batch_of({"x": [0, 5]})), index.match(batch_of({"x": [5, 0, 7], "y": [1, 1, 1]}))
    assert (first.rows_of(0).tolist(), second.rows_of(0).tolist()) == ([1], [0, 2])
    assert (first.rows_of(1).tolist(), second.rows_of(1).tolist()) == ([], [0, 2])
    assert {key: rows.tolist() for key, rows in first.items()} == {0: [1]}


def test_empty_batches_and_an_empty_index_match_nothing() -> None:
    """The ends of the range of sizes."""
    assert found(index_of(), batch_of({"x": [1]})) == {}
    assert found(index_of(Literal(True), gt("x", 1)), batch_of({"x": []})) == {}
    assert index_of(Literal(True)).match(batch_of({"x": []})).keys_matching_all_rows() == []


def test_long_batches_are_matched_in_blocks() -> None:
    """Rows are numbered through, and a filter that matches all blocks matches all rows."""
    count = 2 * ROWS_MAX + 10
    x = [i % 7 for i in range(count)]
    batch = batch_of({"x": x, "y": [float(i) for i in range(count)]})
    index = index_of(eq("x", 3), ge("x", 0), both(gt("x", 2), gt("y", 5000)), gt("y", count - 3))
    rows = dict(index.match(batch).items())
    assert rows[0].tolist() == [i for i in range(count) if x[i] == 3]
    assert rows[2].tolist() == [i for i in range(count) if x[i] > 2 and i > 5000]
    assert rows[3].tolist() == [count - 2, count - 1]
    assert index.match(batch).keys_matching_all_rows() == [1]
    assert index.match(batch).rows_of(3).tolist() == [count - 2, count - 1]


def test_long_lists_and_many_checks_are_exact() -> None:
    """IN lists too long for postings, filters with many attributes, sets as checks and as access."""
    random = Random(5)
    names = [f"a{i}" for i in range(12)]
    batch = batch_of({name: [random.randrange(40) for _ in range(300)] for name in names})
    filters: list[Condition] = [
        one_of("a0", *range(0, 200, 2)),
        one_of("a0", *range(0, 200, 2), negated=True),
        both(one_of("a0", *range(0, 200, 2)), one_of("a1", 1, 2, 3)),
        both(*(gt(name, 2) for name in names)),
        both(*(ne(name, 2) for name in names)),
        both(ne("a0", 1), ne("a1", 2), lt("a2", 30)),
        both(ne("a0", 1), ne("a0", 2), ne("a0", 20)),
        either(*(both(eq(name, 1), gt(names[-1], 5)) for name in names[:-1])),
        both(present("a3"), missing("b"), gt("a4", 20)),
    ]
    assert found(index_of(*filters), batch) == expected(dict(enumerate(filters)), batch)


def test_filters_on_many_attributes_that_a_batch_lacks_cost_little() -> None:
    """An attribute that is not there is not looked at row by row, and still IS NULL, NOT and checks see it."""
    filters: list[Condition] = [gt(f"a{i}", 1) for i in range(500)]
    filters += [missing("a1"), both(missing("a2"), gt("x", 1)), both(eq("x", 1), missing("a3")), both(eq("x", 1), ne("a4", 2))]
    filters += [either(missing("a5"), gt("a5", 3)), both(gt("x", 0), either(missing("a6"), gt("a6", 3)))]
    index = index_of(*filters)
    batch = batch_of({"x": [0, 1, 2] * 100})
    assert found(index, batch) == expected(dict(enumerate(filters)), batch)
    assert count_calls(lambda: index.match(batch)) < 20_000


def test_adds_keep_the_number_of_segments_small() -> None:
    """Thousands of single adds, with a match between, leave a logarithmic number of shards, each built few times."""
    index: FilterIndex[int] = FilterIndex()
    batch = batch_of({"x": [1.5, 700.5]})
    for key in range(600):
        index.add(key, gt("x", key))
        assert len(index.match(batch).keys()) == min(key + 1, 701)
    sizes = [len(shard.entries) for shard in index._shards]
    assert sum(sizes) + len(index._loose) == 600
    assert len(index._loose) <= LOOSE_MAX
    assert len(sizes) <= 1 + math.log(600, SHARD_RATIO)
    for key in range(590):
        index.remove(key)
    assert sorted(index.match(batch).keys()) == list(range(590, 600))
    assert sum(len(shard.entries) for shard in index._shards) < 40


def test_ten_thousand_filters_are_not_looked_at_one_by_one() -> None:
    """A match calls few functions, whatever the number of filters, so an accidental loop over filters is noticed."""
    random = Random(3)
    index: FilterIndex[int] = FilterIndex()
    for key in range(10_000):
        low = random.uniform(0, 90)
        index.add(key, both(eq("symbol", f"S{random.randrange(500)}"), between("price", low, low + random.uniform(0, 10))))
    batch = batch_of(
        {
            "symbol": [f"S{random.randrange(500)}" for _ in range(1000)],
            "price": [random.uniform(0, 100) for _ in range(1000)],
        }
    )
    index.match(batch)
    assert count_calls(lambda: index.match(batch)) < 5_000
