"""What a filter says it takes of the memory is what it takes, or a little more."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from postroad.core.filters.filter import Filter

LONG = {
    "a list": f"s IN ({','.join(f'{chr(39)}{number:018d}{chr(39)}' for number in range(2_800))})",
    "patterns": " OR ".join(f"s LIKE 'a{number}%b'" for number in range(2_000)),
    "a conjunction": " AND ".join(f"a{number} = {number}" for number in range(3_000)),
    "a disjunction": " OR ".join(f"a{number} = {number}" for number in range(3_000)),
    "alternatives": " AND ".join(f"(a{number} = 1 OR b{number} = 2)" for number in range(1_500)),
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_filter_takes_at_most_its_size(text: str) -> None:
    """All that is derived from the text counts, too."""
    Filter("a = 1 AND b LIKE 'x%'").prepare()  # what is made once for all filters
    gc.collect()
    tracemalloc.start()
    filter_ = Filter(text)
    filter_.prepare()
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert filter_.size / 8 < taken <= filter_.size


def test_one_long_value_is_charged_by_its_characters() -> None:
    """300 filters of 60 kB each, all of them a single comparison, are no attack."""
    assert Filter(f"s = '{'x' * 60_000}'").size < 500_000
