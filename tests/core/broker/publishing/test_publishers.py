"""The broker's side of publishing: who may publish, what is taken, and when it is acknowledged.

One broker and its publishers; `test_pubend.py` is about the stream that the messages go to, `test_skew.py` about wrong clocks.
"""

from __future__ import annotations

from tests.core.broker.machines import Log, Machine
from tests.core.broker.overlay import Overlay, Publisher

from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.orders import ClientUp, Send
from postroad.core.protocol.packets import OpenPublisher, Publish, PublisherOpened, pubend_id
from postroad.errors import InvalidValueError, SkewError, StorageFullError, UnknownHandleError
from postroad.types import MessageId

HERE = 1


def one_broker() -> Overlay:
    return Overlay.line(HERE)


def refusals(publisher: Publisher) -> list[type[Exception]]:
    return [type(error) for error in publisher.refusals]


# --- identity ---


def test_each_publisher_has_a_number_of_its_own() -> None:
    """It is part of every message id, so no two publishers of a broker may ever share one."""
    overlay = one_broker()
    numbers = [overlay.publisher(at=HERE).number for _ in range(20)]
    assert len(set(numbers)) == 20


def test_a_number_is_reserved_on_disk_before_it_is_given_out() -> None:
    """Else a crash could give it to somebody else."""
    overlay = one_broker()
    overlay.writes_finish = False
    overlay.crash(HERE)
    overlay.restart(HERE)
    publisher = Publisher(overlay, HERE, wait=False)
    overlay.run(1.0)
    assert publisher.number is None
    overlay.writes_finish = True
    overlay.finish_writes()
    overlay.until(lambda: publisher.number is not None)


def test_numbers_do_not_come_back_after_a_crash() -> None:
    """A new life of the broker begins above all that were reserved."""
    overlay = one_broker()
    before = {overlay.publisher(at=HERE).number for _ in range(5)}
    overlay.crash(HERE)
    overlay.restart(HERE)
    after = {overlay.publisher(at=HERE).number for _ in range(5)}
    assert before.isdisjoint(after)


def test_a_publisher_may_go_on_with_its_number() -> None:
    """It is told up to where its messages are durable, so that it knows what to send again."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    publisher.publish("a")
    number, durable, publisher.durable = publisher.number, publisher.durable, 0
    publisher.disconnect()
    publisher.reconnect()
    assert (publisher.number, publisher.durable) == (number, durable)


def test_a_number_that_was_never_given_out_is_refused() -> None:
    """A client cannot choose one."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    publisher.send(OpenPublisher(resume=1 << 30))
    assert refusals(publisher) == [UnknownHandleError]


def test_a_publisher_is_heard_on_the_connection_where_it_is_open() -> None:
    """Another client cannot publish in its name."""
    overlay = one_broker()
    publisher, other = overlay.publisher(at=HERE), overlay.publisher(at=HERE)
    assert publisher.number is not None
    message_id = MessageId.make(publisher.number, HERE, overlay.wall_ms)
    other.send(Publish(publisher.number, [(bytes(message_id), {}, b"forged")]))
    assert refusals(other) == [UnknownHandleError]
    assert overlay.logged(HERE) == []


def test_nobody_else_may_resume_the_number_of_a_client() -> None:
    """Whoever could would have messages acknowledged that were never taken. This holds while the client is away, too."""
    overlay = one_broker()
    publisher, other = overlay.publisher(at=HERE), overlay.publisher(at=HERE)
    broker = overlay.nodes[HERE].broker
    broker.fact(ClientUp(publisher.link, "owner"), now=overlay.now)
    publisher.open()
    broker.fact(ClientUp(other.link, "thief"), now=overlay.now)
    other.send(OpenPublisher(resume=publisher.number))
    publisher.publish("mine")
    publisher.disconnect()
    other.send(OpenPublisher(resume=publisher.number))
    assert refusals(other) == [UnknownHandleError, UnknownHandleError]
    assert overlay.logged(HERE) == ["mine"]


def test_a_connection_is_told_when_another_one_resumes_its_publisher() -> None:
    """Its client may be alive: a broker may have closed the connection at its end only. It opens the publisher again."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    other = Publisher(overlay, HERE, wait=False)
    other.send(OpenPublisher(resume=publisher.number))
    (told,) = publisher.refused
    assert (told.publisher, told.first, told.last) == (publisher.number, b"", b"")
    publisher.open()
    publisher.publish("again")
    assert overlay.logged(HERE) == ["again"]


def test_publishers_are_spread_over_the_pubends_of_a_broker() -> None:
    """Each publisher belongs to one of them, which keeps its messages in order."""
    overlay = Overlay()
    pubends = {pubend_id(HERE, index): Log() for index in range(4)}
    overlay.start(HERE, logs=pubends)
    overlay.run(0.2)
    publishers = [overlay.publisher(at=HERE) for _ in range(8)]
    assert sorted(publisher.pubend for publisher in publishers) == sorted([*pubends, *pubends])


# --- what is taken ---


def test_an_acknowledgement_says_that_all_up_to_there_is_durable() -> None:
    """Nothing is acknowledged while it is being written."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    overlay.writes_finish = False
    publisher.publish("a", "b")
    publisher.publish("c")
    assert publisher.acknowledged == []
    overlay.writes_finish = True
    overlay.finish_writes()
    assert publisher.acknowledged == overlay.logged(HERE) == ["a", "b", "c"]


