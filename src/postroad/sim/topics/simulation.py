"""The topics service on a virtual network, disk and clock: the same machines, the same bytes, seeded faults.

A run has a safety phase, in which messages are lost, doubled and delayed, links are cut, disks fail or stall, and servers,
proxies and clients crash at any instant (also between a write and its answer); and a liveness phase, in which everything
heals, conflicts must be resolved, every client reads until there is nothing left, and the servers must then have reclaimed
every message. The checkers look only at what the clients saw. One seed gives one trace.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import xxhash

from postroad.sim.topics.checker import Books, PutBook, SubscriptionBook, Verdicts, check
from postroad.sim.topics.scenario import Scenario
from postroad.storage.topics.memory import MemoryTopicStore
from postroad.topics.machines import messages as m
from postroad.topics.machines.client import (
    ClientMachine,
    ClientOrder,
    Finished,
    FinishPut,
    GetFrom,
    Operation,
    PutTo,
    SubscribeTo,
    UnsubscribeFrom,
)
from postroad.topics.machines.options import ClientOptions, ProxyOptions, ServerOptions
from postroad.topics.machines.orders import Answered, Ask, Asked, Input, Parcel, Persist, Reply, Route
from postroad.topics.machines.proxy import ProxyMachine
from postroad.topics.machines.rows import Row
from postroad.topics.machines.server import ServerMachine
from postroad.topics.machines.transfer import TransferredMessage, message_text

EPOCH_S: Final = 1_700_000_000.0
SKEW_S: Final = 0.020
HEAL_LIMIT_S: Final = 120.0
EVENTS_MAX: Final = 2_000_000


@dataclass(slots=True)
class Outcome:
    seed: int
    verdicts: Verdicts
    messages: int
    received: int
    faults: Counter[str]
    merges: int
    digest: str
    virtual_s: float


class TopicWorld:
    """Time, network and chance."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"world {scenario.seed}")  # noqa: S311 - reproducible faults
        self.now = 0.0
        self.healed = False
        self.faults: Counter[str] = Counter()
        self.nodes: dict[bytes, TopicNode] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._cut: dict[tuple[bytes, bytes], float] = {}
        self._trace = xxhash.xxh3_64()

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(time, self.now), self._count, action))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            if self._count > EVENTS_MAX:
                return
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = max(self.now, until)

    def note(self, what: bytes) -> None:
        self._trace.update(b"%.6f " % self.now)
        self._trace.update(what[:300])

    def digest(self) -> str:
        return self._trace.hexdigest()

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1

    def cut(self, a: bytes, b: bytes, seconds: float, *, one_way: bool = False) -> None:
        """Lose everything between two processes for a while; `one_way`: only what `a` sends to `b`."""
        self.fault("cut one way" if one_way else "cut")
        self._cut[a, b] = self.now + seconds
        if not one_way:
            self._cut[b, a] = self.now + seconds

    def send(self, source: bytes, target: bytes, arrive: Callable[[], None]) -> None:
        """Carry something over the network; while not healed it may be lost, doubled, or late."""
        s, rng = self.scenario, self.rng
        if self.healed:
            self.at(self.now + rng.uniform(0.0002, 0.002), arrive)
            return
        if self._cut.get((source, target), 0.0) > self.now or rng.random() < s.loss:
            self.fault("lost")
            return
        copies = 1
        if rng.random() < s.double:
            copies = 2
            self.fault("doubled")
        for _ in range(copies):
            late = rng.random() < s.slow
            if late:
                self.fault("late")
            self.at(self.now + (rng.uniform(0.05, 1.5) if late else rng.uniform(0.0002, 0.004)), arrive)


Machine = ServerMachine | ProxyMachine | ClientMachine


