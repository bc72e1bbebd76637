"""The public class: matching, evaluating, its text, and equality by meaning."""

from __future__ import annotations

import enum
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.filters.evaluate import reference
from tests.core.filters.strategies import conditions, one_row, rows

import postroad
from postroad import Filter
from postroad.core.batch.batch import Batch
from postroad.core.filters.evaluate.whole_batch import Columns
from postroad.core.filters.language import ast
from postroad.errors import BatchError, FilterSyntaxError, InvalidValueError

NAN = float("nan")


class Side(enum.IntEnum):
    BUY = 1


def test_a_filter_matches_messages_and_batches() -> None:
    """The example everyone tries first."""
    subject = Filter("price > 10 AND symbol IN ('A', 'B')")
    batch = Batch(pa.record_batch({"@price": pa.array([5.0, 11.5, None]), "@symbol": pa.array(["A", "B", "A"])}))
    assert subject.matches({"price": 11, "symbol": "A"}) is True
    assert subject.matches({"price": 9, "symbol": "A"}) is False
    assert subject.matches({"symbol": "A"}) is None
    assert subject.evaluate(batch).tolist() == [False, True, False]
    assert subject.attributes == {"price", "symbol"}
    assert str(subject) == "price > 10 AND symbol IN ('A', 'B')"
    assert repr(subject) == "Filter(\"price > 10 AND symbol IN ('A', 'B')\")"
    assert postroad.Filter is Filter


@pytest.mark.parametrize(
    ("text", "message", "answer"),
    [
        ("x = 9007199254740993", {"x": 9007199254740992.0}, False),
        ("x < 9007199254740993", {"x": 9007199254740992.0}, True),
        ("x = y", {"x": 9007199254740993, "y": 9007199254740992.0}, False),
        ("x = 1.0", {"x": 1}, True),
        ("x = y", {"x": NAN, "y": NAN}, False),
        ("x <> 1", {"x": NAN}, True),
        ("NOT x <= 5", {"x": NAN}, True),
        ("x + 1 > 0", {"x": 2**63 - 1}, None),
        ("x + 1.0 > 0", {"x": 2**63 - 1}, True),
        ("-x > 0", {"x": -(2**63)}, None),
        ("x * x > 0", {"x": 2**32}, None),
        ("x / 2 = 2.5", {"x": 5}, True),
        ("x / y = 1", {"x": 0, "y": 0.0}, None),
        ("x = TRUE", {"x": 1}, None),
        ("x = 1", {"x": True}, None),
        ("x <> 'a'", {"x": 1}, None),
        ("x > y", {"x": "b", "y": "a"}, None),
        ("x > y", {"x": True, "y": False}, None),
        ("x = y", {"x": b"a", "y": b"a"}, True),
        ("x <> y", {"x": b"a", "y": b"b"}, True),
        ("x = 'a'", {"x": b"a"}, None),
        ("x", {"x": 1}, None),
        ("x IN (1, 'a')", {"x": 1.0}, True),
        ("x NOT IN (1, 'a')", {"x": 2}, None),
        ("x NOT IN (1, 2)", {"x": NAN}, True),
        ("x NOT IN (1, 2)", {"x": "a"}, None),
        ("x BETWEEN y AND 3", {"x": 5}, False),
        ("x BETWEEN y AND 3", {"x": 2}, None),
        ("+x IS NULL", {"x": "a"}, True),
        ("", {}, True),
    ],
)
def test_values_compare_and_compute_as_documented(text: str, message: dict[str, Any], answer: bool | None) -> None:
    """One line for each rule of the semantics table, by both evaluators and for the negation as well."""
    assert Filter(text).matches(message) is answer
    assert Filter(text).evaluate(one_row(message)).tolist() == [answer is True]
    assert Filter(f"NOT ({text or 'TRUE'})").evaluate(one_row(message)).tolist() == [answer is False]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a = 1 AND b = 2", "b = 2 AND a = 1"),
        ("a = 1 OR b = 2 OR a = 1", "b = 2 OR a = 1"),
        ("NOT a = 1", "a <> 1"),
        ("NOT (a = 1 AND b IS NULL)", "b IS NOT NULL OR a <> 1"),
        ("NOT NOT a < 1", "a < 1"),
        ("10 < price", "price > 10"),
        ("a = b", "b = a"),
        ("a < b", "b > a"),
        ("a BETWEEN 1 AND 2", "a >= 1 AND a <= 2"),
        ("a IN (1, 2)", "a = 2 OR a = 1"),
        ("a NOT IN ('x')", "a <> 'x'"),
        ("a LIKE 'x'", "a = 'x'"),
        ("a LIKE '%%x'", "a LIKE '%x'"),
        ("a LIKE '_%x'", "a LIKE '%_x'"),
        ("a NOT LIKE 'x%'", "NOT a LIKE 'x%'"),
        ("a = 1", "a = 1.0"),
        ("a", "a = TRUE"),
        ("NOT a", "a = FALSE"),
        ("a > 2 + 3", "a > 5"),
        ("", "TRUE"),
        ("a AND 1 = 1", "a"),
        ("a OR 1 = 1", "TRUE"),
    ],
)
def test_filters_that_mean_the_same_are_equal(left: str, right: str) -> None:
    """Order, repetition, side, negation and notation do not count."""
    assert Filter(left) == Filter(right)
    assert hash(Filter(left)) == hash(Filter(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("NOT a < 1", "a >= 1"),  # NaN
        ("a = a", "TRUE"),  # NULL
        ("a = 1", "a = TRUE"),
        ("a = 1", "a = '1'"),
        ("a + 1 > 0", "a + 1.0 > 0"),  # overflow
        ("+a = 1", "a = 1 AND b"),
        ("a LIKE '%'", "TRUE"),
        ("a - b > 0", "b - a > 0"),
        ("a OR NOT a", "TRUE"),
        ("a IS NULL", "NOT a IS NULL"),
    ],
)
def test_filters_that_differ_for_some_message_are_not_equal(left: str, right: str) -> None:
    """Each pair differs in three-valued logic, though not always at first sight."""
    assert Filter(left) != Filter(right)


