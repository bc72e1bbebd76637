"""Tokens to a syntax tree: precedence climbing with static checks.

From loose to tight: OR, AND, NOT, the predicates (`= <> < <= > >=`, IS NULL, BETWEEN, LIKE, IN), `+ -`, `* /`, signs. So
`NOT a = 1` is `NOT (a = 1)`. Parentheses may hold a condition or a value; which one is known only afterwards, so one function
parses both and every use checks what it got.

What is checked here, so that a mistake is an error and not a filter that never matches:

- conditions stand where conditions belong, values where values belong (`3`, `-a` and `(a = 1) + 2` are errors);
- an order comparison or BETWEEN with a string or boolean literal; `=` or `<>` between a literal and something that can only be of
  another kind: `1 = 'a'`, but also `order-type = 'limit'`, which subtracts; LIKE on a number;
- arithmetic and signs on string or boolean literals; NULL outside IS NULL.

What an attribute holds is known only with the message, so nothing is assumed of it.

Three things are normalised on the way: AND in AND and OR in OR are flattened; a sign before a number becomes part of the number;
a LIKE pattern is rewritten by `like.canonical`, so that whoever reads the tree meets one way to write each pattern.
`+a` as a condition is legal in selectors and never true (a signed value is a number or NULL); it becomes `+a = TRUE`.
"""

from __future__ import annotations

from typing import Final, NoReturn, TypeAlias, cast

from postroad.core.filters.evaluate import like
from postroad.core.filters.language.ast import (
    And,
    Arithmetic,
    ArithmeticOperator,
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
from postroad.core.filters.language.lexer import END, FLOAT, INTEGER, KEYWORDS, NAME, STRING, tokenize
from postroad.core.filters.language.limits import DEFAULT_LIMITS, FilterLimits
from postroad.core.filters.language.text import to_text
from postroad.core.filters.language.values import EQUALITY, INT64_MAX, KINDS, sign
from postroad.errors import FilterLimitError, FilterSyntaxError

Node: TypeAlias = Value | Condition

_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGN = range(1, 8)
_POWER: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "IS", "BETWEEN", "LIKE", "IN", "NOT"), _PREDICATE),
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
}
_READY: Final = frozenset({STRING, FLOAT})
_BOOLEANS: Final = {"TRUE": True, "FALSE": False}
_GROWTH_MAX: Final = 8
"""More than how much longer the canonical text can be: `a<9e15` is `a < 9000000000000000.0`, a factor of three to four."""
_COMPARISONS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})


def parse(text: str, limits: FilterLimits = DEFAULT_LIMITS) -> Condition:
    """Parse a filter; a blank one matches everything and is TRUE."""
    parser = _Parser(text, limits)
    if parser.kinds[0] == END:
        return Literal(True)
    node = parser.expression(0, 0)
    if parser.kinds[parser.index] != END:
        parser.fail_after_expression()
    condition = parser.condition(node, parser.positions[0])
    if len(text) > limits.length_max // _GROWTH_MAX and len(to_text(condition)) > limits.length_max:
        raise FilterLimitError(f"written out in full a filter has at most {limits.length_max} characters", text, len(text))
    return condition


