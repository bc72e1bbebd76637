"""A guarded topics service: CURVE keys, permissions by topic, and nobody under the name of another."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from postroad.errors import (
    CertificateError,
    ExposedError,
    PermissionDeniedError,
    PostroadError,
    TopicsRefusedError,
    TopicsUnavailableError,
)
from postroad.security.identities import read_identities, revoke_identity
from postroad.testing import free_ports
from postroad.topics.drivers import Process, proxy_process, server_process
from postroad.topics.keys import Door, KeyFile, create_client_key, create_service_key, read_key
from postroad.topics.machines import messages as m
from postroad.topics.machines.options import CallOptions, ClientOptions, ServerOptions
from postroad.topics.sync import TopicClient, connect

pytest.importorskip("zmq")
PATIENT = ClientOptions(calls=CallOptions(timeout_ms=2_000))


@dataclass
class Guarded:
    directory: Path
    proxy: str
    server: str

    @property
    def identities(self) -> Path:
        return self.directory / "identities.toml"

    def client(self, name: str, *, key: str | None, at: str = "") -> TopicClient:
        path = None if key is None else self.directory / f"{key}.key"
        data = self.directory / f"data-{key}"
        return connect([at or self.proxy], name=name, data=data, key=path, options=PATIENT, timeout=0.0)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Guarded]:
    key, identities = create_service_key(tmp_path), tmp_path / "identities.toml"
    create_client_key(key, identities, "shop", ("put:orders", "take:orders.*", "take:orders"), tmp_path / "shop.key")
    create_client_key(key, identities, "desk", ("take:orders",), tmp_path / "desk.key")
    first, second = free_ports(2)
    data, proxy, server = tmp_path / "data", f"127.0.0.1:{first}", f"127.0.0.1:{second}"
    processes: list[Process] = [
        proxy_process(b"p", bind=proxy, data=data, door=Door(read_key(key), identities)),
        server_process(
            b"s",
            bind=server,
            proxies=[proxy],
            data=data,
            options=ServerOptions(period_s=0.2),
            door=Door(read_key(key), identities),
        ),
    ]
    threads = [threading.Thread(target=process.run) for process in processes]
    for thread, process in zip(threads, processes, strict=True):
        thread.start()
        assert process.ready.wait(20)
    yield Guarded(tmp_path, proxy, server)
    for process in processes:
        process.stop()
    for thread in threads:
        thread.join(20)


def test_clients_with_keys_put_and_get_within_their_permissions(service: Guarded) -> None:
    """One service through its whole life: allowed work, each kind of refusal, and a revocation."""
    with service.client("shop", key="shop") as shop, service.client("desk/1", key="desk") as desk:
        desk.subscribe("orders", timeout=20.0)
        shop.put("orders", b"one", timeout=20.0)
        received = desk.get("orders", timeout=20.0)
        assert received is not None
        assert received.body == b"one"
        with pytest.raises(TopicsRefusedError, match="DENIED"):
            desk.put("orders", b"two")
        with pytest.raises(TopicsRefusedError, match="DENIED"):
            shop.subscribe("secret")
        with pytest.raises(TopicsRefusedError, match="DENIED"):
            shop.put("orders.eu", b"three")
        revoke_identity(service.identities, "desk")

        def refused_at_last() -> bool:
            try:
                desk.get("orders")
            except TopicsRefusedError:
                return True
            return False

        assert any(refused_at_last() for _ in range(200) if not threading.Event().wait(0.05))


def test_nobody_acts_under_the_name_of_another(service: Guarded) -> None:
    for name in ("shop", "desks", "desk.1"):
        with service.client(name, key="desk") as client, pytest.raises(TopicsRefusedError, match="may not act as"):
            client.subscribe("orders")


def test_a_stranger_reaches_nothing(service: Guarded) -> None:
    """Without a key, with one that nobody knows, and with a service key of one's own making."""
    other = create_service_key(service.directory / "other")
    create_client_key(other, service.directory / "other.toml", "shop", ("put:orders",), service.directory / "stranger.key")
    known = read_key(service.directory / "service.key")
    forged = read_key(other)
    text = f'public = "{forged.public}"\nsecret = "{forged.secret}"\nservice = "{known.service}"\n'
    (service.directory / "forged.key").write_text(text)
    for key in (None, "stranger", "forged"):
        with service.client("shop", key=key) as client, pytest.raises(TopicsUnavailableError):
            client.subscribe("orders")


@pytest.mark.parametrize(
    "message",
    [
        m.Periodic(b"shop", (b"orders",)),
        m.Merge(b"shop", b"orders", b"tcp://10.0.0.1:1"),
        m.Transfer(b"shop", b"orders", b""),
        m.Status(b"shop", b"REPORT"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_servers_say_to_each_other_is_refused_from_clients(tmp_path: Path, message: m.Message) -> None:
    """MERGE made a server send a topic to any address, PERIODIC took topics over, TRANSFER rewrote counters."""
    key, identities = create_service_key(tmp_path), tmp_path / "identities.toml"
    create_client_key(key, identities, "shop", ("put:*", "take:*"), tmp_path / "shop.key")
    door = Door(read_key(key), identities)
    with pytest.raises(PermissionDeniedError):
        door.check(read_key(tmp_path / "shop.key").public, m.format_message(message))
    door.check(read_key(key).public, m.format_message(message))
    assert door.refused == 1


def test_an_address_that_others_reach_needs_keys() -> None:
    with pytest.raises(ExposedError, match="--insecure"):
        Door().check_exposure("0.0.0.0:7101", insecure=False)
    Door().check_exposure("0.0.0.0:7101", insecure=True)
    Door().check_exposure("127.0.0.1:7101", insecure=False)


def test_keys_are_readable_by_their_owner_only_and_shown_nowhere(tmp_path: Path) -> None:
    path = create_service_key(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    key = read_key(path)
    assert key.secret not in repr(key)
    with pytest.raises(CertificateError):
        create_service_key(tmp_path)
    create_client_key(path, tmp_path / "identities.toml", "shop", (), tmp_path / "shop.key")
    with pytest.raises(CertificateError, match="the key of a client"):
        Door(read_key(tmp_path / "shop.key"))
    assert read_identities(tmp_path / "identities.toml").by_name["shop"].topics_key
    (tmp_path / "bad.key").write_text("secret = 'oops-a-secret'\n")
    with pytest.raises(PostroadError) as caught:
        read_key(tmp_path / "bad.key")
    assert "oops" not in str(caught.value)
    assert isinstance(key, KeyFile)


def test_databases_of_topics_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """Whatever the umask is."""
    before = os.umask(0)
    try:
        with connect("127.0.0.1:1", name="shop", data=tmp_path / "data"):
            files = list((tmp_path / "data").iterdir())
            assert files
            assert all(each.stat().st_mode & 0o077 == 0 for each in (tmp_path / "data", *files))
    finally:
        os.umask(before)
