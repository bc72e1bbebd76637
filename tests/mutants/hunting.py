"""How many seeds the soak needs to find each planted bug, and by which checker."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants import bugs_of_brokers, bugs_of_clients_and_disks, bugs_of_traps
from tests.mutants.planting import MUTANTS

from postroad.sim.soak import run_seed

SEEDS_MAX = 200
FINDINGS = 3
FIRST_SEED = 500_000
TABLE = Path("docs/internals/mutants.md")
PLANTED_IN = (bugs_of_brokers, bugs_of_clients_and_disks, bugs_of_traps)  # importing them registers their mutants


@dataclass(slots=True)
class Outcome:
    """What the soak made of one mutant."""

    name: str
    seeds: int = 0
    found: int = 0
    first: int | None = None  # seed
    seconds: float = 0.0  # of CPU
    checkers: Counter[str] = field(default_factory=Counter)  # in how many seeds each found it


def hunt(name: str, first: int, seeds_max: int, findings: int) -> Outcome:
    """Run seeds with a bug in place until it was found often enough."""
    outcome, began = Outcome(name), time.process_time()
    with MUTANTS[name].planted():
        for seed in range(first, first + seeds_max):
            result = run_seed(seed)
            outcome.seeds += 1
            broken = next((each for each in result.violations if "bugs_of_" in each.text.partition("\n")[0]), None)
            assert broken is None, f"the mutant {name} itself fails, adapt it: {broken}"
            if not result.sound:
                outcome.found += 1
                outcome.first = seed if outcome.first is None else outcome.first
                outcome.checkers.update({violation.checker or violation.kind for violation in result.violations})
            if outcome.found >= findings:
                break
    outcome.seconds = time.process_time() - began
    return outcome


def _hunt(arguments: tuple[str, int, int, int]) -> Outcome:
    return hunt(*arguments)


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the table, as Markdown."""
    lines = ["| area | planted bug | found in | by |", "|---|---|---|---|"]
    for each in sorted(outcomes, key=lambda each: (MUTANTS[each.name].area, each.name)):
        mutant = MUTANTS[each.name]
        checkers = ", ".join(f"{checker} {count}" for checker, count in each.checkers.most_common())
        often = f"{each.found} of {each.seeds} seeds"
        lines.append(f"| {mutant.area} | `{each.name}`: {mutant.what} | {often} | {checkers or '**not found**'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Hunt all mutants; 1 when one was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of mutants, separated by commas; a part of a name will do")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="at most so many seeds for each")
    parser.add_argument("--findings", type=int, default=FINDINGS, help="stop a mutant after so many seeds found it")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path, help="write the table here as well")
    options = parser.parse_args()
    wanted = [part for part in options.only.split(",") if part]
    names = [name for name in MUTANTS if not wanted or any(part in name for part in wanted)]
    outcomes = []
    jobs = [(name, options.first, options.seeds, options.findings) for name in names]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for outcome in pool.imap_unordered(_hunt, jobs):
            outcomes.append(outcome)
            verdict = f"found in {outcome.found} of {outcome.seeds} seeds" if outcome.found else "NOT FOUND"
            print(f"{outcome.name}: {verdict}, {outcome.seconds:.0f} s, {dict(outcome.checkers)}", file=sys.stderr, flush=True)
    missed = [each.name for each in outcomes if not each.found]
    print(table(outcomes))
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} found; {sum(each.seconds for each in outcomes):.0f} CPU seconds")
    if missed:
        print("not found: " + ", ".join(missed))
    if options.write:
        options.write.write_text(table(outcomes))
    return 1 if missed else 0
