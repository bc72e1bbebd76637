"""Congestion control in a reliable scalable MOM (Pietzuch and Bhola): sections 3 and 4, claim by claim.

Each test states one claim about PDCC (3.1), SDCC (3.2) or their implementation (4) and cites it. The rule is the paper's;
numbers of equations and figures are the paper's. Known slips of the text are read as they must be meant: (4) is the rate of the
broker over the pubend's, (7) is m_SHB < m_pubend - delta t_s, and 50 tickms of Table 1 are 0.05 tick seconds per second.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.core.broker.overlay import Overlay, Publisher

from postroad.core.broker.congestion.consolidation import Alert, Consolidation
from postroad.core.broker.congestion.doubt_meter import SAMPLE_S, DoubtMeter, DoubtReading
from postroad.core.broker.congestion.nack_window import NackWindow
from postroad.core.broker.congestion.paper_rule import PaperRule
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.packets import CongestionAlert, CongestionQuery, Knowledge, Nack, pubend_id
from postroad.types import COUNTER_BITS

SETTINGS = CongestionSettings(rule=Rule.PAPER)
SHB, OTHER_SHB = 3, 4


def ticks(seconds: float) -> int:
    return int(seconds * 1000) << COUNTER_BITS


def live(rate: float, *, sequence: int = 1, broker: int = SHB) -> Alert:
    return Alert(sequence, DoubtReading(rate, 100, broker), None)


def recovering(rate: float, *, sequence: int = 1, broker: int = SHB) -> Alert:
    return Alert(sequence, None, DoubtReading(rate, 100, broker))


# --- section 3.1: publisher-hosting brokers ---


class Pubend:
    """A pubend under the paper's rule; publishers always want more than its rate."""

    def __init__(self, rate: float) -> None:
        self.rule = PaperRule(SETTINGS)
        self.published = PublishedCount()
        self.published.held_back = True
        self.now = 0.0
        self.sequence = 0
        self.query()
        self.published.add(round(rate))
        self.query()

    def query(self, *, seconds: float = 1.0) -> None:
        self.now += seconds
        self.sequence += 1
        self.published.sample(self.now, ticks(self.now))
        self.rule.queried(self.sequence, self.published, self.now)

    def alert(self, rate: float, *, sequence: int | None = None) -> None:
        number = self.sequence if sequence is None else sequence
        self.rule.alerted(live(rate, sequence=number), self.published, self.now)

    @property
    def rate(self) -> float | None:
        return self.rule.rate


def test_the_first_decrease_is_multiplicative() -> None:
    """(3): r_new = f_decr1 * r_old, where r_decr says nothing else."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    assert pubend.rate == 50


def test_without_alerts_for_t_nouca_the_rate_rises_by_at_least_r_min() -> None:
    """3.1 and (1): near r_decr the increase is r_min."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    pubend.query()
    assert pubend.rate == 50
    pubend.query()
    assert pubend.rate == 52


def test_far_from_the_last_decrease_the_rate_rises_by_a_share_of_the_distance() -> None:
    """(1): max of r_old + r_min and r_old + f_incr * (r_old - r_decr)."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    for _ in range(59):
        pubend.query()
    before = pubend.rate
    pubend.query()
    assert before is not None
    assert before - 50 > 40
    assert pubend.rate == pytest.approx(before + 0.05 * (before - 50))


def test_a_decrease_after_an_increase_goes_back_near_r_decr() -> None:
    """(2): max of f_decr1 * r_old and r_decr + f_decr2 * (r_old - r_decr), so that probing costs little."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    for _ in range(5):
        pubend.query()
    assert pubend.rate == 58
    pubend.alert(0.5)
    assert pubend.rate == 50 + 0.25 * 8


def test_when_a_reduction_did_not_help_the_next_one_is_multiplicative() -> None:
    """(3): "if the congestion level does not improve after a reduction", r_decr = r_old holds."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    pubend.query()
    pubend.alert(0.5)
    assert pubend.rate == 25


def test_an_alert_that_answers_an_older_query_than_the_last_decrease_changes_nothing() -> None:
    """3.1: "the rate is kept constant" while the system "did not have enough time to adapt to the last decrease"."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    asked_before = pubend.sequence
    pubend.query()
    pubend.alert(0.4, sequence=asked_before)
    assert pubend.rate == 50


