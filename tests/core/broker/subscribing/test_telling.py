"""How often clients hear that nothing more matched: often enough for positions to follow, seldom enough to cost little."""

from __future__ import annotations

from collections import Counter

from tests.tracking.overlay import FakeOverlay

from postroad.core.broker.machine import TELLING_PERIODS
from postroad.core.protocol.orders import Send
from postroad.core.protocol.packets import Advance
from postroad.tracking.tap.tracked_broker import TrackedConfig

SILENCE_S = 0.5
SUBSCRIPTIONS = 40


def test_every_client_is_told_its_position_once_in_five_periods_of_silence_and_few_at_a_time() -> None:
    """A broker with many clients at rest has little to do, and a message never waits for all of them to be told."""
    overlay = FakeOverlay(1, config=TrackedConfig(silence_s=SILENCE_S))
    for handle in range(1, SUBSCRIPTIONS + 1):
        overlay.subscribe(1, handle)
    overlay.run(3 * TELLING_PERIODS * SILENCE_S)
    told: Counter[int] = Counter()
    most = 0
    for _ in range(round(4 * TELLING_PERIODS * SILENCE_S / 0.05)):
        before = len(overlay.orders[1])
        overlay.run(0.05)
        sent = [order.message for order in overlay.orders[1][before:] if isinstance(order, Send)]
        now = [message.handle for message in sent if isinstance(message, Advance)]
        told.update(now)
        most = max(most, len(now))
    assert set(told) == set(range(1, SUBSCRIPTIONS + 1))
    assert min(told.values()) >= 3
    assert max(told.values()) <= 5
    assert most <= 2
