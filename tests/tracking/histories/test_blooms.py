"""Blooms against a readable reference, and their false positives against equation (1)."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.ids import WALL_MS, make_ids

from postroad.tracking.histories import blooms

WORD = (1 << 64) - 1
PAPER = [  # m, k, n of Table 2
    (65_536, 16, 2_521),
    (65_536, 8, 5_461),
    (65_536, 8, 7_281),
    (1 << 20, 12, 38_836),
    (1 << 20, 6, 87_381),
    (1 << 20, 6, 131_072),
]


def finish(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def reference_positions(message_id: bytes, m: int, k: int, mask: int | None, broker: int) -> list[int]:
    """The hashing as the module's text tells it, one id at a time."""
    gamma = 0x9E3779B97F4A7C15
    first, second = int.from_bytes(message_id[:8], "little"), int.from_bytes(message_id[8:], "little")
    mixed = finish(first * gamma + second + broker * 0xD1B54A32D192ED03 & WORD)
    if mask is not None:
        mixed = finish(mixed ^ (mask + gamma & WORD))
    width = 16 if m == 1 << 16 else 32
    a, b, c = mixed >> 48, mixed >> 32, mixed >> 16
    if width == 32:
        a, b, c = mixed >> 32, mixed, finish(mixed + gamma & WORD) >> 32
    found = []
    for _ in range(k):
        found.append(a % (1 << width) * m >> width)
        a, b = a + b, b + c
    return found


@given(
    ids=st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=5),
    m=st.integers(1, 1 << 32) | st.integers(0, 32).map(lambda bits: 1 << bits),
    k=st.integers(1, 64),
    mask=st.none() | st.integers(0, WORD),
    broker=st.integers(0, 0xFFFFFFFF),
)
def test_positions_are_those_of_the_reference(ids: list[bytes], m: int, k: int, mask: int | None, broker: int) -> None:
    """The vectorised hashing gives what the definition gives, for any m, k, mask and broker."""
    array = np.frombuffer(b"".join(ids), "V16")
    masks = None if mask is None else np.full(len(ids), mask, np.uint64)
    found = blooms.positions(array, m, k, masks, broker)
    assert found.tolist() == [reference_positions(message_id, m, k, mask, broker) for message_id in ids]


def test_positions_never_change() -> None:
    """Blooms are kept for years: the hashing of a known id is the same in every version."""
    known = np.frombuffer(bytes.fromhex("0000000700000001019e6b4c00000003"), "V16")
    assert blooms.positions(known, 65_536, 4).tolist() == [[22651, 36453, 49741, 62515]]
    assert blooms.positions(known, 1_000_003, 4, np.array([5], np.uint64)).tolist() == [[33023, 568235, 926626, 108192]]


