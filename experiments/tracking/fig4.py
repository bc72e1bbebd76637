"""Fig. 4: uncompressed storage, bytes per message of the publisher history and one aggregate subscriber history."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Row, Values, as_number
from experiments.tracking import table2

TITLE = "Uncompressed storage use"


def run(values: Values, seed: int) -> Outcome:
    return storage(values, seed, "_bytes", PAPER)


PAPER = [
    ("async 10K 1s", "computed: 2 x 16"),
    ("bloom 99.999% 10K 1s", "computed: 2 x 26 bits"),
    ("bloom 99% 10K 2s", "computed: 2 x 12 bits"),
    ("bloom 95% 10K 2s", "computed: 2 x 9 bits"),
    ("bloom 99.999% 135K 1s", "computed: 2 x 131,072 / 5,000; more than async"),
    ("bloom 99.999% 135K 8s", "computed: 2 x 27 bits"),
    ("bloom 95% 135K 27s", "computed: 2 x 8 bits"),
    ("exact 135K 1s", "-"),
    ("exact 1048K 10s", "-"),
]


def storage(values: Values, seed: int, suffix: str, paper: list[tuple[str, str]]) -> Outcome:
    """Return the bytes per message of every configuration, from the runs of Table 2."""
    rows: list[Row] = []
    for row in table2.run(values, seed).rows:
        if row["strategy"] != "null":
            parts = row[f"publisher{suffix}"], row[f"aggregate{suffix}"]
            rows.append(
                {
                    "name": row["name"],
                    "strategy": row["strategy"],
                    "publisher": parts[0],
                    "subscribers": parts[1],
                    "total": sum(parts),
                }
            )
    totals = {row["name"]: row["total"] for row in rows}
    findings = [Finding(f"{name}: bytes per message", as_number(totals[name]), said) for name, said in paper]
    best = min(rows, key=lambda row: float(row["total"]))
    findings.append(Finding("least of all", f"{best['name']}: {as_number(best['total'])}"))
    return Outcome(
        rows,
        findings,
        ["We have the paper's text and not the numbers in its figure: `computed` is what follows from its m, n and T_p."],
    )


def draw(outcome: Outcome) -> Figure:
    return table2.bars(outcome.rows, "total", "bytes per message, uncompressed (dark: publisher history)", "publisher")
