"""Running brokers: links that break and come back, two that dial each other, slow readers, a good end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.integration.brokers import FaultProxy
from tests.waiting import until

import postroad
from postroad.core.protocol.orders import Append
from postroad.errors import StorageFailedError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Limits, Links, Neighbour, NodeConfig, Overlay
from postroad.runtime.connections.links import newer_wins
from postroad.runtime.connections.peer import Peer
from postroad.runtime.worker import Worker
from postroad.testing import free_ports
from postroad.transport import loops
from postroad.transport.loops import new_event_loop
from postroad.wire.packets.session import Role

LINKS = Links(heartbeat_s=0.1, timeout_s=0.5, retry_s=0.02, retry_s_max=0.1)


def config(tmp_path: Path, number: int, port: int, *neighbours: int, **changes: object) -> NodeConfig:
    return NodeConfig(
        id=number,
        data_dir=str(tmp_path / str(number)),
        listen=f"127.0.0.1:{port}",
        neighbours=tuple(Neighbour(address=f"127.0.0.1:{each}", cost=3) for each in neighbours),
        links=LINKS,
        overlay=Overlay(silence_s=0.05),
        **changes,  # type: ignore[arg-type]  # a test's own choice of keys
    )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(40):
            await scenario()

    asyncio.run(whole())


def links(node: BrokerServer) -> int:
    return sum(peer.role is Role.BROKER for peer in node.peers.values())


def test_two_brokers_that_dial_each_other_keep_one_link(tmp_path: Path) -> None:
    """Both ends choose the same one, and it stays."""

    async def scenario() -> None:
        first, second = free_ports(2)
        nodes = [BrokerServer(config(tmp_path, 1, first, second)), BrokerServer(config(tmp_path, 2, second, first))]
        for node in nodes:
            await node.start()
        await until(lambda: links(nodes[0]) == links(nodes[1]) == 1)
        await asyncio.sleep(0.5)
        assert [links(node) for node in nodes] == [1, 1]
        assert [peer.cost for peer in nodes[0].peers.values()] == [3]
        for node in nodes:
            await node.stop()

    run(scenario)


def test_a_link_outlives_the_time_for_its_handshake(tmp_path: Path) -> None:
    """A welcome that comes before the clock for it is set does not leave the clock running."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        node, other = BrokerServer(config(tmp_path, 1, port)), BrokerServer(config(tmp_path, 2, 0, port))
        for each in (node, other):
            await each.start()
        await until(lambda: links(node) == 1)
        (peer,) = node.peers.values()
        peer.limit_handshake(0.05)
        await asyncio.sleep(0.3)
        assert list(node.peers.values()) == [peer]
        for each in (node, other):
            await each.stop()

    run(scenario)


def test_a_link_that_is_cut_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    """Messages published while the link is down arrive when it is up again."""

    async def scenario() -> None:
        first, second = free_ports(2)
        async with FaultProxy(first) as proxy:
            nodes = [BrokerServer(config(tmp_path, 1, first)), BrokerServer(config(tmp_path, 2, second, proxy.port))]
            for node in nodes:
                await node.start()
            await until(lambda: links(nodes[0]) == 1)
            async with (
                postroad.connect(f"postroad://127.0.0.1:{first}") as near,
                postroad.connect(f"postroad://127.0.0.1:{second}") as far,
            ):
                subscription = await far.subscribe("n >= 0")
                publisher = near.publisher()
                for number in range(300):
                    if number == 100:
                        proxy.cut()
                    if number == 200:
                        proxy.heal()
                    await publisher.publish({"n": number})
                    if number % 20 == 0:
                        await asyncio.sleep(0.02)
                numbers = [(await anext(subscription))["n"] for _ in range(300)]
                assert numbers == list(range(300))
            for node in nodes:
                await node.stop()

    run(scenario)


@pytest.mark.parametrize(("count", "frame_bytes_max"), [(30, 1 << 20), (300, 16 << 20)])
def test_a_link_returns_whatever_the_size_of_the_interest(tmp_path: Path, count: int, frame_bytes_max: int) -> None:
    """Filters that together exceed a frame are sent in several packets, or widened; the link stays and messages arrive."""

    async def scenario() -> None:
        first, second = free_ports(2)
        limits = Limits(frame_bytes_max=frame_bytes_max)
        async with FaultProxy(first) as proxy:
            nodes = [
                BrokerServer(config(tmp_path, 1, first, limits=limits)),
                BrokerServer(config(tmp_path, 2, second, proxy.port, limits=limits)),
            ]
            for node in nodes:
                await node.start()
            await until(lambda: links(nodes[0]) == 1)
            async with (
                postroad.connect(f"postroad://127.0.0.1:{first}") as near,
                postroad.connect(f"postroad://127.0.0.1:{second}") as far,
            ):
                subscription = await far.subscribe("n >= 0")
                for number in range(count):
                    await far.subscribe(f"s = '{number}{'x' * 60_000}'")
                proxy.cut()
                await until(lambda: links(nodes[0]) == links(nodes[1]) == 0)
                proxy.heal()
                await until(lambda: links(nodes[0]) == links(nodes[1]) == 1)
                await near.publisher().publish({"n": 1})
                assert (await anext(subscription))["n"] == 1
                peer = next(peer for peer in nodes[1].peers.values() if peer.role is Role.BROKER)
                await near.publisher().publish({"n": 2})
                assert (await anext(subscription))["n"] == 2
                assert peer in nodes[1].peers.values()
            for node in nodes:
                await node.stop()

    run(scenario)


