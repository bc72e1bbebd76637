"""Secrets are in no command line, error, log or repr; and what was renewed is used by the broker's own clients, too."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.security.guarded import Guard, guarded_node

from postroad.cli import main
from postroad.errors import CertificateError, ConfigError
from postroad.runtime.config import NodeConfig, Queues, check_no_password, hide_password, parse_config
from postroad.security.identities import revoke_identity
from postroad.security.tls import broker_uri

PASSWORD = "hunter2"  # a test's own
URLS = [f"postgresql://u:{PASSWORD}@db/x", f"postgres://db/x?user=u&password={PASSWORD}", f"postgresql://:{PASSWORD}@db:1/x"]


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Every user of a machine sees the command lines of all: an option about a secret names a file, or is none."""
    seen = 0
    for path, command in commands(main):
        for parameter in command.params:
            words = {word for option in parameter.opts for word in option.strip("-").split("-")}
            if words & {"token", "password", "secret", "key", "passphrase", "credential", "credentials"}:
                is_no_secret = path in {("queue", "put"), ("subscribe",)}  # the key of one message; an attribute that orders
                assert is_no_secret or isinstance(parameter.type, click.Path), (path, parameter.opts)
                seen += 1
    assert seen


@pytest.mark.parametrize("url", URLS)
def test_the_password_of_a_database_is_shown_nowhere(url: str, tmp_path: Path) -> None:
    assert PASSWORD not in hide_password(url)
    assert PASSWORD not in repr(NodeConfig(id=1, data_dir="d", queues=Queues(store=url)))
    with pytest.raises(ConfigError) as caught:
        check_no_password(url, "--queues")
    assert PASSWORD not in str(caught.value)
    result = CliRunner().invoke(main, ["broker", "--data-dir", str(tmp_path), "--queues", url])
    assert result.exit_code != 0
    assert PASSWORD not in result.output
    assert "PGPASSWORD" in result.output
    assert parse_config(f'id = 1\ndata_dir = "d"\n[queues]\nstore = "{url}"', NodeConfig, "test").queues.store == url


@pytest.mark.parametrize("store", ["memory", "queues.sqlite", "postgresql://u@db/x", "postgresql://db:5432/x?sslmode=require"])
def test_an_address_without_a_password_is_shown_as_it_is(store: str) -> None:
    assert hide_password(store) == store


def test_the_brokers_own_clients_use_the_renewed_certificate(tmp_path: Path) -> None:
    """They keep their context for ever: with the old one they could not come back once it has expired or has a new authority."""
    guard = Guard(tmp_path / "old")
    gate = guarded_node(guard, tmp_path).gate
    own = gate.own
    assert own is not None
    other = Guard(tmp_path / "new")
    certificate, key = other.certificate(broker_uri(1), "broker-1")
    for new, old in ((other.authority, "ca.pem"), (certificate, "broker-1.pem"), (key, "broker-1.key")):
        (guard.directory / old).write_bytes(new.read_bytes())
    gate.reload()
    assert gate.own is own
    assert gate.listening is not None
    shake_hands(own, gate.listening)


def shake_hands(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(incoming, outgoing, server_side=True)
    client = client_context.wrap_bio(outgoing, incoming)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            raise CertificateError(str(error)) from error
    assert server.getpeercert()


def test_the_watch_over_identities_survives_whatever_is_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it ended, nobody would be revoked any more until the next start."""
    guard = Guard(tmp_path)
    guard.identity("shop", publish=True)
    guard.identity("ops", admin=True)
    monkeypatch.setattr("postroad.runtime.broker_server.IDENTITIES_S", 0.05)

    async def scenario() -> None:
        node = guarded_node(guard, tmp_path)
        await node.start()
        try:
            refresh, failures = node.gate.refresh, [RecursionError("too deep"), MemoryError()]

            def odd() -> bool:
                if failures:
                    raise failures.pop()
                return refresh()

            monkeypatch.setattr(node.gate, "refresh", odd)
            async with asyncio.timeout(20):
                while failures:  # noqa: ASYNC110  # the watch has no event
                    await asyncio.sleep(0.01)
                revoke_identity(guard.identities, "shop")
                while len(node.gate.identities) != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await node.stop()

    logging.getLogger("postroad.node").setLevel(logging.CRITICAL)
    try:
        asyncio.run(scenario())
    finally:
        logging.getLogger("postroad.node").setLevel(logging.NOTSET)
