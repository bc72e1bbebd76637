"""What parsing and evaluating filters costs, and matching small batches: `python -m benchmarks.filters [--few]`.

Every figure is the best of many short runs, on one core, without any cache between the calls.
"""

from __future__ import annotations

import itertools
import sys
import timeit
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from postroad import Filter
from postroad.core.batch.batch import Batch
from postroad.core.filters.evaluate.whole_batch import Columns
from postroad.core.filters.index.filter_index import FilterIndex
from postroad.types import AttributeValue

ROWS = 1_000
TOPICS = 500
FEW = (1, 3, 10, 20, 64, 65)
ONE_COMPARISON = "price > 50"
THREE_CONDITIONS = "symbol = 'S77' AND price > 10 AND price <= 20"
CONDITIONS = [
    ONE_COMPARISON,
    "size > 500.5",
    "discount > 0.1",
    "symbol = 'S77'",
    THREE_CONDITIONS,
    "price BETWEEN 10 AND 20",
    "symbol IN ('S1', 'S2', 'S3')",
    "size IN (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)",
    "symbol LIKE 'S7%'",
    "symbol LIKE '%7%'",
    "symbol LIKE 'S_7%'",
    "symbol LIKE '%1%2%'",
    "price * size > 10000",
    "size > price",
    "discount IS NULL",
    "absent = 1",
]


class Measurement(NamedTuple):
    name: str
    seconds: float
    unit: str
    per_second: float


def best(call: Callable[[], object], repetitions: int = 60, seconds: float = 0.002) -> float:
    """Return the seconds of one call: the best of many runs, long enough for the clock, too short to be preempted often."""
    timer = timeit.Timer(call)
    number = max(1, int(seconds / max(timer.timeit(3) / 3, 1e-9)))
    return min(timer.repeat(repetitions, number)) / number


def sample_batch(rows: int = ROWS) -> Batch:
    """Stock quotes: 500 symbols, a float, an int, and a float that one message in seven lacks."""
    random = np.random.default_rng(7)
    discount = pa.array(random.random(rows), mask=random.random(rows) < 1 / 7)
    return Batch(
        pa.record_batch(
            {
                "@discount": discount,
                "@price": pa.array(random.random(rows) * 100),
                "@size": pa.array(random.integers(0, 1_000, rows)),
                "@symbol": pa.array([f"S{number}" for number in random.integers(0, 500, rows)]),
            }
        )
    )


def evaluate_rate(text: str, batch: Batch) -> Measurement:
    """Evaluate one filter over a batch whose columns nobody has decoded yet."""
    subject = Filter(text)
    seconds = best(lambda: subject.evaluate(batch))
    return Measurement(f"evaluate {text}", seconds, "rows", len(batch) / seconds)


def shared_columns_rate(text: str, batch: Batch) -> Measurement:
    """Evaluate one filter over columns that an earlier filter has decoded."""
    subject, columns = Filter(text), Columns(batch)
    seconds = best(lambda: subject.evaluate_columns(columns))
    return Measurement(f"evaluate {text} (columns decoded)", seconds, "rows", len(batch) / seconds)


def match_rate(text: str) -> Measurement:
    """Match one message given as a dict."""
    subject = Filter(text)
    message: dict[str, AttributeValue] = {"symbol": "S77", "price": 15.5, "size": 100}
    seconds = best(lambda: subject.matches(message))
    return Measurement(f"match {text}", seconds, "messages", 1 / seconds)


def parse_rate(text: str) -> Measurement:
    seconds = best(lambda: Filter(text))
    return Measurement(f"parse {text}", seconds, "filters", 1 / seconds)


def topics_index(*, one_by_one: bool) -> FilterIndex[int]:
    """Subscriptions to one topic each; with a match after each of them the index consists of several segments."""
    index: FilterIndex[int] = FilterIndex()
    for topic in range(TOPICS):
        index.add(topic, f"topic = 'T{topic}'")
        if one_by_one:
            index.match(topics_batch(1, 0))
    return index


def topics_batch(rows: int, seed: int) -> Batch:
    random = np.random.default_rng(seed)
    topics = [f"T{number}" for number in random.integers(0, TOPICS, rows)]
    return Batch.from_columns(bytes(16 * rows), [b""] * rows, {"topic": topics, "n": random.integers(0, 100, rows)})


def few_rows_rate(name: str, index: FilterIndex[int], rows: int) -> Measurement:
    """Match a batch as a broker does that hands each of a few messages to whoever has subscribed to its topic."""
    batches = itertools.cycle([topics_batch(rows, seed) for seed in range(100)])
    for _ in range(100):
        index.match(next(batches))
    seconds = best(lambda: list(index.match(next(batches)).items()))
    return Measurement(f"{rows} rows, {TOPICS} topics {name}", seconds, "rows", rows / seconds)


def measure_few() -> list[Measurement]:
    indexes = {"at once": topics_index(one_by_one=False), "one by one": topics_index(one_by_one=True)}
    return [few_rows_rate(name, index, rows) for name, index in indexes.items() for rows in FEW]


def measure() -> list[Measurement]:
    batch = sample_batch()
    return [
        *(evaluate_rate(text, batch) for text in CONDITIONS),
        shared_columns_rate(ONE_COMPARISON, batch),
        shared_columns_rate(THREE_CONDITIONS, batch),
        match_rate(ONE_COMPARISON),
        match_rate(THREE_CONDITIONS),
        parse_rate(ONE_COMPARISON),
        parse_rate(THREE_CONDITIONS),
    ]


def main() -> None:
    few = "--few" in sys.argv[1:]
    print(f"| {'small batches' if few else f'{ROWS} rows'}, best of 60 | us per call | per second |\n|---|---:|---:|")
    for name, seconds, unit, per_second in measure_few() if few else [*measure(), *measure_few()]:
        print(f"| {name} | {seconds * 1e6:.2f} | {per_second:,.0f} {unit} |")


if __name__ == "__main__":
    main()
