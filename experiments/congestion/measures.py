"""What a run says: losses, utilisation of a bottleneck, fairness, and when a rate has settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from experiments.congestion.testbed import CAUGHT_UP_MS, WARM_S, Crossings, Testbed, scaled
from postroad.sim.brokers import WALL_MS_AT_START

SETTLED_WITHIN: Final = 0.25  # of the rate at the end
SMOOTHED_S: Final = 10


@dataclass(frozen=True)
class Books:
    """What readers did not get of what was logged while they subscribed, or got wrongly."""

    lost: int = 0
    duplicated: int = 0
    misordered: int = 0

    def __add__(self, other: Books) -> Books:
        return Books(self.lost + other.lost, self.duplicated + other.duplicated, self.misordered + other.misordered)


def books(bed: Testbed) -> Books:
    """Compare what each reader got with the logs."""
    total = Books()
    for name, reader in bed.readers.items():
        ids = _joined(reader.ids)
        lost = len(np.setdiff1d(bed.wanted(name), ids))
        streams = [_joined(parts) for parts in reader.ticks.values()]
        misordered = sum(int((ticks[1:] <= ticks[:-1]).sum()) for ticks in streams)
        total += Books(lost, len(ids) - len(np.unique(ids)), misordered)
    return total


def caught_up_after(bed: Testbed, name: str, begin: float) -> float | None:
    """Return how many seconds after `begin` a broker had everything."""
    for row in bed.rows:
        if row["t"] > begin and row[f"behind {name}"] * 1000 < CAUGHT_UP_MS:
            return round(row["t"] - begin, 3)
    return None


def _joined(parts: list[Any]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def utilisation(
    crossings: Crossings, paper_kb_per_s: float, begin: float, end: float, *, missed: tuple[float, float] | None = None
) -> float:
    """Return which part of a link's capacity carried messages that were useful: those that came for the first time.

    `missed` is the span in which messages were published that a broker has missed: they may come over the link once more.
    """
    ticks = np.concatenate(crossings.ticks)
    frame = np.repeat(np.arange(len(crossings.ticks)), [len(each) for each in crossings.ticks])
    order = np.argsort(ticks, kind="stable")
    ranked = np.empty(len(ticks), np.int64)
    sorted_ticks = ticks[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_ticks[1:] != sorted_ticks[:-1]]))
    counts = np.diff(np.append(starts, len(ticks)))
    ranked[order] = np.arange(len(ticks)) - np.repeat(starts, counts)
    allowed = np.ones(len(ticks), np.int64)
    if missed is not None:
        at_s = (ticks >> np.uint64(18)).astype(np.int64) / 1000 - WALL_MS_AT_START / 1000 - WARM_S
        allowed += (at_s > missed[0]) & (at_s <= missed[1])
    useful = np.zeros(len(crossings.ticks))
    np.add.at(useful, frame, ranked < allowed)
    sizes = np.array([len(each) for each in crossings.ticks])
    at = np.array(crossings.at) - WARM_S
    inside = (at > begin) & (at <= end)
    carried = (np.array(crossings.bytes) * useful / sizes)[inside].sum()
    return float(carried / (scaled(paper_kb_per_s) * (end - begin)))


def settled_after(at: np.ndarray, rates: np.ndarray, begin: float, end: float) -> float | None:
    """Return after how many seconds a rate, over the ten seconds that follow, stays near its mean at the end.

    The end is the second half of (begin, end].
    """
    inside = (at > begin) & (at <= end)
    span, seconds = rates[inside], at[inside] - begin
    smooth = np.convolve(span, np.ones(SMOOTHED_S) / SMOOTHED_S, "valid")
    final = float(span[len(span) // 2 :].mean())
    away = np.flatnonzero(np.abs(smooth - final) > SETTLED_WITHIN * final)
    if not len(away):
        return float(seconds[0])
    if away[-1] + 1 >= len(smooth):
        return None
    return float(seconds[away[-1] + 1])


def jain(values: np.ndarray) -> float:
    """Return Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = len(values) * float((values**2).sum())
    return float(values.sum()) ** 2 / squares if squares else 1.0
