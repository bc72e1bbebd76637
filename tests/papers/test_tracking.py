"""Low-overhead message tracking (Jun and Astley): each claim of the paper that the core can show, by section.

The claims about whole brokers (skew adjustment, attachment, path reconstruction) are tested where those parts are.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from itertools import pairwise
from math import comb, sqrt

import numpy as np
import pytest
from tests.tracking.ids import WALL_MS, ids_at, make_ids

from postroad.core.batch.batch import Ids
from postroad.core.protocol.packets import pubend_id
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE, Element, Flush, HistoryKey, Kind
from postroad.tracking.histories.events import Delivered, Forwarded, Published, Routed, TrackEvent
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.histories.tuning import Wish, efpp, optimal_k, plan, unnecessary_searches
from postroad.tracking.queries.search import matching_sets, search
from postroad.types import MessageId

PUBEND = pubend_id(1)
FIVE_NINES = TrackingSettings(strategy=Strategy.BLOOM, m=65_536, k=16, n=2_521, few_as_ids=False)
SETTINGS = {  # accuracy, buffer limit in bytes -> (efpp, m, k, n), Table 2
    "99.999% 10K": (1e-5, 65_536, 16, 2_521),
    "99% 10K": (0.01, 65_536, 8, 5_461),
    "95% 10K": (0.05, 65_536, 8, 7_281),
    "99.999% 135K": (1e-5, 1 << 20, 12, 38_836),
    "99% 135K": (0.01, 1 << 20, 6, 87_381),
    "95% 135K": (0.05, 1 << 20, 6, 131_072),
}


def track(settings: TrackingSettings, batches: list[tuple[int, Ids]]) -> list[Element]:
    """Let a broker track batches of published ids at these times; return all elements of its publisher history."""
    tracker = Tracker(1, 1, settings, wall_ms=batches[0][0])
    elements: list[Element] = []
    for wall_ms, ids in batches:
        tracker.take([Published(PUBEND, ids)], wall_ms)
        if tracker.wants_flush(wall_ms):
            elements += tracker.flush(wall_ms).closed
    return [*elements, *tracker.flush(batches[-1][0], farewell=True).closed]


def skewed_batches(count: int, skew_ms: int, *, per_ms: int = 5, seed: int = 1) -> list[tuple[int, Ids]]:
    """Return batches of 50 ms each; the publishers' clocks differ from the broker's by up to the skew."""
    random = np.random.default_rng(seed)
    skews = random.integers(-skew_ms, skew_ms + 1, 201)
    batches, size = [], 50 * per_ms
    for start in range(0, count, size):
        ids = make_ids(min(size, count - start), start_ms=WALL_MS + start // per_ms, per_ms=per_ms, seed=seed + start).copy()
        fields = ids.view(ID_DTYPE)
        moved = (fields["tick"] >> 16).astype(np.int64) + skews[fields["publisher"]]
        counters = np.arange(start, start + len(ids), dtype=np.uint64) & np.uint64(0xFFFF)
        fields["tick"] = (moved.astype(np.uint64) << np.uint64(16)) | counters
        batches.append((WALL_MS + start // per_ms + 50, ids))
    return batches


def strangers(elements: list[Element], count: int, seed: int = 9) -> Ids:
    """Return ids that nobody published, at times the history covers."""
    random = np.random.default_rng(seed)
    low, high = min(one.from_ms for one in elements), max(one.to_ms for one in elements)
    ids = np.zeros(count, ID_DTYPE)
    ids["publisher"] = random.integers(201, 10_001, count)
    ids["broker"] = 1
    ids["tick"] = (random.integers(low, high + 1, count).astype(np.uint64) << np.uint64(16)) | random.integers(
        0, 5, count
    ).astype(np.uint64)
    return ids.view("V16")


# --- 3: ids, blooms, histories -----------------------------------------------------------------------------------------------


def test_table_1_message_id() -> None:
    """Publisher 4 bytes, broker 4, time stamp in milliseconds 6, counter 2: 16 bytes in all."""
    message_id = MessageId.make(0x01020304, 0x05060708, 0x0A0B0C0D0E0F, 0x1011)
    assert bytes(message_id).hex() == "01020304" + "05060708" + "0a0b0c0d0e0f" + "1011"


def test_3_1_contains_has_no_false_negative() -> None:
    """CONTAINS is true for every key that was added; the set takes no more than m bits."""
    ids, bits = make_ids(2_521), blooms.empty(65_536)
    blooms.add_ids(bits, ids, 65_536, 16)
    assert blooms.contains(bits, blooms.positions(ids, 65_536, 16)).all()
    assert bits.nbytes * 8 == 65_536


def test_3_1_a_full_filter_is_stored_and_a_new_one_begun() -> None:
    """When a filter reaches its capacity it is stored, and a new filter records subsequent keys."""
    elements = track(replace(FIVE_NINES, persistence_ms=10**6), skewed_batches(10_000, 0))
    assert [element.count for element in elements] == [2_521, 2_521, 2_521, 2_437]


def test_3_1_a_filter_is_stored_after_the_persistence_interval() -> None:
    """To avoid excessive loss when message rates are low, filters are stored every T_p."""
    elements = track(replace(FIVE_NINES, persistence_ms=1_000), [(WALL_MS + 250 * turn, make_ids(3)) for turn in range(9)])
    assert [element.count for element in elements] == [15, 12]


def test_3_1_the_range_of_a_filter_is_that_of_its_timestamps() -> None:
    """R_j grows by each of the four cases of ADD(r, t), and a matching set is the filters whose range holds t."""
    tracker = Tracker(1, 1, FIVE_NINES, wall_ms=WALL_MS)
    seen, elements = [], []
    for offset in (50, 30, 70, 60):
        tracker.take([Published(PUBEND, ids_at([WALL_MS + offset]))], WALL_MS)
        elements = list(tracker.open_elements())
        seen.append((elements[0].from_ms - WALL_MS, elements[0].to_ms - WALL_MS))
    assert seen == [(50, 50), (30, 50), (30, 70), (30, 70)]
    probes = ids_at([WALL_MS + offset for offset in (29, 30, 50, 70, 71)])
    assert matching_sets(elements, probes)[HistoryKey(Kind.PUBLISHER, 1)].tolist() == [0, 1, 1, 1, 0]


def test_3_1_a_history_has_one_filter_in_memory() -> None:
    """All others are stored: after a flush, one element per history is open at most."""
    tracker = Tracker(1, 1, replace(FIVE_NINES, lifetime_min_ms=10**6), wall_ms=WALL_MS)
    for wall_ms, ids in skewed_batches(9_000, 0):
        tracker.take([Published(PUBEND, ids), Delivered("s", PUBEND, ids[:9])], wall_ms)
        tracker.flush(wall_ms)
        keys = [element.key for element in tracker.open_elements()]
        assert len(keys) == len(set(keys)) <= 2


def test_3_2_each_phase_has_its_history() -> None:
    """H_p of local publishers, H_b per originating broker, H_{b,s} per originating broker and subscriber."""
    ids = make_ids(10)
    events: list[TrackEvent] = [Published(PUBEND, ids)]
    for origin in (2, 3):
        events.append(Routed(pubend_id(origin), 9, ids))
        events += [Delivered(name, pubend_id(origin), ids) for name in ("s", "t")]
    tracker = Tracker(1, 1, FIVE_NINES, wall_ms=WALL_MS)
    tracker.take(events, WALL_MS)
    keys = [(element.key.kind, element.key.origin, element.key.subscriber) for element in tracker.open_elements()]
    assert sorted(keys) == sorted(
        [(Kind.PUBLISHER, 1, "")]
        + [(Kind.ROUTING, origin, "") for origin in (2, 3)]
        + [(Kind.SUBSCRIBER, origin, name) for origin in (2, 3) for name in ("s", "t")]
    )


def test_3_3_at_most_s_plus_1_histories_of_m_filters_are_asked() -> None:
    """A broker asks (S + 1) x M times CONTAINS for one message, at most."""
    subscribers = [f"s{number}" for number in range(20)]
    tracker = Tracker(2, 1, replace(FIVE_NINES, skew_tolerance_ms=200, jitter_ms=0, persistence_ms=450), wall_ms=WALL_MS)
    elements: list[Element] = []
    batches = skewed_batches(20_000, 200)
    for wall_ms, ids in batches:
        tracker.take([Routed(PUBEND, 1, ids), *(Delivered(name, PUBEND, ids[::50]) for name in subscribers)], wall_ms)
        elements += tracker.flush(wall_ms).closed if tracker.wants_flush(wall_ms) else ()
    elements += tracker.flush(batches[-1][0], farewell=True).closed
    sizes = matching_sets(elements, np.concatenate([ids for _, ids in batches]))
    assert len(sizes) == len(subscribers) + 1
    assert 2 <= max(int(counts.max()) for counts in sizes.values()) <= 2
    assert int(np.sum(list(sizes.values()), axis=0).max()) <= (len(subscribers) + 1) * 2


def test_3_3_histories_per_neighbour_tell_where_a_message_went() -> None:
    """With H_{b,d} only the neighbours that got a message are asked on (but for false positives)."""
    ids = make_ids(900)
    tracker = Tracker(2, 1, replace(FIVE_NINES, per_neighbour=True), wall_ms=WALL_MS)
    tracker.take([Routed(PUBEND, 1, ids), *(Forwarded(PUBEND, 10 + part, ids[part::3]) for part in range(3))], WALL_MS)
    hits = search(tracker.flush(WALL_MS + 10_000).closed, ids)
    told = {(row, key.peer) for row, key, _, _ in hits if key.kind is Kind.NEIGHBOUR}
    assert told == {(row, 10 + row % 3) for row in range(900)}


def test_3_3_routing_sets_cost_2_to_the_d_queries() -> None:
    """With the set of neighbours in the key, the set comes back; each of the 2**D queries adds its false positive probability."""
    ids, neighbours = make_ids(1_000), (4, 5, 6, 7)
    masks = np.random.default_rng(2).integers(0, 16, 1_000).astype(np.uint64)
    tracker = Tracker(2, 1, replace(FIVE_NINES, routing_sets=True), wall_ms=WALL_MS)
    tracker.take([Routed(PUBEND, 1, ids, masks, neighbours)], WALL_MS)
    hits = search(tracker.flush(WALL_MS + 10_000).closed, ids)
    wanted = [tuple(to for bit, to in enumerate(neighbours) if int(mask) >> bit & 1) for mask in masks]
    assert list(hits.forwarded) == wanted
    assert hits.probability[0] == pytest.approx(efpp(blooms.fpp(65_536, 16, 1_000), 2**4))


def test_3_4_an_aggregate_history_takes_the_same_storage() -> None:
    """One history for two origins, of twice the capacity, has as many bits as two, and as many messages in them."""
    one = blooms.fpp(65_536, 16, 2_521)
    both = blooms.fpp(2 * 65_536, 16, 2 * 2_521)
    assert both == pytest.approx(one, rel=0.01)


# --- 4: accuracy -------------------------------------------------------------------------------------------------------------


def test_4_1_figure_1_the_false_positive_rate_falls_exponentially() -> None:
    """With the optimal k, each further bit per message multiplies the rate by about the same factor, 0.6185."""
    rates = [blooms.fpp(bits * 10_000, optimal_k(bits), 10_000) for bits in range(4, 41)]
    factors = [later / earlier for earlier, later in pairwise(rates)]
    assert all(0.58 < factor < 0.66 for factor in factors)
    assert (rates[-1] / rates[0]) ** (1 / 36) == pytest.approx(0.6185, abs=0.002)


def test_4_1_the_optimal_k_is_that_of_figure_1() -> None:
    """No other number of hash functions does better."""
    for bits in (4, 8, 12, 16, 26, 40):
        rates = {k: blooms.fpp(bits * 10_000, k, 10_000) for k in range(1, 60)}
        assert min(rates, key=lambda k: rates[k]) == optimal_k(bits)


@pytest.mark.parametrize("name", SETTINGS)
def test_4_1_whole_histories_meet_equation_2(name: str) -> None:
    """At each of the paper's accuracies and sizes, a history claims strangers as often as equation (2) says, and within efpp."""
    asked, m, k, n = SETTINGS[name]
    skew_ms = int(n / 5 / 2) - 60  # 2 T_s < T_n, also at the ends of batches of 50 ms
    settings = TrackingSettings(
        strategy=Strategy.BLOOM, m=m, k=k, n=n, persistence_ms=10**9, skew_tolerance_ms=skew_ms, jitter_ms=50
    )
    elements = track(settings, skewed_batches(3 * n, skew_ms))[:3]
    probes = strangers(elements, 2_000_000 if asked < 1e-3 else 300_000)
    (sizes,) = matching_sets(elements, probes).values()
    assert sizes.max() == 2
    hits = search(elements, probes)
    fpp = blooms.fpp(m, k, n)
    mean = float(np.sum(1 - (1 - fpp) ** sizes))
    sigma = sqrt(mean + (0.02 * mean) ** 2)  # the share of set bits varies from bloom to bloom
    assert abs(len(hits) - mean) < 4.5 * sigma + 1, f"{len(hits)} false positives, {mean:.1f} expected"
    assert efpp(fpp, 2) <= asked
    assert len(hits) <= asked * len(probes) + 4.5 * sigma


