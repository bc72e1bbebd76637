"""Fig. 10: how much of the brokers' CPU and of the links is used, by the number of subscribers."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.admission.runs import ESTIMATED, FULL, LESS, MORE, NONE, as_table, at_most_subscribers, plot, rows_of, summarise
from experiments.outcome import Finding, Outcome, Values

TITLE = "Utilisation of CPU and bandwidth under each criterion"


def run(values: Values, seed: int) -> Outcome:
    rows = rows_of(values, seed)
    most = max(values["subscribers"])
    findings = []
    for name, what in (("cpu_utilisation", "CPU"), ("bandwidth_utilisation", "bandwidth")):
        said = {NONE: "highest", MORE: "below that", LESS: "below that", FULL: "lowest", ESTIMATED: "-"}
        for policy, paper in said.items():
            ours = at_most_subscribers(rows, policy, name)
            findings.append(Finding(f"{policy}: share of {what} used, {most} subscribers", ours, paper))
    notes = [
        "By the number of subscribers. Each value is the mean over seeds and brokers or links; in brackets the extreme seeds.",
        as_table(rows, "cpu_utilisation", "share of CPU used"),
        as_table(rows, "bandwidth_utilisation", "share of bandwidth used"),
    ]
    return Outcome(rows, findings, notes, summary=summarise(rows, values, seed))


def draw(outcome: Outcome) -> Figure:
    figure = Figure(figsize=(9, 3.5))
    cpu, bandwidth = figure.subplots(1, 2)
    plot(cpu, outcome.rows, "cpu_utilisation", "CPU used, %", 100.0)
    plot(bandwidth, outcome.rows, "bandwidth_utilisation", "bandwidth used, %", 100.0)
    figure.tight_layout()
    return figure
