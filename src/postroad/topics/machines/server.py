"""The server machine: executes SUBSCRIBE, UNSUBSCRIBE, GET, PUT on its copies, announces them, and moves them on MERGE.

Theory of operation: `docs/internals/topics.md`; seed sections 2-4. Every change is in memory at once and leaves as a
`Persist` before the answer that reports it. Where the seed is silent or loses messages, ADR 0006 says what we do and why.

Invariants: a frozen copy changes nothing; a copy with a target never thaws; a topic is in `copies` or in `moved`, never in
both; a stamp told to a proxy is durable as `clock` first, so no later subscription is ever stamped below it, also after a
crash with the clock set back.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import xxhash

from postroad.errors import TopicsProtocolError
from postroad.topics.machines import messages as m
from postroad.topics.machines.clock import HybridClock, milliseconds
from postroad.topics.machines.handover import Move, Staging, plan_parts
from postroad.topics.machines.merge import Arrival, merge
from postroad.topics.machines.options import ServerOptions
from postroad.topics.machines.orders import Answered, Ask, Asked, BodyRef, Input, Order, Persist, Reply, Route
from postroad.topics.machines.replica import EVERYTHING, TopicCopy, Verdict
from postroad.topics.machines.retries import Calls
from postroad.topics.machines.rows import (
    DropMoved,
    DropServer,
    DropTopic,
    SaveMoved,
    SaveServer,
    ServerRow,
    ServerState,
    SetMark,
    Stage,
    Unstage,
)
from postroad.topics.machines.transfer import parse_transfer
from postroad.types import COUNTER_BITS

REPORT: Final = b"REPORT"
REPORT_TOPICS_MAX: Final = 10_000


@dataclass(slots=True)
class _Round:
    """One PERIODIC to every proxy, and what they answered."""

    number: int
    copies: dict[bytes, bytes]
    answers: dict[bytes, tuple[int, int, tuple[bytes, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _PeriodicTag:
    number: int
    proxy: bytes


@dataclass(frozen=True, slots=True)
class _MoveTag:
    topic: bytes
    attempt: int


class ServerMachine:
    """One server. `proxies` are addresses; `now` is in seconds since the epoch and never goes back."""

    def __init__(
        self, server: bytes, address: bytes, proxies: Sequence[bytes], state: ServerState, *, options: ServerOptions, now: float
    ) -> None:
        self.server = server
        self.address = address
        self.options = options
        self._proxies = tuple(dict.fromkeys(proxies))
        self.clock = HybridClock(state.marks.get("clock", 0), ahead_ms_max=options.ahead_ms_max)
        self.copies: dict[bytes, TopicCopy] = {}
        self.moved: dict[bytes, SaveMoved] = {}
        self.moves: dict[bytes, Move] = {}
        self._stagings: dict[tuple[bytes, bytes], Staging] = {}
        self._calls: Calls[_PeriodicTag | _MoveTag] = Calls(options.calls)
        self._orders: list[Order] = []
        self._rows: list[ServerRow] = []
        self._held: list[tuple[float, int, Reply]] = []
        self._held_count = 0
        self._round = _Round(0, {})
        self._announce_at = now
        self._moved_stamp = state.marks.get("moved", 0)
        self._servers = {row.server: row.address for row in state.servers}  # all that any proxy ever told us of
        self._proxy_digests: dict[bytes, int | None] = {}  # of the servers each proxy knew at its last answer
        self._announcement_bytes = 0
        self._load(state, now)

    # -- the contract -------------------------------------------------------------------------------------------------

    def receive(self, message: Input, *, link: Route, now: float) -> None:
        if isinstance(message, Asked):
            self._take_question(message.payload, link, now)
        else:
            self._take_answer(message, now)

    def wake(self, *, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            self._orders.append(heapq.heappop(self._held)[2])
        again, given_up = self._calls.wake(now)
        for ask in again:
            self._order(ask)
        for tag in given_up:
            if isinstance(tag, _MoveTag):
                self._move_failed(tag, now)
        for move in [mv for mv in self.moves.values() if mv.retry_at is not None and mv.retry_at <= now]:
            self._restart_move(move, now)
        if now >= self._announce_at:
            self._announce(now)

    def deadline(self) -> float | None:
        times = [self._announce_at]
        times += [move.retry_at for move in self.moves.values() if move.retry_at is not None]
        if self._held:
            times.append(self._held[0][0])
        call = self._calls.deadline()
        return min(times) if call is None else min(call, *times)

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

    # -- loading ------------------------------------------------------------------------------------------------------

    def _load(self, state: ServerState, now: float) -> None:
        for topic in state.topics:
            copy = TopicCopy(topic.topic, topic.copy, topic.lineage)
            copy.target, copy.target_address = topic.target, topic.target_address
            self._add(copy)
        for publisher in state.publishers:
            self.copies[publisher.topic].put_back(publisher)
        for message in state.messages:
            self.copies[message.topic].load_message(message)
        for subscriber in state.subscribers:
            self.copies[subscriber.topic].load_subscriber(subscriber)
        for late in state.late:
            self.copies[late.topic].subscribers[late.client].late = list(late.sequences)
        for copy in self.copies.values():
            copy.count()
        for moved in state.moved:
            self.moved[moved.topic] = moved
        stamps = [p.stamp for p in state.publishers] + [s.stamp for s in state.subscribers] + [s.stamp for s in state.messages]
        self.clock.last = max([self.clock.last, self._moved_stamp, *stamps])
        for copy in self.copies.values():
            if copy.target:
                self._resume_move(copy, now)

    def _add(self, copy: TopicCopy) -> None:
        if not self.options.settle:
            copy.horizon = EVERYTHING
        self.copies[copy.topic] = copy
        self._announcement_bytes += len(m.encode_name(copy.topic)) + 1

    # -- requests -----------------------------------------------------------------------------------------------------

    def _take_question(self, payload: bytes, route: Route, now: float) -> None:
        try:
            message = m.parse(payload)
            stamp = m.number(message.extensions, "t")
            if stamp is not None:
                self.clock.observe(stamp, now)
            match message:
                case m.Subscribe() | m.Unsubscribe() | m.Get() | m.Put():
                    self._serve(message, route, now)
                case m.Merge():
                    self._merge_ordered(message, route, now)
                case m.Transfer():
                    self._take_transfer(message, route, now)
                case m.Status() if message.status == REPORT:
                    self._reply(route, m.OK, message.extensions, body=self._report())
                case _:
                    text = b"a server takes SUBSCRIBE, UNSUBSCRIBE, GET, PUT, MERGE and TRANSFER"
                    self._reply(route, m.BAD_REQUEST, {}, body=text)
        except TopicsProtocolError as error:
            self._reply(route, m.BAD_REQUEST, {}, body=str(error).encode())

    def _reply(
        self,
        route: Route,
        status: bytes,
        asked: m.Extensions,
        *,
        copy: TopicCopy | None = None,
        message_id: bytes | None = None,
        body: bytes = b"",
        ref: BodyRef | None = None,
        more: m.Extensions | None = None,
        until: float = 0.0,
    ) -> None:
        """Answer; with extension fields only to a peer who uses them. `until` holds the answer back."""
        extensions: m.Extensions = {}
        if asked:
            extensions = {**m.extend(t=self.clock.last, h=None if copy is None else copy.copy), **(more or {})}
        payload = m.format_message(m.Status(self.server, status, message_id, body, extensions=extensions))
        self._flush()
        if until:
            self._held_count += 1
            heapq.heappush(self._held, (until, self._held_count, Reply(route, payload, ref)))
        else:
            self._orders.append(Reply(route, payload, ref))

    def _serve(self, message: m.ClientRequest, route: Route, now: float) -> None:
        asked = message.extensions
        if message.topic in self.moved:
            self._not_owner(message.topic, route, asked)
            return
        copy = self.copies.get(message.topic)
        home = m.name(asked, "h") if self.options.homes else None
        if home is not None and (copy is None or (home != copy.copy and home not in copy.lineage)):
            text = b"your data on this topic is in another server's copy; the copies are being merged, try again"
            self._reply(route, m.OTHER_COPY, asked, body=text)
            return
        if copy is None:
            if isinstance(message, m.Get):
                self._reply(route, m.NOT_SUBSCRIBED, asked, body=b"you are not subscribed to this topic")
                return
            refusal = self._room(message.topic)
            if refusal:
                self._reply(route, m.REFUSED, asked, body=refusal)
                return
            copy = self._create(message.topic, now)
        if copy.frozen:
            self._reply(route, m.MOVING, asked, body=b"the topic is moving to another server; try again")
            return
        if asked and home is None and self.options.homes and not isinstance(message, m.Get):
            # Nothing is done for a client without a home: a late duplicate of its first request must not be done elsewhere.
            self._reply(route, m.HOME, asked, copy=copy, body=b"send it again, with this copy as your home")
            return
        match message:
            case m.Subscribe() | m.Unsubscribe():
                self._subscription(message, copy, route, now)
            case m.Get():
                self._get(message, copy, route)
            case m.Put():
                self._put(message, copy, route, now)

    def _room(self, topic: bytes) -> bytes:
        if len(self.copies) >= self.options.topics_max:
            return b"this server has its maximum of %d topics" % self.options.topics_max
        if self._announcement_bytes + len(topic) * 3 > m.ANNOUNCEMENT_BYTES_MAX:
            return b"the names of this server's topics have reached %d bytes" % m.ANNOUNCEMENT_BYTES_MAX
        return b""

    def _create(self, topic: bytes, now: float) -> TopicCopy:
        copy = TopicCopy(topic, b"%s!%d" % (self.server, self.clock.tick(now)))
        self._add(copy)
        self._rows.append(copy.topic_row())
        self._announce_soon(now)
        return copy

    def _subscription(self, message: m.Subscribe | m.Unsubscribe, copy: TopicCopy, route: Route, now: float) -> None:
        client, operation = message.sender, m.number(message.extensions, "n")
        if client not in copy.subscribers and len(copy.subscribers) >= self.options.subscribers_max:
            self._reply(route, m.REFUSED, message.extensions, body=b"the topic has its maximum of subscribers")
            return
        joining = isinstance(message, m.Subscribe)
        act = copy.subscribe if joining else copy.unsubscribe
        verdict, rows = act(client, operation, self.clock.tick(now))
        self._rows += rows
        if verdict is Verdict.STALE:
            text = b"this client has already sent a newer subscribe or unsubscribe"
            self._reply(route, m.STALE, message.extensions, copy=copy, body=text)
            return
        until = 0.0
        if (
            joining
        ):  # a put invoked after our answer must be stamped later on every server whose clock is off by the bound or less
            until = (milliseconds(copy.subscribers[client].stamp) + self.options.skew_ms_max + 1) / 1000
        self._reply(route, m.OK, message.extensions, copy=copy, until=until if until > now else 0.0)

    def _get(self, message: m.Get, copy: TopicCopy, route: Route) -> None:
        verdict, rows, sequence = copy.get(message.sender, message.last_message_id)
        self._rows += rows
        asked = message.extensions
        if verdict is Verdict.NOT_SUBSCRIBED:
            self._reply(route, m.NOT_SUBSCRIBED, asked, copy=copy, body=b"you are not subscribed to this topic")
        elif sequence is None:
            self._reply(route, m.NO_MESSAGE, asked, copy=copy, body=b"there is no message to receive")
        else:
            entry = copy.log[sequence]
            self._reply(route, m.OK, asked, copy=copy, message_id=entry.id, ref=BodyRef(copy.topic, sequence))

    def _put(self, message: m.Put, copy: TopicCopy, route: Route, now: float) -> None:
        asked, options = message.extensions, self.options
        if len(message.body) > options.body_bytes_max:
            text = b"a body of %d bytes; this server takes at most %d" % (len(message.body), options.body_bytes_max)
            self._reply(route, m.REFUSED, asked, copy=copy, body=text)
            return
        if len(copy.log) >= options.backlog_messages_max or copy.bytes + len(message.body) > options.backlog_bytes_max:
            self._reply(route, m.BUSY, asked, copy=copy, body=b"the topic is full of messages not yet received; try again later")
            return
        if message.sender not in copy.publishers and len(copy.publishers) >= options.publishers_max:
            self._rows.append(copy.evict_publisher())
        digest = xxhash.xxh3_64_intdigest(message.body) >> 1  # 63 bits: a signed column holds it
        stamp = self.clock.tick(now)
        verdict, rows = copy.put(message.sender, message.counter, digest, stamp, message.body, keep=options.stamps)
        self._rows += rows
        match verdict:
            case Verdict.STALE:
                text = b"counter %d is behind this client's %d" % (message.counter, copy.publishers[message.sender].counter)
                self._reply(route, m.STALE, asked, copy=copy, body=text)
            case Verdict.OTHER_BODY:
                text = b"counter %d was already used for another message: two clients share this id" % message.counter
                self._reply(route, m.REFUSED, asked, copy=copy, body=text)
            case _:
                self._reply(route, m.OK, asked, copy=copy)

    def _not_owner(self, topic: bytes, route: Route, asked: m.Extensions) -> None:
        moved = self.moved[topic]
        more = m.extend(o=moved.target, a=moved.target_address)
        self._reply(route, m.NOT_OWNER, asked, body=b"the topic has moved to another server; try again", more=more)

    # -- announcing and settling --------------------------------------------------------------------------------------

    def _announce_soon(self, now: float) -> None:
        """Something changed: do not let the proxies wait the whole period."""
        self._announce_at = min(self._announce_at, now + self.options.period_s / 5)

    def _announce(self, now: float) -> None:
        self._announce_at = now + self.options.period_s
        self._round = _Round(self._round.number + 1, {topic: copy.copy for topic, copy in self.copies.items()})
        stamp = self.clock.tick(now)
        self._rows.append(SetMark("clock", stamp))
        self._servers[self.server] = self.address
        digest = m.digest_servers(self._servers)
        extensions = m.extend(a=self.address, t=stamp, m=self._moved_stamp, d=digest)
        reminder = {**extensions, "k": m.format_servers(self._servers, self._round.number)}
        for proxy in self._proxies:
            fields = extensions if self._proxy_digests.get(proxy) == digest else reminder
            payload = m.format_message(m.Periodic(self.server, tuple(self.copies), extensions=fields))
            self._order(self._calls.start(proxy, payload, _PeriodicTag(self._round.number, proxy), now=now))
        for copy in self.copies.values():
            self._settle(copy, copy.horizon, now)
        for key in [k for k, staging in self._stagings.items() if staging.touched < now - self.options.staging_s]:
            del self._stagings[key]
            self._rows.append(Unstage(*key))

    def _periodic_answered(self, tag: _PeriodicTag, status: m.Status, now: float) -> None:
        self._learn_servers(tag.proxy, status)
        low, moved = m.number(status.extensions, "l"), m.number(status.extensions, "m")
        if tag.number != self._round.number or low is None or moved is None or not status.ok:
            return
        self._round.answers[tag.proxy] = (low, moved, m.parse_announcement(status.body))
        if len(self._round.answers) < len(self._proxies):
            return
        answers = self._round.answers.values()
        horizon = min(a[0] for a in answers)
        if horizon < max(self._moved_stamp, *(a[1] for a in answers)):
            return
        disputed = {topic for a in answers for topic in a[2]}
        for topic, copy in self._round.copies.items():
            here = self.copies.get(topic)
            if here is not None and here.copy == copy and topic not in disputed and not here.frozen:
                self._settle(here, horizon, now)

    def _learn_servers(self, proxy: bytes, status: m.Status) -> None:
        """Remember the servers a proxy knows, so that it can be reminded of them when it has lost its list."""
        self._proxy_digests[proxy] = m.number(status.extensions, "d")
        for server, address in m.parse_servers(status.extensions, "k").items():
            if server not in self._servers and len(self._servers) < self.options.servers_max:
                self._servers[server] = address
                self._rows.append(SaveServer(server, address))
        for server in m.parse_servers(status.extensions, "f"):
            if self._servers.pop(server, None) is not None:
                self._rows.append(DropServer(server))

    def _settle(self, copy: TopicCopy, horizon: int, now: float) -> None:
        if copy.frozen:
            return
        retained_after = max(0, int((now - self.options.retention_s) * 1000)) << COUNTER_BITS
        tombstones = max(0, int((now - self.options.tombstone_s) * 1000)) << COUNTER_BITS
        self._rows += copy.settle(horizon, retained_after=retained_after, tombstones_before=tombstones)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _take_answer(self, answer: Answered, now: float) -> None:
        tag = self._calls.resolve(answer.request)
        if tag is None:
            return
        try:
            status = m.parse_status(answer.payload)
            stamp = m.number(status.extensions, "t")
            if stamp is not None:
                self.clock.observe(stamp, now)
            if isinstance(tag, _MoveTag):
                self._move_answered(tag, status, now)
            else:
                self._periodic_answered(tag, status, now)
        except TopicsProtocolError:
            if isinstance(tag, _MoveTag):
                self._move_failed(tag, now)

    # -- moving a copy away -------------------------------------------------------------------------------------------

    def _merge_ordered(self, message: m.Merge, route: Route, now: float) -> None:
        asked = message.extensions
        target = m.name(asked, "i") or message.address
        copy = self.copies.get(message.topic)
        if target >= self.server:
            self._reply(route, m.BAD_REQUEST, asked, body=b"a copy moves only to a server with a lower id")
            return
        if copy is not None and message.topic not in self.moves:
            if len(self.moves) >= self.options.moves_max:
                self._reply(route, m.BUSY, asked, body=b"too many topics are moving; try again")
                return
            copy.frozen = True
            move = Move(copy.topic, target, message.address, 0, [])
            self.moves[copy.topic] = move
            self._restart_move(move, now)
        elif copy is not None and self.moves[copy.topic].target == target:
            self._readdress(copy, self.moves[copy.topic], message.address)
        self._reply(route, m.OK, asked)

    def _readdress(self, copy: TopicCopy, move: Move, address: bytes) -> None:
        """Learn that the target came back at another address; the next try goes there."""
        if move.address != address:
            move.address = address
            if move.committed:
                copy.target_address = address
                self._rows.append(copy.topic_row())

    def _resume_move(self, copy: TopicCopy, now: float) -> None:
        copy.frozen = True
        move = Move(copy.topic, copy.target, copy.target_address, 0, [], committed=True, retry_at=now)
        self.moves[copy.topic] = move

    def _restart_move(self, move: Move, now: float) -> None:
        move.attempt = self.clock.tick(now)
        move.retry_at = None
        move.part = 0
        move.parts = plan_parts(self.copies[move.topic], self.options.part_bytes)
        self._send_part(move, now)

    def _send_part(self, move: Move, now: float) -> None:
        copy = self.copies[move.topic]
        parcel = None
        if move.final:
            if not move.committed:
                move.committed = True
                copy.target, copy.target_address = move.target, move.address
                self._rows.append(copy.topic_row())
            extensions = m.extend(t=self.clock.last, c=copy.copy, x=move.attempt, e=len(move.parts))
        else:
            parcel = move.parts[move.part]
            extensions = m.extend(t=self.clock.last, c=copy.copy, x=move.attempt, p=move.part)
        payload = m.format_header(b"TRANSFER", (self.server, move.topic), extensions)
        tag = _MoveTag(move.topic, move.attempt)
        self._order(self._calls.start(move.address, payload, tag, now=now, parcel=parcel))

    def _move_answered(self, tag: _MoveTag, status: m.Status, now: float) -> None:
        move = self.moves.get(tag.topic)
        if move is None or move.attempt != tag.attempt:
            return
        if status.ok and move.final:
            self._finish_move(move, now)
        elif status.ok:
            move.part += 1
            self._send_part(move, now)
        elif status.status == m.RESTART and move.final:
            self._restart_move(move, now)
        elif status.status == m.NOT_OWNER and move.committed:
            self._redirect_move(move, status, now)
        else:
            self._move_failed(tag, now)

    def _redirect_move(self, move: Move, status: m.Status, now: float) -> None:
        """Follow the target, which has moved the topic on."""
        target, address = m.name(status.extensions, "o"), m.name(status.extensions, "a")
        if target is None or address is None or target == self.server:
            move.retry_at = now + self.options.move_retry_s
            return
        copy = self.copies[move.topic]
        move.target, move.address = target, address
        copy.target, copy.target_address = target, address
        self._rows.append(copy.topic_row())
        self._restart_move(move, now)

    def _move_failed(self, tag: _MoveTag, now: float) -> None:
        move = self.moves.get(tag.topic)
        if move is None or move.attempt != tag.attempt:
            return
        if move.committed:
            move.retry_at = now + self.options.move_retry_s
        else:
            self.copies[move.topic].frozen = False
            del self.moves[move.topic]

    def _finish_move(self, move: Move, now: float) -> None:
        copy = self.copies.pop(move.topic)
        del self.moves[move.topic]
        self._announcement_bytes -= len(m.encode_name(copy.topic)) + 1
        self._moved_stamp = self.clock.tick(now)
        moved = SaveMoved(move.topic, move.target, move.address, (*copy.lineage, copy.copy), self._moved_stamp)
        if len(self.moved) >= self.options.topics_max:
            oldest = min(self.moved.values(), key=lambda row: row.stamp)
            del self.moved[oldest.topic]
            self._rows.append(DropMoved(oldest.topic))
        self.moved[move.topic] = moved
        self._rows += [DropTopic(move.topic), moved, SetMark("moved", self._moved_stamp)]
        self._announce_soon(now)

    # -- taking a copy in ---------------------------------------------------------------------------------------------

    def _take_transfer(self, message: m.Transfer, route: Route, now: float) -> None:
        asked, topic = message.extensions, message.topic
        source = m.name(asked, "c") or b"old!%s!%d" % (message.sender, xxhash.xxh3_64_intdigest(message.data))
        moved, copy = self.moved.get(topic), self.copies.get(topic)
        if (copy is not None and source in copy.lineage) or (moved is not None and source in moved.copies):
            self._reply(route, m.OK, asked)
        elif moved is not None:
            self._not_owner(topic, route, asked)
        elif copy is not None and copy.frozen:
            self._reply(route, m.MOVING, asked, body=b"the topic is moving on; try again")
        elif "c" not in asked:
            self._stage(message, source, 0, 0, route, now, last=True)
        elif "e" in asked:
            self._complete(message, source, route, now)
        else:
            self._stage(message, source, m.number(asked, "x") or 0, m.number(asked, "p") or 0, route, now)

    def _stage(
        self, message: m.Transfer, source: bytes, attempt: int, part: int, route: Route, now: float, *, last: bool = False
    ) -> None:
        key, asked = (message.topic, source), message.extensions
        staging = self._stagings.get(key)
        if part == 0 and (staging is None or staging.attempt != attempt):
            if staging is None and len(self._stagings) >= self.options.stagings_max:
                self._forget_staging()
            staging = self._stagings[key] = Staging(attempt, Arrival(source))
            self._rows.append(Unstage(*key))
        if staging is None or staging.attempt != attempt or part > staging.parts:
            self._reply(route, m.RESTART, asked, body=b"parts before this one are missing; begin again")
            return
        staging.touched = now
        if part == staging.parts:
            data = parse_transfer(message.data)
            staging.arrival.add(data)
            staging.parts += 1
            self._rows.append(Stage(*key, tuple((t.id, t.body) for t in data.messages)))
        if last:
            self._take_in(message.topic, source, route, asked, now)
        else:
            self._reply(route, m.OK, asked)

    def _forget_staging(self) -> None:
        key = min(self._stagings, key=lambda k: self._stagings[k].touched)
        del self._stagings[key]
        self._rows.append(Unstage(*key))

    def _complete(self, message: m.Transfer, source: bytes, route: Route, now: float) -> None:
        staging = self._stagings.get((message.topic, source))
        asked = message.extensions
        if staging is None or staging.attempt != m.number(asked, "x") or staging.parts != m.number(asked, "e"):
            self._reply(route, m.RESTART, asked, body=b"the parts of this transfer are not all here; begin again")
            return
        self._take_in(message.topic, source, route, asked, now)

    def _take_in(self, topic: bytes, source: bytes, route: Route, asked: m.Extensions, now: float) -> None:
        arrival = self._stagings[topic, source].arrival
        greatest = arrival.greatest_stamp()
        if not self.clock.observe(greatest, now):
            text = b"the copy's stamps are %d ms ahead of this server's clock" % (milliseconds(greatest) - int(now * 1000))
            self._reply(route, m.CLOCK, asked, body=text)
            return
        del self._stagings[topic, source]
        copy = self.copies.get(topic) or self._create(topic, now)
        self._rows += merge(copy, arrival, stamps=self.options.stamps, lineage_max=self.options.lineage_max)
        self._announce_soon(now)
        self.clock.tick(now)
        self._reply(route, m.OK, asked)

    # -- what a person sees -------------------------------------------------------------------------------------------

    def _report(self) -> bytes:
        topics = [
            {
                "topic": readable(copy.topic),
                "copy": readable(copy.copy),
                "subscribers": copy.live,
                "publishers": len(copy.publishers),
                "messages": len(copy.log),
                "unread": len(copy.log) - len(copy.read),
                "bytes": copy.bytes,
                "state": "moving" if copy.frozen else "serving",
            }
            for copy in list(self.copies.values())[:REPORT_TOPICS_MAX]
        ]
        whole = {"server": readable(self.server), "address": readable(self.address), "topics": topics, "count": len(self.copies)}
        return json.dumps(whole).encode()


def readable(name: bytes) -> str:
    """Show a name to a person: UTF-8, with escapes for what is not printable."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


__all__ = ["Answered", "Ask", "ServerMachine", "readable"]
