"""Who gets in at a guarded port: tokens and certificates, on a real broker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from tests.runtime.raw_client import raw
from tests.security.guarded import Guard, exchange, guarded_node

import postroad
from postroad.client.connection import ClientConfig
from postroad.errors import CertificateError, PlainTokenError, PostroadError, TokenError, UnauthenticatedError
from postroad.runtime.broker_server import BrokerServer
from postroad.security import authority
from postroad.security.identities import Identity, create_identity, revoke_identity
from postroad.security.tls import broker_uri, client_uri
from postroad.wire.packets.session import Error, Hello, Role
from postroad.wire.packets.telesto import GetQueues

QUICK = ClientConfig(connect_s=1.0, retry_s_max=0.2)


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    guard = Guard(tmp_path)
    guard.identity("shop", publish=True, subscribe=True)
    guard.identity("desk", subscribe=True)
    return guard


def served(guard: Guard, work: Callable[[BrokerServer], Coroutine[object, object, None]]) -> None:
    """Run a guarded broker and some work with it."""

    async def scenario() -> None:
        node = guarded_node(guard, guard.directory)
        await node.start()
        try:
            await work(node)
            assert node.failure is None
        finally:
            await node.stop()

    asyncio.run(scenario())


async def publish_one(client: postroad.Client) -> None:
    async with client:
        publisher = client.publisher()
        await publisher.publish({"n": 1}, b"x")
        await publisher.flush()


def test_a_token_and_a_certificate_let_a_client_in(guard: Guard) -> None:
    async def work(node: BrokerServer) -> None:
        assert node.url.startswith("postroads://")
        await publish_one(guard.connect(node, "shop"))
        await publish_one(postroad.connect(node.url, tls=guard.client("shop"), token=""))

    served(guard, work)


@pytest.mark.parametrize("token", ["", "prt_" + "A" * 43, "x", "\x00" * 20])
def test_a_wrong_token_is_refused(guard: Guard, token: str) -> None:
    async def work(node: BrokerServer) -> None:
        with pytest.raises((TokenError, UnauthenticatedError)):
            await publish_one(postroad.connect(node.url, QUICK, tls=guard.authority, token=token))

    served(guard, work)


def test_an_expired_token_is_refused(guard: Guard) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    token = create_identity(guard.identities, Identity(name="old", publish=True, expires=past))

    async def work(node: BrokerServer) -> None:
        with pytest.raises(TokenError):
            await publish_one(postroad.connect(node.url, QUICK, tls=guard.authority, token=token))

    served(guard, work)


def test_a_certificate_of_nobody_known_is_refused(guard: Guard) -> None:
    async def work(node: BrokerServer) -> None:
        with pytest.raises(UnauthenticatedError):
            await publish_one(postroad.connect(node.url, QUICK, tls=guard.client("nobody"), token=""))

    served(guard, work)


def test_a_strangers_certificate_is_refused(guard: Guard, tmp_path: Path) -> None:
    """Signed by another authority, though it names a known client; the broker never sees a packet."""
    (tmp_path / "other").mkdir()
    stranger = Guard(tmp_path / "other")
    tls = stranger.client("shop")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "public.pem"))

    async def work(node: BrokerServer) -> None:
        mine = postroad.ClientTls(guard.authority, tls.certificate, tls.key)
        with pytest.raises(PostroadError):
            await publish_one(postroad.connect(node.url, QUICK, tls=mine, token=""))
        assert node.stats()["tls_failures"]
        with pytest.raises(CertificateError):  # and the other way round: a broker that our authority does not know
            await publish_one(postroad.connect(node.url, QUICK, tls=stranger.authority, token=guard.tokens["shop"]))
        with pytest.raises(CertificateError):
            await publish_one(postroad.connect(node.url, QUICK, tls=tmp_path / "public.pem", token=guard.tokens["shop"]))

    served(guard, work)


def test_an_expired_certificate_is_refused(guard: Guard) -> None:
    files = guard.certificate(client_uri("shop"), "expired", days=-0.01)

    async def work(node: BrokerServer) -> None:
        with pytest.raises(PostroadError):
            await publish_one(postroad.connect(node.url, QUICK, tls=postroad.ClientTls(guard.authority, *files), token=""))
        assert node.stats()["tls_failures"]

    served(guard, work)


@pytest.mark.parametrize(
    "uris",
    [
        [client_uri("shop"), client_uri("desk")],
        [client_uri("shop"), client_uri("shop")],
        [client_uri("shop"), broker_uri(1)],
        ["postroad://client/shop/"],
        ["postroad://client/shop%2F"],
        ["postroad://client/sho%70"],
        ["POSTROAD://client/shop"],
        ["postroad://client/"],
        ["postroad://client/shop?x"],
        ["postroad://broker/01"],
        ["postroad://broker/1 "],
    ],
)
def test_a_certificate_whose_names_are_not_exactly_one_known_name_is_nobody(
    guard: Guard, uris: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identity attributes are compared as a whole: no prefix, no second name, no other case."""
    monkeypatch.setattr(authority, "_address", x509.UniformResourceIdentifier)
    tls = postroad.ClientTls(guard.authority, *guard.certificate(uris[0], "odd", addresses=uris[1:]))

    async def work(node: BrokerServer) -> None:
        with pytest.raises(UnauthenticatedError):
            await publish_one(postroad.connect(node.url, QUICK, tls=tls, token=""))

    served(guard, work)


