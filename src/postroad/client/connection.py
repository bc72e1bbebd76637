"""The client: `async with postroad.connect("postroad://host:port") as client`.

One task keeps a main link to one of the given brokers, trying the next address when one fails. A second one keeps links to
brokers that hold messages in doubt. All decisions are the session's; this module moves packets, events and time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import msgspec

from postroad.client.addresses import Address, parse_addresses
from postroad.client.admission import Advertisement, ClientAdmission
from postroad.client.link import Link, dial
from postroad.client.payloads import MISSING
from postroad.client.positions import load_positions
from postroad.client.publisher import NO_ATTRIBUTES, Publisher
from postroad.client.queues import ClientQueues, QueueOptions, WorkQueue
from postroad.client.range_reads import Request, read_durables, read_pubends, read_range
from postroad.client.service_calls import ServiceCalls
from postroad.client.shared_home import SharedHomeSeeker
from postroad.client.sharing import PREFETCH, SharedSubscription, check_prefetch
from postroad.client.starts import Start, positions_at, start_tick
from postroad.client.subscription import OnGap, Subscription
from postroad.client.tracing import AnyId, Tracer
from postroad.client.writer import Writer
from postroad.core.batch.batch import Batch
from postroad.core.batch.message import Message
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import AdmissionExplained, AdmissionState
from postroad.core.protocol.packets import DurableEntry, LimitLink, Packet, PubendSpan
from postroad.core.protocol.status import BrokerReport
from postroad.core.session.events import (
    AdvertisementAccepted,
    AdvertisementEnded,
    AdvertisementFailed,
    Event,
    HomeNamed,
    MemberLost,
    MessagesRefused,
    Missed,
    PositionsStored,
    PubendJoined,
    PubendsListed,
    PublisherFailed,
    QuestionAnswered,
    QuestionFailed,
    RangeFailed,
    RangePiece,
    RowsDelivered,
    RowsFinished,
    RowsGiven,
    SubscriptionActive,
    SubscriptionEnded,
    SubscriptionFailed,
    Writable,
    WriterChanged,
    WriterFailed,
    WriterSealed,
)
from postroad.core.session.machine import Session, SessionConfig
from postroad.errors import (
    ClosedError,
    DurableElsewhereError,
    GapError,
    InvalidValueError,
    NotConnectedError,
    PostroadError,
    PublishRefusedError,
    SecurityError,
    UnfinishedError,
    UnknownDurableError,
)
from postroad.security.credentials import OPEN, Credentials, Tls, credentials
from postroad.tracking.queries.explanation import Explanation
from postroad.tracking.queries.packets import AskTracks, TracksAnswered
from postroad.tracking.queries.questions import Question, StatusQuestion
from postroad.tracking.queries.reconstruction import Trace
from postroad.transport.flush_scheduler import FlushScheduler
from postroad.types import AttributeValue, MessageId

log = logging.getLogger("postroad.client")

QUICK_S: Final = 10.0  # after the link was lost, pauses are short: most brokers that go away are being restarted
QUICK_PAUSE_S_MAX: Final = 0.25
STEADY_S: Final = 1.0  # a link that lived this long was a good one
ANSWER_S_MAX: Final = 15.0  # for a question about tracks; the broker itself gives up on others before that


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What an application may set, beyond the arguments of `connect`. Times are in seconds.

    ```python
    config = postroad.ClientConfig(retry_s_max=10.0, receive_bytes=64 << 20)
    async with postroad.connect(config=config) as client:
        await client.publish({"symbol": "ACME"})
    ```
    """

    name: str = ""  # shown by the broker; by default the machine and the process
    connect_s: float = 10.0  # how long `connect` tries before it gives up
    dial_s: float = 5.0  # how long one address may take to answer
    retry_s: float = 0.05  # the first pause after all addresses failed, doubled each time
    retry_s_max: float = 2.0
    heartbeat_s: float = 5.0
    timeout_s: float = 20.0  # a broker that said nothing for this long is gone
    close_s: float = 10.0  # how long leaving the `async with` waits for the last acknowledgements
    receive_bytes: int = 8 << 20  # of one subscription, received and not yet taken by the application; then the broker waits
    session: SessionConfig = field(default_factory=SessionConfig)


