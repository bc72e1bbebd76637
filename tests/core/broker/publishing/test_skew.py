"""Clocks that are wrong, or are stepped: a client session and a broker machine over a wire with delay.

What must hold whatever clocks do: each message is taken once or its publisher is told, ids ascend per publisher id, and what the
broker takes lies within its tolerance or was told to be old.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import Broker
from postroad.core.protocol.orders import Append, Appended, BrokerState, ClientUp, LinkLost, PubendState, Send, Store, Stored
from postroad.core.protocol.packets import Packet, Publish, PublishColumns, PublisherOpened, PublishRefused, pubend_id
from postroad.core.session.events import Event, MessagesRefused
from postroad.core.session.machine import SKEWS_MAX, Session
from postroad.errors import SkewError
from postroad.types import MessageId

WALL_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
T_S = 5_000
CONFIG = BrokerConfig(skew_tolerance_ms=T_S)


class Pair:
    """One publisher and its broker. `client_ms` and `broker_ms` are what their clocks are off by."""

    def __init__(self, *, client_ms: int = 0, broker_ms: int = 0, delay_s: float = 0.002) -> None:
        self.now = 0.0
        self.client_ms, self.broker_ms, self.delay_s = client_ms, broker_ms, delay_s
        self.broker = Broker(BrokerState(7, 1, (PubendState(pubend_id(7)),)), CONFIG)
        self.session = Session()
        self.link: int | None = None
        self.links = 0
        self.wire: deque[tuple[float, int, bool, Send]] = deque()
        self.taken: list[bytes] = []
        self.taken_at: dict[bytes, int] = {}
        self.events: list[Event] = []
        self.frames: list[Packet] = []
        self.answers: list[Packet] = []
        self.published: list[MessageId] = []
        self.stalled = False  # nothing passes the wire, which stays up
        self.disk_stalled = False  # appends begin and are not done
        self.writing: list[Appended] = []
        self.key = self.session.open_publisher()
        self.connect()
        self.run(0.1 + 4 * delay_s)

    @property
    def broker_wall_ms(self) -> int:
        return WALL_MS + self.broker_ms + round(self.now * 1000)

    def clocks(self) -> None:
        self.session.clock(WALL_MS + self.client_ms + round(self.now * 1000))
        self.broker.clock(self.broker_wall_ms)

    def connect(self) -> None:
        self.links += 1
        self.link = self.links
        self.clocks()
        self.broker.fact(ClientUp(self.link), now=self.now)
        self.session.connected(self.link, 7, now=self.now)

    def cut(self) -> None:
        assert self.link is not None
        self.wire.clear()
        self.clocks()
        self.broker.fact(LinkLost(self.link), now=self.now)
        self.session.disconnected(self.link, now=self.now)
        self.link = None

    def publish(self, count: int = 1) -> list[MessageId]:
        self.clocks()
        ids = [self.session.publish(self.key, {"n": number}, b"") for number in range(count)]
        made = [each for each in ids if each is not None]
        assert len(made) == count
        self.published += made
        self.settle()
        return made

    def publish_columns(self, count: int) -> list[MessageId]:
        self.clocks()
        registration = self.session.registration(self.key)
        assert registration is not None
        ids = registration.ids_for(count, WALL_MS + self.client_ms + round(self.now * 1000))
        registration.add_batch(Batch.from_columns(ids, [b""] * count, {"n": list(range(count))}), 100 * count)
        made = [MessageId.from_bytes(bytes(each)) for each in ids]
        self.published += made
        self.settle()
        return made

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = round(self.now + 0.01, 6)
            self.clocks()
            self.broker.wake(now=self.now)
            self.session.wake(now=self.now)
            self.settle()

    def settle(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        busy = False
        while self.wire and self.wire[0][0] <= self.now and not self.stalled:
            _, link, up, send = self.wire.popleft()
            busy = True
            if link != self.link:
                continue
            if up:
                self.broker.receive(send.message, link=link, now=self.now, batch=send.batch, packet=send.packet)
            else:
                self.answers.append(send.message)
                self.session.receive(send.message, link=link, now=self.now, batch=send.batch, packet=send.packet)
        for send in self.session.outputs():
            busy = True
            self.frames.append(send.message)
            self.wire.append((self.now + self.delay_s, send.link, True, send))
        self.events += self.session.events()
        for order in self.broker.outputs():
            busy = True
            match order:
                case Send():
                    self.wire.append((self.now + self.delay_s, order.link, False, order))
                case Append(pubend=pubend, token=token, batches=batches):
                    for each in (bytes(message.id) for batch in batches for message in batch):
                        self.taken.append(each)
                        self.taken_at[each] = self.broker_wall_ms
                    self.writing.append(Appended(pubend, token))
                case Store(token=token):
                    self.broker.fact(Stored(token), now=self.now)
                case _:
                    pass
        if not self.disk_stalled:
            written, self.writing = self.writing, []
            for fact in written:
                self.broker.fact(fact, now=self.now)
        return busy

    @property
    def refused(self) -> list[bytes]:
        ranges = [(event.first, event.last) for event in self.events if isinstance(event, MessagesRefused)]
        mine = [bytes(each) for each in self.published]
        return [each for each in mine if any(f[:8] == each[:8] and f <= each <= last for f, last in ranges)]

    @property
    def refusals(self) -> int:
        return sum(isinstance(each, PublishRefused) for each in self.answers)

    def check(self) -> None:
        """Everything is taken once or refused, never both, and each publisher's ids ascend in the log."""
        assert self.session.outstanding(self.key) == 0
        assert len(set(self.taken)) == len(self.taken)
        assert set(self.taken) | set(self.refused) == {bytes(each) for each in self.published}
        assert not set(self.taken) & set(self.refused)
        assert len(set(self.published)) == len(self.published)
        by_publisher: dict[bytes, list[bytes]] = {}
        for each in self.taken:
            by_publisher.setdefault(each[:8], []).append(each)
        assert all(a < b for ids in by_publisher.values() for a, b in pairwise(ids))


