"""The normal form of a filter: a union of boxes.

A *box* maps keys to constraints, and a message lies in it when the value of every key satisfies its constraint. A message
matches the filter exactly when it lies in one of the boxes. Keys are

* attributes, `@name`: independent of each other, any value may occur with any other;
* arithmetic terms, `(a+b)`, whose value is a number or NULL;
* comparisons of two such values, `[a<=>b]`, whose value is made up: -1, 0 or 1 for numbers in that order, NaN if one of them is
  NaN, true or false for equal or different values of another kind, NULL if the kinds differ. `a < b` is then `[a<=>b] < 0`;
* conditions that were too costly to expand, `{...}`, whose value is true, false or NULL for unknown.

So everything is a constraint on some key, and only the keys that are no attributes depend on each other and on the attributes
in them. Boxes say nothing of that dependence (beyond the kinds it implies), which costs completeness and never soundness.

Keys are written with the types of their literals: `a / 2` and `a / 2.0` are different terms, although Python finds the two
trees equal. For that reason trees are never used as dictionary keys here.

NOT is pushed inwards by asking for the messages where a condition is *false* instead of those where it is *true*; in
three-valued logic this is exact. AND multiplies unions of boxes, which may explode; `_Builder` works to a budget and takes what
exceeds it as one key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from postroad.core.filters.algebra import constraints
from postroad.core.filters.algebra.constraints import (
    ANY_NUMBER,
    ANY_NUMBER_OR_NULL,
    EVERYTHING,
    FALSE,
    IS_FALSE,
    IS_NULL,
    IS_TRUE,
    NOT_NULL,
    NULL,
    TRUE,
    Constraint,
)
from postroad.core.filters.evaluate.one_message import constant
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
from postroad.core.filters.language.values import FLIPPED

BOXES_MAX: Final = 128
"""Boxes of one filter; a condition that needs more is kept as one key."""

EFFORT_MAX: Final = 10_000
"""Constraints handled while one filter is brought to normal form; tens of milliseconds. A long one counts by its parts."""

_PARTS_PER_EFFORT: Final = 8
_WALK_EFFORT: Final = 500

ATTRIBUTE_KEY: Final = "@"

Box: TypeAlias = Mapping[str, Constraint]
Boxes: TypeAlias = tuple[Box, ...]

_EVERY_MESSAGE: Final[Boxes] = ({},)
_NO_MESSAGE: Final[Boxes] = ()


class Normal(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A prepared filter. No box holds an empty constraint or one that allows everything.

    `is_independent` says that all keys are attributes, so that any combination of values in a box does occur; `is_plain` that
    all sets of strings are spans, so that every comparison is quick.
    """

    boxes: Boxes
    is_independent: bool
    is_plain: bool


def prepare(condition: Condition) -> Normal:
    """Bring a condition to normal form. Worth keeping: it costs far more than a comparison of two prepared filters."""
    boxes = _Builder().boxes(condition, wanted=True)
    return Normal(
        boxes,
        is_independent=all(key.startswith(ATTRIBUTE_KEY) for box in boxes for key in box),
        is_plain=all(constraint.is_plain for box in boxes for constraint in box.values()),
    )


