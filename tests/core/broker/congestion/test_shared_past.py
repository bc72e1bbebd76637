"""Subscribers that return to a broker get what they missed in common: each message comes over the link once.

Broker 1 hosts the pubend, broker 2 relays and has a small cache, the subscribers are at broker 3.
"""

from __future__ import annotations

import pytest
from tests.core.broker.overlay import Overlay, Subscriber

from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.core.broker.congestion.shared_past import CLUSTERS_AT_ONCE, FIRST_BYTES, SharedPast, union
from postroad.core.broker.context import BrokerConfig
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import CatchUp, CatchUpReply, pubend_id
from postroad.types import COUNTER_BITS

CONTROLLED = (Rule.PAPER, Rule.IMPROVED)


def line(rule: Rule, *, receive_window_ms: int = 10_000) -> Overlay:
    settings = CongestionSettings(rule=rule, receive_window_ms=receive_window_ms)
    return Overlay.line(1, 2, 3, config=BrokerConfig(cache_bytes=2_000, congestion=settings))


def return_all(overlay: Overlay, subscribers: list[Subscriber]) -> None:
    for subscriber in subscribers:
        subscriber.come_back(wait=False)


def asked_of_the_publisher(overlay: Overlay) -> list[CatchUp]:
    return [packet for packet in overlay.sent(CatchUp, source=3) if packet.pubend == pubend_id(1)]


@pytest.mark.parametrize("rule", CONTROLLED)
def test_what_returning_subscribers_missed_comes_once_for_all(rule: Rule) -> None:
    """Forty subscribers whose filters overlap: alone, they would ask for most messages twenty times.

    The first one that is back asks for a small piece; while its answer is on the way, the others come and wait.
    """
    overlay = line(rule)
    subscribers = [overlay.subscriber(3, f"k >= {n} AND k < {n + 20}") for n in range(40)]
    publisher = overlay.publisher(1)
    for subscriber in subscribers:
        subscriber.disconnect()
    names = {f"m{number}": number % 70 for number in range(140)}
    for name, k in names.items():
        publisher.publish(name, k=k)
        overlay.run(0.05)
    before = len(overlay.travelled(2, 3))
    with overlay.keeping_back(CatchUpReply, to=3) as kept:
        return_all(overlay, subscribers)
        overlay.run(0.5)
    overlay.deliver(*kept)
    wanted = [[name for name, k in names.items() if n <= k < n + 20] for n in range(40)]
    overlay.until(lambda: [each.received for each in subscribers] == wanted)
    overlay.run(5.0)
    assert [each.received for each in subscribers] == wanted
    came = [name for each in overlay.travelled(2, 3)[before:] for name in each.names]
    missed = [name for name, k in names.items() if k < 59]
    assert set(came) == set(missed)
    assert len(came) <= 1.1 * len(missed)


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_subscriber_that_comes_during_a_request_loses_nothing(rule: Rule) -> None:
    """The answer under way was not asked for with its filter, though its position lies in it: it waits for the next one."""
    overlay = line(rule)
    first, second = overlay.subscriber(3, "k = 0"), overlay.subscriber(3, "k = 1")
    publisher = overlay.publisher(1)
    first.disconnect()
    second.disconnect()
    names = [f"m{number}" for number in range(40)]
    for number, name in enumerate(names):
        publisher.publish(name, k=number % 2)
        overlay.run(0.05)
    with overlay.keeping_back(CatchUpReply, to=3) as kept:
        first.come_back()
        overlay.run(0.5)
        assert kept
        second.come_back()
        overlay.run(0.3)
    overlay.deliver(*kept)
    overlay.until(lambda: first.received == names[::2] and second.received == names[1::2])


@pytest.mark.parametrize("rule", CONTROLLED)
def test_who_is_far_behind_does_not_hold_up_the_others(rule: Rule) -> None:
    """Positions further apart than the receive window are asked for beside each other."""
    overlay = line(rule, receive_window_ms=1_000)
    far, near = overlay.subscriber(3), overlay.subscriber(3)
    publisher = overlay.publisher(1)
    far.disconnect()
    names = [f"m{number}" for number in range(100)]
    for name in names[:80]:
        publisher.publish(name)
        overlay.run(0.1)
    near.disconnect()
    for name in names[80:]:
        publisher.publish(name)
        overlay.run(0.1)
    before = len(asked_of_the_publisher(overlay))
    with overlay.keeping_back(CatchUpReply, to=3):
        return_all(overlay, [far, near])
        overlay.run(0.5)
    assert len({packet.lo for packet in asked_of_the_publisher(overlay)[before:]}) == 2
    overlay.until(lambda: far.received == near.received == names)


@pytest.mark.parametrize("rule", CONTROLLED)
def test_an_answer_that_is_lost_is_asked_for_again_less_and_less_often(rule: Rule) -> None:
    """A request that is not answered is not repeated at once: on a full link that would make it worse."""
    overlay = line(rule)
    subscriber = overlay.subscriber(3)
    publisher = overlay.publisher(1)
    subscriber.disconnect()
    names = [f"m{number}" for number in range(40)]
    for name in names:
        publisher.publish(name)
        overlay.run(0.05)
    with overlay.losing(CatchUpReply):
        subscriber.come_back()
        overlay.run(0.2)
        before = len(asked_of_the_publisher(overlay))
        overlay.run(20.0)
        again = len(asked_of_the_publisher(overlay)) - before
    assert 3 <= again <= 5
    overlay.until(lambda: subscriber.received == names)