@pytest.mark.parametrize("off_ms", [-7 * HOUR_MS, 3 * HOUR_MS, 10**9])
@pytest.mark.parametrize("columns", [False, True])
def test_a_client_whose_clock_is_hours_off_publishes_as_others_do(off_ms: int, columns: bool) -> None:
    """The broker tells its clock when the publisher opens: nothing is refused, and ids carry the broker's time."""
    pair = Pair(client_ms=off_ms)
    for _ in range(20):
        (pair.publish_columns if columns else pair.publish)(5)
        pair.run(0.3)
    pair.check()
    assert pair.refusals == 0
    assert all(abs(MessageId.from_bytes(i).milliseconds - at) < 100 for i, at in pair.taken_at.items())


@pytest.mark.parametrize("columns", [False, True])
def test_a_client_whose_clock_steps_back_goes_on_without_a_refusal(columns: bool) -> None:
    """Ids still ascend, and the next acknowledgement tells how late it is."""
    pair = Pair()
    pair.publish(3)
    pair.run(0.2)
    pair.client_ms -= HOUR_MS
    first = (pair.publish_columns if columns else pair.publish)(3)
    pair.run(0.2)
    last = (pair.publish_columns if columns else pair.publish)(3)
    pair.run(0.2)
    pair.check()
    assert pair.refused == []
    assert first[0] > pair.published[2]
    assert abs(last[-1].milliseconds - pair.broker_wall_ms) < 500


@pytest.mark.parametrize("columns", [False, True])
def test_a_client_whose_clock_steps_forward_is_refused_what_lies_in_the_future_and_goes_on(columns: bool) -> None:
    """The application is told which messages; those after them get the right time, under a new publisher id."""
    pair = Pair()
    pair.publish(3)
    pair.run(0.2)
    pair.client_ms += HOUR_MS
    future = (pair.publish_columns if columns else pair.publish)(3)
    pair.run(1.0)
    later = (pair.publish_columns if columns else pair.publish)(3)
    pair.run(0.5)
    pair.check()
    assert pair.refused == [bytes(each) for each in future]
    (refusal,) = [event for event in pair.events if isinstance(event, MessagesRefused)]
    assert isinstance(refusal.error, SkewError)
    assert refusal.error.retryable
    assert {bytes(each) for each in later} <= set(pair.taken)
    assert later[0].publisher != future[0].publisher
    assert abs(later[0].milliseconds - pair.broker_wall_ms) < 1000


