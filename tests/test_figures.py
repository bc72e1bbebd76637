"""Documents for people: Markdown and self-contained HTML."""

from __future__ import annotations

import re

import pytest

from postroad.drawing import Edge, Graph
from postroad.figures import Document, Plot, Section, Table, markdown, number, page, svg

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


def test_an_axis_of_times_shows_the_clock() -> None:
    """Hours and minutes in the plot, whole moments in Markdown; both in UTC, whatever the machine's zone."""
    points = [(1_700_000_000.0 + 60 * minute, float(minute)) for minute in range(30)]
    plot = Plot("rates", "time", "messages/s", {"one": points}, clock=True)
    assert re.search(r">22:\d\d<", svg(plot))
    text = markdown(Document("title", "", (Section("s", "", (plot,)),)))
    assert "| one | 2023-11-14 22:13:20 | 0 |" in text


def test_a_long_table_is_folded_and_complete() -> None:
    """The first rows are seen at once, the others after a click; Markdown has all."""
    table = Table("many", ("name", "count"), tuple((f"row {number}", number) for number in range(1_000)), shown=20)
    document = Document("title", "", (Section("s", "bad news", (table,), "bad"),))
    made = page(document)
    before, _, after = made.partition("<details>")
    assert "<summary>980 more</summary>" in after
    assert "row 19<" in before
    assert "row 20<" not in before
    assert "row 999<" in after
    assert '<p class="bad">bad news</p>' in made
    assert markdown(document).count("| row ") == 1_000


def test_a_graph_is_a_table_in_markdown() -> None:
    """Its edges with what they carry."""
    graph = Graph("links", (("1", ""), ("2", "")), (Edge("1", "2", 5.0, "5"),), "messages")
    assert "| from | to | messages |\n|---|---|---|\n| 1 | 2 | 5 |" in markdown(Document("t", "", (Section("s", "", (graph,)),)))
