"""Short ways to write syntax trees in tests, without a parser."""

from __future__ import annotations

from typing import cast

from postroad.core.filters.language.ast import (
    And,
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
    Value,
)

Plain = bool | int | float | str


def compare(name: str | Value, operator: str, value: Plain | Value) -> Comparison:
    """`compare("x", "<", 5)`; a string on the right is a literal, on the left an attribute."""
    return Comparison(cast("ComparisonOperator", operator), _attribute(name), _literal(value))


def eq(name: str | Value, value: Plain | Value) -> Comparison:
    return compare(name, "=", value)


def ne(name: str | Value, value: Plain | Value) -> Comparison:
    return compare(name, "<>", value)


def lt(name: str | Value, value: Plain | Value) -> Comparison:
    return compare(name, "<", value)


def le(name: str | Value, value: Plain | Value) -> Comparison:
    return compare(name, "<=", value)


def gt(name: str | Value, value: Plain | Value) -> Comparison:
    return compare(name, ">", value)


def ge(name: str | Value, value: Plain | Value) -> Comparison:
    return compare(name, ">=", value)


def between(name: str | Value, low: Plain | Value, high: Plain | Value, *, negated: bool = False) -> Between:
    return Between(_attribute(name), _literal(low), _literal(high), negated)


def one_of(name: str | Value, *values: Plain, negated: bool = False) -> In:
    return In(_attribute(name), tuple(map(Literal, values)), negated)


def like(name: str | Value, pattern: str, escape: str | None = None, *, negated: bool = False) -> Like:
    return Like(_attribute(name), pattern, escape, negated)


def missing(name: str | Value) -> IsNull:
    return IsNull(_attribute(name))


def present(name: str | Value) -> IsNull:
    return IsNull(_attribute(name), negated=True)


def both(*operands: Condition) -> And:
    return And(operands)


def either(*operands: Condition) -> Or:
    return Or(operands)


def negation(operand: Condition) -> Not:
    return Not(operand)


def _attribute(name: str | Value) -> Value:
    return Attribute(name) if isinstance(name, str) else name


def _literal(value: Plain | Value) -> Value:
    return Literal(value) if isinstance(value, bool | int | float | str) else value