def test_an_alert_with_a_larger_throughput_than_the_previous_one_changes_nothing() -> None:
    """3.1: "the congestion situation is improving, and further reduction in rate is deemed to be unnecessary"."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    pubend.query()
    pubend.alert(0.6)
    assert pubend.rate == 50
    pubend.query()
    pubend.alert(0.55)
    assert pubend.rate == 25


def test_an_alert_keeps_the_rate_from_rising() -> None:
    """3.1: the rate is raised only when no alert has come for t_nouca (2000 ms, Table 1)."""
    pubend = Pubend(100)
    pubend.alert(0.5)
    for step in range(10):
        pubend.query()
        pubend.alert(0.6 + step / 100)
        assert pubend.rate == 50


def test_a_pubend_that_is_not_throttled_has_no_rate_to_raise() -> None:
    """3.1: it "increases the publication rate when the rate is throttled"; lack of feedback is no trigger."""
    pubend = Pubend(100)
    for _ in range(20):
        pubend.query()
    assert pubend.rate is None


# --- section 3.1: intermediate brokers (Fig. 5) ---


def test_the_first_alert_of_a_query_is_passed_on_at_once() -> None:
    """3.1 (2): "when UCA messages occur for the first time, they should be immediately sent upstream"."""
    assert Consolidation().take(live(0.5)) == live(0.5)


def test_alerts_of_one_query_become_one_and_the_rest_counts_in_the_next() -> None:
    """Fig. 5, lines 8-12: a minimum of what came meanwhile goes with the first alert of the next query."""
    consolidation = Consolidation()
    consolidation.take(live(0.5))
    assert consolidation.take(live(0.2, broker=OTHER_SHB)) is None
    assert consolidation.take(live(0.7, sequence=2)) == live(0.2, sequence=2, broker=OTHER_SHB)


def test_an_intermediate_broker_relays_a_query_to_all_its_children() -> None:
    """Fig. 5, line 2: the query that arrived, unchanged, to each broker below."""
    overlay = fork()
    overlay.run(3.0)
    relayed = [query for query in overlay.sent(CongestionQuery, target=2) if query.pubend == pubend_id(1)]
    assert len(relayed) >= 3
    for child in (SHB, OTHER_SHB):
        passed = [query for query in overlay.sent(CongestionQuery, source=2, target=child) if query.pubend == pubend_id(1)]
        assert passed[-3:] == relayed[-3:]


def test_live_and_recovering_minima_are_kept_apart() -> None:
    """Fig. 5: minNonRecSHBRate and minRecSHBRate."""
    consolidation = Consolidation()
    consolidation.take(live(0.5))
    consolidation.take(recovering(1.5))
    consolidation.take(live(0.9, broker=OTHER_SHB))
    passed = consolidation.take(recovering(1.8, sequence=2))
    assert passed == Alert(2, DoubtReading(0.9, 100, OTHER_SHB), DoubtReading(1.5, 100, SHB))


def test_both_minima_are_reset_when_an_alert_was_passed_on() -> None:
    """Fig. 5, line 12."""
    consolidation = Consolidation()
    consolidation.take(live(0.1))
    assert consolidation.take(live(0.8, sequence=2)) == live(0.8, sequence=2)


def test_an_alert_of_an_earlier_query_is_not_passed_on() -> None:
    """Fig. 5, line 10: only a larger sequence number leads to a new alert."""
    consolidation = Consolidation()
    consolidation.take(live(0.5, sequence=7))
    assert consolidation.take(live(0.1, sequence=6)) is None


# --- section 3.1: subscriber-hosting brokers; section 4: the doubt horizon rate ---


class Shb:
    """A subscriber-hosting broker: its doubt horizon and the queries that reach it."""

    def __init__(self) -> None:
        self.meter = DoubtMeter(SETTINGS, SHB)
        self.now = 0.0
        self.pubend_s = 100.0  # where the pubend is
        self.here_s = 100.0  # where the doubt horizon is

    def run(self, seconds: float, *, rate: float, is_recovering: bool = False) -> None:
        """Let the doubt horizon move at a rate, in tick seconds per second."""
        for _ in range(round(seconds / SAMPLE_S)):
            self.now += SAMPLE_S
            self.pubend_s += SAMPLE_S
            self.here_s += SAMPLE_S * rate
            self.meter.sample(ticks(self.here_s), recovering=is_recovering, now=self.now)

    def query(self, *, is_recovering: bool = False) -> DoubtReading | None:
        return self.meter.queried(ticks(self.pubend_s), ticks(self.here_s), recovering=is_recovering)


def test_the_metric_is_the_doubt_horizon_rate_in_tick_seconds_per_second() -> None:
    """(11): ticks over time; 1 while a broker keeps up, whatever is published."""
    shb = Shb()
    shb.run(60, rate=1.0)
    assert shb.meter.rate == pytest.approx(1.0)
    shb.run(60, rate=0.4)
    assert shb.meter.rate == pytest.approx(0.4, abs=0.01)


def test_the_metric_is_smoothed_by_a_first_order_low_pass() -> None:
    """(5): t = (1 - alpha) t + alpha t_new with alpha = 0.1."""
    shb = Shb()
    shb.run(10, rate=1.0)
    shb.run(SAMPLE_S, rate=0.0)
    assert shb.meter.rate == pytest.approx(0.9 + 0.1 * 0.75)


def test_a_live_broker_below_1_minus_delta_alerts() -> None:
    """(6): below 1 - delta t_nonrec = 0.95."""
    shb = Shb()
    for _ in range(30):
        shb.run(1, rate=0.98)
        assert shb.query() is None
    for _ in range(29):
        shb.run(1, rate=0.9)
        shb.query()
    shb.run(1, rate=0.9)
    reading = shb.query()
    assert reading is not None
    assert reading.rate == pytest.approx(0.9, abs=0.01)


def test_a_live_broker_that_falls_behind_slowly_alerts_by_its_lag() -> None:
    """(7): m_SHB < m_pubend - delta t_s, delta t_s = 4000 tickms."""
    shb = Shb()
    for _ in range(200):
        shb.run(1, rate=0.97)
        if shb.query() is not None:
            break
    assert shb.meter.rate > 0.95
    assert 4.0 < shb.pubend_s - shb.here_s < 4.1


def test_a_recovering_broker_alerts_below_1_plus_delta() -> None:
    """(8): below 1 + delta t_rec = 2."""
    shb = Shb()
    shb.here_s = 0.0
    shb.run(30, rate=1.9, is_recovering=True)
    assert shb.query(is_recovering=True) is not None
    shb.run(30, rate=2.1, is_recovering=True)
    assert shb.query(is_recovering=True) is None


def test_a_broker_that_has_everything_does_not_alert() -> None:
    """3.1: alerts are sent by brokers "whenever they think that they are suffering from congestion": not on a quiet stream."""
    shb = Shb()
    shb.query()
    shb.meter.rate = 0.5
    assert shb.query() is None


# --- section 3.2: the NACK window ---


def test_recovery_starts_with_a_small_window() -> None:
    """3.2: "An SHB starts with a small NACK window size nwnd_0" (100 tickms, Table 1)."""
    window = NackWindow(SETTINGS)
    assert window.ask(0, [(0, ticks(120.0))], 0.0) == [(0, ticks(0.1))]


def answer_in_rounds(window: NackWindow, rtts: list[float]) -> list[int]:
    """Answer one window per round trip, each as slow as said; return the window after each."""
    sizes, horizon, now, end = [], 0, 0.0, ticks(1_000.0)
    for rtt in rtts:
        asked = window.ask(horizon, [(horizon, end)], now)
        now, horizon = now + rtt, max(hi for _, hi in asked)
        window.known(horizon, [(horizon, end)], now)
        sizes.append(window.size_ms)
    return sizes


def test_the_window_opens_by_one_nack_while_the_recovery_rate_rises_by_alpha() -> None:
    """(9), (10): r = nwnd / RTT; with a constant RTT each wider window recovers faster."""
    assert answer_in_rounds(NackWindow(SETTINGS), [0.1] * 5) == [200, 300, 400, 500, 600]


def test_the_window_closes_by_one_nack_when_the_recovery_rate_falls_by_beta() -> None:
    """(10): from 200 tickms per 0.1 s to 300 per 0.25 s is less by 40%."""
    assert answer_in_rounds(NackWindow(SETTINGS), [0.1, 0.1, 0.25]) == [200, 300, 200]


def test_between_the_two_thresholds_the_window_stays() -> None:
    """3.2: alpha_NACK = 0.1 and beta_NACK = 0.3 leave room for noise."""
    assert answer_in_rounds(NackWindow(SETTINGS), [0.1, 0.1, 0.18, 0.17]) == [200, 300, 300, 300]


def test_a_nack_asks_for_at_least_size_nack() -> None:
    """Table 1: size_NACK = 100 tickms; the window never closes further."""
    window = NackWindow(SETTINGS)
    sizes = answer_in_rounds(window, [0.1, 0.3, 1.0, 3.0, 9.0])
    assert min(sizes) == 100


def test_every_parameter_of_table_1_has_the_papers_value() -> None:
    """Table 1."""
    settings = CongestionSettings()
    assert (settings.nack_ms, settings.no_alert_s, settings.rate_step) == (100, 2.0, 2.0)
    assert (settings.increase, settings.decrease, settings.decrease_near) == (0.05, 0.5, 0.25)
    assert (settings.smoothing, settings.margin_live, settings.margin_recovering) == (0.1, 0.05, 1.0)
    assert (settings.lag_ms_max, settings.nack_window_ms) == (4_000, 100)
    assert (settings.nack_increase, settings.nack_decrease) == (0.1, 0.3)
    assert BrokerConfig().silence_s == 1.0


def test_both_windows_begin_at_the_doubt_horizon_and_the_nack_window_is_the_smaller_one() -> None:
    """4: "they advance together with the doubt horizon"; the NACK window "is a subset of the receive window"."""
    settings = replace(SETTINGS, receive_window_ms=500)
    window = NackWindow(settings)
    sizes = answer_in_rounds(window, [0.1] * 20)
    assert max(sizes) == settings.receive_window_ms
    for horizon in (0, ticks(7.0)):
        assert window.end(horizon) - horizon == ticks(0.5)


# --- 3 and 4 between brokers: publisher at 1, relay 2, subscribers at 3 ---


def line(settings: CongestionSettings = SETTINGS) -> Overlay:
    return Overlay.line(1, 2, 3, config=BrokerConfig(congestion=settings))


def fork(configs: dict[int, BrokerConfig] | None = None) -> Overlay:
    """Return a publisher's broker 1, a relay 2, and subscribers at 3 and 4."""
    overlay = Overlay(BrokerConfig(congestion=SETTINGS))
    overlay.configs = configs or {}
    for number in (1, 2, SHB, OTHER_SHB):
        overlay.start(number)
    for one, two in ((1, 2), (2, SHB), (2, OTHER_SHB)):
        overlay.link(one, two)
    overlay.run(0.2)
    for number in (SHB, OTHER_SHB):
        overlay.subscriber(number)
    return overlay


