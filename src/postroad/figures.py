"""Tables and plots for people: a document of sections, as Markdown and as one HTML file that needs nothing else.

Used by the pipeline's `report` and by experiments. Plots are drawn with matplotlib, which is imported when the first is; in
Markdown their numbers stand as tables.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import isfinite
from typing import Any, Final, Literal, TypeAlias

from postroad.drawing import Graph, drawing

Cell: TypeAlias = str | int | float | None

WIDTH_IN: Final = 7.5
HEIGHT_IN: Final = 3.2
POINTS_SHOWN_MAX: Final = 40
LEGEND_ROWS: Final = 8

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1a1a1a; background: #fff }
h1, h2, h3 { line-height: 1.2 } table { border-collapse: collapse; margin: 1rem 0 }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left }
thead th { position: sticky; top: 0 } .box { max-height: 32rem; overflow: auto } summary { cursor: pointer }
p.good, p.bad, p.unsure { font-size: 1.15rem; padding: .6rem .9rem; border-left: .4rem solid }
p.good { background: #e8f5e9; border-color: #2e7d32 } p.bad { background: #fdecea; border-color: #c62828 }
p.unsure { background: #fff8e1; border-color: #f9a825 } svg { max-width: 100%; height: auto }
td { max-width: 28rem; overflow-wrap: break-word }
td.number { text-align: right; font-variant-numeric: tabular-nums }
th { background: #f2f2f2 } figure { margin: 1rem 0 } figcaption { color: #555 }
"""


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    shown: int | None = None  # rows that are seen at once; a page folds the others away


@dataclass(frozen=True, slots=True)
class Plot:
    """Series of (x, y) points by name. With `clock` the x are seconds since 1970 and are shown as times of day, UTC."""

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    kind: Literal["line", "step", "bar"] = "line"
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    clock: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    text: str = ""
    parts: tuple[Table | Plot | Graph, ...] = ()
    mood: Literal["", "good", "bad", "unsure"] = ""  # how a page colours the text


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    text: str
    sections: tuple[Section, ...]


def number(value: Cell) -> str:
    """Show a value as a person reads it."""
    match value:
        case None:
            return ""
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            if not isfinite(value):
                return "-"
            if value == 0 or 1e-3 <= abs(value) < 1e7:
                return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
            return f"{value:.3g}"


# --- Markdown -------------------------------------------------------------------------------------------------------------


def markdown(document: Document) -> str:
    parts = [f"# {document.title}", document.text]
    for section in document.sections:
        parts += [f"## {section.title}", section.text]
        for part in section.parts:
            parts.append(_markdown_table(_as_table(part)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(table: Table) -> str:
    head = [f"**{table.title}**"] if table.title else []
    head += [table.note] if table.note else []
    if not table.rows:
        return "\n\n".join([*head, "(nothing)"])
    lines = ["| " + " | ".join(map(_markdown_cell, table.columns)) + " |", "|" + "---|" * len(table.columns)]
    lines += ["| " + " | ".join(_markdown_cell(number(cell)) for cell in row) + " |" for row in table.rows]
    return "\n\n".join([*head, "\n".join(lines)])


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _as_table(part: Table | Plot | Graph) -> Table:
    """Show a plot by its points, thinned out when there are many, and a graph by its edges."""
    match part:
        case Table():
            return part
        case Graph():
            edges = [(edge.source, edge.target, edge.label) for edge in part.edges]
            return Table(part.title, ("from", "to", part.unit), tuple(edges), part.note)
        case Plot():
            rows: list[tuple[Cell, ...]] = []
            for name, points in part.series.items():
                apart = max(1, -(-len(points) // POINTS_SHOWN_MAX))
                rows += [(name, clock_text(x) if part.clock else x, y) for x, y in points[::apart]]
            return Table(part.title, ("series", part.x, part.y), tuple(rows), part.note)


def clock_text(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")


# --- HTML -----------------------------------------------------------------------------------------------------------------


def page(document: Document) -> str:
    """Return a self-contained HTML page: styles and plots are in it, nothing is loaded."""
    parts = [f"<h1>{html.escape(document.title)}</h1>", _paragraph(document.text)]
    for section in document.sections:
        parts += [f"<h2>{html.escape(section.title)}</h2>", _paragraph(section.text, section.mood)]
        parts += [_html_part(part) for part in section.parts]
    title = html.escape(document.title)
    head = f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>'
    return f"{head}\n<body>\n" + "\n".join(part for part in parts if part) + "\n</body></html>\n"


def _paragraph(text: str, mood: str = "") -> str:
    """Return a text as paragraphs, one per line."""
    kind = f' class="{mood}"' if mood else ""
    return "\n".join(f"<p{kind}>{html.escape(line)}</p>" for line in text.splitlines() if line)


def _html_part(part: Table | Plot | Graph) -> str:
    match part:
        case Table():
            return _html_table(part)
        case Plot():
            return _html_figure(svg(part), part.title, part.note)
        case Graph():
            return _html_figure(drawing(part), part.title, part.note)


def _html_table(table: Table) -> str:
    """Return a table; what is folded away opens with a click, in a box that scrolls."""
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    shown = len(table.rows) if table.shown is None else table.shown
    text = f"{title}{_paragraph(table.note)}{_html_rows(table, table.rows[:shown])}"
    if rest := table.rows[shown:]:
        text += f'<details><summary>{len(rest):,} more</summary><div class="box">{_html_rows(table, rest)}</div></details>'
    return text


def _html_rows(table: Table, rows: Sequence[tuple[Cell, ...]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    body = "\n".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _html_cell(cell: Cell) -> str:
    numeric = isinstance(cell, int | float) and not isinstance(cell, bool)
    return f"<td{' class=number' if numeric else ''}>{html.escape(number(cell))}</td>"


def _html_figure(drawn: str, title: str, note: str) -> str:
    caption = html.escape(title + (f". {note}" if note else ""))
    return f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"


def svg(plot: Plot) -> str:
    """Draw a plot as an SVG element."""
    from matplotlib import rc_context  # noqa: PLC0415  # half a second that only plots should cost
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "postroad", "font.size": 9}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes: Any = figure.add_subplot()
        for name, points in plot.series.items():
            _draw(axes, plot, name, points)
        axes.set(xlabel=plot.x, ylabel=plot.y, xscale="log" if plot.log_x else "linear", yscale="log" if plot.log_y else "linear")
        axes.grid(visible=True, alpha=0.3)
        if plot.clock:
            _show_clock(axes)
        if len(plot.series) > 1:
            axes.legend(fontsize=8, ncols=1 + (len(plot.series) - 1) // LEGEND_ROWS)
        out = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None})
    drawn = out.getvalue()
    return drawn[drawn.index("<svg") :]


def _show_clock(axes: Any) -> None:
    """Let an axis of times say the hour at each mark, and the date once."""
    from matplotlib import dates  # noqa: PLC0415

    untyped: Any = dates
    locator = untyped.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=UTC))


def _draw(axes: Any, plot: Plot, name: str, points: Sequence[tuple[float, float]]) -> None:
    x: list[Any] = [datetime.fromtimestamp(point[0], UTC) if plot.clock else point[0] for point in points]
    y = [point[1] for point in points]
    label = name.lstrip("_") or name  # a leading underscore would hide it from the legend
    if plot.kind == "bar":
        axes.bar(x, y, label=label, width=0.8 * min((b - a for a, b in pairwise(x)), default=1))
    elif plot.kind == "step":
        axes.step(x, y, label=label, where="post")
    else:
        axes.plot(x, y, label=label, marker="o" if len(points) <= POINTS_SHOWN_MAX else None, markersize=3)
