"""Covering and the filter index: `python -m benchmarks.covering [--quick]`.

Prints how many pairs `covers` compares per second, what building an index costs, and how long a batch takes against indexes of
1,000, 10,000 and 100,000 filters, with the time split over the steps. Every figure is the best of several rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from postroad.core.batch import ATTRIBUTE_PREFIX, Batch
from postroad.core.filters.ast import And, Attribute, Between, Comparison, Condition, In, IsNull, Like, Literal, Or
from postroad.core.filters.index import FilterIndex

SYMBOLS: Final = [f"{a}{b}{c}" for a in "ABCDEFGH" for b in "AEIKLMOU" for c in "BDGMNRTX"][:500]
QUOTES: Final = Path(__file__).parents[2] / "shared" / "data" / "stock_quotes.csv.gz"
ROWS: Final = 1_000


def price_of(symbol: str) -> float:
    """A usual price for each symbol, between about 2 and 400."""
    return round(2 * math.exp(5.3 * Random(symbol).random()), 2)


def price_range(random: Random, symbol: str) -> Condition:
    base = price_of(symbol)
    low, high = sorted((base * random.uniform(0.7, 1.3), base * random.uniform(0.7, 1.3)))
    price = Attribute("price")
    match random.randrange(3):
        case 0:
            return Comparison(">", price, Literal(round(high, 2)))
        case 1:
            return Comparison("<=", price, Literal(round(low, 2)))
        case _:
            return Between(price, Literal(round(low, 2)), Literal(round(high, 2)))


def symbol_and_range(random: Random) -> Condition:
    symbol = random.choice(SYMBOLS)
    return And((Comparison("=", Attribute("symbol"), Literal(symbol)), price_range(random, symbol)))


def mixed(random: Random) -> Condition:
    """The fifth that is not a symbol with a price range."""
    symbol, volume = random.choice(SYMBOLS), Attribute("volume")
    threshold = Literal(int(10 ** random.uniform(2, 6)))
    match random.randrange(7):
        case 0:
            return price_range(random, symbol)
        case 1:
            return And((Comparison(">", volume, threshold), price_range(random, symbol)))
        case 2:
            listed = tuple(Literal(each) for each in random.sample(SYMBOLS, random.randint(2, 8)))
            return And((In(Attribute("symbol"), listed), Comparison(">=", volume, threshold)))
        case 3:
            return And((Like(Attribute("symbol"), symbol[: random.randint(1, 2)] + "%"), price_range(random, symbol)))
        case 4:
            return And((IsNull(Attribute("note")), Comparison("=", Attribute("symbol"), Literal(symbol))))
        case 5:
            return Or((symbol_and_range(random), symbol_and_range(random)))
        case _:
            return Comparison("=", Attribute("symbol"), Literal(symbol))  # few distinct ones, so many duplicates


def load(count: int, seed: int = 7) -> list[Condition]:
    random = Random(seed)
    return [symbol_and_range(random) if random.random() < 0.8 else mixed(random) for _ in range(count)]


def heavy_load(count: int, seed: int = 8) -> list[Condition]:
    """Filters of one or two wide ranges: each matches a large share of the rows."""
    random = Random(seed)
    price, volume = Attribute("price"), Attribute("volume")
    found: list[Condition] = []
    for _ in range(count):
        wide = Comparison(">", price, Literal(round(random.uniform(1, 40), 2)))
        more = Comparison("<", volume, Literal(int(10 ** random.uniform(3, 7))))
        found.append(wide if random.random() < 0.3 else And((wide, more)))
    return found


def batch_of(columns: dict[str, Any]) -> Batch:
    names = sorted(columns)
    arrays = [pa.array(columns[name]) for name in names]
    return Batch(pa.RecordBatch.from_arrays(arrays, names=[ATTRIBUTE_PREFIX + name for name in names]))


def quotes(rows: int, seed: int = 9) -> Batch:
    random = Random(seed)
    symbols = random.choices(SYMBOLS, k=rows)
    return batch_of(
        {
            "symbol": symbols,
            "price": [round(price_of(symbol) * random.uniform(0.8, 1.2), 2) for symbol in symbols],
            "volume": [int(10 ** random.uniform(2, 6)) for _ in symbols],
            "note": [random.choice((None, None, None, "late")) for _ in symbols],
        }
    )


def best(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def index_of(filters: Sequence[Condition]) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for key, condition in enumerate(filters):
        index.add(key, condition)
    return index


def main() -> None:
    for count in (1000, 10000, 100000):
        filters = load(count)
        started = time.perf_counter()
        index = index_of(filters)
        added = time.perf_counter() - started
        batch = quotes(ROWS)
        started = time.perf_counter()
        index.match(batch)
        built = time.perf_counter() - started
        t = best(lambda: index.match(batch), 10)
        m = index.match(batch)
        pairs = sum(sum(p.counts().values()) for p in m._parts)
        print(
            count,
            f"add {added / count * 1e6:.1f} us build {built * 1e3:.0f} ms match {t * 1e3:.2f} ms, groups {len(m.keys())} pairs {pairs}",
        )
        small = quotes(1)
        print("  one row", best(lambda: index.match(small), 10) * 1e6, "us")
    for count in (1000, 10000):
        index = index_of(heavy_load(count))
        index.match(batch)
        t = best(lambda: index.match(batch), 3)
        m = index.match(batch)
        pairs = sum(sum(p.counts().values()) for p in m._parts)
        print("heavy", count, t * 1e3, pairs)


if __name__ == "__main__":
    main()
