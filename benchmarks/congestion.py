"""What congestion control costs a broker while there is no congestion: `python -m benchmarks.congestion [--rounds 3]`.

The loads are shapes a and b of `benchmarks.overlay`, in virtual time: (a) one publisher with batches of 1,000 rows in columns,
and message by message in groups of 10; ten subscribers that match 10% each; (b) 200 publishers and 500 subscribers of 100 topics,
2,000 messages per second, one by one. Each is run with one broker, and with two that are linked, publishers at one of them and
subscribers at the other.

What is counted is the work of the broker machines: function calls, Python's and C's together. It is the same in each run of a
seed, so that 2% can be told on a busy machine. CPU time of the same calls is given beside it, the least of the rounds. Both are
ratios of each rule to `none`. Raw results go to `benchmarks/results/congestion.json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from experiments.congestion.load import GROUPS, NoHistory, Reader, Writer, batches_of, client

from benchmarks.records import RESULTS, circumstances, save
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.sim.overlay import Overlay
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.tap.tracked_broker import TrackedConfig

MACHINE: Final = ("clock", "wake", "fact", "receive", "outputs", "deadline")
WARM_S: Final = 12.0  # until subscriptions are active and publishers have begun


@dataclass(frozen=True)
class Shape:
    """Publishers that send so many rows at once in so many seconds, and what the subscribers want."""

    publishers: int
    rows: int
    period_s: float
    filters: tuple[str, ...]
    seconds: float


TENTHS: Final = tuple(f"group >= {low} AND group < {low + GROUPS // 10}" for low in range(0, GROUPS, GROUPS // 10))
SHAPES: Final = {
    "a, columns": Shape(1, 1_000, 0.05, TENTHS, 10.0),
    "a, message by message": Shape(1, 10, 0.005, TENTHS, 5.0),
    "b": Shape(200, 1, 0.1, tuple(f"group = {number % GROUPS}" for number in range(500)), 4.0),
}


class Work:
    """What the machines of an overlay do: calls, or CPU time."""

    def __init__(self, *, counts_calls: bool) -> None:
        self.counts_calls = counts_calls
        self.is_on = False
        self.calls = 0
        self.cpu_s = 0.0

    def watch(self, machine: Any) -> None:
        """Count what the methods do by which the driver runs a machine."""
        for name in MACHINE:
            setattr(machine, name, self._watched(getattr(machine, name)))

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **others: Any) -> Any:
            if not self.is_on:
                return method(*arguments, **others)
            began = time.thread_time()
            if self.counts_calls:
                sys.setprofile(self._count)
            try:
                return method(*arguments, **others)
            finally:
                sys.setprofile(None)
                self.cpu_s += time.thread_time() - began

        return counted

    def _count(self, frame: Any, event: str, argument: Any) -> None:  # noqa: ARG002  # as `sys.setprofile` calls it
        self.calls += event in ("call", "c_call")


class Source(Writer):
    """Publishes in the rhythm of a shape."""

    rows = 1
    period_s = 1.0

    def _offer(self, due: float) -> None:
        self.world.at(due + self.period_s, self._offer, due + self.period_s)
        assert self.session is not None
        assert self.publishing is not None
        assert self.publishing.key is not None
        registration = self.session.registration(self.publishing.key)
        if registration is None:
            return
        self.session.clock(self._clock_ms())
        for piece in batches_of(registration.ids_for(self.rows, self._clock_ms()), self.offset):
            registration.add_batch(piece, piece.size)
        self.offset = (self.offset + self.rows) % GROUPS
        self._act()


class Quiet(Overlay):
    """An overlay that measures nothing by itself."""

    def _measure(self) -> None:
        pass


def work_of(shape: Shape, rule: Rule, *, brokers: int, seed: int, counts_calls: bool) -> tuple[Work, int, int]:
    """Run a shape; return the work of all brokers, the messages delivered, and the alerts of congestion, which should be none."""
    config = TrackedConfig(congestion=CongestionSettings(rule), tracking=TrackingSettings(strategy=Strategy.NULL))
    overlay = Quiet(seed, config=config, history=NoHistory())
    work = Work(counts_calls=counts_calls)
    overlay.brokers(*range(1, brokers + 1))
    for node in overlay.nodes.values():
        work.watch(node.machine)
    if brokers == 2:
        overlay.link(2, 1)
    overlay.run(1.0)
    reader = cast("Reader", client(overlay, Reader, "reader", brokers))
    for number, text in enumerate(shape.filters):
        reader.follow(text, subscription=f"s{number}")
    overlay.run(6.0)
    sources = [cast("Source", client(overlay, Source, f"source{number}", 1)) for number in range(shape.publishers)]
    overlay.run(8.0)
    for number, source in enumerate(sources):
        source.rows, source.period_s, source.offset = shape.rows, shape.period_s, number % GROUPS
        source.begin()
    overlay.run(WARM_S)
    before, work.is_on = reader.delivered, True
    overlay.run(WARM_S + shape.seconds)
    work.is_on = False
    machines = [node.machine for node in overlay.nodes.values()]
    alerts = sum(machine.stats()["congestion_alerts"] for machine in machines if machine is not None)
    return work, reader.delivered - before, alerts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of the CPU times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    options = parser.parse_args()
    machine = circumstances()
    results: dict[str, Any] = {}
    gc.disable()  # it would run at other moments in each
    for name in options.shapes:
        for brokers in (1, 2):
            measured = {rule.value: measure(SHAPES[name], rule, brokers, options) for rule in Rule}
            none = measured[Rule.NONE.value]
            for rule, found in measured.items():
                found |= {f"{what}_ratio": round(found[what] / none[what], 4) for what in ("calls", "cpu_s")}
                print(f"{name}, {brokers} broker(s), {rule}: {json.dumps(found)}", flush=True)
            results[f"{name}, {brokers}"] = measured
    save(RESULTS / "congestion.json", machine, results)
    return 0


def measure(shape: Shape, rule: Rule, brokers: int, options: argparse.Namespace) -> dict[str, float]:
    """Return calls and CPU time of one rule, and what it delivered."""
    counted, delivered, alerts = work_of(shape, rule, brokers=brokers, seed=options.seed, counts_calls=True)
    times = []
    for _ in range(options.rounds):
        gc.collect()
        times.append(work_of(shape, rule, brokers=brokers, seed=options.seed, counts_calls=False)[0].cpu_s)
    return {"calls": counted.calls, "cpu_s": round(min(times, default=1.0), 4), "delivered": delivered, "alerts": alerts}


if __name__ == "__main__":
    sys.exit(main())
