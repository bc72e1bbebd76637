"""The fewest faults and clients with which a seed still fails.

Faults draw from a stream of chance of their own each, and a client that is left out still takes its share of the workload's
draws. So the rest of a run stays what it was, as far as what is left out does not act on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from postroad.sim.checkers import Violation
from postroad.sim.soak import play
from postroad.sim.workload import Shape

RUNS_MAX: Final = 200
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A smaller run that fails as the whole one did."""

    seed: int
    faults: tuple[int, ...]  # numbers of those that are left
    clients: tuple[str, ...]
    faults_before: int
    clients_before: int
    runs: int
    violation: Violation

    @property
    def command(self) -> str:
        faults = ",".join(map(str, self.faults)) or "none"
        return f"postroad sim replay --seed {self.seed} --faults {faults} --clients {','.join(self.clients) or 'none'}"


def shrink(seed: int, shape: Shape | None = None, *, report: Callable[[str], None] = lambda _text: None) -> Shrunk | None:
    """Find the fewest faults, then the fewest clients; None when the seed does not fail."""
    whole = shape or Shape()
    overlay, faults = play(seed, whole)
    found = overlay.violations()
    if not found:
        return None
    wanted = found[0].checker, found[0].kind
    first, runs = found[0], 1

    def fails(smaller: Shape) -> bool:
        nonlocal first, runs
        if runs >= RUNS_MAX:
            return False
        runs += 1
        same = [each for each in play(seed, smaller)[0].violations() if (each.checker, each.kind) == wanted]
        first = same[0] if same else first
        report(f"{len(smaller.faults or ())} faults, {len(smaller.clients or ())} clients: {'fails' if same else 'passes'}")
        return bool(same)

    numbers, names = tuple(faults.struck), tuple(overlay.clients)
    left = _fewest(numbers, lambda some: fails(replace(whole, faults=tuple(some), clients=names)))
    kept = _fewest(names, lambda some: fails(replace(whole, faults=tuple(left), clients=tuple(some))))
    return Shrunk(seed, tuple(left), tuple(kept), len(numbers), len(names), runs, first)


def _fewest(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> Sequence[Item]:
    """Leave out ever smaller parts while what is left still fails."""
    size = max(len(items) // 2, 1)
    while items:
        start, smaller = 0, items
        while start < len(smaller):
            without = [*smaller[:start], *smaller[start + size :]]
            if fails(without):
                smaller = without
            else:
                start += size
        if size == 1 and len(smaller) == len(items):
            return smaller
        items, size = smaller, max(size // 2, 1)
    return items
