"""The service over real sockets and disks: names, bodies, failures of the disk, both clients, the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner
from tests.topics.live_service import SOURCE

from postroad.cli import main
from postroad.errors import InvalidValueError, TopicsError, TopicsNotSubscribedError, TopicsStoreError, TopicsUnavailableError
from postroad.topics import client as asynchronous
from postroad.topics import sync
from postroad.topics.drivers import Process, proxy_process, server_process
from postroad.topics.machines.messages import NAME_BYTES_MAX
from postroad.topics.machines.options import ServerOptions

PATIENCE_S = 60.0  # other jobs share the machine


class Running:
    """One proxy and one server in threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.processes: list[tuple[Process, threading.Thread]] = []
        self.proxy = self.start(proxy_process(b"proxy", bind="127.0.0.1:0", data=self.data))
        self.address = self.proxy.address.decode()
        self.server = self.start_server()

    def start_server(self) -> Process:
        options = ServerOptions(period_s=0.3)
        return self.start(server_process(b"server", bind="127.0.0.1:0", proxies=[self.address], data=self.data, options=options))

    def start(self, process: Process) -> Process:
        thread = threading.Thread(target=process.run)
        thread.start()
        self.processes.append((process, thread))
        assert process.ready.wait(30)
        return process

    def client(self, name: str | bytes) -> sync.TopicClient:
        return sync.connect([self.address], name=name, data=self.data, timeout=PATIENCE_S)

    def stop(self) -> None:
        for process, _ in self.processes:
            process.stop()
        for _, thread in self.processes:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    service = Running(tmp_path)
    yield service
    service.stop()


HARD_NAMES = [
    b"a/b/../../etc/passwd",
    b"../outside",
    b"/absolute",
    b"..",
    b".",
    b"with spaces  twice ",
    b"control\x00\r\n\r\n\x1b\x7f",
    b"percent%41%zz%",
    b"star*and@at",
    b"\xff\xfe not utf-8 \x80",
    "ünïcödé 消息".encode(),
    b"x" * 10_240,
    b"-1",
]