def test_nothing_is_refused_when_the_brokers_clock_steps_forward() -> None:
    """What was under way looks old then; the client learns the time and sends it again as old."""
    pair = Pair(delay_s=0.05)
    pair.publish(3)
    pair.broker_ms += 20_000
    pair.publish(3)
    pair.run(2.0)
    pair.publish(3)
    pair.run(1.0)
    pair.check()
    assert pair.refused == []
    assert pair.refusals > 0
    assert abs(pair.published[-1].milliseconds - pair.broker_wall_ms) < 2000


def test_a_brokers_clock_that_steps_back_holds_a_publisher_up_for_a_moment_only() -> None:
    """Ids of the future cannot be taken back: a new publisher id begins where the clock is now."""
    pair = Pair()
    for _ in range(3):
        pair.publish(2)
        pair.run(0.2)
    pair.broker_ms -= 20_000
    pair.publish(2)
    pair.run(1.0)
    late = pair.publish(2)
    pair.run(0.5)
    pair.check()
    assert {bytes(each) for each in late} <= set(pair.taken)
    assert len(pair.refused) == 2
    assert abs(late[0].milliseconds - pair.broker_wall_ms) < 1000


def test_a_small_step_back_costs_nothing() -> None:
    """Within the tolerance ids run ahead of the clock until it has caught up."""
    pair = Pair()
    pair.publish(2)
    pair.run(0.1)
    pair.broker_ms -= 2_000
    for _ in range(40):
        pair.publish(2)
        pair.run(0.1)
    pair.check()
    assert pair.refusals == 0
    assert len({each.publisher for each in pair.published}) == 1


def test_a_drift_is_followed_without_a_refusal() -> None:
    """Every acknowledgement tells the broker's clock: a client is corrected long before the tolerance is used up."""
    pair = Pair()
    for _ in range(100):
        pair.client_ms += 300
        pair.publish(1)
        pair.run(0.05)
    for _ in range(100):
        pair.client_ms -= 300
        pair.publish(1)
        pair.run(0.05)
    pair.check()
    assert pair.refusals == 0


@pytest.mark.parametrize("columns", [False, True])
def test_what_waited_during_an_outage_is_accepted(columns: bool) -> None:
    """Sent again after a reconnect, minutes old: its age is told, and it is no skew."""
    pair = Pair()
    pair.stalled = True
    (pair.publish_columns if columns else pair.publish)(4)
    pair.run(1.0)
    pair.cut()
    pair.stalled = False
    pair.run(10 * T_S / 1000)
    pair.connect()
    pair.run(0.5)
    pair.check()
    assert (pair.refusals, pair.refused) == (0, [])
    kind = PublishColumns if columns else Publish
    ages = [frame.age_ms for frame in pair.frames if isinstance(frame, kind)]
    assert ages[0] < 10
    assert ages[-1] > 10 * T_S


def test_an_outage_that_nobody_notices_is_no_skew_either() -> None:
    """The frame says age 0 and arrives late: it is refused, sent again with its age, and all that follows it in order."""
    pair = Pair()
    pair.stalled = True
    pair.publish(2)
    pair.run(2 * T_S / 1000)
    pair.publish(2)
    pair.stalled = False
    pair.run(2.0)
    pair.check()
    assert pair.refusals > 0
    assert pair.refused == []
    assert pair.taken == [bytes(each) for each in pair.published]


def test_a_way_that_always_takes_longer_than_the_tolerance_still_works() -> None:
    """Once it is known to be behind, a publisher may be behind: overload must not become refusals."""
    pair = Pair(delay_s=0.01)
    pair.delay_s = 1.5 * T_S / 1000
    for _ in range(10):
        pair.publish(3)
        pair.run(1.0)
    pair.run(12 * T_S / 1000)
    pair.check()
    assert pair.refused == []


