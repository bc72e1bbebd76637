"""Costly filters are prepared beside the event loop, one packet of each connection at a time, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.raw_client import HELLO, raw, talk
from tests.waiting import until

import postroad
from postroad.core.filters import filter as filters
from postroad.core.filters.filter import Filter
from postroad.core.protocol import packets
from postroad.core.protocol.rights import Rights
from postroad.errors import FilterError, TooManyError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig
from postroad.runtime.connections import filter_preparation
from postroad.runtime.connections.filter_preparation import Preparation
from postroad.runtime.connections.peer import Peer
from postroad.wire.codec import decode
from postroad.wire.packets.session import Error, Hello, Ping, Pong, Role


def ors(first: int, count: int = 300) -> str:
    return " OR ".join(f"a{first + n} = {n}" for n in range(count))


def node_at(directory: Path) -> BrokerServer:
    return BrokerServer(NodeConfig(id=1, data_dir=str(directory), listen="127.0.0.1:0", log_level="error"))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Record in which threads long filters are parsed, brought to normal form and compiled."""
    seen: dict[str, set[str]] = {}

    def watch(name: str) -> None:
        original = getattr(filters, name)

        def watched(subject: Any, *arguments: Any) -> Any:
            if len(str(subject)) > filter_preparation.COSTLY_CHARACTERS:
                seen.setdefault(name, set()).add(threading.current_thread().name)
            return original(subject, *arguments)

        monkeypatch.setattr(filters, name, watched)

    for name in ("parse", "prepare", "meaning", "compile_test", "compile_select"):
        watch(name)
    return seen


# --- a client ----------------------------------------------------------------------------------------------------------------


def test_costly_filters_take_no_time_of_the_event_loop(tmp_path: Path, threads: dict[str, set[str]]) -> None:
    """All that grows with a filter is done in the thread, also when messages are matched; the answers come in order."""

    async def scenario() -> None:
        node = node_at(tmp_path)
        await node.start()
        sends = [raw(packets.Subscribe(n, ors(1_000 * n)), n) for n in (2, 3, 4)]
        sends += [raw(packets.Unsubscribe(3), 5), raw(packets.Subscribe(6, "a = 1"), 6)]
        async with postroad.connect(node.url) as other:
            talking = asyncio.create_task(talk(node.url, raw(HELLO), b"".join(sends), wait_s=3.0))
            await until(lambda: node.stats()["prepared_filters"] == node.stats()["subscriptions"] == 3)
            await until(lambda: node.stats()["packets_preparing"] == 0)
            await other.publisher().publish({"a": 1, "a2000": 0})
            await other.publisher().flush()
            frames = [decode(frame) for frame in await talking]
        answers = [(type(packet), number) for packet, number, _ in frames if isinstance(packet, ANSWERS)]
        subscribed = {(packets.Subscribed, number) for number in (2, 3, 4, 6)}
        assert set(answers) == {*subscribed, (packets.Unsubscribed, 5)}
        assert answers.index((packets.Subscribed, 3)) < answers.index((packets.Unsubscribed, 5))
        assert sum(isinstance(packet, packets.Deliver) for packet, _, _ in frames) == 2
        assert node.stats()["prepared_filters"] == 3
        assert node.stats()["packets_preparing"] == 0
        await node.stop()

    asyncio.run(scenario())
    assert set(threads) == {"parse", "prepare", "meaning", "compile_test", "compile_select"}
    assert set.union(*threads.values()) == {"filters"}


ANSWERS = (packets.Subscribed, packets.Unsubscribed, Error)


def test_a_costly_text_that_is_no_filter_is_refused_without_parsing_it_again(
    tmp_path: Path, threads: dict[str, set[str]]
) -> None:
    """The error of the thread is the answer, also the second time, and the connection goes on."""

    async def scenario() -> None:
        node = node_at(tmp_path)
        await node.start()
        bad = ors(1) + " OR"
        frames = await talk(
            node.url, raw(HELLO), *(raw(packets.Subscribe(n, bad), n) for n in (2, 3)), raw(Ping(), 4), wait_s=1.0
        )
        answers = [decode(frame)[:2] for frame in frames[1:]]
        assert [(type(answer), number) for answer, number in answers if number != 4] == [(Error, 2), (Error, 3)]
        assert {answer.code for answer, _ in answers if isinstance(answer, Error)} == {201}
        assert (Pong, 4) in [(type(answer), number) for answer, number in answers]
        assert node.stats()["prepared_filters"] == 1
        await node.stop()

    asyncio.run(scenario())
    assert threads["parse"] == {"filters"}


