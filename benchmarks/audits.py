"""What audits cost: of everything, and of what came since the last one.

    python -m benchmarks.audits --deliveries 1000000 --parts 10

Three brokers in a line, a publisher at the first, 32 durable subscribers at the others, with real trackers, track files and logs,
but without processes between them, so that only the audits are measured. Time is virtual. After each part an audit continues
behind the last one; after the first and the last part another one reads everything. Costs are processor seconds, Python and Java
together, which other programs on the machine change little.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.spark.jobs.synthetic import Broker, Entry, Rows, World, some_subscribers

from postroad.spark import session
from postroad.spark.jobs.evidence import Scope
from postroad.spark.jobs.verdicts.continuing import Recorded, Wish, audit_behind, keep, read_everything
from postroad.spark.jobs.verdicts.table import VerdictTable

LINE = {1: (2,), 2: (1, 3), 3: (2,)}
RATE = 1_000  # messages a second
DELIVERED = 8  # of a message, about
STEP_MS = 500


class Quiet(World):
    """A world that keeps no notes of what happened, which would take most of the memory."""

    def _note(self, rows: Rows) -> None:
        self.published = getattr(self, "published", 0) + len(rows.ids)

    def _happened(self, broker: Broker, where: set[Entry], entries: list[Entry]) -> None:
        pass


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and of all that it started, those that have ended included."""
    ticks = 0
    children: dict[int, list[tuple[int, list[str]]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append((int(path.parent.name), fields))
        if int(path.parent.name) == pid:
            ticks += sum(map(int, fields[11:15]))
    waiting = [pid]
    while waiting:
        for child, fields in children.get(waiting.pop(), ()):
            ticks += sum(map(int, fields[11:15]))
            waiting.append(child)
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(what: str, world: Quiet, work: Callable[[], object]) -> dict[str, object]:
    before, began = cpu_s(os.getpid()), time.monotonic()
    done = work()
    row: dict[str, object] = {"what": what, "messages": world.published}
    summary = done.audit.summary if isinstance(done, Recorded) else done.summary  # type: ignore[attr-defined]
    row |= {"deliveries": summary.counted, "verdict": summary.verdict.name.lower(), "continued": summary.continued}
    row |= {"cpu_s": round(cpu_s(os.getpid()) - before, 1), "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=1_000_000, help="of a part, about")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="postroad-audits-") as temporary,
        session.running(given.master, app="audits") as spark,
    ):
        world = Quiet(Path(temporary) / "data", some_subscribers(32, (2, 3)), links=LINE, origins=[1])
        table = VerdictTable.open(spark, f"{temporary}/verdicts")
        wish = Wish(world.data)

        def scope() -> Scope:
            return Scope(world.now_ms)

        def go_on() -> Recorded:
            made = audit_behind(spark, table, wish, scope())
            keep(table, wish, made)
            made.audit.close()
            return made

        def everything() -> object:
            done = read_everything(spark, wish, scope())
            done.close()
            return done

        for part in range(1, given.parts + 1):
            world.run(given.deliveries * 1000 // (RATE * DELIVERED), rate=RATE, step_ms=STEP_MS)
            rows.append(measured(f"part {part}", world, go_on))
            if part in {1, given.parts}:
                rows.append(measured(f"everything, parts 1 to {part}", world, everything))
        world.finish()
    print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
