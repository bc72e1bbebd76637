"""Searching elements: what is found where, with which probability."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.tracking.ids import WALL_MS, make_ids

from postroad.core.packets import pubend_id
from postroad.core.tracking.elements import Kind
from postroad.core.tracking.events import Delivered, Published, TrackEvent
from postroad.core.tracking.search import search
from postroad.core.tracking.settings import Strategy, TrackingSettings
from postroad.core.tracking.tracker import Tracker

TRACKING = (Strategy.ASYNC, Strategy.BLOOM, Strategy.EXACT)


@pytest.mark.parametrize("strategy", TRACKING)
def test_every_id_is_found_where_it_was_tracked(strategy: Strategy) -> None:
    """Ids of a publisher and of two subscribers are in their histories, before and after the flush."""
    tracker = Tracker(1, 1, TrackingSettings(strategy=strategy), wall_ms=WALL_MS)
    ids = make_ids(1_000)
    events: list[TrackEvent] = [
        Published(pubend_id(1), ids),
        Delivered("a", pubend_id(1), ids[::2]),
        Delivered("b", pubend_id(1), ids[1::2]),
    ]
    tracker.take(events, WALL_MS + 200)
    before = search(tracker.open_elements(), ids)
    after = search(tracker.flush(WALL_MS + 20_000).closed, ids)
    for hits in (before, after):
        got = {(row, key.kind, key.subscriber) for row, key, _, _ in hits}
        assert got == {(row, Kind.PUBLISHER, "") for row in range(1_000)} | {
            (row, Kind.SUBSCRIBER, "ab"[row % 2]) for row in range(1_000)
        }
    assert np.all(after.probability < 1e-5)