class _Parser:
    """`index` is the next token; `height` is the number of arithmetic levels in the value returned last."""

    __slots__ = ("height", "index", "kinds", "limits", "positions", "text", "values")

    def __init__(self, text: str, limits: FilterLimits) -> None:
        self.text = text
        self.limits = limits
        self.kinds, self.values, self.positions = tokenize(text, limits)
        self.index = 0
        self.height = 0

    def expression(self, power: int, depth: int) -> Node:
        """Parse the longest expression whose operators all bind tighter than `power`."""
        kinds = self.kinds
        start = self.positions[self.index]
        kind = kinds[self.index]
        if kind == "(":  # not in a function of its own: at most five frames for each level of nesting
            self.nest(depth)
            self.index += 1
            # Inside a comparison or a sum a parenthesis can only hold a value.
            left = self.expression(0 if power < _PREDICATE else _PREDICATE, depth + 1)
            self.close(start)
        else:
            left = self.prefix(kind, power, depth)
        while True:
            kind = kinds[self.index]
            binding = _POWER.get(kind, 0)
            if binding <= power:
                return left
            if binding >= _SUM:
                left = self.arithmetic(kind, binding, left, start, depth)
            elif binding == _PREDICATE:
                left = self.predicate(self.value(left, start), start, depth)
            else:
                left = self.join(kind, binding, left, start, depth)

    def prefix(self, kind: str, power: int, depth: int) -> Node:
        """Parse a name or a literal, or NOT or a sign with its operand."""
        index = self.index
        self.index = index + 1
        self.height = 0
        if kind == NAME:
            return Attribute(cast("str", self.values[index]))
        if kind in _READY:
            return Literal(self.values[index])
        if kind == INTEGER:
            return Literal(self.integer(index, negative=False))
        if kind in _BOOLEANS:
            return Literal(_BOOLEANS[kind])
        if kind == "NOT" and power < _PREDICATE:
            self.nest(depth)
            start = self.positions[self.index]
            return Not(self.condition(self.expression(_NOT, depth + 1), start))
        if kind in {"+", "-"}:
            self.nest(depth)
            return self.signed(kind, depth)
        self.index = index
        return self.fail_at_start()

    def nest(self, depth: int) -> None:
        if depth >= self.limits.depth_max:
            raise FilterLimitError(f"a filter nests at most {self.limits.depth_max} deep", self.text, self.positions[self.index])

    def close(self, opening: int) -> None:
        kind = self.kinds[self.index]
        if kind == END:
            self.fail("the parenthesis is never closed", opening)
        if kind in _POWER:
            self.fail("a condition stands where a value is needed; join conditions with AND or OR", opening)
        if kind != ")":
            self.fail_after_expression()
        self.index += 1

    def signed(self, operator: str, depth: int) -> Value:
        start = self.positions[self.index]
        if operator == "-" and self.kinds[self.index] == INTEGER:
            self.index += 1
            return Literal(self.integer(self.index - 1, negative=True))
        operand = self.number(self.value(self.expression(_SIGN, depth + 1), start), start)
        if isinstance(operand, Literal):
            folded = sign(operator, operand.value)
            if folded is not None:
                return Literal(cast("float", folded))
        self.raise_height(self.height, start)
        return Sign("+" if operator == "+" else "-", operand)

    def arithmetic(self, operator: str, binding: int, left: Node, start: int, depth: int) -> Value:
        height = self.height
        left_value = self.number(self.value(left, start), start)
        self.index += 1
        right_start = self.positions[self.index]
        right = self.number(self.value(self.expression(binding, depth), right_start), right_start)
        self.raise_height(max(height, self.height), right_start)
        return Arithmetic(cast("ArithmeticOperator", operator), left_value, right)

    def raise_height(self, height: int, position: int) -> None:
        self.height = height + 1
        if self.height > self.limits.depth_max:
            raise FilterLimitError(f"an expression chains at most {self.limits.depth_max} operators", self.text, position)

    def join(self, kind: str, binding: int, left: Node, start: int, depth: int) -> Condition:
        """Collect a whole run of AND (or of OR) into one flat node."""
        join = And if kind == "AND" else Or
        operands: list[Condition] = []
        node = self.condition(left, start)
        while True:
            if isinstance(node, join):
                operands.extend(node.operands)
            else:
                operands.append(node)
            if self.kinds[self.index] != kind:
                return join(tuple(operands))
            self.index += 1
            start = self.positions[self.index]
            node = self.condition(self.expression(binding, depth), start)

    def predicate(self, left: Value, start: int, depth: int) -> Condition:
        kind = self.kinds[self.index]
        self.index += 1
        if kind in _COMPARISONS:
            return self.comparison(cast("ComparisonOperator", kind), left, start, depth)
        if kind == "IS":
            negated = self.accept("NOT")
            self.expect("NULL", "IS is followed by NULL or NOT NULL")
            return IsNull(left, negated)
        negated = kind == "NOT"
        if negated:
            kind = self.kinds[self.index]
            self.index += 1
        if kind == "BETWEEN":
            return self.between(left, start, depth, negated)
        if kind == "LIKE":
            return self.like(left, start, negated)
        if kind == "IN":
            return self.membership(left, negated)
        self.index -= 1
        return self.fail_here("NOT after a value is followed by BETWEEN, LIKE or IN")

    def comparison(self, operator: ComparisonOperator, left: Value, start: int, depth: int) -> Comparison:
        right_start = self.positions[self.index]
        right = self.value(self.expression(_PREDICATE, depth), right_start)
        if operator not in EQUALITY:
            self.ordered(left, start)
            self.ordered(right, right_start)
        else:
            self.comparable(left, right, right_start)
        return Comparison(operator, left, right)

    def comparable(self, left: Value, right: Value, position: int) -> None:
        kinds = _kind(left), _kind(right)
        if None in kinds or kinds[0] == kinds[1]:
            return
        subtraction = any(isinstance(side, Arithmetic) and side.operator == "-" for side in (left, right))
        hint = " (an attribute name with a hyphen is written in double quotes)" if subtraction else ""
        self.fail(f"a {kinds[0]} and a {kinds[1]} are neither equal nor unequal{hint}", position)

    def between(self, operand: Value, start: int, depth: int, negated: bool) -> Between:
        low_start = self.positions[self.index]
        low = self.value(self.expression(_PREDICATE, depth), low_start)
        self.expect("AND", "BETWEEN needs two bounds: x BETWEEN low AND high")
        high_start = self.positions[self.index]
        high = self.value(self.expression(_PREDICATE, depth), high_start)
        for value, position in ((operand, start), (low, low_start), (high, high_start)):
            self.ordered(value, position)
        return Between(operand, low, high, negated)

    def like(self, operand: Value, start: int, negated: bool) -> Like:
        if _kind(operand) not in {None, "string"}:
            self.fail(f"LIKE matches strings, not a {_kind(operand)}", start)
        pattern_start = self.positions[self.index]
        pattern = self.expect_string("LIKE is followed by a pattern in single quotes")
        escape = None
        if self.accept("ESCAPE"):
            position = self.positions[self.index]
            escape = self.expect_string("ESCAPE is followed by a character in single quotes")
            if len(escape) != 1:
                self.fail(f"ESCAPE needs exactly one character, not {len(escape)}", position)
        text, escape, length = like.canonical(pattern, escape)
        if length > self.limits.like_length_max:
            reason = f"a LIKE pattern has at most {self.limits.like_length_max} characters; this one has {length}"
            raise FilterLimitError(reason, self.text, pattern_start)
        return Like(operand, text, escape, negated)

    def membership(self, operand: Value, negated: bool) -> In:
        self.expect("(", "IN is followed by a list: x IN ('a', 'b')")
        if self.kinds[self.index] == ")":
            self.fail_here("IN needs at least one value")
        values = [self.listed()]
        while self.accept(","):
            if len(values) == self.limits.in_values_max:
                reason = f"an IN list has at most {self.limits.in_values_max} values"
                raise FilterLimitError(reason, self.text, self.positions[self.index])
            values.append(self.listed())
        self.expect(")", "the values of an IN list are separated by commas and closed by a parenthesis")
        return In(operand, tuple(values), negated)

    def listed(self) -> Literal:
        """Parse one value of an IN list: a literal, with a sign if it is a number."""
        kind = self.kinds[self.index]
        operator = kind if kind in {"+", "-"} else ""
        self.index += len(operator)
        index, kind = self.index, self.kinds[self.index]
        self.index += 1
        if kind == INTEGER:
            return Literal(self.integer(index, negative=operator == "-"))
        if kind == FLOAT:
            return Literal(cast("float", sign(operator or "+", self.values[index])))
        if not operator:
            if kind == STRING:
                return Literal(self.values[index])
            if kind in _BOOLEANS:
                return Literal(_BOOLEANS[kind])
        self.index = index
        return self.fail_here("an IN list holds literals only: strings, numbers, TRUE and FALSE")

    def integer(self, index: int, *, negative: bool) -> int:
        number = cast("int", self.values[index])
        if negative:
            return -number
        if number > INT64_MAX:
            self.fail("the integer does not fit in 64 bits", self.positions[index])
        return number

    def value(self, node: Node, position: int) -> Value:
        if isinstance(node, Attribute | Literal | Arithmetic | Sign):
            return node
        return self.fail("a condition stands where a value is needed; join conditions with AND or OR", position)

    def condition(self, node: Node, position: int) -> Condition:
        if isinstance(node, Sign) and node.operator == "+" and isinstance(node.operand, Attribute):
            return Comparison("=", node, Literal(True))
        if isinstance(node, Arithmetic | Sign):
            self.fail("a number stands where a condition is needed; compare it with something", position)
        if isinstance(node, Literal) and not isinstance(node.value, bool):
            self.fail(f"a {_kind(node)} stands where a condition is needed; compare it with something", position)
        return node

    def number(self, value: Value, position: int) -> Value:
        if _kind(value) not in {None, "number"}:
            self.fail(f"arithmetic needs numbers, not a {_kind(value)}", position)
        return value

    def ordered(self, value: Value, position: int) -> None:
        if _kind(value) not in {None, "number"}:
            self.fail(f"only numbers have an order, a {_kind(value)} compares by = and <> only", position)

    def accept(self, kind: str) -> bool:
        found = self.kinds[self.index] == kind
        self.index += found
        return found

    def expect(self, kind: str, reason: str) -> None:
        if not self.accept(kind):
            self.fail_here(reason)

    def expect_string(self, reason: str) -> str:
        self.expect(STRING, reason)
        return cast("str", self.values[self.index - 1])

    def fail(self, reason: str, position: int) -> NoReturn:
        raise FilterSyntaxError(reason, self.text, position)

    def fail_here(self, reason: str) -> NoReturn:
        self.fail(f"{reason} (found {self.found()})", self.positions[self.index])

    def fail_at_start(self) -> NoReturn:
        """Report a token that cannot start an expression."""
        kind = self.kinds[self.index]
        if kind == "NULL":
            self.fail("NULL can only be tested, by IS NULL or IS NOT NULL", self.positions[self.index])
        if kind in KEYWORDS:
            reason = (
                f'a value is expected, not the keyword {kind} (an attribute of that name is written "{self.values[self.index]}")'
            )
            self.fail(reason, self.positions[self.index])
        if kind == "=" and self.index and self.kinds[self.index - 1] == "=":
            self.fail("equality is written with one =", self.positions[self.index])
        self.fail_here("a value or a condition is expected")

    def fail_after_expression(self) -> NoReturn:
        """Report a token that cannot follow a complete expression."""
        if self.kinds[self.index] == "(" and self.kinds[self.index - 1] == NAME:
            self.fail(f"there are no functions, so {self.found(-1)} cannot be called", self.positions[self.index - 1])
        self.fail_here("an operator, AND, OR or the end is expected")

    def found(self, offset: int = 0) -> str:
        kind, value = self.kinds[self.index + offset], self.values[self.index + offset]
        if kind == END:
            return "the end of the filter"
        shown = repr(value) if isinstance(value, str) else str(value)
        return shown if len(shown) <= 40 else shown[:40] + "..."


def _kind(value: Value) -> str | None:
    """Return the kind a value has in every message, or None. A plus promises nothing: selectors elsewhere ignore it."""
    if isinstance(value, Literal):
        return KINDS[type(value.value)].value
    return "number" if isinstance(value, Arithmetic) or (isinstance(value, Sign) and value.operator == "-") else None