def test_4_2_theorem_1_bounds_the_matching_set() -> None:
    """2 T_s <= w T_n keeps matching sets within w + 1; the same load with a larger skew does not."""
    for skew_ms, bound in ((240, 2), (490, 3), (740, 4)):
        settings = replace(FIVE_NINES, persistence_ms=10**9, skew_tolerance_ms=skew_ms, jitter_ms=0)
        batches = skewed_batches(30_000, skew_ms, per_ms=5)
        (sizes,) = matching_sets(track(settings, batches), np.concatenate([ids for _, ids in batches])).values()
        assert 2 * skew_ms <= (bound - 1) * 500 < 2 * skew_ms + 500
        assert sizes.max() == bound


def test_4_2_a_reduced_fill_rate_does_not_increase_the_matching_set() -> None:
    """A broker downstream that gets every third message has matching sets that are no larger."""
    settings = replace(FIVE_NINES, persistence_ms=10**9, skew_tolerance_ms=240, jitter_ms=0)
    batches = [(wall_ms, ids[::3]) for wall_ms, ids in skewed_batches(60_000, 240)]
    (sizes,) = matching_sets(track(settings, batches), np.concatenate([ids for _, ids in batches])).values()
    assert sizes.max() == 2


def test_4_3_a_short_t_p_downstream_breaks_the_bound_unless_filters_are_retained() -> None:
    """With T_p < T_n and a filter per T_p, matching sets grow; with the filter kept and its copy replaced, they do not."""
    batches = skewed_batches(30_000, 240)
    ids = np.concatenate([part for _, part in batches])
    largest = {}
    for retained in (False, True):
        settings = replace(FIVE_NINES, persistence_ms=100, skew_tolerance_ms=240, jitter_ms=0)
        settings = replace(settings, lifetime_min_ms=504 if retained else 0)
        elements = track(settings, batches)
        (sizes,) = matching_sets(elements, ids).values()
        largest[retained] = (int(sizes.max()), len(elements))
    assert largest[False][0] > 2
    assert largest[True][0] <= 2
    assert largest[True][1] < largest[False][1] / 3  # and no more filters are stored than with T_p = T_n


