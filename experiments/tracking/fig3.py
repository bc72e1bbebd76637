"""Fig. 3: latency of the configurations against no tracking. Two parts.

*Model*, for every row of Table 2 and for `exact`: the paper's broker in virtual time. Messages of the load wait for one
server, which needs `service_us` for each; when a buffer (publisher history, or one for all deliveries) is full or T_p is
over, the server first forces it to disk, which takes `force_ms` and the transfer. So latency is a matter of how often the
disk is forced, which is what the paper explains its figure with.

*Broker*: our broker, real processes over loopback, the same 200 publishers, 500 subscribers and 5,000 messages per second;
latency from `publish()` to the application. It tracks in a process of its own, so forces do not stand in a message's way,
and one file holds all that a flush has to store. T_p is the interval of the row; strategies take turns, and the median of the
rounds counts. All share the machine's cores, so compare ratios; what `null again` differs from `null` by is the noise.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.overlay import paced
from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Row, Values, as_number
from experiments.tracking.configurations import ALL, BLOOMS, Configuration
from experiments.tracking.load import Load
from postroad.runtime.config import Tracking
from postroad.tracking.histories.settings import Strategy

TITLE = "Latency of tracking strategies"
NULL = Tracking(strategy="null")
FIGURES = ("mean_ms", "p50_ms", "p99_ms", "broker_cpu")
QUOTED = {
    "null": "reference",
    "async 10K 1s": "severe disadvantage",
    "bloom 99.999% 10K 1s": "slight overhead",
    "async 135K 1s": "comparable with NULL",
    "bloom 99.999% 135K 1s": "no significant overhead",
    "exact 10K 1s": "-",
    "exact 1048K 10s": "-",
}


def run(values: Values, seed: int) -> Outcome:
    rows = [{"part": "model", **_model(configuration, values, seed)} for configuration in ALL]
    found = {row["name"]: row for row in rows}
    base = found["null"]["mean_ms"]
    findings = [
        Finding(
            f"model, {name}: mean latency",
            f"{as_number(found[name]['mean_ms'])} ms ({found[name]['mean_ms'] / base:.2f} of null)",
            said,
        )
        for name, said in QUOTED.items()
    ]
    first = paced(float(values["broker_seconds"]), tracking=NULL)
    if first["p50_ms"] > float(values["busy_ms"]):
        note = (
            f"The brokers were not run: without tracking the median was {first['p50_ms']:.0f} ms, so the machine had other work."
        )
        return Outcome(rows, findings, [note])
    measured = _brokers(values)
    return Outcome(rows + measured, findings + _broker_findings(measured))


def _broker_findings(measured: list[Row]) -> list[Finding]:
    base = measured[0]["p50_ms"]
    return [
        Finding(
            f"our broker, {row['name']}: p50, p99",
            f"{row['p50_ms']:.2f}, {row['p99_ms']:.1f} ms ({row['p50_ms'] / base:.2f} of null), {row['broker_cpu']:.2f} core",
            "slight overhead at most" if row["strategy"] != "null" else "reference",
        )
        for row in measured
    ]


# --- the model -----------------------------------------------------------------------------------------------------------------


def _model(configuration: Configuration, values: Values, seed: int) -> Row:
    """Serve the load in order of arrival; what is in the way of a message is the messages and forces before it."""
    load = Load(int(values["seconds"]), turn_ms=10, seed=seed)
    random = np.random.default_rng(seed)
    count = load.rate * load.seconds
    came = np.sort(random.random(count) * 1000 * load.seconds)  # in ms
    service = np.full(count, float(values["service_us"]) / 1000)
    forces = np.zeros(count, np.int64)
    for place, size in _forces(configuration, came, load.rate):
        forces[place] += 1
        service[place] += float(values["force_ms"]) + size / float(values["disk_bytes_per_ms"])
    done = np.cumsum(service)
    done += np.maximum.accumulate(came - (done - service))
    latency = done - came + float(values["network_ms"])
    return {
        "name": configuration.name,
        "strategy": str(configuration.strategy),
        "forces_per_s": float(forces.sum()) / load.seconds,
        "mean_ms": float(latency.mean()),
        "p99_ms": float(np.quantile(latency, 0.99)),
    }


def _forces(configuration: Configuration, came: Any, rate: int) -> Iterator[tuple[int, float]]:
    """Return at which message a buffer is forced, and its bytes: two buffers that fill alike, half a period apart."""
    if configuration.strategy is Strategy.NULL:
        return
    capacity = configuration.capacity
    per_force = min(capacity, rate * configuration.seconds)
    full = {Strategy.BLOOM: configuration.m / 8, Strategy.ASYNC: 16 * per_force, Strategy.EXACT: 1.3 * per_force}
    for buffer in range(2):
        for place in range(per_force * (buffer + 2) // 2, len(came), per_force):
            yield place, full[configuration.strategy]


# --- our broker ----------------------------------------------------------------------------------------------------------------


def _brokers(values: Values) -> list[Row]:
    """Run each configuration in turn, several times, and take the medians."""
    names = {
        "null": NULL,
        "null again": NULL,
        "async 1s": Tracking(strategy="async", persistence_ms=1_000),
        "bloom 99.999% 10K 1s": _bloom("99.999%", 10_000, 1_000),
        "bloom 99.999% 135K 8s": _bloom("99.999%", 135_000, 8_000),
        "exact 1s": Tracking(strategy="exact", persistence_ms=1_000),
        "exact 10s": Tracking(strategy="exact", persistence_ms=10_000),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(int(values["rounds"])):
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(paced(float(values["broker_seconds"]), tracking=names[name]))
    return [
        {
            "part": "broker",
            "name": name,
            "strategy": name.split()[0],
            **{figure: statistics.median(each[figure] for each in runs) for figure in FIGURES},
            "rounds": json.dumps([round(each["p50_ms"], 2) for each in runs]),
        }
        for name, runs in found.items()
    ]


def _bloom(accuracy: str, limit: int, persistence_ms: int) -> Tracking:
    m, k, n = BLOOMS[limit, accuracy]
    return Tracking(strategy="bloom", bits=m, hashes=k, capacity=n, persistence_ms=persistence_ms)


def draw(outcome: Outcome) -> Figure:
    figure = Figure((7, 6))
    parts = [part for part in ("model", "broker") if any(row["part"] == part for row in outcome.rows)]
    sizes = [sum(row["part"] == part for row in outcome.rows) for part in parts]
    panels = figure.subplots(len(parts), 1, height_ratios=sizes, squeeze=False)[:, 0]
    colours = {"async": "tab:red", "bloom": "tab:blue", "exact": "tab:green", "null": "tab:gray"}
    for axes, part in zip(panels, parts, strict=True):
        rows = [row for row in outcome.rows if row["part"] == part]
        column = "mean_ms" if part == "model" else "p50_ms"
        axes.barh(range(len(rows)), [row[column] for row in rows], color=[colours[row["strategy"]] for row in rows])
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=7)
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x", alpha=0.3)
        axes.set_xlabel(
            "mean latency in ms: the paper's broker, a model" if part == "model" else "median latency in ms: our broker, measured"
        )
    figure.tight_layout()
    return figure
