"""PDCC and SDCC between brokers: who is asked, who answers, and how one broker recovers for all its subscribers."""

from __future__ import annotations

import pytest
from tests.core.broker.overlay import Overlay, Publisher

from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.orders import ClientUp, LimitBandwidth, Refuse, Send
from postroad.core.protocol.packets import (
    CatchUp,
    CongestionAlert,
    CongestionQuery,
    Knowledge,
    LimitLink,
    LinkLimited,
    Nack,
    pubend_id,
)

CONTROLLED = (Rule.PAPER, Rule.IMPROVED)


def config(rule: Rule, *, cache_bytes: int = 64 << 20) -> BrokerConfig:
    return BrokerConfig(cache_bytes=cache_bytes, congestion=CongestionSettings(rule=rule))


def line(rule: Rule) -> Overlay:
    return Overlay.line(1, 2, 3, config=config(rule))


def test_without_control_nobody_is_asked() -> None:
    """With the rule `none` there are no queries."""
    overlay = line(Rule.NONE)
    overlay.subscriber(3)
    overlay.run(5.0)
    assert overlay.sent(CongestionQuery) == []


@pytest.mark.parametrize("rule", CONTROLLED)
def test_queries_go_down_the_tree_each_second(rule: Rule) -> None:
    """A query reaches the broker with subscribers through the relay, once each second."""
    overlay = line(rule)
    overlay.subscriber(3)
    before = len(overlay.sent(CongestionQuery, target=3))
    overlay.run(5.0)
    queries = [query for query in overlay.sent(CongestionQuery, target=3)[before:] if query.pubend == pubend_id(1)]
    assert len(queries) == 5
    assert [query.sequence for query in queries] == sorted({query.sequence for query in queries})


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_quiet_stream_is_not_congested(rule: Rule) -> None:
    """Nothing is published and nobody alerts, also behind two relays: silence travels with the queries."""
    overlay = Overlay.line(1, 2, 3, 4, config=config(rule))
    overlay.subscriber(4)
    overlay.run(20.0)
    assert overlay.sent(CongestionAlert) == []


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_broker_that_falls_behind_slows_the_pubend(rule: Rule) -> None:
    """Its alerts reach the pubend's broker, and what is published from then on waits for the rate."""
    overlay = line(rule)
    overlay.subscriber(3)
    publisher = overlay.publisher(1)
    with overlay.keeping_back(Knowledge, to=3):
        for number in range(200):
            publisher.publish(f"m{number}")
            overlay.run(0.05)
    alerts = overlay.sent(CongestionAlert, target=1)
    assert alerts
    slowest = alerts[-1].live or alerts[-1].recovering
    assert slowest is not None
    assert slowest.broker == 3
    assert len(publisher.acknowledged) < 150


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_broker_that_is_away_slows_nobody(rule: Rule) -> None:
    """No answer is no alert."""
    overlay = line(rule)
    overlay.subscriber(3)
    publisher = overlay.publisher(1)
    overlay.crash(3)
    for number in range(200):
        publisher.publish(f"m{number}")
        overlay.run(0.05)
    assert len(publisher.acknowledged) == 200


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_broker_without_a_rule_slows_nobody_and_passes_on_the_alerts_of_others(rule: Rule) -> None:
    """An operator may let a remote site be late. The relay before it has no rule either."""
    overlay = Overlay(config(rule))
    overlay.configs = {2: config(Rule.NONE), 3: config(Rule.NONE)}
    for number in (1, 2, 3, 4):
        overlay.start(number)
    for one, two in ((1, 2), (2, 3), (2, 4)):
        overlay.link(one, two)
    overlay.run(0.2)
    overlay.subscriber(3)
    overlay.subscriber(4)
    publisher = overlay.publisher(1)
    with overlay.losing(Knowledge, to=3):
        for number in range(200):
            publisher.publish(f"m{number}")
            overlay.run(0.05)
    assert len(publisher.acknowledged) == 200
    assert overlay.sent(CongestionAlert) == []
    with overlay.losing(Knowledge, to=4):
        for number in range(200):
            publisher.publish(f"n{number}")
            overlay.run(0.05)
    assert {alert.live.broker for alert in overlay.sent(CongestionAlert, target=1) if alert.live is not None} == {4}


