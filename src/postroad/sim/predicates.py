"""Random filters, each with its own oracle, and random attributes for them to disagree about.

The oracle is written apart from `core.filters`, over a handful of shapes, in the three-valued logic of SQL: True, False or
None for unknown; a filter matches when it is True.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from postroad.sim.history import Attributes
from postroad.types import AttributeValue

Truth: TypeAlias = bool | None
Test: TypeAlias = Callable[[Attributes], Truth]

SYMBOLS: Final = ("ABC", "ABD", "IBM", "XYZ", "KLM", "O'Hare")
REGIONS: Final = ("eu-west", "eu-east", "us-east", "asia")


@dataclass(frozen=True, slots=True)
class Predicate:
    """A filter's text and what it means."""

    text: str
    test: Test

    def matches(self, attributes: Attributes) -> bool:
        return self.test(attributes) is True


class Predicates:
    """All filters of one run, by text: the oracle the checkers ask."""

    def __init__(self) -> None:
        self._by_text: dict[str, Predicate] = {}

    def add(self, predicate: Predicate) -> str:
        self._by_text.setdefault(predicate.text, predicate)
        return predicate.text

    def __call__(self, filter_text: str, attributes: Attributes) -> bool:
        return self._by_text[filter_text].matches(attributes)


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# --- shapes --------------------------------------------------------------------------------------------------------------


def everything() -> Predicate:
    return Predicate("TRUE", lambda _: True)


def equals(name: str, value: str) -> Predicate:
    return Predicate(f"{name} = {quote(value)}", lambda a: _string(a, name, lambda have: have == value))


def one_of(name: str, values: tuple[str, ...]) -> Predicate:
    text = ", ".join(quote(value) for value in values)
    return Predicate(f"{name} IN ({text})", lambda a: _string(a, name, lambda have: have in values))


def starts_with(name: str, prefix: str) -> Predicate:
    return Predicate(f"{name} LIKE {quote(prefix + '%')}", lambda a: _string(a, name, lambda have: have.startswith(prefix)))


def above(name: str, limit: float) -> Predicate:
    return Predicate(f"{name} > {limit}", lambda a: _number(a, name, lambda have: have > limit))


def between(name: str, low: float, high: float) -> Predicate:
    return Predicate(f"{name} BETWEEN {low} AND {high}", lambda a: _number(a, name, lambda have: low <= have <= high))


def is_true(name: str) -> Predicate:
    return Predicate(f"{name} = TRUE", lambda a: value if isinstance(value := a.get(name), bool) else None)


def is_missing(name: str) -> Predicate:
    return Predicate(f"{name} IS NULL", lambda a: name not in a)


def negation(inner: Predicate) -> Predicate:
    def test(attributes: Attributes) -> Truth:
        truth = inner.test(attributes)
        return None if truth is None else not truth

    return Predicate(f"NOT ({inner.text})", test)


def conjunction(left: Predicate, right: Predicate) -> Predicate:
    def test(attributes: Attributes) -> Truth:
        a, b = left.test(attributes), right.test(attributes)
        if a is False or b is False:
            return False
        return None if a is None or b is None else True

    return Predicate(f"({left.text}) AND ({right.text})", test)


def disjunction(left: Predicate, right: Predicate) -> Predicate:
    def test(attributes: Attributes) -> Truth:
        a, b = left.test(attributes), right.test(attributes)
        if a is True or b is True:
            return True
        return None if a is None or b is None else False

    return Predicate(f"({left.text}) OR ({right.text})", test)


def _string(attributes: Attributes, name: str, test: Callable[[str], bool]) -> Truth:
    value = attributes.get(name)
    return test(value) if isinstance(value, str) else None


def _number(attributes: Attributes, name: str, test: Callable[[float], bool]) -> Truth:
    value = attributes.get(name)
    return test(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# --- chance --------------------------------------------------------------------------------------------------------------


def random_predicate(chance: random.Random, depth: int = 2) -> Predicate:
    """Return a filter that overlaps with many others of its kind."""
    roll = chance.random()
    if depth and roll < 0.12:
        return conjunction(random_predicate(chance, depth - 1), random_predicate(chance, depth - 1))
    if depth and roll < 0.2:
        return disjunction(random_predicate(chance, depth - 1), random_predicate(chance, depth - 1))
    if depth and roll < 0.25:
        return negation(random_predicate(chance, depth - 1))
    return _random_atom(chance)


def _random_atom(chance: random.Random) -> Predicate:
    match chance.randrange(9):
        case 0:
            return everything()
        case 1 | 2:
            return equals("symbol", chance.choice(SYMBOLS))
        case 3:
            return one_of("symbol", tuple(sorted(chance.sample(SYMBOLS, chance.randint(1, 4)))))
        case 4:
            return starts_with("region", chance.choice(("eu", "us", "eu-e", "a")))
        case 5:
            return above("price", chance.choice((10, 25, 50, 50.5, 75)))
        case 6:
            low = chance.choice((0, 20, 40, 60))
            return between("price", low, low + chance.choice((10, 30, 60)))
        case 7:
            return is_true("urgent")
        case _:
            return is_missing("region")


def random_attributes(chance: random.Random) -> dict[str, AttributeValue]:
    """Return attributes with missing ones, ints beside floats, and now and then one of another kind than usual."""
    attributes: dict[str, AttributeValue] = {"symbol": chance.choice(SYMBOLS)}
    if chance.random() < 0.9:
        attributes["price"] = chance.randrange(100) if chance.random() < 0.5 else chance.randrange(200) / 2
    if chance.random() < 0.7:
        attributes["region"] = chance.choice(REGIONS)
    if chance.random() < 0.5:
        attributes["urgent"] = chance.random() < 0.4
    if chance.random() < 0.03:
        attributes["price"] = "on request"
    return attributes
