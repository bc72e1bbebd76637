"""The language once more, slowly and plainly: the oracle that both evaluators are held to.

Nothing here is shared with the code under test but the tree. Comparisons go through exact fractions, LIKE through a table of
which prefix of the pattern matches which prefix of the text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from postroad.core.filters.language import ast

Truth = bool | None


def truth(node: ast.Condition, message: Mapping[str, Any]) -> Truth:
    match node:
        case ast.Literal(constant):
            return constant is True
        case ast.Attribute(name):
            value = message.get(name)
            return value if isinstance(value, bool) else None
        case ast.Comparison(operator, left, right):
            return compare(operator, number_or_other(left, message), number_or_other(right, message))
        case ast.Between(operand, low, high, negated):
            subject = number_or_other(operand, message)
            above = compare(">=", subject, number_or_other(low, message))
            below = compare("<=", subject, number_or_other(high, message))
            return negate(conjunction([above, below])) if negated else conjunction([above, below])
        case ast.In(operand, values, negated):
            subject = number_or_other(operand, message)
            found = disjunction([compare("=", subject, literal.value) for literal in values])
            return negate(found) if negated else found
        case ast.Like(operand, pattern, escape, negated):
            subject = number_or_other(operand, message)
            if not isinstance(subject, str):
                return None
            return like(subject, pattern, escape) is not negated
        case ast.IsNull(operand, negated):
            return (number_or_other(operand, message) is None) is not negated
        case ast.Not(operand):
            return negate(truth(operand, message))
        case ast.And(operands):
            return conjunction([truth(operand, message) for operand in operands])
        case ast.Or(operands):
            return disjunction([truth(operand, message) for operand in operands])


def negate(value: Truth) -> Truth:
    return {True: False, False: True, None: None}[value]


def conjunction(values: Sequence[Truth]) -> Truth:
    return False if False in values else None if None in values else True


def disjunction(values: Sequence[Truth]) -> Truth:
    return True if True in values else None if None in values else False


def number_or_other(node: ast.Value, message: Mapping[str, Any]) -> Any:
    """Compute a value; None is NULL."""
    match node:
        case ast.Literal(value):
            return value
        case ast.Attribute(name):
            return message.get(name)
        case ast.Sign(operator, operand):
            value = number_or_other(operand, message)
            return arithmetic(operator, 0 if isinstance(value, int) else -0.0, value) if operator == "-" else numeric(value)
        case ast.Arithmetic(operator, left, right):
            return arithmetic(operator, number_or_other(left, message), number_or_other(right, message))


def numeric(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def arithmetic(operator: str, left: Any, right: Any) -> int | float | None:
    a, b = numeric(left), numeric(right)
    if a is None or b is None:
        return None
    if operator == "/":
        return None if b == 0 else float(a) / float(b)
    result = a + b if operator == "+" else a - b if operator == "-" else a * b
    return None if isinstance(result, int) and not -(2**63) <= result < 2**63 else result


def kind(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", bytes: "bytes"}
    return names[type(value)]


def compare(operator: str, left: Any, right: Any) -> Truth:
    if left is None or right is None or kind(left) != kind(right):
        return None
    if kind(left) != "number":
        return None if operator not in {"=", "<>"} else (left == right) is (operator == "=")
    if math.isnan(left) or math.isnan(right):
        return operator == "<>"
    difference = exact(left) - exact(right) if math.isfinite(left) and math.isfinite(right) else rank(left) - rank(right)
    return {
        "=": difference == 0,
        "<>": difference != 0,
        "<": difference < 0,
        "<=": difference <= 0,
        ">": difference > 0,
        ">=": difference >= 0,
    }[operator]


def exact(number: float) -> Fraction:
    return Fraction(number)


def rank(number: float) -> Fraction:
    """Order infinities around everything finite."""
    return Fraction(0 if math.isfinite(number) else 1 if number > 0 else -1)


def like(text: str, pattern: str, escape: str | None) -> bool:
    """`reached[j]`: the pattern read so far matches the first j characters of the text."""
    reached = [True] + [False] * len(text)
    position = 0
    while position < len(pattern):
        wildcard, character = pattern[position] in "%_", pattern[position]
        following = pattern[position + 1 : position + 2]
        if character == escape and following and following in {"%", "_", escape}:
            wildcard, character = False, following
            position += 1
        position += 1
        if wildcard and character == "%":
            reached = [any(reached[: j + 1]) for j in range(len(text) + 1)]
        else:
            reached = [False] + [reached[j] and (wildcard or text[j] == character) for j in range(len(text))]
    return reached[-1]
