"""Fig. 9: messages that are discarded, and subscriptions that are rejected, by the number of subscribers."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.admission.runs import (
    ESTIMATED,
    FULL,
    LESS,
    MORE,
    NONE,
    as_table,
    at_most_subscribers,
    of_policy,
    plot,
    rows_of,
    summarise,
)
from experiments.outcome import Finding, Outcome, Values

TITLE = "Discarded messages and rejected subscriptions under each criterion"


def run(values: Values, seed: int) -> Outcome:
    rows = rows_of(values, seed)
    largest = max(row["discard_per_s_largest"] for row in of_policy(rows, FULL))
    most = max(values["subscribers"])
    findings = [Finding("full: discarded per broker and second, the largest of all points and seeds", f"{largest:.3g}", "near 0")]
    said = {NONE: "rises with the subscribers", MORE: "rises quickly from 80 on", LESS: "about 50", ESTIMATED: "-"}
    for policy, paper in said.items():
        ours = at_most_subscribers(rows, policy, "discard_per_s")
        findings.append(Finding(f"{policy}: discarded per broker and second, {most} subscribers", ours, paper))
    rejected = {FULL: "above 0.4", LESS: "low", MORE: "lower", ESTIMATED: "-"}
    for policy, paper in rejected.items():
        ours = at_most_subscribers(rows, policy, "rejection_rate")
        findings.append(Finding(f"{policy}: share of subscriptions rejected, {most} subscribers", ours, paper))
    notes = [
        "By the number of subscribers. Each value is the mean over the seeds; in brackets the least and the largest.",
        as_table(rows, "discard_per_s", "discarded per broker and second"),
        as_table(rows, "rejection_rate", "share of subscriptions rejected"),
    ]
    return Outcome(rows, findings, notes, summary=summarise(rows, values, seed))


def draw(outcome: Outcome) -> Figure:
    figure = Figure(figsize=(9, 3.5))
    discarded, rejected = figure.subplots(1, 2)
    plot(discarded, outcome.rows, "discard_per_s", "discarded per broker and second")
    plot(rejected, outcome.rows, "rejection_rate", "rejected subscriptions, %", 100.0)
    figure.tight_layout()
    return figure