def test_a_peer_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection over which nothing comes, not even an answer to a probe, ends after the timeout."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        node = BrokerServer(config(tmp_path, 1, port))
        await node.start()
        other = BrokerServer(config(tmp_path, 2, 0, port))
        await other.start()
        await until(lambda: links(node) == 1)
        (peer,) = other.peers.values()
        monkeypatch.setattr(peer.channel, "data_received", lambda _data: None)
        await until(lambda: all(each is not peer for each in other.peers.values()), 3.0)
        await until(lambda: links(node) == 1)
        for each in (node, other):
            await each.stop()

    run(scenario)


def test_a_broker_does_not_link_to_itself(tmp_path: Path) -> None:
    """A wrong address in a file costs nothing but a line in the log."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        node = BrokerServer(config(tmp_path, 1, port, port))
        await node.start()
        await asyncio.sleep(0.3)
        assert links(node) == 0
        await node.stop()

    run(scenario)


def test_publishers_are_not_read_while_too_much_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure reaches the publisher, and ends with the backlog."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        node = BrokerServer(config(tmp_path, 1, port, limits=Limits(publish_backlog_rows=500)))
        await node.start()
        held: list[Append] = []
        append = node._disk.append
        monkeypatch.setattr(node._disk, "append", held.append)
        async with postroad.connect(f"postroad://127.0.0.1:{port}") as client:
            publisher = client.publisher()
            sending = asyncio.create_task(publisher.publish_many([({"n": number}, b"") for number in range(20_000)]))
            await until(lambda: any(not peer.channel.reading for peer in node.peers.values()))
            assert node._broker.backlog_rows < 10_000
            monkeypatch.setattr(node._disk, "append", append)
            for order in held:
                append(order)
            await sending
            await publisher.flush()
            assert all(peer.channel.reading for peer in node.peers.values())
        await node.stop()

    run(scenario)


def test_a_stopping_broker_finishes_what_it_received(tmp_path: Path) -> None:
    """Everything acknowledged before or during an orderly end is there afterwards, and clients hear a goodbye."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        node = BrokerServer(config(tmp_path, 1, port))
        await node.start()
        url = f"postroad://127.0.0.1:{port}"
        async with postroad.connect(url) as client:
            publisher = client.publisher()
            for number in range(2_000):
                await publisher.publish({"n": number})
            await asyncio.sleep(0)
            await node.stop()
            acknowledged = 2_000 - publisher.outstanding
            node = BrokerServer(config(tmp_path, 1, port))
            await node.start()
            assert node._disk.state.pubends[0].last_tick > 0 or acknowledged == 0
            await publisher.flush(20)
            subscription = await client.subscribe(start="earliest")
            assert [(await anext(subscription))["n"] for _ in range(2_000)] == list(range(2_000))
        await node.stop()

    run(scenario)


def test_a_disk_that_fails_stops_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what such a disk holds, so nothing more is acknowledged, and the reason is raised."""

    async def scenario() -> None:
        node = BrokerServer(config(tmp_path, 1, 0))
        await node.start()

        def fail(*_: object) -> None:
            raise StorageFailedError("the log", "fdatasync failed")

        for log in node._disk._storage.logs.values():
            monkeypatch.setattr(log, "append", fail)
        running = asyncio.create_task(node.run())
        async with postroad.connect(f"postroad://127.0.0.1:{node.port}") as client:
            await client.publisher().publish({"n": 1})
            with pytest.raises(StorageFailedError):
                await running
            await client.close(flush=False)

    run(scenario)


def test_the_same_link_wins_at_both_ends() -> None:
    """The one dialled by the lower id; of two by the same side the newer; a new life of the peer always."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def peer(*, dialled: bool, broker: int, incarnation: int = 1) -> Peer:
            made = Peer(None, loop, 1, object() if dialled else None)  # type: ignore[arg-type]
            made.broker, made.incarnation = broker, incarnation
            return made

        at_one = (peer(dialled=True, broker=2), peer(dialled=False, broker=2))
        at_two = (peer(dialled=False, broker=1), peer(dialled=True, broker=1))
        assert not newer_wins(at_one[0], at_one[1], 1)
        assert not newer_wins(at_two[0], at_two[1], 2)
        assert newer_wins(at_one[1], at_one[0], 1)
        assert newer_wins(at_two[1], at_two[0], 2)
        assert newer_wins(at_one[0], at_one[0], 1)
        assert newer_wins(at_one[0], peer(dialled=False, broker=2, incarnation=2), 1)

    run(scenario)


