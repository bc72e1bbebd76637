"""Random filters and messages from small pools, so that thresholds meet and covering happens often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from tests.core.filters.language.trees import (
    between,
    both,
    compare,
    either,
    eq,
    like,
    missing,
    negation,
    one_of,
    present,
)

from postroad.core.filters.language.ast import Arithmetic, Attribute, Condition, Literal, Sign, Value
from postroad.types import AttributeValue

Message = Mapping[str, AttributeValue]

NAMES = ("x", "y", "z")
NUMBERS = (-1, 0, -0.0, 1, 2, 2.5, 3, 2**53, 2**53 + 1, float(2**53), -(2**63), 2**63 - 1, 1e300)
STRINGS = ("", "a", "ab", "abc", "b", "a\0", "%", "zz")
PATTERNS = ("%", "a%", "ab%", "%b", "%b%", "_", "a_", "_%", "abc", "", "a!%", "%a_")
OPERATORS = ("=", "<>", "<", "<=", ">", ">=")

MESSAGE_NUMBERS = (*NUMBERS, math.nan, math.inf, -math.inf, -2, 0.5, 1.5, 2.25, 2.75, 5, 2**53 + 2, 2**62)
MESSAGE_STRINGS = (*STRINGS, "aa", "abcd", "ac", "bb", "ba", "A", "b\0", "y", "c")


def some_message(random: Random, names: tuple[str, ...] = NAMES) -> Message:
    values = {name: some_value(random) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def some_value(random: Random) -> AttributeValue | None:
    match random.randrange(10):
        case 0:
            return None
        case 1:
            return random.choice((True, False))
        case 2:
            return random.choice((b"", b"a"))
        case 3 | 4 | 5:
            return random.choice(MESSAGE_STRINGS)
        case _:
            return random.choice(MESSAGE_NUMBERS)


def some_columns(random: Random, rows: int) -> dict[str, list[AttributeValue | None]]:
    """Make columns that each have one type, with or without nulls; some are absent."""
    pools: list[tuple[AttributeValue | None, ...]] = [
        tuple(value for value in MESSAGE_NUMBERS if isinstance(value, int)),
        tuple(float(value) for value in MESSAGE_NUMBERS),
        MESSAGE_STRINGS,
        (True, False),
        (b"", b"a"),
        (None,),
    ]
    columns: dict[str, list[AttributeValue | None]] = {}
    for name in NAMES:
        pool, nulls = random.choice(pools), random.choice((0.0, 0.2))
        if random.random() < 0.9:
            columns[name] = [None if random.random() < nulls else random.choice(pool) for _ in range(rows)]
    return columns


def some_constraint(random: Random, name: str) -> Condition:
    """Make a constraint on one attribute for which covering is complete, or a LIKE pattern of any shape."""
    negated = random.random() < 0.25
    match random.randrange(12):
        case 0:
            return between(name, random.choice(NUMBERS), random.choice(NUMBERS), negated=negated)
        case 1:
            values = random.choices(random.choice((NUMBERS, STRINGS, (*NUMBERS, *STRINGS, True))), k=random.randint(1, 3))
            return one_of(name, *values, negated=negated)
        case 2 | 3:
            return like(name, random.choice(PATTERNS), random.choice((None, "!")), negated=negated)
        case 4:
            return random.choice((missing(name), present(name)))
        case 5:
            return random.choice((Attribute(name), negation(Attribute(name)), eq(name, False)))
        case 6 | 7:
            return compare(name, random.choice(("=", "<>")), random.choice(STRINGS))
        case 8:
            return either(some_constraint(random, name), some_constraint(random, name))
        case 9:
            return negation(some_constraint(random, name))
        case _:
            return compare(name, random.choice(OPERATORS), random.choice(NUMBERS))


def some_conjunction(random: Random, names: tuple[str, ...] = NAMES) -> Condition:
    """Make a conjunction of single-attribute constraints: the fragment where covering is complete (but for LIKE shapes)."""
    constraints = [some_constraint(random, random.choice(names)) for _ in range(random.randint(1, 3))]
    return constraints[0] if len(constraints) == 1 else both(*constraints)


def some_filter(random: Random, depth: int = 3) -> Condition:
    """Make anything the language has, including what covering takes as one opaque key."""
    if depth == 0 or random.random() < 0.3:
        return some_atom(random)
    match random.randrange(6):
        case 0 | 1 | 2:
            return both(*(some_filter(random, depth - 1) for _ in range(random.randint(2, 3))))
        case 3 | 4:
            return either(*(some_filter(random, depth - 1) for _ in range(random.randint(2, 3))))
        case _:
            return negation(some_filter(random, depth - 1))


def some_atom(random: Random) -> Condition:
    if random.random() < 0.75:
        return some_constraint(random, random.choice(NAMES))
    left, right = some_term(random), some_term(random)
    match random.randrange(5):
        case 0:
            return missing(left)
        case 1:
            return between(left, right, some_term(random), negated=random.random() < 0.3)
        case 2:
            return one_of(left, *random.choices((1, 2, 2.5, "a"), k=2))
        case 3:
            return Literal(random.random() < 0.5)
        case _:
            return compare(left, random.choice(OPERATORS), right)


def some_term(random: Random, depth: int = 1) -> Value:
    match random.randrange(4 if depth else 2):
        case 0:
            return Literal(random.choice((0, 1, 2, 2.0, 2.5)))
        case 1:
            return Attribute(random.choice(NAMES))
        case 2:
            return Sign(random.choice(("+", "-")), some_term(random, depth - 1))
        case _:
            return Arithmetic(random.choice(("+", "-", "*", "/")), some_term(random, depth - 1), some_term(random, depth - 1))
