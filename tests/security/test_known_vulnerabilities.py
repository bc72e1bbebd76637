"""Vulnerabilities that were published for comparable brokers, one test each: none of them is possible here.

The ids are those of the public advisories. Where a class has no id of a broker, the test names the class.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect as types
from tests.core.broker.overlay import Overlay
from tests.runtime.raw_client import raw
from tests.security.guarded import Guard, exchange, guarded_node
from tests.tracking.overlay import FakeOverlay
from tests.waiting import until

from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import ClientUp, Refuse
from postroad.core.protocol.packets import LinkState, OpenPublisher, Subscribe
from postroad.core.protocol.rights import OPEN, Grant, Rights
from postroad.errors import (
    CertificateError,
    HandshakeError,
    NotIdentifiedError,
    PermissionDeniedError,
    UnauthenticatedError,
    WrongDirectionError,
)
from postroad.metrics import MetricsService
from postroad.queues.broker_service import BrokerQueues
from postroad.queues.service import QueueService, Session
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Limits, Metrics
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.tracking.queries.packets import AskTracks
from postroad.tracking.queries.questions import MapQuestion
from postroad.wire.packets.queues import TakeMessages
from postroad.wire.packets.session import Error, Goodbye, Hello, Ping, Pong, Role, Welcome
from postroad.wire.packets.telesto import GetMessages, GetQueues, GetQueuesResponse, IdentifyClient, RegisterClient
from postroad.wire.registry import REGISTRY, Direction

HELLO_METHOD = REGISTRY.by_type[Hello].method
UNIDENTIFIED_MAY_SEND = {Hello, Welcome, Goodbye, Ping, Pong, Error, RegisterClient, IdentifyClient}
"""Everything that a peer may send before it has said who it is; whatever is added is decided here."""


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    guard = Guard(tmp_path)
    guard.identity("shop", publish=True, subscribe=True)
    guard.identity("ops", publish=True, subscribe=True, trace=True, admin=True)
    return guard


def served(guard: Guard, work: Callable[[BrokerServer], Coroutine[object, object, None]], **changes: object) -> None:
    """Run a guarded broker and an attack, after which it still serves others."""

    async def scenario() -> None:
        services = changes.pop("services", ())
        node = guarded_node(guard, guard.directory, services=services, **changes)  # type: ignore[arg-type]
        await node.start()
        try:
            await work(node)
            async with guard.connect(node, "ops") as client, asyncio.timeout(20):
                await client.publish({"alive": True})
            assert node.failure is None
            assert node.internal_errors == 0
        finally:
            await node.stop()

    asyncio.run(scenario())


def codes(packets: list[msgspec.Struct]) -> list[int]:
    return [each.code for each in packets if isinstance(each, Error)]


def hello(guard: Guard, identity: str, name: str = "x") -> bytes:
    return raw(Hello(1, 1, Role.CLIENT, 0, name, token=guard.tokens[identity]))


@pytest.mark.parametrize("length", [0xFFFF_FFFF, 0x8000_0000, 0x7FFF_FFFF, 64 << 20, 65_537 + 64])
def test_absurd_lengths(guard: Guard, length: int) -> None:
    """CVE-2026-27889 (NATS), CVE-2026-40046 (ActiveMQ): lengths that overflow, are negative, or promise gigabytes."""

    async def work(node: BrokerServer) -> None:
        packets = await exchange(node.port, guard.context(), struct.pack(">IHI", length, HELLO_METHOD, 1) + b"x")
        assert codes(packets)
        assert node.budget.held < 1 << 20

    served(guard, work)


@pytest.mark.parametrize("array", [b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_sizes_of_arrays_are_not_believed(array: bytes) -> None:
    """CVE-2026-21452 (msgpack-java), CVE-2023-0809 (Mosquitto), CVE-2022-34917 (Kafka): a few bytes that promise four billion."""
    spec = REGISTRY.by_type[Subscribe]
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.MsgspecError):
            spec.decoder.decode(array + b"\x01" * 16)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_blocks_of_headers_are_bounded(guard: Guard) -> None:
    """The class of CVE-2022-21698 (Prometheus client) and of endless headers: the metrics endpoint takes one small request."""

    async def work(node: BrokerServer) -> None:
        metrics = next(each for each in node._services if isinstance(each, MetricsService))
        reader, writer = await asyncio.open_connection("127.0.0.1", metrics.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000)
        answer = b""
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                answer = await reader.read(-1)
        assert b"200" not in answer
        writer.transport.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", metrics.port)
        writer.write(b"BREW /metrics HTTP/1.1\r\n\r\n")
        assert b"404" in await reader.read(-1)
        writer.close()

    services = (MetricsService("127.0.0.1:0", None),)
    served(guard, work, services=services, metrics=Metrics())


def test_half_handshakes_are_not_kept(guard: Guard) -> None:
    """CVE-2025-56352 (tinyMQTT) and the class of GLSA 202009-12 (ZeroMQ): 10,000 connections that begin TLS and never end it."""

    async def work(node: BrokerServer) -> None:
        def flood() -> None:
            ends: list[socket.socket] = []
            for number in range(10_000):
                try:
                    end = socket.create_connection(("127.0.0.1", node.port), 10)
                    end.sendall(b"\x16\x03\x01\x02\x00\x01")
                except OSError:
                    continue
                ends.append(end)
                if len(ends) > 400:
                    ends[number % 400].close()
                    ends[number % 400] = ends.pop()
            for end in ends:
                end.close()

        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(node.peers))
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        await asyncio.to_thread(flood)
        watching.cancel()
        assert most <= 100 + 1
        await until(lambda: not node.peers, 20.0)

    served(guard, work, limits=Limits(handshakes_per_address_max=100, handshake_s=2.0))


def test_a_stranger_does_not_grow_our_output(guard: Guard) -> None:
    """CVE-2026-27571 (NATS): what an unauthenticated peer sends, and so what it is answered, is bounded before the handshake."""

    async def work(node: BrokerServer) -> None:
        packets = await exchange(node.port, guard.context(), raw(Ping()) * 200_000)
        assert codes(packets)[-1] == HandshakeError.code
        assert len(packets) <= (256 << 10) // 10 + 1

    served(guard, work)


def test_what_an_unauthenticated_peer_may_send_is_a_short_list() -> None:
    """Derived from the registry: a packet that is added is refused before identification unless it is added here, too."""
    assert {spec.type for spec in REGISTRY if not spec.needs_identification} - _answers() == UNIDENTIFIED_MAY_SEND - _answers()


def _answers() -> set[type]:
    """Return packets that only a broker sends, and those that do nothing when they come."""
    return {spec.type for spec in REGISTRY if Direction.CLIENT_TO_BROKER not in spec.direction} | {Welcome, Error}


def test_any_frame_in_the_state_before_identification(guard: Guard) -> None:
    """CVE-2021-28166 (Mosquitto) and "PUBACK before CONNECT" (sol): each packet of the registry as the first frame."""

    async def work(node: BrokerServer) -> None:
        refused = {NotIdentifiedError.code, UnauthenticatedError.code, HandshakeError.code}
        kinds = [spec for spec in REGISTRY if spec.type not in UNIDENTIFIED_MAY_SEND]
        for chunk in range(0, len(kinds), 24):
            frames = [struct.pack(">IHI", 10 + 1, spec.method, 1) + b"\x90" for spec in kinds[chunk : chunk + 24]]
            answers = await asyncio.gather(*(exchange(node.port, guard.context(), frame) for frame in frames))
            for spec, packets in zip(kinds[chunk : chunk + 24], answers, strict=True):
                assert set(codes(packets)) <= refused, spec.name
                assert codes(packets), spec.name
        packets = await exchange(node.port, guard.context(), raw(Welcome(1, 9, 9, "x")))
        assert codes(packets) == [HandshakeError.code]

    served(guard, work, services=(BrokerQueues("memory"),))


def test_any_frame_twice(guard: Guard) -> None:
    """CVE-2023-28366 (Mosquitto), repeated handshakes: a second Hello ends the connection, nothing is kept twice."""

    async def work(node: BrokerServer) -> None:
        packets = await exchange(node.port, guard.context(), hello(guard, "shop") + hello(guard, "ops"))
        assert codes(packets) == [HandshakeError.code]
        await until(lambda: not any(use.connections for use in node.quotas.identities.values()))

    served(guard, work)


def test_the_first_frame_does_not_skip_the_check(guard: Guard) -> None:
    """GHSA-38x3-76xf-cq45 (NATS): a peer that speaks as a broker at once, without the certificate of one."""

    async def work(node: BrokerServer) -> None:
        state = raw(LinkState(9, 1, 1, [], []))
        packets = await exchange(node.port, guard.context(), state)
        assert codes(packets) == [NotIdentifiedError.code]
        as_broker = raw(Hello(1, 1, Role.BROKER, 9, "x", incarnation=1, token=guard.tokens["ops"]))
        packets = await exchange(node.port, guard.context(), as_broker + state)
        assert codes(packets) == [CertificateError.code]
        assert 9 not in node._broker.machine.context.known

    served(guard, work)


def test_the_second_path_of_delivery_does_not_skip_the_check() -> None:
    """GHSA-7qmq-8cc4-hxwg (NATS): retained and replayed messages matched a denied filter; here both paths have the same one."""
    overlay = Overlay.line(1, 2)
    overlay.rights = Rights("shop", subscribe=Filter("region = 'EU'"), admin=False)
    first = overlay.subscriber(2, "", name="orders", earliest=True)
    first.disconnect()
    overlay.rights = OPEN
    overlay.publisher(1).publish("secret", region="US")
    overlay.run(1.0)
    overlay.rights = Rights("shop", subscribe=Filter("region = 'EU'"), admin=False)
    back, early = overlay.subscriber(1, "", name="orders"), overlay.subscriber(2, "TRUE", earliest=True)
    overlay.run(2.0)
    assert back.received == early.received == []


def test_control_characters_are_not_carried_into_the_log(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """Header and log injection: the name of a client cannot write a line of the log, nor a metric."""
    evil = "x\r\n2026-01-01 CRITICAL postroad: all is lost\x1b[31m\u2028"

    async def work(node: BrokerServer) -> None:
        with caplog.at_level(logging.INFO):
            await exchange(node.port, guard.context(), hello(guard, "shop", name=evil) + raw(Goodbye(evil)))
            await exchange(node.port, guard.context(), hello(guard, "shop", name=evil) + raw(Welcome(1, 9, 9, evil)))

    served(guard, work)
    lines = [record.getMessage() for record in caplog.records]
    assert any("all is lost" in line for line in lines)
    assert all(line.isprintable() for line in lines if "all is lost" in line)


def test_a_trace_is_steered_by_nobody(tmp_path: Path) -> None:
    """CVE-2026-33249 (NATS): a message chose where its trace went. Here a question needs a permission, and is answered."""
    overlay = FakeOverlay(1, 2)
    overlay.lose_client(2)
    rights = Rights("shop", trace=False, admin=False)
    overlay.machines[2].fact(ClientUp(102, "app", rights), now=overlay.now)
    overlay.publish(1)
    overlay.send(2, AskTracks(1, MapQuestion()))
    overlay.run(1.0)
    refusals = [order for order in overlay.orders[2] if isinstance(order, Refuse)]
    assert [type(each.error) for each in refusals] == [PermissionDeniedError]
    assert [each.link for each in refusals] == [102]


def test_an_identity_is_not_taken_from_what_a_peer_says(guard: Guard) -> None:
    """CVE-2026-33223, CVE-2026-33246 (NATS): the name in Hello is decoration, and a link carries no client's identity."""

    async def work(node: BrokerServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=guard.context())
        writer.write(hello(guard, "shop", name="ops"))
        await until(lambda: any(peer.admitted is not None for peer in node.peers.values()))
        seen = [peer.admitted.rights.owner for peer in node.peers.values() if peer.admitted is not None]
        assert seen == ["shop"]
        writer.transport.abort()
        del reader
        context = guard.client("shop").context()
        certificate, key = guard.certificate("postroad://broker/9", "broker-9")
        context.load_cert_chain(certificate, key)
        link = raw(Hello(1, 1, Role.BROKER, 9, "link", incarnation=1))
        for packet in (Subscribe(1, ""), OpenPublisher()):
            assert codes(await exchange(node.port, context, link + raw(packet))) == [WrongDirectionError.code]

    served(guard, work)