def publish_slowly(overlay: Overlay, publisher: Publisher, names: list[str], *, every_s: float = 0.05) -> None:
    for name in names:
        publisher.publish(name)
        overlay.run(every_s)


def test_queries_carry_the_pubend_a_rising_number_and_its_position() -> None:
    """3.1: DCQ messages carry pubendID, a monotonically increasing sequenceNo and m_pubend; one each interval (1 s)."""
    overlay = line()
    overlay.subscriber(3)
    before = len(overlay.sent(CongestionQuery, source=1, target=2))
    overlay.run(5.0)
    queries = overlay.sent(CongestionQuery, source=1, target=2)[before:]
    assert len(queries) == 5
    assert {query.pubend for query in queries} == {pubend_id(1)}
    assert all(one.sequence < other.sequence and one.position < other.position for one, other in pairwise(queries))


def test_queries_and_alerts_go_before_data() -> None:
    """3.1 and 4: DCQ and UCA messages are treated as high-priority messages."""
    overlay = line()
    overlay.subscriber(3)
    publisher = overlay.publisher(1)
    with overlay.losing(Knowledge, to=3):
        publish_slowly(overlay, publisher, [f"m{number}" for number in range(200)])
    kinds = (CongestionQuery, CongestionAlert)
    control = [travel for travel in overlay.travels if isinstance(travel.packet, kinds)]
    assert {type(travel.packet) for travel in control} == set(kinds)
    assert not any(travel.order.data for travel in control)
    assert all(travel.order.data for travel in overlay.travels if isinstance(travel.packet, Knowledge) and travel.order.batch)