def test_a_client_that_goes_away_takes_what_waited_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is subscribed for a connection that ended while its filters were prepared."""
    entered, go_on = threading.Event(), threading.Event()
    original = filter_preparation.prepare_all

    def slow(texts: list[str], rights: Rights) -> filter_preparation.Prepared:
        entered.set()
        assert go_on.wait(20)
        return original(texts, rights)

    monkeypatch.setattr(filter_preparation, "prepare_all", slow)

    async def scenario() -> None:
        node = node_at(tmp_path)
        await node.start()
        await talk(node.url, raw(HELLO), raw(packets.Subscribe(2, ors(1)), 2) * 3, wait_s=0.2)
        await asyncio.to_thread(entered.wait, 20)
        await until(lambda: not node.peers)
        assert node.stats()["packets_preparing"] == 0
        go_on.set()
        async with postroad.connect(node.url) as client, asyncio.timeout(20):
            await client.subscribe(ors(5_000))
        assert node.stats()["prepared_filters"] == 2
        await node.stop()

    asyncio.run(scenario())


# --- a link ------------------------------------------------------------------------------------------------------------------


def test_a_link_goes_on_while_the_filters_of_an_interest_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other packets of the neighbour are taken meanwhile; its interests stay in order."""
    go_on = threading.Event()
    original = filter_preparation.prepare_all

    def slow(texts: list[str], rights: Rights) -> filter_preparation.Prepared:
        assert go_on.wait(20)
        return original(texts, rights)

    monkeypatch.setattr(filter_preparation, "prepare_all", slow)
    ours, theirs = packets.pubend_id(1), packets.pubend_id(2)
    hello = Hello(1, 1, Role.BROKER, 2, "neighbour", incarnation=1)
    sends = raw(packets.LinkState(2, 1, 1, [(1, 1)], []))
    sends += raw(packets.Interest(ours, 1, full=True, add=[ors(1)], remove=[]))
    sends += raw(packets.Interest(ours, 2, full=False, add=["x = 1"], remove=[]))
    sends += raw(packets.LinkState(2, 1, 2, [(1, 1)], [theirs]))

    async def scenario() -> None:
        node = node_at(tmp_path)
        await node.start()
        talking = asyncio.create_task(talk(node.url, raw(hello), sends, wait_s=2.0))
        await until(lambda: theirs in node.stats()["streams"])  # type: ignore[operator]
        assert node.stats()["packets_preparing"] == 2
        go_on.set()
        frames = [decode(frame)[0] for frame in await talking]
        active = [packet.epoch for packet in frames if isinstance(packet, packets.InterestActive) and packet.pubend == ours]
        assert active == [1, 2]
        await node.stop()

    asyncio.run(scenario())


# --- fairness ----------------------------------------------------------------------------------------------------------------


class RecordingHost:
    """Takes packets and remembers filters, in the order they come."""

    def __init__(self) -> None:
        self.known: dict[str, Filter | FilterError] = {}
        self.taken: list[tuple[int, int]] = []

    def knows_filter(self, text: str) -> bool:
        return text in self.known

    def remember_filter(self, text: str, known: Filter | FilterError) -> None:
        self.known[text] = known

    def take_packet(self, peer: Peer, packet: packets.Packet, batch: object, packet_id: int) -> None:
        del batch, packet
        self.taken.append((peer.link, packet_id))


def test_one_connection_has_one_packet_in_the_thread_at_a_time() -> None:
    """A client with many costly filters goes behind the others after each of them."""

    async def scenario() -> None:
        node = node_at(Path("unused"))
        loop = asyncio.get_running_loop()
        host = RecordingHost()
        preparation = Preparation(host, loop)
        peers = [Peer(node, loop, link, None) for link in (1, 2, 3)]
        for peer in peers:
            peer.role = Role.CLIENT
        for number in range(4):
            assert preparation.keep(peers[0], packets.Subscribe(number, ors(1_000 * number)), None, number)
        for peer in peers[1:]:
            assert preparation.keep(peer, packets.Subscribe(1, ors(100_000 * peer.link)), None, 0)
        await until(lambda: not len(preparation))
        await preparation.stop()
        assert host.taken == [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3)]

    asyncio.run(scenario())


# --- bounds ------------------------------------------------------------------------------------------------------------------


def test_long_filters_of_one_client_are_bounded_and_come_free_again(tmp_path: Path) -> None:
    """Conditions that no index decides cost something for every message, so a client may not have any number of them."""

    async def scenario() -> None:
        node = node_at(tmp_path)
        await node.start()
        async with postroad.connect(node.url) as client, asyncio.timeout(60):
            first = await client.subscribe(ors(0, 3_500))
            second = await client.subscribe(ors(10_000, 3_500))
            with pytest.raises(TooManyError, match="without indexable conditions"):
                await client.subscribe(ors(20_000, 3_500))
            await client.subscribe("price IN (1, 2, 3)")
            await first.close()
            third = await client.subscribe(ors(20_000, 3_500))
            for subscription in (second, third):
                await subscription.close()
        await node.stop()

    asyncio.run(scenario())
