"""Two owners, moves cut anywhere, retries in the wrong place: each trap of a merge, told step by step."""

from __future__ import annotations

import copy

import pytest
from tests.topics.fake_wire import Wire

from postroad.errors import TopicsConflictError, TopicsRefusedError
from postroad.topics.machines import messages as m
from postroad.topics.machines.client import FinishPut, GetFrom, PutTo, SubscribeTo, UnsubscribeFrom
from postroad.topics.machines.server import ServerMachine

T = b"t"


def split(**options: object) -> Wire:
    """Two proxies, each hearing one server only: what goes through them lands on different owners."""
    wire = Wire()
    wire.proxy(b"p0")
    wire.proxy(b"p1")
    wire.lose = {(b"s0", b"p1"), (b"s1", b"p0")}
    wire.server(b"s0", **options)
    wire.server(b"s1", **options)
    return wire


def heal(wire: Wire, seconds: float = 6) -> None:
    wire.lose = set()
    wire.advance(seconds)


def server(wire: Wire, name: bytes) -> ServerMachine:
    machine = wire.machines[name]
    assert isinstance(machine, ServerMachine)
    return machine


def read(wire: Wire, client: bytes) -> list[bytes]:
    found: list[bytes] = []
    while (finished := wire.do(client, GetFrom(T))).message is not None:
        found.append(finished.message.body)
    assert finished.error is None, finished.error
    return found


def put(wire: Wire, client: bytes, *bodies: bytes) -> None:
    for body in bodies:
        assert wire.do(client, PutTo(T, body)).error is None


def test_a_put_taken_by_both_owners_is_received_once() -> None:
    """Only an old client, which has no home, can do this; the merge recognises the id."""
    wire = split()
    wire.client(b"a0", b"p0")
    wire.client(b"a1", b"p1")
    wire.do(b"a0", SubscribeTo(T))
    wire.do(b"a1", SubscribeTo(T))
    for proxy in (b"p0", b"p1"):
        assert wire.ask(proxy, b"PUT old t 1\r\n\r\none").ok
    assert read(wire, b"a0") == [b"one"]
    heal(wire)
    assert wire.ask(b"p1", b"PUT old t 2\r\n\r\ntwo").ok
    assert read(wire, b"a0") == [b"two"]
    assert read(wire, b"a1") == [b"one", b"two"]


def test_a_late_duplicate_of_a_first_request_does_nothing_on_the_other_owner() -> None:
    """Found by seed 1956: a put long acknowledged arrived again, at the other owner, after a subscription there."""
    wire = split()
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    first = next(payload for source, _, payload in wire.sent if source == b"bob")
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    assert wire.ask(b"s0", first).status == m.HOME
    assert read(wire, b"alice") == []
    heal(wire)
    assert read(wire, b"alice") == []


def test_a_put_in_doubt_is_finished_after_the_topic_moved() -> None:
    """The publishers' counters travel with the topic."""
    wire = split()
    wire.client(b"alice", b"p1")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"carol", b"p0")
    put(wire, b"carol", b"zero")
    wire.client(b"bob", b"p1")
    wire.lose.add((b"p1", b"bob"))
    assert wire.do(b"bob", PutTo(T, b"one")).error is not None
    heal(wire)
    assert T not in server(wire, b"s1").copies
    assert wire.do(b"bob", FinishPut(T)).error is None
    assert sorted(read(wire, b"alice")) == [b"one", b"zero"]


def test_a_message_received_just_before_the_move_is_not_received_again_after_it() -> None:
    """The last id a client names is understood by the new owner."""
    wire = split()
    wire.client(b"alice", b"p1")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"carol", b"p0")
    put(wire, b"carol", b"zero")
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one", b"two")
    first = wire.do(b"alice", GetFrom(T)).message
    assert first is not None
    assert first.body == b"one"
    heal(wire)
    rest = read(wire, b"alice")
    assert b"one" not in rest
    assert sorted(rest) == [b"two", b"zero"]