class TopicNode:
    """A process: a machine, its disk, and what is under way between them."""

    kind = "node"

    def __init__(self, world: TopicWorld, address: bytes) -> None:
        self.world = world
        self.address = address
        self.store = MemoryTopicStore()
        self.machine: Machine | None = None
        self.incarnation = 0
        self.away = False  # it does not start before everything heals
        self.skew = 0.0
        self._queue: list[ClientOrder] = []
        self._writing: list[Row] | None = None
        self._armed: float | None = None
        self.disk_fails = False
        world.nodes[address] = self

    def make(self) -> Machine:
        raise NotImplementedError

    @property
    def now(self) -> float:
        return EPOCH_S + self.world.now + self.skew

    @property
    def up(self) -> bool:
        return self.machine is not None

    def start(self) -> None:
        if self.up or (self.away and not self.world.healed):
            return
        self.incarnation += 1
        self.world.note(b"start " + self.address)
        self.machine = self.make()
        self.pump()

    def crash(self) -> None:
        """Lose everything that is not on disk; a write under way is on disk or not."""
        if not self.up:
            return
        self.world.fault(f"{self.kind} crashed")
        self.world.note(b"crash " + self.address)
        if self._writing is not None and self.world.rng.random() < 0.5:
            self.store.commit(self._writing)
        self.machine, self._queue, self._writing, self._armed = None, [], None, None
        self.incarnation += 1

    def deliver(self, message: Input, route: Route) -> None:
        if self.machine is None:
            return
        self.world.note(self.address + b" < " + message.payload)
        self.machine.receive(message, link=route, now=self.now)
        self.pump()

    def pump(self) -> None:
        if self.machine is None:
            return
        self._queue += self.machine.outputs()
        self._work()
        self._arm()

    def _arm(self) -> None:
        if self.machine is None:
            return
        deadline = self.machine.deadline()
        if deadline is None:
            return
        due = max(self.world.now, deadline - EPOCH_S - self.skew) + 1e-6
        if self._armed is not None and self.world.now < self._armed <= due:
            return
        self._armed = due
        incarnation = self.incarnation
        self.world.at(due, lambda: self._wake(incarnation, due))

    def _wake(self, incarnation: int, due: float) -> None:
        if self.incarnation != incarnation or self.machine is None:
            return
        if self._armed == due:
            self._armed = None
        self.machine.wake(now=self.now)
        self.pump()

    def _work(self) -> None:
        """Group commit: write everything that is queued in one go, then carry it out."""
        if self._writing is not None or not self._queue:
            return
        batch, self._queue = self._queue, []
        rows = [row for order in batch if isinstance(order, Persist) for row in order.rows]
        if not rows:
            self._carry_out(batch)
            return
        self._writing = rows
        stall = not self.world.healed and self.world.rng.random() < 0.02
        if stall:
            self.world.fault("disk stalled")
        delay = self.world.rng.uniform(0.1, 0.4) if stall else self.world.rng.uniform(0.0001, 0.003)
        incarnation = self.incarnation
        self.world.at(self.world.now + delay, lambda: self._finish_write(incarnation, batch, rows))

    def _finish_write(self, incarnation: int, batch: Sequence[ClientOrder], rows: list[Row]) -> None:
        if self.incarnation != incarnation:
            return
        self._writing = None
        world = self.world
        if self.disk_fails and not world.healed and world.rng.random() < world.scenario.disk_fail:
            self._disk_failed([*batch, *self._queue])
            return
        self.store.commit(rows)
        if not world.healed and world.rng.random() < 0.002:  # between the write and the answer
            self.crash()
            world.at(world.now + world.rng.uniform(0.05, 2.0), self.start)
            return
        self._carry_out(batch)
        self._work()

    def _disk_failed(self, batch: Sequence[ClientOrder]) -> None:
        """Section 4: revert the changes in memory and reply with an error."""
        self.world.fault("disk failed")
        self.world.note(b"disk " + self.address)
        for order in batch:
            if isinstance(order, Reply):
                self._send_reply(order.route, m.format_message(m.Status(self.address, m.STORAGE)))
        self._queue = []
        self.machine = self.make()
        self.incarnation += 1
        self._armed = None
        self.pump()

    def _carry_out(self, batch: Sequence[ClientOrder]) -> None:
        for order in batch:
            match order:
                case Ask():
                    self._send_ask(order)
                case Reply(route, payload, ref):
                    body = b"" if ref is None else self.store.body(ref.topic, ref.sequence)
                    if body is not None:
                        self._send_reply(route, payload + body)
                case Finished():
                    self.finished(order)
                case Persist():
                    pass

    def finished(self, order: Finished) -> None:
        raise NotImplementedError

    def _send_ask(self, ask: Ask) -> None:
        self.aim_faults(ask)
        payload = ask.payload if ask.parcel is None else ask.payload + self._fill(ask.parcel)
        route = (self.address, b"%d" % self.incarnation, b"%d" % ask.request)
        target = self.world.nodes.get(ask.address)
        if target is not None:
            self.world.send(self.address, ask.address, lambda: target.deliver(Asked(payload), route))

    def aim_faults(self, ask: Ask) -> None:
        """Let a fault strike at a moment that matters."""

    def _fill(self, parcel: Parcel) -> bytes:
        texts = [parcel.lines]
        for ref in parcel.messages:
            body = self.store.body(parcel.topic, ref.sequence)
            assert body is not None, "a frozen copy keeps its messages"
            texts.append(message_text(TransferredMessage(ref.id, ref.stamp, body)))
        return b"".join(texts)

    def _send_reply(self, route: Route, payload: bytes) -> None:
        asker, incarnation, request = route
        target = self.world.nodes[asker]
        answer = Answered(int(request), payload)

        def arrive() -> None:
            if b"%d" % target.incarnation == incarnation:
                target.deliver(answer, ())

        self.world.send(self.address, asker, arrive)


