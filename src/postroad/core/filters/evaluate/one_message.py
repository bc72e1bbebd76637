"""A filter on one message.

A condition becomes a closure from the message's attributes to true, false or unknown (None), built once. Each closure calls those
of its operands, so evaluation nests as deep as the tree, which `limits` bounds. The common leaf, an attribute against a literal,
has a closure of its own; everything else goes through the functions of `values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from postroad.core.filters.evaluate.like import LikeMatcher
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
from postroad.core.filters.language.values import (
    COMPARE,
    FLIPPED,
    KINDS,
    Kind,
    Scalar,
    Truth,
    arithmetic,
    compare,
    kind_of,
    plain,
    sign,
)

Attributes: TypeAlias = Mapping[str, Scalar]
Test: TypeAlias = Callable[[Attributes], Truth]
Compute: TypeAlias = Callable[[Attributes], Scalar]


def matches(condition: Condition, attributes: Attributes) -> Truth:
    """Evaluate once; use `compile_test` to evaluate often."""
    return compile_test(condition)(attributes)


def constant(value: Value) -> tuple[Scalar] | None:
    """Return the value of an expression without attributes, boxed because it may be NULL, or None if it has attributes."""
    match value:
        case Literal():
            return (value.value,)
        case Attribute():
            return None
        case Sign():
            operand = constant(value.operand)
            return operand and (sign(value.operator, operand[0]),)
        case Arithmetic():
            left, right = constant(value.left), constant(value.right)
            return left and right and (arithmetic(value.operator, left[0], right[0]),)


def compile_test(condition: Condition) -> Test:
    match condition:
        case Literal():
            truth = condition.value is True
            return lambda _: truth
        case Attribute():
            return _boolean(condition.name)
        case Comparison():
            return _comparison(condition)
        case Between():
            return _between(condition)
        case In():
            return _membership(condition)
        case Like():
            return _like(condition)
        case IsNull():
            operand, when_null = compile_value(condition.operand), not condition.negated
            return lambda attributes: (operand(attributes) is None) is when_null
        case Not():
            return _not(compile_test(condition.operand))
        case And():
            return _all([compile_test(operand) for operand in condition.operands])
        case Or():
            return _any([compile_test(operand) for operand in condition.operands])


def compile_value(value: Value) -> Compute:
    folded = constant(value)
    if folded is not None:
        result = folded[0]
        return lambda _: result
    match value:
        case Attribute():
            name = value.name
            return lambda attributes: plain(attributes.get(name))
        case Sign():
            operator, operand = value.operator, compile_value(value.operand)
            return lambda attributes: sign(operator, operand(attributes))
        case Arithmetic():
            operation, left, right = value.operator, compile_value(value.left), compile_value(value.right)
            return lambda attributes: arithmetic(operation, left(attributes), right(attributes))
        case Literal():
            raise AssertionError("a literal is constant")


def _boolean(name: str) -> Test:
    def test(attributes: Attributes) -> Truth:
        value = plain(attributes.get(name))
        return value if isinstance(value, bool) else None

    return test


def _comparison(condition: Comparison) -> Test:
    operator, left, right = condition.operator, condition.left, condition.right
    if isinstance(left, Attribute) and isinstance(right, Literal):
        return _attribute_against(left.name, operator, right)
    if isinstance(right, Attribute) and isinstance(left, Literal):
        return _attribute_against(right.name, FLIPPED[operator], left)
    return _general_comparison(operator, left, right)


def _attribute_against(name: str, operator: ComparisonOperator, literal: Literal) -> Test:
    constant_value, kind, holds = literal.value, KINDS[type(literal.value)], COMPARE[operator]

    def test(attributes: Attributes) -> Truth:
        value = attributes.get(name)
        if KINDS.get(type(value)) is not kind:
            value = plain(value)
            if KINDS.get(type(value)) is not kind:
                return None
        return holds(value, constant_value)

    return test


def _general_comparison(operator: ComparisonOperator, left: Value, right: Value) -> Test:
    left_of, right_of = compile_value(left), compile_value(right)
    return lambda attributes: compare(operator, left_of(attributes), right_of(attributes))


def _between(condition: Between) -> Test:
    operand, low, high = (compile_value(value) for value in (condition.operand, condition.low, condition.high))
    negated = condition.negated

    def test(attributes: Attributes) -> Truth:
        value = operand(attributes)
        above, below = compare(">=", value, low(attributes)), compare("<=", value, high(attributes))
        if above is False or below is False:
            return negated
        return None if above is None or below is None else not negated

    return test


def _membership(condition: In) -> Test:
    operand, found = compile_value(condition.operand), not condition.negated
    sets: dict[Kind, set[object]] = {}
    for literal in condition.values:
        sets.setdefault(KINDS[type(literal.value)], set()).add(literal.value)
    # A value of one kind against a list of several: the literals of the other kinds leave "not found" unknown.
    not_found = None if len(sets) > 1 else condition.negated

    def test(attributes: Attributes) -> Truth:
        value = operand(attributes)
        if value is None:
            return None
        candidates = sets.get(kind_of(value))
        if candidates is None:
            return None
        return found if value in candidates else not_found

    return test


def _like(condition: Like) -> Test:
    operand, matched = compile_value(condition.operand), not condition.negated
    matcher = LikeMatcher(condition.pattern, condition.escape).matches

    def test(attributes: Attributes) -> Truth:
        value = operand(attributes)
        return matcher(value) is matched if isinstance(value, str) else None

    return test


def _not(operand: Test) -> Test:
    def test(attributes: Attributes) -> Truth:
        result = operand(attributes)
        return None if result is None else not result

    return test


def _all(operands: list[Test]) -> Test:
    def test(attributes: Attributes) -> Truth:
        known = True
        for operand in operands:
            result = operand(attributes)
            if result is False:
                return False
            if result is None:
                known = False
        return True if known else None

    return test


def _any(operands: list[Test]) -> Test:
    def test(attributes: Attributes) -> Truth:
        known = True
        for operand in operands:
            result = operand(attributes)
            if result is True:
                return True
            if result is None:
                known = False
        return False if known else None

    return test
