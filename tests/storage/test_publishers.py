"""The last ids of publishers, against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from postroad.storage.publishers import LastIds
from postroad.types import MessageId, Tick

ids = st.lists(st.tuples(st.integers(0, 8) | st.just(2**32 - 1), st.integers(0, 2**64 - 1)), max_size=30)


def id_array(pairs: list[tuple[int, int]]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    data = b"".join(bytes(MessageId(publisher, 7, Tick(tick))) for publisher, tick in pairs)
    return np.frombuffer(data, np.dtype((np.void, 16)))


@given(st.lists(ids, max_size=6))
def test_the_highest_tick_of_each_publisher_is_kept(batches: list[list[tuple[int, int]]]) -> None:
    """Whatever the order and the publishers."""
    last_ids, expected = LastIds(), dict[int, int]()
    for pairs in batches:
        last_ids.note(id_array(pairs))
        for publisher, tick in pairs:
            expected[publisher] = max(expected.get(publisher, 0), tick)
    assert last_ids.pairs() == tuple(sorted(expected.items()))


@given(st.lists(ids, max_size=6))
def test_an_unknown_publisher_above_the_forgotten_tick_is_certainly_new(batches: list[list[tuple[int, int]]]) -> None:
    """Of too many publishers the oldest go, and the mark tells how new they may have been."""
    last_ids = LastIds(publishers_max=3)
    seen: set[tuple[int, int]] = set()
    for pairs in batches:
        last_ids.note(id_array(pairs))
        seen.update(pairs)
        known, forgotten = dict(last_ids.pairs()), last_ids.snapshot()[1]
        assert len(known) <= 3
        assert all(tick <= known.get(publisher, forgotten) or tick <= forgotten for publisher, tick in seen)


def test_many_publishers_are_merged_now_and_then() -> None:
    """The list of what waits to be merged stays short."""
    last_ids = LastIds()
    for i in range(100):
        last_ids.note(id_array([(publisher, i + 1) for publisher in range(500)]))
        assert last_ids._pending_size <= 1 << 14
    assert last_ids.pairs() == tuple((publisher, 100) for publisher in range(500))
