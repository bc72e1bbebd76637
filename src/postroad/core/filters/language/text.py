"""A tree as text: canonical keywords, single blanks, no parenthesis that is not needed.

For every tree the parser makes, parsing the text gives the tree back, within the limits that the tree was parsed with: a filter
that one broker accepted can be passed on. Hence no parenthesis that the original text cannot have had, and the last check of
`parser.parse`.
"""

from __future__ import annotations

from typing import Final

from postroad.core.filters.language.ast import (
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
from postroad.core.filters.language.lexer import is_plain_name

_SUM: Final = frozenset({"+", "-"})


def to_text(condition: Condition) -> str:
    match condition:
        case Literal() | Attribute():
            return value_text(condition)
        case Comparison("=", Sign("+", Attribute()) as signed, Literal(value)) if value is True:
            return value_text(signed)
        case Comparison(operator, left, right):
            return f"{value_text(left)} {operator} {value_text(right)}"
        case Between(operand, low, high, negated):
            return f"{value_text(operand)}{_not(negated)} BETWEEN {value_text(low)} AND {value_text(high)}"
        case In(operand, values, negated):
            return f"{value_text(operand)}{_not(negated)} IN ({', '.join(map(value_text, values))})"
        case Like(operand, pattern, escape, negated):
            suffix = "" if escape is None else f" ESCAPE {_quote(escape)}"
            return f"{value_text(operand)}{_not(negated)} LIKE {_quote(pattern)}{suffix}"
        case IsNull(operand, negated):
            return f"{value_text(operand)} IS{_not(negated)} NULL"
        case Not(operand):
            inner = to_text(operand)
            return f"NOT ({inner})" if isinstance(operand, And | Or) else f"NOT {inner}"
        case And(operands):
            return " AND ".join(f"({to_text(each)})" if isinstance(each, Or) else to_text(each) for each in operands)
        case Or(operands):
            return " OR ".join(map(to_text, operands))


def value_text(value: Value) -> str:
    match value:
        case Literal():
            return _literal(value.value)
        case Attribute(name):
            return name if is_plain_name(name) else '"' + name.replace('"', '""') + '"'
        case Sign(operator, operand):
            text = f"({value_text(operand)})" if isinstance(operand, Arithmetic) else value_text(operand)
            return f"{operator}{text}" if text[0] not in _SUM else f"{operator} {text}"  # `--` starts a comment in SQL
        case Arithmetic(operator, left, right):
            return f"{_operand(left, operator, right=False)} {operator} {_operand(right, operator, right=True)}"


def _literal(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return _quote(value) if isinstance(value, str) else repr(value)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _not(negated: bool) -> str:
    return " NOT" if negated else ""


def _operand(value: Value, operator: str, *, right: bool) -> str:
    """Put a side of an operator in parentheses if it would otherwise be read as part of something else."""
    text = value_text(value)
    if not isinstance(value, Arithmetic):
        return text
    looser = value.operator in _SUM and operator not in _SUM
    same = (value.operator in _SUM) == (operator in _SUM)
    return f"({text})" if looser or (right and same) else text
