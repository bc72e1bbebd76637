"""A proxy that loses its list of servers: the servers remind it, and nothing is reclaimed before the list is whole again."""

from __future__ import annotations

import pytest
from tests.topics.fake_wire import Wire

from postroad.errors import TopicsProtocolError
from postroad.storage.topics.memory import MemoryTopicStore
from postroad.topics.machines import messages as m
from postroad.topics.machines.client import GetFrom, PutTo, SubscribeTo
from postroad.topics.machines.options import ProxyOptions
from postroad.topics.machines.proxy import ProxyMachine
from postroad.topics.machines.server import ServerMachine

T = b"t"


def proxy(wire: Wire, name: bytes) -> ProxyMachine:
    machine = wire.machines[name]
    assert isinstance(machine, ProxyMachine)
    return machine


def server(wire: Wire, name: bytes) -> ServerMachine:
    machine = wire.machines[name]
    assert isinstance(machine, ServerMachine)
    return machine


def two_servers() -> Wire:
    """One proxy and two servers that all know each other, with a whole list."""
    wire = Wire()
    wire.proxy(b"p0")
    wire.server(b"s0")
    wire.server(b"s1")
    wire.advance(30)
    return wire


def lose_list(wire: Wire, name: bytes) -> None:
    """Restart a proxy with nothing of what it stored."""
    wire.crash(name)
    wire.stores[name] = MemoryTopicStore()
    wire.proxy(name)


def test_a_server_reminds_a_proxy_of_a_server_that_is_away() -> None:
    """The list comes back although the server concerned says nothing."""
    wire = two_servers()
    wire.crash(b"s1")
    lose_list(wire, b"p0")
    assert proxy(wire, b"p0").servers == {}
    wire.advance(6)
    assert set(proxy(wire, b"p0").servers) == {b"s0", b"s1"}
    assert {row.server for row in wire.stores[b"p0"].load_proxy().servers} == {b"s0", b"s1"}


def test_nothing_is_reclaimed_that_a_server_away_may_still_need() -> None:
    """Both servers own the topic; the one with the subscription is away when the only proxy loses its list."""
    wire = Wire()
    wire.proxy(b"p0")
    wire.server(b"s1")
    wire.client(b"reader")
    assert wire.do(b"reader", SubscribeTo(T)).error is None
    wire.server(b"s0")
    wire.advance(30)
    wire.crash(b"s1")
    lose_list(wire, b"p0")
    wire.advance(6)
    wire.client(b"writer")
    assert wire.do(b"writer", PutTo(T, b"for the reader")).error is None  # the new owner has no subscribers
    wire.advance(120)
    assert len(server(wire, b"s0").copies[T].log) == 1
    wire.server(b"s1")
    wire.advance(30)
    message = wire.do(b"reader", GetFrom(T)).message
    assert message is not None
    assert message.body == b"for the reader"


def test_a_new_list_is_whole_after_fifteen_seconds_and_stays_so() -> None:
    """Until then a proxy says nothing of how far all servers have reported."""
    wire = Wire()
    wire.proxy(b"p0")
    wire.server(b"s0")
    wire.advance(1)
    assert "l" not in proxy(wire, b"p0")._find_settled(b"s0")
    wire.advance(30)
    assert "l" in proxy(wire, b"p0")._find_settled(b"s0")
    wire.proxy(b"p0")
    wire.advance(6)
    assert "l" in proxy(wire, b"p0")._find_settled(b"s0")


def test_a_forgotten_server_is_not_brought_back_by_the_others() -> None:
    """`--forget` holds: the servers are told, and drop it from their own lists."""
    wire = two_servers()
    wire.crash(b"s1")
    wire.crash(b"p0")
    wire.machines[b"p0"] = ProxyMachine(b"p0", wire.stores[b"p0"].load_proxy(), options=ProxyOptions(), forget=[b"s1"])
    wire.advance(12)
    assert set(proxy(wire, b"p0").servers) == {b"s0"}
    assert {row.server for row in wire.stores[b"s0"].load_server().servers} <= {b"s0"}
    wire.proxy(b"p0")
    wire.advance(12)
    assert set(proxy(wire, b"p0").servers) == {b"s0"}


def test_lists_travel_only_while_they_differ() -> None:
    """In rest an announcement carries a digest, not the list."""
    wire = two_servers()
    wire.sent.clear()
    wire.advance(11)
    announcements = [payload for _, _, payload in wire.sent if payload.startswith(b"PERIODIC")]
    assert announcements
    assert all(b"@d=" in payload and b"@k=" not in payload for payload in announcements)


def test_many_servers_take_turns_in_one_field() -> None:
    """A list that does not fit is told piece by piece; every server has its turn."""
    many = {b"server %05d," % number: b"address" * 10 for number in range(2000)}
    told: dict[bytes, bytes] = {}
    for turn in range(0, 2000, 100):
        field = m.format_servers(many, turn)
        assert len(field) <= m.SERVERS_BYTES_MAX
        told.update(m.parse_servers({"k": field}, "k"))
    assert told == many


@pytest.mark.parametrize("value", [b"a", b"a,b,c", b",", b"a,", b"x," * 20_000 + b"y"])
def test_a_broken_list_of_servers_is_refused(value: bytes) -> None:
    """Whatever the bytes, the error is typed."""
    with pytest.raises(TopicsProtocolError):
        m.parse_servers({"k": value}, "k")
