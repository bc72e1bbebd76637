"""LIKE: the matcher against the table of the reference, for strings and for columns."""

from __future__ import annotations

import itertools
import time

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.filters.evaluate import reference

from postroad.core.filters.evaluate import like
from postroad.core.filters.evaluate.like import LikeMatcher

CARROT = "\N{CARROT}"
texts = st.text(f"ab\n{CARROT}%_\\!.", max_size=12) | st.text("ab", max_size=30)
patterns = st.text(f"ab%_%_\n{CARROT}\\!.", max_size=10) | st.text("ab_%", max_size=24)
escapes = st.sampled_from([None, "\\", "!", "%", "_", "a", CARROT])


@given(patterns, escapes, st.lists(texts, min_size=1, max_size=6))
@settings(max_examples=600)
def test_a_pattern_matches_what_the_reference_matches(pattern: str, escape: str | None, strings: list[str]) -> None:
    """The segments find a match exactly when the table of all prefixes does."""
    matcher = LikeMatcher(pattern, escape)
    expected = [reference.like(text, pattern, escape) for text in strings]
    assert [matcher.matches(text) for text in strings] == expected
    assert list(matcher.mask(pa.array(strings, pa.string()))) == expected


SEGMENTS = ["a", "ab_", "a_b", "a_bb", "b_aa_", "ba__"]
SHORT_TEXTS = ["".join(letters) for length in range(8) for letters in itertools.product("ab", repeat=length)]


@pytest.mark.parametrize("ends", ["%", "", "a%", "%_"])
def test_segments_neither_overlap_nor_run_past_the_end(ends: str) -> None:
    """Every row of up to three segments, with wildcards inside or at the end, against every short text of two letters."""
    column = pa.array(SHORT_TEXTS)
    for count in (1, 2, 3) if ends == "%" else (1, 2):
        for segments in itertools.product(SEGMENTS, repeat=count):
            pattern = ends + "%".join(segments) + ends[::-1]
            matcher = LikeMatcher(pattern)
            expected = [reference.like(text, pattern, None) for text in SHORT_TEXTS]
            assert [matcher.matches(text) for text in SHORT_TEXTS] == expected
            assert list(matcher.mask(column)) == expected


@given(patterns, escapes, texts)
@settings(max_examples=500)
def test_the_canonical_pattern_matches_the_same(pattern: str, escape: str | None, text: str) -> None:
    """Rewriting a pattern changes its text and not its meaning, and rewriting again changes nothing."""
    rewritten = like.canonical(pattern, escape)
    assert reference.like(text, rewritten.text, rewritten.escape) == reference.like(text, pattern, escape)
    assert like.canonical(rewritten.text, rewritten.escape) == rewritten


@given(st.text("ab_", min_size=12, max_size=60), st.lists(st.text("ab", min_size=40, max_size=120), min_size=1, max_size=5))
@settings(max_examples=200)
def test_long_floating_segments_with_wildcards_match_as_the_reference_does(segment: str, strings: list[str]) -> None:
    """These are too wide for an automaton; each distinct string is tested by shift-and."""
    pattern = f"%{segment}%a_b%"
    expected = [reference.like(text, pattern, None) for text in strings]
    column = pa.array([*strings, None, *strings], pa.string())
    mask = LikeMatcher(pattern).mask(column)
    assert list(mask[: len(strings)]) == expected
    assert list(mask[len(strings) + 1 :]) == expected


@pytest.mark.parametrize(
    ("text", "pattern", "escape", "matches"),
    [
        ("a\nb", "a_b", None, True),
        (CARROT, "_", None, True),
        ("a!b", "a!b", "!", True),  # an escape that escapes nothing stands for itself
        ("a%", "a!%", "!", True),
        ("ab", "a!%", "!", False),
        ("a!", "a!!", "!", True),
        ("a!", "a!", "!", True),  # at the end as well
        ("xab", "%ab%", "%", True),  # where the escape is a wildcard, itself is a wildcard
        ("a%", "a%%", "%", True),
        ("ab", "a%%", "%", False),
        ("a\\b", "a\\b", None, True),  # without ESCAPE there is no escape
        ("", "%", None, True),
        ("", "", None, True),
        ("", "_", None, False),
    ],
)
def test_escapes_and_edges_are_as_documented(text: str, pattern: str, escape: str | None, matches: bool) -> None:
    """The rules of the reference page, one by one."""
    assert LikeMatcher(pattern, escape).matches(text) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "%" * 1000 + "x",
        "%a" * 500 + "x",
        "%" + "a_" * 500 + "b%",
        "%" + "a" * 1000 + "b%",
        "%a" + "_" * 1000 + "b%",
        "%a_______b%",
        "%a%a%a%a%a%a%a%a%a%a%a%a%b",
        "a%" + "_" * 100 + "%b",
    ],
)
def test_hostile_patterns_take_time_in_proportion_to_the_text(pattern: str) -> None:
    """A million characters that almost match everywhere are read in about the time of one pass, not in that of the product."""
    text = "a" * 1_000_000
    matcher = LikeMatcher(pattern)
    start = time.thread_time()
    assert not matcher.matches(text)
    assert not matcher.mask(pa.array([text])).any()
    assert time.thread_time() - start < 10


def test_a_column_without_strings_has_no_matches() -> None:
    """Every path copes with a column of nulls, whatever it says about them."""
    nulls = pa.array([None, None], pa.string())
    for pattern in ("a", "a%", "%a", "%a%", "a_%", "%" + "a_" * 20 + "%"):
        assert len(LikeMatcher(pattern).mask(nulls)) == 2
