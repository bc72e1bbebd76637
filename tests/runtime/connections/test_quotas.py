"""What one address and one identity may use of a broker, and that others do not notice."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from tests.runtime.raw_client import raw
from tests.security.guarded import Guard, guarded_node
from tests.waiting import until

from postroad.client.connection import ClientConfig
from postroad.errors import NotConnectedError, TooManyConnectionsError, TooManyError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Limits, NodeConfig
from postroad.runtime.connections.quotas import Quotas, address_of
from postroad.wire.packets.session import Ping


def test_an_address_has_so_many_connections_and_fewer_unidentified_ones() -> None:
    quotas = Quotas(Limits(connections_per_address_max=3, handshakes_per_address_max=2))
    quotas.connected("10.0.0.1")
    quotas.connected("10.0.0.1")
    with pytest.raises(TooManyConnectionsError, match="2 of them unidentified"):
        quotas.check_address("10.0.0.1")
    quotas.check_address("10.0.0.2")
    quotas.known("10.0.0.1")
    quotas.check_address("10.0.0.1")
    quotas.connected("10.0.0.1")
    quotas.known("10.0.0.1")
    with pytest.raises(TooManyConnectionsError, match="3 connections"):
        quotas.check_address("10.0.0.1")
    for known in (True, True, False):
        quotas.disconnected("10.0.0.1", known=known)
    assert not quotas.addresses
    assert quotas.refused_by_address == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_a_network_of_64_bits_counts_as_one_address(one: str, other: str, *, same: bool) -> None:
    """A single machine has 2**64 addresses of IPv6 to come from."""
    assert (address_of(one) == address_of(other)) is same


def test_an_identity_publishes_at_its_rate_over_all_connections() -> None:
    """A second's worth passes at once; what is above it waits as long as the rate says."""
    quotas = Quotas(Limits(publish_bytes_per_s_per_identity=1024))
    quotas.entered("shop")
    assert quotas.published("shop", 1024, 10.0) == 0.0
    assert quotas.published("shop", 512, 10.0) == pytest.approx(0.5)
    assert quotas.published("shop", 512, 11.0) == 0.0
    quotas.entered("desk")
    assert quotas.published("desk", 1024, 11.0) == 0.0
    assert quotas.by_identity()["shop"] == {"connections": 1, "published_bytes": 2048, "held_to_rate": 1}


def test_who_connects_again_has_no_new_rate() -> None:
    quotas = Quotas(Limits(publish_bytes_per_s_per_identity=1024))
    quotas.entered("shop")
    assert quotas.published("shop", 1024, 10.0) == 0.0
    quotas.left("shop")
    quotas.entered("shop")
    assert quotas.published("shop", 512, 10.0) == pytest.approx(0.5)


def test_a_stranger_can_send_only_so_much(tmp_path: Path) -> None:
    """An unidentified client cannot make the broker answer for as long as its handshake may take."""

    async def scenario() -> None:
        limits = Limits(unidentified_bytes_max=4096, handshake_s=60.0)
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", log_level="error", limits=limits))
        await node.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(raw(Ping(), 1) * 1000)
        async with asyncio.timeout(20):
            answered = await reader.read(-1)
        assert len(answered) < 2 * 4096
        writer.close()
        await node.stop()

    asyncio.run(scenario())


def test_one_address_cannot_take_all_unidentified_connections(tmp_path: Path) -> None:
    """Loopback has many addresses: a flood from one leaves room for another."""

    async def scenario() -> None:
        limits = Limits(handshakes_per_address_max=20, handshake_s=60.0)
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", log_level="error", limits=limits))
        await node.start()
        flood = [await asyncio.to_thread(socket.create_connection, ("127.0.0.1", node.port)) for _ in range(60)]
        await until(lambda: node.quotas.refused_by_address == 40)
        other = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", node.port), 10.0, ("127.0.0.9", 0))
        other.sendall(raw(Ping(), 1))
        assert await asyncio.to_thread(other.recv, 64)
        assert node.stats()["connections_refused_by_address"] == 40
        for each in (*flood, other):
            each.close()
        await until(lambda: not node.quotas.addresses)
        await node.stop()

    asyncio.run(scenario())


def test_an_identity_has_so_many_connections_and_subscriptions(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    guard.identity("shop", subscribe=True)
    guard.identity("desk", subscribe=True)

    async def scenario() -> None:
        limits = Limits(connections_per_identity_max=2, subscriptions_per_identity_max=3)
        node = guarded_node(guard, tmp_path, limits=limits)
        await node.start()
        async with guard.connect(node, "shop") as one, guard.connect(node, "shop") as two, guard.connect(node, "desk") as other:
            with pytest.raises(NotConnectedError, match="identity 'shop' has 2 connections"):
                async with guard.connect(node, "shop", config=ClientConfig(connect_s=0.5)):
                    pass
            for client in (one, two, one):
                await client.subscribe("n > 0")
            with pytest.raises(TooManyError):
                await two.subscribe("n > 1")
            await other.subscribe("n > 1")
            uses = node.stats()["identity_uses"]
            assert isinstance(uses, dict)
            assert uses["shop"]["connections"] == 2
        await until(lambda: not any(use.connections for use in node.quotas.identities.values()))
        await node.stop()

    asyncio.run(scenario())


def test_an_identity_that_publishes_above_its_rate_is_read_more_slowly(tmp_path: Path) -> None:
    """Nothing is lost and nobody else waits: the connection is not read until the rate allows it."""
    guard = Guard(tmp_path)
    guard.identity("shop", publish=True)
    guard.identity("desk", publish=True)

    async def scenario() -> None:
        node = guarded_node(guard, tmp_path, limits=Limits(publish_bytes_per_s_per_identity=100_000))
        await node.start()
        async with guard.connect(node, "shop") as shop, guard.connect(node, "desk") as desk:
            begun, publisher = time.monotonic(), shop.publisher()
            for number in range(30):
                await publisher.publish({"n": number}, bytes(10_000))
                await publisher.flush()
            assert time.monotonic() - begun > 1.5  # three seconds' worth, of which the first passes at once
            await desk.publish({"n": 1})
            assert node.quotas.by_identity()["shop"]["held_to_rate"] > 0
            assert node.quotas.by_identity()["desk"]["held_to_rate"] == 0
        await node.stop()

    asyncio.run(scenario())
