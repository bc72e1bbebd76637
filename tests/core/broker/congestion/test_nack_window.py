"""The NACK window: what is asked for, when it is asked for again, and how the window follows the way's capacity."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from postroad.core.broker.congestion.nack_window import TRIES_MAX, NackWindow, divide_windows, make_nack_window
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.types import COUNTER_BITS

SETTINGS = CongestionSettings()


def ms(milliseconds: int) -> int:
    return milliseconds << COUNTER_BITS


def test_only_the_unknown_part_of_the_window_is_asked_for() -> None:
    """A gap beyond the window waits until the doubt horizon has come nearer."""
    window = NackWindow(SETTINGS)
    gaps = [(ms(0), ms(30)), (ms(60), ms(5_000))]
    window.known(0, gaps, 0.0)
    assert window.ask(0, gaps, 0.0) == [(ms(0), ms(30)), (ms(60), ms(100))]
    assert window.ask(0, gaps, 0.1) == []


def test_what_becomes_known_lets_the_next_nack_leave() -> None:
    """The window moves with the doubt horizon."""
    window = NackWindow(SETTINGS)
    window.ask(0, [(0, ms(1_000))], 0.0)
    gaps = [(ms(50), ms(1_000))]
    window.known(ms(50), gaps, 0.1)
    assert window.ask(ms(50), gaps, 0.1) == [(ms(100), ms(150))]


def answer_rounds(window: NackWindow, rtts: list[float], *, horizon: int = 0, now: float = 0.0) -> int:
    """Answer all that is asked for, one round for each of these round trip times; return the size at the end."""
    end = ms(1_000_000)
    for rtt_s in rtts:
        asked = window.ask(horizon, [(horizon, end)], now)
        now, horizon = now + rtt_s, max(hi for _, hi in asked)
        window.known(horizon, [(horizon, end)], now)
    return window.size_ms


def test_a_window_that_was_halved_from_outside_does_not_close_further() -> None:
    """It recovers half as fast because it is half as wide, not because of congestion: it opens again, NACK by NACK."""
    window = NackWindow(CongestionSettings(nack_ms=20))
    assert answer_rounds(window, [0.05] * 5) == 200
    window.resize(20)
    assert answer_rounds(window, [0.05] * 5, horizon=ms(100_000), now=10.0) >= 20 + 4 * 20


def test_an_overdue_nack_is_repeated_less_and_less_often() -> None:
    """The pause doubles up to its bound; after enough tries the window gives up."""
    window = NackWindow(SETTINGS)
    gaps = [(0, ms(100))]
    asked_at, now = [], 0.0
    while not window.gave_up:
        window.known(0, gaps, now)
        if window.ask(0, gaps, now):
            asked_at.append(now)
        now += 0.25
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert len(asked_at) == TRIES_MAX + 1


def test_answers_that_come_keep_what_was_asked_after_them_from_being_asked_again() -> None:
    """Ten NACKs whose answers wait in one queue, 0.9 s for each: none is overdue while they come. One that is lost is later."""
    window = NackWindow(CongestionSettings(nack_window_ms=1_000))
    end, reached = ms(10_000), 0
    assert len(window.ask(0, [(0, end)], 0.0)) == 10
    for number in range(1, 6):
        now, reached = 0.9 * number, ms(100 * number)
        window.known(reached, [(reached, end)], now)
        assert all(lo >= ms(1_000) for lo, _ in window.ask(reached, [(reached, end)], now))
    gaps = [(reached, reached + ms(100)), (ms(1_000), end)]
    window.known(reached, gaps, 5.0)
    assert gaps[0] not in window.ask(reached, gaps, 5.0)
    window.known(reached, gaps, 20.0)
    assert gaps[0] in window.ask(reached, gaps, 20.0)


def test_the_rest_of_a_partly_answered_nack_is_asked_for_again() -> None:
    """A lost half of an answer does not stay lost."""
    window = NackWindow(SETTINGS)
    window.ask(0, [(0, ms(100))], 0.0)
    gaps = [(ms(40), ms(100))]
    window.known(ms(40), gaps, 0.2)
    window.ask(ms(40), gaps, 0.2)
    window.known(ms(40), gaps, 5.0)
    assert (ms(40), ms(100)) in window.ask(ms(40), gaps, 5.0)


def test_progress_keeps_a_slow_recovery_from_being_given_up() -> None:
    """What was asked for often counts anew when the doubt horizon has moved."""
    window = NackWindow(SETTINGS)
    now = 0.0
    for step in range(40):
        gaps = [(ms(step), ms(100))]
        window.known(ms(step), gaps, now)
        window.ask(ms(step), gaps, now)
        assert not window.gave_up
        now += 3.0


@dataclass
class Way:
    """A link that answers NACKs in order, at a fixed number of tick milliseconds per second."""

    window: NackWindow
    latency_s: float
    ms_per_s: float
    now: float = 0.0
    free_at: float = 0.0

    def recover(self, until_ms: int) -> None:
        """Let the window recover the stream up to a time, by answers in the order of the NACKs."""
        horizon, end, answers = 0, ms(until_ms), []
        while horizon < end:
            gaps = [(horizon, end)]
            self.window.known(horizon, gaps, self.now)
            for lo, hi in self.window.ask(horizon, gaps, self.now):
                self.free_at = max(self.free_at, self.now) + (hi - lo) / ms(1) / self.ms_per_s
                answers.append((self.free_at + self.latency_s, hi))
            self.now, hi = answers.pop(0)
            horizon = max(horizon, hi)


def test_the_paper_s_window_settles_where_one_more_nack_adds_less_than_alpha() -> None:
    """On a way without congestion r = nwnd / RTT rises by 1/n with the n-th NACK: it stops at about ten (Fig. 8: ~900)."""
    window = NackWindow(SETTINGS)
    Way(window, latency_s=0.05, ms_per_s=1e6).recover(60_000)
    assert 900 <= window.size_ms <= 1_300


def test_the_paper_s_window_closes_when_the_recovery_rate_falls() -> None:
    """When RTT grows by more than beta, the window is reduced by one NACK."""
    window = NackWindow(SETTINGS)
    way = Way(window, latency_s=0.05, ms_per_s=1e6)
    way.recover(20_000)
    open_ms = window.size_ms
    way.latency_s = 0.5
    way.recover(60_000)
    assert window.size_ms < open_ms


@pytest.mark.parametrize("latency_s", [0.005, 0.2])
@pytest.mark.parametrize("ms_per_s", [1_500.0, 20_000.0])
def test_the_delayed_window_uses_the_way_and_bounds_its_queue(latency_s: float, ms_per_s: float) -> None:
    """It recovers at nearly the way's rate, near or far, and answers wait less than a second."""
    window = make_nack_window(CongestionSettings(rule=Rule.IMPROVED))
    way = Way(window, latency_s, ms_per_s)
    way.recover(20_000)
    began = way.now
    way.recover(60_000)
    assert 60_000 / (way.now - began) > 0.85 * ms_per_s
    assert window.rtt_s < latency_s + 1.0


