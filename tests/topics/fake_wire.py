"""A few machines joined by a wire that delivers at once, for scenarios told step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from postroad.storage.topics.memory import MemoryTopicStore
from postroad.topics.machines import messages as m
from postroad.topics.machines.client import ClientMachine, Finished, Operation
from postroad.topics.machines.options import ClientOptions, ProxyOptions, ServerOptions
from postroad.topics.machines.orders import Answered, Ask, Asked, Persist, Reply, Route
from postroad.topics.machines.proxy import ProxyMachine
from postroad.topics.machines.server import ServerMachine
from postroad.topics.machines.transfer import TransferredMessage, message_text

EPOCH = 1_700_000_000.0


@dataclass
class Wire:
    """`lose` names (from, to) pairs that lose everything; `sent` keeps what travelled."""

    now: float = EPOCH
    options: ServerOptions = field(default_factory=lambda: ServerOptions(skew_ms_max=0))
    machines: dict[bytes, ServerMachine | ProxyMachine | ClientMachine] = field(default_factory=dict)
    stores: dict[bytes, MemoryTopicStore] = field(default_factory=dict)
    proxies: list[bytes] = field(default_factory=list)
    lose: set[tuple[bytes, bytes]] = field(default_factory=set)
    sent: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    results: dict[bytes, list[Finished]] = field(default_factory=dict)
    skew: dict[bytes, float] = field(default_factory=dict)

    def clock(self, name: bytes) -> float:
        return self.now + self.skew.get(name, 0.0)

    def proxy(self, name: bytes) -> ProxyMachine:
        if name not in self.proxies:
            self.proxies.append(name)
        store = self.stores.setdefault(name, MemoryTopicStore())
        machine = self.machines[name] = ProxyMachine(name, store.load_proxy(), options=ProxyOptions())
        self.pump()
        return machine

    def server(self, name: bytes, **options: object) -> ServerMachine:
        """Start, or restart from what its store holds."""
        store = self.stores.setdefault(name, MemoryTopicStore())
        chosen = replace(self.options, **options)  # type: ignore[arg-type]
        machine = ServerMachine(name, name, self.proxies, store.load_server(), options=chosen, now=self.clock(name))
        self.machines[name] = machine
        machine.wake(now=self.clock(name))
        self.pump()
        return machine

    def client(self, name: bytes, *proxies: bytes) -> ClientMachine:
        store = self.stores.setdefault(name, MemoryTopicStore())
        known = proxies or tuple(self.proxies)
        machine = self.machines[name] = ClientMachine(name, known, store.load_client(), options=ClientOptions())
        return machine

    def do(self, name: bytes, operation: Operation) -> Finished:
        """Run one operation of a client to its end, moving time as needed."""
        machine = self.machines[name]
        assert isinstance(machine, ClientMachine)
        before = len(self.results.get(name, []))
        machine.begin(operation, now=self.now)
        self.pump()
        for _ in range(1000):
            if len(self.results.get(name, [])) > before:
                return self.results[name][-1]
            self.advance(0.01)
        raise AssertionError("the operation does not end")

    def advance(self, seconds: float) -> None:
        """Let time pass in small steps, waking whoever is due."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + 0.01)
            for name, machine in list(self.machines.items()):
                deadline = machine.deadline()
                if deadline is not None and deadline <= self.clock(name):
                    machine.wake(now=self.clock(name))
            self.pump()

    def pump(self) -> None:
        busy = True
        while busy:
            busy = False
            for name, machine in list(self.machines.items()):
                orders = machine.outputs() if self.machines.get(name) is machine else []
                busy = busy or bool(orders)
                for order in orders:
                    match order:
                        case Persist(rows):
                            self.stores[name].commit(rows)
                        case Ask():
                            self._ask(name, order)
                        case Reply():
                            self._reply(name, order)
                        case Finished():
                            self.results.setdefault(name, []).append(order)

    def _ask(self, name: bytes, ask: Ask) -> None:
        payload = ask.payload
        if ask.parcel is not None:
            payload += ask.parcel.lines
            for ref in ask.parcel.messages:
                body = self.stores[name].body(ask.parcel.topic, ref.sequence)
                assert body is not None
                payload += message_text(TransferredMessage(ref.id, ref.stamp, body))
        self.sent.append((name, ask.address, payload))
        target = self.machines.get(ask.address)
        if target is not None and (name, ask.address) not in self.lose:
            target.receive(Asked(payload), link=(name, b"%d" % ask.request), now=self.clock(ask.address))

    def _reply(self, name: bytes, reply: Reply) -> None:
        body = b"" if reply.body is None else self.stores[name].body(reply.body.topic, reply.body.sequence)
        if body is None:
            return
        asker, request = reply.route
        self.sent.append((name, asker, reply.payload + body))
        target = self.machines.get(asker)
        if target is not None and (name, asker) not in self.lose:
            target.receive(Answered(int(request), reply.payload + body), link=(), now=self.clock(asker))

    def crash(self, name: bytes) -> None:
        del self.machines[name]

    def ask(self, name: bytes, payload: bytes) -> m.Status:
        """Send bytes to a server or proxy as an old peer would; give its answer."""
        asker = _Probe()
        self.machines[b"probe"] = asker  # type: ignore[assignment]
        self.machines[name].receive(Asked(payload), link=(b"probe", b"1"), now=self.clock(name))
        for _ in range(200):
            self.pump()
            if asker.answers:
                break
            self.advance(0.01)
        del self.machines[b"probe"]
        return m.parse_status(asker.answers[-1])


class _Probe:
    """Stands where an old client would: keeps the answers it gets."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def receive(self, message: Answered, *, link: Route, now: float) -> None:
        del link, now
        self.answers.append(message.payload)

    def wake(self, *, now: float) -> None:
        del now

    def deadline(self) -> float | None:
        return None

    def outputs(self) -> list[Reply]:
        return []
