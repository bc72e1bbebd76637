"""What the values of a filter are, and what comparing and computing with them gives.

Kinds: boolean, number (int and float are one kind), string, bytes. NULL is Python's None, and so is the truth value *unknown*.

- Values of different kinds do not compare: unknown. Order (`< <= > >=`) is defined for numbers only. An int and a float compare
  by exact value, however large: Python does that by itself, the column twin is `vectors.compare`.
- NaN follows IEEE 754: it equals nothing, and `<>` holds between it and every number.
- `+ - *` of two ints is an int, or NULL when it leaves int64; with a float it is IEEE double. `/` is IEEE double division also
  between two ints (`5 / 2` is 2.5, as in every selector implementation we compared with), and NULL when the divisor is zero.

Values here are of exactly these types; `plain` brings a message's attributes to them. These functions are the one place where the
rules are written for single values; `scalar` and constant folding call them.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeAlias

from postroad.core.filters.language.ast import ArithmeticOperator, ComparisonOperator
from postroad.errors import InvalidValueError
from postroad.types import AttributeValue

Truth: TypeAlias = bool | None
Scalar: TypeAlias = AttributeValue | None

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1


class Kind(Enum):
    BOOLEAN = "boolean"
    NUMBER = "number"
    STRING = "string"
    BYTES = "bytes"


KINDS: Final[dict[type, Kind]] = {
    bool: Kind.BOOLEAN,
    int: Kind.NUMBER,
    float: Kind.NUMBER,
    str: Kind.STRING,
    bytes: Kind.BYTES,
}

COMPARE: Final[dict[ComparisonOperator, Callable[[Any, Any], bool]]] = {
    "=": python.eq,
    "<>": python.ne,
    "<": python.lt,
    "<=": python.le,
    ">": python.gt,
    ">=": python.ge,
}
FLIPPED: Final[dict[ComparisonOperator, ComparisonOperator]] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""`a op b` is `b FLIPPED[op] a`."""
EQUALITY: Final = frozenset({"=", "<>"})


def kind_of(value: AttributeValue) -> Kind:
    return KINDS[type(value)]


def plain(value: object) -> Scalar:
    """Return an attribute as one of our own types: a subclass (an IntEnum, a numpy float) becomes its base."""
    if value is None or type(value) in KINDS:
        return value  # type: ignore[return-value] # its type is one of ours
    for base in KINDS:
        if isinstance(value, base):
            return base(value)  # type: ignore[no-any-return] # each of ours takes one of its own
    raise InvalidValueError(f"an attribute is a bool, int, float, str or bytes, not a {type(value).__name__}")


def compare(operator: ComparisonOperator, left: Scalar, right: Scalar) -> Truth:
    if left is None or right is None:
        return None
    kind = kind_of(left)
    if kind is not kind_of(right) or (kind is not Kind.NUMBER and operator not in EQUALITY):
        return None
    return COMPARE[operator](left, right)


def sign(operator: str, value: Scalar) -> Scalar:
    if value is None or kind_of(value) is not Kind.NUMBER:
        return None
    return value if operator == "+" else _in_range(-value)  # type: ignore[operator] # a number by its kind


def arithmetic(operator: ArithmeticOperator, left: Scalar, right: Scalar) -> Scalar:
    if left is None or right is None or kind_of(left) is not Kind.NUMBER or kind_of(right) is not Kind.NUMBER:
        return None
    try:
        return _compute(operator, left, right)  # type: ignore[arg-type] # numbers by their kinds
    except OverflowError:  # an attribute far beyond int64, which no batch can hold, met a float
        return None


def _compute(operator: ArithmeticOperator, left: float, right: float) -> float | None:
    match operator:
        case "+":
            return _in_range(left + right)
        case "-":
            return _in_range(left - right)
        case "*":
            return _in_range(left * right)
        case "/":
            return None if right == 0 else float(left) / float(right)


def _in_range(number: float) -> float | None:
    return None if isinstance(number, int) and not INT64_MIN <= number <= INT64_MAX else number
