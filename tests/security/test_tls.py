"""Certificates and the names in them."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import pytest

from postroad.errors import CertificateError
from postroad.security import authority, tls


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private authority with certificates of broker 7 and of the client `shop`."""
    path = tmp_path_factory.mktemp("certificates")
    authority.create_authority(path)
    authority.issue(path, path, "broker", tls.broker_uri(7))
    authority.issue(path, path, "client", tls.client_uri("shop"))
    return path


def files(directory: Path, name: str = "broker") -> tls.TlsFiles:
    return tls.TlsFiles(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")


async def names_seen(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[tls.PeerName, tls.PeerName]:
    """Connect two ends; return whom the server saw and whom the client saw."""
    seen: asyncio.Future[tls.PeerName] = asyncio.get_running_loop().create_future()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(tls.name_in(writer.get_extra_info("ssl_object")))
        await reader.read(1)
        writer.close()

    listening = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        mine = tls.name_in(writer.get_extra_info("ssl_object"))
        writer.write(b"x")
        theirs = await seen
        writer.close()
    return theirs, mine


def test_each_side_reads_the_name_of_the_other(directory: Path) -> None:
    server = tls.listening_context(files(directory))
    nobody = tls.client_context(directory / "ca.pem")
    shop = tls.client_context(directory / "ca.pem", directory / "client.pem", directory / "client.key")
    assert asyncio.run(names_seen(server, nobody)) == (tls.PeerName(), tls.PeerName(broker=7))
    assert asyncio.run(names_seen(server, shop)) == (tls.PeerName(client="shop"), tls.PeerName(broker=7))
    assert asyncio.run(names_seen(server, tls.dialling_context(files(directory)))) == (tls.PeerName(broker=7),) * 2


def test_a_strangers_certificate_is_refused_by_either_side(directory: Path, tmp_path: Path) -> None:
    authority.create_authority(tmp_path)
    authority.issue(tmp_path, tmp_path, "broker", tls.broker_uri(7))
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(names_seen(tls.listening_context(files(tmp_path)), tls.client_context(directory / "ca.pem")))


def test_a_broker_must_be_named_as_a_whole() -> None:
    tls.check_broker(tls.PeerName(broker=7), 7)
    for name in (tls.PeerName(), tls.PeerName(broker=77), tls.PeerName(client="7")):
        with pytest.raises(CertificateError, match="says it is broker 7"):
            tls.check_broker(name, 7)


def test_private_keys_are_readable_by_their_owner_only(directory: Path) -> None:
    for path in directory.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_that_cannot_be_used_are_named(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"absent\.pem"):
        tls.listening_context(tls.TlsFiles(tmp_path / "absent.pem", directory / "broker.key", directory / "ca.pem"))
    with pytest.raises(CertificateError, match=r"client\.key"):
        tls.listening_context(tls.TlsFiles(directory / "broker.pem", directory / "client.key", directory / "ca.pem"))
    with pytest.raises(CertificateError, match="exists already"):
        authority.create_authority(directory)
    with pytest.raises(CertificateError, match="no authority"):
        authority.issue(tmp_path, tmp_path, "x", tls.broker_uri(1))


def test_the_authorities_of_the_operating_system_are_read_only_where_they_count(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read for each connection and thrown away: nine tenths of the time that TLS took to connect."""
    read: list[object] = []
    original = ssl.create_default_context

    def counted(purpose: ssl.Purpose) -> ssl.SSLContext:
        read.append(purpose)
        return original(purpose)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    context = tls.client_context(directory / "ca.pem")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not read
    assert tls.client_context().verify_mode is ssl.CERT_REQUIRED
    assert tls.client_context().minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(read) == 2
