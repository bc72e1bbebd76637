"""The public face of the filter language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from postroad.core.batch.batch import Batch
from postroad.core.filters.algebra.covering import covers, overlaps
from postroad.core.filters.algebra.hulls import Hull, hulls_of, weight_of
from postroad.core.filters.algebra.meaning import Key, meaning
from postroad.core.filters.algebra.normal_form import Normal, prepare
from postroad.core.filters.evaluate.bitmaps import Mask
from postroad.core.filters.evaluate.one_message import Test, compile_test
from postroad.core.filters.evaluate.whole_batch import Columns, Select, compile_select, select
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
from postroad.core.filters.language.limits import DEFAULT_LIMITS, FilterLimits
from postroad.core.filters.language.parser import parse
from postroad.core.filters.language.text import to_text
from postroad.errors import InvalidValueError
from postroad.types import AttributeValue

LIKE_CONDITIONS: Final = 4
CHARACTER_BYTES: Final = 8
PART_BYTES: Final = 800
LIKE_PARTS: Final = 6


class Filter:
    """A condition on the attributes of messages, such as `price > 10 AND symbol IN ('A', 'B')`.

    Immutable. The language is described in `docs/reference/filters.md`; a text that does not follow it is a
    `FilterSyntaxError`. A blank filter matches everything. Filters that differ only in ways that cannot matter (the order of
    AND, `NOT a = 1` for `a <> 1`) are equal and have equal hashes.

    ```python
    wanted = postroad.Filter("price > 10 AND symbol IN ('A', 'B')")
    print(wanted.matches({"price": 12.5, "symbol": "A"}), wanted.covers(postroad.Filter("price > 20 AND symbol = 'A'")))
    ```
    """

    __slots__ = (
        "_attributes",
        "_conditions",
        "_hash",
        "_hulls",
        "_key",
        "_normal",
        "_select",
        "_size",
        "_test",
        "_text",
        "_weight",
        "condition",
        "length",
    )

    condition: Condition

    def __init__(self, text: str, *, limits: FilterLimits = DEFAULT_LIMITS) -> None:
        if not isinstance(text, str):
            raise InvalidValueError(f"a filter is a str, not {type(text).__name__}")
        self.condition = parse(text, limits)
        self.length = len(text)
        self._conditions = -1
        self._size = 0
        self._test: Test | None = None
        self._select: Select | None = None
        self._attributes: frozenset[str] | None = None
        self._key: Key | None = None
        self._normal: Normal | None = None
        self._hulls: tuple[Hull, ...] | None = None
        self._weight = 0
        self._hash: int | None = None
        self._text: str | None = None

    @classmethod
    def from_condition(cls, condition: Condition, *, limits: FilterLimits = DEFAULT_LIMITS) -> Self:
        """Make a filter from a syntax tree, with the checks and limits that its text would meet."""
        return cls(to_text(condition), limits=limits)

    def matches(self, attributes: Mapping[str, AttributeValue | None]) -> bool | None:
        """Evaluate for one message: True, False, or None for unknown. Only True is a match."""
        return self.test(attributes)

    def evaluate(self, batch: Batch) -> Mask:
        """Evaluate for a batch: a mask of the messages for which the filter is true. The mask may be read, not written."""
        return self.evaluate_columns(Columns(batch))

    def evaluate_columns(self, columns: Columns) -> Mask:
        """Do as `evaluate`, over columns that other filters of the same batch have perhaps decoded already."""
        return select(self.select, columns)

    def prepare(self) -> None:
        """Work out all that evaluating, comparing and indexing the filter needs; otherwise that is done when it is needed."""
        _ = hash(self), self.hulls, self.weight, self.conditions, str(self), self.test, self.select

    @property
    def test(self) -> Test:
        """The filter compiled for one message."""
        if self._test is None:
            self._test = compile_test(self.condition)
        return self._test

    @property
    def select(self) -> Select:
        """The filter compiled for batches."""
        if self._select is None:
            self._select = compile_select(self.condition)
        return self._select

    @property
    def attributes(self) -> frozenset[str]:
        """The names of the attributes the filter looks at."""
        if self._attributes is None:
            self._attributes = frozenset(attribute_names(self.condition))
        return self._attributes

    def covers(self, other: Filter) -> bool:
        """Say whether every message that matches `other` surely matches this filter; False also means *not known*."""
        return covers(self.normal, other.normal)

    def overlaps(self, other: Filter) -> bool | None:
        """Say whether some message matches both filters; None when that is not known."""
        return overlaps(self.normal, other.normal)

    @property
    def normal(self) -> Normal:
        """The form in which filters are compared and indexed."""
        if self._normal is None:
            self._normal = prepare(self.condition)
        return self._normal

    @property
    def hulls(self) -> tuple[Hull, ...]:
        """The intervals of its first boxes, by which filters that may cover it are found."""
        if self._hulls is None:
            self._hulls = hulls_of(self.normal)
        return self._hulls

    @property
    def weight(self) -> int:
        """About how many parts a comparison with it looks at."""
        if not self._weight:
            self._weight = 1 + weight_of(self.normal)
        return self._weight

    @property
    def conditions(self) -> int:
        """How many conditions are evaluated one by one for every message; 0 when an index decides the filter.

        A LIKE counts as `LIKE_CONDITIONS`, since it takes so much longer.
        """
        if self._conditions < 0:
            indexed = self.normal.is_independent and self.normal.is_plain
            self._conditions = 0 if indexed else count_conditions(self.condition)
        return self._conditions

    @property
    def size(self) -> int:
        """About how many bytes the filter takes, with all that is derived from it: measured, and rounded up."""
        if not self._size:
            self._size = CHARACTER_BYTES * self.length + PART_BYTES * count_parts(self.condition)
        return self._size

    def _meaning(self) -> Key:
        if self._key is None:
            self._key = meaning(self.condition)
        return self._key

    def __eq__(self, other: object) -> bool:
        return self is other or self._meaning() == other._meaning() if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._meaning())
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            self._text = to_text(self.condition)
        return self._text

    def __repr__(self) -> str:
        return f"Filter({to_text(self.condition)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.condition,)


def _restore(condition: Condition) -> Filter:
    """Unpickle: the tree was within the limits of whoever made it."""
    restored = Filter("")
    restored.condition = condition
    return restored


def attribute_names(node: Condition | Value) -> Iterator[str]:
    """Yield the names of the attributes in a syntax tree, as often as they occur."""
    match node:
        case Attribute(name):
            yield name
        case Literal():
            return
        case Sign(_, operand) | Not(operand) | In(operand) | Like(operand) | IsNull(operand):
            yield from attribute_names(operand)
        case Arithmetic(_, left, right) | Comparison(_, left, right):
            yield from attribute_names(left)
            yield from attribute_names(right)
        case Between(operand, low, high):
            for value in (operand, low, high):
                yield from attribute_names(value)
        case And(operands) | Or(operands):
            for each in operands:
                yield from attribute_names(each)


def count_conditions(node: Condition) -> int:
    """Return the number of comparisons and predicates in a condition; a LIKE counts for several."""
    match node:
        case And(operands) | Or(operands):
            total = 0
            for each in operands:  # no comprehension: it would take a frame of the stack for each level
                total += count_conditions(each)
            return total
        case Not(operand):
            return count_conditions(operand)
        case Like():
            return LIKE_CONDITIONS
        case _:
            return 1


def count_parts(node: Condition | Value) -> int:
    """Return the number of conditions and values in a syntax tree; a LIKE counts for several."""
    match node:
        case In(operand, values):
            return 1 + count_parts(operand) + len(values)
        case Like(operand):
            return LIKE_PARTS + count_parts(operand)
        case Sign(_, operand) | Not(operand) | IsNull(operand):
            return 1 + count_parts(operand)
        case Arithmetic(_, left, right) | Comparison(_, left, right):
            return 1 + count_parts(left) + count_parts(right)
        case Between(operand, low, high):
            return 1 + count_parts(operand) + count_parts(low) + count_parts(high)
        case And(operands) | Or(operands):
            total = 1
            for each in operands:  # no comprehension: it would take a frame of the stack for each level
                total += count_parts(each)
            return total
        case _:
            return 1
