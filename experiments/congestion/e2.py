"""E2, Figs. 9 to 11: the link IB-SB1 carries 60 KB/s, then 150, then 60 again, for 120 s each."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.congestion.drawing import draw_rates
from experiments.congestion.layouts import FACTOR, SIMPLE
from experiments.congestion.measures import settled_after, utilisation
from experiments.congestion.runs import Run, finish, for_each_rule, settings_of, summarise
from experiments.congestion.testbed import Testbed
from experiments.outcome import Finding, Outcome, Values, as_number
from postroad.core.broker.congestion.settings import Rule

TITLE = "E2: bandwidth limits that change"
LIMITS_KB = (60.0, 150.0, 60.0)
STEADY_S = 60.0


def run(values: Values, seed: int) -> Outcome:
    runs = for_each_rule(simulate, seed, free_s=values["free_s"], phase_s=values["phase_s"])
    rows = [row for each in runs for row in each.rows]
    return Outcome(rows, _findings(runs), summary=summarise(runs, seed))


def simulate(rule: Rule, seed: int, *, free_s: float, phase_s: float) -> Run:
    bed = Testbed(SIMPLE, settings_of(rule), seed)
    bed.run(free_s)
    ends = [free_s + phase_s * (number + 1) for number in range(len(LIMITS_KB))]
    for limit, end in zip(LIMITS_KB, ends, strict=True):
        bed.limit("IB", "SB1", limit)
        bed.run(end)
    at, published = bed.series("t"), bed.series("published")
    crossings = bed.node("SB1").came[bed.number["IB"]]
    settled = [settled_after(at, published, end - phase_s, end) for end in ends]
    summary = {
        "utilisation": [
            round(utilisation(crossings, limit, end - STEADY_S, end), 3) for limit, end in zip(LIMITS_KB, ends, strict=True)
        ],
        "ib_backlog_bytes_max": int(bed.series("backlog IB-SB1").max()),
        "settle_s": [None if each is None else round(each, 1) for each in settled],
    }
    return finish(bed, rule, summary)


def _findings(runs: list[Run]) -> list[Finding]:
    findings = []
    for each in runs:
        found, paper = each.summary, each.rule == Rule.PAPER.value
        findings += [
            Finding(f"{each.rule}: useful part of 60, 150, 60 KB/s, last minutes", ", ".join(map(str, found["utilisation"]))),
            Finding(
                f"{each.rule}: longest backlog at IB, KB (in the paper's units)",
                f"{as_number(found['ib_backlog_bytes_max'] / 1024)} ({as_number(found['ib_backlog_bytes_max'] / 1024 / FACTOR)})",
                "below 1,024" if paper else "-",
            ),
            Finding(
                f"{each.rule}: the rate settles after, s",
                ", ".join("never" if one is None else as_number(one) for one in found["settle_s"]),
                "quickly" if paper else "-",
            ),
        ]
    return findings


def draw(outcome: Outcome) -> Figure:
    rate = ("doubt horizon rate", ["doubt rate SB1"])
    return draw_rates(outcome.rows, ["published", "SB1", "SB2"], backlog="backlog IB-SB1", more=[rate])
