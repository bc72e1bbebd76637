"""A client session against a broker played by hand: no sockets, no clock, every packet through the wire's own bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.protocol.orders import Send
from postroad.core.protocol.packets import (
    Acknowledge,
    AcknowledgementStored,
    Advance,
    Credit,
    Deliver,
    Flow,
    Gap,
    OpenPublisher,
    Packet,
    Publish,
    PublishAcknowledged,
    PublishColumns,
    PublisherOpened,
    PublishRefused,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    pubend_id,
)
from postroad.core.session import events as told
from postroad.core.session.events import (
    Event,
    MessagesRefused,
    Missed,
    RowsDelivered,
    SubscriptionActive,
    SubscriptionEnded,
    SubscriptionFailed,
)
from postroad.core.session.machine import Session, SessionConfig
from postroad.core.session.publishing import PublishingConfig, Throttled
from postroad.errors import (
    BatchLimitError,
    DurableElsewhereError,
    FilterSyntaxError,
    InvalidValueError,
    MalformedPacketError,
    OverlayError,
    PostroadError,
    ProtocolViolationError,
    UnfinishedError,
    UnknownHandleError,
    error_of_code,
)
from postroad.types import MessageId
from postroad.wire.batches import BatchDecoder, encode_batch
from postroad.wire.codec import decode, encode
from postroad.wire.framing import FrameDecoder

WALL_MS = 1_700_000_000_000


def over_the_wire(send: Send) -> Send:
    """Encode and decode a packet, as two processes would."""
    body = None if send.batch is None else encode_batch(send.batch)
    data = b"".join(encode(send.message, send.packet, body))
    (frame,) = FrameDecoder().feed(data)
    packet, packet_id, body_received = decode(frame)
    assert isinstance(packet, Packet)
    batch = None if body_received is None else BatchDecoder().decode(body_received)
    return Send(send.link, packet, batch, send.data, packet_id)


@dataclass
class Broker:
    """The other end of a link, played by hand: it keeps what it accepted and answers when told to."""

    broker: int
    wall_ms: int = WALL_MS
    window_bytes: int = 1 << 20
    publishers: int = 0
    accepted: list[bytes] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)

    def opened(self, request: OpenPublisher) -> PublisherOpened:
        if request.resume is None:
            self.publishers += 1
        publisher = request.resume or self.publishers
        pubend = pubend_id(self.broker)
        return PublisherOpened(publisher, self.broker, pubend, self.wall_ms, self.window_bytes, self.last.get(publisher, 0))

    def take(self, send: Send) -> PublishAcknowledged:
        assert isinstance(send.message, Publish | PublishColumns)
        ids = [row[0] for row in send.message.rows] if isinstance(send.message, Publish) else ids_of(send.batch)
        publisher = send.message.publisher
        for each in ids:
            tick = int.from_bytes(each[8:], "big")
            if tick > self.last.get(publisher, 0):
                self.accepted.append(each)
                self.last[publisher] = tick
        return PublishAcknowledged(publisher, self.last[publisher])


def ids_of(batch: Batch | None) -> list[bytes]:
    assert batch is not None
    return [bytes(message.id) for message in batch]


class Client:
    """A session with its links, driven step by step."""

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.session = Session(config)
        self.session.clock(WALL_MS)
        self.brokers: dict[int, Broker] = {}
        self.links = 0
        self.seen: list[Event] = []

    def connect(self, broker: Broker, *, main: bool = True) -> int:
        self.links += 1
        self.brokers[self.links] = broker
        self.session.connected(self.links, broker.broker, now=0.0, main=main)
        return self.links

    def cut(self, link: int) -> None:
        self.session.disconnected(link, now=0.0)

    def sent(self) -> list[Send]:
        return [over_the_wire(send) for send in self.session.outputs()]

    def hear(self, link: int, message: Packet, batch: Batch | None = None, packet: int = 0) -> None:
        send = over_the_wire(Send(link, message, batch, packet=packet))
        self.session.receive(send.message, link=link, now=0.0, batch=send.batch, packet=send.packet)

    def events(self) -> list[Event]:
        return self.session.events()

    def settle(self, *, acknowledge: bool = True) -> list[Send]:
        """Let brokers answer opened publishers and take what is published; return everything that was sent."""
        everything = []
        while sends := self.sent():
            everything += sends
            for send in sends:
                broker = self.brokers[send.link]
                if isinstance(send.message, OpenPublisher):
                    self.hear(send.link, broker.opened(send.message), packet=send.packet)
                elif isinstance(send.message, Publish | PublishColumns) and acknowledge:
                    self.hear(send.link, broker.take(send))
        return everything


def client_with_publisher(broker: Broker, config: SessionConfig | None = None) -> tuple[Client, int, int]:
    client = Client(config)
    link = client.connect(broker)
    key = client.session.open_publisher()
    client.settle()
    return client, key, link


def publish(client: Client, key: int, number: int = 0) -> bytes:
    message_id = client.session.publish(key, {"n": number, "symbol": "IBM"}, b"payload")
    assert message_id is not None
    return bytes(message_id)


def rows(*ticks: int) -> Batch:
    (batch,) = build_batches([(bytes(MessageId.make(1, 1, tick)), {"n": tick}, b"") for tick in ticks])
    return batch.with_ticks(list(ticks))


# --- publishing ----------------------------------------------------------------------------------------------------------


def test_a_lone_message_leaves_at_once_and_names_its_broker() -> None:
    """An idle publisher does not wait for company, and the id is valid when publish returns."""
    client, key, _ = client_with_publisher(Broker(7))
    message_id = MessageId.from_bytes(publish(client, key))
    (send,) = client.sent()
    assert isinstance(send.message, Publish)
    assert (message_id.publisher, message_id.broker, message_id.milliseconds) == (1, 7, WALL_MS)
    assert [row[0] for row in send.message.rows] == [bytes(message_id)]


def test_rows_accumulate_while_a_frame_is_on_its_way() -> None:
    """Under load frames grow by themselves; above a few dozen rows they leave as columns."""
    client, key, link = client_with_publisher(Broker(7))
    first = publish(client, key)
    (send,) = client.sent()
    ids = [publish(client, key, number) for number in range(200)]
    assert client.sent() == []
    client.hear(link, client.brokers[link].take(send))
    (columns,) = client.sent()
    assert isinstance(columns.message, PublishColumns)
    assert ids_of(columns.batch) == ids
    assert client.brokers[link].accepted == [first]


def test_ids_ascend_when_the_clock_steps_back_and_beyond_one_millisecond() -> None:
    """The counter carries over, and a clock that went back changes nothing."""
    client, key, _ = client_with_publisher(
        Broker(7, window_bytes=1 << 24), SessionConfig(PublishingConfig(window_messages=80_000))
    )
    ids = [publish(client, key) for _ in range(3)]
    client.session.clock(WALL_MS - 60_000)
    ids += [publish(client, key) for _ in range(66_000)]
    assert all(left < right for left, right in pairwise(ids))


def test_ids_follow_the_clock_of_the_broker() -> None:
    """A client whose clock is wrong takes the broker's time."""
    client, key, _ = client_with_publisher(Broker(7, wall_ms=WALL_MS + 5_000))
    assert MessageId.from_bytes(publish(client, key)).milliseconds == WALL_MS + 5_000


