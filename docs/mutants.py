"""The page of the planted bugs, from the kept results of `make mutants`."""

from __future__ import annotations

from collections import Counter

from tests.mutants.hunting import SIMULATOR, new_outcome
from tests.mutants.planting import MUTANTS
from tests.mutants.results import Outcome, load_results

HEAD = """# Planted bugs and who finds them

A mutant is one small bug, planted into the running code from outside: `tests/mutants/` and
`tests/topics/mutants.py`. Then random seeds run, and a checker must complain. `make mutants` does
that for all mutants and keeps the result in `tests/mutants/results.json`; this page is made from it.

A mutant is done when three seeds have complained (in topics: one). "3 of 3" means that the first
three seeds did, "3 of 40" that the bug hides. At most 200 seeds are tried. All mutants meet the same
seeds, from 500000 on (topics: from 0); where the table names kinds of faults, those with most of them
come first. [The simulator](simulator.md) says what a green soak proves.
"""
TITLES = {"overlay": "Overlay", "topics": "Topics"}


def mutants_page() -> str:
    """Tell for each planted bug in how many seeds it was found, and by which checker."""
    parts = [HEAD]
    results = load_results()
    for name in MUTANTS:
        results[SIMULATOR].setdefault(name, new_outcome(name))
    for simulator, outcomes in results.items():
        parts += [f"\n## {TITLES[simulator]}\n\n{_summary(list(outcomes.values()))}\n", _table(list(outcomes.values()))]
    return "".join(parts)


def _summary(outcomes: list[Outcome]) -> str:
    found = [each for each in outcomes if each.found]
    states = Counter(each.code for each in outcomes if each.seeds)
    unsought = sum(not each.seeds for each in outcomes)
    measured = "; ".join(f"{count} with the sources `{code}`" for code, count in states.most_common())
    within = {bound: sum(each.seeds <= bound for each in found) for bound in (5, 20, 50)}
    said = ", ".join(f"{count} were done within {bound} seeds" for bound, count in within.items())
    left = f"; {unsought} have no verdict yet" if unsought else ""
    return f"{len(found)} of {len(outcomes)} found{left}; {said}. Measured: {measured} (`git rev-parse HEAD:src/postroad`).\n"


def _table(outcomes: list[Outcome]) -> str:
    lines = ["| room | planted bug | found in | first | by |", "|---|---|---|---|---|"]
    for each in sorted(outcomes, key=lambda each: (each.room, each.name)):
        checkers = ", ".join(
            f"{name} {count}" for name, count in sorted(each.checkers.items(), key=lambda item: (-item[1], item[0]))
        )
        verdict = "**not found**" if each.seeds else "no verdict yet"
        first = "" if each.first is None else str(each.first)
        often = (f"{each.found} of {each.seeds}" if each.seeds else "") + (
            f" (first those with: {', '.join(each.needs)})" if each.needs else ""
        )
        lines.append(f"| {each.room} | `{each.name}`: {each.what} | {often} | {first} | {checkers or verdict} |")
    return "\n".join(lines) + "\n"
