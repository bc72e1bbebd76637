"""What one value may be: a set over the whole universe of attribute values.

The universe of an attribute has kinds that never mix: numbers (with NaN apart), strings, the two booleans, bytes, and NULL
for a missing attribute. A `Constraint` is an exact subset of it: flags for the single points (NULL, NaN, true, false, and bytes
taken as one point, because no filter can tell two byte strings apart by a literal), spans of numbers and a set of strings.

Three-valued logic enters here and only here. Each comparison with a literal has two constraints, the values for which it is
*true* and those for which it is *false*; for the remaining values it is unknown. NOT asks for the other one, so nothing has to be
said about unknown again. That also settles NaN: it is in the false set of `x <= 5` and not in the true set of `x > 5`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from postroad.core.filters.algebra import spans
from postroad.core.filters.algebra import string_sets as languages
from postroad.core.filters.algebra.spans import NUMBER_ENDS, STRING_ENDS, Numbers
from postroad.core.filters.algebra.string_sets import Strings
from postroad.core.filters.language.ast import ComparisonOperator
from postroad.types import AttributeValue

NULL: Final = 1
NAN: Final = 2
BYTES: Final = 4
FALSE: Final = 8
TRUE: Final = 16
ALL_FLAGS: Final = NULL | NAN | BYTES | FALSE | TRUE


class Constraint(msgspec.Struct, frozen=True, gc=False):
    """A set of attribute values. Equal sets are equal objects as long as the strings are spans.

    A struct without garbage collection: an index of many filters holds hundreds of thousands, and there can be no cycles.
    """

    flags: int
    numbers: Numbers
    strings: Strings

    @property
    def is_plain(self) -> bool:
        """Whether the strings are spans, so that every question about the constraint has a quick and exact answer."""
        return isinstance(self.strings, tuple)

    @property
    def size(self) -> int:
        """The number of parts it is made of, as a measure of the work it causes."""
        return len(self.numbers) + (len(self.strings) if isinstance(self.strings, tuple) else 64)


NOTHING: Final = Constraint(0, (), ())
EVERYTHING: Final = Constraint(ALL_FLAGS, NUMBER_ENDS, STRING_ENDS)
IS_NULL: Final = Constraint(NULL, (), ())
NOT_NULL: Final = Constraint(ALL_FLAGS ^ NULL, NUMBER_ENDS, STRING_ENDS)
ANY_NUMBER: Final = Constraint(NAN, NUMBER_ENDS, ())
ANY_NUMBER_OR_NULL: Final = Constraint(NAN | NULL, NUMBER_ENDS, ())
IS_TRUE: Final = Constraint(TRUE, (), ())
IS_FALSE: Final = Constraint(FALSE, (), ())


def within(inner: Constraint, outer: Constraint) -> bool:
    """Whether every value of `inner` is certainly one of `outer`. Exact if both are plain."""
    return (
        not inner.flags & ~outer.flags
        and (not inner.numbers or spans.within(inner.numbers, outer.numbers))
        and (not inner.strings or languages.within(inner.strings, outer.strings))
    )


def intersection(parts: Sequence[Constraint]) -> Constraint:
    flags = ALL_FLAGS
    for part in parts:
        flags &= part.flags
    return Constraint(
        flags, spans.intersection([part.numbers for part in parts]), languages.intersection([part.strings for part in parts])
    )


def union(parts: Sequence[Constraint]) -> Constraint:
    flags = 0
    for part in parts:
        flags |= part.flags
    return Constraint(flags, spans.union([part.numbers for part in parts]), languages.union([part.strings for part in parts]))


def complement(constraint: Constraint) -> Constraint:
    return Constraint(
        ALL_FLAGS ^ constraint.flags,
        spans.complement(constraint.numbers, NUMBER_ENDS),
        languages.complement(constraint.strings),
    )


def is_empty(constraint: Constraint) -> bool | None:
    """Whether no value satisfies it; None when that is too costly to tell (never for a plain constraint)."""
    return False if constraint.flags or constraint.numbers else languages.is_empty(constraint.strings)


def contains(constraint: Constraint, value: AttributeValue | None) -> bool:
    """Whether the value (None is NULL) is in the set."""
    if isinstance(value, str):
        return languages.contains(constraint.strings, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return spans.contains_number(constraint.numbers, value)
    return bool(constraint.flags & _flag(value))


def _flag(value: bool | float | bytes | None) -> int:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return BYTES if isinstance(value, bytes) else NAN


def compared_with(operator: ComparisonOperator, literal: bool | float | str, *, wanted: bool) -> Constraint:
    """Return where `value <operator> literal` is true or, unless `wanted`, false."""
    if operator in {"=", "<>"}:
        return one_of((literal,), wanted=wanted is (operator == "="))
    if isinstance(literal, bool | str):
        return NOTHING
    low, high = NUMBER_ENDS
    cut = (literal, 0 if operator in {"<", ">="} else 1)
    below = (operator in {"<", "<="}) is wanted
    return Constraint(0 if wanted else NAN, (low, cut) if below else (cut, high), ())


def one_of(literals: Sequence[bool | float | str], *, wanted: bool) -> Constraint:
    """Return where a value equals one of the literals or, unless `wanted`, is certainly unequal to all of them.

    Equality with another kind is unknown, so nothing is certainly unequal to literals of several kinds.
    """
    flags = 0
    numbers: list[float] = []
    words: list[str] = []
    for literal in literals:
        if isinstance(literal, bool):
            flags |= TRUE if literal else FALSE
        elif isinstance(literal, str):
            words.append(literal)
        else:
            numbers.append(literal)
    if wanted:
        return Constraint(flags, spans.points(numbers), spans.words(words))
    if bool(flags) + bool(numbers) + bool(words) != 1:
        return NOTHING
    if numbers:
        return Constraint(NAN, spans.complement(spans.points(numbers), NUMBER_ENDS), ())
    if words:
        return Constraint(0, (), spans.complement(spans.words(words), STRING_ENDS))
    return Constraint((TRUE | FALSE) ^ flags, (), ())


def like(pattern: str, escape: str | None, *, wanted: bool) -> Constraint:
    """Return where a value matches the pattern or, unless `wanted`, is a string that does not."""
    strings = languages.like(pattern, escape)
    return Constraint(0, (), strings if wanted else languages.complement(strings))