def test_4_3_a_retained_filter_is_the_union_of_partial_ones() -> None:
    """The filter that is stored in the end equals the union of those that would have been stored separately."""
    batches = skewed_batches(2_400, 0)
    whole = Tracker(1, 1, replace(FIVE_NINES, persistence_ms=100, lifetime_min_ms=10**6), wall_ms=WALL_MS)
    parts = Tracker(1, 1, replace(FIVE_NINES, persistence_ms=100), wall_ms=WALL_MS)
    union, copies, stored = np.zeros(8_192, np.uint8), 0, Flush((), (), ())
    for wall_ms, ids in batches:
        for tracker in (whole, parts):
            tracker.take([Published(PUBEND, ids)], wall_ms)
            if tracker.wants_flush(wall_ms):
                flush = tracker.flush(wall_ms)
                copies += len(flush.copies)
                for element in flush.closed:
                    union |= np.asarray(element.bits)
    for element in parts.flush(batches[-1][0], farewell=True).closed:
        union |= np.asarray(element.bits)
    stored = whole.flush(batches[-1][0], farewell=True)
    assert copies >= 3
    (element,) = stored.closed
    assert np.array_equal(np.asarray(element.bits), union)


def test_4_3_unnecessary_searches() -> None:
    """The expected number of searches that a false positive causes is D' efpp: the mean of the binomial distribution."""
    for probability in (1e-5, 0.05):
        mean = sum(i * comb(5, i) * probability**i * (1 - probability) ** (5 - i) for i in range(1, 6))
        assert unnecessary_searches(5, probability) == pytest.approx(mean)
    assert unnecessary_searches(5, 1e-5) == pytest.approx(0.00005)
    assert unnecessary_searches(5, 0.05) == pytest.approx(0.25)