def test_a_client_stays_with_its_copy_until_the_owners_are_merged() -> None:
    """Another owner refuses it with a retriable error instead of serving it from a history it has no part in."""
    wire = split()
    wire.client(b"bob", b"p0")
    put(wire, b"bob", b"one")
    wire.client(b"carol", b"p1")
    put(wire, b"carol", b"other")
    wire.client(b"bob", b"p1")
    error = wire.do(b"bob", PutTo(T, b"two")).error
    assert isinstance(error, TopicsConflictError)
    assert error.retryable
    heal(wire)
    assert wire.do(b"bob", FinishPut(T)).error is None


def test_messages_are_kept_for_the_other_owners_subscribers() -> None:
    """A server without subscribers keeps what is put until no older subscription can exist elsewhere."""
    wire = split()
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    wire.advance(30)
    assert len(server(wire, b"s1").copies[T].log) == 1
    heal(wire)
    assert read(wire, b"alice") == [b"one"]
    wire.advance(11)
    assert server(wire, b"s0").copies[T].log == {}


def test_without_stamps_the_seeds_loss_happens() -> None:
    """Section 4 admits it; the switch exists to show it."""
    wire = split(stamps=False, settle=False)
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    heal(wire)
    assert read(wire, b"alice") == []


def test_a_message_put_before_the_subscription_on_the_other_owner_is_not_received() -> None:
    """Exactly the messages put after the subscription: none before."""
    wire = split()
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"before")
    wire.advance(0.1)
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    wire.advance(0.1)
    put(wire, b"bob", b"after")
    heal(wire)
    assert read(wire, b"alice") == [b"after"]


def test_a_put_after_the_subscriptions_answer_is_due_although_the_clocks_differ() -> None:
    """The answer to SUBSCRIBE waits out the bound on the clocks' difference."""
    wire = split(skew_ms_max=20)
    wire.skew = {b"s0": 0.010, b"s1": -0.010}
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    heal(wire)
    assert read(wire, b"alice") == [b"one"]


def test_an_unsubscribe_on_one_owner_beats_a_subscription_left_on_the_other() -> None:
    """The subscribe that ended with an error is on s0; the unsubscribe succeeded on s1."""
    wire = split()
    wire.client(b"alice", b"p0")
    wire.lose.add((b"p0", b"alice"))
    assert wire.do(b"alice", SubscribeTo(T)).error is not None
    wire.client(b"alice", b"p1")
    assert wire.do(b"alice", UnsubscribeFrom(T)).error is None
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    heal(wire)
    assert not server(wire, b"s0").copies[T].subscribers[b"alice"].subscribed


def test_a_resubscription_does_not_bring_back_what_was_put_before_it() -> None:
    """Subscribed on both, left on one, joined again: the newest operation decides."""
    wire = split()
    wire.client(b"alice", b"p0")
    wire.lose.add((b"p0", b"alice"))
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"alice", b"p1")
    wire.do(b"alice", UnsubscribeFrom(T))
    wire.client(b"bob", b"p0")
    put(wire, b"bob", b"between")
    wire.advance(0.1)
    wire.do(b"alice", SubscribeTo(T))
    wire.advance(0.1)
    put(wire, b"bob", b"after")
    heal(wire)
    assert read(wire, b"alice") == [b"after"]


def test_a_merge_onward_while_a_copy_arrives_ends_with_one_owner() -> None:
    """s2 is told to merge into s1 while s1 is told to merge into s0."""
    wire = split()
    wire.proxy(b"p2")
    wire.lose = {(s, p) for s in (b"s0", b"s1", b"s2") for p in (b"p0", b"p1", b"p2") if s[1:] != p[1:]}
    for name in (b"s0", b"s1", b"s2"):
        wire.server(name)
    for index in range(3):
        wire.client(b"c%d" % index, b"p%d" % index)
        wire.do(b"c%d" % index, SubscribeTo(T))
        put(wire, b"c%d" % index, b"from %d" % index)
    order = m.format_message(m.Merge(b"x", T, b"s1", extensions=m.extend(i=b"s1")))
    onward = m.format_message(m.Merge(b"x", T, b"s0", extensions=m.extend(i=b"s0")))
    wire.lose.add((b"s0", b"s1"))  # s1 has committed to s0 and does not hear that it arrived
    assert wire.ask(b"s1", onward).ok
    assert wire.ask(b"s2", order).ok
    wire.advance(2)
    heal(wire, 20)
    assert [name for name in (b"s0", b"s1", b"s2") if T in server(wire, name).copies] == [b"s0"]
    for index in range(3):
        got = read(wire, b"c%d" % index)
        assert len(got) == len(set(got))
        assert {b"from %d" % i for i in range(index, 3)} <= set(got)


