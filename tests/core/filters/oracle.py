"""The meaning of filters, written to be read: one message, one tree, three-valued, no care for speed.

Every other evaluator of the filter language is tested against `truth`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from postroad.core.filters.ast import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
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
from postroad.types import AttributeValue

Message = Mapping[str, AttributeValue]
Scalar = AttributeValue | None


def matches(condition: Condition, message: Message) -> bool:
    """Say whether a filter matches: only if it is definitely true."""
    return truth(condition, message) is True


def truth(condition: Condition, message: Message) -> bool | None:
    """Return True, False, or None for unknown."""
    match condition:
        case Not(operand):
            return negation(truth(operand, message))
        case And(operands):
            return conjunction(truth(operand, message) for operand in operands)
        case Or(operands):
            return negation(conjunction(negation(truth(operand, message)) for operand in operands))
        case Literal() | Attribute():
            value = value_of(condition, message)
            return value if isinstance(value, bool) else None
        case Comparison(operator, left, right):
            return compared(operator, value_of(left, message), value_of(right, message))
        case Between(operand, low, high, negated):
            value = value_of(operand, message)
            inside = conjunction(
                [compared(">=", value, value_of(low, message)), compared("<=", value, value_of(high, message))],
            )
            return negation(inside) if negated else inside
        case In(operand, literals, negated):
            value = value_of(operand, message)
            differs = conjunction(compared("<>", value, literal.value) for literal in literals)
            return differs if negated else negation(differs)
        case Like(operand, pattern, escape, negated):
            value = value_of(operand, message)
            return like(value, pattern, escape) is not negated if isinstance(value, str) else None
        case IsNull(operand, negated):
            return (value_of(operand, message) is None) is not negated


def negation(value: bool | None) -> bool | None:
    return None if value is None else not value


def conjunction(values: Iterable[bool | None]) -> bool | None:
    seen = list(values)
    if any(value is False for value in seen):
        return False
    return None if any(value is None for value in seen) else True


def compared(operator: str, left: Scalar, right: Scalar) -> bool | None:
    if left is None or right is None or kind(left) != kind(right):
        return None
    if operator in {"=", "<>"}:
        return (left == right) is (operator == "=")
    if not is_number(left) or not is_number(right):
        return None
    if math.isnan(left) or math.isnan(right):
        return False
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator]


def kind(value: AttributeValue) -> str:
    return "number" if is_number(value) else type(value).__name__


def is_number(value: Scalar) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_of(value: Value, message: Message) -> Scalar:
    match value:
        case Literal(literal):
            return literal
        case Attribute(name):
            return message.get(name)
        case Sign(operator, operand):
            return arithmetic("*", value_of(operand, message), -1 if operator == "-" else 1)
        case Arithmetic(operator, left, right):
            return arithmetic(operator, value_of(left, message), value_of(right, message))


def arithmetic(operator: str, left: Scalar, right: Scalar) -> Scalar:
    if not is_number(left) or not is_number(right):
        return None
    if operator == "/":
        return None if right == 0 else float(left) / float(right)
    result = {"+": left + right, "-": left - right, "*": left * right}[operator]
    return None if isinstance(result, int) and not -(2**63) <= result < 2**63 else result


def like(text: str, pattern: str, escape: str | None) -> bool:
    """Only a wildcard or the escape character itself can be escaped; elsewhere the escape character is an ordinary one."""
    expression, rest = "", pattern
    while rest:
        if rest[0] == escape and rest[1:2] and rest[1] in {"%", "_", escape}:
            expression, rest = expression + re.escape(rest[1]), rest[2:]
        else:
            expression, rest = expression + {"%": ".*", "_": "."}.get(rest[0], re.escape(rest[0])), rest[1:]
    return re.fullmatch(expression, text, re.DOTALL) is not None