def test_a_durable_name_is_not_taken_over(guard: Guard) -> None:
    """CVE-2026-6564 (EMQX) and the takeover of client ids: the same name of another identity is another subscription."""

    async def work(node: BrokerServer) -> None:
        async with guard.connect(node, "shop") as shop, guard.connect(node, "ops") as ops, asyncio.timeout(20):
            mine = await shop.subscribe("n > 0", name="orders")
            await ops.subscribe("n > 5", name="orders")
            await ops.publish({"n": 1}, b"mine")
            assert (await anext(mine)).payload == b"mine"

    served(guard, work)


def fields(kind: types.Type) -> Iterator[tuple[str, types.Type]]:
    """Yield the names of all fields of a packet, and of what it holds."""
    match kind:
        case types.StructType():
            for field in kind.fields:
                yield field.name, field.type
                yield from fields(field.type)
        case types.ListType() | types.VarTupleType():
            yield from fields(kind.item_type)
        case types.UnionType():
            for each in kind.types:
                yield from fields(each)
        case _:
            return


def test_no_peer_makes_us_dial() -> None:
    """CVE-2026-27446 (Artemis): no packet that a broker acts on names an address; it dials the neighbours in its file."""
    for spec in REGISTRY:
        if spec.direction & (Direction.CLIENT_TO_BROKER | Direction.BROKER_TO_BROKER) and spec.name != "TrackReply":
            named = [name for name, _ in fields(types.type_info(spec.type))]
            assert not {"address", "url", "host", "uri", "port", "endpoint"} & set(named), spec.name


