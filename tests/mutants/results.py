"""The kept results of the hunts: `results.json`, from which `make docs` writes docs/internals/mutants.md."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).with_name("results.json")
ROOT: Final = Path(__file__).parents[2]


@dataclass(slots=True)
class Outcome:
    """What the seeds made of one mutant."""

    name: str
    room: str
    what: str  # the bug, in one line
    code: str  # the state of the product's sources it was measured with
    needs: list[str] = field(default_factory=list)  # kinds of faults; seeds with most of them were tried first
    seeds: int = 0  # tried
    found: int = 0  # of them complained
    first: int | None = None  # seed that complained
    seconds: float = 0.0  # of CPU
    checkers: dict[str, int] = field(default_factory=dict)  # in how many seeds each complained

    def add(self, seed: int, checkers: set[str]) -> None:
        """Count one seed, and who complained in it."""
        self.seeds += 1
        if not checkers:
            return
        self.found += 1
        self.first = seed if self.first is None else self.first
        for checker in sorted(checkers):
            self.checkers[checker] = self.checkers.get(checker, 0) + 1


def load_results() -> dict[str, dict[str, Outcome]]:
    """Return what is kept: for each simulator its mutants by name."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {simulator: {each["name"]: Outcome(**each) for each in outcomes} for simulator, outcomes in kept.items()}


def save_results(simulator: str, outcomes: dict[str, Outcome], mutants: set[str]) -> None:
    """Keep what is new beside what is kept of other mutants; forget mutants that are gone."""
    kept = load_results()
    merged = {name: each for name, each in {**kept.get(simulator, {}), **outcomes}.items() if name in mutants}
    kept[simulator] = dict(sorted(merged.items()))
    text = json.dumps({key: [asdict(each) for each in value.values()] for key, value in sorted(kept.items())}, indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def name_code_state() -> str:
    """Name the state of the product's sources: the tree that git has for them, and whether they differ from it."""
    tree = _git("rev-parse", "--short=10", "HEAD:src/postroad")
    return f"{tree} with changes" if _git("status", "--porcelain", "src/postroad") else tree


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
