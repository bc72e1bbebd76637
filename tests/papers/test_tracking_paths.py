"""Low-overhead message tracking, section 3.3 and what the rest says of path reconstruction: one test per claim."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from postroad.sim import traces
from postroad.sim.history import Logged, Relayed
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.queries.packets import TracksAnswered
from postroad.tracking.queries.questions import HitFound, KeyFound, MapAnswer, Status, TracksAnswer
from postroad.tracking.queries.reconstruction import Reconstruction, Trace
from postroad.tracking.tap.tracked_broker import TrackedConfig
from postroad.types import MessageId

EXACT = TrackingSettings(strategy=Strategy.EXACT, persistence_ms=1000)
BLOOM = TrackingSettings(strategy=Strategy.BLOOM, persistence_ms=1000, few_as_ids=False)


def star(tracking: TrackingSettings, leaves: int) -> Overlay:
    """Broker 1 - broker 2 - leaves; the only subscriber is behind the first leaf."""
    overlay = Overlay(3, config=TrackedConfig(tracking=tracking))
    overlay.brokers(*range(1, leaves + 3))
    overlay.link(1, 2)
    for leaf in range(3, leaves + 3):
        overlay.link(2, leaf)
    overlay.client("reader", 3).follow(overlay.filter(everything()), subscription="a", name="reader")
    overlay.client("asker", 1)
    writer = overlay.client("writer", 1)
    for number in range(10):
        overlay.at(2.0 + number / 10, lambda n=number: writer.publish({"n": n}, b""))  # type: ignore[misc]
    overlay.run(6.0)
    return overlay


def trace(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Trace], set[int]]:
    """Trace every message; return the traces and who was asked."""
    asked: set[int] = set()
    ask_all = traces.ask_all

    def watched(overlay: Overlay, client: object, questions: dict[int, object]) -> dict[int, TracksAnswered]:
        asked.update(questions)
        return ask_all(overlay, client, questions)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(traces, "ask_all", watched)
    ids = [MessageId.from_bytes(event.id) for event in overlay.history if isinstance(event, Logged)]
    return traces.trace_many(overlay, overlay.clients["asker"], 1, ids), asked


def test_3_3_the_reported_path_is_the_set_that_routed_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """K_r, K_s and S_r of the algorithm are those of the truth, with the origin and the publisher of the id."""
    overlay = star(EXACT, 3)
    came = {each: event.broker for event in overlay.history if isinstance(event, Relayed) for each in event.ids}
    found, _ = trace(overlay, monkeypatch)
    assert len(found) == 10
    for each in found:
        assert bytes(each.id) in came
        assert [visit.broker for visit in each.brokers] == [1, 2, 3]
        assert [(receipt.broker, receipt.subscriber) for receipt in each.subscribers] == [(3, "reader")]
        assert each.origin == 1


def test_3_3_every_neighbour_of_a_broker_that_routed_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant cost of D neighbours per broker on the path, without further information."""
    _, asked = trace(star(EXACT, 5), monkeypatch)
    assert asked == {1, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("settings", [replace(EXACT, per_neighbour=True), replace(BLOOM, routing_sets=True)])
def test_3_3_knowing_whom_a_message_was_forwarded_to_eliminates_unnecessary_questions(
    settings: TrackingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By histories H_{b,d} per neighbour, or by routing sets in the keys of the routing history."""
    found, asked = trace(star(settings, 5), monkeypatch)
    assert asked == {1, 2, 3}
    assert all([visit.broker for visit in each.brokers] == [1, 2, 3] for each in found)


@pytest.mark.parametrize("length", [4, 8, 16])
def test_3_3_the_cost_is_proportional_to_the_brokers_that_routed_the_message(length: int) -> None:
    """O(N): on a line of any length within a far larger overlay, N brokers and one neighbour of the last are asked."""
    whole = 64
    message = MessageId.make(1, 1, 1000)
    links = {n: [other for other in (n - 1, n + 1) if 1 <= other <= whole] for n in range(1, whole + 1)}
    search = Reconstruction([message], MapAnswer(dict(links), 2000))
    asked = 0
    while asks := search.asks():
        for broker in asks:
            asked += 1
            saw = broker <= length
            keys = [KeyFound("publisher" if broker == 1 else "routing", broker - 1, "")] if saw else []
            hits = [HitFound(0, 0, 0.0)] if saw else []
            near = [(other, 1 << 60) for other in links[broker]]
            search.answered(broker, [message], TracksAnswer(1, "", 2000, 0, near, [], keys, hits))
        search.finish_round()
    assert asked == length + 1


def test_2_a_query_before_the_message_is_completely_routed_gives_partial_tracks() -> None:
    """What is known at that moment, and the rest when it is asked for again."""
    overlay = Overlay(4, config=TrackedConfig(tracking=EXACT))
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("reader", 3).follow(overlay.filter(everything()), subscription="a", name="reader")
    asker, writer = overlay.client("asker", 1), overlay.client("writer", 1)
    overlay.run(3.0)
    overlay.node(2).pause(30.0)
    overlay.at(3.1, lambda: writer.publish({"n": 1}, b""))
    overlay.run(3.5)
    (message,) = [MessageId.from_bytes(event.id) for event in overlay.history if isinstance(event, Logged)]
    (early,) = traces.trace_many(overlay, asker, 1, [message])
    assert early.published == 0.0
    assert early.subscribers == ()
    overlay.run(45.0)
    (late,) = traces.trace_many(overlay, asker, 1, [message])
    assert [receipt.subscriber for receipt in late.subscribers] == ["reader"]


def test_5_3_a_false_positive_is_deduced_from_the_neighbours() -> None:
    """A broker that alone claims to have seen a message is isolated: of 2,000 lone claims not one is left standing."""
    chance = random.Random(5)
    links = {n: [(n - 2) % 12 + 1, n % 12 + 1] for n in range(1, 13)}  # a ring
    ids = [MessageId.make(1, 1, 1000 + n) for n in range(2000)]
    liars = {each: chance.randint(3, 11) for each in ids}
    search = Reconstruction(ids, MapAnswer(dict(links), 5000))
    while asks := search.asks():
        for broker, wanted in asks.items():
            keys = [KeyFound("publisher", 0, ""), KeyFound("routing", links[broker][0], "")]
            hits = [HitFound(row, 0, 0.0) for row, _ in enumerate(wanted) if broker == 1]
            hits += [HitFound(row, 1, 0.05) for row, each in enumerate(wanted) if liars[each] == broker]
            # an overlay whose links all changed since: everybody is asked
            near = [(other, 1 << 60) for other in links]
            search.answered(broker, wanted, TracksAnswer(len(wanted), "", 5000, 0, near, [], keys, hits))
        search.finish_round()
    found = search.traces()
    assert all(each.status is not Status.FAILED for trace_ in found for each in trace_.unasked)
    assert sum(len(each.brokers) for each in found) == 4000
    assert all(visit.isolated for each in found for visit in each.brokers if visit.broker != 1)
