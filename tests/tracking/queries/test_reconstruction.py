"""Paths put together from answers: against overlays of which the truth is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.tracking.queries.answers import STILL
from postroad.tracking.queries.questions import HitFound, HoleFound, KeyFound, MapAnswer, Status, TracksAnswer
from postroad.tracking.queries.reconstruction import Reconstruction, Trace
from postroad.types import MessageId

WALL = 1_790_000_000_000
CHANCE = 1e-5


@dataclass
class Told:
    """What a broker would answer about one message."""

    published: bool = False
    routed: dict[int, float] = field(default_factory=dict)
    subscribers: dict[str, float] = field(default_factory=dict)
    forwarded: list[int] | None = None


@dataclass
class World:
    """Brokers that answer; `down` do not, `holed` have a hole, `telling` track whom they forward to."""

    links: dict[int, set[int]]
    told: dict[int, dict[MessageId, Told]] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    holed: set[int] = field(default_factory=set)
    telling: set[int] = field(default_factory=set)
    forgotten: set[int] = field(default_factory=set)  # brokers whose links the map does not know
    former: dict[int, dict[int, int]] = field(default_factory=dict)  # neighbours of the past, until when
    asked: list[tuple[int, MessageId]] = field(default_factory=list)
    rounds: int = 0

    def map(self) -> MapAnswer:
        return MapAnswer({b: None if b in self.forgotten else sorted(near) for b, near in self.links.items()}, WALL)

    def tell(self, broker: int, message: MessageId) -> Told:
        return self.told.setdefault(broker, {}).setdefault(message, Told())

    def answer(self, broker: int, ids: list[MessageId]) -> TracksAnswer:
        keys: list[KeyFound] = []
        hits: list[HitFound] = []
        for row, each in enumerate(ids):
            told = self.told.get(broker, {}).get(each, Told())
            found: list[tuple[KeyFound, float, list[int] | None]] = []
            found += [(KeyFound("publisher", 0, ""), 0.0, None)] if told.published else []
            found += [(KeyFound("routing", peer, ""), chance, told.forwarded) for peer, chance in told.routed.items()]
            found += [(KeyFound("subscriber", 0, name), chance, None) for name, chance in told.subscribers.items()]
            for key, chance, forwarded in found:
                hits.append(HitFound(row, len(keys), chance, forwarded))
                keys.append(key)
        near = [*dict.fromkeys(self.links[broker], STILL).items(), *self.former.get(broker, {}).items()]
        holes = [HoleFound("crash", 0, STILL, "it fell")] if broker in self.holed else []
        return TracksAnswer(len(ids), "", WALL, 0, near, holes, keys, hits)

    def trace(self, *ids: MessageId) -> list[Trace]:
        """Do what a client does."""
        search = Reconstruction(ids, self.map())
        while asks := search.asks():
            self.rounds += 1
            for broker, wanted in asks.items():
                self.asked += [(broker, each) for each in wanted]
                if broker in self.down or broker not in self.links:
                    search.failed(broker, Status.UNREACHABLE, "there is no way to it now")
                else:
                    search.answered(broker, wanted, self.answer(broker, wanted))
            search.finish_round()
        return search.traces()


def message(number: int = 1, broker: int = 1, ms: int = WALL - 60_000) -> MessageId:
    return MessageId.make(5, broker, ms, number)


def line(*brokers: int) -> World:
    """Join brokers in a line, with one message that went all the way to a subscriber at the end."""
    links: dict[int, set[int]] = {broker: set() for broker in brokers}
    for a, b in pairwise(brokers):
        links[a].add(b)
        links[b].add(a)
    world = World(links)
    world.tell(brokers[0], message()).published = True
    for a, b in pairwise(brokers):
        world.tell(b, message()).routed[a] = CHANCE
    world.tell(brokers[-1], message()).subscribers["s"] = CHANCE
    return world


def edges(trace: Trace) -> dict[int, int | None]:
    return {visit.broker: visit.upstream for visit in trace.brokers if not visit.isolated}


def test_a_path_is_followed_from_the_publisher_to_the_subscriber() -> None:
    """Origin, brokers with where it came from, subscribers, and nothing that could not be asked."""
    (trace,) = line(1, 2, 3).trace(message())
    assert (trace.origin, trace.publisher, trace.published) == (1, 5, 0.0)
    assert edges(trace) == {1: None, 2: 1, 3: 2}
    assert [(r.subscriber, r.broker, r.isolated) for r in trace.subscribers] == [("s", 3, False)]
    assert trace.found
    assert trace.complete


def test_brokers_of_one_distance_are_asked_in_one_round_and_each_once() -> None:
    """A star of many messages takes two rounds, whatever their number."""
    world = World({1: set(range(2, 12)), **{leaf: {1} for leaf in range(2, 12)}})
    ids = [message(number) for number in range(50)]
    for each in ids:
        world.tell(1, each).published = True
        for leaf in range(2, 12):
            world.tell(leaf, each).routed[1] = CHANCE
    traces = world.trace(*ids)
    assert world.rounds == 2
    assert len(world.asked) == len(set(world.asked)) == 50 * 11
    assert all(len(trace.brokers) == 11 for trace in traces)


def test_a_message_that_nobody_knows_is_not_searched_everywhere() -> None:
    """The origin says no, and it has no hole."""
    world = line(1, 2, 3)
    (trace,) = world.trace(message(99))
    assert not trace.found
    assert trace.complete
    assert [broker for broker, _ in world.asked] == [1]


def test_the_search_goes_on_behind_a_broker_that_is_down() -> None:
    """It is named, and does not make what is behind it isolated."""
    world = line(1, 2, 3, 4)
    world.down = {2}
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None, 3: 2, 4: 3}
    assert [each.broker for each in trace.unasked] == [2]
    assert [r.isolated for r in trace.subscribers] == [False]


def test_behind_a_broker_whose_links_nobody_knows_everybody_is_asked() -> None:
    """After a restart of the client's broker, a broker that is down has told no links."""
    world = line(1, 2, 3, 4)
    world.down, world.forgotten = {2}, {2}
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None, 3: 2, 4: 3}


def test_the_search_goes_on_when_the_origin_is_down() -> None:
    """Nobody can say who published it, but the path behind it is found."""
    world = line(1, 2, 3)
    world.down = {1}
    (trace,) = world.trace(message())
    assert trace.published is None
    assert edges(trace) == {2: 1, 3: 2}
    assert trace.found


def test_the_search_goes_on_behind_a_hole() -> None:
    """A broker that lost its tracks may have routed the message."""
    world = line(1, 2, 3)
    world.holed = {2}
    world.told[2] = {}
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None, 3: 2}
    assert [(hole.broker, hole.kind) for hole in trace.holes] == [(2, "crash")]


def test_a_hit_that_no_neighbour_confirms_is_isolated_with_all_behind_it() -> None:
    """Broker 3 claims to have it from 2, which never saw it; 4 claims to have it from 3."""
    world = line(1, 2, 3, 4)
    world.told[2] = {}
    world.links[1].add(3)
    world.links[3].add(1)
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None}
    assert sorted(visit.broker for visit in trace.brokers if visit.isolated) == [3, 4]
    assert [r.isolated for r in trace.subscribers] == [True]


def test_of_two_claims_the_one_that_is_confirmed_counts() -> None:
    """A false positive in the history of another neighbour does not move the edge."""
    world = line(1, 2, 3)
    world.links[4] = {3}
    world.links[3].add(4)
    world.tell(3, message()).routed[4] = CHANCE / 100
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None, 2: 1, 3: 2}


def test_a_delivery_without_a_routing_is_isolated() -> None:
    """Both histories would have to err, as section 4.3 says; one of them did."""
    world = line(1, 2, 3)
    world.told[3][message()].routed.clear()
    (trace,) = world.trace(message())
    assert [(r.subscriber, r.isolated) for r in trace.subscribers] == [("s", True)]
    assert 3 not in edges(trace)


def test_neighbours_of_the_past_are_asked_for_messages_of_the_past() -> None:
    """The link between 1 and 2 is gone since, and was there when the message passed."""
    world = line(1, 2, 3)
    world.links[1], world.links[2] = set(), {3}
    world.former = {1: {2: WALL - 30_000}}
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None, 2: 1, 3: 2}
    world.asked.clear()
    world.former = {1: {2: WALL - 600_000}}
    world.trace(message())
    assert [broker for broker, _ in world.asked] == [1]


def test_whoever_a_broker_got_the_message_from_is_asked() -> None:
    """Broker 2 is nobody's neighbour any more, and its tracks confirm what broker 3 says."""
    world = line(1, 2, 3)
    world.links = {1: {3}, 2: set(), 3: {1}}
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None, 2: 1, 3: 2}


def test_only_those_a_broker_forwarded_to_are_asked_when_it_tells() -> None:
    """Routing sets and histories per neighbour save questions."""
    world = line(1, 2, 3)
    for leaf in range(10, 20):
        world.links[leaf] = {2}
        world.links[2].add(leaf)
    world.told[2][message()].forwarded = [3]
    (trace,) = world.trace(message())
    assert edges(trace) == {1: None, 2: 1, 3: 2}
    assert sorted(broker for broker, _ in world.asked) == [1, 2, 3]


def test_an_id_from_the_future_and_one_of_an_unknown_broker_are_said_to_be_so() -> None:
    """The search is made all the same."""
    world = line(1, 2)
    ahead, stranger, sound = world.trace(message(ms=WALL + 3_600_000), message(broker=77), message())
    assert "3,600 s in the future" in ahead.problem
    assert "broker 77" in stranger.problem
    assert not stranger.found
    assert sound.problem == ""


def test_an_id_older_than_the_tracks_is_said_to_be_so() -> None:
    """Not found means nothing then."""
    search = Reconstruction([message()], line(1, 2).map())
    search.asks()
    hole = HoleFound("dropped", 0, WALL, "older than the tracks that are kept here")
    search.answered(1, [message()], TracksAnswer(1, "", WALL, WALL, [], [hole], [], []))
    search.finish_round()
    assert search.asks() == {}
    (trace,) = search.traces()
    assert "older than the tracks" in trace.problem
    assert not trace.complete


def test_hits_beyond_the_question_are_ignored() -> None:
    """A broker may send anything."""
    search = Reconstruction([message()], line(1, 2).map())
    search.asks()
    wrong = [HitFound(7, 0, 0.0), HitFound(0, 9, 0.0), HitFound(0, 0, 0.0)]
    search.answered(1, [message()], TracksAnswer(1, "", WALL, 0, [], [], [KeyFound("nonsense", 0, "")], wrong))
    search.finish_round()
    assert not search.traces()[0].found


def test_an_answer_in_pieces_is_put_together() -> None:
    """The subscribers of one message may come in several answers."""
    search = Reconstruction([message()], line(1).map())
    search.asks()
    keys = [KeyFound("publisher", 0, ""), KeyFound("subscriber", 0, "a")]
    first = TracksAnswer(0, "a", WALL, 0, [], [], keys, [HitFound(0, 0, 0.0), HitFound(0, 1, 0.0)])
    search.answered(1, [message()], first)
    second = TracksAnswer(1, "", WALL, 0, [], [], [KeyFound("subscriber", 0, "b")], [HitFound(0, 0, 0.0)])
    search.answered(1, [message()], second)
    search.finish_round()
    assert [r.subscriber for r in search.traces()[0].subscribers] == ["a", "b"]


def grow(chance: random.Random, brokers: int) -> dict[int, set[int]]:
    """Join brokers at random: a tree with some links more."""
    links: dict[int, set[int]] = {1: set()}
    for broker in range(2, brokers + 1):
        other = chance.randint(1, broker - 1)
        links[broker] = {other}
        links[other].add(broker)
    for _ in range(chance.randint(0, brokers)):
        a, b = chance.sample(range(1, brokers + 1), 2)
        links[a].add(b)
        links[b].add(a)
    return links


def spread(chance: random.Random, links: dict[int, set[int]], origin: int) -> dict[int, int | None]:
    """Send a message from its origin along some links: each broker gets it once."""
    came: dict[int, int | None] = {origin: None}
    waiting = [origin]
    while waiting:
        broker = waiting.pop(0)
        for other in sorted(links[broker]):
            if other not in came and chance.random() < 0.6:
                came[other] = broker
                waiting.append(other)
    return came


@settings(max_examples=400)
@given(seed=st.integers(0, 1 << 32), brokers=st.integers(2, 14), messages=st.integers(1, 5))
def test_every_broker_and_subscriber_that_can_say_so_is_found(seed: int, brokers: int, messages: int) -> None:
    """Whatever is down, forgotten or falsely claimed: nothing true is missing, and what is false hangs in the air."""
    chance = random.Random(seed)
    world = World(grow(chance, brokers))
    world.down = {broker for broker in world.links if chance.random() < 0.15}
    world.holed = {broker for broker in world.links if chance.random() < 0.15}
    world.forgotten = {broker for broker in world.links if chance.random() < 0.2}
    truth = {}
    for number in range(messages):
        each = message(number, chance.randint(1, brokers))
        truth[each] = spread(chance, world.links, each.broker)
        for broker, source in truth[each].items():
            lost = broker in world.holed and chance.random() < 0.5
            if source is None:
                world.tell(broker, each).published = True  # a crash takes nothing from it
            elif not lost:
                world.tell(broker, each).routed[source] = CHANCE
            if not lost and chance.random() < 0.5:
                world.tell(broker, each).subscribers[f"s{broker}"] = CHANCE
        for broker in world.links:
            if broker not in truth[each] and chance.random() < 0.1:
                peer = chance.choice(sorted(world.links[broker]))
                world.tell(broker, each).routed[peer] = CHANCE
    for trace in world.trace(*truth):
        check(world, trace, truth[trace.id])


def check(world: World, trace: Trace, truth: dict[int, int | None]) -> None:
    told = {broker: world.told.get(broker, {}).get(trace.id, Told()) for broker in truth if broker not in world.down}
    found = edges(trace)
    for broker, each in told.items():
        if each.published or each.routed:
            assert broker in found, (broker, trace)
            assert found[broker] == truth[broker] or truth[broker] is None, (broker, trace)
        names = {r.subscriber for r in trace.subscribers if r.broker == broker and not r.isolated}
        assert names == set(each.subscribers), (broker, trace)
    uncertain = world.down | world.holed
    for visit in trace.brokers:
        if visit.broker not in truth and not visit.isolated:
            claims = world.told[visit.broker][trace.id].routed
            assert visit.broker in uncertain or any(p in uncertain or p in truth or p in found for p in claims), visit
    asked = [broker for broker, each in world.asked if each == trace.id]
    assert len(asked) == len(set(asked))
    assert {each.broker for each in trace.unasked} <= world.down