def files_under(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", HARD_NAMES, ids=lambda name: repr(name[:16]))
def test_any_name_of_a_topic_or_client_works_and_is_no_path(running: Running, name: bytes) -> None:
    """Must show 4: slashes, dots, spaces, controls, 10 kB, not UTF-8; nothing is written outside the data directory."""
    with running.client(name) as client:
        client.subscribe(name)
        client.put(name, b"hello")
        message = client.get(name)
        assert message is not None
        assert (message.topic, message.body) == (name, b"hello")
        assert client.get(name) is None
    assert {path.parts[0] for path in files_under(running.root)} == {"data"}
    assert {path.parent for path in files_under(running.root)} == {Path("data")}


@pytest.mark.parametrize("name", [b"", b"x" * (NAME_BYTES_MAX + 1)])
def test_a_name_that_cannot_travel_is_refused_clearly(running: Running, name: bytes) -> None:
    """Empty, or above the bound."""
    with running.client("alice") as client, pytest.raises(InvalidValueError, match="topic"):
        client.subscribe(name)
    with pytest.raises(InvalidValueError, match="client id"):
        running.client(name)


@pytest.mark.parametrize("body", [b"", b"*", b"/", b"/s//*", b"a\r\n\r\nb", bytes(range(256)) * 10], ids=repr)
def test_any_body_arrives_as_it_was(running: Running, body: bytes) -> None:
    """Must show 4: empty, stars, slashes, CR LF CR LF, binary."""
    with running.client("alice") as client:
        client.subscribe("t")
        client.put("t", body)
        message = client.get("t")
        assert message is not None
        assert message.body == body


def test_the_largest_body_arrives_and_a_larger_one_is_refused(running: Running) -> None:
    """Must show 4: 64 MiB is handled; one byte more is refused before anything is sent or stored."""
    body = os.urandom(1 << 20) * 64
    with running.client("alice") as client:
        client.subscribe("t")
        with pytest.raises(InvalidValueError, match="at most"):
            client.put("t", body + b"x")
        assert client.unfinished("t") is None
        client.put("t", body, timeout=150)
        message = client.get("t", timeout=150)
        assert message is not None
        assert message.body == body


def test_a_server_that_cannot_write_says_so_and_goes_on_when_it_can(running: Running) -> None:
    """Section 4: "it tries to revert the changes to the state in memory and replies with an error"."""
    with running.client("alice") as client:
        client.subscribe("t")
        limit = running.server.store._db.execute("PRAGMA page_count").fetchone()[0]
        running.server.store._db.execute(f"PRAGMA max_page_count={limit}")
        with pytest.raises(TopicsUnavailableError, match="full"):
            client.put("t", b"x" * 10_000_000, timeout=0)
        running.server.store._db.execute("PRAGMA max_page_count=1000000")
        client.finish_put("t")
        message = client.get("t")
        assert message is not None
        assert len(message.body) == 10_000_000
        assert client.get("t") is None
    assert running.server.counters.failed_commits > 0


def test_a_client_that_cannot_write_makes_no_request(running: Running) -> None:
    """Section 4: "If the client fails, it will not make a request in the first place"."""
    with running.client("alice") as client:
        client.subscribe("t")
        store = client.inner._core.store
        limit = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count={limit}")
        with pytest.raises(TopicsStoreError):
            client.put("t", b"x" * 10_000_000)
        store._db.execute("PRAGMA max_page_count=1000000")
        assert client.get("t") is None
        client.put("t", b"small")
        message = client.get("t")
        assert message is not None
        assert message.body == b"small"


def test_the_asyncio_client_keeps_the_same_promises(running: Running, tmp_path: Path) -> None:
    """Subscribe, put, get with waiting, unsubscribe; several clients at once."""

    async def talk() -> list[bytes]:
        def client(name: str) -> asynchronous.TopicClient:
            return asynchronous.connect([running.address], name=name, data=tmp_path / "data", timeout=PATIENCE_S)

        async with client("alice") as alice, client("bob") as bob:
            await alice.subscribe("t")
            waiting = asyncio.create_task(alice.get("t", timeout=60))
            await bob.put("t", b"one")
            first = await waiting
            await asyncio.gather(*(bob.put("t", b"%d" % i) for i in range(5)))
            rest = [await alice.get("t") for _ in range(5)]
            assert alice.last("t") == rest[-1]
            await alice.unsubscribe("t")
            with pytest.raises(TopicsNotSubscribedError):
                await alice.get("t")
            return [message.body for message in (first, *rest) if message is not None]

    assert asyncio.run(talk()) == [b"one", b"0", b"1", b"2", b"3", b"4"]


def test_a_cancelled_operation_leaves_the_client_usable(tmp_path: Path) -> None:
    """Nobody listens; the task is cancelled while it waits; the put can still be finished later."""

    async def talk() -> None:
        async with asynchronous.connect(["127.0.0.1:9"], name="bob", data=tmp_path, timeout=30) as bob:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(bob.put("t", b"one"), 0.2)
            unfinished = bob.unfinished("t")
            assert unfinished is not None
            assert unfinished.body == b"one"
            with pytest.raises(TopicsUnavailableError):
                await bob.finish_put("t", timeout=0)

    asyncio.run(talk())


def test_a_plain_req_socket_of_an_old_peer_is_understood(running: Running) -> None:
    """REQ framing, the seed's bytes."""
    with running.client("alice") as client:
        client.subscribe("t")
    context = zmq.Context()
    try:
        socket = context.socket(zmq.REQ)
        socket.linger = 0
        socket.connect(running.address)
        for request, expected in (
            (b"SUBSCRIBE old t\r\n\r\n", b"STATUS server OK\r\n\r\n"),
            (b"PUT old t 1\r\n\r\nhi", b"STATUS server OK\r\n\r\n"),
            (b"GET old t -1\r\n\r\n", b"STATUS server OK 1:old\r\n\r\nhi"),
        ):
            socket.send(request)
            assert socket.poll(30_000)
            assert socket.recv() == expected
        socket.close(0)
    finally:
        context.destroy(linger=0)


def test_hostile_frames_do_not_stop_a_process(running: Running) -> None:
    """No delimiter, too many frames, empty messages, binary noise."""
    context = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []
    with running.client("alice") as client:
        client.subscribe("t")
    try:
        for address in (running.proxy.address, running.server.address):
            socket = context.socket(zmq.DEALER)
            socket.connect(address.decode())
            sockets.append(socket)
            for frames in ([b"x"], [b""] * 50, [b"", b""], [b"1", b"", b"\xff" * 100_000], [b"", b"PUT a b 1\r\n\r\n"]):
                socket.send_multipart(frames)
            for text in (
                b"MERGE evil b nonsense @i=a\r\n\r\n",
                b"MERGE evil b nonsense:0:0 @i=a\r\n\r\n",
                b"PERIODIC evil @a=nonsense @t=1\r\n\r\nstolen",
                b"PUT evil stolen 9223372036854775807 @t=9223372036854775807 @w=9223372036854775807\r\n\r\nx",
                b"PUT evil stolen 1 @h=nobody!1\r\n\r\nx",
                b"TRANSFER evil stolen @c=x @x=1 @p=0\r\n\r\nalice 9:nobody 9:nobody\r\n*-1\r\nx",
                b"TRANSFER evil stolen @c=x @x=1 @p=0\r\n\r\nalice 9:nobody\r\n*9:nobody\r\nx*9:nobody\r\ny",
                b"TRANSFER evil stolen @c=x @x=1 @e=1\r\n\r\n",
            ):
                socket.send_multipart([b"", text])
        with running.client("alice") as client:
            client.put("t", b"still here")
            message = client.get("t")
            assert message is not None
    finally:
        for socket in sockets:
            socket.close(0)
        context.destroy(linger=0)


def test_a_restarted_server_at_another_port_is_found_again(running: Running) -> None:
    """Its announcement carries its address; its state is on disk."""
    with running.client("alice") as client:
        client.subscribe("t")
        client.put("t", b"one")
        running.server.stop()
        running.processes.pop()[1].join(30)
        running.server = running.start_server()
        message = client.get("t")
        assert message is not None
        assert message.body == b"one"


@pytest.mark.parametrize("address", ["", "nonsense", "host:", "host:99999", ":80", "tcp://", "a/b:1", "host:-1"])
def test_a_wrong_address_is_explained(tmp_path: Path, address: str) -> None:
    """Before anything is opened."""
    with pytest.raises(InvalidValueError, match="host:port"):
        sync.connect([address], name="alice", data=tmp_path)
    assert not files_under(tmp_path)


def test_a_port_in_use_is_explained(running: Running, tmp_path: Path) -> None:
    """The address is named."""
    process = proxy_process(b"second", bind=running.address, data=tmp_path / "data")
    with pytest.raises(TopicsError, match="cannot listen on"):
        process.run()


def test_the_commands_subscribe_put_get_and_show(running: Running, tmp_path: Path) -> None:
    """What a person types."""
    runner = CliRunner()
    where = ["--proxy", running.address, "--data", str(tmp_path / "data"), "--patience", "60"]
    (tmp_path / "data" / "message").write_bytes(b"from a file")
    for arguments, code, output in (
        (["topic", "get", "alice", "my topic", *where], 1, ""),
        (["topic", "subscribe", "alice", "my topic", *where], 0, ""),
        (["topic", "get", "alice", "my topic", *where], 3, ""),
        (["topic", "put", "bob", "my topic", "--text", "hello", *where], 0, ""),
        (["topic", "put", "bob", "my topic", str(tmp_path / "data" / "message"), *where], 0, ""),
        (["topic", "put", "bob", "my topic", *where], 2, ""),
        (["topic", "get", "alice", "my topic", *where], 0, "hello"),
        (["topic", "get", "alice", "my topic", "--again", *where], 0, "hello"),
        (["topic", "get", "alice", "my topic", *where], 0, "from a file"),
        (["topic", "unsubscribe", "alice", "my topic", *where], 0, ""),
        (["topic", "forget-home", "alice", "my topic", *where], 0, ""),
    ):
        result = runner.invoke(main, arguments)
        assert (result.exit_code, result.stdout) == (code, output), (arguments, result.output)
    shown = runner.invoke(main, ["topics", "status", "--proxy", running.address, "--json", "--timeout", "20"])
    report = json.loads(shown.stdout)
    assert report["proxies"][0]["report"]["servers"][0]["server"] == "server"
    assert report["servers"][0]["report"]["topics"][0]["topic"] == "my topic"
    table = runner.invoke(main, ["topics", "status", "--proxy", running.address, "--timeout", "20"])
    assert "my topic" in table.stdout


def test_status_without_a_proxy_is_an_error_with_advice(tmp_path: Path) -> None:
    """Exit code 1."""
    result = CliRunner().invoke(main, ["topics", "status", "--proxy", "127.0.0.1:9", "--timeout", "0.1"])
    assert result.exit_code == 1
    assert "postroad topics proxy" in result.stderr


def test_postroad_works_without_pyzmq_and_topics_say_what_is_missing(tmp_path: Path) -> None:
    """The extra is named."""
    code = (
        "import sys; sys.modules['zmq'] = None\n"
        "import postroad, postroad.cli, postroad.topics.sync as s\n"
        "from postroad.errors import TopicsDependencyError\n"
        "try:\n    s.connect(['127.0.0.1:1'], name='a', data='d')\n"
        "except TopicsDependencyError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert "pip install 'postroad[topics]'" in done.stdout
    assert not files_under(tmp_path)
