"""Run the benchmarks one after the other and keep what they print.

Wall-clock figures of one machine at one time: compare ratios within a run, not figures between machines. Each is a module of
its own with options of its own (`python -m benchmarks.overlay --help`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).parent / "results"
ALL: Final = (
    "filters",
    "covering",
    "wire",
    "storage",
    "tracking",
    "overlay",
    "subscriptions",
    "admission",
    "topics",
    "queues",
    "spark",
    "pipeline",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ALL), help=f"which: {', '.join(ALL)} (default: all)")
    names = parser.parse_args().names
    unknown = [name for name in names if name not in ALL]
    if unknown:
        parser.error(f"no benchmark called {', '.join(unknown)}; there are {', '.join(ALL)}")
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for number, name in enumerate(names, 1):
        print(f"\n[{number}/{len(names)}] {name}", flush=True)
        started = time.monotonic()
        if _run(name) != 0:
            failed.append(name)
        print(f"({time.monotonic() - started:.0f} s)", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _run(name: str) -> int:
    """Show what a benchmark prints, and keep it in results/."""
    with (RESULTS / f"{name}.txt").open("w", encoding="utf-8") as kept:
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            kept.write(line)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