def test_4_3_unnecessary_searches_as_measured() -> None:
    """Five neighbours that did not see a message claim it D' efpp times, all brokers having routed the same other messages."""
    _, m, k, n = SETTINGS["95% 10K"]
    probes, brokers, fpp = make_ids(40_000, start_ms=WALL_MS + 60_000, seed=3), range(2, 7), blooms.fpp(m, k, n)
    claims = 0
    for broker in brokers:
        bits = blooms.empty(m)
        blooms.add_ids(bits, make_ids(n), m, k, broker=broker)
        claims += int(blooms.contains(bits, blooms.positions(probes, m, k, broker=broker)).sum())
    mean = 40_000 * unnecessary_searches(5, fpp)
    assert abs(claims - mean) < 4.5 * sqrt(mean + (0.02 * mean) ** 2)


def test_4_3_a_wrong_subscriber_needs_two_false_positives() -> None:
    """If subscribers are asked only where the routing history claims the message, the probability is efpp squared."""
    _, m, k, n = SETTINGS["95% 10K"]
    probes = strangers([Element(HistoryKey(Kind.ROUTING, 1), 1, 1, Strategy.BLOOM, 0, 0, WALL_MS, WALL_MS + 99_999,
                                np.empty(0, np.int64), 0, 0, 0, 0)], 200_000)  # fmt: skip
    tables = []
    for seed in (1, 2):
        bits = blooms.empty(m)
        blooms.add_ids(bits, make_ids(n, seed=seed), m, k, broker=2)
        tables.append(blooms.contains(bits, blooms.positions(probes, m, k, broker=2)))
    fpp = blooms.fpp(m, k, n)
    mean = fpp**2 * len(probes)
    assert abs(int((tables[0] & tables[1]).sum()) - mean) < 5 * sqrt(mean)
    assert fpp**2 < fpp


