"""The asyncio client of the topics service.

Each operation keeps the seed's promise: a success is durable, an error says what is still possible. An operation that failed with
a retryable error is repeated until its `timeout`; a repeated `put` keeps its counter, so it happens once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from postroad.client.payloads import MISSING, JsonPayload, encode_json
from postroad.errors import InvalidValueError, TopicsError
from postroad.storage.topics.sqlite import SqliteTopicStore
from postroad.topics.drivers import store_role
from postroad.topics.keys import key_of_environment, read_key
from postroad.topics.machines.client import (
    ClientMachine,
    Finished,
    FinishPut,
    GetFrom,
    Operation,
    PutTo,
    Received,
    SubscribeTo,
    UnsubscribeFrom,
)
from postroad.topics.machines.messages import check_name
from postroad.topics.machines.options import ClientOptions
from postroad.topics.machines.orders import Ask, Persist
from postroad.topics.machines.rows import SaveUnfinished
from postroad.topics.proxies_file import load_proxies
from postroad.topics.sockets import Dealer, WallClock, endpoint, import_zmq

Name = str | bytes
DEFAULT_PROXY: Final = "127.0.0.1:7101"
DEFAULT_DATA: Final = "postroad-topics"
PROXIES: Final = "POSTROAD_PROXIES"
DATA: Final = "POSTROAD_TOPICS_DATA"
BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
POLL_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
FACTOR_MAX: Final = 32.0


def to_bytes(name: Name) -> bytes:
    """Take a name or a payload as text (UTF-8) or as the bytes it is."""
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


class ClientCore:
    """The machine, the store, the sockets; no waiting."""

    def __init__(
        self,
        client: Name,
        proxies: Sequence[str] | Path,
        *,
        data: str | Path,
        options: ClientOptions | None,
        context: Any,
        key: str | Path | None = None,
    ) -> None:
        known = load_proxies(proxies) if isinstance(proxies, Path) else proxies
        addresses = [endpoint(proxy).encode() for proxy in known]
        if not addresses:
            raise InvalidValueError("a client needs the address of at least one proxy, for example 127.0.0.1:7101")
        name = check_name(to_bytes(client), "client id")
        self.key: Final = key_of_environment() if key is None else read_key(Path(key))
        self.store = SqliteTopicStore(Path(data), store_role("client", name), name)
        try:
            self.machine = ClientMachine(name, addresses, self.store.load_client(), options=options or ClientOptions())
        except BaseException:
            self.store.close()
            raise
        self.clock = WallClock()
        self.context = context
        self.dealers: dict[bytes, Dealer] = {}

    def dealer(self, address: bytes) -> Dealer:
        found = self.dealers.get(address)
        if found is None:
            found = self.dealers[address] = Dealer(self.context, address, self.key)
        elif found.clogged:
            found.reopen()
        return found

    def reload(self) -> None:
        """Go back to what the disk says: a write failed."""
        machine = self.machine
        self.close_dealers()  # the new machine counts its requests from one: no old answer may reach it
        self.machine = ClientMachine(machine.client, machine.proxies, self.store.load_client(), options=machine.options)

    def last(self, topic: Name) -> Received | None:
        found = self.store.received(to_bytes(topic))
        return None if found is None else Received(to_bytes(topic), *found)

    def close_dealers(self) -> None:
        for dealer in self.dealers.values():
            dealer.socket.close()
        self.dealers.clear()

    def close(self) -> None:
        self.close_dealers()
        self.store.close()


def repeated(operation: Operation) -> Operation:
    """Give the operation to repeat after a failure: a put goes on under its counter."""
    return FinishPut(operation.topic) if isinstance(operation, PutTo) else operation


@dataclass(frozen=True, slots=True)
class TopicMessage(Received, JsonPayload):
    """A message of a topic; `id` is unique on its topic.

    ```python
    async with postroad.topics.connect("tcp://127.0.0.1:7101", name="reader", data="reader-data") as reader:
        await reader.subscribe("prices")
        await reader.put("prices", json={"symbol": "ACME", "price": 101.5})
        message = await reader.get("prices", timeout=10)
        print(message.json()["price"], message.payload)
    ```
    """

    @property
    def payload(self) -> bytes:
        """The bytes that were put."""
        return self.body


def connect(
    proxies: str | Path | Iterable[str] | None = None,
    *,
    name: Name,
    data: str | Path | None = None,
    timeout: float = 5.0,
    key: str | Path | None = None,
    options: ClientOptions | None = None,
) -> TopicClient:
    """Return a client of the topics service; use it with `async with`.

    ```python
    async with postroad.topics.connect("tcp://127.0.0.1:7101,127.0.0.1:7102", name="alice", data="alice-data") as alice:
        await alice.subscribe("news")
        await alice.put("news", b"hello")
        print(await alice.get("news", timeout=10))  # None after ten seconds without a message
    ```

    `proxies` are addresses in the order to try them, or the `Path` of a file with one per line; without, the environment counts
    (`POSTROAD_PROXIES`), and then 127.0.0.1:7101. `name` is the id of the client: one process at a time uses it, always with the
    same directory `data` (`POSTROAD_TOPICS_DATA`, or `postroad-topics`), which has the counters that guarantee "exactly once".
    `timeout` says for how many seconds an operation is repeated that fails and may be repeated. `key` is the file of the client's
    key where the service is guarded (`POSTROAD_TOPICS_KEY`).
    """
    return TopicClient(name, parse_proxies(proxies), data=data_directory(data), timeout=timeout, options=options, key=key)


def parse_proxies(proxies: str | Path | Iterable[str] | None) -> Sequence[str] | Path:
    """Return the addresses that were given, or those of the environment."""
    if isinstance(proxies, Path):
        return proxies
    if proxies is None:
        proxies = os.environ.get(PROXIES, "").split() or DEFAULT_PROXY
    texts = [proxies] if isinstance(proxies, str) else proxies
    return [part for text in texts for part in text.removeprefix("tcp://").split(",")]


def data_directory(given: str | Path | None) -> Path:
    return Path(given or os.environ.get(DATA) or DEFAULT_DATA)


class TopicClient:
    """A client of the topics service, made by `connect`; its operations run one after the other.

    ```python
    async with postroad.topics.connect("tcp://127.0.0.1:7101", name="bob", data="bob-data") as bob:
        await bob.subscribe("greetings")
        await bob.put("greetings", "hello")
        await bob.unsubscribe("greetings")
    ```
    """

    def __init__(
        self,
        client: Name,
        proxies: Sequence[str] | Path,
        *,
        data: str | Path,
        timeout: float = 0.0,
        options: ClientOptions | None = None,
        key: str | Path | None = None,
    ) -> None:
        import_zmq()
        import zmq.asyncio  # noqa: PLC0415 - optional dependency, present here

        self._zmq = zmq
        context = zmq.asyncio.Context()
        try:
            self._core = ClientCore(client, proxies, data=data, options=options, context=context, key=key)
        except BaseException:
            context.destroy(linger=0)
            raise
        self._context = context
        self._timeout = timeout
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. What has begun and not ended may be finished later."""
        self._core.close()
        self._context.destroy(linger=0)

    async def subscribe(self, topic: Name, *, timeout: float | None = None) -> None:
        """Receive what is put on the topic from now on."""
        await self._do(SubscribeTo(to_bytes(topic)), timeout)

    async def unsubscribe(self, topic: Name, *, timeout: float | None = None) -> None:
        """Receive nothing more from the topic, not even what was put before."""
        await self._do(UnsubscribeFrom(to_bytes(topic)), timeout)

    async def put(self, topic: Name, payload: bytes | str = b"", *, json: object = MISSING, timeout: float | None = None) -> None:
        """Publish; on success every subscriber of this moment will receive it. After an error, `finish_put` repeats it."""
        if json is not MISSING and payload:
            raise InvalidValueError("give either a payload or json=, not both")
        body = to_bytes(payload) if json is MISSING else encode_json(json)
        await self._do(PutTo(to_bytes(topic), body), timeout)

    async def finish_put(self, topic: Name, *, timeout: float | None = None) -> None:
        """Repeat the put that ended with an error or a crash, under its own counter: it happens once in all."""
        await self._do(FinishPut(to_bytes(topic)), timeout)

    async def get(self, topic: Name, *, timeout: float = 0.0) -> TopicMessage | None:
        """Receive the next message; None when there is none within `timeout` seconds."""
        until = time.monotonic() + timeout
        turn = 0
        while True:
            message = await self._do(GetFrom(to_bytes(topic)), max(timeout, self._timeout))
            left = until - time.monotonic()
            if message is not None or left <= 0:
                return _message(message)
            await asyncio.sleep(min(left, POLL_S[min(turn, len(POLL_S) - 1)]))
            turn += 1

    def last(self, topic: Name) -> TopicMessage | None:
        """Return the message received last, also after a crash: what `get` stored before it returned."""
        return _message(self._core.last(topic))

    def unfinished(self, topic: Name) -> SaveUnfinished | None:
        """Return the put that may or may not have happened."""
        return self._core.machine.unfinished(to_bytes(topic))

    async def forget_home(self, topic: Name) -> None:
        """Give up the copy this client lives on, when its server will never return."""
        self._core.machine.forget_home(to_bytes(topic))
        await self._orders()

    async def _do(self, operation: Operation, timeout: float | None) -> Received | None:
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        async with self._lock:
            turn = 0
            while True:
                finished = await self._once(operation, min(FACTOR_MAX, 2.0**turn))
                error = finished.error
                if error is None:
                    return finished.message
                pause = BACKOFF_S[min(turn, len(BACKOFF_S) - 1)]
                if not error.retryable or time.monotonic() + pause > until:
                    raise error
                await asyncio.sleep(pause)
                operation = repeated(operation)
                turn += 1

    async def _once(self, operation: Operation, factor: float) -> Finished:
        core = self._core
        core.machine.begin(operation, now=core.clock.now(), factor=factor)
        try:
            while True:
                finished = await self._orders()
                if finished is not None:
                    return finished
                await self._wait()
        except BaseException:
            core.reload()  # cancelled, or the disk failed: the machine must not stay in the middle of an operation
            raise

    async def _orders(self) -> Finished | None:
        core = self._core
        finished = None
        for order in core.machine.outputs():
            match order:
                case Persist(rows):
                    started = time.monotonic()
                    await asyncio.to_thread(core.store.commit, rows)
                    core.machine.delayed(time.monotonic() - started)
                case Ask(address, request, payload):
                    await _ignore_full(core.dealer(address).send(request, payload))
                case Finished():
                    finished = order
                case _:
                    raise TopicsError("a client is never asked")
        return finished

    async def _wait(self) -> None:
        core = self._core
        poller = self._zmq.asyncio.Poller()
        for dealer in core.dealers.values():
            poller.register(dealer.socket, self._zmq.POLLIN)
        deadline = core.machine.deadline()
        assert deadline is not None, "an operation under way has a deadline"
        ready = dict(await poller.poll(max(0, int((deadline - core.clock.now()) * 1000) + 1)))
        for dealer in list(core.dealers.values()):
            if dealer.socket in ready:
                answer = dealer.read(await dealer.socket.recv_multipart())
                if answer is not None:
                    core.machine.receive(answer, link=(), now=core.clock.now())
        core.machine.wake(now=core.clock.now())


def _message(received: Received | None) -> TopicMessage | None:
    return None if received is None else TopicMessage(received.topic, received.id, received.body)


async def _ignore_full(sending: Any) -> None:
    """Wait for zmq.asyncio's send; a full queue counts as a lost message."""
    if sending is not None:
        try:
            await sending
        except import_zmq().ZMQError:
            return
