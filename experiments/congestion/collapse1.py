"""Figs. 2 and 3: the link IB-SB1 is restricted to 60 KB/s while 500 msg/s are published."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.congestion.drawing import draw_rates
from experiments.congestion.layouts import SIMPLE
from experiments.congestion.runs import Run, Summary, finish, for_each_rule, settings_of, summarise
from experiments.congestion.testbed import Testbed
from experiments.outcome import Finding, Outcome, Values, as_number
from postroad.core.broker.congestion.settings import Rule

TITLE = "Collapse with the IB-SB1 link restricted to 60 KB/s"
END_S = 60.0


def run(values: Values, seed: int) -> Outcome:
    runs = for_each_rule(
        simulate, seed, free_s=values["free_s"], limited_s=values["limited_s"], subscriptions=values["subscriptions"]
    )
    return collapse_outcome(runs, seed)


def simulate(rule: Rule, seed: int, *, free_s: float, limited_s: float, subscriptions: int = 1) -> Run:
    bed = Testbed(SIMPLE, settings_of(rule), seed, subscriptions=subscriptions)
    bed.run(free_s)
    bed.limit("IB", "SB1", 60)
    bed.run(free_s + limited_s)
    return finish(bed, rule, rates_at_end(bed))


def rates_at_end(bed: Testbed) -> Summary:
    """Return the mean rates of both readers over the last minute."""
    end = bed.now
    return {f"{name.lower()}_rate_end": round(float(bed.series(name, end - END_S, end).mean()), 1) for name in ("SB1", "SB2")}


def collapse_outcome(runs: list[Run], seed: int) -> Outcome:
    findings = []
    for each in runs:
        for name, paper in (("SB1", "falls to zero and stays there"), ("SB2", "-")):
            said = paper if each.rule == Rule.NONE.value else "-"
            rate = each.summary[f"{name.lower()}_rate_end"]
            findings.append(Finding(f"{each.rule}: rate of {name} in the last minute, msg/s", as_number(rate), said))
    rows = [row for each in runs for row in each.rows]
    return Outcome(rows, findings, summary=summarise(runs, seed))


def draw(outcome: Outcome) -> Figure:
    return draw_rates(outcome.rows, ["published", "SB1", "SB2"], backlog="backlog IB-SB1")