def connect(
    urls: str | Iterable[str] | None = None,
    config: ClientConfig | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
    tls: Tls = None,
    token: str | None = None,
) -> Client:
    """Return a client to be used with `async with`; the addresses are tried in order, again and again.

    An address is `postroad://host:port` or `host:port`; commas separate several. Without one, the environment variable
    `POSTROAD_URL` counts, and without that the broker on this machine. `name` is what the broker shows, and whose queue messages
    these are; `timeout` is how many seconds to try before `NotConnectedError`.

    ```python
    async with postroad.connect("postroad://127.0.0.1:7400") as client:
        await client.publish({"symbol": "ACME", "price": 101.5}, b"payload")
    ```

    With TLS the address is `postroads://host:port`. `tls` says which brokers are trusted: the file of an authority's
    certificate, a `ClientTls`, or a context of the `ssl` module. `token` says who the client is. Without them the environment
    counts: `POSTROAD_CA`, `POSTROAD_CERTIFICATE`, `POSTROAD_KEY`, `POSTROAD_TOKEN`, `POSTROAD_TOKEN_FILE`.
    """
    chosen = config or ClientConfig()
    if name is not None:
        chosen = replace(chosen, name=name)
    if timeout is not None:
        chosen = replace(chosen, connect_s=timeout)
    addresses = parse_addresses(urls)
    found = credentials(encrypted=all(each.encrypted for each in addresses), tls=tls, token=token)
    if found is OPEN and any(each.encrypted for each in addresses):
        raise InvalidValueError("use postroads:// for all addresses or for none")
    return Client(addresses, chosen, found)