def test_a_slow_subscribing_application_is_no_congestion() -> None:
    """1.1: the rate follows the slowest link or broker inside the system, but not the slowest subscribing application."""
    overlay = line()
    slow, quick = overlay.subscriber(3), overlay.subscriber(3)
    publisher = overlay.publisher(1)
    slow.read_slowly()
    names = [f"m{number}" for number in range(200)]
    publish_slowly(overlay, publisher, names)
    assert quick.received == names
    assert slow.received == []
    assert overlay.sent(CongestionAlert) == []
    assert overlay.nodes[1].broker.throttles() == {}


def test_a_broker_that_is_down_or_cut_off_throttles_nobody() -> None:
    """1.1: "lack of feedback is not used as a trigger", since brokers may be "down or partitioned from the rest"."""
    for is_down in (True, False):
        overlay = fork()
        publisher = overlay.publisher(1)
        if is_down:
            overlay.crash(SHB)
        else:
            overlay.unlink(2, SHB)
        publish_slowly(overlay, publisher, [f"m{number}" for number in range(200)])
        assert len(publisher.acknowledged) == 200
        assert overlay.sent(CongestionAlert) == []
        assert overlay.nodes[1].broker.throttles() == {}


def test_a_broker_recovers_by_its_window_also_without_control_at_the_publisher() -> None:
    """3: "these two congestion control mechanisms can be used independently": SDCC needs no queries and no alerts."""
    none = BrokerConfig(congestion=CongestionSettings(rule=Rule.NONE))
    overlay = Overlay.line(1, 2, 3, configs={1: none, 3: BrokerConfig(congestion=SETTINGS)})
    subscriber, publisher = overlay.subscriber(3), overlay.publisher(1)
    names = [f"m{number}" for number in range(100)]
    with overlay.losing(Knowledge, to=3):
        publish_slowly(overlay, publisher, names)
    overlay.until(lambda: subscriber.received == names)
    asked = [sum(hi - lo for lo, hi in nack.ranges) for nack in overlay.sent(Nack, source=3)]
    assert asked[0] <= ticks(SETTINGS.nack_window_ms / 1000)
    assert max(asked) < ticks(2.0)  # without a window, all that was missed would be asked for at once
    assert not [query for query in overlay.sent(CongestionQuery) if query.pubend == pubend_id(1)]


