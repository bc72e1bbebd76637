"""The stream cache against a dictionary of ticks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.broker.knowledge import RANGE_BYTES, KnowledgeRange
from postroad.core.broker.relaying.cache import EVICTED_AT_ONCE, StreamCache
from postroad.types import MessageId

SPAN = 20
stretches = st.tuples(st.integers(0, SPAN), st.integers(0, SPAN), st.integers(1, 4)).filter(lambda s: s[0] < s[1])


def rows(lo: int, hi: int) -> Batch | None:
    """Every even tick of a stretch is data, as in the stream all stretches are taken from."""
    ticks = [t for t in range(lo + 1, hi + 1) if t % 2 == 0]
    if not ticks:
        return None
    made = build_batches([(bytes(MessageId.make(1, 1, t)), {"t": t}, b"") for t in ticks])
    return made[0].with_ticks(ticks)


def ticks_of(known: KnowledgeRange) -> list[int]:
    return [] if known.rows is None else [int(t) for t in known.rows.ticks()]


@given(st.lists(stretches, max_size=12))
def test_the_cache_holds_the_best_label_of_every_tick(taken: list[tuple[int, int, int]]) -> None:
    """Whatever the order of arrival, each tick has the highest label it came with, and its data."""
    cache, oracle = StreamCache(1 << 30), dict[int, int]()
    for lo, hi, label in taken:
        news = cache.add(KnowledgeRange(lo, hi, label, rows(lo, hi)))
        better = [t for t in range(lo + 1, hi + 1) if oracle.get(t, 0) < label]
        assert [t for part in news for t in range(part.lo + 1, part.hi + 1)] == better
        oracle.update(dict.fromkeys(better, label))
    found = {t: s.label for s in cache.read(0, SPAN) for t in range(s.lo + 1, s.hi + 1)}
    assert found == oracle
    assert [t for s in cache.read(0, SPAN) for t in ticks_of(s)] == sorted(t for t in oracle if t % 2 == 0)
    assert cache.size == sum(s.size for s in cache.read(0, SPAN))


@given(st.lists(stretches, min_size=1, max_size=12), st.integers(0, SPAN), st.integers(0, SPAN))
def test_read_gives_only_what_was_asked_for(taken: list[tuple[int, int, int]], lo: int, hi: int) -> None:
    """Ranges are cut to the range that is read, rows included."""
    cache = StreamCache(1 << 30)
    for stretch in taken:
        cache.add(KnowledgeRange(*stretch, rows(stretch[0], stretch[1])))
    for known in cache.read(lo, hi):
        assert lo <= known.lo < known.hi <= hi
        assert all(known.lo < t <= known.hi for t in ticks_of(known))


@given(st.lists(stretches, max_size=12), st.integers(0, SPAN))
def test_forgetting_the_past_keeps_the_rest(taken: list[tuple[int, int, int]], tick: int) -> None:
    """Whole ranges up to the tick go, the others stay."""
    cache = StreamCache(1 << 30)
    for stretch in taken:
        cache.add(KnowledgeRange(*stretch, None))
    kept = [s for s in cache.read(0, SPAN) if s.hi > tick]
    cache.drop_through(tick)
    assert list(cache.read(0, SPAN)) == kept
    assert cache.size == sum(s.size for s in kept)


def test_the_oldest_ticks_make_room() -> None:
    """Past its bound the cache drops from the front and never the newest range."""
    cache = StreamCache(20_000)
    for tick in range(0, 100, 2):
        cache.add(KnowledgeRange(tick, tick + 2, 1, rows(tick, tick + 2)))
        assert cache.size <= 20_000
    assert [s.hi for s in cache.read(0, 1000)][-1] == 100
    assert next(iter(cache.read(0, 1000))).lo > 80
    assert cache.frontier == 100


def test_room_is_made_for_some_at_once() -> None:
    """To take one range from the front moves all the others."""
    cache = StreamCache(64 * RANGE_BYTES)
    for tick in range(65):
        cache.add(KnowledgeRange(tick, tick + 1, 1, None))
    assert len(cache) == 64 - 64 // EVICTED_AT_ONCE