class Client:
    """A connection to the brokers: publish, subscribe, use queues, trace. Made by `connect`.

    ```python
    async with postroad.connect() as client:
        quotes = await client.subscribe("symbol = 'ACME' AND price > 100")
        await client.publish({"symbol": "ACME", "price": 101.5}, b"a good day")
        print(await quotes.get(timeout=5))
    ```
    """

    def __init__(self, addresses: list[Address], config: ClientConfig, credentials: Credentials = OPEN) -> None:
        self.session: Final = Session(config.session)
        self._credentials: Final = credentials
        self._addresses: Final = addresses
        self._config: Final = config
        self._name: Final = config.name or f"{socket.gethostname()}/{os.getpid()}"
        self._links = 0
        self._main: Link | None = None
        self._next_main: Link | None = None  # to be the main link from now on
        self._homes: dict[int, Link] = {}
        self._known: dict[int, Address] = {}  # broker -> where it was seen
        self._publishers: dict[int, Publisher] = {}
        self._own_publisher: Publisher | None = None  # of `publish`
        self.services: Final = ServiceCalls(self)
        self.queues: Final = ClientQueues(self)
        self._subscriptions: dict[int, Subscription] = {}
        self._requests: dict[int, Request] = {}
        self._writers: dict[int, Writer] = {}
        self._admission: Final = ClientAdmission(self)
        self._questions: dict[int, asyncio.Future[Packet]] = {}  # by the session's number
        self._pump_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._connected: asyncio.Event
        self._homes_wanted: asyncio.Event
        self._shared_home: SharedHomeSeeker
        self._loop: asyncio.AbstractEventLoop
        self._writes: FlushScheduler
        self._last_error: PostroadError | None = None
        self._denied: PostroadError | None = None  # every address refused who we are, at the first try of each
        self._closed = False

    # --- life ------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._writes = FlushScheduler(self._loop)
        self._connected, self._homes_wanted = asyncio.Event(), asyncio.Event()
        self._shared_home = SharedHomeSeeker(self)
        self._tasks = [
            self._loop.create_task(self._keep_connected()),
            self._loop.create_task(self._shared_home.work()),
            self._loop.create_task(self._keep_homes()),
            self._loop.create_task(self._heartbeats()),
        ]
        try:
            async with asyncio.timeout(self._config.connect_s):
                await self._connected.wait()
        except TimeoutError:
            await self.close(flush=False)
            tried = ", ".join(map(str, self._addresses))
            why = f": {self._last_error}" if self._last_error is not None else ""
            raise NotConnectedError(f"no broker answered within {self._config.connect_s:g} s (tried {tried}){why}") from None
        except BaseException:
            await self.close(flush=False)
            raise
        if self._denied is not None:
            await self.close(flush=False)
            raise self._denied
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """Wait until what was published is durable (at most `close_s`), end the subscriptions and leave."""
        if self._closed:
            return
        try:
            if flush:
                await self._flush_all()
                await self._end_all()
        finally:
            self._closed = True
            self._connected.set()  # whoever waits for a connection hears that none will come
            for subscription in self._subscriptions.values():
                subscription._stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._leave()
            self._fail_all(ClosedError("the client was closed"))

    async def _flush_all(self) -> None:
        try:
            async with asyncio.timeout(self._config.close_s):
                for publisher in list(self._publishers.values()):
                    await publisher.flush()
        except TimeoutError:
            left = sum(publisher.outstanding for publisher in self._publishers.values())
            raise UnfinishedError(f"{left} messages are not acknowledged after {self._config.close_s:g} s") from None

    async def _end_all(self) -> None:
        """End the subscriptions, so that durable ones are free for others when we have left."""
        if self._main is not None:
            await asyncio.gather(*(subscription.close() for subscription in list(self._subscriptions.values())))

    async def _leave(self) -> None:
        self._pump()
        links = [link for link in (self._main, self._next_main, *self._homes.values()) if link is not None]
        for link in links:
            link.channel.resume()
            link.channel.close(reason="the client disconnects")
        if links:
            await asyncio.wait([link.gone for link in links], timeout=1.0)
        for link in links:
            link.channel.abort()
            self.session.disconnected(link.number, now=self._loop.time())
        for _ in range(2):  # aborted connections are closed in the next turn of the loop
            await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()

    def _fail_all(self, error: Exception) -> None:
        for publisher in self._publishers.values():
            publisher._fail(error)
        for subscription in self._subscriptions.values():
            subscription._fail(error)
        for request in self._requests.values():
            request.failed(error)
        for writer in self._writers.values():
            writer.failed(error)
        self._admission.failed(error)
        for future in self._questions.values():
            if not future.done():
                future.set_exception(error)
        self.services.failed(error)

    @property
    def broker(self) -> int | None:
        """The id of the broker the client is connected to now."""
        return None if self._main is None else self._main.broker

    # --- publishing ------------------------------------------------------------------------------------------------------

    async def publish(
        self,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
        timeout: float | None = 30.0,
    ) -> MessageId:
        """Publish one message; when this returns, it is on the disk of its broker. Return its id.

        Raises `PublishRefusedError` when the broker refused it. After `timeout` seconds it raises `UnfinishedError`: the client
        goes on sending the message, so it may still become durable. For many messages, `publisher()` is faster.
        """
        try:
            async with asyncio.timeout(timeout):
                if self._own_publisher is None:
                    self._own_publisher = self.publisher(on_refused=lambda _: None)  # whoever published is told
                publisher = self._own_publisher
                message_id = await publisher.publish(attributes, payload, json=json)
                await publisher.confirmed(message_id)
        except TimeoutError:
            raise UnfinishedError(f"the message is not acknowledged after {timeout:g} s; it may become durable later") from None
        return message_id

    def publisher(self, *, on_refused: Callable[[PublishRefusedError], None] | None = None) -> Publisher:
        """Begin to publish. `on_refused` hears of messages a broker did not take; without it `flush` raises them."""
        self._check_open()
        key = self.session.open_publisher()
        publisher = self._publishers[key] = Publisher(self, key, on_refused)
        self._plan_pump()
        return publisher

    def _forget_publisher(self, key: int) -> None:
        self._publishers.pop(key, None)
        self.session.close_publisher(key)

    async def advertise(
        self,
        filter: str | Filter = "",  # noqa: A002  # the word of the whole system
        *,
        max_rate: float | None = None,
        name: str | None = None,
        timeout: float | None = 30.0,
    ) -> Advertisement:
        """Announce what this client publishes: messages that match, at most `max_rate` a second.

        From now on the broker refuses messages that match no advertisement of this client, and holds back what exceeds the rate.
        Without `max_rate` the broker chooses one. With a `name` the advertisement is durable: it lives until it is withdrawn.
        """
        self._check_open()
        text = str(filter if isinstance(filter, Filter) else Filter(filter))
        return await self._admission.advertise(text, max_rate, name, timeout)

    async def unadvertise(
        self, advertisement: Advertisement | None = None, *, name: str | None = None, timeout: float | None = 30.0
    ) -> None:
        """Withdraw an advertisement, or a durable one by its name."""
        self._check_open()
        await self._admission.withdraw(advertisement, name, timeout)

    # --- subscribing -----------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        filter: str | Filter = "",  # noqa: A002  # the word of the whole system
        *,
        name: str | None = None,
        start: Start = "new",
        positions: Mapping[int, int] | None = None,
        position_file: str | os.PathLike[str] | None = None,
        on_gap: OnGap = "raise",
        auto_ack: bool | None = None,
        admission: str = "",
        shared: bool = False,
        key: str = "",
        prefetch: int = PREFETCH,
        timeout: float | None = 30.0,
    ) -> Subscription:
        """Subscribe; when this returns, every matching message that is published from now on will come.

        `start` is where a new subscription begins: with what is published from now on ("new"), with the oldest message that is
        still there ("earliest"), or with what was published at a time (a `datetime`) or less than some time ago (a `timedelta`).

        A `name` makes the subscription durable: messages wait for it while the client is away. One that exists already goes on
        where it was, whatever `start` says. `positions` (from
        `Subscription.positions()`) or a `position_file` say where to go on; the file is kept up to date by `ack()`. Messages that
        were released before they could be delivered are reported by `on_gap`: "raise" a `GapError` in their place and go on with
        the next call, "skip" them, or a function to call.

        Where admission control is on, an `AdmissionError` says why the overlay cannot serve the subscription now. `admission`
        is a criterion in place of the broker's: "off", "full", or the share of brokers that may refuse, like "20%".

        With `shared`, all clients that subscribe with this `name` are members of one subscription and share its messages: each
        goes to one of them, and to another if that one is lost before it has acknowledged it. `key` is an attribute: messages
        with the same value are worked on one after the other. `prefetch` is how many unacknowledged messages this member may
        hold.
        """
        self._check_open()
        text = str(filter if isinstance(filter, Filter) else Filter(filter))
        if shared:
            if name is None or auto_ack or positions or position_file is not None or start not in ("new", "earliest"):
                raise InvalidValueError(
                    "a shared subscription needs a name, acknowledges message by message, and starts with what is new or earliest"
                )
            return await self._join(text, name, start == "earliest", key, check_prefetch(prefetch), on_gap, admission, timeout)
        if key:
            raise InvalidValueError("a key orders what the members of a shared subscription get: use shared=True")
        begin = start_tick(start)
        path = None if position_file is None else Path(position_file)
        if path is not None:
            positions = {**await asyncio.to_thread(load_positions, path, text), **(positions or {})}
        if auto_ack is None:
            auto_ack = name is None and path is None
        if begin is not None and not positions and not await self._is_durable(name, timeout):
            positions = positions_at(begin, await self.pubends(timeout))
        else:
            begin = 0
        earliest = start == "earliest" or begin > 0
        number = self.session.subscribe(
            text, name=name, positions=positions, earliest=earliest, saved=path is not None, criterion=admission
        )
        subscription = Subscription(
            self,
            number,
            text,
            name=name,
            position_file=path,
            on_gap=on_gap,
            auto_ack=auto_ack,
            receive_bytes=self._config.receive_bytes,
            begun_at=(begin, positions or {}) if begin else (0, {}),
        )
        await self._begin_subscription(number, subscription, timeout)
        return subscription

    async def _join(
        self,
        filter_text: str,
        name: str,
        earliest: bool,
        ordered_by: str,
        credit: int,
        on_gap: OnGap,
        admission: str,
        timeout: float | None,
    ) -> SharedSubscription:
        """Become a member of a shared subscription."""
        number = self.session.join(
            filter_text, name=name, ordered_by=ordered_by, credit=credit, earliest=earliest, criterion=admission
        )
        subscription = SharedSubscription(
            self,
            number,
            filter_text,
            name=name,
            ordered_by=ordered_by,
            on_gap=on_gap,
            receive_bytes=self._config.receive_bytes,
        )
        await self._begin_subscription(number, subscription, timeout)
        return subscription

    async def _begin_subscription(self, number: int, subscription: Subscription, timeout: float | None) -> None:
        self._subscriptions[number] = subscription
        self._plan_pump()
        try:
            async with asyncio.timeout(timeout):
                await subscription._wait_active()
        except BaseException as error:
            membership = self.session.sharing.memberships.get(number)
            why = f": {membership.refused}" if membership is not None and membership.refused is not None else ""
            self._abandon(number)
            if isinstance(error, TimeoutError):
                raise UnfinishedError(f"the subscription is not active after {timeout:g} s{why}") from None
            raise

    async def explain_subscription(
        self,
        filter: str | Filter = "",  # noqa: A002  # the word of the whole system
        *,
        admission: str = "",
    ) -> AdmissionExplained:
        """Find out whether a subscription would be admitted, and why not. Nothing is reserved."""
        self._check_open()
        return await self._admission.explain(str(filter if isinstance(filter, Filter) else Filter(filter)), admission)

    async def admission_state(self, nodes: int = 1_000) -> AdmissionState:
        """Return what the broker knows about admission: advertisements, reservations, free capacity."""
        self._check_open()
        return await self._admission.state(nodes)

    async def _is_durable(self, name: str | None, timeout: float | None) -> bool:
        """Tell whether a durable subscription of this name exists: it goes on where it was."""
        return name is not None and any(each.name == name for each in await self.durables(timeout))

    def _abandon(self, key: int) -> None:
        self._subscriptions.pop(key, None)
        if key in self.session.subscriptions:
            self.session.unsubscribe(key)
            self._plan_pump()
        elif key in self.session.sharing.memberships:
            self.session.sharing.leave(key)
            self._plan_pump()

    async def _end_subscription(self, key: int, *, forget: bool, ended: asyncio.Event) -> None:
        """Tell the broker and wait a moment for its answer."""
        is_member = key in self.session.sharing.memberships
        if (is_member or key in self.session.subscriptions) and not self._closed:
            if is_member:
                self.session.sharing.leave(key, forget=forget)
            else:
                self.session.unsubscribe(key, forget=forget)
            self._plan_pump()
            try:
                async with asyncio.timeout(self._config.close_s):
                    await ended.wait()
            except TimeoutError:
                log.warning("the broker did not confirm the end of a subscription")
        self._subscriptions.pop(key, None)

    # --- writing ---------------------------------------------------------------------------------------------------------

    def writer(self, name: str, epoch: int, *, timeout: float | None = 30.0) -> Writer:
        """Begin batch number `epoch` of a named writer, to be used with `async with`; then `write` rows and `finish`.

        A batch that is written again, after any failure, with the same rows in the same order is published once. Batches of
        a name come in ascending order, and always at the same broker.
        """
        self._check_open()
        key = self.session.open_writer(name, epoch)
        writer = self._writers[key] = Writer(self, key, timeout)
        self._plan_pump()
        return writer

    def _forget_writer(self, key: int) -> None:
        self._writers.pop(key, None)
        self.session.writing.end(key)

    # --- reading ---------------------------------------------------------------------------------------------------------

    async def pubends(self, timeout: float | None = 30.0) -> dict[int, PubendSpan]:
        """Return every pubend within reach with its span: ticks in (released, horizon] can be read."""
        self._check_open()
        spans, _ = await read_pubends(self, timeout)
        return spans

    async def durables(self, timeout: float | None = 30.0) -> list[DurableEntry]:
        """Return the durable subscriptions of the overlay, by name: filter, home broker, and how far behind each is."""
        self._check_open()
        return await read_durables(self, timeout)

    async def forget(self, name: str, timeout: float | None = 30.0) -> None:
        """Delete a durable subscription: nothing waits for it any more. Raise `UnknownDurableError` when there is none."""
        entry = next((each for each in await self.durables(timeout) if each.name == name), None)
        if entry is None:
            raise UnknownDurableError(f"no durable subscription is named {name!r}")
        if entry.filter is None:
            raise DurableElsewhereError(f"broker {entry.home}, the home of {name!r}, cannot be reached; try again later")
        subscription = await self.subscribe(entry.filter, name=name, shared=entry.shared, key=entry.key, prefetch=0)
        await subscription.close(forget=True)

    def read(
        self,
        pubend: int,
        lo: int,
        hi: int,
        filter: str | Filter = "",  # noqa: A002  # the word of the whole system
        *,
        timeout: float | None = 30.0,
        bare: bool = False,
    ) -> AsyncIterator[Batch]:
        """Read the ticks in (lo, hi] of a pubend, hosted by any broker: yield batches of the messages that match, in order.

        When the iteration ends, all of them have come. A `GapError` says that some were released, an `UnknownPubendError` or
        `PubendUnreachableError` that nobody can give them now; `timeout` is how long to wait without a step forward.
        Nothing is held back for a reader: to be sure of what is published from now on, subscribe. With `bare`, payloads and
        attributes stay where they are.
        """
        self._check_open()
        text = str(filter if isinstance(filter, Filter) else Filter(filter))
        return read_range(self, pubend, lo, hi, text, timeout=timeout, bare=bare)

    def _open_request(self, key: int) -> Request:
        request = self._requests[key] = Request(self, key)
        self._plan_pump()
        return request

    def _forget_request(self, key: int) -> None:
        self._requests.pop(key, None)
        self.session.end_read(key)

    # --- tracing ---------------------------------------------------------------------------------------------------------

    async def trace(self, message_id: AnyId) -> Trace:
        """Find out where a message came from, which way it went and who got it."""
        return (await self.trace_many([message_id]))[0]

    async def trace_many(self, message_ids: Iterable[AnyId]) -> list[Trace]:
        """Trace many messages at once, which costs little more than one; the result is in the order of the ids."""
        return await Tracer(self._ask, self._home()).trace_many(message_ids)

    async def explain(self, message_id: AnyId, subscriber: str) -> Explanation:
        """Find out why a subscriber got a message, or why not."""
        return await Tracer(self._ask, self._home()).explain(message_id, subscriber)

    async def message(self, message_id: AnyId) -> Message | None:
        """Read one message from the log of the broker where it was published.

        Return None when the log no longer has it, or its broker cannot be asked now.
        """
        return await Tracer(self._ask, self._home()).message(message_id)

    async def status(self, broker: int | None = None, *, after: int = 0, page: int = 0, wanted: str = "") -> BrokerReport:
        """Return how a broker is: links, streams, clients and figures; None: the broker this client is connected to.

        With `page`, up to that many subscriptions whose numbers are above `after` come with it; with `wanted`, only those whose
        name, client or filter contains this text.
        """
        return await Tracer(self._ask, self._home()).status(broker, StatusQuestion(after, page, wanted))

    async def brokers(self) -> dict[int, list[int] | None]:
        """Return the ids of all brokers of the overlay, each with its neighbours; None where they are not known."""
        return await Tracer(self._ask, self._home()).brokers()

    # --- queues ----------------------------------------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        lease: float | None = None,
        max_deliveries: int | None = None,
        dead_letter: str | None = None,
    ) -> WorkQueue:
        """Return the queue of this name; the first use creates it when it does not exist.

        The options count when it is created. For a queue that exists with other settings than those given here, the first use
        raises `QueueSettingsError`. `lease` is how many seconds a taken message is hidden from others (30). After
        `max_deliveries` unfinished deliveries a message goes to the queue `dead_letter`, by default the name with `.dead` added.

        ```python
        jobs = client.queue("jobs")
        await jobs.put(b"resize 17.png")
        async with await jobs.take() as delivery:
            print(delivery.payload)
        ```
        """
        self._check_open()
        return WorkQueue(self.queues, name, QueueOptions(lease, max_deliveries, dead_letter))

    @property
    def _queue_name(self) -> str:
        """Whose queue messages these are: the client's name, or the machine's for a client without one."""
        return self._config.name or socket.gethostname()

    async def _main_link(self) -> Link:
        """Return the link to the present broker; wait for one."""
        while True:
            self._check_open()
            if self._main is not None and not self._main.channel.closing:
                return self._main
            self._connected.clear()
            await self._connected.wait()

    def _home(self) -> int:
        self._check_open()
        if self._main is None:
            raise NotConnectedError("no broker is connected now")
        return self._main.broker

    async def limit_link(self, broker: int, bytes_per_s: int) -> None:
        """Limit what the connected broker sends to its neighbour `broker`, until it restarts; 0 ends the limit."""
        await self._ask_broker(LimitLink(broker, bytes_per_s))

    async def _ask(self, target: int, question: Question) -> TracksAnswered:
        answer = await self._ask_broker(AskTracks(target, question))
        assert isinstance(answer, TracksAnswered)
        return answer

    async def _ask_broker(self, question: Packet) -> Packet:
        """Ask the broker something, and wait for the answer."""
        number = self.session.ask(question)
        if number is None:
            raise NotConnectedError("no broker is connected, or too many questions wait for its answer")
        future: asyncio.Future[Packet] = self._loop.create_future()
        self._questions[number] = future
        self._plan_pump()
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await future
        except TimeoutError:
            raise UnfinishedError(f"the broker did not answer within {ANSWER_S_MAX:g} s") from None
        finally:
            self._questions.pop(number, None)

    def _take_answer(self, number: int, answer: Packet | PostroadError) -> None:
        future = self._questions.get(number)
        if future is None or future.done():
            return
        if isinstance(answer, PostroadError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _check_open(self) -> None:
        if self._closed or not self._tasks:
            raise ClosedError("use the client inside `async with postroad.connect(...)`")

    # --- the session -----------------------------------------------------------------------------------------------------

    def _clock_ms(self) -> int:
        """Return a clock that is never stepped; what it shows does not matter, since brokers tell theirs."""
        return time.monotonic_ns() // 1_000_000

    def _plan_pump(self, then: Callable[[], None] | None = None) -> None:
        """Pump at the end of this turn of the event loop; call `then` before it."""
        if then is not None:
            self._loop.call_soon(then)
        if not self._pump_planned:
            self._pump_planned = True
            self._loop.call_soon(self._pump_as_planned)

    def _pump_as_planned(self) -> None:
        self._pump_planned = False
        self._pump()

    def _pump(self) -> None:
        """Send what the session wants sent and tell what it has to tell."""
        self.session.clock(self._clock_ms())
        self._writes.during(self._send)
        events = self.session.events()
        for event in events:
            self._tell(event)
        if events:
            for publisher in self._publishers.values():
                publisher._settle()
        self._set_timer(self.session.deadline())
        if self.session.homes():
            self._homes_wanted.set()

    def _send(self) -> None:
        for send in self.session.outputs():
            link = self._link(send.link)
            if link is not None:
                link.channel.send(send.message, send.packet, send.batch, control=False)

    def _link(self, number: int) -> Link | None:
        if self._main is not None and self._main.number == number:
            return self._main
        return next((link for link in self._homes.values() if link.number == number), None)

    def _set_timer(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self.session.wake(now=self._loop.time())
        self._plan_pump()

    def _tell(self, event: Event) -> None:
        match event:
            case Writable(key):
                if key in self._publishers:
                    self._publishers[key]._wake()
            case PublisherFailed(key, error):
                if key in self._publishers:
                    self._publishers[key]._fail(error)
            case MessagesRefused(key, first, last, error):
                if key in self._publishers:
                    self._publishers[key]._take_refusal(PublishRefusedError(first, last, error))
            case WriterChanged() | WriterSealed() | WriterFailed():
                if event.writer in self._writers:
                    self._writers[event.writer].told(event)
            case PubendsListed() | RangePiece() | RangeFailed():
                if event.request in self._requests:
                    self._requests[event.request].told(event)
            case AdvertisementAccepted() | AdvertisementFailed() | AdvertisementEnded():
                self._admission.told(event)
            case QuestionAnswered(number, answer):
                self._take_answer(number, answer)
            case QuestionFailed(number, error):
                self._take_answer(number, error)
            case _:
                self._tell_subscription(event)

    def _tell_subscription(
        self,
        event: SubscriptionActive
        | PubendJoined
        | RowsDelivered
        | RowsGiven
        | RowsFinished
        | MemberLost
        | HomeNamed
        | PositionsStored
        | Missed
        | SubscriptionFailed
        | SubscriptionEnded,
    ) -> None:
        subscription = self._subscriptions.get(event.subscription)
        if subscription is None:
            return
        match event:
            case RowsDelivered(_, pubend, batch) | RowsGiven(_, pubend, batch):
                subscription._queue_rows(pubend, batch, batch.size)
            case SubscriptionActive(_, starts):
                subscription._activate(starts)
            case PubendJoined(_, pubend, tick):
                subscription._take_joined(pubend, tick)
            case PositionsStored():
                subscription._acknowledgement_stored()
            case RowsFinished(_, ticks, refused):
                assert isinstance(subscription, SharedSubscription)
                subscription._take_finished(ticks, refused)
            case MemberLost():
                assert isinstance(subscription, SharedSubscription)
                subscription._take_lost()
            case HomeNamed(key, home):
                self._shared_home.named(key, home)
            case Missed(_, pubend, lo, hi):
                subscription._queue_gap(GapError(pubend, lo, hi))
            case SubscriptionFailed(_, error):
                subscription._fail(error)
            case SubscriptionEnded(_, error):
                subscription._take_end(error)

    def _flow(self, key: int, *, is_open: bool) -> None:
        """Ask for no more rows of a subscription, or to go on. The connection is read on: others share it."""
        if key in self.session.subscriptions:
            self.session.flow(key, is_open=is_open)
            self._plan_pump()
        elif key in self.session.sharing.memberships:
            self.session.sharing.flow(key, is_open=is_open)
            self._plan_pump()

    def _give_up_flooding(self, size: int) -> None:
        """Give up a broker that goes on sending rows it was asked to keep."""
        log.warning("received %d bytes for a subscription that did not request any", size)
        if self._main is not None:
            self._main.channel.abort()

    # --- links -----------------------------------------------------------------------------------------------------------

    def _link_packet(self, link: Link, packet: Packet, batch: Batch | None, packet_id: int) -> None:
        self.session.clock(self._clock_ms())
        self.session.receive(packet, link=link.number, now=self._loop.time(), batch=batch, packet=packet_id)

    def _link_answer(self, link: Link, packet: msgspec.Struct, packet_id: int) -> None:
        self.services.answered(link, packet, packet_id)

    def _link_error(self, link: Link, error: PostroadError, packet_id: int) -> None:
        if self.services.refused(link, error, packet_id):
            return
        self.session.refused(packet_id, error, link=link.number, now=self._loop.time())

    def _link_arrived(self) -> None:
        self._plan_pump()

    async def _keep_connected(self) -> None:
        failures = 0
        turn = 0
        lost_at = self._loop.time()
        while True:
            address = self._addresses[turn % len(self._addresses)]
            link = self._take_next_main(None if self._next_main is not None else await self._try(address))
            if link is None:
                failures += 1
                turn += 1
                if failures == len(self._addresses) and isinstance(self._last_error, SecurityError):
                    self._denied = self._last_error
                    self._connected.set()
                if failures % len(self._addresses) == 0:
                    quick = self._loop.time() - lost_at < QUICK_S
                    await asyncio.sleep(self._pause(failures // len(self._addresses), quick=quick))
                continue
            began = self._loop.time()
            await self._serve_main(link)
            if self._loop.time() - began >= STEADY_S:
                failures, lost_at = 0, self._loop.time()
            else:  # a broker that takes us and drops us is no better than one that does not answer
                failures += 1
                await asyncio.sleep(self._pause(failures))

    def _switch(self, link: Link) -> None:
        """Make a link to another broker the main one."""
        if self._next_main is not None:
            self._next_main.channel.close(reason="no longer needed")
        self._next_main = link
        if self._main is not None:
            self._main.channel.close(reason="the client goes to another broker")

    def _take_next_main(self, dialled: Link | None) -> Link | None:
        """Return the link that is to be the main one: the one that was found, if it was found meanwhile."""
        following, self._next_main = self._next_main, None
        if following is not None and dialled is not None:
            dialled.channel.close(reason="no longer needed")
        return following or dialled

    async def _try(self, address: Address) -> Link | None:
        self._links += 1
        try:
            link = await dial(self, self._links, self._name, address, self._config.dial_s, self._writes, self._credentials)
        except PostroadError as error:
            self._last_error = error
            log.info("no connection: %s", error)
            return None
        self._known[link.broker] = address
        return link

    async def _serve_main(self, link: Link) -> None:
        self._main = link
        self.session.clock(self._clock_ms())
        self.session.connected(link.number, link.broker, now=self._loop.time())
        self._plan_pump()
        self._connected.set()
        try:
            await asyncio.shield(link.gone)
        finally:
            self._connected.clear()
            self.services.lost(link)
            if not self._closed:
                self._main = None
                self.session.disconnected(link.number, now=self._loop.time())
                self._plan_pump()

    def _pause(self, rounds: int, *, quick: bool = False) -> float:
        longest = min(self._config.retry_s * 2.0 ** min(rounds, 16), self._config.retry_s_max)
        if quick:
            longest = min(longest, QUICK_PAUSE_S_MAX)
        return random.uniform(longest / 2, longest)  # noqa: S311  # not a secret

    async def _keep_homes(self) -> None:
        """Keep links to the brokers that hold messages in doubt, until they hold none."""
        failures = 0
        while True:
            await self._homes_wanted.wait()
            self._homes_wanted.clear()
            for broker in self.session.homes():
                if broker in self._known and broker not in self._homes:
                    found = await self._connect_home(broker)
                    failures = 0 if found else failures + 1
            self._drop_idle_homes()
            await asyncio.sleep(self._pause(failures))
            if self.session.homes() or self._homes:
                self._homes_wanted.set()

    async def _connect_home(self, broker: int) -> bool:
        link = await self._try(self._known[broker])
        if link is None or broker not in self.session.homes():
            if link is not None:
                link.channel.close(reason="no longer needed")
            return link is not None
        if link.broker != broker:
            del self._known[broker]
            link.channel.close(reason="another broker was expected")
            return False
        self._homes[broker] = link
        self.session.clock(self._clock_ms())
        self.session.connected(link.number, broker, now=self._loop.time(), main=False)
        link.gone.add_done_callback(lambda _: self._home_lost(link))
        self._plan_pump()
        return True

    def _home_lost(self, link: Link) -> None:
        if self._homes.get(link.broker) is link:
            del self._homes[link.broker]
            self.session.disconnected(link.number, now=self._loop.time())
            self._plan_pump()

    def _drop_idle_homes(self) -> None:
        doubtful = {doubt.broker for key in self._publishers for doubt in self.session.doubtful(key)}
        for broker, link in list(self._homes.items()):
            if broker not in doubtful and not link.channel.closing:
                link.channel.close(reason="no message is in doubt any more")

    async def _heartbeats(self) -> None:
        while True:
            due = self._loop.time() + self._config.heartbeat_s
            await asyncio.sleep(self._config.heartbeat_s)
            if self._loop.time() - due > self._config.heartbeat_s:
                continue  # we were late ourselves, which proves nothing about the broker
            for link in (self._main, *self._homes.values()):
                if link is not None:
                    self._probe(link)

    def _probe(self, link: Link) -> None:
        quiet = self._loop.time() - link.channel.received_at
        if quiet > self._config.timeout_s:
            log.warning("received nothing from broker %d for %.1f s", link.broker, quiet)
            link.channel.abort()
        elif quiet >= self._config.heartbeat_s * 0.9:
            link.channel.ping()