@pytest.mark.parametrize("after", [0, 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1])
def test_pages_do_not_overflow(after: int) -> None:
    """Numbers at the edges of their types, as the place where a page begins: an empty page, not another one."""

    async def scenario() -> None:
        service = QueueService(MemoryQueueStorage())
        await service.start()
        session = Session(rights=Rights("shop", queues=(Grant("put", "q"), Grant("take", "q")), admin=False))
        await service.storage.create_queue("q")
        await service.handle(RegisterClient("x", 2, existing=True), session)  # type: ignore[arg-type]
        answer = await service.handle(GetQueues(after), session)
        assert isinstance(answer, GetQueuesResponse)
        assert [each.queue_name for each in answer.queues] == (["q"] if after == 0 else [])
        answer = await service.handle(GetMessages(1, after), session)
        assert not isinstance(answer, Error)
        answer = await service.handle(TakeMessages(1 << 30), session)
        assert isinstance(answer, Error)
        await service.stop()

    asyncio.run(scenario())


def test_a_pattern_costs_little_whatever_it_matches() -> None:
    """CWE-1333: a LIKE that a backtracking matcher would try for years."""
    pattern = "%".join("a" * 60) + "%b"
    text = "a" * 20_000
    begun = time.process_time()
    assert Filter(f"s LIKE '%{pattern}'").matches({"s": text}) is False
    assert Filter(f"s LIKE '{'_%' * 60}b'").matches({"s": text}) is False
    assert time.process_time() - begun < 5.0


def test_a_name_is_no_part_of_a_pattern() -> None:
    """CVE-2026-44838 (RabbitMQ): client ids became parts of patterns of permissions; here names are only compared."""
    rights = Rights("shop", queues=(Grant("put", "orders.*"),), admin=False)
    assert rights.may_use_queue("put", "orders.eu")
    assert not rights.may_use_queue("put", "ordersXeu")
    assert Rights("s.*").shown_name("shop/x") != "x"
    for name in ("../ops/x", "x/../../ops", "*", "ops/x"):
        assert rights.own_name(name) == f"shop/{name}"
    with pytest.raises(PermissionDeniedError):
        rights.own_name("/ops/x")
