"""Traces in the simulator: real brokers and clients, faults, and the truth to compare with."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from postroad.core.protocol.packets import pubend_id
from postroad.sim.clients import ClientNode
from postroad.sim.history import Logged, Relayed, Sent
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import between, everything
from postroad.sim.traces import ask_all, trace_many
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.queries.questions import (
    CoverageAnswer,
    CoverageQuestion,
    MapAnswer,
    MapQuestion,
    MessageAnswer,
    MessageQuestion,
    Status,
    TracksAnswer,
    TracksQuestion,
)
from postroad.tracking.queries.reconstruction import Trace
from postroad.tracking.tap.tracing import ASKED_BY_ONE_MAX, PATIENCE_S
from postroad.tracking.tap.tracked_broker import TrackedConfig
from postroad.types import MessageId

QUICK = TrackingSettings(strategy=Strategy.EXACT, persistence_ms=1000)


def overlay_of(seed: int, *links: tuple[int, int], tracking: TrackingSettings = QUICK) -> Overlay:
    """Join brokers by these links."""
    made = Overlay(seed, config=TrackedConfig(tracking=tracking))
    made.brokers(*sorted({broker for link in links for broker in link}))
    for a, b in links:
        made.link(a, b)
    return made


def publish(overlay: Overlay, client: ClientNode, count: int, begin: float, step: float = 0.05) -> None:
    for number in range(count):
        overlay.at(begin + number * step, lambda n=number: client.publish({"n": n}, b"x"))  # type: ignore[misc]


def logged(overlay: Overlay) -> list[MessageId]:
    return [MessageId.from_bytes(event.id) for event in overlay.history if isinstance(event, Logged)]


def sent(overlay: Overlay) -> dict[bytes, set[tuple[int, str]]]:
    """Return, for each message, the (broker, subscriber) pairs that it was sent to."""
    found: dict[bytes, set[tuple[int, str]]] = {}
    for event in overlay.history:
        if isinstance(event, Sent):
            for each in event.ids:
                found.setdefault(each, set()).add((event.broker, event.subscriber))
    return found


def relayed(overlay: Overlay) -> dict[bytes, set[tuple[int, int]]]:
    """Return, for each message, the (broker, upstream neighbour) pairs by which it came."""
    found: dict[bytes, set[tuple[int, int]]] = {}
    for event in overlay.history:
        if isinstance(event, Relayed):
            for each in event.ids:
                found.setdefault(each, set()).add((event.broker, event.upstream))
    return found


def names_of(trace: Trace) -> set[tuple[int, str]]:
    """Return the (broker, subscriber) pairs of a trace; those without a name by their client's, as the history has them."""
    return {
        (each.broker, "@" + each.subscriber.partition("@")[2] if each.subscriber.startswith("~") else each.subscriber)
        for each in trace.subscribers
        if not each.isolated
    }


@pytest.fixture(scope="module")
def tree() -> Overlay:
    """Seven brokers in a tree; subscribers at three of them want different things."""
    made = overlay_of(1, (1, 2), (1, 3), (2, 4), (2, 5), (3, 6), (3, 7))
    low, every = made.filter(between("n", 0, 9)), made.filter(everything())
    made.client("reader", 4).follow(every, subscription="a", name="all")
    made.client("picky", 7).follow(low, subscription="b")
    made.client("near", 1).follow(low, subscription="c", name="near")
    made.client("asker", 6)
    publish(made, made.client("writer", 1), 20, begin=2.0)
    made.run(4.0)
    assert made.settle()
    return made


def test_a_trace_is_what_happened(tree: Overlay) -> None:
    """Every message, in one call: brokers, edges, subscribers; and nothing else."""
    ids = logged(tree)
    assert len(ids) == 20
    for trace in trace_many(tree, tree.clients["asker"], 6, ids):
        key = bytes(trace.id)
        assert trace.published == 0.0
        assert {(v.broker, v.upstream) for v in trace.brokers} == {(1, None), *relayed(tree).get(key, set())}
        assert names_of(trace) == sent(tree).get(key, set())
        assert not any(visit.isolated for visit in trace.brokers)
        assert not any(receipt.isolated for receipt in trace.subscribers)
        assert trace.complete


