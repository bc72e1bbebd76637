"""A filter on a whole batch.

Three truth values would need two masks for each condition. They do not here, because a batch is only ever asked one question of
each condition: *where is it definitely true?* or *where is it definitely false?* NOT turns one question into the other, and in
Kleene's logic AND and OR answer either from the same question to their operands:

    true(a AND b)  = true(a) & true(b)       false(a AND b) = false(a) | false(b)
    true(a OR b)   = true(a) | true(b)       false(a OR b)  = false(a) & false(b)
    true(NOT a)    = false(a)                false(NOT a)   = true(a)

So a condition is compiled together with the question (`wanted`), each node costs one mask, and only leaves know about NULL: their
answer, either way, is cut to the rows where their operands are known.

The compiled form is a closure from `Columns` (a batch with its columns decoded at most once) to `Rows`, where a plain bool
stands for every row: a missing attribute or a kind that cannot match costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.core.batch.batch import Batch
from postroad.core.filters.evaluate import vectors
from postroad.core.filters.evaluate.bitmaps import Mask, truth
from postroad.core.filters.evaluate.like import LikeMatcher
from postroad.core.filters.evaluate.one_message import compile_test, constant
from postroad.core.filters.evaluate.vectors import Number, NumberSet, Rows, Vector, cut, number_test
from postroad.core.filters.language.ast import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    ComparisonOperator,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Sign,
    Value,
)
from postroad.core.filters.language.values import EQUALITY, FLIPPED, KINDS, Kind, Scalar

_NOT_READ: Final = Vector(Kind.BOOLEAN, None, None)


class Columns:
    """The attributes of one batch, each decoded when it is first asked for. Share one to evaluate many filters."""

    __slots__ = ("_batch", "_listed", "_vectors")

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._vectors: dict[str, Vector | None] = {}
        self._listed: dict[str, tuple[Kind, list[Scalar]] | None] = {}

    def __len__(self) -> int:
        return len(self._batch)

    def vector(self, name: str) -> Vector | None:
        """Return an attribute's values, or None when it is NULL in every row."""
        vector = self._vectors.get(name, _NOT_READ)
        if vector is _NOT_READ:
            column = self._batch.attribute(name)
            vector = self._vectors[name] = None if column is None else vectors.decode(column, name)
        return vector

    def listed(self, name: str) -> tuple[Kind, list[Scalar]] | None:
        """Return the same as Python values, for a batch of few rows."""
        try:
            return self._listed[name]
        except KeyError:
            listed = self._listed[name] = self._list(name)
            return listed

    def _list(self, name: str) -> tuple[Kind, list[Scalar]] | None:
        values = self._batch.remembered(name)
        if values is None:
            column = self._batch.attribute(name)
            return None if column is None else vectors.listed(column, name)
        first = next((value for value in values if value is not None), None)
        return None if first is None else (KINDS[type(first)], values)


Select: TypeAlias = Callable[[Columns], Rows]
Operand: TypeAlias = Callable[[Columns], Vector | None]
Leaf: TypeAlias = Callable[[Vector], Rows | None]
"""Where a condition on one operand holds, among the rows that are known; None when it is unknown for that kind of value."""


def evaluate(condition: Condition, batch: Batch) -> Mask:
    """Evaluate once; use `compile_select` and `select` to evaluate often."""
    return select(compile_select(condition), Columns(batch))


def select(compiled: Select, columns: Columns) -> Mask:
    """Return a mask of the rows for which a compiled condition is definitely true."""
    count = len(columns)
    if count == 0:
        return np.zeros(0, np.bool_)
    rows = compiled(columns)
    return np.full(count, rows) if isinstance(rows, bool) else rows


def compile_select(condition: Condition, wanted: bool = True) -> Select:
    """Compile the question where a condition is definitely true or, with `wanted` False, definitely false."""
    match condition:
        case Literal():
            return _everywhere(condition.value is wanted)
        case Attribute():
            return _leaf(condition, lambda vector: _boolean(vector, "=", wanted))
        case Comparison():
            return _comparison(condition, wanted)
        case Between():
            return _between(condition, wanted is not condition.negated)
        case In():
            return _membership(condition, wanted is not condition.negated)
        case Like():
            return _like(condition, wanted is not condition.negated)
        case IsNull():
            return _null_test(condition, wanted is not condition.negated)
        case Not():
            return compile_select(condition.operand, not wanted)
        case And():
            return (_all if wanted else _any)([compile_select(operand, wanted) for operand in condition.operands])
        case Or():
            return (_any if wanted else _all)([compile_select(operand, wanted) for operand in condition.operands])


