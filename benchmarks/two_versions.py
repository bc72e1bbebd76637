"""The broker's CPU per message in two versions of the code: `python -m benchmarks.two_versions OLD_TREE [--pairs 6]`.

OLD_TREE is a checkout of the other version: `git worktree add ../old COMMIT`. Both versions run in turns, in random order within
a pair, so that a machine that is slow for a while is slow for both. Each run starts a broker, publishers and subscribers of its
own version. The shapes are those of `benchmarks.overlay`: `a` columns, `m` message by message, `b` 200 publishers and 500
subscribers. Figures are CPU microseconds of the broker per published message, without tracking unless `--tracking default`;
the ratio is the median over pairs of new to old.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.records import RESULTS, circumstances, save

SHAPES: Final = ("a", "m", "b")
HERE: Final = Path(__file__).parent.parent
RUN_S_MAX: Final = 600.0

# Runs in the version that is measured, with only what `benchmarks.overlay` has in both.
MEASURE: Final = """
import json, sys, tempfile
from pathlib import Path
from benchmarks import overlay as o

def of_flow(process, flow):
    _, (cpu,) = o._run_flow(flow, [(process.url, process.url)], [[process]])
    return cpu / flow.count

def of_rate(process, rate, seconds):
    receiver = o.Worker.start(o.receive_paced, [process.url], seconds)
    receiver.ready()
    sender = o.Worker.start(o.publish_paced, [process.url], rate, seconds)
    sender.ready()
    before = o.cpu_s(process.pid)
    receiver.go()
    sender.go()
    (sent, _), _ = sender.result(seconds)
    cpu = o.cpu_s(process.pid) - before
    receiver.result(seconds)
    return cpu / sent

if __name__ == "__main__":
    shape, tracking, scale = sys.argv[1], sys.argv[2], float(sys.argv[3])
    chosen = o.DEFAULT if tracking == "default" else o.STRATEGIES[tracking]
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        with o.broker(Path(directory), tracking=chosen) as process:
            if shape == "a":
                used = of_flow(process, o.Flow(int(2000 * scale) * 1000, o.TENTH, 0.1, 1000))
            elif shape == "m":
                used = of_flow(process, o.Flow(int(50 * scale) * 10000, o.TENTH, 0.1))
            else:
                used = of_rate(process, 2000.0, 12 * scale)
    print(json.dumps(used * 1e6))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--tracking", default="null", choices=("null", "default", "bloom", "exact"))
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer messages")
    parser.add_argument("--seed", type=int, default=1, help="of the order within pairs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the directory for raw results")
    options = parser.parse_args()
    machine = circumstances()
    chance = random.Random(options.seed)
    results = {}
    for shape in options.shapes:
        pairs = []
        for _ in range(options.pairs):
            trees = [("old", options.old.resolve()), ("new", HERE)]
            chance.shuffle(trees)
            pair = {name: cpu_us(tree, shape, options.tracking, options.scale) for name, tree in trees}
            pairs.append({**pair, "ratio": round(pair["new"] / pair["old"], 4)})
            print(f"{shape}: old {pair['old']:.2f} us, new {pair['new']:.2f} us, ratio {pairs[-1]['ratio']:.3f}", flush=True)
        results[shape] = {"tracking": options.tracking, "pairs": pairs, "ratio": statistics.median(p["ratio"] for p in pairs)}
        print(f"{shape}: median ratio {results[shape]['ratio']:.3f}", flush=True)
    save(options.results / "two-versions.json", machine, results)
    return 0


def cpu_us(tree: Path, shape: str, tracking: str, scale: float) -> float:
    """Return the CPU microseconds per message of a broker of this tree."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "measure.py"  # a file, since the processes that it starts import their main module again
        script.write_text(MEASURE, encoding="utf-8")
        command = [sys.executable, "-P", str(script), shape, tracking, str(scale)]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    if done.returncode != 0:
        raise RuntimeError(f"{tree}, shape {shape}: {done.stderr.strip().splitlines()[-1:]}")
    return round(float(json.loads(done.stdout.strip().splitlines()[-1])), 3)


if __name__ == "__main__":
    sys.exit(main())