def test_the_window_is_bounded_in_messages_and_bytes() -> None:
    """A full window takes nothing more until the broker acknowledges."""
    config = SessionConfig(PublishingConfig(window_messages=3))
    client, key, link = client_with_publisher(Broker(7), config)
    for _ in range(3):
        publish(client, key)
    assert client.session.publish(key, {}, b"") is None
    (send,) = client.sent()
    client.hear(link, client.brokers[link].take(send))
    assert client.session.publish(key, {}, b"") is not None

    client, key, _ = client_with_publisher(Broker(7, window_bytes=80))
    publish(client, key)
    assert client.session.publish(key, {}, b"") is None


def test_a_credit_takes_the_place_of_the_window_while_there_is_one() -> None:
    """Under congestion the broker says how many messages may be unacknowledged, and why; `room` is what a batch may add."""
    broker = Broker(7)
    client, key, link = client_with_publisher(broker)
    credit = Credit(messages=2, rate=50.0, since_ms=WALL_MS - 1_500, broker=9)
    client.hear(link, PublishAcknowledged(1, 0, WALL_MS, credit))
    assert client.session.throttled(key) == Throttled(since=WALL_MS / 1000 - 1.5, rate=50.0, broker=9)
    registration = client.session.registration(key)
    assert registration is not None
    assert registration.room() == 2
    publish(client, key)
    publish(client, key)
    assert client.session.registration(key) is None
    (frame,) = client.sent()
    client.hear(link, broker.take(frame))
    assert client.session.registration(key) is registration
    assert client.session.throttled(key) is None


