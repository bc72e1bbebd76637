"""Covering and the filter index: `python -m benchmarks.covering [--sizes 1000 10000]`.

Prints how many pairs `covers` compares per second, what an index costs to build, to match and to change, how the time of a match
splits over its steps, and the same for filters that match much and for real quotes (where `../shared/data` or POSTROAD_DATA has
them). Every time is CPU time, so that a busy machine matters less, and the best of several rounds.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import ATTRIBUTE_PREFIX
from postroad.core.filters.algebra.covering import covers
from postroad.core.filters.algebra.normal_form import prepare
from postroad.core.filters.evaluate.whole_batch import Columns, compile_select, select
from postroad.core.filters.index.axis import Axis
from postroad.core.filters.index.filter_index import FilterIndex
from postroad.core.filters.index.match_many import Join
from postroad.core.filters.index.shard import Shard
from postroad.core.filters.language.ast import And, Attribute, Between, Comparison, Condition, In, IsNull, Like, Literal, Or

SYMBOLS: Final = [f"{a}{b}{c}" for a in "ABCDEFGH" for b in "AEIKLMOU" for c in "BDGMNRTX"][:500]
DATA: Final = Path(os.environ.get("POSTROAD_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
ROWS: Final = 1_000
STEPS: Final[dict[str, tuple[type, str]]] = {
    "translate to cells": (Axis, "cells"),
    "find candidates": (Join, "candidates"),
    "check pairs": (Join, "pairs"),
    "check bitmaps": (Join, "bitmaps"),
    "unite, evaluate": (Shard, "_complete"),
}


def price_of(symbol: str) -> float:
    """Give a usual price for each symbol, between about 2 and 400."""
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
    """Make one of the fifth that is not a symbol with a price range."""
    symbol, volume = random.choice(SYMBOLS), Attribute("volume")
    threshold = Literal(int(10 ** random.uniform(2, 6)))
    match random.randrange(8):
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
        case 6:
            return Comparison("=", Attribute("symbol"), Literal(symbol))
        case _:
            return symbol_and_range(Random(random.randrange(50)))  # one of fifty popular filters


def load(count: int, seed: int = 7) -> list[Condition]:
    random = Random(seed)
    return [symbol_and_range(random) if random.random() < 0.8 else mixed(random) for _ in range(count)]


def heavy_load(count: int, seed: int = 8) -> list[Condition]:
    """Make filters of one or two wide ranges: each matches a large share of the rows."""
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


def best(work: Callable[[], object], rounds: int = 9) -> float:
    times = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def index_of(filters: Sequence[Condition]) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for key, condition in enumerate(filters):
        index.add(key, condition)
    return index


@contextmanager
def stopwatch(steps: dict[str, tuple[type, str]]) -> Iterator[dict[str, float]]:
    """Add up the time spent in some methods."""
    spent = dict.fromkeys(steps, 0.0)

    def timed(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            started = time.process_time()
            try:
                return original(*arguments)
            finally:
                spent[name] += time.process_time() - started

        return call

    originals = {name: getattr(owner, method) for name, (owner, method) in steps.items()}
    for name, (owner, method) in steps.items():
        setattr(owner, method, timed(name, originals[name]))
    try:
        yield spent
    finally:
        for name, (owner, method) in steps.items():
            setattr(owner, method, originals[name])


def stock_of(random: Random) -> Condition:
    """Make a filter on three attributes; one in ten pairs of them is on the same symbol."""
    kind, symbol = Comparison("=", Attribute("class"), Literal("stock")), SYMBOLS[random.randrange(10)]
    return And((kind, Comparison("=", Attribute("symbol"), Literal(symbol)), price_range(random, symbol)))


def report_covering() -> None:
    print("covers(), single core")
    conjunctions: list[Condition] = [stock_of(Random(seed)) for seed in range(300)]
    for name, filters in (("conjunctions of three attributes", conjunctions), ("the load of the index", load(300))):
        prepared = [prepare(f) for f in filters]
        pairs = [(f, g) for f in prepared for g in prepared]
        warm = best(partial(_compare_all, pairs), 5) / len(pairs)
        cold_pairs = [(f, g) for f in filters[:40] for g in filters[:40]]
        cold = best(partial(_compare_all, cold_pairs), 3) / len(cold_pairs)
        once = best(partial(_prepare_all, filters), 5) / len(filters)
        yes = sum(covers(f, g) for f, g in pairs) / len(pairs)
        print(
            f"  {name:34} prepared {1 / warm:9,.0f} pairs/s ({yes:.1%} yes), cold {1 / cold:7,.0f}, prepare {once * 1e6:.1f} us"
        )


def _compare_all(pairs: Sequence[tuple[Any, Any]]) -> None:
    for f, g in pairs:
        covers(f, g)


def _prepare_all(filters: Sequence[Condition]) -> None:
    for f in filters:
        prepare(f)


def report_index(name: str, filters: Sequence[Condition], batch: Batch, single: Batch) -> None:
    started = time.process_time()
    index = index_of(filters)
    added = time.process_time() - started
    built = best(partial(index.match, batch), 1)
    whole, one = best(partial(index.match, batch)), best(partial(index.match, single))
    matches = index.match(batch)
    read = best(lambda: sum(len(rows) for _, rows in matches.items()), 3)
    found = sum(len(rows) for _, rows in matches.items())
    print(
        f"  {name:24} {len(filters):8,} filters: add {added / len(filters) * 1e6:5.1f} us each, build {built * 1e3:7.1f} ms, "
        f"match {len(batch):,} rows {whole * 1e3:6.2f} ms, 1 row {one * 1e6:4.0f} us; "
        f"{len(matches.keys()):,} filters match {found:,} times, read all {read * 1e3:.1f} ms"
    )
    with stopwatch(STEPS) as spent:
        rounds = 9
        started = time.process_time()
        for _ in range(rounds):
            index.match(batch)
        total = (time.process_time() - started) / rounds
    split = ", ".join(f"{step} {seconds / rounds * 1e3:.2f}" for step, seconds in spent.items())
    print(f"  {'':24} split of {total * 1e3:.2f} ms: {split}, rest {(total - sum(spent.values()) / rounds) * 1e3:.2f}")


def report_alone(filters: Sequence[Condition], batch: Batch) -> None:
    """Evaluate filters one by one, over shared columns, for comparison."""
    compiled = [compile_select(f) for f in filters]

    def evaluate_all() -> None:
        columns = Columns(batch)
        for each in compiled:
            select(each, columns)

    alone = best(evaluate_all, 3)
    print(f"  {'one by one, no index':24} {len(filters):8,} filters: match {len(batch):,} rows {alone * 1e3:.1f} ms")


def report_changes(filters: Sequence[Condition], more: Sequence[Condition], batch: Batch) -> None:
    """Change a filter before each match: a new one comes, an old one goes."""
    index = index_of(filters)
    quiet = best(partial(index.match, batch))
    started = time.process_time()
    for key, condition in enumerate(more):
        index.add(len(filters) + key, condition)
        index.remove(key)
        index.match(batch)
    changed = (time.process_time() - started) / len(more)
    print(
        f"  {'changing':24} {len(filters):8,} filters: add, remove, match cost {(changed - quiet) * 1e3:.2f} ms "
        f"on top of {quiet * 1e3:.2f} ms, on average over {len(more):,}"
    )


def real_quotes() -> tuple[Batch, list[dict[str, Any]]] | None:
    path = DATA / "stock_quotes.csv.gz"
    if not path.is_file():
        return None
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        quotes = list(csv.DictReader(lines))
    sample = Random(11).sample(quotes, ROWS)
    columns = {
        "symbol": [quote["symbol"] for quote in sample],
        "price": [float(quote["close"]) for quote in sample],
        "volume": [int(float(quote["volume"])) for quote in sample],
        "note": [None] * len(sample),
    }
    return batch_of(columns), quotes


def filters_on_real_quotes(count: int, quotes: Sequence[dict[str, Any]], seed: int = 12) -> list[Condition]:
    """Make filters on a symbol with a price between those of two of its quotes, drawn like the quotes themselves."""
    random = Random(seed)
    by_symbol: dict[str, list[float]] = {}
    for quote in quotes:
        by_symbol.setdefault(quote["symbol"], []).append(float(quote["close"]))
    found: list[Condition] = []
    for _ in range(count):
        symbol = random.choice(quotes)["symbol"]
        low, high = sorted(random.choices(by_symbol[symbol], k=2))
        price = Between(Attribute("price"), Literal(low), Literal(high))
        found.append(And((Comparison("=", Attribute("symbol"), Literal(symbol)), price)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="numbers of filters")
    sizes = parser.parse_args().sizes
    report_covering()
    print("index: 80% a symbol and a price range, 20% mixed")
    batch, single = quotes(ROWS), quotes(1)
    index_of(load(100)).match(batch)  # so that no figure pays for what the libraries do on first use
    for size in sizes:
        report_index("mixed load", load(size), batch, single)
    report_alone(load(1_000), batch)
    report_changes(load(10_000), load(400, seed=70), batch)
    for size in sizes[:2]:
        report_index("wide ranges", heavy_load(size), batch, single)
    real = real_quotes()
    if real is None:
        print(f"  real quotes: skipped, {DATA / 'stock_quotes.csv.gz'} is not there")
        return
    real_batch, real_rows = real
    for size in sizes:
        first = Batch(real_batch.columns.slice(0, 1))
        report_index("real quotes", filters_on_real_quotes(size, real_rows), real_batch, first)


if __name__ == "__main__":
    main()
