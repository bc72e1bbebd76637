"""The token bucket that holds a pubend to its rate."""

from __future__ import annotations

from postroad.core.broker.congestion.pacer import BURST_S, GROUP_MAX, Pacer


def publish_all(pacer: Pacer, begin: float, seconds: float) -> int:
    count = 0
    for step in range(round(seconds / 0.05)):
        allowed = pacer.allowed(begin + 0.05 * (step + 1))
        assert allowed is not None
        pacer.took(allowed)
        count += allowed
    return count


def test_without_a_rate_there_is_no_limit() -> None:
    """A pubend that is not throttled is not counted."""
    assert Pacer().allowed(1.0) is None


def test_the_rate_is_kept_also_below_one_message_per_look() -> None:
    """Fractions add up, so slow rates are kept as well as quick ones."""
    for rate in (2.0, 37.5, 1_000.0):
        pacer = Pacer()
        pacer.set_rate(rate, 0.0)
        assert abs(publish_all(pacer, 0.0, 20.0) - 20 * rate) <= max(1, rate * BURST_S)


def test_messages_are_let_go_in_groups() -> None:
    """A frame with one small message weighs as much as five, so throttled messages wait for each other, but not for long."""
    pacer = Pacer()
    pacer.set_rate(40.0, 0.0)
    assert pacer.allowed(0.2) == 0
    assert pacer.allowed(GROUP_MAX / 40.0) == GROUP_MAX
    slow = Pacer()
    slow.set_rate(4.0, 0.0)
    assert slow.allowed(BURST_S / 2) == 0
    assert slow.allowed(BURST_S) == 4.0 * BURST_S


def test_an_idle_pubend_saves_only_a_short_burst() -> None:
    """What was not published for a minute is not published at once."""
    pacer = Pacer()
    pacer.set_rate(100.0, 0.0)
    assert pacer.allowed(60.0) == 100.0 * BURST_S
