"""Hostile filters are refused or handled in linear time, and never meet Python's recursion limit."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from postroad import Filter
from postroad.core.batch.batch import Batch
from postroad.core.filters.language.limits import DEPTH_CEILING, FilterLimits
from postroad.core.filters.language.parser import parse
from postroad.core.filters.language.text import to_text
from postroad.errors import FilterLimitError, FilterSyntaxError, InvalidValueError

WIDE = FilterLimits(
    length_max=1 << 22, tokens_max=1 << 20, depth_max=DEPTH_CEILING, in_values_max=1 << 20, like_length_max=1 << 20
)
BATCH = Batch(pa.record_batch({"@a": pa.array([1, 2, None]), "@s": pa.array(["x", None, "a" * 100])}))


def deep_in_the_stack(frames: int, call: Callable[[], object]) -> object:
    """Call with that many frames already on the stack, as in a busy application."""
    return call() if frames == 0 else deep_in_the_stack(frames - 1, call)


def nested(level: Callable[[str], str], core: str, times: int) -> str:
    for _ in range(times):
        core = level(core)
    return core


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = 1 OR " * 8_000 + "a", "characters"),
        ("a OR " * 9_000 + "a", "words and signs"),
        ("(" * 65 + "a" + ")" * 65, "nests"),
        ("NOT " * 65 + "a", "nests"),
        ("a = " + "-" * 65 + "a", "nests"),
        ("a" + " + a" * 65 + " = 1", "chains"),
        (f"a IN ({', '.join(['1'] * 4097)})", "IN list"),
        (f"a LIKE '{'_' * 1025}'", "LIKE pattern"),
        ("abcd=9e15 OR " * 4_000 + "a", "written out"),
    ],
)
def test_a_filter_beyond_a_default_limit_is_refused(text: str, reason: str) -> None:
    """Each limit has its own words."""
    with pytest.raises(FilterLimitError, match=reason) as caught:
        parse(text)
    assert 0 <= caught.value.position <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 64 + "a" + ")" * 64,
        "NOT " * 64 + "a",
        "a = " + "-" * 64 + "a",
        "a" + " + a" * 64 + " = 1",
        f"a IN ({', '.join(['1'] * 4096)})",
        f"a LIKE '{'_' * 1024}'",
        f"a LIKE '{'%' * 60_000}'",
        "a LIKE '" + "\\" * 1_023 + "!%' ESCAPE '!'",
    ],
)
def test_a_filter_at_a_default_limit_is_accepted(text: str) -> None:
    """A limit is the largest value that passes, and what passed can be written and passes again."""
    tree = parse(text)
    assert parse(to_text(tree)) == tree


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1_000_000,
        "(" * 500_000 + "a" + ")" * 500_000,
        "NOT " * 200_000,
        "a = " + "-" * 1_000_000,
        "a = " + "(1+" * 200_000,
        "'" * 999_999,
        '"' * 999_999,
        "a = '" + "''" * 400_000,
        " " * 1_000_000 + "!",
        "a" + " " * 1_000_000,
        "a = " + "9" * 1_000_000,
        "a = 0x" + "0" * 1_000_000,
        "a = 0" + "0" * 1_000_000,
        "a = 1e" + "9" * 1_000_000,
        "a = ." + "9" * 1_000_000 + "x",
        "$" * 1_000_000,
        "a." * 500_000,
        "\x00" * 1_000_000,
        "\ud800" * 1_000_000,
        "=" * 1_000_000,
    ],
)
def test_a_megabyte_of_anything_is_read_in_linear_time(text: str) -> None:
    """With the length limit out of the way, the parser still answers at once, with a tree or a FilterSyntaxError."""
    start = time.thread_time()
    assert len(outcome(text)) < 1_100_000
    assert time.thread_time() - start < 8


def outcome(text: str) -> str:
    """Parse, and return the filter's text or the words of its refusal."""
    try:
        return to_text(parse(text, WIDE))
    except FilterSyntaxError as error:
        return str(error)


def test_ten_thousand_ors_are_one_flat_node() -> None:
    """A long disjunction is no deeper than a short one, whichever way it is bracketed."""
    subject = Filter(" OR ".join(f"a = {number}" for number in range(10_000)), limits=WIDE)
    assert subject.matches({"a": 9_999}) is True
    assert subject.evaluate(BATCH).tolist() == [True, True, False]
    assert Filter(str(subject), limits=WIDE) == subject
    assert subject == Filter(f"a IN ({', '.join(map(str, range(10_000)))})", limits=WIDE)


DEEP = {
    "conditions": nested(lambda inner: f"a OR a = 1 AND ({inner})", "a = 2", DEPTH_CEILING),
    "mixed": nested(lambda inner: f"a = 1 AND (s = 'x' OR {inner})", "a", DEPTH_CEILING),
    "values": nested(lambda inner: f"1 + 2 * ({inner})", "a", DEPTH_CEILING // 2) + " > 1",
    "negations": "NOT " * DEPTH_CEILING + "a",
    "signs": "a = " + "-" * DEPTH_CEILING + "a",
    "left": "a" + " - a" * DEPTH_CEILING + " = 1",
    "both": nested(lambda inner: f"NOT (a AND {inner})", f"{'a' + ' - a' * DEPTH_CEILING} = 1", DEPTH_CEILING // 2),
}


@pytest.mark.parametrize("shape", DEEP)
def test_the_deepest_filter_never_meets_the_recursion_limit(shape: str) -> None:
    """At the ceiling, and called from 300 frames down, everything one can do with a filter works."""

    def use() -> None:
        subject = Filter(DEEP[shape], limits=WIDE)
        subject.matches({"a": 1})
        subject.evaluate(BATCH)
        assert Filter(str(subject), limits=WIDE) == subject
        assert hash(subject) == hash(Filter(str(subject), limits=WIDE))
        assert hash(subject.condition) is not None
        assert subject.condition == Filter(str(subject), limits=WIDE).condition
        assert subject.attributes
        assert pickle.loads(pickle.dumps(subject)) == subject

    deep_in_the_stack(300, use)


@pytest.mark.parametrize(
    "text",
    [
        nested(lambda inner: f"a AND a = 1 + 2 * ({inner}", "a", 5_000),
        nested(lambda inner: f"NOT (a OR a AND ({inner}", "a", 5_000),
        nested(lambda inner: f"a BETWEEN -(1 * ({inner}", "a", 5_000),
        nested(lambda inner: f"({inner} + a - a)", "a", 5_000) + " = 1",
        nested(lambda inner: f"({inner}{' + a' * 90})", "a", 90) + " = 1",
    ],
)
def test_deeper_filters_are_refused_before_the_stack_is_used_up(text: str) -> None:
    """Nesting in every mixture ends in a limit or syntax error; so do chains that grow inside parentheses on the left."""
    with pytest.raises(FilterSyntaxError):
        deep_in_the_stack(300, lambda: parse(text, WIDE))


@pytest.mark.parametrize("field", ["length_max", "tokens_max", "depth_max", "in_values_max", "like_length_max"])
def test_limits_are_positive(field: str) -> None:
    """A limit of zero would refuse everything."""
    with pytest.raises(InvalidValueError, match=field):
        FilterLimits(**{field: 0})


def test_depth_stays_below_what_the_stack_allows() -> None:
    """No configuration can bring recursion back."""
    with pytest.raises(InvalidValueError, match="depth_max"):
        FilterLimits(depth_max=DEPTH_CEILING + 1)
