"""All runs of section 5: each policy with each number of subscribers, for one seed or several; shared by both figures."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from typing import Any, Final

from matplotlib.axes import Axes

from experiments.admission.testbed import Measures, Testbed
from experiments.outcome import Row, Values, as_number

NONE, FULL, LESS, MORE = "none", "full", "20%", "40%"
ESTIMATED: Final = "full, estimated"  # beyond the paper: `full` with what filters are expected to bring
POLICIES: Final = (NONE, FULL, LESS, MORE, ESTIMATED)
MEASURES: Final = ("discard_per_s", "rejection_rate", "cpu_utilisation", "bandwidth_utilisation")


def simulate(policy: str, subscribers: int, seed: int, values: Values) -> Measures:
    """Carry out one run."""
    gc.set_threshold(50_000)  # what a run allocates, it mostly keeps
    estimate = policy == ESTIMATED
    return Testbed(FULL if estimate else policy, subscribers, seed, values, estimate=estimate).measure()


def rows_of(values: Values, seed: int) -> list[Row]:
    """Return a row per policy and number of subscribers: the mean of each measure over the seeds, its least and its largest."""
    return json.loads(_rows(json.dumps(values, sort_keys=True), seed))  # type: ignore[no-any-return]


@lru_cache
def _rows(values_text: str, seed: int) -> str:
    values: Values = json.loads(values_text)
    seeds = range(seed, seed + values["seeds"])
    places = [(policy, number, each) for number in values["subscribers"] for policy in POLICIES for each in seeds]
    places.sort(key=lambda place: (place[2], -place[1]))  # seed by seed, the longest first
    done: dict[tuple[str, int, int], Measures] = {}
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        waiting = {pool.submit(simulate, *place, values): place for place in places}
        for future in as_completed(waiting):
            done[waiting[future]] = future.result()
            policy, number, each = waiting[future]
            print(f"{len(done)} of {len(places)} runs: {policy}, {number} subscribers, seed {each}", file=sys.stderr, flush=True)
    rows = [
        {"policy": policy, "subscribers": number, **_spread([done[policy, number, each] for each in seeds])}
        for policy in POLICIES
        for number in values["subscribers"]
    ]
    return json.dumps(rows)


def _spread(runs: Sequence[Measures]) -> Row:
    row: Row = {}
    for name in MEASURES:
        found = [getattr(run, name) for run in runs]
        row[name] = round(sum(found) / len(found), 4)
        row[f"{name}_least"], row[f"{name}_largest"] = min(found), max(found)
    row["requests"] = sum(run.requests for run in runs)
    return row


def summarise(rows: Sequence[Row], values: Values, seed: int) -> Row:
    """Return the object that `--json` prints: by policy and number of subscribers; the spread if there are several seeds."""
    names = [name for name in rows[0] if name not in {"policy", "subscribers", "requests"}]
    if values["seeds"] == 1:
        names = list(MEASURES)
    summary: dict[str, Any] = {"seed": seed, "seeds": values["seeds"]}
    for row in rows:
        summary.setdefault(row["policy"], {})[str(row["subscribers"])] = {name: row[name] for name in names}
    return summary


def of_policy(rows: Sequence[Row], policy: str) -> list[Row]:
    return [row for row in rows if row["policy"] == policy]


def plot(axes: Axes, rows: Sequence[Row], name: str, label: str, factor: float = 1.0) -> None:
    """Draw one measure: a line per policy through the means, with bars from the least to the largest."""
    for policy in POLICIES:
        ours = of_policy(rows, policy)
        means = [row[name] * factor for row in ours]
        below = [mean - row[f"{name}_least"] * factor for mean, row in zip(means, ours, strict=True)]
        above = [row[f"{name}_largest"] * factor - mean for mean, row in zip(means, ours, strict=True)]
        style = "--" if policy == ESTIMATED else "-"
        errors = [[max(0.0, each) for each in side] for side in (below, above)]
        axes.errorbar([row["subscribers"] for row in ours], means, errors, label=policy, capsize=2, marker=".", linestyle=style)
    axes.set_xlabel("subscribers")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()


def as_table(rows: Sequence[Row], name: str, title: str) -> str:
    """Return a Markdown table of a measure: a line per policy, a column per number of subscribers."""
    numbers = [row["subscribers"] for row in of_policy(rows, POLICIES[0])]
    lines = [f"| {title} | " + " | ".join(map(str, numbers)) + " |", "|---" * (len(numbers) + 1) + "|"]
    for policy in POLICIES:
        cells = [
            f"{as_number(row[name])} ({as_number(row[f'{name}_least'])} to {as_number(row[f'{name}_largest'])})"
            for row in of_policy(rows, policy)
        ]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def at_most_subscribers(rows: Sequence[Row], policy: str, name: str) -> str:
    """Say the mean of a measure with the most subscribers, and its spread."""
    row = of_policy(rows, policy)[-1]
    return f"{row[name]:.3g} ({row[f'{name}_least']:.3g} to {row[f'{name}_largest']:.3g})"
