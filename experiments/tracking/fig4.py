"""Fig. 4: uncompressed storage, bytes per message of the publisher history and one aggregate subscriber history."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Row, Values, as_number
from experiments.tracking import table2

TITLE = "Uncompressed storage use"


def run(values: Values, seed: int) -> Outcome:
    return storage(values, seed, "_bytes", PAPER)


PAPER = [
    ("async 10K 1s", "32: 16 for each of two records"),
    ("bloom 99.999% 10K 1s", "6.5, if two full buffers per 2,521 messages"),
    ("bloom 99% 10K 2s", "3.0, likewise"),
    ("bloom 95% 10K 2s", "2.25, likewise"),
    ("bloom 99.999% 135K 1s", "52.4: more than async, as filters are partly full"),
    ("bloom 99.999% 135K 8s", "6.75"),
    ("bloom 95% 135K 27s", "2.0"),
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
        ["The figure in the paper has no numbers in its text; what stands here for it follows from its m, n and T_p."],
    )


def draw(outcome: Outcome) -> Figure:
    return table2.bars(outcome.rows, "total", "bytes per message, uncompressed (dark: publisher history)", "publisher")
