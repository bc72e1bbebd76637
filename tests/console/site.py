"""An overlay of real brokers in this process, the first with a console, and a plain HTTP client for it."""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroad.console.access import COOKIE
from postroad.console.service import ConsoleService
from postroad.queues.broker_service import queues_of
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Console, Links, Neighbour, NodeConfig, Overlay, Tracking
from postroad.testing import free_ports, url_of
from postroad.transport.background import BackgroundLoop


@dataclass
class Site:
    """Brokers 1, 2, ... in a line, and what a browser needs to enter the console of broker 1."""

    loop: BackgroundLoop
    nodes: list[BrokerServer]
    console: ConsoleService
    directory: Path
    cookie: str = ""
    traffic: Any = None
    _configs: dict[int, NodeConfig] = field(default_factory=dict)

    def url(self, broker: int = 1) -> str:
        return url_of(next(node for node in self.nodes if node.config.id == broker))

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.console.port}"

    @property
    def key(self) -> str:
        return self.console.address.split("#key=")[1]

    def kill(self, broker: int) -> None:
        """Stop a broker."""
        node = next(each for each in self.nodes if each.config.id == broker)
        self._configs[broker] = node.config
        self.loop.call(node.stop())
        self.nodes.remove(node)

    def revive(self, broker: int) -> None:
        """Start a stopped broker again on its files."""
        node = BrokerServer(self._configs[broker])
        self.loop.call(node.start())
        self.nodes.append(node)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Send one request; return the status, the headers and the JSON or bytes of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.console.port, timeout=20)
        sent = {"Host": self.host, **({"Cookie": f"{COOKIE}={self.cookie}"} if self.cookie else {})}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = None
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, content, sent)
        answer = connection.getresponse()
        raw = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        is_json = found.get("content-type", "").startswith("application/json")
        return answer.status, found, json.loads(raw) if is_json else raw

    def get(self, path: str) -> Any:
        status, _, answer = self.ask("GET", path)
        assert status == 200, (status, answer)
        return answer

    def enter(self) -> None:
        status, headers, answer = self.ask("POST", "/api/session", {"key": self.key})
        assert status == 200, answer
        self.cookie = headers["set-cookie"].split(";")[0].split("=", 1)[1]

    def events(self, path: str) -> Iterator[Any]:
        """Yield the events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.console.port, timeout=20)
        connection.request("GET", path, headers={"Host": self.host, "Cookie": f"{COOKIE}={self.cookie}"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()


@contextmanager
def site(
    directory: Path,
    brokers: int = 2,
    *,
    names: Sequence[str] = (),
    neighbours: Mapping[int, Sequence[int]] | None = None,
    topics: Sequence[str] = (),
    **sections: Any,
) -> Iterator[Site]:
    """Run brokers, by default in a line, the first with a console and queues. `sections` are settings that all of them have."""
    loop = BackgroundLoop("postroad-console")
    ports = free_ports(brokers)
    nodes: list[BrokerServer] = []
    console = None
    try:
        for number in range(1, brokers + 1):
            others = [number - 1] * (number > 1) if neighbours is None else neighbours.get(number, ())
            config = NodeConfig(
                id=number,
                name=names[number - 1] if names else f"site-{number}",
                data_dir=str(directory / f"b{number}"),
                listen=f"127.0.0.1:{ports[number - 1]}",
                log_level="warning",
                neighbours=tuple(Neighbour(address=f"127.0.0.1:{ports[other - 1]}") for other in others),
                console=Console(listen="127.0.0.1:0", books="books.json", topics=tuple(topics)) if number == 1 else Console(),
                overlay=Overlay(silence_s=0.2),
                links=Links(heartbeat_s=0.3, timeout_s=2.0),
                tracking=Tracking(persistence_ms=200),
                **sections,
            )
            queues = queues_of(config) if number == 1 else None
            services = [] if queues is None else [queues]
            if number == 1:
                console = ConsoleService(config, queues)
            node = BrokerServer(config, [*services, console] if number == 1 and console is not None else services)
            loop.call(node.start())
            nodes.append(node)
        assert console is not None
        yield Site(loop, nodes, console, directory / "b1")
    finally:
        for node in nodes:
            loop.call(node.stop())
        loop.stop()
