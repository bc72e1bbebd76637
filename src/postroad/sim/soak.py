"""Random runs, one per seed: build, break, heal, check.

A run has a safety phase, in which anything may fail at any time, and a liveness phase, in which everything is healed, nobody
publishes any more, and all must converge within a bounded virtual time.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import xxhash

from postroad.sim.checkers import KINDS, Violation
from postroad.sim.checkers.liveness import Converges
from postroad.sim.faults import Faults
from postroad.sim.overlay import Overlay
from postroad.sim.workload import Shape, Workload
from postroad.sim.world import Line

CONTAINED = (
    "lost",
    "duplicated",
    "misordered",
    "stuck",
    "phantom",
    "released",
    "kept",
    "unbounded",
    "mistracked",
    "misreserved",
    "crashed",
)
assert set(CONTAINED) == set(KINDS)

# A run keeps nearly all it allocates until it ends, so the collector, at its default threshold, finds little and often.
GC_THRESHOLD: Final = 50_000


@dataclass(frozen=True, slots=True)
class Result:
    """What one seed gave."""

    seed: int
    digest: str
    messages: int
    deliveries: int
    faults: int
    virtual_s: float
    violations: tuple[Violation, ...]
    kinds: tuple[tuple[str, int], ...] = ()  # of faults, with how many there were
    traits: tuple[tuple[str, int], ...] = ()  # what the run had that not every run has, and how much of it
    converged: bool = True
    story: tuple[Line, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.violations

    @property
    def command(self) -> str:
        """What repeats this run."""
        return f"postroad sim replay --seed {self.seed}"

    def line(self) -> dict[str, object]:
        """Return the JSON line of the seed."""
        counts = count_kinds(self.violations)
        line: dict[str, object] = {"seed": self.seed, **counts, "faults": self.faults, "messages": self.messages}
        line |= {"deliveries": self.deliveries, "virtual_s": round(self.virtual_s, 3), "digest": self.digest}
        if self.violations:
            line |= {"first": str(self.violations[0]).splitlines()[0], "replay": self.command}
        return line


def play(seed: int, shape: Shape, *, story: bool = False) -> tuple[Overlay, Faults]:
    """Let everything of a seed happen; nothing is checked yet."""
    overlay = Overlay(seed, story=story)
    Workload(overlay, shape)
    faults = Faults(overlay, until=shape.busy_s, per_s=shape.faults_per_s, only=shape.faults)
    overlay.run(shape.busy_s)
    overlay.heal()
    if overlay.settle():
        overlay.rest()
    return overlay, faults


def run_seed(seed: int, shape: Shape | None = None, *, story: bool = False) -> Result:
    """Run one seed to its end."""
    with _rare_collections():
        overlay, faults = play(seed, shape or Shape(), story=story)
        violations = tuple(overlay.violations())
    return Result(
        seed,
        overlay.world.digest,
        overlay.messages,
        overlay.deliveries,
        faults.total,
        overlay.world.now,
        violations,
        tuple(sorted(faults.counts.items())),
        tuple(sorted(overlay.traits.items())),
        not any(violation.checker == Converges.__name__ for violation in violations),
        tuple(overlay.world.story or ()),
    )


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def soak(seeds: Iterable[int], *, workers: int = 2) -> Iterator[Result]:
    """Run many seeds, on several cores; results come in the order of the seeds."""
    if workers <= 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers, gc.freeze) as pool:  # what is imported is never garbage
        yield from pool.imap(run_seed, seeds, chunksize=4)


def count_kinds(violations: Iterable[Violation]) -> dict[str, int]:
    counts = dict.fromkeys(CONTAINED, 0)
    for violation in violations:
        counts[violation.kind] += 1
    return counts


class Summary:
    """The sum over many seeds."""

    def __init__(self) -> None:
        self.seeds = 0
        self.messages = 0
        self.deliveries = 0
        self.faults = 0
        self.converged = 0
        self.virtual_s = 0.0
        self.kinds: Counter[str] = Counter()  # of faults
        self.traits: Counter[str] = Counter()
        self.failed: list[int] = []
        self._counts = dict.fromkeys(CONTAINED, 0)
        self._digest = xxhash.xxh3_128()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.messages += result.messages
        self.deliveries += result.deliveries
        self.faults += result.faults
        self.converged += result.converged
        self.virtual_s += result.virtual_s
        self.kinds.update(dict(result.kinds))
        self.traits.update(dict(result.traits))
        self._digest.update(result.digest.encode())
        for kind, count in count_kinds(result.violations).items():
            self._counts[kind] += count
        if not result.sound:
            self.failed.append(result.seed)

    @property
    def sound(self) -> bool:
        return not self.failed

    def line(self) -> dict[str, object]:
        counts = {"faults": self.faults, "messages": self.messages, "deliveries": self.deliveries}
        line: dict[str, object] = {"seeds": self.seeds, **self._counts, **counts, "converged": self.converged}
        line |= {"virtual_hours": round(self.virtual_s / 3600, 2), "kinds": dict(sorted(self.kinds.items()))}
        line["traits"] = dict(sorted(self.traits.items()))
        return line | {"failed": self.failed, "digest": self._digest.hexdigest()}
