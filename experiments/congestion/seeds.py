"""The experiments over many seeds: how much of the bottleneck is used, how long recovery takes, how fair the pubends are.

    python -m experiments.congestion.seeds [--seeds 1:21] [--only e1 e2 e4] [--rules improved paper]
    python -m experiments.congestion.seeds --table

Each run appends a line to `results/seeds.jsonl`; runs that are there already are left out, so it may be stopped at any time.
`--table` writes `results/seeds.md` from what is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from experiments.congestion import e1, e2, e4
from experiments.congestion.runs import Run
from experiments.outcome import read_values
from postroad.core.broker.congestion.settings import Rule

RESULTS: Final = Path(__file__).parent / "results"
LINES: Final = RESULTS / "seeds.jsonl"
TABLE: Final = RESULTS / "seeds.md"
HEAD: Final = """# Seeds

Written by `python -m experiments.congestion.seeds --table` from `seeds.jsonl`.

| experiment, rule | seeds | measure | least | mean | most | aim |
|---|---|---|---|---|---|---|
"""


def jobs(only: list[str], rules: list[Rule], seed: int) -> Iterator[tuple[dict[str, Any], Callable[[], Run]]]:
    """Yield what names a run, and the run."""
    for rule in rules:
        name = {"seed": seed, "rule": rule.value}
        if "e2" in only:
            spans = _spans("e2", "free_s", "phase_s")
            yield {**name, "experiment": "e2"}, partial(e2.simulate, rule, seed, **spans)
        if "e1" in only:
            spans = _spans("e1", "before_s", "outage_s", "after_s")
            yield {**name, "experiment": "e1"}, partial(e1.simulate, rule, seed, kb_per_s=e1.FIG7_KB, **spans)
        if "e4" in only:
            spans = _spans("e4", "before_s", "outage_s", "after_s_max")
            for delta in read_values("congestion", "e4", full=False)[0]["deltas"]:
                yield {**name, "experiment": "e4", "delta": delta}, partial(e4.simulate, rule, seed, delta=delta, **spans)


def _spans(experiment: str, *names: str) -> dict[str, Any]:
    values, _ = read_values("congestion", experiment, full=False)
    return {name: values[name] for name in names}


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()] if LINES.exists() else []


def table(found: list[dict[str, Any]]) -> str:
    """Return the least, the mean and the most of each measure."""
    text = HEAD
    for rule in (Rule.IMPROVED.value, Rule.PAPER.value):
        of = {
            name: [each for each in found if each["rule"] == rule and each["experiment"] == name] for name in ("e1", "e2", "e4")
        }
        used = [each["utilisation"] for each in of["e2"]]
        for phase, limit in enumerate(e2.LIMITS_KB):
            text += _row(
                f"E2, {rule}", f"useful part of {limit:.0f} KB/s, phase {phase + 1}", [u[phase] for u in used], "at least 0.95"
            )
        ratios = [each["recovery_s"] / each["ideal_recovery_s"] for each in of["e1"] if each["recovered"]]
        text += _row(f"E1, {rule}", "recovery over the ideal", ratios, "at most 1.25")
        for delta in sorted({each["delta"] for each in of["e4"]}):
            jains = [each["jain"] for each in of["e4"] if each["delta"] == delta]
            text += _row(f"E4, {rule}", f"Jain index, delta t_rec {delta}", jains, "at least 0.95")
    return text


def _row(what: str, measure: str, values: list[float], aim: str) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"| {what} | {len(values)} | {measure} | {min(values):.3f} | {mean:.3f} | {max(values):.3f} | {aim} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1:21", help="from:to, without the last")
    parser.add_argument("--only", nargs="+", default=["e1", "e2", "e4"], choices=["e1", "e2", "e4"])
    parser.add_argument("--rules", nargs="+", default=["improved", "paper"], choices=["improved", "paper"])
    parser.add_argument("--table", action="store_true", help="write the table and run nothing")
    arguments = parser.parse_args()
    if not arguments.table:
        first, last = map(int, arguments.seeds.split(":"))
        done = [{key: each.get(key) for key in ("seed", "rule", "experiment", "delta")} for each in lines()]
        for seed in range(first, last):
            for name, simulate in jobs(arguments.only, [Rule(rule) for rule in arguments.rules], seed):
                if {"delta": None, **name} in done:
                    continue
                run = simulate()
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**name, **run.summary, **vars(run.books)}) + "\n")
    TABLE.write_text(table(lines()), encoding="utf-8")


if __name__ == "__main__":
    main()