def test_acknowledgements_are_withheld_beyond_the_rate() -> None:
    """4: the pubend stops sending ACK messages once the target rate has been reached."""
    overlay = line()
    overlay.subscriber(3)
    publisher = overlay.publisher(1)
    with overlay.keeping_back(Knowledge, to=3) as kept:
        publish_slowly(overlay, publisher, [f"m{number}" for number in range(200)])
    (throttle,) = overlay.nodes[1].broker.throttles().values()
    before = len(publisher.acknowledged)
    publisher.publish(*(f"x{number}" for number in range(1_000)))
    overlay.run(1.0)
    assert len(publisher.acknowledged) - before <= 2 * throttle.rate + 10
    overlay.deliver(*kept)
    overlay.until(lambda: len(publisher.acknowledged) == 1_200)


def test_a_lost_message_is_no_recovery() -> None:
    """4: sending NACKs would be too sensitive; a broker is recovering only when it is behind by more than its receive window."""
    overlay = line()
    subscriber, publisher = overlay.subscriber(3), overlay.publisher(1)
    publisher.publish("m0")
    with overlay.losing(Knowledge, to=3):
        publisher.publish("m1")
        overlay.run(0.05)
    publisher.publish("m2")
    seen = []
    while subscriber.received != ["m0", "m1", "m2"]:
        overlay.run(0.05)
        seen.append(overlay.nodes[3].broker.streams()[pubend_id(1)]["recovering"])
    assert overlay.sent(Nack, source=3)
    assert not any(seen)


def test_a_broker_behind_by_more_than_its_receive_window_is_recovering_until_it_has_caught_up() -> None:
    """4: its doubt horizon has been lagging behind by a significant amount, and it is recovering all previous ticks."""
    overlay = line(replace(SETTINGS, receive_window_ms=2_000, lag_ms_max=1_000))
    subscriber, publisher = overlay.subscriber(3), overlay.publisher(1)
    names = [f"m{number}" for number in range(100)]
    with overlay.losing(Knowledge, to=3):
        publish_slowly(overlay, publisher, names)
    publisher.publish("last")

    def is_recovering() -> bool:
        return bool(overlay.nodes[3].broker.streams()[pubend_id(1)]["recovering"])

    overlay.until(is_recovering)
    overlay.until(lambda: subscriber.received == [*names, "last"] and not is_recovering())


def test_the_receive_window_bounds_what_is_kept_beyond_the_doubt_horizon() -> None:
    """3.2 and 4: the receive window bounds the memory consumption at an SHB; what is ignored is asked for later."""
    bound = 20_000
    overlay = line(replace(SETTINGS, receive_window_bytes=bound))
    subscriber, publisher = overlay.subscriber(3), overlay.publisher(1)
    names = [f"m{number} {'x' * 500}" for number in range(200)]
    sizes = []
    with overlay.losing(Knowledge, to=3):
        publish_slowly(overlay, publisher, names[:5])
    with overlay.losing(Nack, to=2):
        for name in names[5:]:
            publisher.publish(name)
            overlay.run(0.05)
            sizes.append(overlay.nodes[3].broker.streams()[pubend_id(1)]["cache_bytes"])
    assert max(sizes) <= bound + 5 * 1_000  # what was known before the gap, and the newest frame
    overlay.until(lambda: subscriber.received == names)