@pytest.mark.parametrize("rule", CONTROLLED)
def test_what_was_missed_comes_once_for_all_subscribers(rule: Rule) -> None:
    """Twenty subscribers behind a lost link get everything from one stream of NACKs, and none of them catches up alone."""
    overlay = line(rule)
    subscribers = [overlay.subscriber(3, f"k = {n}" if n else "") for n in range(20)]
    publisher = overlay.publisher(1)
    names = [f"m{number}" for number in range(100)]
    with overlay.losing(Knowledge, to=3):
        for number, name in enumerate(names):
            publisher.publish(name, k=number % 20)
            overlay.run(0.2)
    overlay.until(lambda: subscribers[0].received == names)
    overlay.run(5.0)
    assert [len(each.received) for each in subscribers[1:]] == [5] * 19
    assert overlay.sent(Nack, source=3)
    assert overlay.sent(CatchUp) == []
    came = [name for each in overlay.travelled(2, 3) if not each.lost for name in each.names]
    assert sorted(came) == sorted(names)


@pytest.mark.parametrize("rule", CONTROLLED)
def test_an_answer_goes_only_to_the_child_that_lacks_it(rule: Rule) -> None:
    """The relay's cache is too small, so the log answers; the other child already has everything, and gets nothing twice."""
    overlay = Overlay(config(rule, cache_bytes=8_000))
    for number in (1, 2, 3, 4):
        overlay.start(number)
    for one, two in ((1, 2), (2, 3), (2, 4)):
        overlay.link(one, two)
    overlay.run(0.2)
    here, there = overlay.subscriber(3), overlay.subscriber(4)
    publisher = overlay.publisher(1)
    names = [f"m{number}" for number in range(40)]
    with overlay.losing(Knowledge, to=3):
        for name in names:
            publisher.publish(name)
            overlay.run(0.2)
    overlay.until(lambda: here.received == names)
    assert there.received == names
    assert sorted(overlay.names_sent(2, 4)) == sorted(names)


# --- what publishers are told ---


def throttled_line(rule: Rule) -> tuple[Overlay, Publisher]:
    """Return a line whose last broker has fallen behind, and a publisher that wants more than the rate."""
    overlay = line(rule)
    overlay.subscriber(3)
    publisher = overlay.publisher(1)
    with overlay.keeping_back(Knowledge, to=3) as kept:
        for number in range(200):
            publisher.publish(f"m{number}")
            overlay.run(0.05)
    overlay.deliver(*kept)
    return overlay, publisher


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_throttled_publisher_is_told_its_credit(rule: Rule) -> None:
    """How many messages, to what rate, since when and because of which broker."""
    overlay, publisher = throttled_line(rule)
    credit = publisher.credits[-1]
    assert credit is not None
    assert credit.broker == 3
    assert credit.since_ms <= overlay.wall_ms
    (throttle,) = overlay.nodes[1].broker.throttles().values()
    assert abs(credit.rate - throttle.rate) <= 0.1 * throttle.rate
    assert credit.messages <= max(2.0, credit.rate + 1)


@pytest.mark.parametrize("rule", CONTROLLED)
def test_the_credit_ends_when_the_congestion_does(rule: Rule) -> None:
    """The last acknowledgement is repeated without one, and a publisher that opens then has none."""
    overlay, publisher = throttled_line(rule)
    overlay.until(lambda: publisher.credits[-1] is None)
    assert overlay.nodes[1].broker.throttles() == {}
    assert overlay.publisher(1).credits == [None]


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_publisher_that_opens_during_congestion_is_told_at_once(rule: Rule) -> None:
    """Else it would send a whole window before its first acknowledgement."""
    overlay, _ = throttled_line(rule)
    assert overlay.publisher(1).credits[0] is not None


@pytest.mark.parametrize("rule", CONTROLLED)
def test_publishers_of_a_throttled_pubend_take_turns(rule: Rule) -> None:
    """What one has sent beyond its credit does not stand before the message of another."""
    overlay, greedy = throttled_line(rule)
    greedy.publish(*(f"x{number}" for number in range(2_000)))
    modest = overlay.publisher(1)
    modest.publish("one")
    overlay.run(2.0)
    assert modest.acknowledged == ["one"]
    assert len(greedy.acknowledged) < 1_500


# --- limits of links ---


def test_an_operator_limits_what_goes_to_a_neighbour() -> None:
    """The driver is ordered to, and the client is answered; a broker without such a link says which ones it has."""
    overlay = line(Rule.IMPROVED)
    broker = overlay.nodes[2].broker
    broker.fact(ClientUp(1, "operator"), now=overlay.now)
    broker.receive(LimitLink(3, 60_000), link=1, now=overlay.now, packet=7)
    assert broker.outputs() == [LimitBandwidth(3, 60_000), Send(1, LinkLimited(3, 60_000), packet=7)]
    broker.receive(LimitLink(9, 60_000), link=1, now=overlay.now, packet=8)
    (refusal,) = broker.outputs()
    assert isinstance(refusal, Refuse)
    assert str(refusal.error) == "this broker has no link to broker 9; it has links to: 1, 3"
