"""The filter index against the oracle: any filters, any batches, adds and removes in between."""

from __future__ import annotations

import itertools
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.filters import generated
from tests.core.filters.index.test_filter_index import batch_of, expected, found

from postroad.core.batch.batch import Batch
from postroad.core.filters.index.filter_index import LOOSE_MAX, FilterIndex
from postroad.core.filters.language.ast import Condition


def some_batch(random: Random) -> Batch:
    rows = random.choice((1, 2, 7, 40, 64, 65, 150))
    return batch_of(generated.some_columns(random, rows), rows)


def some_indexed_filter(random: Random) -> Condition:
    return generated.some_conjunction(random) if random.random() < 0.7 else generated.some_filter(random)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_the_index_answers_as_each_filter_alone(random: Random) -> None:
    """Interleaved adds, replacements, removes and matches give what the oracle says, filter by filter and row by row."""
    index: FilterIndex[int] = FilterIndex(loose_max=random.choice((0, 0, LOOSE_MAX)))
    filters: dict[int, Condition] = {}
    keys = itertools.count()
    for _ in range(random.randint(1, 5)):
        for _ in range(random.choice((0, 1, 3, 40))):
            key = random.choice(list(filters)) if filters and random.random() < 0.1 else next(keys)
            filters[key] = (
                random.choice(list(filters.values())) if filters and random.random() < 0.1 else some_indexed_filter(random)
            )
            index.add(key, filters[key])
        for _ in range(random.choice((0, 0, 2, 20))):
            if filters:
                key = random.choice(list(filters))
                del filters[key]
                assert index.remove(key)
        batch = some_batch(random)
        assert found(index, batch) == expected(filters, batch)
        assert len(index) == len(filters)
