"""The page docs/internals/walk.md is true: its functions exist, and one message passes through them in that order."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.walk import function_code, named, trace

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "walk.md"
STEP = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` `([\w.]+)` \| .+ \|$", re.MULTILINE)


def test_a_message_passes_through_the_functions_of_the_walk_in_order(tmp_path: Path) -> None:
    """Each step is called after the step before it."""
    steps = STEP.findall(PAGE.read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    calls = iter(trace(tmp_path))
    for number, path, name in steps:
        code = function_code(path, name)
        assert any(call is code for call in calls), f"step {number}, {path} {name}, is not called after step {int(number) - 1}"


def test_the_walk_fits_into_a_head() -> None:
    """At most 60 functions; the page names fewer modules than functions, since rooms are visited once."""
    steps = [(path, name) for _, path, name in STEP.findall(PAGE.read_text(encoding="utf-8"))]
    assert 40 <= len(set(steps)) <= 60
    assert all(named(function_code(path, name)) == (path, name) for path, name in steps)
