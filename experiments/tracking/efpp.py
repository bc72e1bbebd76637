"""Measured false positives against the configured ones: single blooms (equation 1) and whole histories (equation 2).

Histories are tracked from the paper's load with publishers' clocks that differ by as much as Theorem 1 allows for matching
sets of two, and are asked for ids that nobody published, at all times of the run. The expected rate takes each id's own
matching set.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Row, Values, as_number
from experiments.tracking.configurations import BLOOMS, EFPP, NEVER_MS, RATE
from experiments.tracking.load import PUBEND, WALL_MS, Load, published, strangers
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import Element
from postroad.tracking.histories.events import Published
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.histories.tuning import efpp
from postroad.tracking.queries.search import matching_sets, search

TITLE = "Measured false positives against configured ones"
STEP = 1 << 18
TURN_MS = 20


def run(values: Values, seed: int) -> Outcome:
    rows = [_row(limit, accuracy, values, seed) for limit, accuracy in BLOOMS]
    findings = []
    for row in rows:
        name = f"{row['accuracy']}, m = {row['m']:,}, k = {row['k']}, n = {row['n']:,}"
        said = f"{as_number(row['fpp_measured'])} ({row['fpp_sigmas']:+.1f} sigma)"
        findings.append(Finding(f"{name}: one bloom", said, f"equation (1): {as_number(row['fpp'])}"))
        said = f"{as_number(row['efpp_measured'])} ({row['efpp_sigmas']:+.1f} sigma), largest matching set {row['matching_set']}"
        asked = f"equation (2): {as_number(row['efpp_expected'])}; at most {as_number(row['efpp_configured'])}"
        findings.append(Finding(f"{name}: a history", said, asked))
    return Outcome(rows, findings)


def _row(limit: int, accuracy: str, values: Values, seed: int) -> Row:
    m, k, n = BLOOMS[limit, accuracy]
    fpp = blooms.fpp(m, k, n)
    probes = int(values["probes_rare"] if fpp < 1e-4 else values["probes"])
    row: Row = {"accuracy": accuracy, "limit_bytes": limit, "m": m, "k": k, "n": n, "fpp": fpp, "probes": probes}
    row["fpp_measured"], row["fpp_sigmas"] = _single(m, k, n, probes, seed)
    row["efpp_configured"], row["efpp_bound"] = EFPP[accuracy], efpp(fpp, 2)
    elements = _history(m, k, n, int(values["elements"]), seed)
    row.update(_whole(elements, fpp, probes, seed))
    return row


def _single(m: int, k: int, n: int, probes: int, seed: int) -> tuple[float, float]:
    """Ask several full blooms for strangers; return the rate, and how far it is from equation (1)."""
    several, hits = 8, 0
    for number in range(several):
        bits = blooms.empty(m)
        blooms.add_ids(bits, published(n, seed + number), m, k)
        for part in range(0, probes // several, STEP):
            ids = strangers(min(STEP, probes // several - part), n // 5, np.random.default_rng((seed, number, part, n)))
            hits += int(blooms.contains(bits, blooms.positions(ids, m, k)).sum())
    mean = blooms.fpp(m, k, n) * (probes // several) * several
    return hits / (probes // several * several), (hits - mean) / _sigma(mean, m, k, n, several)


def _sigma(mean: float, m: int, k: int, n: int, several: int) -> float:
    """Return the statistical error: of counting, and of the share of set bits, which varies from bloom to bloom."""
    load = k * n / m
    zeros = m * np.exp(-load) * (1 - (1 + load) * np.exp(-load))
    spread = k * sqrt(zeros) / m / (1 - np.exp(-load))
    return sqrt(mean + (mean * float(spread)) ** 2 / several)


def _history(m: int, k: int, n: int, count: int, seed: int) -> list[Element]:
    """Track the load until so many elements are full, with the largest skew for matching sets of two."""
    life_ms = 1000 * n // RATE
    skew_ms = max((life_ms - 3 * TURN_MS) // 2, 1)
    settings = TrackingSettings(
        strategy=Strategy.BLOOM, m=m, k=k, n=n, persistence_ms=NEVER_MS, skew_tolerance_ms=skew_ms, jitter_ms=TURN_MS
    )
    load = Load(count * life_ms // 1000 + 2, skew_ms=skew_ms, turn_ms=TURN_MS, seed=seed)
    tracker = Tracker(1, 1, settings, wall_ms=WALL_MS)
    elements: list[Element] = []
    for turn in load.turns():
        tracker.take([Published(PUBEND, turn.ids)], turn.wall_ms)
        elements = (
            [element for element in tracker.open_elements() if element.count == n] if turn.wall_ms % 1000 == 0 else elements
        )
        if len(elements) >= count:
            break
    return elements[:count]


def _whole(elements: list[Element], fpp: float, probes: int, seed: int) -> Row:
    low, high = min(element.from_ms for element in elements), max(element.to_ms for element in elements)
    hits, mean, largest = 0, 0.0, 0
    for part in range(0, probes, STEP):
        ids = strangers(min(STEP, probes - part), high - low, np.random.default_rng((seed, part, len(elements))), low)
        (sizes,) = matching_sets(elements, ids).values()
        largest = max(largest, int(sizes.max()))
        mean += float(np.sum(1 - (1 - fpp) ** sizes))
        hits += len(search(elements, ids))
    one = elements[0]
    return {
        "efpp_expected": mean / probes,
        "efpp_measured": hits / probes,
        "efpp_sigmas": (hits - mean) / _sigma(mean, one.m, one.k, one.n, len(elements)),
        "matching_set": largest,
    }


def draw(outcome: Outcome) -> Figure:
    figure = Figure((5, 3.6))
    axes = figure.subplots()
    for name, expected, measured, mark in (
        ("one bloom", "fpp", "fpp_measured", "o"),
        ("history", "efpp_expected", "efpp_measured", "s"),
    ):
        axes.loglog(
            [row[expected] for row in outcome.rows], [row[measured] for row in outcome.rows], mark, label=name, fillstyle="none"
        )
    ends = [1e-6, 0.1]
    axes.loglog(ends, ends, color="gray", linewidth=0.8)
    axes.set_xlabel("equation (1), equation (2)")
    axes.set_ylabel("measured")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure
