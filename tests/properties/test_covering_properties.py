"""The covering relation on generated filters: sound on all, exact and a partial order on conjunctions of constraints.

`POSTROAD_TEST_SEED=<seed> python -m pytest tests/properties/test_covering_properties.py` repeats a run; the seed is printed.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from tests.core.filters import generated
from tests.core.filters.language.trees import (
    between,
    both,
    compare,
    either,
    eq,
    like,
    missing,
    ne,
    negation,
    one_of,
    present,
)

from postroad.core.filters.algebra.covering import covers, overlaps
from postroad.core.filters.algebra.normal_form import Normal, condition_text, prepare
from postroad.core.filters.evaluate.one_message import compile_test
from postroad.core.filters.language.ast import Attribute, Condition
from postroad.types import AttributeValue

SEED = int(os.environ.get("POSTROAD_TEST_SEED", "20261115"))
Matches = npt.NDArray[np.bool_]
Maker = Callable[[Random], Condition]


def match_table(filters: Sequence[Condition], messages: Sequence[generated.Message]) -> Matches:
    """Make a row per filter, a column per message."""
    tests = [compile_test(f) for f in filters]
    return np.array([[test(message) is True for message in messages] for test in tests])


def cover_table(filters: Sequence[Normal]) -> Matches:
    """Entry [i, j]: filter i covers filter j."""
    return np.array([[covers(f, g) for g in filters] for f in filters])


def counterexamples(table: Matches) -> npt.NDArray[np.int64]:
    """Entry [i, j]: how many messages match j and not i."""
    return (~table).astype(np.int64) @ table.T.astype(np.int64)


def announced(seed: int) -> Random:
    """Print the seed (pytest shows it when the test fails) and start from it."""
    sys.stdout.write(f"POSTROAD_TEST_SEED={seed}\n")
    return Random(seed)


def pool(random: Random, make: Maker, size: int, messages: Sequence[generated.Message]) -> list[Condition]:
    """Collect filters most of which match something: an unsatisfiable filter is covered by all and tests little."""
    found: list[Condition] = []
    while len(found) < size:
        f = make(random)
        if random.random() < 0.03 or match_table([f], messages[:80]).any():
            found.append(f)
    return found


def nested(random: Random, make: Maker) -> Iterator[Condition]:
    """Yield a filter, and some that it covers or that cover it."""
    f, other = make(random), make(random)
    yield from (f, both(f, other), either(f, other), negation(both(negation(f), other)))


@pytest.mark.parametrize("make", [generated.some_conjunction, generated.some_filter])
def test_covering_is_sound(make: Maker) -> None:
    """On over 100,000 pairs, no message matches the covered filter and not the covering one; nor both of a disjoint pair."""
    check_soundness(make, SEED)


@pytest.mark.soak
@pytest.mark.parametrize("make", [generated.some_conjunction, generated.some_filter])
def test_covering_is_sound_for_many_seeds(make: Maker) -> None:
    """The same, twenty times."""
    for seed in range(SEED + 1, SEED + 21):
        check_soundness(make, seed)


def check_soundness(make: Maker, seed: int) -> None:
    random = announced(seed)
    messages = [generated.some_message(random) for _ in range(600)]
    filters = pool(random, make, 150, messages)
    filters += [f for _ in range(25) for f in nested(random, make)]
    normals = [prepare(f) for f in filters]
    table = match_table(filters, messages)
    said, wrong = cover_table(normals), counterexamples(table)
    for i, j in np.argwhere(said & (wrong > 0)):
        pytest.fail(f"covers({condition_text(filters[i])}, {condition_text(filters[j])}) is wrong")
    common = table.astype(np.int64) @ table.T.astype(np.int64)
    for i, j in itertools.product(range(len(filters)), repeat=2):
        if common[i, j]:
            assert overlaps(normals[i], normals[j]) is not False, (condition_text(filters[i]), condition_text(filters[j]))
    some, every = np.flatnonzero(table.any(axis=1)), np.flatnonzero(table.all(axis=1))
    nontrivial = np.delete(said[:, some], every, axis=0)
    assert said.size > 50_000, "two parameters make 100,000 pairs"
    assert nontrivial.sum() > said.size // 50, "yes must be said often for the test to mean something"


NUMBER_POINTS: tuple[AttributeValue, ...] = (-math.inf, -1, 0, 0.5, 1, 2, 2.5, 3, math.inf)
STRING_POINTS: tuple[AttributeValue, ...] = ("", "Z", "a", "a\0", "aa", "ab", "ab\0", "abz", "ac", "b", "ba", "c")
OTHER_POINTS: tuple[AttributeValue | None, ...] = (None, math.nan, True, False, b"", b"a")
VALUES: tuple[AttributeValue | None, ...] = (*NUMBER_POINTS, *STRING_POINTS, *OTHER_POINTS)
"""A value from each class that constraints with the thresholds 0, 1, 2.5 and 'a', 'ab', 'b' can tell apart."""


def constraints_on(name: str) -> list[Condition]:
    """Every kind of single-attribute constraint over these thresholds, its negation, and some unions."""
    numbers, strings = (0, 1, 2.5), ("a", "ab", "b")
    atoms: list[Condition] = [
        *(compare(name, operator, value) for operator in generated.OPERATORS for value in numbers),
        *(between(name, low, high) for low, high in itertools.combinations_with_replacement(numbers, 2)),
        between(name, 1, 0),
        *(f(name, value) for f in (eq, ne) for value in strings),
        *(like(name, pattern) for pattern in ("a", "a%", "ab%", "%", "")),
        *(one_of(name, *values) for values in ((0, 2.5), ("a", "b"), (0, "a"), (True,), (True, False), (1, True, "ab"))),
        *(eq(name, value) for value in (True, False)),
        Attribute(name),
        missing(name),
        present(name),
    ]
    negated: list[Condition] = [negation(atom) for atom in atoms]
    random = Random(SEED)
    unions = [either(*random.sample(atoms + negated, random.randint(2, 3))) for _ in range(60)]
    return [*atoms, *negated, *unions]


def messages_over(*names: str) -> list[generated.Message]:
    return [
        {name: value for name, value in zip(names, values, strict=True) if value is not None}
        for values in itertools.product(VALUES, repeat=len(names))
    ]


def check_exactness(filters: Sequence[Condition], messages: Sequence[generated.Message]) -> None:
    """Compare `covers` and `overlaps` with what the messages, which stand for all, say; and check the laws of an order."""
    normals = [prepare(f) for f in filters]
    table = match_table(filters, messages)
    said = cover_table(normals)
    for i, j in np.argwhere(said != (counterexamples(table) == 0)):
        pytest.fail(f"covers({condition_text(filters[i])}, {condition_text(filters[j])}) is {said[i, j]}")
    common = table.astype(np.int64) @ table.T.astype(np.int64)
    disjoint = np.array([[overlaps(f, g) for g in normals] for f in normals], dtype=object)
    assert (disjoint == (common > 0)).all()
    assert said.diagonal().all(), "reflexive"
    assert said[(said.astype(np.int64) @ said.astype(np.int64)) > 0].all(), "transitive"
    for i, j in np.argwhere(said & said.T):
        assert (table[i] == table[j]).all(), "antisymmetric up to equal meaning"


def test_covering_of_single_constraints_is_exact() -> None:
    """Every pair of constraints on one attribute, by enumeration of all classes of values."""
    check_exactness(constraints_on("x"), messages_over("x"))


def test_covering_of_conjunctions_is_exact_and_a_partial_order() -> None:
    """Conjunctions over two attributes, with several constraints on one of them, by enumeration."""
    random = announced(SEED)
    on_x, on_y = constraints_on("x"), constraints_on("y")
    filters: list[Condition] = []
    for _ in range(220):
        parts = random.choices(on_x, k=random.randint(0, 2)) + random.choices(on_y, k=random.randint(0, 2))
        filters.append(both(*parts) if len(parts) > 1 else (parts or [present("x")])[0])
    check_exactness(filters, messages_over("x", "y"))


def test_covering_of_disjunctions_is_exact_while_the_effort_lasts() -> None:
    """Small unions of conjunctions are decided by splitting; nothing is lost."""
    random = announced(SEED)
    on_x, on_y = constraints_on("x"), constraints_on("y")
    filters: list[Condition] = []
    for _ in range(90):
        boxes = [both(random.choice(on_x), random.choice(on_y)) for _ in range(random.randint(1, 3))]
        filters.append(random.choice((either, both))(*boxes) if len(boxes) > 1 else boxes[0])
    check_exactness(filters, messages_over("x", "y"))