def test_the_last_messages_are_traced_before_anything_is_written(tree: Overlay) -> None:
    """A question knows all that was tracked before it, on disk or not."""
    writer = tree.clients["writer"]
    tree.at(tree.world.now, lambda: writer.publish({"n": 99}, b"fresh"))
    tree.run(tree.world.now + 0.3)
    (trace,) = trace_many(tree, tree.clients["asker"], 6, logged(tree)[-1:])
    assert names_of(trace) == {(4, "all")}


def test_the_log_tells_a_message_by_its_id(tree: Overlay) -> None:
    """With its tick, attributes and payload; and that it has none of an id that was never published."""
    asker, wanted = tree.clients["asker"], logged(tree)[3]
    answer = ask_all(tree, asker, {1: MessageQuestion(bytes(wanted))})[1].answer
    assert isinstance(answer, MessageAnswer)
    assert answer.row is not None
    assert (answer.row[1], answer.row[2]) == ({"n": 3}, b"x")
    assert answer.tick > 0
    never = MessageId(wanted.publisher, 1, wanted.tick + 1)  # type: ignore[arg-type]  # a tick
    answer = ask_all(tree, asker, {1: MessageQuestion(bytes(never))})[1].answer
    assert isinstance(answer, MessageAnswer)
    assert answer.row is None
    assert ask_all(tree, asker, {2: MessageQuestion(bytes(wanted))})[2].status is Status.FAILED


def test_coverage_is_told_up_to_now(tree: Overlay) -> None:
    """Not only up to the last flush: the broker notes how far the subscriber is when it is asked."""
    asker = tree.clients["asker"]
    tree.run(tree.world.now + 0.5)
    tick = tree.node(1).disk.logs[pubend_id(1)].last_tick
    answer = ask_all(tree, asker, {4: CoverageQuestion("all", pubend_id(1), tick)})[4].answer
    assert isinstance(answer, CoverageAnswer)
    assert [span.filter for span in answer.spans] == [tree.clients["reader"].following[0].filter]
    answer = ask_all(tree, asker, {7: CoverageQuestion("all", pubend_id(1), tick)})[7].answer
    assert isinstance(answer, CoverageAnswer)
    assert (answer.spans, answer.before, answer.after) == ([], None, None)


def test_the_map_names_every_broker_with_its_links(tree: Overlay) -> None:
    """As the client's own broker knows them."""
    answer = ask_all(tree, tree.clients["asker"], {6: MapQuestion()})[6].answer
    assert isinstance(answer, MapAnswer)
    assert {b: sorted(near or ()) for b, near in answer.brokers.items()} == {
        1: [2, 3],
        2: [1, 4, 5],
        3: [1, 6, 7],
        4: [2],
        5: [2],
        6: [3],
        7: [3],
    }


def test_a_broker_that_is_down_is_reported_and_searched_behind() -> None:
    """Broker 2 stands in the middle of the path, and broker 4 behind it is reached over another way."""
    overlay = overlay_of(2, (1, 2), (2, 4), (1, 3), (3, 5), (5, 4))
    overlay.client("reader", 4).follow(overlay.filter(everything()), subscription="a", name="all")
    asker = overlay.client("asker", 1)
    publish(overlay, overlay.client("writer", 1), 5, begin=2.0)
    overlay.run(5.0)
    assert relayed(overlay)[bytes(logged(overlay)[0])] == {(2, 1), (4, 2)}
    overlay.node(2).crash()
    overlay.run(8.0)
    before = overlay.world.now
    traces = trace_many(overlay, asker, 1, logged(overlay))
    assert overlay.world.now - before < 1.0, "no way is known at once, not after a while"
    for trace in traces:
        assert [(u.broker, u.status) for u in trace.unasked] == [(2, Status.UNREACHABLE)]
        assert names_of(trace) == {(4, "all")}
        assert [(v.broker, v.upstream) for v in trace.brokers] == [(1, None), (4, 2)]


