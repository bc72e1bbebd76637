"""The client machine: one operation at a time, proxy after proxy, and what the client must not forget.

Theory of operation (seed sections 2-4). What the client must not forget is durable before it matters: the counter of a
`put` before the first request leaves, the id and content of a received message before `get` returns, the home copy before
the success that named it is reported. Each proxy gets three tries of 100 ms; then, or when it answers an error a retry may
cure, the next proxy is asked; after the last, the operation ends with an error. A `put` that ended with an error is
*unfinished*: it may be repeated under its own counter (`Finish`), which the service recognises, until the next `put`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from postroad.errors import (
    InvalidValueError,
    TopicsConflictError,
    TopicsError,
    TopicsNotSubscribedError,
    TopicsProtocolError,
    TopicsRefusedError,
    TopicsUnavailableError,
)
from postroad.topics.machines import messages as m
from postroad.topics.machines.options import ClientOptions
from postroad.topics.machines.orders import Answered, Input, Order, Persist, Route
from postroad.topics.machines.retries import Calls
from postroad.topics.machines.rows import (
    ClientRow,
    ClientState,
    DropUnfinished,
    SaveMemory,
    SaveReceived,
    SaveUnfinished,
    SetMark,
)


@dataclass(frozen=True, slots=True)
class SubscribeTo:
    topic: bytes


@dataclass(frozen=True, slots=True)
class UnsubscribeFrom:
    topic: bytes


@dataclass(frozen=True, slots=True)
class GetFrom:
    topic: bytes


@dataclass(frozen=True, slots=True)
class PutTo:
    topic: bytes
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FinishPut:
    """Repeat the unfinished put of a topic, under its counter."""

    topic: bytes


Operation = SubscribeTo | UnsubscribeFrom | GetFrom | PutTo | FinishPut


@dataclass(frozen=True, slots=True)
class Received:
    """A message; `id` is unique on its topic."""

    topic: bytes
    id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The operation is over. `message` is what a `get` received; None when there was nothing to receive."""

    operation: Operation
    message: Received | None = None
    error: TopicsError | None = None


ClientOrder = Order | Finished


@dataclass(slots=True)
class _Memory:
    last_message_id: bytes = m.NO_MESSAGE_ID
    counter: int = 0
    operation: int = 0
    home: bytes = b""
    unfinished: SaveUnfinished | None = None
    unfinished_stored: bool = False


