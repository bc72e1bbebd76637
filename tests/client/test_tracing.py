"""Traces and explanations through a client: brokers in this process, and a broker played by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import postroad
from postroad.client.tracing import BUSY_TRIES, Tracer
from postroad.core.session.events import QuestionAnswered, QuestionFailed
from postroad.core.session.machine import QUESTIONS_MAX, Session
from postroad.errors import ClosedError, NotConnectedError, OverlayError, ProtocolViolationError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, Overlay, Storage, Tracking
from postroad.testing import free_ports
from postroad.tracking.queries.explanation import Verdict
from postroad.tracking.queries.packets import AskTracks, TracksAnswered
from postroad.tracking.queries.questions import (
    MapAnswer,
    MapQuestion,
    Question,
    Status,
    TracksAnswer,
    TracksQuestion,
)
from postroad.types import MessageId

ID = MessageId.make(5, 1, 1_790_000_000_000)


def run(tmp_path: Path, scenario: Callable[[BrokerServer], Awaitable[None]], **changes: object) -> None:
    """Run a scenario with one broker on this event loop."""

    async def whole() -> None:
        config = NodeConfig(
            id=1,
            data_dir=str(tmp_path / "1"),
            listen=f"127.0.0.1:{free_ports(1)[0]}",
            overlay=Overlay(silence_s=0.1),
            **changes,  # type: ignore[arg-type]  # a test's own choice of keys
        )
        node = BrokerServer(config)
        await node.start()
        try:
            async with asyncio.timeout(60):
                await scenario(node)
        finally:
            await node.stop()

    asyncio.run(whole())


# --- the session ----------------------------------------------------------------------------------------------------------


def connected() -> Session:
    session = Session()
    session.clock(1000)
    session.connected(1, 7, now=0.0)
    session.outputs()
    return session


def test_a_question_is_answered_under_its_number() -> None:
    """And the same answer again means nothing."""
    session = connected()
    number = session.ask(AskTracks(9, MapQuestion()))
    assert number is not None
    (send,) = session.outputs()
    assert (send.message, send.packet) == (AskTracks(9, MapQuestion()), number)
    answer = TracksAnswered(9, Status.BUSY)
    for _ in range(2):
        session.receive(answer, link=1, now=0.0, packet=number)
    assert session.events() == [QuestionAnswered(number, answer)]


def test_questions_end_with_the_connection_and_with_a_refusal() -> None:
    """Nobody waits for an answer that cannot come."""
    session = connected()
    first, second = session.ask(AskTracks(9, MapQuestion())), session.ask(AskTracks(8, MapQuestion()))
    assert first is not None
    refusal = OverlayError("no")
    session.refused(first, refusal, link=1, now=0.0)
    assert session.events() == [QuestionFailed(first, refusal)]
    session.disconnected(1, now=0.0)
    (failed,) = [event for event in session.events() if isinstance(event, QuestionFailed)]
    assert failed.question == second
    assert isinstance(failed.error, NotConnectedError)
    assert session.ask(AskTracks(9, MapQuestion())) is None


def test_questions_under_way_are_bounded() -> None:
    """As many as a broker takes of one client."""
    session = connected()
    numbers = [session.ask(AskTracks(9, MapQuestion())) for _ in range(QUESTIONS_MAX + 3)]
    assert [number is None for number in numbers].count(True) == 3


# --- the tracer -----------------------------------------------------------------------------------------------------------


class Played:
    """Brokers played by hand: what each answers, in order."""

    def __init__(self, answers: dict[int, list[TracksAnswered]]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, Question]] = []

    async def ask(self, broker: int, question: Question) -> TracksAnswered:
        self.asked.append((broker, question))
        if isinstance(question, MapQuestion):
            return TracksAnswered(broker, Status.ANSWERED, "", MapAnswer({1: []}, ID.milliseconds))
        return self.answers[broker].pop(0)


def tracks(answered: int, after: str = "") -> TracksAnswered:
    return TracksAnswered(1, Status.ANSWERED, "", TracksAnswer(answered, after, 0, 0, [], [], [], []))


def test_a_busy_broker_is_asked_again() -> None:
    """After a pause, some times; then it counts as not asked."""
    busy = TracksAnswered(1, Status.BUSY, "too much")
    played = Played({1: [busy, busy, tracks(1)]})
    (trace,) = asyncio.run(Tracer(played.ask, 1).trace_many([ID]))
    assert trace.complete
    played = Played({1: [busy] * (BUSY_TRIES + 1)})
    (trace,) = asyncio.run(Tracer(played.ask, 1).trace_many([ID]))
    assert [each.status for each in trace.unasked] == [Status.BUSY]


def test_an_answer_that_never_comes_to_an_end_is_given_up() -> None:
    """A broker that always says "there is more" and never gets further is not asked for ever."""
    played = Played({1: [tracks(0, "a"), tracks(0, "a")]})
    (trace,) = asyncio.run(Tracer(played.ask, 1).trace_many([ID]))
    assert len(played.asked) == 3
    assert trace.id == ID


def test_more_ids_than_fit_into_a_question_are_asked_one_after_the_other() -> None:
    """Two thousand of one broker are two questions."""
    ids = [MessageId.make(5, 1, ID.milliseconds + n) for n in range(2000)]
    played = Played({1: [tracks(1024), tracks(976)]})
    traces = asyncio.run(Tracer(played.ask, 1).trace_many(ids))
    assert [trace.id for trace in traces] == ids
    questions = [question for _, question in played.asked if isinstance(question, TracksQuestion)]
    assert [len(question.ids) // 16 for question in questions] == [1024, 976]


def test_a_broker_that_does_not_know_the_map_is_a_protocol_violation() -> None:
    """An older broker would say so by an error."""

    async def ask(broker: int, question: Question) -> TracksAnswered:
        del question
        return TracksAnswered(broker, Status.FAILED, "what map?")

    with pytest.raises(ProtocolViolationError, match="what map"):
        asyncio.run(Tracer(ask, 1).trace_many([ID]))


# --- a real broker --------------------------------------------------------------------------------------------------------


def test_a_gap_is_explained(tmp_path: Path) -> None:
    """Retention passed while the subscriber was away, and it was told; the log has the message no more."""
    ids: list[MessageId] = []
    small = Storage(segment_bytes=1024, retention_bytes=4096)

    async def before(node: BrokerServer) -> None:
        async with postroad.connect(node.url) as client:
            subscription = await client.subscribe(name="late")
            await subscription.close()
            publisher = client.publisher()
            for n in range(200):
                ids.append(await publisher.publish({"n": n}, bytes(100)))
                if n % 10 == 0:
                    await publisher.flush()

    async def after(node: BrokerServer) -> None:
        async with postroad.connect(node.url) as client:
            again = await client.subscribe(name="late", on_gap="skip")
            got = await anext(again)
            assert got.id in ids[1:]
            found = await client.explain(ids[ids.index(got.id) // 2], "late")
            assert (found.verdict, found.broker) == (Verdict.GAP, 1)
            assert found.attributes is None
            assert (await client.explain(got.id, "late")).verdict is Verdict.DELIVERED
            assert (await client.trace(ids[0])).published == 0.0

    run(tmp_path, before, storage=small)
    run(tmp_path, after, storage=small)


def test_a_broker_without_tracks_says_so_and_explains_from_its_log(tmp_path: Path) -> None:
    """Tracking is off: nothing is known of deliveries."""

    async def scenario(node: BrokerServer) -> None:
        async with postroad.connect(node.url) as client:
            publisher = client.publisher()
            message_id = await publisher.publish({"n": 0})
            await publisher.flush()
            trace = await client.trace(message_id)
            assert [(each.broker, each.status) for each in trace.unasked] == [(1, Status.OFF)]
            found = await client.explain(message_id, "somebody")
            assert found.verdict is Verdict.UNKNOWN
            assert found.attributes == {"n": 0}

    run(tmp_path, scenario, tracking=Tracking(strategy="null"))


def test_after_a_restart_what_was_traced_before_is_found_in_the_files(tmp_path: Path) -> None:
    """In good order: no hole, and the subscriber of then is known."""
    ids: list[MessageId] = []

    async def before(node: BrokerServer) -> None:
        async with postroad.connect(node.url) as client:
            subscription = await client.subscribe("n > 2", name="reader")
            publisher = client.publisher()
            ids.extend([await publisher.publish({"n": n}) for n in range(5)])
            for _ in range(2):
                await anext(subscription)
            await subscription.ack()

    async def after(node: BrokerServer) -> None:
        async with postroad.connect(node.url) as client:
            traces = await client.trace_many(ids)
            assert [[r.subscriber for r in trace.subscribers] for trace in traces] == [[], [], [], ["reader"], ["reader"]]
            assert all(trace.complete for trace in traces)
            assert (await client.explain(ids[1], "reader")).verdict is Verdict.FILTERED

    run(tmp_path, before)
    run(tmp_path, after)


def test_a_message_is_explained_while_many_are_published(tmp_path: Path) -> None:
    """The log is searched from a little before the message's timestamp on, past other publishers' messages."""

    async def scenario(node: BrokerServer) -> None:
        async with postroad.connect(node.url) as client:
            publishers = [client.publisher() for _ in range(3)]
            for publisher in publishers:
                await publisher.publish_many([({"n": n}, bytes(500)) for n in range(2000)])
            wanted = await publishers[1].publish({"n": -1, "blob": b"\0\1"}, b"this one")
            for publisher in publishers:
                await publisher.publish_many([({"n": n}, bytes(500)) for n in range(2000)])
                await publisher.flush()
            begun = time.perf_counter()
            found = await client.explain(wanted, "nobody")
            assert time.perf_counter() - begun < 5.0
            assert found.attributes == {"n": -1, "blob": b"\0\1"}
            assert found.tick is not None

    run(tmp_path, scenario)


def test_asking_needs_an_open_client(tmp_path: Path) -> None:
    """Before and after it is a clear error."""

    async def scenario(node: BrokerServer) -> None:
        client = postroad.connect(node.url)
        with pytest.raises(ClosedError):
            await client.trace(ID)
        async with client:
            trace = await client.trace(ID)
            assert "in the past" not in trace.problem
        with pytest.raises(ClosedError):
            await client.trace(ID)

    run(tmp_path, scenario)


def test_a_connection_that_is_lost_ends_the_waiting(tmp_path: Path) -> None:
    """The caller hears of it at once and may try again."""

    async def scenario(node: BrokerServer) -> None:
        async with postroad.connect(node.url) as client:
            asked = asyncio.create_task(client.trace(ID))
            await asyncio.sleep(0)
            for peer in list(node.peers.values()):
                peer.channel.abort()
            with pytest.raises(NotConnectedError):
                await asked

    run(tmp_path, scenario)
