"""Writes `experiments/README.md` from the results that are there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments.outcome import ROOT

HEAD: Final = """<!-- Written by `python -m experiments.run`; do not edit. -->

# Experiments

The figures and tables of the papers, made again with this code. `make figures` runs all of them, shortened;
`python -m experiments.run --full` takes as long as the papers did. Each has its values and its seed in `<paper>/<figure>.toml`
and its results in `<paper>/results/`: `.json` (everything), `.csv` (the rows), `.svg` (the plot).
"""


def write_readme(experiments: Mapping[str, Sequence[str]], path: Path = ROOT / "README.md") -> None:
    path.write_text(readme(experiments), encoding="utf-8")


def readme(experiments: Mapping[str, Sequence[str]]) -> str:
    parts = [HEAD]
    for paper, names in experiments.items():
        parts.append(f"## {paper}\n")
        for name in names:
            path = ROOT / paper / "results" / f"{name}.json"
            if path.exists():
                parts.append(_section(paper, name, json.loads(path.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def _section(paper: str, name: str, document: dict[str, Any]) -> str:
    files = f"{paper}/results/{name}"
    lines = [
        f"### {name}: {document['title']}\n",
        f"`{document['command']}`, seed {document['seed']}. [Rows]({files}.csv), [plot]({files}.svg).\n",
        "| | ours | the paper's |\n|---|---|---|",
        *(f"| {finding['what']} | {finding['ours']} | {finding['paper']} |" for finding in document["findings"]),
        "",
    ]
    lines += [f"{note}\n" for note in document["notes"]]
    differs = tomllib.loads((ROOT / paper / f"{name}.toml").read_text(encoding="utf-8")).get("differs", [])
    if differs:
        lines += ["Where it does not match the paper:\n", *(f"- {each}" for each in differs), ""]
    return "\n".join(lines)