def test_4_3_retransmitted_messages_are_singletons() -> None:
    """A timestamp too old for the current filter updates S and not R, fills the filter as usual, and is found by its own time."""
    settings = replace(FIVE_NINES, skew_tolerance_ms=200, jitter_ms=0, n=5, persistence_ms=10**9)
    tracker = Tracker(1, 1, settings, wall_ms=WALL_MS)
    old = ids_at([WALL_MS - 50_000, WALL_MS - 40_000])
    tracker.take([Published(PUBEND, ids_at([WALL_MS + 5] * 3)), Published(PUBEND, old)], WALL_MS)
    (element,) = tracker.flush(WALL_MS).closed  # full: capacity incorporates retransmissions
    assert (element.from_ms, element.to_ms) == (WALL_MS + 5, WALL_MS + 5)
    assert element.singletons.tolist() == [WALL_MS - 50_000, WALL_MS - 40_000]
    assert len(search([element], old)) == 2
    assert len(search([element], ids_at([WALL_MS - 45_000]))) == 0


# --- 5: implementation and evaluation ------------------------------------------------------------------------------------------


def test_5_1_the_example() -> None:
    """An efpp of 0.00001 with two filters needs fpp < 5e-6; m/n = 26 and k = 16 satisfy it: equation (1) gives 3.97e-6."""
    assert Wish(1e-5, 5_000, matching_set=2).fpp == pytest.approx(1 - sqrt(0.99999))
    assert Wish(1e-5, 5_000, matching_set=2).fpp == pytest.approx(5e-6, rel=1e-4)
    assert blooms.fpp(65_536, 16, round(65_536 / 26)) == pytest.approx(3.97e-6, rel=1e-3)
    found = plan(Wish(1e-5, 5_000))
    assert (round(found.bits_per_message), found.k) == (26, 16)


