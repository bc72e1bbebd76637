"""What admission control costs: CPU time per operation, by the number of advertisements and subscriptions there are already.

    python -m benchmarks.admission                     # 100 to 10,000 advertisements, 1,000 to 100,000 subscriptions
    python -m benchmarks.admission --parts graph off   # some

Three parts. `graph`: advertise and withdraw in the covering graph of one broker, and ask for a demand. `ledger`: reserve and
release filters over 10,000 advertisements. `off`: subscribe and unsubscribe at one broker machine without a policy, in turns with
the same machine whose calls into admission control do nothing, so that the difference is what `off` costs.

The paper compares a filter with every node of the graph, O(N): the column `all pairs`. The index compares with those that are
really related. `growth` says how many times more an operation costs than with the fewest. Filters are parsed and in normal form
before, which costs the same whatever there is already, and Python's garbage collector rests: it would fall upon some operation.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import Final

from postroad.core.broker.admission.admission import Admission
from postroad.core.broker.admission.advertisements import AdvertisementGraph
from postroad.core.broker.admission.ledger import Capacities, Holder, Ledger
from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import Broker
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import BrokerState, ClientUp, PubendState, Store, Stored
from postroad.core.protocol.packets import Subscribe, Unsubscribe, pubend_id

ADVERTISEMENTS: Final = (100, 1_000, 10_000)
SUBSCRIPTIONS: Final = (1_000, 10_000, 100_000)
MEASURED: Final = 300  # operations at each size
TURNS: Final = 7
TURN_SUBSCRIPTIONS: Final = 1_000
SYMBOLS: Final = 2_000  # so that a few advertisements of each are nested in each other
PUBEND: Final = 1
HOLDER: Final = Holder(7, 1)


def advertised(number: int) -> Filter:
    """Return the filter of an advertisement: a symbol, and five nested ranges of its price."""
    return Filter(f"symbol = 'S{number % SYMBOLS}' AND price > {number // SYMBOLS * 10}")


def wanted(chance: Random) -> Filter:
    """Return the filter of a subscription."""
    low = chance.randrange(100)
    return prepared(f"symbol = 'S{chance.randrange(SYMBOLS)}' AND price BETWEEN {low} AND {low + chance.randrange(1, 50)}")


def cost_us(operation: Callable[[Filter], object], filters: Sequence[Filter]) -> float:
    """Return the CPU time of an operation on one filter, in microseconds."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    for each in filters:
        operation(each)
    spent = time.process_time() - began
    gc.enable()
    return spent / len(filters) * 1e6


def report(cells: Sequence[object]) -> None:
    """Print one row of a table."""
    texts = [each if isinstance(each, str) else f"{each:,}" if isinstance(each, int) else f"{each:,.1f}" for each in cells]
    print(" ".join(f"{text:>14}" for text in texts), flush=True)


def fresh_advertisements(chance: Random) -> list[Filter]:
    texts = [f"symbol = 'S{chance.randrange(SYMBOLS)}' AND price > {chance.random() * 40:.3f}" for _ in range(MEASURED)]
    return [prepared(text) for text in texts]


def prepared(text: str) -> Filter:
    """Return a filter with all that is worked out of it once."""
    made = Filter(text)
    assert made.hulls
    return made


def measure_graph() -> None:
    print("graph: CPU microseconds of one operation")
    report(("advertisements", "advertise", "withdraw", "demand", "formula 1", "all pairs", "growth"))
    chance, graph, count, first = Random(1), AdvertisementGraph(), 0, 0.0
    for size in ADVERTISEMENTS:
        while count < size:
            graph.advertise(advertised(count), PUBEND, 1_000)
            count += 1
        fresh = fresh_advertisements(chance)
        asked = [wanted(chance) for _ in range(MEASURED)]
        advertise = cost_us(lambda each: graph.advertise(each, PUBEND, 1_000), fresh)
        demand, formula = cost_us(graph.demand, asked), cost_us(graph.formula, asked)
        withdraw = cost_us(lambda each: graph.withdraw(each, PUBEND, 1_000), fresh)
        pairs = cost_us(lambda each: [node.filter.covers(each) or each.covers(node.filter) for node in graph.nodes()], asked[:5])
        first = first or advertise
        report((size, advertise, withdraw, demand, formula, pairs, advertise / first))