def test_a_stale_proxy_is_sent_on_to_the_new_owner() -> None:
    """NOT_OWNER names the owner; the proxy learns it and asks there."""
    wire = split()
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    order = m.format_message(m.Merge(b"x", T, b"s0", extensions=m.extend(i=b"s0")))
    assert wire.ask(b"s1", order).ok
    wire.lose.remove((b"s0", b"p1"))
    wire.advance(0.1)
    put(wire, b"bob", b"two")
    assert read(wire, b"alice") == [b"one", b"two"]


def test_a_target_that_returns_at_another_address_is_found_again() -> None:
    """A committed move follows the address the next MERGE names."""
    wire = split()
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    wire.lose.add((b"s0", b"s1"))
    order = m.Merge(b"x", T, b"s0", extensions=m.extend(i=b"s0"))
    assert wire.ask(b"s1", m.format_message(order)).ok
    wire.advance(1)
    wire.machines[b"elsewhere"] = wire.machines.pop(b"s0")
    wire.stores[b"elsewhere"] = wire.stores[b"s0"]
    wire.lose = {(b"s1", b"s0")}
    again = m.Merge(b"x", T, b"elsewhere", extensions=m.extend(i=b"s0"))
    assert wire.ask(b"s1", m.format_message(again)).ok
    wire.advance(3)
    assert T not in server(wire, b"s1").copies
    assert T in server(wire, b"elsewhere").copies


def test_a_server_that_returns_with_an_old_copy_doubles_nothing() -> None:
    """Its disk was restored from before the move: the new owner knows that copy already."""
    wire = split()
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one", b"two")
    backup = copy.deepcopy(wire.stores[b"s1"])
    heal(wire)
    assert read(wire, b"alice") == [b"one", b"two"]
    wire.stores[b"s1"] = backup
    assert T in backup.topics
    wire.server(b"s1")
    wire.advance(11)
    assert T not in server(wire, b"s1").copies
    assert read(wire, b"alice") == []
    put(wire, b"bob", b"three")
    assert read(wire, b"alice") == [b"three"]


def test_two_proxies_may_order_one_merge() -> None:
    """The second order finds the move under way."""
    wire = split()
    wire.client(b"alice", b"p0")
    wire.do(b"alice", SubscribeTo(T))
    wire.client(b"bob", b"p1")
    put(wire, b"bob", b"one")
    wire.lose.add((b"s0", b"s1"))
    for proxy in (b"p0", b"p1"):
        assert wire.ask(b"s1", m.format_message(m.Merge(proxy, T, b"s0", extensions=m.extend(i=b"s0")))).ok
    heal(wire)
    assert read(wire, b"alice") == [b"one"]


def test_a_copy_never_moves_to_a_higher_id() -> None:
    """Moves cannot run in a circle, whatever a proxy orders."""
    wire = split()
    wire.client(b"bob", b"p0")
    put(wire, b"bob", b"one")
    order = m.format_message(m.Merge(b"x", T, b"s1", extensions=m.extend(i=b"s1")))
    assert wire.ask(b"s0", order).status == m.BAD_REQUEST


