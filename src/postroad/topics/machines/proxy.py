"""The proxy machine: dispatches each client's message to the server of its topic, unaltered, and finds topics with two owners.

Theory of operation (seed sections 3 and 4). A topic's server is, in this order: the server of the client's home copy, when
it announces the topic or nobody does; the lowest id among the servers that announce it; the server it was assigned to; else
the topic is new and goes to the server with the fewest topics, the smallest id on a tie, among those heard of lately.
Assignments and servers are durable before anything is dispatched on them: a proxy that comes back still knows which server
is away, and a server is never forgotten, on which reclaiming rests (ADR 0006).

Two servers that announce one topic are a conflict: each but the lowest is told to MERGE into the lowest, again with every
announcement until it is resolved. The answer to PERIODIC says up to which stamp all other servers have reported (`l`), the
latest move they reported (`m`), and the sender's topics that are in conflict.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from postroad.errors import TopicsProtocolError
from postroad.topics.machines import messages as m
from postroad.topics.machines.options import ProxyOptions
from postroad.topics.machines.orders import Answered, Asked, Input, Order, Persist, Reply, Route
from postroad.topics.machines.retries import Calls
from postroad.topics.machines.rows import DropServer, ProxyRow, ProxyState, SaveRoute, SaveServer, SetMark
from postroad.topics.machines.server import REPORT, readable

CLIENT_REQUESTS = frozenset({b"SUBSCRIBE", b"UNSUBSCRIBE", b"GET", b"PUT"})
ROUTES_PER_WAITER_MAX = 16
REPORT_TOPICS_MAX = 10_000


@dataclass(slots=True)
class _Server:
    """`stamp` is None until it has announced itself to this process."""

    address: bytes
    heard: float | None = None
    stamp: int | None = None
    moved: int = 0
    topics: dict[bytes, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Forward:
    """A client's request under way to a server. Repeats of it wait here for the same answer."""

    key: tuple[bytes, ...]
    topic: bytes
    payload: bytes
    factor: float
    server: bytes
    routes: list[Route]
    hops: int = 0


@dataclass(frozen=True, slots=True)
class _MergeTag:
    topic: bytes


