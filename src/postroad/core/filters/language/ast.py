"""The syntax tree of the filter language, after parsing and static checks.

Two sorts of node: *values* (`Literal`, `Attribute`, `Sign`, `Arithmetic`) and *conditions* (the rest). A `Literal` of a bool
and an `Attribute` are both: `active AND price > 1` uses an attribute as a condition, and it holds only if its value is the
boolean true (a value of another kind is unknown).

Trees are immutable and compare by structure. And/Or are flat: the parser never nests an And directly in an And.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf
from typing import TypeAlias

ComparisonOperator: TypeAlias = OneOf["=", "<>", "<", "<=", ">", ">="]
ArithmeticOperator: TypeAlias = OneOf["+", "-", "*", "/"]


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. Integers fit in int64, floats are finite; there is no NULL literal."""

    value: bool | int | float | str


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value of a message's attribute; NULL when it is missing."""

    name: str


@dataclass(frozen=True, slots=True)
class Sign:
    """Unary plus or minus. NULL unless the operand is a number."""

    operator: OneOf["+", "-"]
    operand: Value


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """NULL unless both operands are numbers, on division by zero, and when an integer result leaves int64.

    `+ - *` of two integers give an integer; everything else, and division always, is IEEE double.
    """

    operator: ArithmeticOperator
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Comparison:
    """Unknown when either side is NULL or the kinds differ; order comparisons only between numbers."""

    operator: ComparisonOperator
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Between:
    """`low <= operand AND operand <= high`, in three-valued logic; `negated` is NOT of that."""

    operand: Value
    low: Value
    high: Value
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In:
    """`operand = v1 OR operand = v2 ...`; JMS asks for string literals, we also accept numbers and booleans."""

    operand: Value
    values: tuple[Literal, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """`_` is one character, `%` any run of them, `escape` makes the next one literal. Unknown unless the operand is a string."""

    operand: Value
    pattern: str
    escape: str | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """Never unknown. True (or false when `negated`) when the operand is NULL."""

    operand: Value
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    operand: Condition


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Condition, ...]


Value: TypeAlias = Literal | Attribute | Sign | Arithmetic
Condition: TypeAlias = Literal | Attribute | Comparison | Between | In | Like | IsNull | Not | And | Or
