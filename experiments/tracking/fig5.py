"""Fig. 5: the same after gzip of each buffer."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.outcome import Outcome, Values
from experiments.tracking import fig4, table2

TITLE = "Compressed storage use"
PAPER = [
    ("async 10K 1s", "significant compression"),
    ("bloom 99.999% 10K 1s", "no significant compression"),
    ("bloom 99.999% 135K 1s", "partly full filters defy compression; async uses less"),
    ("async 135K 1s", "less than some of BF"),
    ("exact 135K 1s", "-"),
    ("exact 1048K 10s", "-"),
]


def run(values: Values, seed: int) -> Outcome:
    return fig4.storage(values, seed, "_gzip_bytes", PAPER)


def draw(outcome: Outcome) -> Figure:
    return table2.bars(outcome.rows, "total", "bytes per message after gzip (dark: publisher history)", "publisher")
