"""E1, Figs. 7 and 8: SB2 recovers after its link has failed for 120 s, over a PB-IB link of 250 KB/s (for Fig. 8, 500 KB/s)."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from experiments.congestion.collapse2 import fail_link
from experiments.congestion.drawing import draw_rates
from experiments.congestion.layouts import KB, OFFERED, PAPER_MESSAGE_BYTES, PUBENDS, SIMPLE
from experiments.congestion.measures import caught_up_after
from experiments.congestion.runs import RULES, Run, finish, settings_of, side_by_side, summarise
from experiments.congestion.testbed import Testbed
from experiments.outcome import Finding, Outcome, Values, as_number
from postroad.core.broker.congestion.settings import CongestionSettings, Rule

TITLE = "E1: recovery after a link failure"
STEADY_S = 30.0
FIG7_KB = 250.0
FIG8_KB = 500.0


def run(values: Values, seed: int) -> Outcome:
    spans = {name: values[name] for name in ("before_s", "outage_s", "after_s")}
    jobs = [partial(simulate, rule, seed, kb_per_s=FIG7_KB, **spans) for rule in RULES]
    spans["after_s"] = values["window_after_s"]
    controlled = [rule for rule in RULES if rule is not Rule.NONE]
    jobs += [partial(simulate, rule, seed, kb_per_s=FIG8_KB, **spans) for rule in controlled]
    done = side_by_side(jobs)
    runs, windows = done[: len(RULES)], done[len(RULES) :]
    for each in runs:
        again = next((other for other in windows if other.rule == each.rule), each)
        each.summary["nack_window_ms_peak"] = again.summary["nack_window_ms_peak"]
        each.books += again.books if again is not each else type(each.books)()
    rows = [row for each in runs for row in each.rows]
    rows += [{**row, "rule": f"{row['rule']}, {FIG8_KB:.0f} KB/s"} for each in windows for row in each.rows]
    return Outcome(rows, _findings(runs), summary=summarise(runs, seed))


def simulate(rule: Rule, seed: int, *, kb_per_s: float, before_s: float, outage_s: float, after_s: float) -> Run:
    settings = settings_of(rule)
    bed = Testbed(SIMPLE, settings, seed)
    fail_link(bed, "PB", "IB", kb_per_s, "IB", "SB2", before_s, outage_s)
    begin = before_s + outage_s
    bed.run(begin + after_s)
    recovery_s = caught_up_after(bed, "SB2", begin)
    missed = float(bed.series("published", before_s, begin).sum())
    summary = {
        "recovered": recovery_s is not None,
        "recovery_s": recovery_s,
        "ideal_recovery_s": round(ideal_recovery_s(settings, kb_per_s, missed), 1),
        "rate_before": round(float(bed.series("published", before_s - STEADY_S, before_s).mean()), 1),
        "rate_after": round(float(bed.series("published", bed.now - STEADY_S).mean()), 1),
        "nack_window_ms_peak": int(bed.series("nack window SB2", begin).max()),
    }
    return finish(bed, rule, summary)


def ideal_recovery_s(settings: CongestionSettings, kb_per_s: float, missed: float) -> float:
    """Return how long what was missed takes with all that new messages leave to it at the demanded split.

    The demand is 1 + delta t_rec seconds of the past each second. New messages keep at least the least rate.
    """
    capacity = kb_per_s * KB / PAPER_MESSAGE_BYTES
    new_least = PUBENDS * settings.rate_step
    demanded = (1 + settings.margin_recovering) * OFFERED
    spare = max(min(demanded, capacity - new_least), capacity - OFFERED)
    return missed / spare


def _findings(runs: list[Run]) -> list[Finding]:
    findings = []
    for each in runs:
        found = each.summary
        findings += [
            Finding(f"{each.rule}: recovered", "yes" if found["recovered"] else "no", "no" if each.rule == "none" else "yes"),
            Finding(
                f"{each.rule}: recovery, s (ideal)",
                f"{found['recovery_s']} ({found['ideal_recovery_s']})",
                "160" if each.rule == "paper" else "-",
            ),
            Finding(
                f"{each.rule}: msg/s published before, and after the recovery",
                f"{as_number(found['rate_before'])}, {as_number(found['rate_after'])}",
                "500, 500" if each.rule == "paper" else "-",
            ),
            Finding(
                f"{each.rule}: widest NACK window at 500 KB/s, tick ms",
                as_number(found["nack_window_ms_peak"]),
                "about 900, wider at the end" if each.rule == "paper" else "-",
            ),
        ]
    return findings


def draw(outcome: Outcome) -> Figure:
    window = ("NACK window, ms", ["nack window SB2"])
    return draw_rates(outcome.rows, ["published", "SB1", "SB2"], more=[window])
