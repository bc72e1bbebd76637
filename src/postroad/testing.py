"""Brokers inside your own tests: real ones, with real files in a temporary directory, in a thread of the test's process.

They serve queues on their port, too, in an SQLite file of their own. For pytest there are fixtures: `postroad.pytest_plugin`.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from postroad.errors import NotConnectedError
from postroad.queues.broker_service import queues_of
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Neighbour, NodeConfig, Overlay
from postroad.tracking.queries.questions import StatusQuestion
from postroad.transport.background import BackgroundLoop

CONNECT_S_MAX: Final = 30.0
POLL_S: Final = 0.01


@contextmanager
def broker(*, data_dir: str | Path | None = None) -> Iterator[str]:
    """Run one broker and give its URL. With a `data_dir` its messages outlive it, as a real broker's do.

    ```python
    with postroad.testing.broker() as url:
        with postroad.sync.connect(url) as client:
            client.publish({"type": "order"})
    ```
    """
    with tempfile.TemporaryDirectory(prefix="postroad-") as temporary:
        config = NodeConfig(id=1, data_dir=str(data_dir or temporary), listen="127.0.0.1:0", log_level="warning")
        with _running([config]) as nodes:
            yield url_of(nodes[0])


@contextmanager
def overlay(links: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Run the brokers named in the links, connected by them, and give their URLs by name.

    When it begins, every broker knows all brokers that it can reach: a subscription at one gets what is published at another.

    ```python
    with postroad.testing.overlay([("a", "b"), ("b", "c")]) as urls:
        with postroad.sync.connect(urls["a"]) as near, postroad.sync.connect(urls["c"]) as far:
            orders = far.subscribe("type = 'order'")
            near.publish({"type": "order"})
            print(orders.get(timeout=30))
    ```
    """
    pairs = list(links)
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with tempfile.TemporaryDirectory(prefix="postroad-") as temporary:
        configs = [
            NodeConfig(
                id=number,
                name=name,
                data_dir=str(Path(temporary) / name),
                listen=f"127.0.0.1:{ports[name]}",
                neighbours=tuple(Neighbour(address=f"127.0.0.1:{ports[other]}") for first, other in pairs if first == name),
                overlay=Overlay(silence_s=0.1),
            )
            for number, name in enumerate(names, 1)
        ]
        with _running(configs, pairs) as nodes:
            yield {node.config.name: url_of(node) for node in nodes}


@contextmanager
def _running(configs: list[NodeConfig], links: Sequence[tuple[str, str]] = ()) -> Iterator[list[BrokerServer]]:
    loop = BackgroundLoop("postroad-brokers")
    nodes: list[BrokerServer] = []
    try:
        for config in configs:
            node = loop.call(_start(config))
            nodes.append(node)
        loop.call(_wait_until_connected(nodes, links))
        yield nodes
    finally:
        for node in nodes:
            loop.call(node.stop())
        loop.stop()


async def _wait_until_connected(nodes: list[BrokerServer], links: Sequence[tuple[str, str]]) -> None:
    """Wait until each broker knows the streams of all that it can reach."""
    reach = {node.config.name: {node.config.name} for node in nodes}
    for first, other in links:
        joined = reach[first] | reach[other]
        reach.update(dict.fromkeys(joined, joined))
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            for node in nodes:
                while len(node.report(StatusQuestion(0, 0, "")).streams) < len(reach[node.config.name]):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise NotConnectedError(f"the brokers are not connected after {CONNECT_S_MAX:g} s") from None


async def _start(config: NodeConfig) -> BrokerServer:
    queues = queues_of(config)
    node = BrokerServer(config, services=() if queues is None else [queues])
    await node.start()
    return node


def url_of(node: BrokerServer) -> str:
    return f"postroad://127.0.0.1:{node.port}"


def free_ports(count: int) -> list[int]:
    """Find ports nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
