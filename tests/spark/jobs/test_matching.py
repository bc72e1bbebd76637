"""The kernel of bulk searches against the search of a broker, which is written differently and tested by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad import compiled
from postroad.core.batch.batch import Ids
from postroad.spark.jobs import matching
from postroad.spark.jobs.matching import Elements, Matches, find, in_order, match, pack_ids
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE, Element, HistoryKey, Kind
from postroad.tracking.histories.settings import Strategy
from postroad.tracking.queries.search import search

ID = np.dtype((np.void, 16))
needs_finding = pytest.mark.skipif(
    compiled.library is None or compiled.library.finding is None, reason="nothing is compiled here"
)


def make_ids(random: np.random.Generator, count: int, origin: int, low: int = 1000, high: int = 9000) -> Ids:
    ids = np.empty(count, ID_DTYPE)
    ids["publisher"], ids["broker"] = random.integers(1, 5, count), origin
    ids["tick"] = random.integers(low, high, count).astype(np.uint64) << np.uint64(16) | random.integers(0, 4, count).astype(
        np.uint64
    )
    return np.unique(ids).view(ID)


def milliseconds(ids: Ids) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (ids.view(ID_DTYPE)["tick"].astype(np.uint64) >> np.uint64(16)).astype(np.int64)


def element(key: HistoryKey, number: int, ids: Ids, strategy: Strategy, m: int, k: int, late: int, degree: int = 0) -> Element:
    """Make an element of some ids, the first of which are late and become singletons."""
    times = milliseconds(ids)
    masks = (times % (1 << degree)).astype(np.uint64) if degree else None
    bits = None
    if strategy is Strategy.BLOOM:
        bits = blooms.empty(m)
        blooms.add_ids(bits, ids, m, k, masks, broker=number % 2)
    ranged = times[late:]
    low, high = (int(ranged.min()), int(ranged.max())) if len(ranged) else (1, 0)
    shape = (m, k) if bits is not None else (0, 0)
    return Element(
        key=key,
        incarnation=1,
        number=number,
        strategy=strategy,
        opened_ms=0,
        closed_ms=0,
        from_ms=low,
        to_ms=high,
        singletons=np.unique(times[:late]),
        count=len(ids),
        m=shape[0],
        k=shape[1],
        n=500,
        bits=bits,
        ids=None if bits is not None else ids,
        neighbours=tuple(range(degree)),
        broker=number % 2,
    )


def columns(elements: list[Element], keys: list[HistoryKey]) -> Elements:
    """Put elements side by side as the kernel wants them."""
    bodies = [
        np.frombuffer(each.bits if each.bits is not None else np.asarray(each.ids).tobytes(), np.uint8) for each in elements
    ]
    late = [each.singletons for each in elements]

    def numbers(values: list[int]) -> Any:
        return np.array(values, np.int64)

    return Elements(
        history=numbers([keys.index(each.key) for each in elements]),
        origin=numbers([each.key.origin for each in elements]),
        broker=numbers([each.broker for each in elements]),
        from_ms=numbers([each.from_ms for each in elements]),
        to_ms=numbers([each.to_ms for each in elements]),
        singletons=np.concatenate(late),
        singleton_of=np.repeat(np.arange(len(elements)), [len(each) for each in late]),
        m=numbers([each.m for each in elements]),
        k=numbers([each.k for each in elements]),
        count=numbers([each.count for each in elements]),
        neighbours=numbers([len(each.neighbours) for each in elements]),
        packed=np.array([each.bits is None for each in elements]),
        starts=np.concatenate([[0], np.cumsum([len(body) for body in bodies])]),
        data=np.concatenate(bodies),
    )


def world(seed: int) -> tuple[list[Element], Ids]:
    """Some histories of two origins with every strategy, tiny blooms among them, and ids of which half are in none."""
    random = np.random.default_rng(seed)
    elements = []
    asked = [make_ids(random, 40, 9)]
    for number in range(40):
        origin = int(random.integers(1, 3))
        strategy = list(Strategy)[int(random.integers(1, 4))]
        kind = Kind.ROUTING if number % 3 else Kind.SUBSCRIBER
        key = HistoryKey(
            kind, origin, peer=number % 5 if kind is Kind.ROUTING else 0, subscriber="s" if kind is Kind.SUBSCRIBER else ""
        )
        low = int(random.integers(1000, 8000))
        ids = make_ids(random, int(random.integers(1, 60)), origin, low, low + 1000)
        m, k = ((256, 3), (512, 5), (1000, 4))[number % 3]
        degree = 3 if strategy is Strategy.BLOOM and number % 4 == 0 else 0
        elements.append(element(key, number, ids, strategy, m, k, int(random.integers(0, len(ids) + 1)), degree))
        asked += [ids[: len(ids) // 2], make_ids(random, 30, origin)]
    return elements, np.unique(np.concatenate(asked).view(ID_DTYPE)).view(ID)


def as_set(found: Matches) -> set[tuple[int, int, float]]:
    return {
        (row, history, round(doubt, 9))
        for row, history, doubt in zip(found.row.tolist(), found.history.tolist(), found.probability.tolist(), strict=True)
    }


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the compiled loops and without them."""
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "library", None)
    elif compiled.library is None or compiled.library.finding is None:
        pytest.skip("nothing is compiled here")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_finds_what_the_search_of_a_broker_finds(seed: int) -> None:
    """The same hits with the same probabilities, for mixed strategies, shapes of blooms, singletons and routing sets."""
    elements, ids = world(seed)
    keys = sorted({each.key for each in elements})
    expected = {(row, keys.index(key), round(doubt, 9)) for row, key, doubt, _ in search(elements, ids)}
    assert as_set(match(ids, columns(elements, keys))) == expected
    assert any(doubt > 0 for _, _, doubt in expected)