def test_a_credit_ends_with_the_link() -> None:
    """Another broker, or the same one later, says what it gives."""
    broker = Broker(7)
    client, key, link = client_with_publisher(broker)
    client.hear(link, PublishAcknowledged(1, 0, WALL_MS, Credit(2, 50.0, WALL_MS, 9)))
    client.cut(link)
    assert client.session.throttled(key) is None
    client.connect(broker)
    client.settle()
    assert client.session.throttled(key) is None
    assert client.session.registration(key) is not None


def test_after_a_reconnect_to_the_same_broker_only_what_it_lacks_is_sent_again() -> None:
    """The broker says what it accepted; the rest follows in order and nothing is doubled."""
    broker = Broker(7)
    client, key, link = client_with_publisher(broker)
    ids = [publish(client, key)]
    (first,) = client.sent()
    broker.take(first)  # accepted, but the acknowledgement is lost with the link
    ids += [publish(client, key, number) for number in range(100)]
    client.cut(link)
    assert client.session.publish(key, {}, b"") is None
    client.connect(broker)
    sends = client.settle()
    assert [type(send.message) for send in sends] == [OpenPublisher, PublishColumns]
    assert sends[0].message == OpenPublisher(1, reopens=True)
    assert broker.accepted == ids
    assert client.session.outstanding(key) == 0


def test_a_frame_accepted_in_part_is_clipped() -> None:
    """A cumulative acknowledgement may end inside a frame."""
    broker = Broker(7)
    client, key, link = client_with_publisher(broker)
    ids = [publish(client, key, number) for number in range(100)]
    client.sent()
    client.hear(link, PublishAcknowledged(1, int.from_bytes(ids[59][8:], "big")))
    assert client.session.outstanding(key) == 40
    client.cut(link)
    broker.last[1] = int.from_bytes(ids[59][8:], "big")
    client.connect(broker)
    client.settle()
    assert broker.accepted == ids[60:]


def test_doubtful_messages_wait_for_their_own_broker() -> None:
    """Trap 9: at another broker only new messages are published; the doubtful ones leave when their broker is back."""
    home, other = Broker(7), Broker(8)
    client, key, link = client_with_publisher(home)
    doubtful = [publish(client, key, number) for number in range(3)]
    client.sent()
    client.cut(link)
    main = client.connect(other)
    client.settle()
    fresh = publish(client, key)
    client.settle()
    assert other.accepted == [fresh]
    (doubt,) = client.session.doubtful(key)
    assert (doubt.broker, doubt.messages, bytes(doubt.first), bytes(doubt.last)) == (7, 3, doubtful[0], doubtful[-1])
    assert client.session.homes() == [7]
    second = client.connect(home, main=False)
    client.settle()
    assert home.accepted == doubtful
    assert client.session.homes() == []
    assert client.session.outstanding(key) == 0
    client.cut(second)
    assert bytes(client.session.publish(key, {}, b"") or b"")[4:8] == (8).to_bytes(4, "big")
    assert main in client.brokers


def test_refused_messages_are_reported_and_the_stream_goes_on() -> None:
    """A refusal names its messages and its reason; the others stay in the window."""
    client, key, link = client_with_publisher(Broker(7))
    ids = [publish(client, key, number) for number in range(10)]
    client.sent()
    client.hear(link, PublishRefused(1, ids[2], ids[4], 101, "too big"))
    (refused,) = [event for event in client.events() if isinstance(event, MessagesRefused)]
    assert (refused.first, refused.last) == (ids[2], ids[4])
    assert isinstance(refused.error, InvalidValueError)
    assert str(refused.error) == "too big"
    assert client.session.outstanding(key) == 7


