"""Searching elements: what is found where, with which probability."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.tracking.ids import WALL_MS, ids_at, make_ids

from postroad.core.batch.batch import Ids
from postroad.core.protocol.packets import pubend_id
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import Element, HistoryKey, Kind
from postroad.tracking.histories.events import Delivered, Published, Routed, TrackEvent
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.queries import search as module
from postroad.tracking.queries.search import Hits, matching_sets, search

TRACKING = (Strategy.ASYNC, Strategy.BLOOM, Strategy.EXACT)
PUBEND = pubend_id(1)


def pairs(hits: Hits) -> list[tuple[int, HistoryKey]]:
    return list(zip(hits.rows.tolist(), hits.keys, strict=True))


def element(ids: Ids, **values: object) -> Element:
    """Return an exact element of the publisher history of broker 1 that holds the ids, or a bloom if m and k are given."""
    ticks = ids.view(">u8")[1::2] >> 16
    base = Element(
        HistoryKey(Kind.PUBLISHER, 1), 1, 1, Strategy.EXACT, 0, 0, int(ticks.min()), int(ticks.max()), np.empty(0, np.int64),
        len(ids), 0, 0, 100, ids=ids,
    )  # fmt: skip
    made = replace(base, **values)  # type: ignore[arg-type]
    if not made.m:
        return made
    bits = blooms.empty(made.m)
    blooms.add_ids(bits, ids, made.m, made.k, broker=made.broker)
    return replace(made, strategy=Strategy.BLOOM, bits=bits, ids=None)


# --- an oracle -----------------------------------------------------------------------------------------------------------------


def asked_by_hand(one: Element, message_id: Any) -> bool:
    """Whether the element is in the matching set of the id."""
    timestamp = int.from_bytes(message_id[8:14], "big")
    if one.key.origin != int.from_bytes(message_id[4:8], "big"):
        return False
    return one.from_ms <= timestamp <= one.to_ms or timestamp in one.singletons.tolist()


def found_by_hand(one: Element, message_id: Any) -> bool:
    if one.ids is not None:
        return message_id in one.ids.tolist()
    masks = range(1 << len(one.neighbours)) if one.neighbours else [None]
    array = np.frombuffer(message_id, "V16")
    for mask in masks:
        given = None if mask is None else np.array([mask], np.uint64)
        where = blooms.positions(array, one.m, one.k, given, one.broker)
        if blooms.contains(np.asarray(one.bits), where).all():
            return True
    return False


def search_by_hand(elements: list[Element], ids: Ids) -> list[tuple[int, HistoryKey, float]]:
    answers = []
    for row, message_id in enumerate(ids.tolist()):
        for key in sorted({one.key for one in elements}):
            asked = [one for one in elements if one.key == key and asked_by_hand(one, message_id)]
            claims = [one for one in asked if found_by_hand(one, message_id)]
            if not claims:
                continue
            silence = 1.0
            for one in asked:
                if one.bits is not None:
                    silence *= (1 - blooms.fpp(one.m, one.k, one.count)) ** (1 << len(one.neighbours))
            answers.append((row, key, 0.0 if any(one.ids is not None for one in claims) else 1 - silence))
    return answers


def mixed_elements(seed: int) -> tuple[list[Element], Ids]:
    """Return elements of all strategies, brokers and origins, some with late messages or routing sets, and ids to look for."""
    random = np.random.default_rng(seed)
    elements: list[Element] = []
    pool = [make_ids(300, start_ms=WALL_MS + 50 * turn, broker=1 + turn % 2, seed=seed + turn) for turn in range(4)]
    ids = np.concatenate(pool)
    for broker, strategy in enumerate([*TRACKING, Strategy.BLOOM], 1):
        settings = TrackingSettings(
            strategy=strategy, m=4_096, k=6, n=150, ids_max=150, persistence_ms=100, skew_tolerance_ms=30, jitter_ms=0,
            singletons_max=5, few_as_ids=broker == 2, routing_sets=broker == 4,
        )  # fmt: skip
        tracker = Tracker(broker, 1, settings, wall_ms=WALL_MS)
        for turn in range(8):
            wall_ms = WALL_MS + 40 * turn
            events: list[TrackEvent] = []
            for name in ("a", "b", "c"):
                picked = random.choice(ids, 20, replace=False)
                for origin in (1, 2):
                    part = picked[picked.view(">u4")[1::4] == origin]
                    masks = random.integers(0, 4, len(part)).astype(np.uint64)
                    events += [Delivered(name, pubend_id(origin), part), Routed(pubend_id(origin), 9, part, masks, (5, 6))]
            tracker.take(events, wall_ms)
            elements += tracker.flush(wall_ms).closed if tracker.wants_flush(wall_ms) else ()
        elements += tracker.open_elements()
    return elements, np.concatenate([random.permutation(ids)[:150], make_ids(50, start_ms=WALL_MS + 30, seed=seed + 99)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("few", [1, 3, 200])
def test_a_search_answers_as_one_by_hand(seed: int, few: int) -> None:
    """For all strategies, kinds and origins at once: the same hits, in the same order, with the same probabilities."""
    elements, ids = mixed_elements(seed)
    hits = search(elements, ids[:few])
    wanted = search_by_hand(elements, ids[:few])
    assert pairs(hits) == [(row, key) for row, key, _ in wanted]
    assert hits.probability.tolist() == pytest.approx([probability for _, _, probability in wanted], rel=1e-6, abs=1e-15)
    if few == 200:
        assert len(wanted) > 200


def test_matching_sets_are_counted_per_history() -> None:
    """By range or by singleton, but an element only once."""
    elements, ids = mixed_elements(7)
    sizes = matching_sets(elements, ids)
    assert any(len(one.singletons) for one in elements)
    for key, counts in sizes.items():
        ours = [one for one in elements if one.key == key]
        assert counts.tolist() == [sum(asked_by_hand(one, message_id) for one in ours) for message_id in ids.tolist()]


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching in small portions gives the same hits in the same order."""
    elements, ids = mixed_elements(5)
    whole = search(elements, ids)
    monkeypatch.setattr(module, "_CHUNK", 7)
    monkeypatch.setattr(module, "_POOL", 10)
    portions = search(elements, ids)
    assert pairs(portions) == pairs(whole)
    assert portions.forwarded == whole.forwarded
    assert np.array_equal(portions.probability, whole.probability)


