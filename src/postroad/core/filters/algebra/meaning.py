"""What a filter means, as a key: filters with equal keys match the same messages.

The converse does not hold (deciding it is `covers` in both directions, and costs more); the key sees through what people and
programs vary without meaning to: the order and repetition of operands, the side a literal stands on, `a <> 1` for `NOT a = 1`,
`a` for `a = TRUE`, BETWEEN, IN and LIKE without wildcards for the comparisons they stand for, De Morgan, constants. Each rule
keeps all three truth values: `NOT a < 1` is *not* `a >= 1` (NaN), `a = a` is not TRUE (NULL).

Keys are nested tuples and frozensets. Numbers in comparisons are keyed by value, so that `a = 1` is `a = 1.0`; in arithmetic the
type counts, because ints overflow.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from postroad.core.filters.evaluate.like import literal_text
from postroad.core.filters.evaluate.one_message import compile_test, constant
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
from postroad.core.filters.language.values import EQUALITY, FLIPPED, KINDS, Scalar

Key: TypeAlias = tuple[Any, ...]

TRUE: Final[Key] = ("true",)
FALSE: Final[Key] = ("false",)
UNKNOWN: Final[Key] = ("unknown",)


def meaning(condition: Condition, negated: bool = False) -> Key:
    """Return the key of a condition, or of its negation."""
    match condition:
        case Literal():
            return TRUE if condition.value is not negated else FALSE
        case Attribute():
            return _comparison("=", condition, Literal(True), negated)
        case Comparison(operator, left, right):
            return _comparison(operator, left, right, negated)
        case Between(operand, low, high, inner):
            above, below = Comparison(">=", operand, low), Comparison("<=", operand, high)
            return meaning(And((above, below)), negated is not inner)
        case In(operand, values, inner):
            return meaning(Or(tuple(Comparison("=", operand, value) for value in values)), negated is not inner)
        case Like():
            return _like(condition, negated is not condition.negated)
        case IsNull(operand, inner):
            folded = constant(operand)
            if folded is not None:
                return TRUE if (folded[0] is None) is not (negated is not inner) else FALSE
            return ("null", _value(operand), negated is not inner)
        case Not(operand):
            return meaning(operand, not negated)
        case And(operands):
            return _join("and" if not negated else "or", [meaning(operand, negated) for operand in operands])
        case Or(operands):
            return _join("or" if not negated else "and", [meaning(operand, negated) for operand in operands])


def _join(name: str, operands: list[Key]) -> Key:
    neutral, absorbing = (TRUE, FALSE) if name == "and" else (FALSE, TRUE)
    members: set[Key] = set()
    for operand in operands:
        if operand == absorbing:
            return absorbing
        if operand[0] == name:
            members |= operand[1]
        elif operand != neutral:
            members.add(operand)
    if len(members) <= 1:
        return members.pop() if members else neutral
    return (name, frozenset(members))


def _comparison(operator: ComparisonOperator, left: Value, right: Value, negated: bool) -> Key:
    left_constant, right_constant = constant(left), constant(right)
    if left_constant is not None and right_constant is not None:
        result = compile_test(Comparison(operator, left, right))({})
        return UNKNOWN if result is None else TRUE if result is not negated else FALSE
    if operator in EQUALITY and negated:
        operator, negated = ("<>" if operator == "=" else "="), False
    if left_constant is not None:
        operator, left, right, right_constant = FLIPPED[operator], right, left, left_constant
    if right_constant is not None:
        return _against(operator, left, right_constant[0], negated)
    sides = [_value(left), _value(right)]
    if operator in {">", ">="} or (operator in EQUALITY and repr(sides[0]) > repr(sides[1])):
        operator, sides = FLIPPED[operator], sides[::-1]
    return ("compare", operator, *sides, negated)


def _against(operator: ComparisonOperator, left: Value, value: Scalar, negated: bool) -> Key:
    if value is None:
        return UNKNOWN
    if value is False and operator in EQUALITY:  # a = FALSE is a <> TRUE: a boolean has no third value
        operator, value = ("<>" if operator == "=" else "="), True
    return ("compare", operator, _value(left), (KINDS[type(value)], value), negated)


def _like(condition: Like, negated: bool) -> Key:
    if constant(condition.operand) is not None:
        result = compile_test(Like(condition.operand, condition.pattern, condition.escape))({})
        return UNKNOWN if result is None else TRUE if result is not negated else FALSE
    text = literal_text(condition.pattern, condition.escape)
    if text is not None:
        return _comparison("=", condition.operand, Literal(text), negated)
    return ("like", _value(condition.operand), condition.pattern, condition.escape, negated)


def _value(value: Value) -> Key:
    folded = constant(value)
    if folded is not None:
        return ("constant", type(folded[0]).__name__, folded[0])
    match value:
        case Attribute(name):
            return ("attribute", name)
        case Sign(operator, operand):
            return (operator, _value(operand))
        case Arithmetic(operator, left, right):
            return (operator, _value(left), _value(right))
        case Literal():
            raise AssertionError("a literal is constant")