def test_a_client_gives_its_token_to_no_one_but_a_broker(guard: Guard) -> None:
    """A client's certificate of the same authority cannot serve as a broker's: the token is not sent."""
    certificate, key = guard.certificate(client_uri("desk"), "client-desk")
    received: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1000))
        writer.close()

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        async with server:
            url = f"postroads://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(CertificateError):
                await publish_one(postroad.connect(url, QUICK, tls=guard.authority, token=guard.tokens["shop"]))

    asyncio.run(scenario())
    assert all(guard.tokens["shop"].encode() not in each for each in received)


def test_a_token_never_travels_in_the_clear(guard: Guard) -> None:
    """The client refuses to send one, and a broker that gets one all the same refuses the connection."""
    with pytest.raises(PlainTokenError):
        postroad.connect("postroad://127.0.0.1:7400", token=guard.tokens["shop"])
    with pytest.raises(PlainTokenError):
        postroad.connect("postroad://127.0.0.1:7400", tls=guard.authority)

    async def scenario() -> None:
        from postroad.runtime.config import NodeConfig

        node = BrokerServer(NodeConfig(id=1, data_dir=str(guard.directory / "plain"), listen="127.0.0.1:0", log_level="error"))
        await node.start()
        try:
            frames = await exchange(node.port, None, raw(Hello(1, 1, Role.CLIENT, 0, "x", token=guard.tokens["shop"])))
            assert [each.code for each in frames if isinstance(each, Error)] == [PlainTokenError.code]
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_a_service_asked_before_the_hello_is_refused(guard: Guard) -> None:
    """The first frame does not skip the check: queues, too, serve only those who said who they are."""
    from postroad.queues.broker_service import BrokerQueues

    async def scenario() -> None:
        node = guarded_node(guard, guard.directory, services=(BrokerQueues("memory"),))
        await node.start()
        try:
            packets = await exchange(node.port, guard.context(), raw(GetQueues(0)))
            assert [each.code for each in packets if isinstance(each, Error)] == [UnauthenticatedError.code]
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_revocation_cuts_open_connections(guard: Guard) -> None:
    """An identity that is revoked while it is connected loses the connection, and others keep theirs."""

    async def work(node: BrokerServer) -> None:
        async with guard.connect(node, "shop") as other, guard.connect(node, "desk", config=QUICK) as client:
            link = client._main  # the connection of that moment
            assert link is not None
            revoke_identity(guard.identities, "desk")
            async with asyncio.timeout(10):
                await link.gone
            assert node.stats()["revoked_connections"] == 1
            assert other.broker == 1
        with pytest.raises(TokenError):
            await publish_one(guard.connect(node, "desk", config=QUICK))

    served(guard, work)


def test_expiry_cuts_open_connections(guard: Guard) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=2)
    guard.identity("brief", subscribe=True, expires=soon)

    async def work(node: BrokerServer) -> None:
        async with guard.connect(node, "brief", config=QUICK) as client:
            link = client._main
            assert link is not None
            async with asyncio.timeout(10):
                await link.gone

    served(guard, work)


