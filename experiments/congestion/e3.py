"""E3, Figs. 12 to 15: a larger overlay, in which a link is restricted and another one fails."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.congestion.drawing import draw_rates
from experiments.congestion.layouts import COMPLEX
from experiments.congestion.measures import caught_up_after
from experiments.congestion.runs import Run, finish, for_each_rule, settings_of, summarise
from experiments.congestion.testbed import CAUGHT_UP_MS, Testbed
from experiments.outcome import Finding, Outcome, Values
from postroad.core.broker.congestion.settings import Rule

TITLE = "E3: bandwidth limits and a link failure in a larger overlay"
MARGIN_RECOVERING = 0.5


def run(values: Values, seed: int) -> Outcome:
    names = ("free_s", "limited_s", "outage_s", "after_s")
    runs = for_each_rule(simulate, seed, **{name: values[name] for name in names})
    rows = [row for each in runs for row in each.rows]
    return Outcome(rows, _findings(runs), summary=summarise(runs, seed))


def simulate(rule: Rule, seed: int, *, free_s: float, limited_s: float, outage_s: float, after_s: float) -> Run:
    bed = Testbed(COMPLEX, settings_of(rule, margin_recovering=MARGIN_RECOVERING), seed)
    bed.limit("IB1", "SB1", 250)
    bed.run(free_s)
    bed.limit("PB", "IB1", 150)
    bed.run(free_s + limited_s)
    bed.cables["IB3", "SB5"].cut()
    begin = free_s + limited_s + outage_s
    bed.run(begin)
    bed.cables["IB3", "SB5"].heal()
    bed.run(begin + after_s)
    behind = {name: bed.rows[-1][f"behind {name}"] for name in bed.readers}
    summary = {
        "all_recovered": all(seconds * 1000 < CAUGHT_UP_MS for seconds in behind.values()),
        "recovery_s": caught_up_after(bed, "SB5", begin),
    }
    return finish(bed, rule, summary)


def _findings(runs: list[Run]) -> list[Finding]:
    return [
        Finding(
            f"{each.rule}: all brokers have everything at the end; recovery of SB5, s",
            f"{'yes' if each.summary['all_recovered'] else 'no'}; {each.summary['recovery_s']}",
            "yes; -" if each.rule == Rule.PAPER.value else "-",
        )
        for each in runs
    ]


def draw(outcome: Outcome) -> Figure:
    readers = [f"SB{number}" for number in range(1, 6)]
    rates = ("doubt horizon rate", ["doubt rate SB5"])
    recovering = ("SB5 recovers", ["recovering SB5"])
    return draw_rates(outcome.rows, ["published", *readers], backlog="backlog PB-IB1", more=[rates, recovering])