def test_an_old_peers_transfer_is_taken_in_once() -> None:
    """Section 3.1.7 without our fields: subscribers with what they have yet to receive, then the messages."""
    wire = split()
    data = b"TRANSFER old t\r\n\r\nalice m1 m2\r\n*m1\r\nfirst*m2\r\nse/scond"
    assert wire.ask(b"s0", data).ok
    assert wire.ask(b"s0", data).ok
    assert wire.ask(b"s0", b"GET alice t -1\r\n\r\n") == m.Status(b"s0", m.OK, b"m1", b"first")
    assert wire.ask(b"s0", b"GET alice t m1\r\n\r\n") == m.Status(b"s0", m.OK, b"m2", b"se*cond")
    assert wire.ask(b"s0", b"GET alice t m2\r\n\r\n").status == m.NO_MESSAGE
    assert wire.ask(b"s0", data).ok
    assert wire.ask(b"s0", b"GET alice t m2\r\n\r\n").status == m.NO_MESSAGE


def test_stamps_far_in_the_future_do_not_move_the_clock() -> None:
    """A hostile client or a server with a broken clock cannot push everybody ahead."""
    wire = split()
    future = int((wire.now + 3600) * 1000) << 16
    wire.ask(b"s0", m.format_message(m.Put(b"evil", T, 1, b"x", extensions=m.extend(t=future))))
    assert server(wire, b"s0").clock.last < future
    data = b"@copy evil!1\r\nalice @s=%d @o=1 @r=0\r\n" % future
    part = m.Transfer(b"evil", T, data, extensions=m.extend(c=b"evil!1", x=1, p=0))
    final = m.Transfer(b"evil", T, b"", extensions=m.extend(c=b"evil!1", x=1, e=1))
    assert wire.ask(b"s0", m.format_message(part)).ok
    assert wire.ask(b"s0", m.format_message(final)).status == m.CLOCK


def test_two_clients_with_one_id_are_told() -> None:
    """The same counter with another body is no retry."""
    wire = split()
    wire.client(b"bob", b"p0")
    put(wire, b"bob", b"one")
    wire.stores.pop(b"bob")
    wire.client(b"bob", b"p0")
    error = wire.do(b"bob", PutTo(T, b"another")).error
    assert isinstance(error, TopicsRefusedError)
    assert "two clients share this id" in str(error)


@pytest.mark.parametrize(
    ("options", "status"),
    [({"topics_max": 1}, m.REFUSED), ({"body_bytes_max": 3}, m.REFUSED), ({"backlog_messages_max": 1}, m.BUSY)],
)
def test_each_limit_is_a_clear_refusal(options: dict[str, object], status: bytes) -> None:
    """Topics, body size, backlog."""
    wire = Wire()
    wire.proxy(b"p0")
    wire.server(b"s0", **options)
    assert wire.ask(b"s0", b"PUT bob t 1\r\n\r\nabc").ok
    second = wire.ask(b"s0", b"PUT bob %s 2\r\n\r\nabcd" % (b"u" if "topics_max" in options else b"t"))
    assert second.status == status
    assert second.body


def test_hostile_bytes_get_an_answer_and_change_nothing() -> None:
    """BAD_REQUEST, whatever arrives at a server or a proxy."""
    wire = split()
    for payload in (
        b"",
        b"\r\n\r\n",
        b"PUT a b c\r\n\r\n",
        b"TRANSFER a t\r\n\r\nno line end",
        b"STATUS a OK\r\n\r\n",
        b"\xff" * 500,
    ):
        assert wire.ask(b"s0", payload).status == m.BAD_REQUEST
        assert wire.ask(b"p0", payload).status == m.BAD_REQUEST
    assert server(wire, b"s0").copies == {}


def test_a_publisher_order_holds_over_a_merge() -> None:
    """An old client's first put on one owner and later ones on the other: never out of order."""
    wire = split()
    wire.client(b"alice", b"p1")
    wire.do(b"alice", SubscribeTo(T))
    for proxy, counter in ((b"p1", 1), (b"p0", 2), (b"p0", 3)):
        assert wire.ask(proxy, b"PUT old t %d\r\n\r\n%d" % (counter, counter)).ok
    heal(wire)
    assert wire.ask(b"p0", b"PUT old t 4\r\n\r\n4").ok
    assert read(wire, b"alice") == [b"1", b"2", b"3", b"4"]