def measure_ledger() -> None:
    print(f"\nledger: CPU microseconds of one operation over {ADVERTISEMENTS[-1]:,} advertisements")
    report(("reserved", "check", "reserve", "release", "advertise", "withdraw", "growth"))
    chance, graph, first = Random(2), AdvertisementGraph(), 0.0
    ledger = Ledger(graph, Capacities(cpu_millirate=1 << 60, link_millirate=1 << 60))
    ledger.set_scope(HOLDER, [PUBEND])
    for number in range(ADVERTISEMENTS[-1]):
        graph.advertise(advertised(number), PUBEND, 1_000)
    for size in SUBSCRIPTIONS:
        while len(ledger) < size:
            ledger.reserve(wanted(chance), HOLDER)
        fresh = [wanted(chance) for _ in range(MEASURED)]
        check = cost_us(lambda each: ledger.check(each, HOLDER), fresh)
        reserve = cost_us(lambda each: ledger.reserve(each, HOLDER), fresh)
        release = cost_us(lambda each: ledger.release(each, HOLDER), fresh)
        more = fresh_advertisements(chance)
        advertise = cost_us(lambda each: ledger.advertised(graph.advertise(each, PUBEND, 1_000), PUBEND, 1_000), more)
        withdraw = cost_us(lambda each: ledger.withdrawn(graph.withdraw(each, PUBEND, 1_000), PUBEND, 1_000), more)
        first = first or reserve
        report((size, check, reserve, release, advertise, withdraw, reserve / first))


class Subscriptions:
    """One broker machine with one client; writes finish at once."""

    def __init__(self) -> None:
        state = BrokerState(1, 1, (PubendState(pubend_id(1), 0, 0, ()),), ())
        self.broker = Broker(state, BrokerConfig(), now=0.0)
        self.broker.clock(1_800_000_000_000)
        self.broker.fact(ClientUp(1), now=0.0)
        self.handle = 0
        self._carry_out()

    def turn(self, texts: Sequence[str]) -> float:
        """Subscribe and unsubscribe; return the CPU microseconds of each pair."""
        began = time.process_time()
        first = self.handle + 1
        for text in texts:
            self.handle += 1
            self.broker.receive(Subscribe(self.handle, text), link=1, now=0.0, packet=1)
            self._carry_out()
        for handle in range(first, self.handle + 1):
            self.broker.receive(Unsubscribe(handle), link=1, now=0.0, packet=1)
            self._carry_out()
        return (time.process_time() - began) / len(texts) * 1e6

    def _carry_out(self) -> None:
        while orders := self.broker.outputs():
            for order in orders:
                if isinstance(order, Store):
                    self.broker.fact(Stored(order.token), now=0.0)


class Without(Subscriptions):
    """The same machine, in which the calls of a subscription into admission control do nothing."""

    def __init__(self) -> None:
        super().__init__()
        role = self.broker.admission
        for name, answer in (("concerns", False), ("unsubscribe", None), ("decide", None), ("flush", None), ("begun", None)):
            _replace(role, name, answer)
        _replace(role, "dropped", None)


def _replace(role: Admission, name: str, answer: object) -> None:
    def nothing(*_: object) -> object:
        return answer

    setattr(role, name, nothing)


def measure_off() -> None:
    print(f"\noff: CPU microseconds to subscribe and unsubscribe, median of {TURNS} turns of {TURN_SUBSCRIPTIONS:,} each")
    machines = {"with `off`": Subscriptions(), "without admission control": Without()}
    found: dict[str, list[float]] = {name: [] for name in machines}
    for turn in range(TURNS + 1):
        texts = [f"symbol = 'S{turn}.{number}'" for number in range(TURN_SUBSCRIPTIONS)]
        for text in texts:
            Filter(text)
        for name, machine in machines.items():
            cost = machine.turn(texts)
            if turn:  # the first one warms up
                found[name].append(cost)
    for name, costs in found.items():
        print(f"{name:>26}: {median(costs):6.1f} ({min(costs):.1f} to {max(costs):.1f})", flush=True)


PARTS: Final = {"graph": measure_graph, "ledger": measure_ledger, "off": measure_off}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    for part in parser.parse_args().parts:
        PARTS[part]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