@pytest.mark.parametrize("rule", CONTROLLED)
def test_a_piece_is_no_larger_than_was_asked_for(rule: Rule) -> None:
    """The broker that reads the log ends its answer there, also within a batch; the next piece goes on behind it."""
    overlay = line(rule)
    subscriber, publisher = overlay.subscriber(3), overlay.publisher(1)
    subscriber.disconnect()
    names = [f"{number} {'x' * 500}" for number in range(100)]
    publisher.publish(*names)
    overlay.run(1.0)
    subscriber.come_back()
    overlay.until(lambda: subscriber.received == names)
    sizes = [
        each.order.batch.size for each in overlay.travelled(2, 3) if isinstance(each.packet, CatchUpReply) and each.order.batch
    ]
    assert sizes[0] <= FIRST_BYTES
    assert len(sizes) > 5


def test_a_subscriber_that_begins_with_the_oldest_message_goes_there_in_one_step() -> None:
    """Its position is zero, half a century before the first message."""
    overlay = line(Rule.IMPROVED)
    overlay.subscriber(2).disconnect()  # the log is kept for it
    publisher = overlay.publisher(1)
    names = [f"m{number}" for number in range(30)]
    for name in names:
        publisher.publish(name)
        overlay.run(0.05)
    subscriber = overlay.subscriber(3, earliest=True)
    overlay.until(lambda: subscriber.received == names)
    assert len(asked_of_the_publisher(overlay)) <= 3


# --- the window and the clusters ---


def ms(milliseconds: int) -> int:
    return milliseconds << COUNTER_BITS


def past() -> SharedPast:
    return SharedPast(CongestionSettings())


def test_positions_within_the_receive_window_of_each_other_are_one_cluster() -> None:
    """Chains count: the first and the last may be further apart."""
    positions = [ms(second * 1_000) for second in (0, 50, 55, 64, 70, 90)]
    assert past().cluster(positions, positions[3]) == (positions[1], positions[4])
    assert past().cluster(positions, positions[0]) == (positions[0], positions[0])


def test_a_cluster_has_one_request_at_a_time_and_a_stream_a_few() -> None:
    """What is near a request under way waits for it; what is far waits when too many are under way."""
    shared = past()
    for number in range(CLUSTERS_AT_ONCE):
        assert shared.next_turn(0.0) is None
        shared.ask(ms(100_000 * number), ms(100_000 * number), [number], 1, 10, 0.0)
    assert shared.near(ms(5_000), 0.1) is not None
    assert shared.near(ms(50_000), 0.1) is None
    assert shared.next_turn(0.1) == 1.0
    assert shared.near(ms(5_000), 1.0) is None
    assert shared.next_turn(1.0) is None


def answer_all(shared: SharedPast, *, bytes_per_s: float, way_s: float = 0.02, request: int = 20, times: int = 60) -> None:
    now = 0.0
    for _ in range(times):
        piece = shared.ask(0, 0, [1], 1, request, now)
        piece.answered_bytes = piece.size
        now += way_s + (request + piece.size) / bytes_per_s
        shared.answered(piece, now)


@pytest.mark.parametrize("bytes_per_s", [20_000.0, 200_000.0, 2_000_000.0])
def test_the_window_grows_while_answers_do_not_wait_and_keeps_a_short_queue(bytes_per_s: float) -> None:
    """An answer takes between 0.1 s and half a second of the way."""
    shared = past()
    answer_all(shared, bytes_per_s=bytes_per_s)
    assert 0.1 * bytes_per_s <= shared.window_bytes <= 0.7 * bytes_per_s


def test_answers_that_are_smaller_than_their_requests_let_the_window_grow() -> None:
    """A long union on a narrow way: each request takes longer than its answer, so the wait says nothing of a queue."""
    shared = past()
    answer_all(shared, bytes_per_s=50_000.0, request=20, times=1)
    answer_all(shared, bytes_per_s=50_000.0, request=10_000, times=20)
    assert shared.window_bytes >= 30_000


# --- the union of filters ---


def test_a_union_matches_what_any_of_them_matches() -> None:
    """Covered filters add nothing; AND and OR keep their meaning."""
    filters = [Filter("a = 1 AND b = 2"), Filter("a = 3 OR b = 4"), Filter("a = 3"), Filter("a = 1 AND b = 2")]
    whole, taken = union(filters, Filter)
    assert taken == 4
    assert whole == Filter("a = 1 AND b = 2 OR a = 3 OR b = 4")


def test_a_filter_for_everything_is_the_union_with_all_others() -> None:
    """Its text is empty, which no other text can be joined to."""
    assert union([Filter("a = 1"), Filter("")], Filter) == (Filter(""), 2)


def test_a_union_that_would_be_too_long_leaves_the_rest_out() -> None:
    """It keeps the first ones, and one at least, whatever its length."""
    filters = [Filter(f"name = '{letter * 9_000}'") for letter in "abc"]
    whole, taken = union(filters, Filter)
    assert (whole, taken) == (filters[0], 1)
