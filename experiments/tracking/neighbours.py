"""Section 3.3's two ways to ask fewer neighbours, measured: a history per neighbour (H_{b,d}), and routing sets in the key.

A broker with D neighbours forwards each message to each of them with some probability. `plain` knows only that it routed the
message: all D neighbours are asked on. `per_neighbour` keeps a history more for each. `routing_sets` keeps one history with
(id, set) as keys and asks it 2^D times. Blooms are the paper's of 99.999%. Storage is that of blooms in the routing and
neighbour histories; the time is that of a search for 1,000 ids at once.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Row, Values, as_number
from experiments.tracking.load import PUBEND, WALL_MS, Load
from postroad.tracking.histories.elements import Element, Kind
from postroad.tracking.histories.events import Forwarded, Routed, TrackEvent
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.queries.search import search

TITLE = "Histories per neighbour and routing sets"
METHODS = ("plain", "per_neighbour", "routing_sets")
BASE = TrackingSettings(strategy=Strategy.BLOOM, few_as_ids=False, persistence_ms=10_000)
UPSTREAM = 99


def run(values: Values, seed: int) -> Outcome:
    rows = [
        _row(method, int(degree), float(share), int(values["seconds"]), seed)
        for share in values["shares"]
        for degree in values["degrees"]
        for method in METHODS
    ]
    found = {(row["method"], row["degree"], row["share"]): row for row in rows}
    degree, share = int(values["degrees"][1]), float(values["shares"][0])
    findings = [
        Finding(
            f"{method}, D = {degree}, each message to {share:.0%} of them: bytes per message",
            as_number(found[method, degree, share]["bytes"]),
        )
        for method in METHODS
    ]
    findings += [
        Finding(
            f"{method}, likewise: neighbours asked per message ({as_number(found[method, degree, share]['told'])} got it)",
            as_number(found[method, degree, share]["asked"], 4),
            paper,
        )
        for method, paper in zip(METHODS, ("D", "no unnecessary ones", "no unnecessary ones"), strict=True)
    ]
    most = max(int(degree) for degree in values["degrees"])
    times = {degree: found["routing_sets", degree, share]["search_us"] for degree in (degree, most)}
    findings.append(
        Finding(
            "routing sets: microseconds per id to search, D = " + " and ".join(map(str, times)),
            " and ".join(map(as_number, times.values())),
            "2^D queries",
        )
    )
    worth = times[degree] / degree
    findings.append(
        Finding(
            f"routing sets pay when asking a neighbour costs more than (D = {degree})",
            f"{as_number(worth)} us",
            "CONTAINS x M x 2^D < W x D",
        )
    )
    return Outcome(rows, findings)


def _row(method: str, degree: int, share: float, seconds: int, seed: int) -> Row:
    settings = replace(BASE, per_neighbour=method == "per_neighbour", routing_sets=method == "routing_sets")
    tracker = Tracker(2, 1, settings, wall_ms=WALL_MS)
    elements: list[Element] = []
    random = np.random.default_rng(seed)
    neighbours = tuple(range(10, 10 + degree))
    sent, masks = [], []
    for turn in Load(seconds, seed=seed).turns():
        to = random.random((len(turn.ids), degree)) < share
        mask = (to << np.arange(degree)).sum(axis=1).astype(np.uint64)
        events: list[TrackEvent] = [Routed(PUBEND, UPSTREAM, turn.ids, mask, neighbours)]
        if method == "per_neighbour":
            events += [Forwarded(PUBEND, neighbour, turn.ids[to[:, bit]]) for bit, neighbour in enumerate(neighbours)]
        tracker.take(events, turn.wall_ms)
        if tracker.wants_flush(turn.wall_ms):
            elements += tracker.flush(turn.wall_ms).closed
        sent.append(turn.ids)
        masks.append(mask)
    elements += tracker.flush(WALL_MS + 1_000 * seconds, farewell=True).closed
    every, truth = np.concatenate(sent), np.concatenate(masks)
    pick = np.sort(random.choice(len(every), min(5_000, len(every)), replace=False))
    asked = _asked(method, elements, every[pick], degree)
    told = np.array([int(mask).bit_count() for mask in truth[pick].tolist()])
    return {
        "method": method,
        "degree": degree,
        "share": share,
        "bytes": sum(element.m // 8 for element in elements) / len(every),
        "elements": len(elements),
        "told": float(told.mean()),
        "asked": float(asked.mean()),
        "missed": int((asked < told).sum()),
        "search_us": 1e6 * _search_time(elements, every[pick[:1_000]]) / 1_000,
    }


def _asked(
    method: str, elements: list[Element], ids: np.ndarray[tuple[int], np.dtype[np.void]], degree: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many neighbours a trace would go on to from this broker, for each id."""
    asked = np.zeros(len(ids), np.int64)
    for row, key, _, forwarded in search(elements, ids):
        if method == "plain":
            asked[row] = degree
        elif method == "per_neighbour":
            asked[row] += key.kind is Kind.NEIGHBOUR
        else:
            asked[row] = len(forwarded or ())
    return asked


def _search_time(elements: list[Element], ids: np.ndarray[tuple[int], np.dtype[np.void]]) -> float:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        search(elements, ids)
        times.append(time.perf_counter() - started)
    return min(times)


def draw(outcome: Outcome) -> Figure:
    figure = Figure((8, 3))
    panels = figure.subplots(1, 3)
    share = outcome.rows[0]["share"]
    for axes, (column, label) in zip(
        panels, (("bytes", "bytes per message"), ("asked", "neighbours asked"), ("search_us", "us per id to search")), strict=True
    ):
        for method in METHODS:
            rows = [row for row in outcome.rows if row["method"] == method and row["share"] == share]
            axes.plot([row["degree"] for row in rows], [row[column] for row in rows], "o-", label=method)
        axes.set_xlabel("neighbours D")
        axes.set_title(label, fontsize=9)
        axes.grid(visible=True, alpha=0.3)
    panels[2].set_yscale("log")
    panels[0].legend(fontsize=7)
    figure.tight_layout()
    return figure
