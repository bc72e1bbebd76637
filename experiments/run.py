"""Make the figures and tables of the papers again, and keep them in `experiments/<paper>/results/`.

    python -m experiments.run [PAPER ...] [--only NAME ...] [--full] [--seed N] [--json]

Without options all of them, shortened to some minutes together; `--full` takes as long as the papers did.
`experiments/README.md` is written anew from the results. With `--json` nothing is written: the last line of the output is the
result of each experiment as one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Final, cast

from experiments.outcome import Experiment, keep, read_values
from experiments.readme import write_readme

EXPERIMENTS: Final = {
    "tracking": ("fig1", "table2", "fig3", "fig4", "fig5", "efpp", "theorem1", "neighbours"),
    "congestion": ("collapse1", "collapse2", "e1", "e2", "e3", "e4"),
    "admission": ("fig9", "fig10"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="*", help=f"which: {', '.join(EXPERIMENTS)} (default: all)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these figures")
    parser.add_argument("--full", action="store_true", help="as long as in the paper")
    parser.add_argument("--seed", type=int, metavar="N", help="another seed than that of the experiment's values")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON and write nothing")
    arguments = parser.parse_args()
    unknown = [paper for paper in arguments.papers if paper not in EXPERIMENTS]
    if unknown:
        parser.error(f"no paper called {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    for paper in arguments.papers or EXPERIMENTS:
        for name in EXPERIMENTS[paper]:
            if not arguments.only or name in arguments.only:
                run(paper, name, full=arguments.full, seed=arguments.seed, as_json=arguments.json)
    if not arguments.json:
        write_readme(EXPERIMENTS)
    return 0


def run(paper: str, name: str, *, full: bool, seed: int | None = None, as_json: bool = False) -> None:
    """Run one experiment, keep its results and say what it found; or only print them as JSON."""
    experiment = cast("Experiment", importlib.import_module(f"experiments.{paper}.{name}"))
    values, seed_of_values = read_values(paper, name, full=full)
    if seed is None:
        seed = seed_of_values
    elif "seeds" in values:
        values["seeds"] = 1  # that one
    if as_json:
        outcome = experiment.run(values, seed)
        print(json.dumps(outcome.summary or [vars(finding) for finding in outcome.findings]))
        return
    print(f"\n{paper}/{name}: {experiment.TITLE}", flush=True)
    started = time.monotonic()
    outcome = experiment.run(values, seed)
    keep(paper, name, experiment.TITLE, outcome, values, seed, full=full, figure=experiment.draw(outcome))
    for finding in outcome.findings:
        print(f"  {finding.what}: {finding.ours}" + (f" (paper: {finding.paper})" if finding.paper != "-" else ""))
    print(f"  ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