class _Builder:
    """Builds the boxes of one filter within its budget."""

    def __init__(self) -> None:
        self._effort = EFFORT_MAX

    def boxes(self, condition: Condition, *, wanted: bool) -> Boxes:
        """Return the messages for which the condition is `wanted`, true or false."""
        match condition:
            case Comparison(operator, left, right):
                return self._comparison(operator, left, right, wanted=wanted)
            case And(operands) if wanted:
                return self._all_of(operands, wanted=True)
            case Or(operands) if not wanted:
                return self._all_of(operands, wanted=False)
            case And(operands) | Or(operands):
                return self._any_of(condition, operands, wanted=wanted)
            case Not(operand):
                return self.boxes(operand, wanted=not wanted)
            case Between(operand, low, high, negated):
                parts: tuple[Condition, ...] = (Comparison(">=", operand, low), Comparison("<=", operand, high))
                return self.boxes(And(parts), wanted=wanted is not negated)
            case In(operand, literals, negated):
                values = [literal.value for literal in literals]
                return self._of(operand, constraints.one_of(values, wanted=wanted is not negated))
            case Like(operand, pattern, escape, negated):
                return self._of(operand, constraints.like(pattern, escape, wanted=wanted is not negated))
            case IsNull(operand, negated):
                return self._of(operand, IS_NULL if wanted is not negated else NOT_NULL)
            case Literal() | Attribute():
                return self._of(condition, IS_TRUE if wanted else IS_FALSE)

    def _comparison(self, operator: ComparisonOperator, left: Value, right: Value, *, wanted: bool) -> Boxes:
        left, right = _fold(left), _fold(right)
        if isinstance(left, Literal):
            operator, left, right = FLIPPED[operator], right, left
        if isinstance(right, Literal):
            return self._of(left, constraints.compared_with(operator, right.value, wanted=wanted))
        left_text, right_text = value_text(left), value_text(right)
        if left_text > right_text:
            operator, left_text, right_text = FLIPPED[operator], right_text, left_text
        constraint = _pair(operator, wanted=wanted)
        implied = NOT_NULL if constraint.flags & (TRUE | FALSE) else ANY_NUMBER
        box = {f"[{left_text}<=>{right_text}]": constraint}
        for operand in (left, right):
            for key, part in _imply(operand, implied):
                box[key] = part if key not in box else constraints.intersection([box[key], part])
        return (box,)

    def _of(self, operand: Value, constraint: Constraint) -> Boxes:
        """Return the messages for which the operand's value satisfies a constraint."""
        operand = _fold(operand)
        if isinstance(operand, Literal):
            return _EVERY_MESSAGE if constraints.contains(constraint, operand.value) else _NO_MESSAGE
        if not isinstance(operand, Attribute):
            constraint = constraints.intersection([constraint, ANY_NUMBER_OR_NULL])
        if self._is_empty(constraint):
            return _NO_MESSAGE
        if isinstance(operand, Attribute):
            return ({ATTRIBUTE_KEY + operand.name: constraint},)
        implied = {} if constraint.flags & NULL else dict(_imply(operand, ANY_NUMBER))
        return ({value_text(operand): constraint, **implied},)

    def _any_of(self, condition: Condition, operands: Sequence[Condition], *, wanted: bool) -> Boxes:
        """Unite; alternatives on one key alone become one constraint."""
        alternatives: list[Boxes] = []
        for operand in operands:  # no comprehension, here and below: it would take a frame of the stack for each level
            alternatives.append(self.boxes(operand, wanted=wanted))  # noqa: PERF401
        single: dict[str, list[Constraint]] = {}
        rest: list[Box] = []
        for box in (box for boxes in alternatives for box in boxes):
            if not box:
                return _EVERY_MESSAGE
            if len(box) == 1:
                for key, constraint in box.items():
                    single.setdefault(key, []).append(constraint)
            else:
                rest.append(box)
        for key, parts in single.items():
            self._effort -= sum(part.size for part in parts) // _PARTS_PER_EFFORT
            merged = parts[0] if len(parts) == 1 else constraints.union(parts)
            if merged == EVERYTHING:
                return _EVERY_MESSAGE
            rest.append({key: merged})
        self._effort -= sum(map(len, rest))
        return tuple(rest) if len(rest) <= BOXES_MAX and self._effort >= 0 else _as_one_key(condition, wanted=wanted)

    def _all_of(self, operands: Iterable[Condition], *, wanted: bool) -> Boxes:
        """Intersect: the operands of one box each and those that would explode, all at once; then multiply by the others."""
        pairs: list[tuple[Condition, Boxes]] = []
        for operand in operands:
            pairs.append((operand, self.boxes(operand, wanted=wanted)))  # noqa: PERF401
        if not all(boxes for _, boxes in pairs):
            return _NO_MESSAGE
        single = [boxes[0] for _, boxes in pairs if len(boxes) == 1]
        if len(single) == len(pairs):
            return self._product(_EVERY_MESSAGE, single)
        factors: list[Boxes] = []
        count, weight = 1, len(pairs) + sum(map(_weight, single))
        for operand, boxes in sorted((pair for pair in pairs if len(pair[1]) > 1), key=lambda pair: len(pair[1])):
            count_after = count * len(boxes)
            weight_after = weight * len(boxes) + count * sum(map(_weight, boxes))
            if count_after <= BOXES_MAX and weight_after <= self._effort:
                count, weight = count_after, weight_after
                factors.append(boxes)
            else:
                single.append(_as_one_key(operand, wanted=wanted)[0])
        result = self._product(_EVERY_MESSAGE, single)
        for boxes in factors:
            result = tuple(box for part in boxes for box in self._product(result, [part]))
        return result

    def _product(self, boxes: Boxes, others: Sequence[Box]) -> Boxes:
        """Intersect each of the boxes with all the others; drop what is empty."""
        produced = (self._intersection([box, *others]) for box in boxes)
        return tuple(box for box in produced if box is not None)

    def _intersection(self, boxes: Sequence[Box]) -> Box | None:
        """Intersect boxes; None if nothing is left. Keys in only one of them stay as they are."""
        result: dict[str, Constraint] = {}
        shared: dict[str, list[Constraint]] = {}
        for box in boxes:
            for key, constraint in box.items():
                if key in result:
                    shared.setdefault(key, [result[key]]).append(constraint)
                else:
                    result[key] = constraint
        self._effort -= len(result)
        for key, parts in shared.items():
            self._effort -= sum(part.size for part in parts) // _PARTS_PER_EFFORT
            result[key] = constraints.intersection(parts)
            if self._is_empty(result[key]):
                return None
        return result

    def _is_empty(self, constraint: Constraint) -> bool:
        if constraint.flags or constraint.numbers:
            return False
        if constraint.is_plain or self._effort < 0:
            return not constraint.strings
        self._effort -= _WALK_EFFORT
        return constraints.is_empty(constraint) is True