def test_a_crash_window_is_a_hole_in_the_answer_and_searched_behind() -> None:
    """What broker 2 had not written when it fell is gone, and it says so."""
    overlay = overlay_of(3, (1, 2), (2, 3), tracking=replace(QUICK, persistence_ms=60_000))
    overlay.client("reader", 3).follow(overlay.filter(everything()), subscription="a", name="all")
    asker = overlay.client("asker", 1)
    publish(overlay, overlay.client("writer", 1), 5, begin=2.0)
    overlay.run(3.0)
    overlay.node(2).crash()
    overlay.run(4.0)
    overlay.node(2).start()
    overlay.run(6.0)
    (trace,) = trace_many(overlay, asker, 1, logged(overlay)[:1])
    assert [(hole.broker, hole.kind) for hole in trace.holes] == [(2, "crash")]
    assert 2 not in [visit.broker for visit in trace.brokers]
    assert names_of(trace) == {(3, "all")}
    assert [(v.broker, v.upstream, v.isolated) for v in trace.brokers] == [(1, None, False), (3, 2, False)]


def test_a_broker_that_does_not_answer_is_given_up_after_a_while() -> None:
    """It is linked, and hangs."""
    overlay = overlay_of(4, (1, 2), (2, 3))
    asker = overlay.client("asker", 1)
    overlay.run(2.0)
    overlay.node(3).pause(60.0)
    before = overlay.world.now
    answered = ask_all(overlay, asker, {3: TracksQuestion(bytes(MessageId.make(1, 3, 5)))})[3]
    assert answered.status in {Status.SILENT, Status.UNREACHABLE}
    assert overlay.world.now - before < PATIENCE_S + 1.0


def test_a_route_that_goes_away_ends_the_waiting() -> None:
    """The answer is there as soon as the route is known to be gone."""
    overlay = overlay_of(5, (1, 2), (2, 3))
    asker = overlay.client("asker", 1)
    overlay.run(2.0)
    overlay.node(3).pause(60.0)
    number = asker.ask(3, TracksQuestion(bytes(MessageId.make(1, 3, 5))))
    assert number is not None
    overlay.at(2.1, overlay.node(2).crash)
    overlay.run(4.0)
    answer = asker.answers.pop(number)
    assert getattr(answer, "status", None) is Status.UNREACHABLE


def test_an_unknown_broker_is_told_apart_from_one_that_is_away() -> None:
    """A typing error in an id is not a broker that is down."""
    overlay = overlay_of(6, (1, 2))
    asker = overlay.client("asker", 1)
    overlay.run(2.0)
    assert ask_all(overlay, asker, {99: MapQuestion()})[99].status is Status.UNKNOWN
    (trace,) = trace_many(overlay, asker, 1, [MessageId.make(1, 99, 1_800_000_000_000)])
    assert "broker 99" in trace.problem