small = st.sampled_from(
    ["a", "b", "TRUE", "a = 1", "a = 1.0", "a <> 1", "b = 1", "1 = a", "a < 1", "1 > a", "a >= 1", "a = b", "b = a"]
)


@st.composite
def small_texts(draw: st.DrawFn) -> str:
    parts = draw(st.lists(small, min_size=1, max_size=3))
    text = draw(st.sampled_from([" AND ", " OR "])).join(parts)
    return f"NOT ({text})" if draw(st.booleans()) else text


@given(small_texts(), small_texts())
@settings(max_examples=500)
def test_equal_filters_agree_on_every_message(left: str, right: str) -> None:
    """Whenever two filters are called equal, they come out alike, unknown included."""
    one, other = Filter(left), Filter(right)
    if one == other:
        values: list[Any] = [None, True, False, 0, 1, 1.0, 2, NAN, "x"]
        for a in values:
            for b in values:
                assert one.matches({"a": a, "b": b}) is other.matches({"a": a, "b": b})


@given(conditions, rows, st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_a_filter_equals_itself_rearranged(condition: ast.Condition, message: dict[str, Any], random: Any) -> None:
    """Shuffling operands and doubling negations keeps a filter equal, its hash too, and its answer."""

    def rearranged(node: ast.Condition) -> ast.Condition:
        match node:
            case ast.And(operands) | ast.Or(operands):
                shuffled = [rearranged(operand) for operand in operands]
                random.shuffle(shuffled)
                return type(node)(tuple(shuffled))
            case ast.Not(operand):
                return ast.Not(ast.Not(ast.Not(rearranged(operand))))
            case _:
                return node

    one, other = Filter.from_condition(condition), Filter.from_condition(rearranged(condition))
    assert one == other
    assert hash(one) == hash(other)
    assert other.matches(message) is reference.truth(condition, message)


def test_a_filter_is_not_equal_to_its_text() -> None:
    """Only filters equal filters."""
    assert Filter("a = 1") != "a = 1"


def test_attributes_are_found_in_every_kind_of_node() -> None:
    """Conditions, values, both sides and every operand."""
    text = "a AND NOT b = -c AND d + e > 1 AND f BETWEEN g AND h AND i IN (1) AND j LIKE 'x' OR k IS NULL"
    assert Filter(text).attributes == set("abcdefghijk")
    assert Filter("TRUE").attributes == frozenset()


def test_a_filter_knows_what_it_covers_and_overlaps() -> None:
    """The public methods ask `covering` about the trees, in the right order."""
    pytest.importorskip("postroad.core.filters.algebra.covering", reason="covering is a separate part")
    wide, narrow, apart = Filter("a > 1"), Filter("a > 2 AND b = 'x'"), Filter("a < 0")
    assert wide.covers(narrow)
    assert not narrow.covers(wide)
    assert wide.overlaps(narrow)
    assert not wide.overlaps(apart)


def test_a_filter_travels_by_pickle() -> None:
    """A filter that was used, and so holds compiled closures, can still be sent to another process."""
    subject = Filter("a = 1")
    assert subject.matches({"a": 1})
    copy = pickle.loads(pickle.dumps(subject))
    assert copy == subject
    assert copy.matches({"a": 1}) is True


def test_attributes_of_derived_types_count_as_their_base() -> None:
    """An IntEnum is an int and a numpy float a float; the answer is still a plain bool."""
    assert Filter("side = 1").matches({"side": Side.BUY}) is True
    assert Filter("side + 1 = 2").matches({"side": Side.BUY}) is True
    assert Filter("x > 1").matches({"x": np.float64(2)}) is True


@pytest.mark.parametrize("text", ["x = 1", "x", "x + 1 = 2", "x IN (1)", "x LIKE 'a'", "x IS NULL", "x BETWEEN 1 AND 2"])
def test_an_attribute_of_a_foreign_type_is_refused(text: str) -> None:
    """A list is a caller's mistake, not a message that fails to match."""
    wrong: dict[str, Any] = {"x": [1]}
    with pytest.raises(InvalidValueError, match="not a list"):
        Filter(text).matches(wrong)


def test_an_int_beyond_the_batch_range_does_not_break_arithmetic() -> None:
    """Such a value cannot come from a batch; it compares, and its sum with a float is NULL."""
    assert Filter("x > 1").matches({"x": 10**400}) is True
    assert Filter("x + 0.5 > 1").matches({"x": 10**400}) is None
    assert Filter("x / 2 > 1").matches({"x": 10**400}) is None


def test_a_filter_is_text() -> None:
    """Bytes are not decoded by guess."""
    text: Any = b"a = 1"
    with pytest.raises(InvalidValueError, match="bytes"):
        Filter(text)


def test_a_tree_meets_the_checks_of_its_text() -> None:
    """A tree that could not have been parsed is refused."""
    with pytest.raises(FilterSyntaxError):
        Filter.from_condition(ast.Comparison("<", ast.Attribute("a"), ast.Literal("x")))


def test_an_empty_batch_gives_an_empty_mask() -> None:
    """No rows, no answer, no error."""
    batch = Batch(pa.record_batch({"@a": pa.array([], pa.int64())}))
    assert Filter("a = 1").evaluate(batch).tolist() == []


@pytest.mark.parametrize("text", ["a = 1", "NOT a = 1", "a", "a LIKE '%'", "a IN (1)", "a + 1 = 2", "a = a", "-a = 1"])
def test_a_missing_column_is_null_in_every_row(text: str) -> None:
    """As for a message without the attribute."""
    for batch in (
        Batch(pa.record_batch({"tick": pa.array([1, 2], pa.uint64())})),
        Batch(pa.record_batch({"@a": pa.nulls(2, pa.int64())})),
        Batch(pa.record_batch({"@a": pa.nulls(2)})),
    ):
        assert Filter(text).evaluate(batch).tolist() == [False, False]
        assert Filter(f"({text}) OR a IS NULL").evaluate(batch).tolist() == [True, True]


def test_a_column_of_another_type_is_refused() -> None:
    """A batch that no pubend can have made is not quietly treated as NULL."""
    batch = Batch(pa.record_batch({"@a": pa.array([1, 2], pa.int32())}))
    with pytest.raises(BatchError, match="int32"):
        Filter("a = 1").evaluate(batch)


def test_filters_share_the_decoded_columns_of_a_batch() -> None:
    """Each column is read once for all filters that are evaluated over the same `Columns`, and none spoils another's mask."""
    columns = Columns(Batch(pa.record_batch({"@a": pa.array([True, False, None]), "@b": pa.array([True, True, True])})))
    vector = columns.vector("a")
    first = Filter("a").evaluate_columns(columns).tolist()
    assert Filter("b AND a").evaluate_columns(columns).tolist() == [True, False, False]
    assert Filter("b OR a").evaluate_columns(columns).tolist() == [True, True, True]
    assert Filter("NOT a").evaluate_columns(columns).tolist() == [False, True, False]
    assert Filter("a AND b AND b").evaluate_columns(columns).tolist() == [True, False, False]
    assert Filter("a").evaluate_columns(columns).tolist() == first == [True, False, False]
    assert columns.vector("a") is vector