def test_nothing_new_leaves_between_a_refusal_and_the_answer_to_the_next_opening() -> None:
    """It would be accepted before the messages that the broker ignored, and these would look durable then."""
    broker = Broker(7)
    client, key, link = client_with_publisher(broker)
    ids = [publish(client, key, number) for number in range(4)]
    client.sent()
    client.hear(link, PublishRefused(1, ids[0], ids[0], 101, "too big"))
    client.hear(link, PublishRefused(1, ids[2], ids[2], 101, "too big"))
    assert [event.first for event in client.events() if isinstance(event, MessagesRefused)] == [ids[0], ids[2]]
    assert client.session.publish(key, {}, b"later") is None
    assert [send.message for send in client.session.outputs()] == [OpenPublisher(1, reopens=True)]
    client.hear(link, broker.opened(OpenPublisher(1)), packet=client.session.next_packet() - 1)
    client.settle()
    assert broker.accepted == [ids[1], ids[3]]


def test_a_publisher_that_another_connection_has_opened_is_resumed_with_all_its_messages() -> None:
    """Nothing is refused and nothing is forgotten: what is not acknowledged leaves again after a while."""
    broker = Broker(7)
    client, key, link = client_with_publisher(broker)
    ids = [publish(client, key, number) for number in range(3)]
    client.sent()
    client.hear(link, PublishRefused(1, b"", b"", UnknownHandleError.code, "another connection has opened publisher 1"))
    assert not [event for event in client.events() if isinstance(event, MessagesRefused)]
    assert client.sent() == []
    client.session.wake(now=client.session.deadline() or 0.0)
    (opening,) = [send.message for send in client.settle() if isinstance(send.message, OpenPublisher)]
    assert opening == OpenPublisher(resume=1, reopens=True)
    assert broker.accepted == ids
    assert client.session.outstanding(key) == 0


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"x": None}, InvalidValueError),
        ({"x": [1]}, InvalidValueError),
        ({"x": 1 << 63}, InvalidValueError),
        ({"": 1}, InvalidValueError),
        ({"x": "\ud800"}, InvalidValueError),
        ({"x": "a" * 70_000}, BatchLimitError),
        ({str(number): 1 for number in range(65)}, BatchLimitError),
    ],
)
def test_a_value_no_message_may_hold_is_refused_before_anything_changed(
    attributes: dict[str, object], error: type[Exception]
) -> None:
    """The caller gets the error; the stream is untouched."""
    client, key, _ = client_with_publisher(Broker(7))
    for _ in range(2):  # once by the careful check, once by the quick one
        with pytest.raises(error):
            client.session.publish(key, attributes, b"")  # type: ignore[arg-type]
        publish(client, key)
        client.settle()
    assert client.session.outstanding(key) == 0


def test_attributes_are_copied_when_published() -> None:
    """What the caller does with its dictionary afterwards does not change the message."""
    client, key, _ = client_with_publisher(Broker(7))
    attributes: dict[str, bool | int | float | str | bytes] = {"n": 1}
    client.session.publish(key, attributes, b"")
    attributes["n"] = 2
    (send,) = client.sent()
    assert isinstance(send.message, Publish)
    assert send.message.rows[0][1] == {"n": 1}


# --- subscribing ---------------------------------------------------------------------------------------------------------

PUBEND = pubend_id(7)


def subscribed(client: Client, link: int, start: int = 100) -> int:
    key = client.session.subscribe("n > 0")
    activate(client, link, start)
    client.events()
    return key


def activate(client: Client, link: int, start: int) -> Subscribe:
    (send,) = [each for each in client.sent() if isinstance(each.message, Subscribe)]
    assert isinstance(send.message, Subscribe)
    client.hear(link, Subscribed(send.message.handle, {PUBEND: start}), packet=send.packet)
    return send.message


def delivered(client: Client) -> list[int]:
    return [int(tick) for event in client.events() if isinstance(event, RowsDelivered) for tick in event.batch.ticks()]


def handle(client: Client, key: int) -> int:
    return client.session.subscriptions[key].handle


def test_subscribe_tells_where_it_started() -> None:
    """The application hears the start tick of every pubend."""
    client = Client()
    link = client.connect(Broker(7))
    key = client.session.subscribe("n > 0", name="orders", earliest=True)
    request = activate(client, link, 100)
    assert (request.filter, request.name, request.earliest, request.positions) == ("n > 0", "orders", True, {})
    assert client.events() == [SubscriptionActive(key, {PUBEND: 100})]