def test_a_broker_without_tracks_says_so() -> None:
    """Tracking may be off at some brokers; the search goes on behind them."""
    overlay = Overlay(7, config=TrackedConfig(tracking=QUICK))
    overlay.broker(1)
    overlay.broker(2, config=TrackedConfig())
    overlay.broker(3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("reader", 3).follow(overlay.filter(everything()), subscription="a", name="all")
    asker = overlay.client("asker", 1)
    publish(overlay, overlay.client("writer", 1), 3, begin=2.0)
    overlay.run(5.0)
    (trace,) = trace_many(overlay, asker, 1, logged(overlay)[:1])
    assert [(u.broker, u.status) for u in trace.unasked] == [(2, Status.OFF)]
    assert names_of(trace) == {(3, "all")}


def test_questions_beyond_the_bound_are_answered_busy() -> None:
    """A client cannot pile up work at its broker."""
    overlay = overlay_of(8, (1, 2))
    askers = [overlay.client(f"asker{n}", 1) for n in range(2)]
    overlay.run(2.0)
    overlay.node(2).pause(1.0)
    session = askers[0].session
    assert session is not None
    question = TracksQuestion(bytes(MessageId.make(1, 2, 5)))
    numbers = [askers[0].ask(2, question) for _ in range(ASKED_BY_ONE_MAX + 5)]
    assert numbers[ASKED_BY_ONE_MAX:] == [None] * 5, "the session itself keeps to the bound"
    other = askers[1].ask(2, question)
    overlay.run(6.0)
    answers = [askers[0].answers.pop(number) for number in numbers if number is not None]
    assert all(getattr(answer, "status", None) is Status.ANSWERED for answer in answers)
    assert other is not None
    assert getattr(askers[1].answers.pop(other), "status", None) is Status.ANSWERED


def test_ids_that_are_not_whole_are_refused() -> None:
    """Bytes from outside may be anything."""
    overlay = overlay_of(9, (1, 2))
    asker = overlay.client("asker", 1)
    overlay.run(2.0)
    answered = ask_all(overlay, asker, {2: TracksQuestion(b"x" * 17)})[2]
    assert answered.status is Status.FAILED


@pytest.mark.parametrize("strategy", [Strategy.BLOOM, Strategy.EXACT, Strategy.ASYNC])
@pytest.mark.parametrize("seed", range(4))
def test_traces_hold_under_faults(strategy: Strategy, seed: int) -> None:
    """Links break, a broker falls and comes back: every delivery is in the trace, but for what a hole accounts for."""
    chance = random.Random(seed)
    overlay = overlay_of(seed, (1, 2), (2, 3), (3, 4), (4, 1), (2, 5), tracking=replace(QUICK, strategy=strategy))
    every = overlay.filter(everything())
    for broker in (3, 4, 5):
        overlay.client(f"reader{broker}", broker).follow(every, subscription=f"r{broker}", name=f"r{broker}")
    asker = overlay.client("asker", 1)
    publish(overlay, overlay.client("writer", 1), 100, begin=2.0)
    fallen = chance.choice([2, 3, 4])
    overlay.at(3.0 + chance.random(), overlay.cable(1, chance.choice([2, 4])).cut)
    fall = 4.0 + chance.random()
    overlay.at(fall, overlay.node(fallen).crash)
    overlay.at(fall + 1.0, overlay.node(fallen).start)
    overlay.at(6.5, overlay.heal)
    overlay.run(8.0)
    told = f"seed {seed}, strategy {strategy}"
    assert overlay.settle(), told
    ids = logged(overlay)
    for trace in trace_many(overlay, asker, 1, ids):
        assert trace.published is not None, told
        missing = sent(overlay).get(bytes(trace.id), set()) - names_of(trace)
        holed = {hole.broker for hole in trace.holes}
        assert all(broker in holed for broker, _ in missing), (told, missing, trace)
        came = {broker for broker, _ in relayed(overlay).get(bytes(trace.id), set())}
        unseen = came - {visit.broker for visit in trace.brokers if not visit.isolated}
        assert unseen <= holed, (told, unseen, trace)
        false = names_of(trace) - sent(overlay).get(bytes(trace.id), set())
        assert not false or strategy is Strategy.BLOOM, (told, false)


def test_a_thousand_messages_are_asked_for_in_few_packets(tree: Overlay) -> None:
    """One question per broker and round."""
    ids = [MessageId(9, 1, each.tick) for each in logged(tree)] * 40  # ids nobody knows
    number = tree.clients["asker"].ask(1, TracksQuestion(b"".join(map(bytes, ids))[: 1024 * 16]))
    assert number is not None
    tree.run(tree.world.now + 1.0)
    answer = getattr(tree.clients["asker"].answers.pop(number), "answer", None)
    assert isinstance(answer, TracksAnswer)
    assert answer.answered == len(ids)
    assert answer.hits == []
