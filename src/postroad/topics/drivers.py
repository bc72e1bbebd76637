"""The processes `postroad topics server` and `postroad topics proxy`: a machine, a store, and sockets.

One loop: take everything that has arrived, let the machine decide, commit all of it in **one** transaction, then answer.
ZeroMQ's own thread goes on receiving while the disk writes, so what arrives meanwhile is the next batch: group commit
without a timer, and without waiting when idle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import xxhash

from postroad.errors import InvalidValueError, PermissionDeniedError, TopicsStoreError
from postroad.storage.topics.sqlite import SqliteTopicStore
from postroad.topics.keys import Door, Handshakes
from postroad.topics.machines import messages as m
from postroad.topics.machines.options import ProxyOptions, ServerOptions
from postroad.topics.machines.orders import Ask, Asked, BodyRef, Order, Parcel, Persist, Reply, Route
from postroad.topics.machines.proxy import ProxyMachine
from postroad.topics.machines.rows import Row
from postroad.topics.machines.server import ServerMachine
from postroad.topics.machines.transfer import TransferredMessage, message_text
from postroad.topics.sockets import Dealer, Listener, WallClock, endpoint, import_zmq

BATCH_MESSAGES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 64 << 20
POLL_MS_MAX: Final = 200
DEALERS_MAX: Final = 512
REOPEN_S: Final = 0.5
DELAY_S: Final = 0.02  # a shorter write does not move time-outs

Machine = ServerMachine | ProxyMachine


def store_role(kind: str, name: bytes) -> str:
    """Name the database file of a server, proxy or client: a digest, so that no name is ever part of a path."""
    return f"{kind}-{xxhash.xxh3_128_hexdigest(name)}"


@dataclass(slots=True)
class Counters:
    requests: int = 0
    commits: int = 0
    rows: int = 0
    failed_commits: int = 0


@dataclass(slots=True)
class Process:
    """Runs a machine until `stop`. `make` builds the machine from the store: at the start, and again when a write failed."""

    name: bytes
    store: SqliteTopicStore
    make: Callable[[bytes, float], Machine]
    bind: str
    advertise: str | None = None
    counters: Counters = field(default_factory=Counters)
    address: bytes = b""
    _stop: threading.Event = field(default_factory=threading.Event)
    ready: threading.Event = field(default_factory=threading.Event)
    on_ready: Callable[[], None] | None = None
    door: Door = field(default_factory=Door)

    def stop(self) -> None:
        """Safe from a signal handler or another thread; the loop ends within a fifth of a second."""
        self._stop.set()

    def run(self) -> None:
        zmq = import_zmq()
        context = zmq.Context()
        handshakes = None if self.door.key is None else Handshakes(context, self.door)
        try:
            with _Loop(self, context) as loop:
                self.ready.set()
                if self.on_ready is not None:
                    self.on_ready()
                while not self._stop.is_set():
                    loop.turn()
        finally:
            self.store.close()
            if handshakes is not None:
                handshakes.stop()
            context.destroy(linger=0)


class _Loop:
    def __init__(self, process: Process, context: object) -> None:
        self._zmq = import_zmq()
        self._process = process
        self._context = context
        self._clock = WallClock()
        self._listener = Listener(context, process.bind, process.door.key)
        process.address = endpoint(process.advertise).encode() if process.advertise else self._listener.address
        self._dealers: dict[bytes, Dealer] = {}
        self._poller = self._zmq.Poller()
        self._poller.register(self._listener.socket, self._zmq.POLLIN)
        self._machine = process.make(process.address, self._clock.now())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.socket.close()
        self._close_dealers()

    def _close_dealers(self) -> None:
        for address in list(self._dealers):
            self._close_dealer(address)

    def _close_dealer(self, address: bytes) -> None:
        dealer = self._dealers.pop(address)
        if dealer.socket in self._poller:
            self._poller.unregister(dealer.socket)
        dealer.socket.close()

    def turn(self) -> None:
        """Do one round: wait, take in, decide, write, send."""
        deadline = self._machine.deadline()
        now = self._clock.now()
        wait = POLL_MS_MAX if deadline is None else min(POLL_MS_MAX, max(0, int((deadline - now) * 1000) + 1))
        ready = dict(self._poller.poll(wait))
        self._take_in(ready)
        now = self._clock.now()
        if deadline is not None and deadline <= now:
            self._machine.wake(now=now)
        self._carry_out(self._machine.outputs())

    def _take_in(self, ready: dict[object, int]) -> None:
        now = self._clock.now()
        for dealer in [d for d in self._dealers.values() if d.socket in ready]:
            for answer in dealer.receive():
                self._machine.receive(answer, link=(), now=now)
        size = 0
        if self._listener.socket in ready:
            for _ in range(BATCH_MESSAGES_MAX):
                asked = self._listener.receive()
                if asked is None:
                    break
                self._process.counters.requests += 1
                route, payload, key = asked
                size += len(payload)
                if self._permits(route, payload, key):
                    self._machine.receive(Asked(payload), link=route, now=now)
                if size >= BATCH_BYTES_MAX:
                    break

    def _permits(self, route: Route, payload: bytes, key: str) -> bool:
        """Tell whether a request may be carried out; refuse it if not."""
        try:
            self._process.door.check(key, payload)
        except PermissionDeniedError as error:
            refusal = m.Status(self._process.name, m.DENIED, None, str(error).encode("utf-8", "replace"))
            self._listener.send(route, m.format_message(refusal))
            return False
        return True

    def _carry_out(self, orders: Sequence[Order]) -> None:
        rows: list[Row] = [row for order in orders if isinstance(order, Persist) for row in order.rows]
        if rows:
            started = time.monotonic()
            try:
                self._process.store.commit(rows)
            except TopicsStoreError as error:
                self._revert(orders, error)
                return
            self._note_delay(time.monotonic() - started)
            self._process.counters.commits += 1
            self._process.counters.rows += len(rows)
        answered: dict[Route, BodyRef] = {}
        for order in orders:
            match order:
                case Ask():
                    self._ask(order)
                case Reply(route, payload, None):
                    self._listener.send(route, payload)
                case Reply(route, payload, BodyRef() as ref):
                    # Repeats of one request pile up while a large body is read; they need one answer.
                    if answered.get(route) != ref:
                        answered[route] = ref
                        self._send_body(route, payload, ref)
                case _:
                    pass

    def _send_body(self, route: Route, payload: bytes, ref: BodyRef) -> None:
        try:
            body = self._process.store.body(ref.topic, ref.sequence)
        except TopicsStoreError as error:
            self._listener.send(route, self._storage_status(error))
            return
        if body is not None:
            self._listener.send(route, payload + body)

    def _storage_status(self, error: TopicsStoreError) -> bytes:
        return m.format_message(m.Status(self._process.name, m.STORAGE, None, str(error).encode()))

    def _note_delay(self, seconds: float) -> None:
        if seconds > DELAY_S:
            self._machine.delayed(seconds)

    def _revert(self, orders: Sequence[Order], error: TopicsStoreError) -> None:
        """Section 4 of the seed: "revert the changes to the state in memory" and reply with an error."""
        self._process.counters.failed_commits += 1
        status = self._storage_status(error)
        for order in orders:
            if isinstance(order, Reply):
                self._listener.send(order.route, status)
        self._process._stop.wait(REOPEN_S)  # noqa: SLF001 - the loop is part of the process; a full disk is not hammered
        self._close_dealers()  # a new machine counts its requests from one: no old answer may reach it
        self._machine = self._process.make(self._process.address, self._clock.now())

    def _ask(self, ask: Ask) -> None:
        try:
            dealer = self._dealer(ask.address)
            payload = ask.payload if ask.parcel is None else ask.payload + self._fill(ask.parcel)
        except (InvalidValueError, TopicsStoreError, self._zmq.ZMQError):
            return  # an address nobody can use, or a disk that cannot be read: the same as a lost message
        dealer.send(ask.request, payload)

    def _dealer(self, address: bytes) -> Dealer:
        dealer = self._dealers.get(address)
        if dealer is None:
            if len(self._dealers) >= DEALERS_MAX:
                self._close_dealer(next(iter(self._dealers)))
            dealer = self._dealers[address] = Dealer(self._context, address, self._process.door.key)
            self._poller.register(dealer.socket, self._zmq.POLLIN)
        elif dealer.clogged:
            self._poller.unregister(dealer.socket)
            dealer.reopen()
            self._poller.register(dealer.socket, self._zmq.POLLIN)
        return dealer

    def _fill(self, parcel: Parcel) -> bytes:
        texts = [parcel.lines]
        for ref in parcel.messages:
            body = self._process.store.body(parcel.topic, ref.sequence)
            assert body is not None, "a frozen copy keeps its messages"
            texts.append(message_text(TransferredMessage(ref.id, ref.stamp, body)))
        return b"".join(texts)


def server_process(
    name: bytes,
    *,
    bind: str,
    proxies: Sequence[str],
    data: Path,
    advertise: str | None = None,
    options: ServerOptions | None = None,
    door: Door | None = None,
) -> Process:
    """Make the process of one server; it reads its state when it starts to run."""
    import_zmq()
    m.check_name(name, "server id")
    addresses = [endpoint(proxy).encode() for proxy in proxies]
    store = SqliteTopicStore(data, store_role("server", name), name)
    chosen = options or ServerOptions()

    def make(address: bytes, now: float) -> Machine:
        return ServerMachine(name, address, addresses, store.load_server(), options=chosen, now=now)

    return Process(name, store, make, bind, advertise, door=door or Door())


def proxy_process(
    name: bytes,
    *,
    bind: str,
    data: Path,
    options: ProxyOptions | None = None,
    forget: Sequence[bytes] = (),
    door: Door | None = None,
) -> Process:
    import_zmq()
    m.check_name(name, "proxy id")
    store = SqliteTopicStore(data, store_role("proxy", name), name)
    chosen = options or ProxyOptions()

    def make(address: bytes, now: float) -> Machine:
        del address, now
        return ProxyMachine(name, store.load_proxy(), options=chosen, forget=forget)

    return Process(name, store, make, bind, door=door or Door())