def test_a_worker_does_its_jobs_in_order_and_reports_on_the_loop() -> None:
    """Results and failures come back one by one; stop waits for the rest."""

    async def scenario() -> None:
        worker = Worker(asyncio.get_running_loop(), "test")
        results: list[object] = []

        def broken() -> None:
            raise ValueError("no")

        for number in range(3):
            worker.submit(lambda number=number: number, results.append, results.append)  # type: ignore[misc]
        worker.submit(broken, results.append, lambda error: results.append(str(error)))
        await until(lambda: len(results) == 4)
        assert results == [0, 1, 2, "no"]
        assert worker.pending == 0
        worker.stop()

    run(scenario)


def test_a_deadline_that_has_passed_is_no_trouble_on_any_loop(tmp_path: Path) -> None:
    """A busy broker is late for its own deadlines; uvloop then gives handles that are no timers."""

    async def scenario() -> None:
        node = BrokerServer(config(tmp_path, 1, 0))
        await node.start()
        for _ in range(3):
            node._set_timer(asyncio.get_running_loop().time() - 1.0)
            node._set_timer(asyncio.get_running_loop().time() - 2.0)
            await asyncio.sleep(0.01)
        assert node.failure is None
        await node.stop()

    for factory in (new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(scenario())


def test_a_broker_at_rest_wakes_up_when_it_is_time_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that rounds its timers to milliseconds must not make it look at the clock again and again until it is time."""
    turns = 0
    woken: list[int] = []
    turn = BrokerServer._turn

    def counted(node: BrokerServer) -> None:
        nonlocal turns
        turns += 1
        turn(node)

    monkeypatch.setattr(BrokerServer, "_turn", counted)

    async def scenario() -> None:
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0"))
        await node.start()
        before = turns
        await asyncio.sleep(1.0)
        woken.append(turns - before)
        await node.stop()

    loops.run(scenario())
    assert 10 <= woken[0] <= 100  # twenty times a second there is something to look at


def test_a_configured_limit_holds_on_whichever_link_stays(tmp_path: Path) -> None:
    """Both dial; broker 1 limits what it sends to broker 2, also when the link that stays was dialled by the other."""

    async def scenario() -> None:
        first, second = free_ports(2)
        limited = config(tmp_path, 1, first, second)
        limited = msgspec.structs.replace(
            limited, neighbours=(msgspec.structs.replace(limited.neighbours[0], bandwidth_bytes_per_s=50_000),)
        )
        nodes = [BrokerServer(limited), BrokerServer(config(tmp_path, 2, second, first))]
        for node in nodes:
            await node.start()
        await until(lambda: links(nodes[0]) == links(nodes[1]) == 1)
        await until(lambda: [peer.channel.bandwidth_bytes_per_s for peer in nodes[0].peers.values()] == [50_000])
        assert [peer.channel.bandwidth_bytes_per_s for peer in nodes[1].peers.values()] == [0]
        async with postroad.connect(nodes[0].url) as client:
            await client.limit_link(2, 70_000)
            await until(lambda: links_of(nodes[0]) == [70_000])
            for peer in [peer for peer in nodes[0].peers.values() if peer.role is Role.BROKER]:
                peer.channel.abort()
            await until(lambda: links_of(nodes[0]) == [70_000])
        for node in nodes:
            await node.stop()

    def links_of(node: BrokerServer) -> list[int]:
        return [peer.channel.bandwidth_bytes_per_s for peer in node.peers.values() if peer.role is Role.BROKER]

    run(scenario)


def test_pubends_may_be_added_and_taken_away_between_two_starts(tmp_path: Path) -> None:
    """Their logs stay readable, and a durable subscription gets the messages of new ones, too."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        received: list[int] = []
        for number, pubends in enumerate((1, 3, 1)):
            node = BrokerServer(config(tmp_path, 1, port, pubends=pubends))
            await node.start()
            async with postroad.connect(node.url) as client:
                for index in range(3):
                    async with client.publisher() as publisher:
                        await publisher.publish({"n": 10 * number + index})
                async with await client.subscribe("", name="all", start="earliest") as subscription:
                    while len(received) < 3 * (number + 1):
                        message = await anext(subscription)
                        received.append(int(message.attributes["n"]))
                        await message.ack()
            streams = node.stats()["streams"]
            assert isinstance(streams, dict)
            assert len(streams) == (1 if number == 0 else 3)
            await node.stop()
        assert sorted(received) == [0, 1, 2, 10, 11, 12, 20, 21, 22]

    run(scenario)