def _everywhere(rows: bool) -> Select:
    return lambda _: rows


def _all(operands: list[Select]) -> Select:
    def rows(columns: Columns) -> Rows:
        result: Rows = True
        owned = False
        for operand in operands:
            mask = operand(columns)
            if mask is False:
                return False
            if mask is True:
                continue
            if result is True:
                result = mask
            else:
                result = np.logical_and(result, mask, out=cast("Mask", result) if owned else None)
                owned = True
        return result

    return rows


def _any(operands: list[Select]) -> Select:
    def rows(columns: Columns) -> Rows:
        result: Rows = False
        owned = False
        for operand in operands:
            mask = operand(columns)
            if mask is True:
                return True
            if mask is False:
                continue
            if result is False:
                result = mask
            else:
                result = np.logical_or(result, mask, out=cast("Mask", result) if owned else None)
                owned = True
        return result

    return rows


def _leaf(operand: Value, test: Leaf) -> Select:
    """Test the values of an operand that is not constant, then keep the rows where they are known."""
    vector_of = _operand(operand)

    def rows(columns: Columns) -> Rows:
        vector = vector_of(columns)
        if vector is None:
            return False
        result = test(vector)
        return False if result is None else cut(result, vector.known)

    return rows


def _fold(condition: Condition, wanted: bool) -> Select:
    """Answer for a condition without attributes, which comes out the same for every row."""
    return _everywhere(compile_test(condition)({}) is wanted)


# Values


def _operand(value: Value) -> Operand:
    match value:
        case Attribute():
            name = value.name
            return lambda columns: columns.vector(name)
        case Sign():
            return _sign(value)
        case Arithmetic():
            return _arithmetic(value)
        case Literal():
            raise AssertionError("constants are folded by the conditions that hold them")


def _sign(value: Sign) -> Operand:
    operand, negative = _operand(value.operand), value.operator == "-"

    def compute(columns: Columns) -> Vector | None:
        vector = operand(columns)
        if vector is None or vector.kind is not Kind.NUMBER:
            return None
        return vectors.negate(vector) if negative else vector

    return compute


def _arithmetic(value: Arithmetic) -> Operand:
    operator = value.operator
    left, right = _number_operand(value.left), _number_operand(value.right)

    def compute(columns: Columns) -> Vector | None:
        left_number, right_number = left(columns), right(columns)
        if left_number is None or right_number is None:
            return None
        return vectors.arithmetic(operator, left_number, right_number)

    return compute


def _number_operand(value: Value) -> Callable[[Columns], Vector | Number | None]:
    """One side of an arithmetic operator: a constant, a vector of numbers, or None for NULL."""
    folded = constant(value)
    if folded is not None:
        number = cast("Number | None", folded[0])
        return lambda _: number
    operand = _operand(value)

    def numbers(columns: Columns) -> Vector | None:
        vector = operand(columns)
        return vector if vector is not None and vector.kind is Kind.NUMBER else None

    return numbers


# Comparisons


def _comparison(condition: Comparison, wanted: bool) -> Select:
    operator, left, right = condition.operator, condition.left, condition.right
    left_constant, right_constant = constant(left), constant(right)
    if left_constant is not None and right_constant is not None:
        return _fold(condition, wanted)
    if right_constant is not None:
        return _leaf(left, _against(operator, right_constant[0], wanted))
    if left_constant is not None:
        return _leaf(right, _against(FLIPPED[operator], left_constant[0], wanted))
    return _between_vectors(operator, _operand(left), _operand(right), wanted)


def _between_vectors(operator: ComparisonOperator, left_of: Operand, right_of: Operand, wanted: bool) -> Select:
    def rows(columns: Columns) -> Rows:
        left, right = left_of(columns), right_of(columns)
        if left is None or right is None:
            return False
        result = vectors.compare(operator, left, right)
        if result is None:
            return False
        return cut(cut(result if wanted else _invert(result), left.known), right.known)

    return rows


def _invert(rows: Rows) -> Rows:
    return not rows if isinstance(rows, bool) else np.logical_not(rows)


