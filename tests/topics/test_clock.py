"""The hybrid clock and the three tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.topics.machines.clock import HybridClock, milliseconds
from postroad.topics.machines.options import CallOptions
from postroad.topics.machines.retries import Calls


@given(st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.integers(0, 1 << 46)), max_size=40))
def test_stamps_always_grow_and_never_lag_the_physical_clock(steps: list[tuple[float, int | None]]) -> None:
    """Whatever the physical clock does, backwards included, and whatever peers send."""
    clock = HybridClock()
    last = 0
    for now, seen in steps:
        if seen is not None and clock.observe(seen, now):
            last = max(last, seen)
        stamp = clock.tick(now)
        assert stamp > last
        assert milliseconds(stamp) >= int(now * 1000)
        last = stamp


def test_a_stamp_too_far_ahead_is_not_believed() -> None:
    """One broken clock does not become everybody's."""
    clock = HybridClock(ahead_ms_max=1000)
    assert clock.observe((5000 + 1000) << 16, 5.0)
    assert not clock.observe((5000 + 1001) << 16, 5.0)
    assert not clock.observe(-1, 5.0)
    assert clock.last == 6000 << 16


def test_a_call_is_sent_three_times_and_then_given_up() -> None:
    """100 ms apart."""
    calls: Calls[str] = Calls(CallOptions())
    ask = calls.start(b"x", b"payload", "tag", now=0.0)
    assert calls.deadline() == 0.1
    assert calls.wake(0.09) == ([], [])
    assert calls.wake(0.1) == ([ask], [])
    assert calls.wake(0.2) == ([ask], [])
    assert calls.wake(0.31) == ([], ["tag"])
    assert calls.deadline() is None
    assert calls.resolve(ask.request) is None


def test_an_answer_counts_once_and_a_slow_disk_does_not_count_against_the_peer() -> None:
    """A late duplicate finds nobody waiting."""
    calls: Calls[str] = Calls(CallOptions())
    ask = calls.start(b"x", b"payload", "tag", now=0.0)
    calls.delayed(2.0)
    assert calls.deadline() == 2.1
    assert calls.resolve(ask.request) == "tag"
    assert calls.resolve(ask.request) is None


def test_a_large_payload_gets_the_time_its_bytes_need() -> None:
    """64 MiB do not pass in 100 ms."""
    assert CallOptions().timeout_s(0) == 0.1
    assert CallOptions().timeout_s(64 << 20) > 1.0
