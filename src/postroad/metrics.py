"""`/metrics` for Prometheus, served by the broker when its configuration says where.

The figures are read when they are asked for, on the broker's own event loop; nothing is counted twice. The server speaks just
enough HTTP for a scraper: one request per connection, small, within a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from postroad import metric_meanings as meanings
from postroad.core.protocol.rights import Rights
from postroad.errors import ListenError, OverlayError, SecurityError
from postroad.queues.broker_service import BrokerQueues
from postroad.queues.service import QueueStats
from postroad.runtime.config import split_address
from postroad.runtime.connections.listener import bind_socket
from postroad.runtime.connections.quotas import address_of
from postroad.runtime.services import Answer, ServiceConnection, ServiceHost
from postroad.security.gate import is_loopback
from postroad.security.http_sessions import HttpSessions

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as missing:  # pragma: no cover - depends on what is installed
    raise OverlayError("metrics need prometheus-client: pip install 'postroad[metrics]'") from missing

log = logging.getLogger("postroad.metrics")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_S_MAX: Final = 5.0
REQUESTS_MAX: Final = 32  # at a time, those in their TLS handshake included
REQUESTS_OF_ADDRESS_MAX: Final = 8
RETRY_S: Final = 1.0
Read: TypeAlias = Callable[[QueueStats], float]


class MetricsService:
    """A service without packets: it serves figures over HTTP."""

    methods: frozenset[int] = frozenset()

    def __init__(self, listen: str, queues: BrokerQueues | None) -> None:
        self._listen = listen
        self._queues = queues
        self._accepting: dict[socket.socket, asyncio.Task[None]] = {}
        self.requests: Final[dict[asyncio.Task[None], str]] = {}  # with the addresses they come from
        self._guarded = False
        self._host: ServiceHost

    async def start(self, host: ServiceHost) -> None:
        self._host = host
        address, port = split_address(self._listen)
        self._guarded = host.gate.guarded and not is_loopback(address)
        sockets: list[socket.socket] = []
        try:
            found = await asyncio.get_running_loop().getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, each in dict.fromkeys(found):
                sockets.append(bind_socket(family, kind, protocol, each))
                sockets[-1].listen(REQUESTS_MAX)
        except OSError as error:
            for made in sockets:
                made.close()
            raise ListenError(f"cannot serve metrics on {self._listen}: {error.strerror or error}") from error
        self._accepting = {each: asyncio.create_task(self._accept(each)) for each in sockets}

    @property
    def port(self) -> int:
        return int(next(iter(self._accepting)).getsockname()[1])

    async def stop(self) -> None:
        for listening, task in self._accepting.items():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            listening.close()
        for request in list(self.requests):
            request.cancel()
        await asyncio.gather(*self.requests, return_exceptions=True)

    def open(
        self,
        send: Answer,  # noqa: ARG002  # no method leads here
        on_room: Callable[[], None],  # noqa: ARG002
        rights: Rights,  # noqa: ARG002
    ) -> ServiceConnection:
        raise AssertionError("metrics answer no packets")

    async def _accept(self, listening: socket.socket) -> None:
        """Accept for ever. A connection counts before its TLS handshake, whose buffers are the largest part of it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                log.error("no request for metrics can be accepted: %s", error.strerror)  # noqa: TRY400  # no bug of ours
                await asyncio.sleep(RETRY_S)
                continue
            host = address_of(str(address[0]))
            of_host = sum(each == host for each in self.requests.values())
            if len(self.requests) >= REQUESTS_MAX or of_host >= REQUESTS_OF_ADDRESS_MAX:
                accepted.close()
                continue
            request = loop.create_task(self._serve(accepted))
            self.requests[request] = host
            request.add_done_callback(self.requests.pop)

    async def _serve(self, accepted: socket.socket) -> None:
        """Answer one request, within a few seconds in all."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(REQUEST_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        tls = self._host.gate.listening if self._guarded else None
        transport: asyncio.Transport | None = None
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_S_MAX):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=REQUEST_S_MAX if tls else None
                )
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                return
        if transport is not None:
            transport.abort()
        else:
            accepted.close()

    async def _answer(self, request: bytes) -> bytes:
        line, *headers = request.decode("latin-1").split("\r\n")
        if not line.startswith("GET /metrics"):
            return _empty("404 Not Found")
        if self._guarded and not self._may_read(headers):
            return _empty("401 Unauthorized", "WWW-Authenticate: Bearer")
        body = await self.render()
        lines = ("HTTP/1.1 200 OK", f"Content-Type: {CONTENT_TYPE}", f"Content-Length: {len(body)}", "Connection: close", "", "")
        return "\r\n".join(lines).encode() + body

    def _may_read(self, headers: Sequence[str]) -> bool:
        """Tell whether a request carries the token of an administrator."""
        pairs = (header.partition(":") for header in headers)
        tokens = [value.strip() for name, _, value in pairs if name.strip().lower() == "authorization"]
        try:
            HttpSessions(self._host.gate).bearer(tokens[0] if len(tokens) == 1 else None, encrypted=True).administer()
        except SecurityError:
            return False
        return True

    async def render(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        queues = await self._queues.stats() if self._queues is not None else ()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Figures(self._host.stats(), queues))
        return generate_latest(registry)


def _empty(status: str, *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "Content-Length: 0", "Connection: close", "", "")).encode()


class _Figures(Collector):
    def __init__(self, broker: dict[str, object], queues: Sequence[QueueStats]) -> None:
        self._broker, self._queues = broker, queues

    def collect(self) -> Iterator[Metric]:
        yield from self._of_broker()
        yield from self._of_limits()
        yield from self._of_identities()
        yield from self._of_streams()
        yield from self._of_queues()

    def _of_broker(self) -> Iterator[Metric]:
        label = str(self._broker["broker"])
        for name, value in self._broker.items():
            if name == "broker" or isinstance(value, dict):
                continue
            gauge = GaugeMetricFamily(f"postroad_{name}", meanings.BROKER.get(name, name), labels=["broker"])
            gauge.add_metric([label], float(str(value)))
            yield gauge

    def _of_limits(self) -> Iterator[Metric]:
        limits = self._broker["limits"]
        assert isinstance(limits, dict)
        family = GaugeMetricFamily("postroad_limit", meanings.LIMIT, labels=["limit"])
        for name, value in limits.items():
            family.add_metric([name], float(value))
        yield family

    def _of_identities(self) -> Iterator[Metric]:
        uses = self._broker.get("identity_uses")
        assert isinstance(uses, dict)
        for name, text in meanings.IDENTITY.items():
            family = GaugeMetricFamily(f"postroad_identity_{name}", text, labels=["identity"])
            for identity, use in uses.items():
                family.add_metric([identity], float(use[name]))
            yield family

    def _of_streams(self) -> Iterator[Metric]:
        streams = self._broker["streams"]
        assert isinstance(streams, dict)
        families: dict[str, GaugeMetricFamily] = {}
        for pubend, figures in streams.items():
            for name, value in figures.items():
                text = meanings.STREAM.get(name, name)
                family = families.setdefault(name, GaugeMetricFamily(f"postroad_stream_{name}", text, labels=["pubend"]))
                family.add_metric([f"{pubend:x}"], float(value))
        yield from families.values()

    def _of_queues(self) -> Iterator[Metric]:
        gauges: dict[str, Read] = {
            "waiting": lambda s: s.depth.waiting,
            "scheduled": lambda s: s.depth.scheduled,
            "leased": lambda s: s.depth.leased,
            "oldest_seconds": lambda s: (s.depth.oldest_age_ms or 0) / 1000,
        }
        for name, read in gauges.items():
            gauge = GaugeMetricFamily(f"postroad_queue_{name}", meanings.QUEUE[name], labels=["queue"])
            for stats in self._queues:
                gauge.add_metric([stats.queue.name], read(stats))
            yield gauge
        counters: dict[str, Read] = {
            "put": lambda s: s.put_total,
            "taken": lambda s: s.taken_total,
            "done": lambda s: s.done_total,
        }
        for name, read in counters.items():
            counter = CounterMetricFamily(f"postroad_queue_{name}", meanings.QUEUE_TOTALS[name], labels=["queue"])
            for stats in self._queues:
                counter.add_metric([stats.queue.name], read(stats))
            yield counter
