"""The console as a service of a broker: an HTTP server on the broker's own event loop, and a client of the broker.

The pages see the overlay as any client does, through the broker's port. Nothing is asked while no page is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from postroad.client.connection import Client, ClientConfig, connect
from postroad.console.access import allowed_hosts, read_or_make_key, write_address
from postroad.console.action_log import ActionLog
from postroad.console.admission import describe_admission
from postroad.console.app import Console, ConsoleParts
from postroad.console.books import read_books
from postroad.console.picture import Picture
from postroad.console.queue_actions import QueueActions
from postroad.core.protocol.rights import Rights
from postroad.errors import ConfigError, ListenError, OverlayError
from postroad.queues.broker_service import BrokerQueues
from postroad.runtime.config import NodeConfig, split_address
from postroad.runtime.services import Answer, ServiceConnection, ServiceHost
from postroad.security.http_sessions import HttpSessions

try:
    import uvicorn
except ImportError as missing:  # pragma: no cover - depends on what is installed
    raise OverlayError("the console needs starlette and uvicorn: pip install 'postroad[console]'") from missing

log = logging.getLogger("postroad.console")

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
CONNECTIONS_MAX: Final = 200
STOP_S_MAX: Final = 2.0
HEADER_BYTES_MAX: Final = 32 << 10


class ConsoleService:
    """A service without packets: it serves pages over HTTP."""

    methods: frozenset[int] = frozenset()

    def __init__(self, config: NodeConfig, queues: BrokerQueues | None) -> None:
        address, _ = split_address(config.console.listen)
        if address not in LOOPBACK:
            raise ConfigError(
                f"`console.listen` is {config.console.listen!r}: the console serves plain HTTP, so it listens on loopback only; "
                "put a reverse proxy with TLS in front of it, or use `ssh -L`"
            )
        self._settings = config.console
        self._directory = Path(config.data_dir)
        self._broker = config.id
        self._queues = queues
        self._admits = config.admission.policy != "off"
        self._stack = AsyncExitStack()
        self._connected = False
        self._picture: Picture
        self._key = ""
        self.port = 0

    @property
    def address(self) -> str:
        """What a browser opens. The key is behind `#`, so it is not sent to anybody and not logged."""
        host, _ = split_address(self._settings.listen)
        fragment = f"#key={self._key}" if self._key else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{fragment}"

    async def start(self, host: ServiceHost) -> None:
        name, port = split_address(self._settings.listen)
        try:
            listener = socket.create_server((name, port), family=socket.AF_INET6 if ":" in name else socket.AF_INET)
        except OSError as error:
            raise ListenError(f"cannot serve the console on {self._settings.listen}: {error.strerror or error}") from error
        self.port = int(listener.getsockname()[1])
        if not host.gate.guarded:
            self._key = await asyncio.to_thread(read_or_make_key, self._directory)
        context = host.credentials.context
        own = ClientConfig(name="console")
        client = connect(host.url, own) if context is None else connect(host.url, own, tls=context, token="")
        self._picture = Picture(client, self._broker)
        parts = ConsoleParts(
            client,
            self._picture,
            HttpSessions(host.gate, key=self._key),
            None if self._queues is None else QueueActions(self._queues),
            ActionLog(self._directory),
            allowed_hosts(name, self.port, self._settings.hosts),
            lambda: self._connected,
            self._more_pages(client),
        )
        server = _Server(
            uvicorn.Config(
                Console(parts).app(),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                http="h11",
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )
        self._stack.push_async_callback(_stop_server, server, asyncio.create_task(server.serve(sockets=[listener])))
        self._stack.push_async_callback(self._picture.stop)
        connecting = asyncio.create_task(self._connect(client))
        self._stack.push_async_callback(_cancel, connecting)
        await asyncio.to_thread(write_address, self._directory, self.address)
        log.info("the console of broker %d is at http://%s:%d/", self._broker, name, self.port)

    def _more_pages(self, client: Client) -> dict[str, Callable[[], Awaitable[Any]]]:
        """Return what further pages show, by name."""
        pages: dict[str, Callable[[], Awaitable[Any]]] = {}
        if self._admits:
            pages["admission"] = partial(describe_admission, client)
        if self._settings.topics:
            from postroad.console.topics import read_topics  # noqa: PLC0415  # pyzmq is an optional extra

            pages["topics"] = partial(asyncio.to_thread, read_topics, self._settings.topics)
        if self._settings.books:
            pages["books"] = partial(asyncio.to_thread, read_books, self._directory / self._settings.books)
        return pages

    async def _connect(self, client: Client) -> None:
        """Stay connected to the own broker, which opens its port after its services."""
        async with _enter(client):
            self._connected = True
            try:
                await asyncio.Event().wait()
            finally:
                self._connected = False

    async def stop(self) -> None:
        await self._stack.aclose()

    def open(self, send: Answer, on_room: Callable[[], None], rights: Rights) -> ServiceConnection:  # noqa: ARG002  # no method leads here
        raise AssertionError("the console answers no packets")


@contextlib.asynccontextmanager
async def _enter(client: Client) -> AsyncIterator[None]:
    while True:
        try:
            await client.__aenter__()
            break
        except OverlayError as error:
            log.warning("the console is not connected to its broker yet: %s", error)
            await asyncio.sleep(1.0)
    try:
        yield
    finally:
        await client.__aexit__(None, None, None)


class _Server(uvicorn.Server):
    """An HTTP server that leaves signals to the broker."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _stop_server(server: _Server, serving: asyncio.Task[None]) -> None:
    server.should_exit = True
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(serving), STOP_S_MAX)
    server.force_exit = True
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(serving, STOP_S_MAX)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