def _against(operator: ComparisonOperator, value: Scalar, wanted: bool) -> Leaf:
    """Compare a vector with a constant."""
    if value is None:
        return lambda _: None
    match KINDS[type(value)]:
        case Kind.NUMBER:
            return _against_number(operator, cast("Number", value), wanted)
        case Kind.BOOLEAN if operator in EQUALITY:
            return lambda vector: _boolean(vector, operator, value is wanted)
        case Kind.STRING if operator in EQUALITY:
            return _against_string(cast("str", value), (operator == "=") is wanted)
        case _:
            return lambda _: None


def _against_number(operator: ComparisonOperator, number: Number, wanted: bool) -> Leaf:
    if operator in EQUALITY and not wanted:  # NOT a = 1 is a <> 1, also for NaN; NOT a < 1 is not a >= 1
        operator, wanted = ("<>" if operator == "=" else "="), True
    test = number_test(operator, number)

    def leaf(vector: Vector) -> Rows | None:
        if vector.kind is not Kind.NUMBER:
            return None
        rows = test.holds(vector.values)
        return rows if wanted else _invert(rows)

    return leaf


def _against_string(text: str, equal: bool) -> Leaf:
    scalar = pa.scalar(text)
    compare = pc.equal if equal else pc.not_equal

    def leaf(vector: Vector) -> Rows | None:
        return truth(compare(vector.values, scalar)) if vector.kind is Kind.STRING else None

    return leaf


def _boolean(vector: Vector, operator: ComparisonOperator, value: bool) -> Rows | None:
    if vector.kind is not Kind.BOOLEAN:
        return None
    return cast("Mask", vector.values) if value is (operator == "=") else np.logical_not(vector.values)


# The other predicates


def _between(condition: Between, inside: bool) -> Select:
    """`x >= low AND x <= high`: both true when asked where it is true, either false when asked where it is false."""
    above = _comparison(Comparison(">=", condition.operand, condition.low), inside)
    below = _comparison(Comparison("<=", condition.operand, condition.high), inside)
    return (_all if inside else _any)([above, below])


def _membership(condition: In, found: bool) -> Select:
    if constant(condition.operand) is not None:
        return _fold(In(condition.operand, condition.values), found)
    listed: dict[Kind, list[Scalar]] = {}
    for literal in condition.values:
        listed.setdefault(KINDS[type(literal.value)], []).append(literal.value)
    if not found and len(listed) > 1:  # against a list of several kinds "not in it" is never certain
        return _everywhere(False)
    tests = {kind: _SETS[kind](values) for kind, values in listed.items()}

    def leaf(vector: Vector) -> Rows | None:
        test = tests.get(vector.kind)
        if test is None:
            return None
        rows = test(vector)
        return rows if found else _invert(rows)

    return _leaf(condition.operand, leaf)


def _string_set(values: list[Scalar]) -> Callable[[Vector], Rows]:
    options = pc.SetLookupOptions(pa.array(values, pa.string()))
    return lambda vector: truth(pc.call_function("is_in", [vector.values], options))


def _number_set(values: list[Scalar]) -> Callable[[Vector], Rows]:
    numbers = NumberSet(cast("list[Number]", values))
    return lambda vector: numbers.contains(vector.values)


def _boolean_set(values: list[Scalar]) -> Callable[[Vector], Rows]:
    if True in values and False in values:
        return lambda _: True
    return (lambda vector: vector.values) if True in values else (lambda vector: np.logical_not(vector.values))


_SETS: Final[dict[Kind, Callable[[list[Scalar]], Callable[[Vector], Rows]]]] = {
    Kind.STRING: _string_set,
    Kind.NUMBER: _number_set,
    Kind.BOOLEAN: _boolean_set,
}


def _like(condition: Like, matched: bool) -> Select:
    if constant(condition.operand) is not None:
        return _fold(Like(condition.operand, condition.pattern, condition.escape), matched)
    matcher = LikeMatcher(condition.pattern, condition.escape)

    def leaf(vector: Vector) -> Rows | None:
        if vector.kind is not Kind.STRING:
            return None
        rows = matcher.mask(vector.values)
        return rows if matched else _invert(rows)

    return _leaf(condition.operand, leaf)


def _null_test(condition: IsNull, null: bool) -> Select:
    folded = constant(condition.operand)
    if folded is not None:
        return _everywhere((folded[0] is None) is null)
    vector_of = _operand(condition.operand)

    def rows(columns: Columns) -> Rows:
        vector = vector_of(columns)
        if vector is None:
            return null
        if vector.known is None:
            return not null
        return _invert(vector.known) if null else vector.known

    return rows
