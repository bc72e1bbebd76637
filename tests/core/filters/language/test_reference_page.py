"""The reference page says what the code does."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.core.filters.strategies import one_row

from postroad import Filter, FilterSyntaxError
from postroad.core.filters.language.lexer import KEYWORDS
from postroad.core.filters.language.limits import FilterLimits

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "filters.md").read_text(encoding="utf-8")
ANSWERS = {True: "true", False: "false", None: "unknown"}


def examples() -> list[tuple[str, str, str]]:
    """Return the rows of all tables of filter, message and answer."""
    rows: list[tuple[str, str, str]] = []
    inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if cells == ["filter", "message", "answer"]:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            rows.append((cells[0], cells[1], cells[2]))
    return rows


def answer(text: str, message: str) -> str:
    try:
        return ANSWERS[Filter(text).matches(json.loads(message))]
    except FilterSyntaxError:
        return "refused"


def test_the_page_has_examples() -> None:
    """The tables are found, so that the next test cannot pass for want of them."""
    assert len(examples()) > 40


@pytest.mark.parametrize(("text", "message", "expected"), examples())
def test_each_example_of_the_page_comes_out_as_it_says(text: str, message: str, expected: str) -> None:
    """A filter and a message give the answer printed beside them, as a batch of one too."""
    assert answer(text, message) == expected
    if expected != "refused":
        assert Filter(text).evaluate(one_row(json.loads(message))).tolist() == [expected == "true"]


def test_each_recipe_of_the_page_parses() -> None:
    """The first table is what people copy."""
    table = PAGE.split("| You want | Filter |")[1].split("\n\n")[0]
    recipes = [text for text in re.findall(r"`([^`]+)`", table) if not text.isspace()]
    assert len(recipes) > 10
    assert all(Filter(text).condition for text in recipes)


def test_the_page_names_every_keyword_and_limit() -> None:
    """A keyword or limit that the reference does not mention does not exist for the reader."""
    keywords = next(line for line in PAGE.splitlines() if line.startswith("keywords"))
    assert set(keywords.split()[1:]) == KEYWORDS
    for field in fields(FilterLimits):
        assert f"| `{field.name}` | {field.default} |" in PAGE


def test_the_error_shown_on_the_page_is_the_error_one_gets() -> None:
    """Reason, position and pointer."""
    with pytest.raises(FilterSyntaxError) as caught:
        Filter("price > 10 AND symbol > 'A'")
    assert f"FilterSyntaxError: {caught.value}" in PAGE
