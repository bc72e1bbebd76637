"""Runs of one experiment under each rule, side by side, and the one object that says what they found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from experiments.congestion.measures import Books, books
from experiments.congestion.testbed import Testbed
from experiments.outcome import Row
from postroad.core.broker.congestion.settings import CongestionSettings, Rule

Summary: TypeAlias = dict[str, Any]
RULES: Final = (Rule.NONE, Rule.PAPER, Rule.IMPROVED)
DRAWN_S: Final = 5  # samples, of one second each, become one of a figure
PEAKS: Final = ("backlog", "nack window", "recovering")


@dataclass
class Run:
    """One rule: what it achieved, the samples for the figures, and the books."""

    rule: str
    summary: Summary
    rows: list[Row] = field(default_factory=list)
    books: Books = field(default_factory=Books)
    virtual_s: float = 0.0


def finish(bed: Testbed, rule: Rule, summary: Summary) -> Run:
    """Let everything arrive, and close the books."""
    bed.settle()
    rows = [{"rule": rule.value, **row} for row in thinned(bed.rows)]
    return Run(rule.value, summary, rows, books(bed), round(bed.now, 3))


def thinned(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each `DRAWN_S` samples: their mean, and the most of what is told by its longest or widest."""
    kept = []
    for first in range(0, len(rows), DRAWN_S):
        span = rows[first : first + DRAWN_S]
        row: Row = {"t": span[-1]["t"]}
        for name in list(span[0])[1:]:
            values = [each[name] for each in span]
            row[name] = round(max(values) if name.startswith(PEAKS) else sum(values) / len(values), 3)
        kept.append(row)
    return kept


def settings_of(rule: Rule, **values: Any) -> CongestionSettings:
    return CongestionSettings(rule=rule, **values)


def side_by_side(jobs: Iterable[Callable[[], Run]]) -> list[Run]:
    """Carry out independent runs on all cores; the results do not depend on how many there are."""
    waiting = list(jobs)
    workers = min(len(waiting), os.cpu_count() or 1)
    if workers < 2:
        return [job() for job in waiting]
    with ProcessPoolExecutor(workers) as pool:
        return [future.result() for future in [pool.submit(job) for job in waiting]]


def for_each_rule(simulate: Callable[..., Run], seed: int, rules: Sequence[Rule] = RULES, **values: Any) -> list[Run]:
    return side_by_side(partial(simulate, rule, seed, **values) for rule in rules)


def summarise(runs: Sequence[Run], seed: int) -> Summary:
    """Return the object that `--json` prints."""
    total = sum((run.books for run in runs), Books())
    return {
        "seed": seed,
        "virtual_s": max(run.virtual_s for run in runs),
        "lost": total.lost,
        "duplicated": total.duplicated,
        "misordered": total.misordered,
        **{run.rule: run.summary for run in runs},
    }