def test_a_delivery_seen_before_is_dropped_and_an_overlapping_one_clipped() -> None:
    """No duplicate reaches the application, whatever comes again."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    client.hear(link, Deliver(handle(client, key), PUBEND, 100, 110), rows(105, 110))
    client.hear(link, Deliver(handle(client, key), PUBEND, 100, 110), rows(105, 110))
    client.hear(link, Deliver(handle(client, key), PUBEND, 104, 120), rows(105, 110, 115))
    assert delivered(client) == [105, 110, 115]


def test_a_hole_makes_the_subscription_begin_again_from_its_position() -> None:
    """A broker that skips something is asked again, under a new handle, and late deliveries of the old one are ignored."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    old = handle(client, key)
    client.hear(link, Deliver(old, PUBEND, 105, 110), rows(110))
    sends = client.sent()
    assert [type(send.message) for send in sends] == [Unsubscribe, Subscribe]
    request = sends[1].message
    assert isinstance(request, Subscribe)
    assert request.positions == {PUBEND: 100}
    client.hear(link, Deliver(old, PUBEND, 100, 105), rows(103))
    assert delivered(client) == []


def test_a_broker_that_leaves_holes_for_ever_is_given_up() -> None:
    """The number of new beginnings is bounded."""
    client = Client(SessionConfig(holes_max=3))
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    for _ in range(3):
        client.hear(link, Deliver(handle(client, key), PUBEND, 105, 110), rows(110))
        activate(client, link, 100)
    with pytest.raises(ProtocolViolationError):
        client.hear(link, Deliver(handle(client, key), PUBEND, 105, 110), rows(110))


def test_after_a_reconnect_the_subscription_goes_on_where_it_was() -> None:
    """The client's position, also one reached in silence, is what it asks to go on from."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    client.hear(link, Deliver(handle(client, key), PUBEND, 100, 110), rows(105))
    client.hear(link, Advance(handle(client, key), {PUBEND: 150}))
    client.cut(link)
    link = client.connect(Broker(8))
    request = activate(client, link, 150)
    assert request.positions == {PUBEND: 150}
    client.hear(link, Deliver(request.handle, PUBEND, 150, 160), rows(155))
    assert delivered(client) == [105, 155]


def test_silence_is_acknowledged_once_every_delivered_message_is() -> None:
    """An advance is acknowledged by itself when nothing is left for the application to do."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    client.sent()
    number = handle(client, key)
    client.hear(link, Deliver(number, PUBEND, 100, 110), rows(105, 107))
    client.hear(link, Advance(number, {PUBEND: 120}))
    assert client.sent() == []
    client.session.acknowledge(key, PUBEND, 105)
    (send,) = client.sent()
    assert send.message == Acknowledge(number, {PUBEND: 105})
    assert client.session.positions(key) == {PUBEND: 105}
    client.session.acknowledge(key, PUBEND, 107)
    (send,) = client.sent()
    assert send.message == Acknowledge(number, {PUBEND: 120})
    client.hear(link, Advance(number, {PUBEND: 130}))
    assert client.session.positions(key) == {PUBEND: 130}


def test_an_acknowledgement_is_asked_to_be_confirmed_until_it_is() -> None:
    """The question goes out again after a reconnect; the answer ends it and is told as an event."""
    client = Client()
    link = client.connect(Broker(7))
    key = client.session.subscribe("n > 0", name="orders")
    activate(client, link, 100)
    client.hear(link, Deliver(handle(client, key), PUBEND, 100, 120), rows(110, 120))
    client.session.acknowledge(key, PUBEND, 110, confirm=True)
    assert [each.message for each in client.sent()] == [Acknowledge(handle(client, key), {PUBEND: 110}, confirm=True)]
    client.cut(link)
    link = client.connect(Broker(8))
    activate(client, link, 120)
    assert [each.message for each in client.sent()] == [Acknowledge(handle(client, key), {PUBEND: 110}, confirm=True)]
    assert not client.session.is_stored(key, {PUBEND: 110})
    client.events()
    client.hear(link, AcknowledgementStored(handle(client, key), {PUBEND: 110}))
    assert client.session.is_stored(key, {PUBEND: 110})
    assert client.events() == [told.PositionsStored(key, {PUBEND: 110})]
    client.session.acknowledge(key, PUBEND, 120)
    assert [each.message for each in client.sent()] == [Acknowledge(handle(client, key), {PUBEND: 120})]


