"""Digests of sets of ids: equal for equal sets in any order and division, different for sets that differ in one id."""

from __future__ import annotations

import numpy as np
import pytest

from postroad.core.batch.digest import LANE, digests_between, lanes

IDS = np.random.default_rng(7).integers(0, 256, (1_000, 16), np.uint8).view(np.dtype((np.void, 16))).ravel()


def digest(ids: np.ndarray) -> tuple[int, ...]:
    return tuple(int(lane.sum()) % LANE for lane in lanes(ids))


def test_order_and_division_do_not_matter() -> None:
    """The digest of a set is the sum of those of its parts, however it is divided."""
    order = np.random.default_rng(8).permutation(len(IDS))
    assert digest(IDS) == digest(IDS[order])
    bounds = np.array([0, 10, 10, 700, 1_000])
    parts = [digests_between(lane, bounds) for lane in lanes(IDS)]
    assert tuple(int(part.sum()) % LANE for part in parts) == digest(IDS)
    assert [int(part[1]) for part in parts] == [0, 0]


@pytest.mark.parametrize("place", range(16))
def test_each_byte_of_an_id_counts(place: int) -> None:
    """One bit of one byte of one id changes both halves."""
    changed = IDS.view(np.uint8).reshape(-1, 16).copy()
    changed[500, place] ^= 1
    other = changed.view(np.dtype((np.void, 16))).ravel()
    assert all(one != two for one, two in zip(digest(IDS), digest(other), strict=True))


def test_halves_are_spread_evenly() -> None:
    """The mean of many halves is close to the middle, for ids that are numbers in a row as well."""
    words = np.zeros((20_000, 2), np.uint64)
    words[:, 1] = np.arange(20_000)
    for lane in lanes(words.view(np.dtype((np.void, 16))).ravel()):
        assert abs(lane.mean() / LANE - 0.5) < 0.01