def test_a_damaged_file_of_identities_changes_nothing(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    async def work(node: BrokerServer) -> None:
        async with guard.connect(node, "shop") as client:
            guard.identities.write_text("nonsense [")
            async with asyncio.timeout(10):
                while "identities stay as they are" not in caplog.text:  # noqa: ASYNC110  # the log has no event
                    await asyncio.sleep(0.05)
            assert client.broker == 1
            await publish_one(guard.connect(node, "shop"))

    served(guard, work)


def test_certificates_are_read_again(guard: Guard) -> None:
    """After a reload new connections see the new certificate; one that cannot be read leaves the old one in use."""

    async def seen(node: BrokerServer) -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=guard.context())
        number = int(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"], 16)
        writer.transport.abort()
        return number

    async def work(node: BrokerServer) -> None:
        before = await seen(node)
        guard.certificate(broker_uri(1), "broker-1")
        node.reload_certificates()
        after = await seen(node)
        assert after != before
        (guard.directory / "broker-1.pem").write_text("nonsense")
        node.reload_certificates()
        assert await seen(node) == after

    served(guard, work)


def test_brokers_link_by_their_certificates(tmp_path: Path) -> None:
    """Two guarded brokers form an overlay, and a message crosses it."""
    from postroad.runtime.config import Neighbour, NodeConfig, Overlay
    from postroad.testing import free_ports

    guard = Guard(tmp_path)
    guard.identity("shop", publish=True, subscribe=True)
    ports = free_ports(2)

    async def scenario() -> None:
        nodes = [
            BrokerServer(
                NodeConfig(
                    id=number,
                    data_dir=str(tmp_path / str(number)),
                    listen=f"127.0.0.1:{ports[number - 1]}",
                    neighbours=(Neighbour(address=f"127.0.0.1:{ports[0]}"),) if number == 2 else (),
                    overlay=Overlay(silence_s=0.1),
                    security=guard.security(number),
                    log_level="error",
                )
            )
            for number in (1, 2)
        ]
        for node in nodes:
            await node.start()
        try:
            async with guard.connect(nodes[0], "shop") as sender, guard.connect(nodes[1], "shop") as receiver:
                async with asyncio.timeout(20):
                    while nodes[1].stats()["links"] != 1:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    subscription = await receiver.subscribe("n > 0")
                    while len(subscription.starts) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    await sender.publisher().publish({"n": 1}, b"across")
                    assert (await anext(aiter(subscription))).payload == b"across"
        finally:
            for node in nodes:
                await node.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("uri", [broker_uri(3), client_uri("shop"), broker_uri(22)])
def test_a_peer_that_says_another_brokers_id_is_refused(guard: Guard, uri: str) -> None:
    """The id comes from the certificate, compared as a whole: 2 is not 22."""
    context = postroad.ClientTls(guard.authority, *guard.certificate(uri, "peer")).context()

    async def work(node: BrokerServer) -> None:
        packets = await exchange(node.port, context, raw(Hello(1, 1, Role.BROKER, 2, "two", incarnation=1)))
        assert [each.code for each in packets if isinstance(each, Error)] == [CertificateError.code]
        assert node.stats()["links"] == 0

    served(guard, work)


def test_a_broker_with_tls_1_2_is_refused(guard: Guard) -> None:
    context = postroad.ClientTls(guard.authority, *guard.certificate(broker_uri(2), "peer")).context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def work(node: BrokerServer) -> None:
        packets = await exchange(node.port, context, raw(Hello(1, 1, Role.BROKER, 2, "two", incarnation=1)))
        assert [each.code for each in packets if isinstance(each, Error)] == [CertificateError.code]

    served(guard, work)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_clients_may_use_tls_1_2_and_nothing_older(guard: Guard) -> None:
    def context(version: ssl.TLSVersion) -> ssl.SSLContext:
        made = guard.context()
        made.minimum_version = ssl.TLSVersion.TLSv1
        made.maximum_version = version
        made.set_ciphers("ALL:@SECLEVEL=0")
        return made

    async def work(node: BrokerServer) -> None:
        await publish_one(postroad.connect(node.url, tls=context(ssl.TLSVersion.TLSv1_2), token=guard.tokens["shop"]))
        old = context(ssl.TLSVersion.TLSv1_1)
        with pytest.raises(PostroadError):
            await publish_one(postroad.connect(node.url, QUICK, tls=old, token=guard.tokens["shop"]))

    served(guard, work)


def test_a_plain_client_gets_nowhere_at_a_tls_port(guard: Guard) -> None:
    async def work(node: BrokerServer) -> None:
        assert await exchange(node.port, None, raw(Hello(1, 1, Role.CLIENT, 0, "x"))) == []

    served(guard, work)


def test_the_environment_gives_a_client_its_secrets(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands need no secret on their line."""
    token = guard.directory / "token"
    token.write_text(guard.tokens["shop"] + "\n")
    monkeypatch.setenv("POSTROAD_CA", str(guard.authority))
    monkeypatch.setenv("POSTROAD_TOKEN_FILE", str(token))

    async def work(node: BrokerServer) -> None:
        await publish_one(postroad.connect(node.url))

    served(guard, work)


def test_secrets_are_in_no_text_about_them(guard: Guard) -> None:
    from postroad.security.credentials import credentials

    token = guard.tokens["shop"]
    found = credentials(encrypted=True, tls=guard.authority, token=token)
    assert token not in repr(found)
    assert token not in repr(Hello(1, 1, Role.CLIENT, 0, "x", token=token))
    assert token not in str(TokenError())
    assert token not in guard.identities.read_text()


def test_the_file_of_identities_is_readable_by_its_owner_only(guard: Guard) -> None:
    assert guard.identities.stat().st_mode & 0o077 == 0