def test_a_reader_that_asked_for_no_more_rows_says_so_again_after_a_reconnect() -> None:
    """The broker it came back to does not know that the subscription is closed for now."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    client.sent()
    client.session.flow(key, is_open=False)
    assert [send.message for send in client.sent()] == [Flow(handle(client, key), open=False)]
    client.cut(link)
    link = client.connect(Broker(7))
    request = activate(client, link, 100)
    assert Flow(request.handle, open=False) in [send.message for send in client.sent()]
    client.session.flow(key, is_open=True)
    assert [send.message for send in client.sent()] == [Flow(request.handle, open=True)]


def test_positions_kept_in_a_file_are_told_to_the_broker_only_when_they_are_there() -> None:
    """Else the broker might release what a new life of the client, going by its file, asks for."""
    client = Client()
    link = client.connect(Broker(7))
    key = client.session.subscribe("n > 0", saved=True)
    request = activate(client, link, 100)
    client.sent()
    client.hear(link, Deliver(request.handle, PUBEND, 100, 110), rows(105))
    client.session.acknowledge(key, PUBEND, 105)
    client.hear(link, Advance(request.handle, {PUBEND: 120}))
    assert client.sent() == []
    client.session.approve(key, {PUBEND: 110})
    assert [send.message for send in client.sent()] == [Acknowledge(request.handle, {PUBEND: 110})]
    assert client.session.positions(key) == {PUBEND: 120}


def test_saved_positions_are_asked_for() -> None:
    """A new life of the client goes on where the saved positions say."""
    client = Client()
    client.connect(Broker(7))
    client.session.subscribe("n > 0", positions={PUBEND: 77})
    (send,) = client.sent()
    assert isinstance(send.message, Subscribe)
    assert send.message.positions == {PUBEND: 77}


def test_a_gap_is_told_once_and_never_silent() -> None:
    """Released messages are reported with their range; also when only the start tells that something is missing."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    number = handle(client, key)
    client.hear(link, Gap(number, PUBEND, 100, 140))
    client.hear(link, Gap(number, PUBEND, 100, 140))
    client.hear(link, Deliver(number, PUBEND, 140, 150), rows(145))
    missed, received = client.events()
    assert missed == Missed(key, PUBEND, 100, 140)
    assert isinstance(received, RowsDelivered)
    client.cut(link)
    link = client.connect(Broker(7))
    activate(client, link, 200)
    assert Missed(key, PUBEND, 150, 200) in client.events()


def test_a_refused_subscription_fails_at_first_and_is_tried_again_later() -> None:
    """The application hears a first refusal; one on a reconnect is tried again while that may help."""
    client = Client()
    link = client.connect(Broker(7))
    key = client.session.subscribe("n >")
    (send,) = client.sent()
    client.session.refused(send.packet, error_of_code(201, "syntax"), link=link, now=0.0)
    (failed,) = client.events()
    assert isinstance(failed, SubscriptionFailed)
    assert isinstance(failed.error, FilterSyntaxError)
    assert key not in client.session.subscriptions

    key = subscribed(client, link)
    client.cut(link)
    link = client.connect(Broker(7))
    (send,) = client.sent()
    busy = type("Busy", (OverlayError,), {"retryable": True})("busy")
    client.session.refused(send.packet, busy, link=link, now=1.0)
    assert client.events() == []
    deadline = client.session.deadline()
    assert deadline is not None
    client.session.wake(now=deadline)
    (send,) = client.sent()
    assert isinstance(send.message, Subscribe)