class ServerNode(TopicNode):
    kind = "server"

    def __init__(self, world: TopicWorld, name: bytes, proxies: Sequence[bytes]) -> None:
        super().__init__(world, name)
        self.proxies = proxies
        self.disk_fails = True
        s = world.scenario
        self.options = replace(
            ServerOptions(),
            period_s=s.period_s,
            part_bytes=s.part_bytes,
            stamps=s.stamps,
            homes=s.homes,
            settle=s.settle and s.stamps,
        )

    def aim_faults(self, ask: Ask) -> None:
        """Lose the answers to the last part of a transfer: the target has the topic, and the source does not know."""
        world = self.world
        if not world.healed and b" @e=" in ask.payload and world.rng.random() < 0.2:
            world.cut(ask.address, self.address, world.rng.uniform(0.3, 2.0), one_way=True)

    def make(self) -> ServerMachine:
        self.skew = self.world.rng.uniform(-SKEW_S / 2, SKEW_S / 2)
        return ServerMachine(
            self.address, self.address, self.proxies, self.store.load_server(), options=self.options, now=self.now
        )


class ProxyNode(TopicNode):
    kind = "proxy"

    def make(self) -> ProxyMachine:
        silent = max(2.0, 3 * self.world.scenario.period_s)
        return ProxyMachine(self.address, self.store.load_proxy(), options=ProxyOptions(silent_s=silent))

    def crash(self) -> None:
        was_up = self.up
        super().crash()
        chance = self.world.rng.random()
        if not was_up:
            return
        if chance < self.world.scenario.amnesia and self._others_know_all_servers():
            self.world.fault("proxy lost its servers")
            self.store = MemoryTopicStore()
        elif chance < 0.5:  # section 4: a proxy may lose the state of which servers to dispatch the topics to
            self.world.fault("proxy lost its routes")
            self.store.routes = {}

    def _others_know_all_servers(self) -> bool:
        """Tell whether the guarantee covers the loss of this list: every server has run, and each is known elsewhere."""
        nodes = self.world.nodes.values()
        servers = [node for node in nodes if isinstance(node, ServerNode)]
        if not all(server.incarnation for server in servers):
            return False
        keepers = [node for node in nodes if isinstance(node, ServerNode) and node.up]
        return bool(keepers) and all(
            all(other is server or other.address in server.store.servers for other in servers) for server in keepers
        )


@dataclass(slots=True)
class _Pending:
    """What the application is waiting for."""

    operation: Operation
    put: PutBook | None = None
    subscription: SubscriptionBook | None = None


