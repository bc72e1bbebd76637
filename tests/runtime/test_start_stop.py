"""Real brokers that are told to stop at any moment of their lives end in good order: code 0, a line, no traceback."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.brokers import wait_until

import postroad
from postroad.core.protocol.rights import Rights
from postroad.queues.client import QueueClient
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, Tracking, dump_config
from postroad.runtime.services import Answer, ServiceConnection, ServiceHost
from postroad.testing import free_ports
from postroad.transport.programs import own_command, own_environment

END_S_MAX = 30.0


class Started:
    """A broker's process from its first moment on; what it says on standard error is kept in a file."""

    def __init__(self, config: NodeConfig, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "log"
        file = directory / "broker.toml"
        file.write_text(dump_config(config), encoding="utf-8")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # our own program
                own_command("postroad.cli", "broker", "--config", str(file)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=own_environment(),
            )

    def wait_for_handlers(self) -> None:
        """Wait until our own code runs: the interpreter itself takes a moment in which nothing can be handled."""
        wait_until(lambda: self.process.poll() is not None or self._catches(signal.SIGTERM))

    def _catches(self, number: signal.Signals) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def wait_until_it_listens(self) -> None:
        assert self.process.stdout is not None
        assert b"listens on" in self.process.stdout.readline(), self.said()

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        code = self.process.wait(END_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")


@contextmanager
def started(config: NodeConfig, directory: Path) -> Iterator[Started]:
    broker = Started(config, directory)
    try:
        yield broker
    finally:
        if broker.process.poll() is None:
            broker.process.kill()
            broker.process.wait()
        if broker.process.stdout is not None:
            broker.process.stdout.close()


def config_at(directory: Path, port: int = 0, **changes: object) -> NodeConfig:
    return NodeConfig(id=1, data_dir=str(directory / "data"), listen=f"127.0.0.1:{port}", **changes)  # type: ignore[arg-type]


def assert_ended_well(broker: Started, code: int, note: str = "") -> None:
    said = f"{note}\n{broker.said()}"
    assert code == 0, said
    assert "stop" in said or "before the start" in said, said
    for word in ("Traceback", "ERROR", "CRITICAL", "Exception"):
        assert word not in said, said


def test_a_broker_told_to_stop_at_any_moment_of_its_start_ends_with_code_0(tmp_path: Path) -> None:
    """SIGTERM and SIGINT are handled from the first moment: while modules are imported, files opened, services started."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for number in range(5):
        with started(config_at(tmp_path / str(number)), tmp_path / str(number)) as broker:
            broker.wait_for_handlers()
            assert not (tmp_path / str(number) / "data").exists(), "signals were not handled before the files were opened"
            time.sleep(chance.uniform(0.0, 1.0))
            broker.tell(chance.choice((signal.SIGTERM, signal.SIGINT)))
            assert_ended_well(broker, broker.end(), f"seed {seed}")


def test_a_hangup_does_not_end_a_broker(tmp_path: Path) -> None:
    """SIGHUP never ends a broker; one that runs reads its certificates again and says so."""
    with started(config_at(tmp_path), tmp_path) as broker:
        broker.wait_for_handlers()
        broker.tell(signal.SIGHUP)
        broker.wait_until_it_listens()
        broker.tell(signal.SIGHUP)
        wait_until(lambda: "the certificates were read again" in broker.said())
        broker.tell(signal.SIGTERM)
        assert_ended_well(broker, broker.end())


@pytest.mark.parametrize("persistence_ms", [20, 5_000])
def test_a_broker_with_a_bound_queue_and_clients_stops_with_code_0(tmp_path: Path, persistence_ms: int) -> None:
    """Tracks that are due while the broker stops, and connections that end then, do not disturb its end."""
    (port,) = free_ports(1)
    tracking = Tracking(persistence_ms=persistence_ms)
    config = config_at(tmp_path, port, tracking=tracking)
    with started(config, tmp_path) as broker:
        broker.wait_until_it_listens()
        asyncio.run(_bind_a_queue(port))
        broker.tell(signal.SIGTERM)
        assert_ended_well(broker, broker.end())
    for _ in range(2):
        with started(config, tmp_path) as broker:
            broker.wait_until_it_listens()
            asyncio.run(_stop_while_clients_are_busy(broker, port))
            assert_ended_well(broker, broker.end())


async def _bind_a_queue(port: int) -> None:
    async with QueueClient.register("127.0.0.1", port, name="maker") as maker:
        queue = await maker.create_queue("orders")
        await maker.bind(queue.queue_id, "n > 0")


async def _stop_while_clients_are_busy(broker: Started, port: int) -> None:
    async with asyncio.timeout(20), postroad.connect(f"postroad://127.0.0.1:{port}") as client:
        await client.subscribe("n > 0")
        publisher = client.publisher()
        for number in range(200):
            await publisher.publish({"n": number + 1}, b"x" * 100)
        broker.tell(signal.SIGTERM)
        await asyncio.to_thread(broker.process.wait, END_S_MAX)
        await client.close(flush=False)


def test_a_start_that_fails_is_not_taken_for_a_crash(tmp_path: Path) -> None:
    """The port is in use: the last line says so, and the next start finds nothing missing in the tracks."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = config_at(tmp_path, other.getsockname()[1])
        with started(config, tmp_path) as broker:
            assert broker.end() == 1
            assert "died" not in broker.said()
            assert broker.said().splitlines()[-1].startswith("Error: cannot listen on")
    with started(config, tmp_path) as broker:
        broker.wait_until_it_listens()
        broker.tell(signal.SIGTERM)
        assert broker.end() == 0
        assert "without a farewell" not in broker.said()


class _Prober:
    """A service that looks whether anybody could connect while it starts."""

    methods: frozenset[int] = frozenset()
    reachable = True

    async def start(self, host: ServiceHost) -> None:
        with socket.socket() as probe:
            self.reachable = probe.connect_ex(("127.0.0.1", int(host.url.rpartition(":")[2]))) == 0

    async def stop(self) -> None:
        pass

    def open(self, send: Answer, on_room: Callable[[], None], rights: Rights) -> ServiceConnection:
        raise AssertionError(send, on_room, rights)


def test_the_port_opens_when_the_services_are_ready(tmp_path: Path) -> None:
    """While a service starts it knows the port, and nobody can connect and be told that its methods do not exist."""

    async def scenario() -> None:
        prober = _Prober()
        node = BrokerServer(config_at(tmp_path), (prober,))
        await node.start()
        assert not prober.reachable
        async with postroad.connect(node.url):
            pass
        await node.stop()

    asyncio.run(scenario())
