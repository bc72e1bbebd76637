"""Fig. 1: the false positive rate against the bits per message, with the optimal number of hash functions.

Equation (1) as the paper draws it, and blooms of 65,536 bits that really hold so many ids and are asked for others, as far as
the probes suffice to see false positives.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Values, as_number
from experiments.tracking.load import published, strangers
from postroad.tracking.histories import blooms
from postroad.tracking.histories.tuning import optimal_k

TITLE = "False positive rate against bits per message"
M = 65_536
SEEN = 30  # false positives that a rate is made of, at least


def run(values: Values, seed: int) -> Outcome:
    rows = []
    for bits in range(2, 41):
        n, k = M // bits, optimal_k(bits)
        expected = blooms.fpp(M, k, n)
        probes = int(values["probes"])
        measured = _measure(n, k, probes, seed) if expected * probes >= SEEN else None
        rows.append({"bits_per_message": bits, "k": k, "n": n, "equation_1": expected, "measured": measured})
    factor = (rows[-1]["equation_1"] / rows[0]["equation_1"]) ** (1 / (len(rows) - 1))  # type: ignore[operator]
    ratios = [row["measured"] / row["equation_1"] for row in rows if row["measured"] is not None]  # type: ignore[operator]
    at_26 = next(row for row in rows if row["bits_per_message"] == 26)
    findings = [
        Finding("each further bit multiplies the rate by", as_number(factor), "exponential decrease"),
        Finding(
            "rate at 26 bits, optimal k = " + str(at_26["k"]), as_number(float(at_26["equation_1"] or 0)), "below 5e-6 (k = 16)"
        ),
        Finding("measured over equation (1), least and most", f"{min(ratios):.3f} .. {max(ratios):.3f}", "1"),
    ]
    return Outcome(rows, findings)


def _measure(n: int, k: int, probes: int, seed: int) -> float:
    hits, step = 0, 1 << 18
    bits = blooms.empty(M)
    blooms.add_ids(bits, published(n, seed), M, k)
    for part in range(0, probes, step):
        ids = strangers(min(step, probes - part), n // 5, np.random.default_rng((seed, n, part)))
        hits += int(blooms.contains(bits, blooms.positions(ids, M, k)).sum())
    return hits / probes


def draw(outcome: Outcome) -> Figure:
    figure = Figure((5, 3.2))
    axes = figure.subplots()
    bits = [row["bits_per_message"] for row in outcome.rows]
    axes.semilogy(bits, [row["equation_1"] for row in outcome.rows], label="equation (1), optimal k")
    seen = [row for row in outcome.rows if row["measured"] is not None]
    axes.semilogy([row["bits_per_message"] for row in seen], [row["measured"] for row in seen], "x", label="measured")
    axes.set_xlabel("bits per message (m/n)")
    axes.set_ylabel("false positive rate")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure
