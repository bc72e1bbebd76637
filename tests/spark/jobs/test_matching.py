"""The kernel of bulk searches against the search of a broker, which is written differently and tested by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from postroad.core.batch.batch import Ids
from postroad.spark.jobs import matching
from postroad.spark.jobs.matching import Elements, Matches, find, match
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE, Element, HistoryKey, Kind
from postroad.tracking.histories.settings import Strategy
from postroad.tracking.queries.search import search

ID = np.dtype((np.void, 16))
EVER = 1 << 47


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
        low_ms=numbers([0] * len(elements)),
        high_ms=numbers([EVER] * len(elements)),
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


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_finds_what_the_search_of_a_broker_finds(seed: int) -> None:
    """The same hits with the same probabilities, for mixed strategies, shapes of blooms, singletons and routing sets."""
    elements, ids = world(seed)
    keys = sorted({each.key for each in elements})
    expected = {(row, keys.index(key), round(doubt, 9)) for row, key, doubt, _ in search(elements, ids)}
    assert as_set(match(ids, columns(elements, keys))) == expected
    assert any(doubt > 0 for _, _, doubt in expected)


def test_small_blocks_of_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that do not fit into one block are probed in several."""
    elements, ids = world(3)
    keys = sorted({each.key for each in elements})
    whole = as_set(match(ids, columns(elements, keys)))
    monkeypatch.setattr(matching, "PAIRS_MAX", 7)
    assert as_set(match(ids, columns(elements, keys))) == whole


def test_an_element_cut_into_buckets_answers_as_a_whole() -> None:
    """Copies of an element that are each bounded to a stretch of time together find what the element finds, once."""
    elements, ids = world(5)
    keys = sorted({each.key for each in elements})
    whole = columns(elements, keys)
    halves = columns(elements + elements, keys)
    count = len(elements)
    low, high = halves.low_ms.copy(), halves.high_ms.copy()
    high[:count], low[count:] = 4_999, 5_000
    assert as_set(match(ids, replace(halves, low_ms=low, high_ms=high))) == as_set(match(ids, whole))


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