class TopicClientNode(TopicNode):
    """A client process and the application in it, whose journal (`books`) survives crashes."""

    kind = "client"

    def __init__(self, world: TopicWorld, name: str, proxies: Sequence[bytes], topics: Sequence[str], books: Books) -> None:
        super().__init__(world, name.encode())
        self.name = name
        self.books = books
        self.topics = list(topics)
        self.proxies = list(proxies)
        world.rng.shuffle(self.proxies)
        self.rng = random.Random(f"client {name} {world.scenario.seed}")  # noqa: S311 - reproducible workload
        self.pending: _Pending | None = None
        self.journal: dict[str, bytes] = {}
        self.numbers = 0
        self.finishing = False
        self.quiet = False
        self.draining: dict[str, int] | None = None
        self.failures = 0

    def make(self) -> ClientMachine:
        return ClientMachine(self.address, self.proxies, self.store.load_client(), options=ClientOptions())

    def start(self) -> None:
        if self.up:
            return
        super().start()
        for topic in self.topics:  # what was received just before the crash is still there
            last = self.store.received(topic.encode())
            if last is not None and last[0] != self.journal.get(topic):
                self._enter(topic, *last)
        self._schedule()

    def crash(self) -> None:
        super().crash()
        self.pending = None

    def _enter(self, topic: str, message: bytes, body: bytes) -> None:
        self.journal[topic] = message
        self.books.receive(self.name, topic, body, self.world.now)

    def _schedule(self, after: float | None = None) -> None:
        incarnation = self.incarnation
        pause = self.rng.expovariate(1 / self.world.scenario.pause_s) if after is None else after
        self.world.at(self.world.now + pause, lambda: self._next(incarnation))

    def _next(self, incarnation: int) -> None:
        if self.incarnation != incarnation or self.pending is not None or self.machine is None:
            return
        operation = self._drain() if self.finishing else self._choose()
        if operation is None:
            return
        self._begin(operation)

    def _begin(self, operation: Operation) -> None:
        assert isinstance(self.machine, ClientMachine)
        topic, now = operation.topic.decode(), self.world.now
        self.pending = _Pending(operation)
        match operation:
            case SubscribeTo() | UnsubscribeFrom():
                joining = isinstance(operation, SubscribeTo)
                self.pending.subscription = self.books.subscription(self.name, topic, joining=joining, now=now)
            case PutTo():
                self.pending.put = self.books.puts[operation.body]
            case FinishPut():
                unfinished = self.machine.unfinished(operation.topic)
                assert unfinished is not None
                self.pending.put = self.books.puts[unfinished.body]
            case _:
                pass
        self.machine.begin(operation, now=self.now)
        self.pump()
        if not self.world.healed and self.rng.random() < 0.01:  # die while the request is under way
            incarnation = self.incarnation
            self.world.at(now + self.rng.uniform(0, 0.03), lambda: self._die(incarnation))

    def _die(self, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self.crash()
            self.world.at(self.world.now + self.rng.uniform(0.02, 1.0), self.start)

    def _choose(self) -> Operation:
        assert isinstance(self.machine, ClientMachine)
        opened = 1 + int(len(self.topics) * min(1.0, self.world.now / self.world.scenario.safety_s))
        topic = self.rng.choice(self.topics[:opened])  # topics open one after the other: new ones are where owners diverge
        name = topic.encode()
        if self.machine.unfinished(name) is not None and self.rng.random() < 0.7:
            return FinishPut(name)
        kind = self.rng.choices(["get", "put", "subscribe", "unsubscribe"], [45, 40, 12, self.world.scenario.leave])[0]
        events = self.books.subscriptions.get((self.name, topic))
        if kind == "get" and not events:
            kind = "subscribe"
        match kind:
            case "get":
                return GetFrom(name)
            case "put":
                self.numbers += 1
                return PutTo(name, self.books.new_put(self.name, topic, self.numbers, self.world.now).body)
            case "subscribe":
                return SubscribeTo(name)
            case _:
                return UnsubscribeFrom(name)

    def _drain(self) -> Operation | None:
        """Finish what is open; then, when everybody has, read every topic until it is empty."""
        assert isinstance(self.machine, ClientMachine)
        for topic in self.topics:
            if self.machine.unfinished(topic.encode()) is not None:
                return FinishPut(topic.encode())
        self.quiet = True
        for topic, empty in (self.draining or {}).items():
            if empty <= 2:
                return GetFrom(topic.encode())
        return None

    def finished(self, order: Finished) -> None:
        pending, self.pending = self.pending, None
        if pending is None:
            return
        topic, now = order.operation.topic.decode(), self.world.now
        error = order.error
        if error is None:
            if pending.put is not None:
                pending.put.done = now
            if pending.subscription is not None:
                pending.subscription.done = now
            if order.message is not None:
                self._enter(topic, order.message.id, order.message.body)
        self._after(order, topic)

    def _after(self, order: Finished, topic: str) -> None:
        pause = None
        if self.finishing:
            pause = 0.001
            if order.error is not None and order.error.retryable:
                self.failures += 1
                pause = 0.25
            elif isinstance(order.operation, GetFrom) and order.message is None and self.draining is not None:
                self.draining[topic] += 1
        self._schedule(pause)

    def finish(self) -> None:
        self.finishing = True
        if self.pending is None:
            self._schedule(0.0)

    def drain(self) -> None:
        self.draining = dict.fromkeys(self.topics, 0)
        self._schedule(0.0)

    @property
    def drained(self) -> bool:
        done = self.draining is not None and all(empty > 2 for empty in self.draining.values())
        return done and self.pending is None


@dataclass(slots=True)
class Simulation:
    """One run of one scenario."""

    scenario: Scenario
    books: Books = field(default_factory=Books)
    verdicts: Verdicts = field(default_factory=Verdicts)

    def run(self) -> Outcome:
        s = self.scenario
        world = TopicWorld(s)
        proxy_names = [b"proxy%d" % i for i in range(s.proxies)]
        proxies = [ProxyNode(world, name) for name in proxy_names]
        servers = [ServerNode(world, b"server%d" % i, proxy_names) for i in range(s.servers)]
        topics = [f"topic{i}" for i in range(s.topics)]
        clients = [TopicClientNode(world, f"client{i}", proxy_names, topics, self.books) for i in range(s.clients)]
        late = min(s.late_servers, len(servers) - 1)
        for node in [*proxies, *servers[: len(servers) - late], *clients]:
            world.at(world.rng.uniform(0, 0.1), node.start)
        for server in servers[len(servers) - late :]:
            world.at(world.rng.uniform(0.2, 0.9) * s.safety_s, partial(self._join, world, server))
        self._plan_faults(world, [*servers, *servers, *proxies, *clients])
        world.run(s.safety_s)
        self._heal(world, clients, servers)
        merges = sum(len(server.store.moved) for server in servers)
        check(self.books, self.verdicts, skew_s=SKEW_S + 0.05)
        received = sum(map(len, self.books.received.values()))
        messages = len(self.books.puts)
        return Outcome(s.seed, self.verdicts, messages, received, world.faults, merges, world.digest(), world.now)

    @staticmethod
    def _join(world: TopicWorld, server: ServerNode) -> None:
        world.fault("server joined")
        server.start()

    @staticmethod
    def _leave(world: TopicWorld, server: ServerNode) -> None:
        """Go away until everything heals, unless the run would be left without a server; proxies may crash with it."""
        present = [node for node in world.nodes.values() if isinstance(node, ServerNode) and not node.away]
        if server.up and len(present) > 1:
            world.fault("server away")
            server.crash()
            server.away = True
            if world.rng.random() < world.scenario.amnesia:
                for proxy in [node for node in world.nodes.values() if isinstance(node, ProxyNode)]:
                    world.at(world.now + world.rng.uniform(0, 0.5), proxy.crash)
                    world.at(world.now + world.rng.uniform(0.5, 1.0), proxy.start)

    def _plan_deafness(self, world: TopicWorld, nodes: Sequence[TopicNode]) -> None:
        """Cut pairs of processes off from each other for long, often from the beginning: then owners diverge."""
        rng, servers = world.rng, list(dict.fromkeys(node for node in nodes if isinstance(node, ServerNode)))
        proxies = [node for node in nodes if isinstance(node, ProxyNode)]
        if self.scenario.split:
            end = rng.uniform(0.2, 0.5) * self.scenario.safety_s
            for place, proxy in enumerate(proxies):
                for server in [s for i, s in enumerate(servers) if i % len(proxies) != place]:
                    world.at(0.0, partial(world.cut, proxy.address, server.address, end))
        pairs: list[tuple[TopicNode, TopicNode, float]] = [(p, s, self.scenario.deaf) for p in proxies for s in servers]
        if self.scenario.deaf_servers:
            pairs += [(server, other, 0.3) for server in servers for other in servers if other is not server]
        for a, b, chance in pairs:
            if rng.random() < chance:
                start = rng.choice([0.0, 0.0, rng.uniform(0, self.scenario.safety_s)])
                end = rng.uniform(0.2, 0.7) * self.scenario.safety_s  # most conflicts end while other faults go on
                length = end - start if start < end else rng.uniform(0.5, self.scenario.safety_s)
                cut = partial(world.cut, a.address, b.address, length, one_way=rng.random() < 0.3)
                world.at(start, cut)

    def _plan_faults(self, world: TopicWorld, nodes: Sequence[TopicNode]) -> None:
        self._plan_deafness(world, nodes)
        rng = world.rng
        for node in dict.fromkeys(nodes):
            if isinstance(node, ServerNode) and rng.random() < self.scenario.away:
                world.at(rng.uniform(0.1, 0.8) * self.scenario.safety_s, partial(self._leave, world, node))
        time = rng.expovariate(1 / self.scenario.fault_every_s)
        while time < self.scenario.safety_s:
            victim = rng.choice(nodes)
            if rng.random() < 0.6:
                world.at(time, victim.crash)
                world.at(time + rng.choice([0.05, 0.5, 3.0]) * rng.uniform(0.5, 1.5), victim.start)
            else:
                other = rng.choice([node for node in nodes if node is not victim])
                world.at(
                    time, partial(world.cut, victim.address, other.address, rng.uniform(0.1, 3.0), one_way=rng.random() < 0.3)
                )
            time += rng.expovariate(1 / self.scenario.fault_every_s)

    def _heal(self, world: TopicWorld, clients: Sequence[TopicClientNode], servers: Sequence[ServerNode]) -> None:
        world.healed = True
        for node in world.nodes.values():
            node.start()
        limit = world.now + HEAL_LIMIT_S
        if not self._until(world, limit, lambda: self._one_owner(servers)):
            self.verdicts.note("stuck", "two servers still own one topic")
        for client in clients:
            client.finish()
        self._until(world, limit, lambda: all(client.quiet for client in clients))
        world.run(world.now + 2 * self.scenario.period_s + 2)  # what was delayed arrives, every proxy has heard every server
        for client in clients:
            client.drain()
        self._until(world, limit, lambda: all(client.drained for client in clients))
        for client in clients:
            if not client.drained:
                self.verdicts.note("stuck", f"{client.name} still waits for {client.pending} after {client.failures} failures")
        self._until(world, world.now + 6 * self.scenario.period_s + 2, lambda: not self._count_kept(servers))
        if kept := self._count_kept(servers):
            self.verdicts.note("leaked", f"{kept} messages that everybody has read are still stored", kept)

    def _until(self, world: TopicWorld, limit: float, done: Callable[[], bool]) -> bool:
        while world.now < limit:
            if done():
                return True
            world.run(world.now + 0.25)
        return done()

    @staticmethod
    def _count_kept(servers: Sequence[ServerNode]) -> int:
        return sum(len(log) for server in servers for log in server.store.messages.values())

    @staticmethod
    def _one_owner(servers: Sequence[ServerNode]) -> bool:
        owners: dict[bytes, int] = {}
        for server in servers:
            for topic in server.store.topics:
                owners[topic] = owners.get(topic, 0) + 1
        return all(count == 1 for count in owners.values())


def simulate(seed: int, *, stamps: bool = True, homes: bool = True, settle: bool = True) -> Outcome:
    return Simulation(replace(Scenario.from_seed(seed), stamps=stamps, homes=homes, settle=settle)).run()
