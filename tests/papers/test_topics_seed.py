"""One test per guarantee of the seed "Enforcing Exactly-Once Semantics in a Load-Balanced Pub/Sub Service", section cited."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.topics.fake_wire import Wire

from postroad.cli import main
from postroad.errors import ConfigError, TopicsNotSubscribedError, TopicsUnavailableError
from postroad.testing import free_ports
from postroad.topics.machines import messages as m
from postroad.topics.machines.client import FinishPut, GetFrom, PutTo, SubscribeTo, UnsubscribeFrom
from postroad.topics.machines.options import CallOptions, ServerOptions
from postroad.topics.machines.replica import TopicCopy
from postroad.topics.machines.server import ServerMachine
from postroad.topics.proxies_file import load_proxies
from postroad.topics.sync import connect

NEWS = b"news"


def service(*, servers: int = 1, proxies: int = 1, clients: tuple[bytes, ...] = (b"alice", b"bob")) -> Wire:
    wire = Wire()
    for index in range(proxies):
        wire.proxy(b"proxy%d" % index)
    for index in range(servers):
        wire.server(b"server%d" % index)
    for name in clients:
        wire.client(name)
    return wire


def bodies(wire: Wire, client: bytes, topic: bytes = NEWS) -> list[bytes]:
    """Get until there is nothing more."""
    found: list[bytes] = []
    while True:
        finished = wire.do(client, GetFrom(topic))
        assert finished.error is None, finished.error
        if finished.message is None:
            return found
        found.append(finished.message.body)


def copy_of(wire: Wire, server: bytes, topic: bytes = NEWS) -> TopicCopy:
    machine = wire.machines[server]
    assert isinstance(machine, ServerMachine)
    return machine.copies[topic]


# -- 2.1 subscribe ---------------------------------------------------------------------------------------------------


def test_2_1_only_messages_processed_after_the_subscription_are_received() -> None:
    """2.1: "Only messages processed by the service after processing the subscription can be received"."""
    wire = service()
    wire.do(b"bob", PutTo(NEWS, b"before"))
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"after"))
    assert bodies(wire, b"alice") == [b"after"]


def test_2_1_on_success_the_client_is_subscribed_also_after_a_crash_of_the_server() -> None:
    """2.1: "On a successful return, it is guaranteed that the client will be subscribed"."""
    wire = service()
    assert wire.do(b"alice", SubscribeTo(NEWS)).error is None
    wire.server(b"server0")
    wire.do(b"bob", PutTo(NEWS, b"one"))
    assert bodies(wire, b"alice") == [b"one"]


def test_2_1_an_error_may_still_have_subscribed() -> None:
    """2.1: "If an error is returned, it is still possible, but not guaranteed, that the client has become subscribed"."""
    wire = service()
    wire.do(b"alice", UnsubscribeFrom(NEWS))
    wire.lose.add((b"proxy0", b"alice"))
    assert isinstance(wire.do(b"alice", SubscribeTo(NEWS)).error, TopicsUnavailableError)
    wire.lose.clear()
    assert copy_of(wire, b"server0").subscribers[b"alice"].subscribed


def test_2_1_a_second_subscribe_changes_nothing() -> None:
    """Subscribing twice neither repeats nor loses messages."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"one"))
    wire.do(b"alice", SubscribeTo(NEWS))
    assert bodies(wire, b"alice") == [b"one"]


# -- 2.2 unsubscribe -------------------------------------------------------------------------------------------------


def test_2_2_after_unsubscribe_nothing_is_received_even_if_sent_before() -> None:
    """2.2: "unable to receive any messages from this topic, even if they were sent before unsubscribing"."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"unread"))
    assert wire.do(b"alice", UnsubscribeFrom(NEWS)).error is None
    assert isinstance(wire.do(b"alice", GetFrom(NEWS)).error, TopicsNotSubscribedError)
    wire.do(b"alice", SubscribeTo(NEWS))
    assert bodies(wire, b"alice") == []


def test_2_2_a_late_duplicate_of_the_subscription_does_not_undo_an_unsubscribe() -> None:
    """2.2: the guarantee holds although the network delivers an old SUBSCRIBE afterwards."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    old = [payload for source, _, payload in wire.sent if source == b"proxy0" and payload.startswith(b"SUBSCRIBE")][-1]
    wire.do(b"alice", UnsubscribeFrom(NEWS))
    assert wire.ask(b"server0", old).status == m.STALE
    assert not copy_of(wire, b"server0").subscribers[b"alice"].subscribed


