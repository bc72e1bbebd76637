"""Sets of numbers and strings as cuts, against plain sets of sample points."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.filters.algebra import spans
from postroad.core.filters.algebra.spans import NUMBER_ENDS, STRING_ENDS, Numbers, Words

EDGES = (-math.inf, -1, 0, 0.5, 1, 2**53, 2**53 + 1, math.inf)
# A probe in every gap between the edges; the axis is the reals, so also where no double and no integer lies.
PROBES: tuple[Any, ...] = (*EDGES, -5, -0.5, 0.25, 0.75, 2, 2**53 - 1, Fraction(2**54 + 1, 2), 2**53 + 2, 1e300)
TEXTS = ("", "a", "a\0", "ab", "b", "\ud7ff", "\ue000", "\U0010ffff", "a\U0010ffff")
TEXT_PROBES = (*TEXTS, "a\0\0", "aa", "abz", "ac", "b\0", "\ud7ffx", "\ue000x", "\U0010ffff\U0010ffff", "b" * 5, "a\U0010ffffz")


def numbers_from(draw: st.DrawFn) -> Numbers:
    cuts = draw(st.lists(st.tuples(st.sampled_from(EDGES), st.sampled_from([0, 1])), max_size=6, unique=True))
    ordered = sorted(cuts)
    return tuple(ordered[: len(ordered) & ~1])


number_sets = st.composite(numbers_from)()
word_sets = st.lists(
    st.one_of(
        st.sampled_from(TEXTS).map(spans.prefixed),
        st.sampled_from(TEXTS).map(lambda text: spans.words([text])),
    ),
    min_size=1,
    max_size=3,
).map(spans.union)


def members(numbers: Numbers) -> set[float]:
    return {probe for probe in PROBES if spans.contains_number(numbers, probe)}


def text_members(words: Words) -> set[str]:
    return {probe for probe in TEXT_PROBES if spans.contains_string(words, probe)}


@given(number_sets, number_sets)
def test_number_sets_follow_set_algebra(a: Numbers, b: Numbers) -> None:
    """Union, intersection, complement and subset mean the same as for sets of points."""
    assert members(spans.union([a, b])) == members(a) | members(b)
    assert members(spans.intersection([a, b])) == members(a) & members(b)
    assert members(spans.complement(a, NUMBER_ENDS)) == set(PROBES) - members(a)
    # Every nonempty span between two of the edges holds a probe, so the probes decide.
    assert spans.within(a, b) == (members(a) <= members(b))


@given(word_sets, word_sets)
def test_string_sets_follow_set_algebra(a: Words, b: Words) -> None:
    """The same holds for finite sets and prefixes of strings."""
    assert text_members(spans.union([a, b])) == text_members(a) | text_members(b)
    assert text_members(spans.intersection([a, b])) == text_members(a) & text_members(b)
    assert text_members(spans.complement(a, STRING_ENDS)) == set(TEXT_PROBES) - text_members(a)
    if spans.within(a, b):
        assert text_members(a) <= text_members(b)


@given(number_sets, number_sets)
def test_equal_sets_have_equal_cuts(a: Numbers, b: Numbers) -> None:
    """A set has one representation, whichever way it was computed."""
    by_de_morgan = spans.complement(
        spans.intersection([spans.complement(a, NUMBER_ENDS), spans.complement(b, NUMBER_ENDS)]), NUMBER_ENDS
    )
    assert by_de_morgan == spans.union([a, b])
    assert spans.union([a, a, spans.intersection([a, b])]) == a


def test_a_prefix_holds_exactly_the_strings_that_start_with_it() -> None:
    """Also where the last character has no successor, and where the next code point is a surrogate."""
    for prefix in TEXTS:
        expected = {probe for probe in TEXT_PROBES if probe.startswith(prefix)}
        assert text_members(spans.prefixed(prefix)) == expected
    assert spans.prefixed("") == STRING_ENDS
    assert spans.prefixed("\U0010ffff")[1] == STRING_ENDS[1]
    assert spans.prefixed("\ud7ff")[1] == (0, "\ue000")


def test_neighbouring_prefixes_join() -> None:
    """Nothing lies between all strings with `a` and all strings with `b`."""
    assert spans.union([spans.prefixed("a"), spans.prefixed("b")]) == ((0, "a"), (0, "c"))


def test_huge_integers_are_not_rounded() -> None:
    """2^53 + 1 is no double; its point holds neither neighbour."""
    point = spans.points([2**53 + 1])
    assert spans.contains_number(point, 2**53 + 1)
    assert not spans.contains_number(point, float(2**53))
    assert not spans.contains_number(point, 2**53 + 2)
    assert spans.points([1, 1.0, 0.0, -0.0]) == spans.points([0, 1])


def test_finite_sets_are_recognised() -> None:
    """The members of a finite set can be listed, those of a prefix cannot."""
    assert spans.finite_words(spans.words(["b", "a", "b"])) == ["a", "b"]
    assert spans.finite_words(spans.prefixed("a")) is None
    assert spans.finite_words(spans.words([])) == []