def test_5_1_the_matching_set_is_two_when_2_t_s_is_below_t_n() -> None:
    """As the implementation synchronizes publisher clocks."""
    found = plan(Wish(1e-5, 5_000))
    assert 2 * found.skew_ms < found.lifetime_ms
    assert not found.broken


def test_5_1_our_hashing_is_as_good_as_md5() -> None:
    """Two applications of MD5 cut into 16 segments of 16 bits, and our hashing, set as many bits and err as often."""
    m, k, n = 65_536, 16, 4_000
    ids = make_ids(n)
    where = np.array([_md5_positions(one.tobytes()) for one in ids])
    ours, theirs = blooms.empty(m), blooms.empty(m)
    blooms.add_ids(ours, ids, m, k)
    blooms.add(theirs, where.astype(np.uint32))
    share = 1 - (1 - 1 / m) ** (k * n)
    for bits in (ours, theirs):
        assert np.unpackbits(bits).mean() == pytest.approx(share, abs=5 * 0.0017)


def _md5_positions(message_id: bytes) -> list[int]:
    digests = b"".join(hashlib.md5(bytes([prefix]) + message_id, usedforsecurity=False).digest() for prefix in (1, 2))
    return [int(segment) for segment in np.frombuffer(digests, ">u2")]


TABLE_2 = [  # strategy, buffer limit in bytes, capacity, T_p in seconds, stores full buffers
    ("ASYNC", 10_000, 625, 1, True),
    ("ASYNC", 135_000, 8_437, 1, False),
    ("ASYNC", 135_000, 8_437, 2, True),
    ("BF", 10_000, 2_521, 1, True),
    ("BF", 10_000, 5_461, 1, False),
    ("BF", 10_000, 7_281, 1, False),
    ("BF", 10_000, 5_461, 2, True),
    ("BF", 10_000, 7_281, 2, True),
    ("BF", 135_000, 38_836, 1, False),
    ("BF", 135_000, 87_381, 1, False),
    ("BF", 135_000, 131_072, 1, False),
    ("BF", 135_000, 38_836, 2, False),
    ("BF", 135_000, 87_381, 2, False),
    ("BF", 135_000, 131_072, 2, False),
    ("BF", 135_000, 38_836, 8, True),
    ("BF", 135_000, 87_381, 8, False),
    ("BF", 135_000, 131_072, 8, False),
    ("BF", 135_000, 87_381, 18, True),
    ("BF", 135_000, 131_072, 18, False),
    ("BF", 135_000, 131_072, 27, True),
]


@pytest.mark.parametrize(("strategy", "limit", "capacity", "seconds", "full"), TABLE_2)
def test_5_2_table_2_stores_full_buffers(strategy: str, limit: int, capacity: int, seconds: int, *, full: bool) -> None:
    """At 5,000 messages per second a buffer of each configuration is filled before T_p expires, or not, as the table says."""
    settings = TrackingSettings(
        strategy=Strategy.ASYNC if strategy == "ASYNC" else Strategy.BLOOM,
        ids_max=limit // 16,
        n=capacity,
        persistence_ms=1_000 * seconds,
        few_as_ids=False,
    )
    tracker = Tracker(1, 1, settings, wall_ms=WALL_MS)
    first: list[Element] = []
    for turn in range(1, 10 * seconds + 1):
        wall_ms = WALL_MS + 100 * turn
        tracker.take([Published(PUBEND, make_ids(500, start_ms=wall_ms - 100))], wall_ms)
        if not first:
            first = [element for element in tracker.open_elements() if element.count == element.n]
    flush = tracker.flush(WALL_MS + 1_000 * seconds)
    assert bool(first) == full
    assert max(element.count for element in (*flush.closed, *flush.copies)) == (capacity if full else 5_000 * seconds)