def test_2_2_an_error_may_still_have_unsubscribed() -> None:
    """2.2: "If an error is returned, it is still possible, but not guaranteed, that the client has become unsubscribed"."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.lose.add((b"server0", b"proxy0"))
    assert isinstance(wire.do(b"alice", UnsubscribeFrom(NEWS)).error, TopicsUnavailableError)
    assert not copy_of(wire, b"server0").subscribers[b"alice"].subscribed


# -- 2.3 get ---------------------------------------------------------------------------------------------------------


def test_2_3_a_received_message_is_not_received_again() -> None:
    """2.3: "will not be received again in the future by the client with the given ID", crashes of both sides included."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"one"))
    assert wire.do(b"alice", GetFrom(NEWS)).message is not None
    wire.client(b"alice")
    wire.server(b"server0")
    assert bodies(wire, b"alice") == []


def test_2_3_an_error_neither_receives_nor_loses() -> None:
    """2.3: "In case of an error, no message is received nor lost", also when the server had already answered."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"one"))
    wire.lose.add((b"proxy0", b"alice"))
    assert wire.do(b"alice", GetFrom(NEWS)).error is not None
    wire.lose.clear()
    assert bodies(wire, b"alice") == [b"one"]


def test_2_3_an_error_says_what_is_wrong() -> None:
    """2.3: "information about the error is returned"."""
    wire = service()
    wire.do(b"bob", PutTo(NEWS, b"one"))
    error = wire.do(b"alice", GetFrom(NEWS)).error
    assert isinstance(error, TopicsNotSubscribedError)
    assert "not subscribed" in str(error)


def test_2_3_the_content_survives_a_crash_between_storing_and_returning() -> None:
    """2.3: what is stored as received can be had again from the client's own disk."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"one"))
    wire.do(b"alice", GetFrom(NEWS))
    assert wire.stores[b"alice"].received(NEWS) == (b"1:bob", b"one")


# -- 2.4 put ---------------------------------------------------------------------------------------------------------


def test_2_4_on_success_every_earlier_subscriber_receives_it_in_order() -> None:
    """2.4: "all subscribers [...] will eventually receive the message if they keep calling get"."""
    wire = service(clients=(b"alice", b"carol", b"bob"))
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"carol", SubscribeTo(NEWS))
    for body in (b"1", b"2", b"3"):
        assert wire.do(b"bob", PutTo(NEWS, body)).error is None
    assert bodies(wire, b"alice") == bodies(wire, b"carol") == [b"1", b"2", b"3"]


