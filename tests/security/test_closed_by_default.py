"""Loopback is open; anywhere else a broker starts only with TLS and identities, or when its file says that it is insecure."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.security.guarded import Guard, guarded_node

import postroad
from postroad.cli import main
from postroad.errors import ConfigError, ExposedError, IdentitiesError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Metrics, NodeConfig, Security, parse_config
from postroad.security.gate import Gate, Trust, is_loopback
from postroad.storage.queues.sqlite import SqliteQueueStorage


def node(directory: Path, listen: str, **changes: object) -> BrokerServer:
    return BrokerServer(NodeConfig(id=1, data_dir=str(directory), listen=listen, log_level="error", **changes))  # type: ignore[arg-type]


async def start_and_stop(server: BrokerServer) -> dict[str, object]:
    await server.start()
    try:
        return server.stats()
    finally:
        await server.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_only_this_machine_reaches_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "::ffff:10.0.0.1", "no-such-host.invalid"])
def test_everything_else_is_reached_by_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_an_exposed_broker_refuses_to_start(tmp_path: Path, listen: str) -> None:
    """The error says what to do, and nothing was opened."""
    with pytest.raises(ExposedError, match="insecure = true"):
        asyncio.run(node(tmp_path, listen).start())


def test_an_exposed_metrics_endpoint_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ExposedError, match="metrics"):
        asyncio.run(node(tmp_path, "127.0.0.1:0", metrics=Metrics(listen="0.0.0.0:0")).start())


def test_an_insecure_broker_starts_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stats = asyncio.run(start_and_stop(node(tmp_path, "0.0.0.0:0", security=Security(insecure=True))))
    assert stats["insecure"] == 1
    assert "INSECURE" in caplog.text


def test_the_status_of_an_insecure_broker_says_so(tmp_path: Path) -> None:
    async def shown(listen: str, **changes: object) -> tuple[list[str], str]:
        server = node(tmp_path, listen, **changes)
        await server.start()
        try:
            async with postroad.connect(f"127.0.0.1:{server.port}") as client:
                report = await client.status()
                run = partial(CliRunner().invoke, main, ["status", "--url", f"127.0.0.1:{server.port}", "--json"])
                return list(report.notices), (await asyncio.to_thread(run)).output
        finally:
            await server.stop()

    notices, output = asyncio.run(shown("0.0.0.0:0", security=Security(insecure=True)))
    assert [each.partition(":")[0] for each in notices] == ["INSECURE"]
    assert "INSECURE" in output
    assert asyncio.run(shown("127.0.0.1:0"))[0] == []


def test_a_guarded_broker_starts_anywhere(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    guard.identity("shop", publish=True)
    server = node(tmp_path / "data", "0.0.0.0:0", security=guard.security())
    assert asyncio.run(start_and_stop(server))["insecure"] == 0


@pytest.mark.parametrize("missing", ["certificate", "key", "authority", "identities"])
def test_without_any_one_of_the_keys_an_exposed_broker_does_not_start(tmp_path: Path, missing: str) -> None:
    """Each security key removed one at a time: the broker is closed, never open."""
    guard = Guard(tmp_path)
    guard.identity("shop", publish=True)
    full = guard.security()
    keys = {name: getattr(full, name) for name in ("certificate", "key", "authority", "identities") if name != missing}
    lines = [f'id = 1\ndata_dir = "{tmp_path}"\nlisten = "0.0.0.0:0"\n[security]']
    text = "\n".join([*lines, *(f'{name} = "{value}"' for name, value in keys.items())])
    with pytest.raises((ConfigError, ExposedError)):
        asyncio.run(BrokerServer(parse_config(text, NodeConfig, "test")).start())


@pytest.mark.parametrize("content", ["", "[[identity]]\nname = 'x'\npublish = 'price >'\n", "identity = 3\n"])
def test_identities_that_are_empty_or_wrong_do_not_open_a_broker(tmp_path: Path, content: str) -> None:
    guard = Guard(tmp_path)
    guard.identities.write_text(content)
    with pytest.raises((ExposedError, IdentitiesError)):
        asyncio.run(node(tmp_path / "data", "0.0.0.0:0", security=guard.security()).start())


def test_an_empty_file_of_identities_on_loopback_lets_nobody_in(tmp_path: Path) -> None:
    """A file that was emptied by mistake does not turn into "everybody"."""
    guard = Guard(tmp_path)
    guard.identities.write_text("")
    gate = Gate(guarded_node(guard, tmp_path).config.security.trust(), 1)
    assert gate.guarded


def test_identities_without_tls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExposedError, match="TLS"):
        Gate(Trust(identities=tmp_path / "identities.toml"), 1)


def modes_below(directory: Path) -> list[int]:
    """Return what others may do with each file of a directory."""
    return [each.stat().st_mode & 0o077 for each in directory.iterdir()]


def test_the_database_of_queues_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Whatever the umask, and also in a directory that others may enter."""
    before = os.umask(0)
    try:

        async def create() -> None:
            storage = SqliteQueueStorage(tmp_path / "queues.sqlite")
            await storage.open()
            await storage.create_queue("jobs")
            assert modes_below(tmp_path)
            assert not any(modes_below(tmp_path))
            await storage.close()

        asyncio.run(create())
    finally:
        os.umask(before)