def test_5_3_disk_forces_of_the_first_scenario() -> None:
    """625 messages of 16 bytes in 10,000 bytes: eight forces per second; 2,521 in a bloom: slightly less than two."""
    assert 10_000 // 16 == 625
    assert 5_000 / 625 == 8
    elements = track(TrackingSettings(strategy=Strategy.ASYNC, ids_max=625, persistence_ms=10**6), skewed_batches(50_000, 0))
    assert sum(element.count == 625 for element in elements) == 80  # in ten seconds
    elements = track(replace(FIVE_NINES, persistence_ms=10**6), skewed_batches(50_000, 0))
    assert sum(element.count == 2_521 for element in elements) == 19
    assert 1.9 < 5_000 / 2_521 < 2


def test_5_3_disk_forces_of_the_second_scenario() -> None:
    """135,000 bytes hold about 8,437 ids; at 20,000 messages per second that is less than three forces, and blooms half empty."""
    assert 135_000 // 16 == 8_437
    assert 2 < 20_000 / 8_437 < 3
    assert 0.5 < 20_000 / 38_836 < 0.55
    assert pytest.approx(8_437 / 2, abs=1) == 135_000 // 32  # doubling the ids halves the naive log, and not the bloom


def test_5_3_full_filters_do_not_compress() -> None:
    """A full filter has a random pattern of zeros and ones: gzip gains next to nothing, at any of the accuracies."""
    for _, m, k, n in SETTINGS.values():
        bits = blooms.empty(m)
        blooms.add_ids(bits, make_ids(n), m, k)
        assert len(gzip.compress(bits.tobytes())) > 0.93 * m / 8
    bits = blooms.empty(65_536)
    blooms.add_ids(bits, make_ids(2_839), 65_536, 16)  # k n = m ln 2: as many ones as zeros
    assert len(gzip.compress(bits.tobytes())) > 8_192


def test_5_3_logs_compress_and_partly_full_filters_hardly() -> None:
    """The simple structure of ASYNC logs allows significant compression; a half full filter stays larger than its log."""
    log = make_ids(5_000).tobytes()
    assert len(gzip.compress(log)) < len(log) / 3
    bits = blooms.empty(1 << 20)
    blooms.add_ids(bits, make_ids(5_000), 1 << 20, 12)  # T_p = 1 with 135K buffers
    assert len(gzip.compress(bits.tobytes())) > 2 * len(gzip.compress(log))


def test_5_3_false_positives_are_not_correlated_among_brokers() -> None:
    """If one broker alone claims a message, it is likely a false positive: two neighbours claim one as seldom as chance."""
    _, m, k, n = SETTINGS["95% 10K"]
    probes, claims = make_ids(200_000, start_ms=WALL_MS + 60_000, seed=4), []
    for broker in (1, 2):
        bits = blooms.empty(m)
        blooms.add_ids(bits, make_ids(n), m, k, broker=broker)  # neighbours that routed the very same messages
        claims.append(blooms.contains(bits, blooms.positions(probes, m, k, broker=broker)))
    mean = len(probes) * blooms.fpp(m, k, n) ** 2
    assert abs(int((claims[0] & claims[1]).sum()) - mean) < 5 * sqrt(mean)


def test_7_blooms_do_not_depend_on_the_size_of_ids() -> None:
    """The bits per message follow from the accuracy alone; an entry of the naive log is an id."""
    assert FIVE_NINES.m / FIVE_NINES.n / 8 == pytest.approx(3.25, rel=1e-3)
    assert make_ids(1).nbytes == 16