def test_2_4_an_unsuccessful_put_may_have_happened_and_finishing_it_makes_it_happen_once() -> None:
    """2.4: "it is still possible, but not guaranteed, that the message was sent"."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.lose.add((b"proxy0", b"bob"))
    assert isinstance(wire.do(b"bob", PutTo(NEWS, b"one")).error, TopicsUnavailableError)
    wire.lose.clear()
    wire.client(b"bob")
    assert wire.do(b"bob", FinishPut(NEWS)).error is None
    assert bodies(wire, b"alice") == [b"one"]


# -- 3 protocol ------------------------------------------------------------------------------------------------------


def test_3_a_message_is_tried_three_times_a_hundred_milliseconds_apart() -> None:
    """3: "a response to be given within 100 milliseconds, otherwise the sender will retry up to a maximum of three times"."""
    assert (CallOptions().timeout_ms, CallOptions().tries) == (100, 3)
    wire = service(servers=0)
    wire.lose.add((b"alice", b"proxy0"))
    start = wire.now
    assert wire.do(b"alice", SubscribeTo(NEWS)).error is not None
    assert len([1 for source, _, _ in wire.sent if source == b"alice"]) == 3
    assert 0.29 < wire.now - start < 0.46


def test_3_a_client_tries_the_next_proxy_and_aborts_after_the_last() -> None:
    """3: "it will try the next proxy in its configuration file and so on, until [...] running out of proxies to try"."""
    wire = service(proxies=2)
    wire.lose.add((b"alice", b"proxy0"))
    assert wire.do(b"alice", SubscribeTo(NEWS)).error is None
    wire.lose.add((b"alice", b"proxy1"))
    assert isinstance(wire.do(b"alice", SubscribeTo(NEWS)).error, TopicsUnavailableError)


def test_3_a_new_topic_goes_to_the_server_with_the_fewest_topics_and_the_smallest_id() -> None:
    """3: "the server that is responsible for the least number of topics. In case of a tie [...] the smallest server ID"."""
    wire = service(servers=3)
    for topic in (b"a", b"b", b"c", b"d"):
        wire.do(b"bob", PutTo(topic, b"x"))
    owners = {
        topic: name
        for name in (b"server0", b"server1", b"server2")
        for topic in wire.machines[name].copies  # type: ignore[union-attr]
    }
    assert owners == {b"a": b"server0", b"b": b"server1", b"c": b"server2", b"d": b"server0"}


def test_3_an_added_server_takes_new_topics() -> None:
    """3: assignment looks at the servers of the moment."""
    wire = service()
    wire.do(b"bob", PutTo(b"a", b"x"))
    wire.server(b"server1")
    wire.do(b"bob", PutTo(b"b", b"x"))
    assert b"b" in wire.machines[b"server1"].copies  # type: ignore[union-attr]


def test_3_servers_announce_themselves_every_five_seconds_to_every_proxy() -> None:
    """3 and 5.2: "a loop that sends a message to every proxy and then sleeps for five seconds"."""
    assert ServerOptions().period_s == 5.0
    wire = service(proxies=2)
    wire.sent.clear()
    wire.advance(10.5)
    for proxy in (b"proxy0", b"proxy1"):
        assert len([1 for _, to, payload in wire.sent if to == proxy and payload.startswith(b"PERIODIC")]) == 2


def test_3_a_conflict_is_detected_and_the_higher_id_gives_its_copy_to_the_lower() -> None:
    """3: the server with the higher id "transfers its data on that topic to the server with lower ID"."""
    wire = two_owners()
    wire.lose.clear()
    wire.advance(6)
    assert [payload.split(b" ")[0] for _, to, payload in wire.sent if to == b"server1"].count(b"MERGE") >= 1
    assert NEWS not in wire.machines[b"server1"].copies  # type: ignore[union-attr]
    assert NEWS in wire.machines[b"server0"].copies  # type: ignore[union-attr]


def test_3_1_the_proxy_does_not_alter_what_a_client_sends() -> None:
    """3.1: the sender's id "is unaltered by the proxy when it is redirecting a message from a client"; so is all the rest."""
    wire = service()
    wire.do(b"bob", PutTo(NEWS, b"x"))
    put = [(source, payload) for source, _, payload in wire.sent if payload.startswith(b"PUT")]
    assert [source for source, _ in put] == [b"bob", b"proxy0"] * 2  # the first time it learns its home
    assert put[0][1] == put[1][1]
    assert put[2][1] == put[3][1]


def test_3_1_an_old_client_is_served_in_the_seeds_bytes() -> None:
    """3.1: without our extension fields a client gets answers without them."""
    wire = service(clients=())
    assert wire.ask(b"proxy0", b"SUBSCRIBE old news\r\n\r\n") == m.Status(b"server0", m.OK)
    assert wire.ask(b"proxy0", b"PUT old news 1\r\n\r\nhi") == m.Status(b"server0", m.OK)
    assert wire.ask(b"proxy0", b"GET old news -1\r\n\r\n") == m.Status(b"server0", m.OK, b"1:old", b"hi")
    assert wire.ask(b"proxy0", b"GET old news 1:old\r\n\r\n").status == m.NO_MESSAGE