class ClientMachine:
    """One client id. `proxies` are addresses, tried in their order, from the one that answered last."""

    def __init__(self, client: bytes, proxies: Sequence[bytes], state: ClientState, *, options: ClientOptions) -> None:
        if not proxies:
            raise InvalidValueError("a client needs the address of at least one proxy")
        self.client = m.check_name(client, "client id")
        self.options = options
        self.proxies = tuple(proxies)
        self._stamp = state.marks.get("stamp", 0)
        self._topics: dict[bytes, _Memory] = {}
        for row in state.memories:
            self._topics[row.topic] = _Memory(row.last_message_id, row.counter, row.operation, row.home)
        for put in state.unfinished:
            self._memory(put.topic).unfinished = put
            self._memory(put.topic).unfinished_stored = True
        self._calls: Calls[int] = Calls(options.calls)
        self._orders: list[ClientOrder] = []
        self._operation: Operation | None = None
        self._payload = b""
        self._first = 0
        self._asked = 0
        self._factor = 1.0
        self._error: TopicsError | None = None

    # -- what the caller may ask --------------------------------------------------------------------------------------

    def unfinished(self, topic: bytes) -> SaveUnfinished | None:
        """Return the put that may or may not have happened, if there is one."""
        return self._memory(topic).unfinished

    def last_message_id(self, topic: bytes) -> bytes:
        return self._memory(topic).last_message_id

    def begin(self, operation: Operation, *, now: float, factor: float = 1.0) -> None:
        """Start an operation; `factor` stretches the time-outs when the caller repeats one."""
        assert self._operation is None, "one operation at a time"
        m.check_name(operation.topic, "topic")
        self._reserve(operation)
        self._operation, self._asked, self._error, self._factor = operation, 0, None, factor
        self._payload = self._format(operation)
        self._ask(now)

    def forget_home(self, topic: bytes) -> None:
        """Accept any copy: the one this client lives on is gone for good."""
        memory = self._memory(topic)
        memory.home = b""
        self._persist(self._memory_row(topic))

    # -- the contract -------------------------------------------------------------------------------------------------

    def receive(self, message: Input, *, link: Route, now: float) -> None:  # noqa: ARG002 - the contract's shape
        assert isinstance(message, Answered)
        if self._calls.resolve(message.request) is None or self._operation is None:
            return
        try:
            self._judge(m.parse_status(message.payload), now)
        except TopicsProtocolError as error:
            self._next_proxy(error, now)

    def wake(self, *, now: float) -> None:
        again, given_up = self._calls.wake(now)
        self._orders += again
        if given_up and self._operation is not None:
            self._next_proxy(
                TopicsUnavailableError("no proxy answered in time; the operation may or may not have been done"), now
            )

    def deadline(self) -> float | None:
        return self._calls.deadline()

    def delayed(self, seconds: float) -> None:
        """Take note that a write held the requests back so long."""
        self._calls.delayed(seconds)

    def outputs(self) -> Sequence[ClientOrder]:
        orders, self._orders = self._orders, []
        return orders

    # -- an operation -------------------------------------------------------------------------------------------------

    def _memory(self, topic: bytes) -> _Memory:
        return self._topics.setdefault(topic, _Memory())

    def _memory_row(self, topic: bytes) -> SaveMemory:
        memory = self._memory(topic)
        return SaveMemory(topic, memory.last_message_id, memory.counter, memory.operation, memory.home)

    def _persist(self, *rows: ClientRow) -> None:
        self._orders.append(Persist((*rows, SetMark("stamp", self._stamp))))

    def _reserve(self, operation: Operation) -> None:
        """Make durable what must be so before the first request leaves; refuse what cannot be asked."""
        topic = operation.topic
        memory = self._memory(topic)
        match operation:
            case SubscribeTo() | UnsubscribeFrom():
                memory.operation += 1
                self._persist(self._memory_row(topic))
            case PutTo(_, body):
                if len(body) > self.options.body_bytes_max:
                    raise InvalidValueError(f"a body of {len(body)} bytes; at most {self.options.body_bytes_max} are allowed")
                memory.counter += 1
                memory.unfinished = SaveUnfinished(topic, memory.counter, body)
                memory.unfinished_stored = True
                self._persist(self._memory_row(topic), memory.unfinished)
            case FinishPut() if memory.unfinished is None:
                raise InvalidValueError("this client has no unfinished put on the topic")
            case _:
                pass

    def _format(self, operation: Operation) -> bytes:
        topic = operation.topic
        memory = self._memory(topic)
        patience = int(self.options.calls.timeout_ms * self._factor) if self._factor > 1 else None
        extensions = m.extend(t=self._stamp, h=memory.home or None, w=patience)
        message: m.ClientRequest
        match operation:
            case SubscribeTo():
                message = m.Subscribe(self.client, topic, extensions={**extensions, **m.extend(n=memory.operation)})
            case UnsubscribeFrom():
                message = m.Unsubscribe(self.client, topic, extensions={**extensions, **m.extend(n=memory.operation)})
            case GetFrom():
                message = m.Get(self.client, topic, memory.last_message_id, extensions=extensions)
            case PutTo() | FinishPut():
                assert memory.unfinished is not None
                message = m.Put(self.client, topic, memory.unfinished.counter, memory.unfinished.body, extensions=extensions)
        return m.format_message(message)

    def _ask(self, now: float) -> None:
        proxy = self.proxies[(self._first + self._asked) % len(self.proxies)]
        self._orders.append(self._calls.start(proxy, self._payload, self._asked, now=now, factor=self._factor))

    def _next_proxy(self, error: TopicsError, now: float) -> None:
        # An answer says more than a silence, so it is the answer that is reported in the end.
        if self._error is None or not isinstance(error, TopicsUnavailableError) or type(self._error) is TopicsUnavailableError:
            self._error = error
        self._asked += 1
        if self._asked < len(self.proxies):
            self._ask(now)
        else:
            self._first = (self._first + 1) % len(self.proxies)
            self._finish(error=self._error)

    def _finish(self, message: Received | None = None, error: TopicsError | None = None) -> None:
        assert self._operation is not None
        self._orders.append(Finished(self._operation, message, error))
        self._operation = None
        self._calls.cancel_all()

    def _judge(self, status: m.Status, now: float) -> None:
        assert self._operation is not None
        self._stamp = max(self._stamp, m.number(status.extensions, "t") or 0)
        text = status.body.decode("utf-8", "replace")
        if status.ok:
            self._succeed(status, now)
        elif status.status == m.NO_MESSAGE and isinstance(self._operation, GetFrom):
            self._answers_of()
            self._finish()
        elif status.status == m.HOME:
            self._settle_in(status, now)
        elif status.status == m.OTHER_COPY:
            self._next_proxy(TopicsConflictError(text), now)
        elif status.status in m.RETRIABLE:
            self._next_proxy(TopicsUnavailableError(text), now)
        elif status.status == m.NOT_SUBSCRIBED:
            self._finish(error=TopicsNotSubscribedError(text))
        else:
            self._finish(error=TopicsRefusedError(f"{text} ({status.status.decode('ascii', 'replace')})"))

    def _settle_in(self, status: m.Status, now: float) -> None:
        """Take the copy that answered first as home, durably, and ask it again: it has done nothing yet."""
        assert self._operation is not None
        memory, home = self._memory(self._operation.topic), m.name(status.extensions, "h")
        if memory.home or home is None:
            self._next_proxy(TopicsUnavailableError("the answer does not name a home server"), now)
            return
        memory.home = home
        self._persist(self._memory_row(self._operation.topic))
        self._payload = self._format(self._operation)
        self._ask(now)

    def _answers_of(self) -> None:
        self._first = (self._first + self._asked) % len(self.proxies)

    def _succeed(self, status: m.Status, now: float) -> None:
        operation = self._operation
        assert operation is not None
        memory = self._memory(operation.topic)
        home = m.name(status.extensions, "h") or memory.home
        if isinstance(operation, GetFrom):
            if status.message_id is None or status.message_id == memory.last_message_id:
                self._next_proxy(TopicsUnavailableError("the answer to a get does not name a new message"), now)
                return
            memory.last_message_id, memory.home = status.message_id, home
            received = Received(operation.topic, status.message_id, status.body)
            self._persist(self._memory_row(operation.topic), SaveReceived(operation.topic, received.id, received.body))
            self._answers_of()
            self._finish(received)
            return
        rows: list[ClientRow] = []
        if isinstance(operation, PutTo | FinishPut):
            memory.unfinished = None
            if memory.unfinished_stored and (home != memory.home or isinstance(operation, FinishPut)):
                rows.append(DropUnfinished(operation.topic))
                memory.unfinished_stored = False
        if home != memory.home:
            memory.home = home
            rows.append(self._memory_row(operation.topic))
        if rows:
            self._persist(*rows)
        self._answers_of()
        self._finish()