def test_what_was_accepted_before_a_step_is_not_refused_when_it_comes_again() -> None:
    """The acknowledgement was lost, then the clock stepped back: the messages are recognised all the same."""
    pair = Pair(delay_s=0.05)
    pair.publish(3)
    pair.run(0.07)  # taken, and not yet acknowledged
    assert len(pair.taken) == 3
    pair.cut()
    pair.broker_ms -= HOUR_MS
    pair.connect()
    pair.run(2.0)
    pair.check()
    assert pair.refused == []
    pair.publish(2)
    pair.run(1.0)
    pair.check()
    assert pair.refused == []


def test_a_frame_that_is_partly_known_is_refused_only_in_part() -> None:
    """The range of a refusal begins after what was accepted."""
    pair = Pair()
    first = pair.publish(2)
    pair.run(0.1)
    publisher, link = first[0].publisher, pair.link
    assert link is not None
    future = MessageId.make(publisher, 7, pair.broker_wall_ms + HOUR_MS)
    pair.broker.receive(Publish(publisher, [(bytes(each), {}, b"") for each in (*first, future)]), link=link, now=pair.now)
    (refusal,) = [o.message for o in pair.broker.outputs() if isinstance(o, Send) and isinstance(o.message, PublishRefused)]
    assert bytes(first[-1]) < refusal.first <= refusal.last == bytes(future)
    assert (refusal.code, refusal.wall_ms) == (SkewError.code, pair.broker_wall_ms)


def test_an_age_cannot_bring_a_message_from_the_future() -> None:
    """Whatever a peer claims, timestamps ahead of the clock are refused; those it calls old are late, which tracks can tell."""
    pair = Pair()
    publisher = pair.publish(1)[0].publisher
    pair.run(0.1)
    assert pair.link is not None
    for timestamp_ms, age_ms in ((HOUR_MS, 0), (HOUR_MS, 2**62), (-HOUR_MS, 0), (0, 2**62)):
        made = MessageId.make(publisher, 7, pair.broker_wall_ms + timestamp_ms, 9)
        before = len(pair.taken)
        pair.broker.receive(Publish(publisher, [(bytes(made), {}, b"")], {}, age_ms), link=pair.link, now=pair.now)
        pair._turn()
        assert len(pair.taken) == before


def test_a_broker_that_refuses_for_ever_is_not_asked_for_ever() -> None:
    """After some tries the application is told, and the publisher is free."""
    session = Session()
    session.clock(WALL_MS)
    session.connected(1, 7, now=0.0)
    key = session.open_publisher()
    opened = PublisherOpened(1, 7, pubend_id(7), WALL_MS, 1 << 20, 0, T_S)
    now, refusals = 0.0, 0
    while not any(isinstance(event, MessagesRefused) for event in session.events()):
        for send in session.outputs():
            if isinstance(send.message, Publish):
                ids = [row[0] for row in send.message.rows]
                refusals += 1
                session.receive(PublishRefused(1, ids[0], ids[-1], SkewError.code, "no", WALL_MS), link=1, now=now)
            else:
                session.receive(opened, link=1, now=now, packet=send.packet)
                if not refusals:
                    session.publish(key, {}, b"")
        now += 10.0
        session.wake(now=now)
        assert refusals <= SKEWS_MAX + 1
    assert refusals == SKEWS_MAX + 1
    assert session.outstanding(key) == 0


def test_messages_on_their_way_to_the_disk_are_not_given_up_when_the_brokers_clock_steps_back() -> None:
    """They were taken before the step: only what the broker refuses is reported as refused."""
    pair = Pair()
    pair.disk_stalled = True
    pair.publish_columns(3)
    pair.run(0.1)
    pair.broker_ms -= HOUR_MS
    refused = pair.publish_columns(2)
    pair.run(0.2)
    pair.disk_stalled = False
    pair.run(2.0)
    pair.check()
    assert pair.refused == [bytes(each) for each in refused]
