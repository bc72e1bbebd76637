"""Fig. 4: the link PB-IB carries 250 KB/s, and the link IB-SB2 fails for 120 s."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.congestion.collapse1 import collapse_outcome, rates_at_end
from experiments.congestion.drawing import draw_rates
from experiments.congestion.layouts import SIMPLE
from experiments.congestion.runs import Run, finish, for_each_rule, settings_of
from experiments.congestion.testbed import Testbed
from experiments.outcome import Outcome, Values
from postroad.core.broker.congestion.settings import Rule

TITLE = "Collapse with the PB-IB link restricted to 250 KB/s, after a failure of the IB-SB2 link"


def run(values: Values, seed: int) -> Outcome:
    names = ("before_s", "outage_s", "after_s", "subscriptions")
    runs = for_each_rule(simulate, seed, **{name: values[name] for name in names})
    return collapse_outcome(runs, seed)


def simulate(rule: Rule, seed: int, *, before_s: float, outage_s: float, after_s: float, subscriptions: int = 1) -> Run:
    bed = Testbed(SIMPLE, settings_of(rule), seed, subscriptions=subscriptions)
    fail_link(bed, "PB", "IB", 250, "IB", "SB2", before_s, outage_s)
    bed.run(before_s + outage_s + after_s)
    return finish(bed, rule, rates_at_end(bed))


def fail_link(bed: Testbed, a: str, b: str, kb_per_s: float, c: str, d: str, before_s: float, outage_s: float) -> None:
    """Restrict the link a-b, and cut c-d for a while; then it is back."""
    bed.limit(a, b, kb_per_s)
    bed.run(before_s)
    bed.cables[c, d].cut()
    bed.run(before_s + outage_s)
    bed.cables[c, d].heal()


def draw(outcome: Outcome) -> Figure:
    return draw_rates(outcome.rows, ["published", "SB1", "SB2"])
