"""Sets of strings made of LIKE patterns, against all short words."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from tests.core.filters.evaluate import reference

from postroad.core.filters.algebra import spans
from postroad.core.filters.algebra import string_sets as languages
from postroad.core.filters.algebra.spans import STRING_ENDS
from postroad.core.filters.algebra.string_sets import PatternSet, Strings

ALPHABET = "abx"
WORDS = ["".join(word) for length in range(7) for word in itertools.product(ALPHABET, repeat=length)]


def some_strings(random: Random, depth: int = 2) -> Strings:
    kind = random.randrange(6 if depth else 4)
    if kind < 3:
        return languages.like("".join(random.choices("ab%_", k=random.randint(0, 3))))
    if kind == 3:
        return spans.words(["".join(random.choices("ab", k=random.randint(0, 3))) for _ in range(random.randint(1, 2))])
    parts = [some_strings(random, depth - 1) for _ in range(2)]
    combined = languages.union(parts) if kind == 4 else languages.intersection(parts)
    return languages.complement(combined) if random.random() < 0.3 else combined


def members(strings: Strings) -> set[str]:
    return {word for word in WORDS if languages.contains(strings, word)}


@pytest.mark.parametrize(
    "pattern", ["", "%", "a", "a%", "%a", "%a%", "_", "a_", "_%", "%_", "a%b", "%a_b%", "a!%", "!!", "!a", "a!", "a!_b"]
)
@pytest.mark.parametrize("escape", [None, "!"])
def test_a_pattern_has_the_members_the_oracle_matches(pattern: str, escape: str | None) -> None:
    """Plain strings and prefixes become spans, the rest an automaton; both agree with the reference."""
    strings = languages.like(pattern, escape)
    probes = [*WORDS[:400], "%", "a%", "a!%", "!", "!!", "!a", "a_b", "a\nb", "a!", "a!_b"]
    assert [languages.contains(strings, word) for word in probes] == [reference.like(word, pattern, escape) for word in probes]


def test_plain_patterns_become_spans() -> None:
    """Only they are cheap, so they must be recognised."""
    assert languages.like("abc") == spans.words(["abc"])
    assert languages.like("abc%%") == spans.prefixed("abc")
    assert languages.like("%") == STRING_ENDS
    assert languages.like("a!%%", "!") == spans.prefixed("a%")
    assert isinstance(languages.like("a_"), PatternSet)
    assert languages.like("%_") == languages.like("_%") == languages.like("%%_%")


def test_algebra_and_subset_agree_with_all_short_words() -> None:
    """Whatever is combined, membership follows the sets, and subset and emptiness are exact for these small patterns."""
    random = Random(20_250_101)
    for _ in range(200):
        a, b = some_strings(random), some_strings(random)
        assert members(languages.union([a, b])) == members(a) | members(b)
        assert members(languages.intersection([a, b])) == members(a) & members(b)
        assert members(languages.complement(a)) == set(WORDS) - members(a)
        assert languages.is_empty(a) is (not members(a)), a
        assert languages.within(a, b) is (members(a) <= members(b)), (a, b)


def test_suffixes_and_infixes_are_compared_exactly() -> None:
    """The cases of the covering vectors, in short."""
    assert languages.within(languages.like("%padres"), languages.like("%es"))
    assert not languages.within(languages.like("%es"), languages.like("%padres"))
    assert languages.is_empty(languages.intersection([languages.like("%padres"), languages.like("%dress")])) is True
    assert languages.is_empty(languages.intersection([languages.like("padress%"), languages.like("%es")])) is False
    assert languages.within(languages.like("jeff%"), languages.like("%jeff%"))


def test_order_and_patterns_meet() -> None:
    """Spans that are no prefix (a prefix without some words) still combine exactly with patterns."""
    without = languages.intersection([spans.prefixed("a"), spans.complement(spans.words(["ab", "a"]), STRING_ENDS)])
    assert languages.is_empty(languages.intersection([without, languages.like("_")])) is True
    assert languages.is_empty(languages.intersection([without, languages.like("__")])) is False
    between = languages.intersection([spans.complement(spans.prefixed("a"), STRING_ENDS), languages.like("_b%")])
    assert not languages.contains(between, "ab")
    assert languages.contains(between, "bb")
    assert languages.within(between, spans.complement(spans.words(["ab"]), STRING_ENDS))


def test_a_character_below_all_named_ones_is_tried() -> None:
    """The only members may start with a character that is less than any in the patterns and cuts."""
    below_a: Strings = ((0, ""), (0, "a"))
    assert languages.is_empty(languages.intersection([below_a, languages.like("_")])) is False
    assert languages.is_empty(languages.intersection([below_a, languages.like("a_")])) is True


def test_an_exponential_automaton_is_given_up() -> None:
    """Too much work is answered by None and read as no subset."""
    heavy = languages.like("%a" + "_" * 40)
    other = languages.like("%b" + "_" * 39)
    assert languages.is_empty(languages.intersection([heavy, languages.complement(languages.intersection([heavy, other]))])) in {
        None,
        False,
    }
    assert not languages.within(languages.intersection([heavy, other]), languages.like("%ab" + "_" * 39 + "%"))