def test_small_blocks_of_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that do not fit into one block are probed in several; so are probabilities added up."""
    monkeypatch.setattr(compiled, "library", None)
    elements, ids = world(3)
    keys = sorted({each.key for each in elements})
    whole = as_set(match(ids, columns(elements, keys)))
    monkeypatch.setattr(matching, "PAIRS_MAX", 7)
    monkeypatch.setattr(matching, "CELLS_MAX", 1_000)
    assert as_set(match(ids, columns(elements, keys))) == whole


def test_nothing_to_look_for_and_nothing_to_look_in() -> None:
    """No ids, or no elements, give no hits."""
    elements, ids = world(1)
    keys = sorted({each.key for each in elements})
    assert len(match(ids[:0], columns(elements, keys)).row) == 0
    nothing = columns(elements[:1], keys)
    assert len(match(make_ids(np.random.default_rng(1), 5, 77), nothing).row) == 0


def test_what_was_tested_is_told_per_history() -> None:
    """The expected false positives of a history are the candidates of its blooms times their error."""
    random = np.random.default_rng(2)
    key = HistoryKey(Kind.PUBLISHER, 1)
    held = make_ids(random, 100, 1, 1000, 2000)
    one = element(key, 1, held, Strategy.BLOOM, 512, 3, 0)
    strangers = make_ids(random, 4000, 1, 1000, 9000)
    inside = (milliseconds(strangers) >= one.from_ms) & (milliseconds(strangers) <= one.to_ms)
    found = match(strangers, columns([one], [key]))
    assert found.tested[0][0] == int(inside.sum())
    assert found.tested[0][1] == pytest.approx(int(inside.sum()) * blooms.fpp(512, 3, len(held)))


def test_ids_that_share_a_key_are_told_apart() -> None:
    """The lookup of ids does not take ids for equal whose 64-bit keys are."""
    step = 1 << 32
    gamma = 0x9E37_79B9
    publishers = [1, (1 + pow(gamma, -1, step) * 7) % step]  # the second has the key of the first with a counter 7 higher
    ids = np.empty(2, ID_DTYPE)
    ids["publisher"], ids["broker"] = publishers, 1
    ids["tick"] = np.array([(5 << 16) | 7, 5 << 16], np.uint64)
    keys = matching._keys(ids.view(ID))
    assert keys[0] == keys[1]
    position, entry = find(ids.view(ID), ids.view(ID)[[1, 0, 1]])
    assert sorted(zip(position.tolist(), entry.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2)]


@needs_finding
@given(data=st.data())
def test_compiled_searches_find_what_numpy_finds(data: st.DataObject) -> None:
    """Blooms of any shape, with masks or without, and ids as they are, in order or not, of one broker or several."""
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    m = data.draw(st.sampled_from([8, 1_000, 4_096, 65_536, 100_003]))
    k, degree = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 3))
    keys = [HistoryKey(Kind.PUBLISHER, 1), HistoryKey(Kind.SUBSCRIBER, 2, subscriber="s")]
    made = []
    for number in range(data.draw(st.integers(1, 12))):
        key = keys[number % 2]
        ids = make_ids(random, int(random.integers(1, 40)), key.origin, 1000, 1060)
        if number % 4 == 3:
            ids = np.concatenate([ids, make_ids(random, 5, 3 - key.origin, 1000, 1060)])
        random.shuffle(ids) if data.draw(st.booleans()) else None
        strategy = data.draw(st.sampled_from([Strategy.BLOOM, Strategy.EXACT]))
        made.append(element(key, number, ids, strategy, m, k, 0, degree if strategy is Strategy.BLOOM else 0))
    asked = np.unique(np.concatenate([make_ids(random, 60, origin, 990, 1070) for origin in (1, 2, 3)]).view(ID_DTYPE)).view(ID)
    random.shuffle(asked)
    side_by_side = columns(made, keys)
    packed = side_by_side.packed
    known = np.array(
        [packed[i] and in_order(side_by_side.data, side_by_side.starts[i : i + 2])[0] for i in range(len(made))], np.bool_
    )
    expected = as_set(match_by_numpy(asked, side_by_side))
    assert as_set(match(asked, side_by_side)) == expected
    assert as_set(match(asked, replace(side_by_side, ordered=known))) == expected


def match_by_numpy(ids: Ids, elements: Elements) -> Matches:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "library", None)
        return match(ids, elements)


@needs_finding
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, (1 << 48) - 1), st.integers(0, 65_535), st.integers(0, (1 << 32) - 1)), max_size=6),
        max_size=5,
    )
)
def test_ids_are_packed_as_numpy_packs_them(rows: list[list[tuple[int, int, int]]]) -> None:
    """The same bytes, and the same answer to whether they are in order."""
    flat = [each for row in rows for each in row]
    listed = tuple(np.array([each[i] for each in flat], kind) for i, kind in enumerate((np.int64, np.int32, np.int64)))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    origins = np.arange(1, len(rows) + 1) * 77_777
    made = pack_ids((listed[0], listed[1], listed[2]), offsets, origins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "library", None)
        plain = pack_ids((listed[0], listed[1], listed[2]), offsets, origins)
    assert (made[0].tobytes(), made[1].tolist()) == (plain[0].tobytes(), plain[1].tolist())
    assert plain[1].tolist() == [ticks_ascend(row) for row in rows]


def ticks_ascend(row: list[tuple[int, int, int]]) -> bool:
    ticks = [(milliseconds, counter) for milliseconds, counter, _ in row]
    return ticks == sorted(ticks)