class ProxyMachine:
    """One proxy. Its address is fixed and known to servers and clients."""

    def __init__(self, proxy: bytes, state: ProxyState, *, options: ProxyOptions, forget: Sequence[bytes] = ()) -> None:
        self.proxy = proxy
        self.options = options
        self.servers = {row.server: _Server(row.address) for row in state.servers}
        self.routes = {row.topic: row.server for row in state.routes if row.server in self.servers}
        self._claims: dict[bytes, dict[bytes, None]] = {}
        self._load: dict[bytes, int] = dict.fromkeys(self.servers, 0)
        for server in self.routes.values():
            self._load[server] += 1
        self._forwards: dict[tuple[bytes, ...], _Forward] = {}
        self._in_flight_bytes = 0
        self._calls: Calls[_Forward | _MergeTag] = Calls(options.calls)
        self._orders: list[Order] = []
        self._rows: list[ProxyRow] = []
        self._latest = 0
        self._forgotten: dict[bytes, bytes] = {}  # servers that are gone for good; servers must not remind us of them
        self._lists_sent = 0
        # A list that is new, or was lost, is complete when every server had time to announce itself or to be named by another.
        self._listed = bool(state.marks.get("listed", 1 if state.servers else 0))
        self._listed_at: float | None = None
        if "listed" not in state.marks:
            self._rows.append(SetMark("listed", int(self._listed)))
        for server in forget:
            self._forget(server)

    # -- the contract -------------------------------------------------------------------------------------------------

    def receive(self, message: Input, *, link: Route, now: float) -> None:
        if isinstance(message, Asked):
            self._take_question(message.payload, link, now)
        else:
            self._take_answer(message, now)

    def wake(self, *, now: float) -> None:
        again, given_up = self._calls.wake(now)
        for ask in again:
            self._order(ask)
        for tag in given_up:
            if isinstance(tag, _Forward):
                server = readable(tag.server)
                self._refuse(tag, f"server {server} does not answer; its topics are unavailable until it is back".encode())

    def deadline(self) -> float | None:
        return self._calls.deadline()

    def delayed(self, seconds: float) -> None:
        """Take note that a write held the requests back so long."""
        self._calls.delayed(seconds)

    def outputs(self) -> Sequence[Order]:
        self._flush()
        orders, self._orders = self._orders, []
        return orders

    def _flush(self) -> None:
        if self._rows:
            self._orders.append(Persist(tuple(self._rows)))
            self._rows = []

    def _order(self, order: Order) -> None:
        self._flush()
        self._orders.append(order)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _take_question(self, payload: bytes, route: Route, now: float) -> None:
        try:
            header = m.parse_header(payload)
            if header.name in CLIENT_REQUESTS:
                self._dispatch(header, payload, route, now)
                return
            message = m.parse(payload)
            match message:
                case m.Periodic():
                    self._take_announcement(message, route, now)
                case m.Status() if message.status == REPORT:
                    self._reply(route, m.OK, body=self._report(now))
                case _:
                    self._reply(route, m.BAD_REQUEST, body=b"a proxy takes SUBSCRIBE, UNSUBSCRIBE, GET, PUT and PERIODIC")
        except TopicsProtocolError as error:
            self._reply(route, m.BAD_REQUEST, body=str(error).encode())

    def _reply(self, route: Route, status: bytes, *, body: bytes = b"", extensions: m.Extensions | None = None) -> None:
        answer = m.Status(self.proxy, status, None, body, extensions=extensions or {})
        self._order(Reply(route, m.format_message(answer)))

    def _dispatch(self, header: m.Header, payload: bytes, route: Route, now: float) -> None:
        topic = m.decode_name(header.fields[1])
        m.decode_name(header.fields[0])
        key = (header.name, *header.fields, header.extensions.get("n", b""), header.extensions.get("h", b""))
        waiting = self._forwards.get(key)
        if waiting is not None and waiting.payload == payload:
            if len(waiting.routes) < ROUTES_PER_WAITER_MAX and route not in waiting.routes:
                waiting.routes.append(route)
            return
        if (
            len(self._calls) >= self.options.in_flight_max
            or self._in_flight_bytes + len(payload) > self.options.in_flight_bytes_max
        ):
            self._reply(route, m.BUSY, body=b"this proxy has too many requests under way; try again")
            return
        server = self._choose(topic, m.name(header.extensions, "h"), now)
        if server is None:
            self._reply(
                route, m.UNAVAILABLE, body=b"no server for a new topic has announced itself to this proxy lately; try again"
            )
            return
        waits = m.number(header.extensions, "w") or 0
        factor = min(max(1.0, waits / self.options.calls.timeout_ms), self.options.patience_max)
        forward = _Forward(key, topic, payload, factor, server, [route])
        if waiting is None:
            self._forwards[key] = forward
        self._in_flight_bytes += len(payload)
        self._send(forward, now)

    def _send(self, forward: _Forward, now: float) -> None:
        address = self.servers[forward.server].address
        self._order(self._calls.start(address, forward.payload, forward, now=now, factor=forward.factor))

    def _choose(self, topic: bytes, home: bytes | None, now: float) -> bytes | None:
        claims = self._claims.get(topic)
        if home is not None:
            server = home.rpartition(b"!")[0]
            if server in self.servers and (not claims or server in claims):
                if topic not in self.routes:
                    self._route(topic, server)
                return server
        if claims:
            return min(claims)
        if topic in self.routes:
            return self.routes[topic]
        return self._assign(topic, now)

    def _assign(self, topic: bytes, now: float) -> bytes | None:
        lately = now - self.options.silent_s
        live = [name for name, server in self.servers.items() if server.heard is not None and server.heard >= lately]
        if not live or len(self.routes) >= self.options.topics_max:
            return None
        server = min(live, key=lambda name: (self._load[name], name))
        self._route(topic, server)
        return server

    def _route(self, topic: bytes, server: bytes) -> None:
        before = self.routes.get(topic)
        if before == server:
            return
        if before is not None:
            self._load[before] -= 1
        self.routes[topic] = server
        self._load[server] += 1
        self._rows.append(SaveRoute(topic, server))

    # -- answers ------------------------------------------------------------------------------------------------------

    def _take_answer(self, answer: Answered, now: float) -> None:
        tag = self._calls.resolve(answer.request)
        if not isinstance(tag, _Forward):
            return
        try:
            header = m.parse_header(answer.payload)
        except TopicsProtocolError:
            header = None
        if header is None or header.name != b"STATUS":
            self._refuse(tag, b"the topic's server gave an answer that is not a STATUS")
            return
        if header.fields[1] == m.NOT_OWNER and self._redirect(tag, header, now):
            return
        self._close(tag)
        for route in tag.routes:
            self._order(Reply(route, answer.payload))

    def _redirect(self, forward: _Forward, header: m.Header, now: float) -> bool:
        """Learn where the server has moved the topic to, and ask there."""
        try:
            owner, address = m.name(header.extensions, "o"), m.name(header.extensions, "a")
        except TopicsProtocolError:
            return False
        claims = self._claims.get(forward.topic)
        if claims:
            claims.pop(forward.server, None)
            self.servers[forward.server].topics.pop(forward.topic, None)
            if not claims:
                del self._claims[forward.topic]
        if owner is None or address is None or owner == forward.server or forward.hops >= self.options.hops_max:
            return False
        if owner not in self.servers and not self._learn(owner, address):
            return False
        self._route(forward.topic, owner)
        forward.server = owner
        forward.hops += 1
        self._send(forward, now)
        return True

    def _refuse(self, forward: _Forward, text: bytes) -> None:
        self._close(forward)
        for route in forward.routes:
            self._reply(route, m.UNAVAILABLE, body=text)

    def _close(self, forward: _Forward) -> None:
        self._in_flight_bytes -= len(forward.payload)
        if self._forwards.get(forward.key) is forward:
            del self._forwards[forward.key]

    # -- announcements ------------------------------------------------------------------------------------------------

    def _take_announcement(self, message: m.Periodic, route: Route, now: float) -> None:
        extensions = message.extensions
        address = m.name(extensions, "a") or message.sender
        if len(self._claims) + len(message.topics) > self.options.topics_max or not self._learn(message.sender, address):
            self._reply(route, m.REFUSED, body=b"this proxy knows its maximum of servers or topics")
            return
        self._forgotten.pop(message.sender, None)
        self._remember(message)
        self._complete_list(now)
        server = self.servers[message.sender]
        stamp = m.number(extensions, "t")
        self._latest = max(self._latest, stamp or 0)
        if stamp is None or server.stamp is None or stamp >= server.stamp:
            server.heard = now
            server.stamp = stamp
            server.moved = m.number(extensions, "m") or 0
            self._claim(message.sender, server, message.topics)
        disputed = tuple(topic for topic in server.topics if len(self._claims[topic]) > 1)
        for topic in disputed:
            self._resolve(topic, now)
        answer = None if stamp is None else {**self._find_settled(message.sender), **self._list(message)}
        self._reply(route, m.OK, body=m.format_names(disputed), extensions=answer)

    def _remember(self, message: m.Periodic) -> None:
        """Learn the servers another server was once told of: we may have lost our list."""
        for server, address in m.parse_servers(message.extensions, "k").items():
            if server not in self.servers and server not in self._forgotten:
                self._learn(server, address)

    def _complete_list(self, now: float) -> None:
        if self._listed:
            return
        if self._listed_at is None:
            self._listed_at = now + self.options.silent_s
        elif now >= self._listed_at:
            self._listed = True
            self._rows.append(SetMark("listed", 1))

    def _list(self, message: m.Periodic) -> dict[str, bytes]:
        """Say which servers we know, when the asker knows others; and which were forgotten on purpose."""
        digest = m.digest_servers(self.servers)
        fields = m.extend(d=digest)
        if m.number(message.extensions, "d") not in {None, digest}:
            self._lists_sent += 1
            known = {name: server.address for name, server in self.servers.items()}
            fields["k"] = m.format_servers(known, self._lists_sent)
        if self._forgotten:
            fields["f"] = m.format_servers(self._forgotten)
        return fields

    def _learn(self, name: bytes, address: bytes) -> bool:
        known = self.servers.get(name)
        if known is None:
            if len(self.servers) >= self.options.servers_max:
                return False
            self.servers[name] = _Server(address)
            self._load[name] = 0
        elif known.address == address:
            return True
        else:
            known.address = address
        self._rows.append(SaveServer(name, address))
        return True

    def _claim(self, name: bytes, server: _Server, topics: tuple[bytes, ...]) -> None:
        now_claimed = dict.fromkeys(topics)
        for topic in [t for t in server.topics if t not in now_claimed]:
            claims = self._claims[topic]
            claims.pop(name, None)
            if not claims:
                del self._claims[topic]
        for topic in [t for t in topics if t not in server.topics]:
            self._claims.setdefault(topic, {})[name] = None
        server.topics = now_claimed
        for topic in topics:
            self._route(topic, min(self._claims[topic]))

    def _find_settled(self, sender: bytes) -> dict[str, bytes]:
        """Say how far all other servers have reported; nothing when one has not."""
        others = [server for name, server in self.servers.items() if name != sender]
        moved = max((server.moved for server in self.servers.values()), default=0)
        if not self._listed or any(server.stamp is None for server in others):
            return m.extend(t=self._latest)
        low = min((server.stamp for server in others if server.stamp is not None), default=self._latest)
        return m.extend(t=self._latest, l=low, m=moved)

    def _resolve(self, topic: bytes, now: float) -> None:
        """Order every owner but the one with the lowest id to give its copy up."""
        claims = self._claims[topic]
        lowest = min(claims)
        for name in sorted(claims):
            if name != lowest:
                address = self.servers[lowest].address
                order = m.Merge(self.proxy, topic, address, extensions=m.extend(i=lowest, t=self._latest))
                self._order(self._calls.start(self.servers[name].address, m.format_message(order), _MergeTag(topic), now=now))

    def _forget(self, name: bytes) -> None:
        self._forgotten[name] = name
        if self.servers.pop(name, None) is not None:
            self.routes = {topic: server for topic, server in self.routes.items() if server != name}
            self._load.pop(name)
            self._rows.append(DropServer(name))

    # -- what a person sees -------------------------------------------------------------------------------------------

    def _report(self, now: float) -> bytes:
        servers = [
            {
                "server": readable(name),
                "address": readable(server.address),
                "heard_s_ago": None if server.heard is None else round(now - server.heard, 1),
                "topics": self._load[name],
            }
            for name, server in sorted(self.servers.items())
        ]
        routes = [
            {
                "topic": readable(topic),
                "server": readable(server),
                "conflict": [readable(c) for c in claims] if len(claims := self._claims.get(topic, {})) > 1 else [],
            }
            for topic, server in list(self.routes.items())[:REPORT_TOPICS_MAX]
        ]
        whole = {"proxy": readable(self.proxy), "servers": servers, "topics": routes, "under_way": len(self._calls)}
        return json.dumps(whole).encode()
