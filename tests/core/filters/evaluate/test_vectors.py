"""Columns of numbers at the edges of their types, each against each."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.core.filters.evaluate import reference

from postroad.core.batch.batch import Batch
from postroad.core.filters.evaluate import one_message as scalar
from postroad.core.filters.evaluate import vectors
from postroad.core.filters.evaluate import whole_batch as columns
from postroad.core.filters.evaluate.vectors import Vector
from postroad.core.filters.language import ast
from postroad.core.filters.language.ast import Arithmetic, Attribute, Comparison, In, Literal, Not, Sign
from postroad.core.filters.language.values import Kind

INTS = [0, 1, 2, 3, -1, -2, 7, 2**31, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**62, 2**63 - 1024, 2**63 - 1]
INTS += [-(2**53) - 1, -(2**62), -(2**63) + 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1.5, 2.5, -0.5, -1.5, -2.0, 2.0**53, 2.0**53 + 2, 2.0**62, 2.0**63 - 1024, 2.0**63, 2.0**64]
FLOATS += [-(2.0**53), -(2.0**63), -(2.0**63) - 2048, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]
FINITE: list[int | float] = [*INTS, *(number for number in FLOATS if math.isfinite(number))]
OPERATORS: list[ast.ComparisonOperator] = ["=", "<>", "<", "<=", ">", ">="]

INT_COLUMN, FLOAT_COLUMN = Attribute("i"), Attribute("x")


def table(**values: list[Any]) -> tuple[list[dict[str, Any]], Batch]:
    """Every combination of the values, as messages and as a batch."""
    messages = [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]
    types = {"i": pa.int64(), "j": pa.int64(), "x": pa.float64(), "y": pa.float64()}
    arrays = {f"@{name}": pa.array([message[name] for message in messages], types[name]) for name in values}
    return messages, Batch(pa.record_batch(arrays))


def agree(condition: ast.Condition, messages: list[dict[str, Any]], batch: Batch) -> bool:
    expected = [reference.truth(condition, message) is True for message in messages]
    return list(columns.evaluate(condition, batch)) == expected


@pytest.mark.parametrize("operator", OPERATORS)
def test_columns_compare_with_constants_by_exact_value(operator: ast.ComparisonOperator) -> None:
    """Ints with fractions, floats with ints that no float holds, constants beyond int64, on either side and negated."""
    for name, values in (("i", [*INTS, None]), ("x", [*FLOATS, None])):
        messages, batch = table(**{name: values})
        for constant in FINITE:
            right = Comparison(operator, Attribute(name), Literal(constant))
            left = Comparison(operator, Literal(constant), Attribute(name))
            assert all(agree(condition, messages, batch) for condition in (right, left, Not(right), Not(left))), right


@pytest.mark.parametrize("constant", [1e308 * 10, -1e308 * 10])
def test_columns_compare_with_folded_infinities(constant: float) -> None:
    """A constant expression may overflow to an infinity, which no literal can be."""
    overflow = Arithmetic("*", Literal(1e308), Literal(math.copysign(10.0, constant)))
    for name, values in (("i", [*INTS, None]), ("x", [*FLOATS, None])):
        messages, batch = table(**{name: values})
        for operator in OPERATORS:
            condition = Comparison(operator, Attribute(name), overflow)
            assert agree(condition, messages, batch)
            assert agree(Not(condition), messages, batch)


def test_columns_compare_with_a_folded_nan() -> None:
    """So may it become NaN."""
    infinity = Arithmetic("*", Literal(1e308), Literal(10))
    for name, values in (("i", [*INTS, None]), ("x", [*FLOATS, None])):
        messages, batch = table(**{name: values})
        for operator in OPERATORS:
            condition = Comparison(operator, Attribute(name), Arithmetic("-", infinity, infinity))
            assert agree(condition, messages, batch)
            assert agree(Not(condition), messages, batch)


@pytest.mark.parametrize("operator", OPERATORS)
def test_columns_compare_with_each_other_by_exact_value(operator: ast.ComparisonOperator) -> None:
    """Every int with every float, in both directions, NULL included."""
    messages, batch = table(i=[*INTS, None], x=[*FLOATS, None])
    for condition in (Comparison(operator, INT_COLUMN, FLOAT_COLUMN), Comparison(operator, FLOAT_COLUMN, INT_COLUMN)):
        assert agree(condition, messages, batch)
        assert agree(Not(condition), messages, batch)


NUMBERS: dict[str, list[Any]] = {"i": [*INTS, None], "x": [*FLOATS, None]}


@pytest.mark.parametrize("operator", ["+", "-", "*", "/"])
@pytest.mark.parametrize(("left", "right"), list(itertools.product("ix", repeat=2)))
def test_arithmetic_of_columns_gives_what_it_gives_for_single_values(
    operator: ast.ArithmeticOperator, left: str, right: str
) -> None:
    """The same numbers of the same type, and NULL in the same rows: overflow, division by zero, missing operands."""
    second = {"i": "j", "x": "y"}[right] if left == right else right
    messages, batch = table(**{left: NUMBERS[left], second: NUMBERS[right]})
    read = columns.Columns(batch)
    one, other = read.vector(left), read.vector(second)
    assert one is not None
    assert other is not None
    check(vectors.arithmetic(operator, one, other), Arithmetic(operator, Attribute(left), Attribute(second)), messages)
    messages, batch = table(**{left: NUMBERS[left]})
    one = columns.Columns(batch).vector(left)
    assert one is not None
    for constant in FINITE:
        check(vectors.arithmetic(operator, one, constant), Arithmetic(operator, Attribute(left), Literal(constant)), messages)
        check(vectors.arithmetic(operator, constant, one), Arithmetic(operator, Literal(constant), Attribute(left)), messages)
    check(vectors.negate(one), Sign("-", Attribute(left)), messages)


def check(vector: Vector, value: ast.Value, messages: list[dict[str, Any]]) -> None:
    """Compare a vector with the reference's value and with the scalar evaluator's, by type and representation."""
    assert vector.kind is Kind.NUMBER
    known = np.ones(len(messages), np.bool_) if vector.known is None else vector.known
    got = [number if there else None for number, there in zip(vector.values.tolist(), known, strict=True)]
    expected = [reference.number_or_other(value, message) for message in messages]
    compute = scalar.compile_value(value)
    assert list(map(repr, got)) == list(map(repr, expected)) == [repr(compute(message)) for message in messages]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 9, len(FINITE)])
def test_membership_in_a_list_of_numbers_is_by_exact_value(size: int) -> None:
    """Short lists are compared one by one, long ones searched; ints and floats may be mixed in both."""
    for name, values in (("i", [*INTS, None]), ("x", [*FLOATS, None])):
        messages, batch = table(**{name: values})
        for start in range(len(FINITE)):
            listed = tuple(Literal(number) for number in (FINITE + FINITE)[start : start + size])
            for negated in (False, True):
                assert agree(In(Attribute(name), listed, negated), messages, batch)