def test_parts_that_are_answered_at_once_do_not_open_the_delayed_window() -> None:
    """Silence and what a cache has comes in no time; the answers with messages wait, and they count."""
    window = make_nack_window(CongestionSettings(rule=Rule.IMPROVED, nack_window_ms=1_000))
    end, reached, now = ms(10**6), 0, 0.0
    window.ask(0, [(0, end)], now)
    for _ in range(20):
        asked = window.end(reached)
        quick = reached + (asked - reached) * 9 // 10
        window.known(quick, [(quick, end)], now + 0.01)
        now += 0.3 if window.size_ms <= 1_000 else 0.6
        window.known(asked, [(asked, end)], now)
        reached = asked
        window.ask(reached, [(reached, end)], now)
    assert window.size_ms <= 1_250


def test_streams_that_recover_over_one_parent_divide_their_windows() -> None:
    """The one that is further behind asks for more, so that all have everything at about the same time."""
    near, far = NackWindow(SETTINGS), NackWindow(SETTINGS)
    near.resize(800)
    far.resize(400)
    divide_windows([(near, 30_000), (far, 90_000)])
    assert (near.size_ms, far.size_ms) == (300, 900)
    divide_windows([(near, 30_000)])
    assert near.size_ms == 300


def test_a_divided_window_keeps_its_bounds() -> None:
    """Nobody is left without a NACK, nor asks for more than it may keep."""
    near, far = NackWindow(SETTINGS), NackWindow(SETTINGS)
    far.resize(SETTINGS.receive_window_ms)
    divide_windows([(near, 1), (far, 1_000_000)])
    assert (near.size_ms, far.size_ms) == (SETTINGS.nack_ms, SETTINGS.receive_window_ms)


def test_what_came_and_had_no_room_is_asked_for_again_at_once() -> None:
    """Its answers came; to wait for them would take the longest timeouts."""
    window = NackWindow(CongestionSettings(nack_window_ms=400))
    gaps = [(0, ms(400))]
    assert len(window.ask(0, gaps, 0.0)) == 4
    assert not window.overflowed(ms(100))
    assert window.size_ms == 200
    gaps = [(ms(100), ms(400))]
    window.known(ms(100), gaps, 0.1)
    assert window.ask(ms(100), gaps, 0.1) == [(ms(100), ms(200)), (ms(200), ms(300))]


def test_a_window_says_when_even_one_nack_has_no_room() -> None:
    """Then asking in turns does not help, and subscriptions read the log."""
    window = NackWindow(SETTINGS)
    assert window.size_ms == SETTINGS.nack_ms
    assert window.overflowed(0)
