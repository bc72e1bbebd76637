"""Documents for people: Markdown and self-contained HTML."""

from __future__ import annotations

import re

import pytest

from postroad.figures import Document, Plot, Section, Table, markdown, number, page

DOCUMENT = Document(
    "A report",
    "What happened.",
    (
        Section(
            "Traffic",
            "",
            (
                Table("By name", ("name", "count"), (("<script>alert(1)</script>", 12345), ("a|b", None))),
                Plot("Rates", "minutes", "messages/s", {"_one": [(0, 1.0), (1, 2.0)], "two": [(0, 3.0), (1, 1.0)]}),
            ),
        ),
    ),
)


def test_names_from_outside_cannot_break_out_of_a_page() -> None:
    """Subscribers choose their names; a page shows them as text, and loads nothing."""
    pytest.importorskip("matplotlib")
    made = page(DOCUMENT)
    assert "<script>" not in made
    assert "&lt;script&gt;" in made
    assert not re.search(r'(src|href)="https?:', made)
    assert "<svg" in made


def test_markdown_shows_tables_and_the_points_of_plots() -> None:
    """Cells cannot break a table, and a plot is there as numbers."""
    made = markdown(DOCUMENT)
    assert "| &lt;script>alert(1)&lt;/script> | 12,345 |" in made
    assert "| a\\|b |  |" in made
    assert "| two | 1 | 1 |" in made


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (1234567, "1,234,567"), (0.5, "0.5"), (12345.6, "12,346"), (1e-9, "1e-09"), (float("nan"), "-"), (True, "True")],
)
def test_numbers_are_shown_as_people_read_them(value: float | None, text: str) -> None:
    """Thousands are grouped, small numbers keep their digits, what is missing is empty."""
    assert number(value) == text
