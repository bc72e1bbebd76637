"""Line plots over time, one column per rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.outcome import Row

NAMES: Final = {"published": "PB"}
WIDTH: Final = 4.2
HEIGHT: Final = 2.2


def draw_rates(
    rows: Sequence[Row], lines: Sequence[str], *, backlog: str | None = None, more: Sequence[tuple[str, Sequence[str]]] = ()
) -> Figure:
    """Draw rates over time for each rule; below them the backlog of a link in KB, and other quantities."""
    panels: list[tuple[str, Sequence[str], float]] = [("msg/s", lines, 1)]
    if backlog is not None:
        panels.append(("backlog, KB", [backlog], 1 / 1024))
    panels += [(label, names, 1) for label, names in more]
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    figure = Figure(figsize=(WIDTH * len(rules), HEIGHT * len(panels)))
    axes = figure.subplots(len(panels), len(rules), squeeze=False, sharex="col", sharey="row")
    for column, rule in enumerate(rules):
        chosen = [row for row in rows if row["rule"] == rule]
        for line, (label, names, scale) in enumerate(panels):
            _draw_lines(axes[line][column], chosen, names, scale)
            if column == 0:
                axes[line][column].set_ylabel(label)
        axes[0][column].set_title(rule)
        axes[-1][column].set_xlabel("seconds")
    figure.tight_layout()
    return figure


def _draw_lines(axes: Axes, rows: Sequence[Row], names: Sequence[str], scale: float) -> None:
    for name in names:
        axes.plot([row["t"] for row in rows], [row[name] * scale for row in rows], label=NAMES.get(name, name), linewidth=0.8)
    axes.legend(loc="best", fontsize=7)
    axes.grid(alpha=0.3)
