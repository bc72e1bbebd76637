"""Theorem 1 and Corollary 2: the largest matching set of the publisher history against the skew and the jitter.

The paper's load with blooms of n = 2,521: T_n is 504 ms. Clocks are spread over the whole tolerance; jitter delays messages
on their way. Where 2 T_s + T_j <= w T_n the set must not exceed w + 1. The paper's settings are for w = 1: the runs beyond
T_n show what happens when that inequality is broken.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import numpy as np
from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Row, Values, as_number
from experiments.tracking.configurations import NEVER_MS, RATE
from experiments.tracking.load import PUBEND, WALL_MS, Load
from postroad.core.batch.batch import Ids
from postroad.tracking.histories.elements import Element
from postroad.tracking.histories.events import Published
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.queries.search import matching_sets

TITLE = "Matching sets against skew and jitter"
N = 2_521
LIFE_MS = 1000 * N / RATE
TURN_MS = 10  # how finely time is cut: an element's life is as long to within this


def run(values: Values, seed: int) -> Outcome:
    rows = [
        _row(int(skew), int(jitter), int(values["seconds"]), seed)
        for jitter in values["jitters_ms"]
        for skew in values["skews_ms"]
    ]
    kept = sum(row["largest"] <= row["bound"] for row in rows)
    beyond = [row for row in rows if row["overlap_ms"] > LIFE_MS]
    findings = [
        Finding("runs whose largest matching set is within w + 1", f"{kept} of {len(rows)}", "all"),
        Finding("runs where it is exactly w + 1", f"{sum(row['largest'] == row['bound'] for row in rows)} of {len(rows)}"),
        Finding(
            "runs with 2 T_s + T_j > T_n that exceed two",
            f"{sum(row['largest'] > 2 for row in beyond)} of {len(beyond)}, up to {max(row['largest'] for row in rows)}",
            "the bound does not hold there",
        ),
        Finding("mean matching set without skew and jitter", as_number(rows[0]["mean"])),
    ]
    return Outcome(rows, findings)


def _row(skew_ms: int, jitter_ms: int, seconds: int, seed: int) -> Row:
    elements, ids = _track(skew_ms, jitter_ms, seconds, seed)
    (sizes,) = matching_sets(elements, ids).values()
    overlap_ms = 2 * skew_ms + jitter_ms + TURN_MS
    life_ms = min(later.closed_ms - earlier.closed_ms for earlier, later in pairwise(elements))
    return {
        "skew_ms": skew_ms,
        "jitter_ms": jitter_ms,
        "overlap_ms": overlap_ms,
        "life_ms": life_ms,
        "bound": ceil(overlap_ms / life_ms) + 1,
        "largest": int(sizes.max()),
        "mean": float(sizes.mean()),
        "singletons": sum(len(element.singletons) for element in elements),
    }


def _track(skew_ms: int, jitter_ms: int, seconds: int, seed: int) -> tuple[list[Element], Ids]:
    settings = TrackingSettings(
        strategy=Strategy.BLOOM,
        n=N,
        persistence_ms=NEVER_MS,
        skew_tolerance_ms=skew_ms,
        jitter_ms=jitter_ms + TURN_MS,
    )
    tracker = Tracker(1, 1, settings, wall_ms=WALL_MS)
    random = np.random.default_rng(seed)
    turns = list(Load(seconds, skew_ms=skew_ms, turn_ms=TURN_MS, seed=seed).turns())
    ids = np.concatenate([turn.ids for turn in turns])
    came = np.repeat([turn.wall_ms for turn in turns], [len(turn.ids) for turn in turns])
    came += random.integers(0, jitter_ms + 1, len(ids)) // TURN_MS * TURN_MS
    order = np.argsort(came, kind="stable")
    ids, came = ids[order], came[order]
    for wall_ms in np.unique(came).tolist():
        tracker.take([Published(PUBEND, ids[came == wall_ms])], wall_ms)
    elements = [element for element in tracker.open_elements() if element.count == N]
    return elements, ids


def draw(outcome: Outcome) -> Figure:
    figure = Figure((5, 3.2))
    axes = figure.subplots()
    for jitter in dict.fromkeys(row["jitter_ms"] for row in outcome.rows):
        rows = [row for row in outcome.rows if row["jitter_ms"] == jitter]
        (line,) = axes.plot([row["skew_ms"] for row in rows], [row["largest"] for row in rows], "o", label=f"T_j = {jitter} ms")
        axes.step(
            [row["skew_ms"] for row in rows], [row["bound"] for row in rows], where="mid", color=line.get_color(), alpha=0.5
        )
    axes.set_xlabel("T_s in ms (T_n = 504 ms); dashes: the bound w + 1")
    axes.set_ylabel("largest matching set")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure
