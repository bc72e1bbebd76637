"""Merging two copies against a readable oracle: whatever happened before, what is left to read is what is due."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from postroad.storage.topics.memory import MemoryTopicStore
from postroad.topics.machines.handover import plan_parts
from postroad.topics.machines.merge import Arrival, merge
from postroad.topics.machines.messages import NO_MESSAGE_ID
from postroad.topics.machines.replica import EVERYTHING, TopicCopy
from postroad.topics.machines.rows import ServerRow
from postroad.topics.machines.transfer import TransferredMessage, message_text, parse_transfer

CLIENTS = [b"a", b"b", b"c", b"d"]  # a and b live on the first copy, c and d on the second
events = st.lists(
    st.tuples(st.sampled_from(CLIENTS), st.sampled_from(["subscribe", "unsubscribe", "put", "put", "get", "get"])), max_size=60
)


@dataclass
class Oracle:
    """Everything that happened, in stamp order."""

    subscribed: dict[bytes, int] = field(default_factory=dict)
    puts: list[tuple[int, bytes]] = field(default_factory=list)
    read: dict[bytes, list[bytes]] = field(default_factory=dict)

    def due(self, client: bytes) -> list[bytes]:
        since = self.subscribed[client]
        return [message for stamp, message in self.puts if stamp > since and message not in self.read.get(client, [])]


@dataclass
class Site:
    copy: TopicCopy
    store: MemoryTopicStore = field(default_factory=MemoryTopicStore)
    last: dict[bytes, bytes] = field(default_factory=dict)

    def keep(self, rows: list[ServerRow]) -> None:
        self.store.commit(rows)

    def get(self, client: bytes) -> bytes | None:
        _, rows, sequence = self.copy.get(client, self.last.get(client, NO_MESSAGE_ID))
        self.keep(rows)
        if sequence is None:
            return None
        self.last[client] = self.copy.log[sequence].id
        return self.last[client]


def act(site: Site, oracle: Oracle, client: bytes, what: str, stamp: int, counters: dict[bytes, int]) -> None:
    match what:
        case "subscribe":
            _, rows = site.copy.subscribe(client, stamp, stamp)
            oracle.subscribed.setdefault(client, stamp)
        case "unsubscribe":
            _, rows = site.copy.unsubscribe(client, stamp, stamp)
            oracle.subscribed.pop(client, None)
        case "put":
            counters[client] = counters.get(client, 0) + 1
            _, rows = site.copy.put(client, counters[client], 0, stamp, b"x", keep=True)
            oracle.puts.append((stamp, b"%d:%s" % (counters[client], client)))
        case _:
            rows = []
            message = site.get(client) if client in oracle.subscribed else None
            if message is not None:
                oracle.read.setdefault(client, []).append(message)
    site.keep(rows)


def transfer(source: Site, target: Site, part_bytes: int) -> None:
    """Over the wire format, in parts."""
    arrival = Arrival(source.copy.copy)
    for parcel in plan_parts(source.copy, part_bytes):
        text = parcel.lines
        for ref in parcel.messages:
            body = source.store.body(parcel.topic, ref.sequence)
            assert body is not None
            text += message_text(TransferredMessage(ref.id, ref.stamp, body))
        part = parse_transfer(text)
        arrival.add(part)
        target.store.staged.setdefault((b"t", source.copy.copy), {}).update({m.id: m.body for m in part.messages})
    target.keep(merge(target.copy, arrival, stamps=True))


@given(events, events, st.sampled_from([1, 200, 1 << 20]))
def test_after_a_merge_everybody_reads_exactly_what_is_due(
    before: list[tuple[bytes, str]], after: list[tuple[bytes, str]], part: int
) -> None:
    """Each message once, none missing, each publisher in order; then everything can be reclaimed."""
    sites = [Site(TopicCopy(b"t", b"A")), Site(TopicCopy(b"t", b"B"))]
    oracle, counters = Oracle(), dict[bytes, int]()
    for stamp, (client, what) in enumerate(before, 1):
        act(sites[CLIENTS.index(client) // 2], oracle, client, what, stamp, counters)
    transfer(sites[1], sites[0], part)
    merged = sites[0]
    merged.last.update(sites[1].last)
    for stamp, (client, what) in enumerate(after, len(before) + 1):
        act(merged, oracle, client, what, stamp, counters)
    assert merged.store.load_server().messages == [
        m for m in merged.store.load_server().messages if m.sequence in merged.copy.log
    ]
    for client in oracle.subscribed:
        due, got = oracle.due(client), list[bytes]()
        while (message := merged.get(client)) is not None:
            got.append(message)
        assert sorted(got) == sorted(due)
        everything = [m.split(b":") for m in oracle.read.get(client, []) + got]
        for publisher in CLIENTS:
            numbers = [int(number) for number, name in everything if name == publisher]
            assert numbers == sorted(numbers)
    merged.keep(merged.copy.settle(EVERYTHING))
    assert merged.copy.log == {}
    assert merged.store.load_server().messages == []


@given(events)
def test_a_copy_loaded_from_its_rows_is_the_copy_that_was(happened: list[tuple[bytes, str]]) -> None:
    """Positions, late lists, references: all from disk."""
    sites = [Site(TopicCopy(b"t", b"A")), Site(TopicCopy(b"t", b"B"))]
    oracle, counters = Oracle(), dict[bytes, int]()
    for stamp, (client, what) in enumerate(happened, 1):
        act(sites[CLIENTS.index(client) // 2], oracle, client, what, stamp, counters)
    transfer(sites[1], sites[0], 1 << 20)
    copy, state = sites[0].copy, sites[0].store.load_server()
    again = TopicCopy(b"t", b"A", state.topics[0].lineage)
    for publisher in state.publishers:
        again.put_back(publisher)
    for message in state.messages:
        again.load_message(message)
    for subscriber in state.subscribers:
        again.load_subscriber(subscriber)
    for late in state.late:
        again.subscribers[late.client].late = list(late.sequences)
    again.count()
    assert again.log == copy.log
    assert (again.order, again.read, again.live, again.bytes) == (copy.order, copy.read, copy.live, copy.bytes)
    assert (again.publishers, again.subscribers, again.lineage) == (copy.publishers, copy.subscribers, copy.lineage)