# --- what is found -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", TRACKING)
def test_every_id_is_found_where_it_was_tracked(strategy: Strategy) -> None:
    """Ids of a publisher and of two subscribers are in their histories, before and after the flush."""
    tracker = Tracker(1, 1, TrackingSettings(strategy=strategy), wall_ms=WALL_MS)
    ids = make_ids(1_000)
    events: list[TrackEvent] = [Published(PUBEND, ids), Delivered("a", PUBEND, ids[::2]), Delivered("b", PUBEND, ids[1::2])]
    tracker.take(events, WALL_MS + 200)
    before = search(tracker.open_elements(), ids)
    after = search(tracker.flush(WALL_MS + 20_000).closed, ids)
    for hits in (before, after):
        got = {(row, key.kind, key.subscriber) for row, key in pairs(hits)}
        assert got == {(row, Kind.PUBLISHER, "") for row in range(1_000)} | {
            (row, Kind.SUBSCRIBER, "ab"[row % 2]) for row in range(1_000)
        }
    assert np.all(after.probability < 1e-5)


def test_nothing_is_found_in_nothing() -> None:
    """No elements, no ids, or neither."""
    for elements in ([], [element(make_ids(10))]):
        hits = search(elements, make_ids(0))
        assert (len(hits), list(hits)) == (0, [])
    assert len(search([], make_ids(10))) == 0
    assert matching_sets([], make_ids(3)) == {}


def test_an_id_asked_for_twice_is_answered_twice() -> None:
    """Rows are independent of each other."""
    ids = make_ids(3)
    assert search([element(ids)], np.concatenate([ids, ids])).rows.tolist() == [0, 1, 2, 3, 4, 5]


def test_ids_of_other_brokers_are_not_looked_for() -> None:
    """A history of one origin says nothing about another origin's ids."""
    assert len(search([element(make_ids(10))], make_ids(10, broker=2))) == 0


def test_equal_ticks_of_other_publishers_are_not_confused() -> None:
    """Two publishers may publish at the same tick."""
    held = element(ids_at([WALL_MS], publisher=1))
    assert search([held], np.concatenate([ids_at([WALL_MS], publisher=2), ids_at([WALL_MS], publisher=1)])).rows.tolist() == [1]


def test_the_probability_is_that_of_the_whole_matching_set() -> None:
    """Equation (2), with each bloom's own count, over all blooms that were asked and not only over the one that claimed."""
    ids = make_ids(1_000, per_ms=1_000)
    shapes = [{"m": 4_096, "k": 4}, {"m": 65_536, "k": 3}]
    parts = [element(ids[:400], **shapes[0]), element(ids[400:], **shapes[1], number=2)]
    (probability,) = set(search(parts, ids).probability.tolist())
    assert probability == pytest.approx(1 - (1 - blooms.fpp(4_096, 4, 400)) * (1 - blooms.fpp(65_536, 3, 600)))


def test_a_hit_among_ids_is_certain() -> None:
    """Also when blooms of the same history claim it too."""
    ids = make_ids(100)
    hits = search([element(ids, m=4_096, k=4), element(ids[:50], number=2)], ids)
    assert (hits.probability[:50] == 0).all()
    assert (hits.probability[50:] > 0).all()


def test_a_bloom_that_is_full_of_ones_is_no_help_and_no_harm() -> None:
    """It claims everything, with probability 1."""
    hits = search([replace(element(make_ids(10), m=64, k=1), bits=b"\xff" * 8, count=10**9)], make_ids(10))
    assert len(hits) == 10
    assert hits.probability.tolist() == pytest.approx([1.0] * 10)


def test_routing_sets_are_tried_one_by_one() -> None:
    """The probability counts each of the 2**D sets; the union of the sets that claim it is reported."""
    ids = make_ids(4)
    bits = blooms.empty(4_096)
    blooms.add_ids(bits, ids, 4_096, 4, np.array([0, 1, 2, 3], np.uint64))
    blooms.add_ids(bits, ids[:1], 4_096, 4, np.array([2], np.uint64))
    held = replace(element(ids), bits=bits, ids=None, m=4_096, k=4, count=5, neighbours=(8, 9))
    hits = search([held], ids)
    assert hits.forwarded == ((9,), (8,), (9,), (8, 9))
    assert hits.probability[0] == pytest.approx(1 - (1 - blooms.fpp(4_096, 4, 5)) ** 4)
