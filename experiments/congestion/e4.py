"""E4, Fig. 16: how long E1's recovery takes with delta t_rec from -0.2 to 2.0, over a PB-IB link of 500 KB/s."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from experiments.congestion.collapse2 import fail_link
from experiments.congestion.layouts import PUBENDS, SIMPLE
from experiments.congestion.measures import caught_up_after, jain
from experiments.congestion.runs import Run, finish, settings_of, side_by_side, summarise
from experiments.congestion.testbed import Testbed
from experiments.outcome import Finding, Outcome, Row, Values, as_number
from postroad.core.broker.congestion.settings import Rule

TITLE = "E4: recovery time against delta t_rec"
KB_PER_S = 500.0
RULES = (Rule.PAPER, Rule.IMPROVED)


def run(values: Values, seed: int) -> Outcome:
    names = ("before_s", "outage_s", "after_s_max")
    spans = {name: values[name] for name in names}
    deltas = values["deltas"]
    done = side_by_side(partial(simulate, rule, seed, delta=delta, **spans) for rule in RULES for delta in deltas)
    runs, rows = [], []
    for number, rule in enumerate(RULES):
        ours = done[number * len(deltas) : (number + 1) * len(deltas)]
        by_delta = dict(zip(map(str, deltas), ours, strict=True))
        summary = {key: {delta: each.summary[key] for delta, each in by_delta.items()} for key in ("recovery_s", "jain")}
        books = sum((each.books for each in ours[1:]), ours[0].books)
        runs.append(Run(rule.value, summary, [], books, max(each.virtual_s for each in ours)))
        rows += [{"rule": rule.value, "delta": d, **each.summary} for d, each in zip(deltas, ours, strict=True)]
    return Outcome(rows, _findings(rows), summary=summarise(runs, seed))


def simulate(rule: Rule, seed: int, *, delta: float, before_s: float, outage_s: float, after_s_max: float) -> Run:
    bed = Testbed(SIMPLE, settings_of(rule, margin_recovering=delta), seed)
    fail_link(bed, "PB", "IB", KB_PER_S, "IB", "SB2", before_s, outage_s)
    begin = before_s + outage_s
    recovery_s = None
    while recovery_s is None and bed.now < begin + after_s_max:
        bed.run(bed.now + 1)
        recovery_s = caught_up_after(bed, "SB2", begin)
    published = np.array([bed.series(f"published {number}", begin).sum() for number in range(PUBENDS)])
    return finish(bed, rule, {"recovery_s": recovery_s, "jain": round(jain(published), 4)})


def _findings(rows: list[Row]) -> list[Finding]:
    findings = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        ours = [row for row in rows if row["rule"] == rule]
        times = ", ".join(f"{row['delta']}: {_seconds(row['recovery_s'])}" for row in ours)
        findings.append(Finding(f"{rule}: recovery, s, by delta t_rec", times, "falls with it" if rule == "paper" else "-"))
        least = min(row["jain"] for row in ours)
        said = "unfair at 1 and below" if rule == "paper" else "-"
        findings.append(Finding(f"{rule}: least Jain index of the four pubends", as_number(least), said))
    return findings


def _seconds(recovery_s: float | None) -> str:
    return "never" if recovery_s is None else as_number(recovery_s)


def draw(outcome: Outcome) -> Figure:
    figure = Figure(figsize=(8, 3))
    times, fairness = figure.subplots(1, 2)
    for rule in dict.fromkeys(row["rule"] for row in outcome.rows):
        ours = [row for row in outcome.rows if row["rule"] == rule]
        deltas = [row["delta"] for row in ours]
        times.plot(deltas, [row["recovery_s"] for row in ours], marker="o", label=rule)
        fairness.plot(deltas, [row["jain"] for row in ours], marker="o", label=rule)
    times.set_ylabel("recovery, s")
    fairness.set_ylabel("Jain index of the pubends' rates")
    for axes in (times, fairness):
        axes.set_xlabel("delta t_rec, tick s per s")
        axes.legend()
        axes.grid(alpha=0.3)
    figure.tight_layout()
    return figure