def test_3_1_3_a_first_get_says_minus_one_and_no_message_has_that_id() -> None:
    """3.1.3: "this field will be the string "-1". The server guarantees to never create a message with this ID"."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"alice", GetFrom(NEWS))
    assert any(payload.startswith(b"GET alice news -1 ") for _, _, payload in wire.sent)
    assert m.message_id(b"1", 0) != m.NO_MESSAGE_ID


# -- 4 fault tolerance -----------------------------------------------------------------------------------------------


def test_4_state_is_stored_before_success_is_reported() -> None:
    """4: "their state is saved in persistent storage, which is updated before reporting success on any operation"."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"one"))
    wire.do(b"alice", GetFrom(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"two"))
    for restart in (wire.server, wire.proxy, wire.client):
        name = {wire.server: b"server0", wire.proxy: b"proxy0", wire.client: b"alice"}[restart]
        restart(name)
    wire.server(b"server0")
    assert bodies(wire, b"alice") == [b"two"]


def test_4_a_put_repeated_after_a_time_out_is_executed_once() -> None:
    """4: "the server will recognize duplicates, thanks to the put counter, and only execute the put once"."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"one"))
    put = [payload for source, _, payload in wire.sent if source == b"proxy0" and payload.startswith(b"PUT")][-1]
    assert wire.ask(b"server0", put).ok
    wire.server(b"server0")
    assert wire.ask(b"server0", put).ok
    assert bodies(wire, b"alice") == [b"one"]


def test_4_the_server_keeps_a_message_until_the_client_says_it_has_it() -> None:
    """4: "the server will not delete a message that the client did not receive"; and once it knows, it reclaims it."""
    wire = service()
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.do(b"bob", PutTo(NEWS, b"one"))
    for _ in range(3):
        assert wire.ask(b"server0", b"GET alice news -1\r\n\r\n").body == b"one"
    assert bodies(wire, b"alice") == [b"one"]
    wire.advance(21)  # a proxy that has just been installed gives all servers 15 s to announce themselves
    assert copy_of(wire, b"server0").log == {}


def test_4_a_proxy_crash_keeps_the_service() -> None:
    """4: "due to a proxy crash, it may lose the state of which servers to dispatch the topics to"; ours does not."""
    wire = service(servers=2)
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.proxy(b"proxy0")
    wire.do(b"bob", PutTo(NEWS, b"one"))
    assert bodies(wire, b"alice") == [b"one"]


def two_owners() -> Wire:
    """Alice subscribes through one proxy on server0; bob puts through another on server1."""
    wire = service(proxies=2, servers=0, clients=())
    wire.lose = {(b"server0", b"proxy1"), (b"server1", b"proxy0")}
    wire.server(b"server0")
    wire.server(b"server1")
    wire.client(b"alice", b"proxy0")
    wire.client(b"bob", b"proxy1")
    assert wire.do(b"alice", SubscribeTo(NEWS)).error is None
    assert wire.do(b"bob", PutTo(NEWS, b"one")).error is None
    assert wire.do(b"bob", PutTo(NEWS, b"two")).error is None
    return wire


def test_4_conflicting_owners_are_resolved_and_the_admitted_loss_does_not_happen() -> None:
    """4: "may lead to those subscribers not receiving messages from the puts in the other server"; with stamps they do."""
    wire = two_owners()
    assert bodies(wire, b"alice") == []
    wire.lose.clear()
    wire.advance(6)
    assert wire.do(b"bob", PutTo(NEWS, b"three")).error is None
    assert bodies(wire, b"alice") == [b"one", b"two", b"three"]


def test_4_an_unavailable_server_gives_a_clear_retriable_error_until_it_is_back() -> None:
    """4: "all topics for which the server is responsible may also become unavailable until it comes back up"."""
    wire = service(servers=2)
    wire.do(b"alice", SubscribeTo(NEWS))
    wire.crash(b"server0")
    error = wire.do(b"bob", PutTo(NEWS, b"one")).error
    assert isinstance(error, TopicsUnavailableError)
    assert error.retryable
    assert "server0 does not answer" in str(error)
    wire.advance(16)  # silent for long enough that new topics go elsewhere
    assert wire.do(b"bob", PutTo(b"other", b"x")).error is None
    wire.server(b"server0")
    assert wire.do(b"bob", PutTo(NEWS, b"two")).error is None
    assert bodies(wire, b"alice") == [b"two"]


@pytest.mark.parametrize("crash", ["source", "target", "none"])
def test_4_an_interrupted_transfer_is_resumed_and_neither_loses_nor_doubles(crash: str) -> None:
    """4: "those types of conflicts are eventually resolved", also when a side dies after the data arrived, before the answer."""
    wire = two_owners()
    wire.lose = {(b"server0", b"server1")}  # everything arrives at the target, no answer comes back
    wire.advance(3)
    if crash == "source":
        wire.server(b"server1")
    elif crash == "target":
        wire.server(b"server0")
    wire.lose = set()
    wire.advance(15)
    assert NEWS not in wire.machines[b"server1"].copies  # type: ignore[union-attr]
    assert bodies(wire, b"alice") == [b"one", b"two"]


# 5.1: "a configuration file ..., which lists the address of each proxy in each line"


def test_a_configuration_file_lists_one_proxy_per_line(tmp_path: Path) -> None:
    """In the order of its lines, for servers and clients; empty lines and comments do not count."""
    file = tmp_path / "proxies.txt"
    file.write_text("# ours\n127.0.0.1:7101\n\n  127.0.0.1:7102  # the second\r\n[::1]:7103\n", encoding="utf-8")
    assert load_proxies(file) == ("127.0.0.1:7101", "127.0.0.1:7102", "[::1]:7103")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.1:7101\nnowhere\n", "line 2: 'nowhere' is not an address"),
        ("127.0.0.1:7101 127.0.0.1:7102\n", "line 1: '127.0.0.1:7101 127.0.0.1:7102'; the file must have one address per line"),
        ("a:1\nb:2\na:1\n", "line 3: a:1 is already in line 1"),
        ("# nothing\n", "no proxy"),
        (None, "No such file"),
    ],
)
def test_a_mistake_in_the_configuration_file_is_told_with_its_line(text: str | None, said: str, tmp_path: Path) -> None:
    """By the program and by the commands alike."""
    file = tmp_path / "proxies.txt"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_proxies(file)
    for command in (["topics", "server", "s1"], ["topic", "get", "alice", "news"], ["topics", "status"]):
        result = CliRunner().invoke(main, [*command, "--proxies-file", str(file)])
        assert result.exit_code == 1
        assert said in result.output


def test_a_service_works_with_its_proxies_in_a_file(tmp_path: Path) -> None:
    """Real processes: the server and the clients read the same file; the first proxy of it is not there."""
    dead, alive = free_ports(2)
    file = tmp_path / "proxies.txt"
    file.write_text(f"127.0.0.1:{dead}\n127.0.0.1:{alive}\n", encoding="utf-8")
    base = [sys.executable, "-m", "postroad.cli"]
    data = ["--data", str(tmp_path / "data")]
    with ExitStack() as stack:
        for command in (["proxy", "p1", "--bind", f"127.0.0.1:{alive}"], ["server", "s1", "--proxies-file", str(file)]):
            process = stack.enter_context(
                subprocess.Popen([*base, "topics", *command, *data], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            assert "listens" in process.stdout.readline()
        with connect(file, name="alice", data=tmp_path / "alice", timeout=60) as alice:
            alice.subscribe("news")
        put = [*base, "topic", "put", "bob", "news", "--text", "hello", "--proxies-file", str(file), "--patience", "60", *data]
        subprocess.run(put, check=True, timeout=90)
        with connect(file, name="alice", data=tmp_path / "alice", timeout=60) as alice:
            message = alice.get("news", timeout=60)
            assert message is not None
            assert message.body == b"hello"