def _weight(box: Box) -> int:
    return sum(1 + constraint.size // _PARTS_PER_EFFORT for constraint in box.values())


def _as_one_key(condition: Condition, *, wanted: bool) -> Boxes:
    return ({"{" + condition_text(condition) + "}": IS_TRUE if wanted else IS_FALSE},)


def _pair(operator: ComparisonOperator, *, wanted: bool) -> Constraint:
    """Return where `a <operator> b` is true or false, on the made-up value of `[a<=>b]`."""
    constraint = constraints.compared_with(operator, 0, wanted=wanted)
    if operator in {"=", "<>"}:
        return constraints.union([constraint, IS_TRUE if wanted is (operator == "=") else IS_FALSE])
    return constraint


def _imply(value: Value, constraint: Constraint) -> Iterator[tuple[str, Constraint]]:
    """Yield what the attributes of a value must be for it to satisfy a constraint that excludes NULL."""
    match value:
        case Attribute(name):
            yield ATTRIBUTE_KEY + name, constraint
        case Sign(_, operand):
            yield from _imply(operand, ANY_NUMBER)
        case Arithmetic(_, left, right):
            yield from _imply(left, ANY_NUMBER)
            yield from _imply(right, ANY_NUMBER)
        case Literal():
            pass


def _fold(value: Value) -> Value:
    """Replace an expression without attributes by its value, where that is not NULL."""
    if isinstance(value, Sign | Arithmetic):
        folded = constant(value)
        if folded is not None and isinstance(folded[0], int | float):
            return Literal(folded[0])
    return value


def value_text(value: Value) -> str:
    """Write a value so that equal texts mean equal values in every message. `a+b` and `b+a` are written alike."""
    match value:
        case Literal(literal):
            return repr(literal)
        case Attribute(name):
            return f"@{name!r}"
        case Sign(operator, operand):
            return f"({operator}{value_text(operand)})"
        case Arithmetic(operator, left, right):
            texts = [value_text(left), value_text(right)]
            if operator in {"+", "*"}:
                texts.sort()
            return f"({texts[0]}{operator}{texts[1]})"


def condition_text(condition: Condition) -> str:
    """Write a condition so that equal texts mean the same filter, whatever types its literals have."""
    match condition:
        case Literal() | Attribute():
            return value_text(condition)
        case Comparison(operator, left, right):
            return f"({value_text(left)} {operator} {value_text(right)})"
        case Between(operand, low, high, negated):
            return f"({value_text(operand)} {negated:d} BETWEEN {value_text(low)} {value_text(high)})"
        case In(operand, values, negated):
            return f"({value_text(operand)} {negated:d} IN {' '.join(map(value_text, values))})"
        case Like(operand, pattern, escape, negated):
            return f"({value_text(operand)} {negated:d} LIKE {pattern!r} {escape!r})"
        case IsNull(operand, negated):
            return f"({value_text(operand)} {negated:d} NULL)"
        case Not(operand):
            return f"(NOT {condition_text(operand)})"
        case And(operands):
            return f"(AND {' '.join(map(condition_text, operands))})"
        case Or(operands):
            return f"(OR {' '.join(map(condition_text, operands))})"
