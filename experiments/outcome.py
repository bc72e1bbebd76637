"""What an experiment is, and how its results are kept.

An experiment is a module with `TITLE`, `run(values, seed) -> Outcome` and `draw(outcome) -> Figure`. Its values stand beside
it in a file of the same name, `<figure>.toml`: the seed, and a table `short` (the default) and `full` (as long as the
paper's). Results are a JSON document with everything, the rows as CSV, and the plot as SVG; two runs with one seed give the
same bytes, unless time is measured.
"""

from __future__ import annotations

import csv
import io
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT: Final = Path(__file__).parent
Row: TypeAlias = dict[str, Any]
Values: TypeAlias = dict[str, Any]

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "postroad"
mpl.rcParams["svg.fonttype"] = "none"
mpl.rcParams["font.size"] = 9


@dataclass(frozen=True)
class Finding:
    """One value of ours beside the paper's."""

    what: str
    ours: str
    paper: str = "-"


@dataclass(frozen=True)
class Outcome:
    """The rows of a figure or table, and what they say."""

    rows: list[Row]
    findings: list[Finding]
    notes: list[str] = field(default_factory=list)
    summary: Row = field(default_factory=dict)  # what `--json` prints


class Experiment(Protocol):
    """The module of a figure."""

    TITLE: str

    def run(self, values: Values, seed: int) -> Outcome:
        """Make the rows."""

    def draw(self, outcome: Outcome) -> Figure:
        """Plot them."""


def read_values(paper: str, name: str, *, full: bool) -> tuple[Values, int]:
    """Return the values of an experiment and its seed."""
    document = tomllib.loads((ROOT / paper / f"{name}.toml").read_text(encoding="utf-8"))
    return {**document.get("all", {}), **document["full" if full else "short"]}, int(document["seed"])


def keep(paper: str, name: str, title: str, outcome: Outcome, values: Values, seed: int, *, full: bool, figure: Figure) -> Path:
    """Write the results of an experiment."""
    directory = ROOT / paper / "results"
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "title": title,
        "command": f"python -m experiments.run {paper} --only {name}" + (" --full" if full else ""),
        "seed": seed,
        "values": values,
        "findings": [vars(finding) for finding in outcome.findings],
        "notes": outcome.notes,
        "rows": outcome.rows,
    }
    (directory / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (directory / f"{name}.csv").write_text(_csv(outcome.rows), encoding="utf-8")
    figure.savefig(directory / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    return directory / f"{name}.json"


def _csv(rows: list[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_number(value: float, digits: int = 3) -> str:
    """Return a number as a person reads it."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{digits}g}" if abs(value) < 1_000 else f"{value:,.0f}"