@given(
    count=st.integers(0, 300),
    m=st.sampled_from([1, 7, 8, 1_000, 4_096, 65_536, 100_003]),
    k=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_add_sets_the_bits_and_no_others(count: int, m: int, k: int, seed: int) -> None:
    """All ways of adding (compiled, few positions, many positions) set exactly the bits at the positions."""
    ids = make_ids(count, seed=seed)
    wanted = np.unique(blooms.positions(ids, m, k))
    for add in (blooms.add_ids, blooms.add_ids_by_numpy):
        bits = blooms.empty(m)
        add(bits, ids[: count // 2], m, k)
        add(bits, ids[count // 2 :], m, k)
        assert np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() == wanted.tolist()
        assert blooms.contains(bits, blooms.positions(ids, m, k)).all()


def test_contains_looks_at_every_position() -> None:
    """An id with a single bit missing is not contained."""
    m, k, ids = 65_536, 16, make_ids(200)
    where = blooms.positions(ids, m, k)
    for missing in range(k):
        bits = blooms.empty(m)
        blooms.add(bits, np.delete(where, missing, axis=1))
        alone = np.array([row[missing] not in np.delete(row, missing) for row in where])
        assert not (blooms.contains(bits, where) & alone & ~_covered(where, missing)).any()


def _covered(where: blooms.Positions, missing: int) -> blooms.Flags:
    """Say of which ids the bit in question was set by another id."""
    others = np.unique(np.delete(where, missing, axis=1))
    return np.isin(where[:, missing], others)


def test_brokers_have_hash_functions_of_their_own() -> None:
    """Two brokers that hold the same ids do not make the same errors."""
    m, k, n = 65_536, 8, 7_281
    ids, others = make_ids(n), make_ids(200_000, start_ms=WALL_MS + 10_000, seed=2)
    claims = []
    for broker in (1, 2):
        bits = blooms.empty(m)
        blooms.add_ids(bits, ids, m, k, broker=broker)
        claims.append(blooms.contains(bits, blooms.positions(others, m, k, broker=broker)))
    expected = 200_000 * blooms.fpp(m, k, n) ** 2  # 42, if independent; 2,890 with the same hash functions
    assert abs(int((claims[0] & claims[1]).sum()) - expected) < 5 * sqrt(expected)


@pytest.mark.parametrize("kind", [bytes, memoryview, np.asarray])
def test_bits_are_read_from_any_buffer(kind: type) -> None:
    """Bits come from files as bytes or views of them, and from memory as arrays."""
    bits, ids = blooms.empty(65_536), make_ids(100)
    blooms.add_ids(bits, ids, 65_536, 16)
    where = blooms.positions(make_ids(200), 65_536, 16)
    assert (
        blooms.contains(kind(bits.tobytes() if kind is not np.asarray else bits), where).tolist() == [True] * 100 + [False] * 100
    )


def test_a_mask_makes_another_key() -> None:
    """With routing sets, an id under one set of neighbours is not the id under another."""
    ids = make_ids(500)
    bits = blooms.empty(1 << 20)
    blooms.add_ids(bits, ids, 1 << 20, 12, np.full(500, 3, np.uint64))
    found = [
        int(blooms.contains(bits, blooms.positions(ids, 1 << 20, 12, np.full(500, mask, np.uint64))).sum()) for mask in range(5)
    ]
    assert found == [0, 0, 0, 500, 0]
    assert not blooms.contains(bits, blooms.positions(ids, 1 << 20, 12)).any()


@pytest.mark.parametrize(("m", "k", "n"), PAPER)
def test_false_positives_meet_equation_1(m: int, k: int, n: int) -> None:
    """At the paper's six settings, ids shaped like real ones are claimed falsely as often as equation (1) says."""
    blooms_made = 4
    expected = blooms.fpp(m, k, n)
    probes = 2_000_000 if expected < 1e-4 else 250_000
    hits = sum(_false_positives(m, k, n, probes, seed) for seed in range(blooms_made))
    mean = expected * probes * blooms_made
    sigma = sqrt(mean + (mean * _spread(m, k, n)) ** 2 / blooms_made)
    assert abs(hits - mean) < 4.5 * sigma + 1, f"{hits} false positives, {mean:.1f} +- {sigma:.1f} expected"


def _false_positives(m: int, k: int, n: int, probes: int, seed: int) -> int:
    start_ms = WALL_MS + seed * 10_000_000
    bits = blooms.empty(m)
    blooms.add_ids(bits, make_ids(n, start_ms=start_ms, seed=seed), m, k)
    hits, step = 0, 1 << 16
    for first in range(0, probes, step):
        count = min(step, probes - first)
        others = make_ids(count, start_ms=start_ms + n // 5 + 1 + first // 5, seed=seed + first + 1)
        hits += int(blooms.contains(bits, blooms.positions(others, m, k)).sum())
    return hits


def _spread(m: int, k: int, n: int) -> float:
    """How much the false positives of one bloom vary, relatively, as its share of set bits does."""
    load = k * n / m
    zeros = m * exp(-load) * (1 - (1 + load) * exp(-load))
    return k * sqrt(zeros) / m / (1 - exp(-load))


def test_ids_seldom_share_all_their_positions() -> None:
    """In a small bloom ids that agree in all positions show: two hashed numbers instead of three would triple the hits."""
    m, k, n = 4_096, 16, 157
    hits = sum(_false_positives(m, k, n, 40_000, seed) for seed in range(200))
    expected = blooms.fpp(m, k, n) * 40_000 * 200  # 30; with two numbers n / m**2 more: 105
    assert hits < expected + 6 * sqrt(expected)


def test_fpp_of_no_ids_is_0_and_of_many_nearly_1() -> None:
    """Equation (1) at its ends."""
    assert blooms.fpp(65_536, 16, 0) == 0
    assert blooms.fpp(8, 1, 10_000) == pytest.approx(1)
    assert blooms.fpp(1_000, 3, 100) == pytest.approx((1 - (1 - 1 / 1_000) ** 300) ** 3, rel=1e-12)