def test_what_arrives_during_a_write_goes_into_one_append() -> None:
    """Group commit: the number of writes depends on the disk, not on the number of frames."""
    overlay = one_broker()
    publishers = [overlay.publisher(at=HERE) for _ in range(10)]
    overlay.writes_finish = False
    for publisher in publishers:
        publisher.publish(f"of {publisher.number}")
    assert len(overlay.nodes[HERE].unfinished_appends) == 1
    overlay.finish_writes()
    assert len(overlay.nodes[HERE].unfinished_appends) == 1
    overlay.writes_finish = True
    overlay.finish_writes()
    assert len(overlay.logged(HERE)) == 10


def test_the_broker_says_how_much_waits_for_the_disk() -> None:
    """Rows count until they are durable."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    overlay.writes_finish = False
    publisher.publish("a", "b")
    publisher.publish("c")
    assert overlay.nodes[HERE].broker.stats()["backlog_rows"] == 3
    overlay.writes_finish = True
    overlay.finish_writes()
    assert overlay.nodes[HERE].broker.stats()["backlog_rows"] == 0


def test_what_comes_again_is_acknowledged_again_and_taken_once() -> None:
    """A publisher that missed an acknowledgement sends everything again."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    publisher.publish("a", "b")
    publisher.durable = 0
    publisher.send_again("a", "b")
    assert publisher.acknowledged == overlay.logged(HERE) == ["a", "b"]


def test_what_comes_again_while_it_is_being_written_is_taken_once() -> None:
    """What waits for the disk is known already."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    overlay.writes_finish = False
    publisher.publish("a")
    publisher.disconnect()
    publisher.reconnect()
    publisher.send_again("a")
    overlay.writes_finish = True
    overlay.finish_writes()
    assert publisher.acknowledged == overlay.logged(HERE) == ["a"]


def test_a_message_that_was_released_is_recognised_when_it_comes_again() -> None:
    """The log is gone, the memory of its publishers is not, also after a crash."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    publisher.publish("a")
    overlay.run(3.0)
    assert overlay.logged(HERE) == []
    overlay.crash(HERE)
    overlay.restart(HERE)
    publisher.reconnect()
    publisher.send_again("a")
    overlay.run(0.1)
    assert overlay.logged(HERE) == []
    assert publisher.acknowledged == ["a"]


# --- what is refused ---


def test_a_row_that_breaks_a_rule_is_refused_and_the_others_are_taken() -> None:
    """Here an id names another broker."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    assert publisher.number is not None
    good = MessageId.make(publisher.number, HERE, overlay.wall_ms, 0)
    bad = MessageId.make(publisher.number, HERE + 1, overlay.wall_ms, 1)
    publisher.send(Publish(publisher.number, [(bytes(good), {}, b"good"), (bytes(bad), {}, b"bad")]))
    assert [(each.first, each.code) for each in publisher.refused] == [(bytes(bad), InvalidValueError.code)]
    assert overlay.logged(HERE) == ["good"]


def test_what_the_disk_does_not_take_is_refused_with_all_that_waits_behind_it() -> None:
    """The publisher keeps the order: it may send everything again, in the order it had."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    overlay.fail_appends(HERE, StorageFullError("the log", "the disk is full"))
    overlay.writes_finish = False
    publisher.publish("first")
    publisher.publish("second")
    overlay.writes_finish = True
    overlay.finish_writes()
    assert [each.code for each in publisher.refused] == [StorageFullError.code] * 2
    overlay.fail_appends(HERE, None)
    publisher.send_again("first", "second")
    assert overlay.logged(HERE) == ["first", "second"]


def test_after_a_refusal_for_its_clock_a_publisher_must_be_opened_again() -> None:
    """A later message would make the refused one look like a repetition."""
    overlay = one_broker()
    publisher = overlay.publisher(at=HERE)
    publisher.publish("from the future", at_ms=overlay.wall_ms + 3_600_000)
    publisher.publish("in time")
    assert [each.code for each in publisher.refused] == [SkewError.code] * 2
    assert overlay.logged(HERE) == []
    publisher.open()
    publisher.publish("after opening")
    assert overlay.logged(HERE) == ["after opening"]


# --- several pubends ---


def overlay_with_pubends(spread_over: int, former: Machine | None = None) -> Overlay:
    """Return one broker that has three logs on its disk and spreads new publishers over some of them."""
    overlay = Overlay(BrokerConfig(pubends=spread_over))
    if former is None:
        overlay.start(HERE, logs={pubend_id(HERE, index): Log() for index in range(3)})
    else:
        overlay.start(HERE, former.metadata, incarnation=2, logs=former.logs)
    overlay.run(0.2)
    return overlay


def test_publishers_are_spread_over_the_configured_pubends() -> None:
    """New ones get the first two of three, in turn; the third log only stays readable."""
    overlay = overlay_with_pubends(2)
    for number in range(6):
        overlay.publisher(at=HERE).publish(f"m{number}")
        overlay.run(0.1)
    assert [bool(log.batches) for log in overlay.nodes[HERE].logs.values()] == [True, True, False]


def test_a_publisher_keeps_its_pubend_when_their_number_changes() -> None:
    """What it sends again is recognised, though a new publisher with its number would get another log."""
    before = overlay_with_pubends(1)
    numbers = []
    for _ in range(3):
        publisher = before.publisher(at=HERE)
        publisher.publish("doubtful")
        before.run(0.1)
        numbers.append(publisher.number)
    after = overlay_with_pubends(3, before.nodes[HERE])
    broker = after.nodes[HERE].broker
    broker.fact(ClientUp(1, "writer"), now=after.now)
    for number in numbers:
        broker.receive(OpenPublisher(number), link=1, now=after.now, packet=1)
    sent = [order.message for order in broker.outputs() if isinstance(order, Send)]
    opened = [message for message in sent if isinstance(message, PublisherOpened)]
    assert [message.pubend for message in opened] == [pubend_id(HERE)] * 3
    assert all(message.last for message in opened)