def test_unsubscribe_acknowledges_first_and_ends() -> None:
    """What was acknowledged travels before the end; nothing is delivered after it."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    client.sent()
    number = handle(client, key)
    client.hear(link, Deliver(number, PUBEND, 100, 110), rows(105))
    client.session.acknowledge(key, PUBEND, 105)
    client.session.unsubscribe(key, forget=True)
    client.hear(link, Deliver(number, PUBEND, 110, 120), rows(115))
    assert [send.message for send in client.sent()] == [Acknowledge(number, {PUBEND: 110}), Unsubscribe(number, True)]
    assert delivered(client) == [105]
    client.hear(link, Unsubscribed(number))
    assert client.events() == [SubscriptionEnded(key)]


def ask_to_delete(client: Client, link: int) -> tuple[int, int, int]:
    """Let a client delete a durable subscription; return its key and handle, and the packet that asks for it."""
    key = client.session.subscribe("x > 1", name="orders")
    number = handle(client, key)
    client.hear(link, Subscribed(number, {PUBEND: 100}))
    client.events()
    client.sent()
    client.session.unsubscribe(key, forget=True)
    (send,) = client.sent()
    assert send.message == Unsubscribe(number, True)
    return key, number, send.packet


def ended(client: Client, key: int) -> PostroadError | None:
    (event,) = client.events()
    assert isinstance(event, SubscriptionEnded)
    assert event.subscription == key
    assert key not in client.session.subscriptions
    return event.error


def test_a_deletion_is_confirmed_by_the_answer_to_it() -> None:
    """Another `Unsubscribed` says only that this broker stopped being the home."""
    client = Client()
    link = client.connect(Broker(7))
    key, number, packet = ask_to_delete(client, link)
    client.hear(link, Unsubscribed(number), packet=packet)
    assert ended(client, key) is None
    key, number, packet = ask_to_delete(client, link)
    client.hear(link, Unsubscribed(number))
    assert isinstance(ended(client, key), UnfinishedError)


def test_a_deletion_that_is_refused_is_told() -> None:
    """The application does not take a subscription for deleted that goes on to hold the logs."""
    client = Client()
    link = client.connect(Broker(7))
    key, _, packet = ask_to_delete(client, link)
    error = DurableElsewhereError("its home does not answer")
    client.session.refused(packet, error, link=link, now=1.0)
    assert ended(client, key) is error


def test_a_deletion_with_a_refused_subscription_is_told() -> None:
    """The subscription was on its way to a new broker, which could not take it."""
    client = Client()
    link = client.connect(Broker(7))
    key = client.session.subscribe("x > 1", name="orders")
    (asked,) = client.sent()
    client.session.unsubscribe(key, forget=True)
    (send,) = client.sent()
    error = DurableElsewhereError("its home does not answer")
    client.session.refused(asked.packet, error, link=link, now=1.0)
    client.session.refused(send.packet, UnknownHandleError("no subscription 1 on this connection"), link=link, now=1.0)
    assert ended(client, key) is error


@pytest.mark.parametrize("waits", [True, False])
def test_a_deletion_without_a_broker_is_told(waits: bool) -> None:
    """The connection is lost before the answer comes, or the subscription waits for its next try."""
    client = Client()
    link = client.connect(Broker(7))
    if waits:
        key = client.session.subscribe("x > 1", name="orders")
        client.hear(link, Subscribed(handle(client, key), {PUBEND: 100}))
        client.hear(link, Unsubscribed(handle(client, key)))
        client.events()
        client.session.unsubscribe(key, forget=True)
    else:
        key, _, _ = ask_to_delete(client, link)
        client.session.disconnected(link, now=1.0)
    assert isinstance(ended(client, key), UnfinishedError)


def test_an_end_that_is_refused_is_an_end() -> None:
    """A subscription that its broker does not know is over."""
    client = Client()
    link = client.connect(Broker(7))
    key = subscribed(client, link)
    client.events()
    client.sent()
    client.session.unsubscribe(key)
    (send,) = client.sent()
    client.session.refused(send.packet, UnknownHandleError("no subscription 1 on this connection"), link=link, now=1.0)
    assert ended(client, key) is None


def test_a_broker_with_an_impossible_clock_is_not_believed() -> None:
    """Ids have 48 bits for milliseconds: a clock beyond them is a broken packet, not a broken application."""
    with pytest.raises(MalformedPacketError):
        over_the_wire(Send(1, PublishAcknowledged(1, 5, 1 << 48)))
    assert over_the_wire(Send(1, PublishAcknowledged(1, 5, WALL_MS))).message == PublishAcknowledged(1, 5, WALL_MS)
