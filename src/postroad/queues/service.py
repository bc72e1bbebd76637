"""The queues service of one process: a session and a packet in, the response packet out.

It knows who may do what, checks all input, keeps waiting takes and runs the clockwork; everything that must be atomic is the
storage's. It knows no sockets: `server.py`, or the broker's listener, carries packets to `handle`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from postroad.core.protocol.rights import OPEN, Rights
from postroad.errors import (
    NameTakenError,
    NotIdentifiedError,
    PostroadError,
    QueueLimitError,
    ReadOnlyClientError,
    StorageUnavailableError,
    UnknownClientError,
    UnknownMethodError,
)
from postroad.queues.answers import ANSWER_BYTES_MAX, ROW_BYTES_MIN, AnswerRoom
from postroad.queues.limits import (
    ID_MAX,
    QueueLimits,
    check_binding_id,
    check_client_id,
    check_context,
    check_priority,
    check_queue_id,
    check_receiver_id,
    check_sender_id,
)
from postroad.queues.permissions import QueuePermissions
from postroad.queues.profile import ProfileLog
from postroad.queues.rates import Counts
from postroad.queues.shares import Shares
from postroad.queues.waiters import Waiter, Waiters
from postroad.runtime.connections.filter_preparation import work_with_pauses
from postroad.storage.queues.base import (
    Client,
    ClientMode,
    Lease,
    LeaseStatus,
    Message,
    NewMessage,
    PutResult,
    Queue,
    QueueDepth,
    QueueSettings,
    QueueStorage,
    ReadMode,
    State,
    TakeRequest,
)
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.packets.session import Error, Ping, Pong
from postroad.wire.registry import REGISTRY, Direction, Packet, check_direction

POLL_S: Final = 2.0
"""The safety net: how long a lost signal, or the leases of a broker that died, may go unnoticed."""
WATCH_LINGER_S: Final = 10.0
KEY_WINDOW_MS: Final = 86_400_000
KEYS_EVERY_S: Final = 30.0
DUE_SLACK_S: Final = 0.002

PacketT = TypeVar("PacketT", bound=Packet)


@dataclass(slots=True)
class Session:
    """One connection's identity. The report keeps it with the connection, so no packet repeats it."""

    client: Client | None = None
    room: AnswerRoom = field(default_factory=AnswerRoom)
    row_bytes: int = 0  # what a message taken lately had; 0: none was taken yet
    rights: Rights = OPEN  # what the other end may do


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Depth from the storage; counts and rates of this process."""

    queue: Queue
    depth: QueueDepth
    put_total: int
    taken_total: int
    done_total: int
    put_per_s: float
    taken_per_s: float
    done_per_s: float


class QueueService:
    """Start it, hand it packets, stop it."""

    def __init__(
        self,
        storage: QueueStorage,
        *,
        limits: QueueLimits | None = None,
        check_filter: Callable[[str], object] | None = None,
        poll_s: float = POLL_S,
        key_window_ms: int = KEY_WINDOW_MS,
        profile: ProfileLog | None = None,
    ) -> None:
        self.storage: Final = storage
        self.limits: Final = limits or QueueLimits()
        self._check_filter = check_filter
        self._profile = profile
        self._poll_s = poll_s
        self._key_window_ms = key_window_ms
        self._waiters = Waiters(waiters_max=self.limits.waiting_takes_max)
        self._counts = Counts(time.monotonic)
        self._watched: dict[int, float] = {}  # queue -> when a waiter was last seen on it
        self._clock_task: asyncio.Task[None] | None = None
        self._clock_wake = asyncio.Event()
        self._clock_next = -math.inf  # when the sleeping clockwork will wake; -inf while it works
        self._earliest_due = math.inf  # the first due time heard of since the clockwork last looked
        self._keys_next = 0.0
        self._background: set[asyncio.Task[Any]] = set()
        self.answers: Final = AnswerRoom(ANSWER_BYTES_MAX)
        self._permissions: Final = QueuePermissions(storage)
        self._shares: Final = Shares(self.limits)
        self._handlers = self._make_handlers()
        lists = (t.GetMessages, t.GetQueues, t.GetActiveQueues, q.GetBindings)
        self._list_bytes: dict[type[Packet], int] = dict.fromkeys(lists, self.limits.page_bytes_max)

    async def start(self) -> None:
        await self.storage.open()
        self.storage.on_visible(self._waiters.wake_all)
        self._clock_task = asyncio.create_task(self._clockwork())

    async def stop(self) -> None:
        """Stop the clockwork and close the storage. Waiting takes must have been cancelled by whoever started them."""
        if self._clock_task is not None:
            self._clock_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clock_task
        while self._background:
            await asyncio.wait(self._background)
        await self.storage.close()
        if self._profile is not None:
            await asyncio.to_thread(self._profile.close)

    @property
    def packet_types(self) -> frozenset[type[Packet]]:
        """The requests this service answers."""
        return frozenset(self._handlers)

    async def handle(self, packet: Packet, session: Session) -> Packet:
        """Answer one packet. Never raises a `PostroadError`: refusals are Error packets."""
        if self._profile is None:
            return await self._answer(packet, session)
        begun = time.perf_counter()
        answer = await self._answer(packet, session)
        outcome = str(answer.code) if isinstance(answer, Error) else "ok"
        client_id = 0 if session.client is None else session.client.client_id
        self._profile.note(type(packet).__name__, client_id, time.perf_counter() - begun, outcome)
        return answer

    async def _answer(self, packet: Packet, session: Session) -> Packet:
        try:
            check_direction(packet, Direction.CLIENT_TO_BROKER, identified=session.client is not None)
            handler = self._handlers.get(type(packet))
            if handler is None:
                raise UnknownMethodError(REGISTRY.by_type[type(packet)].method)
            if session.rights is not OPEN:
                packet = await self._permissions.permit(packet, session.rights)
            size = self._list_bytes.get(type(packet), 0)
            if not size:
                return await handler(packet, session)
            await session.room.enter(size)
            try:
                return await handler(packet, session)
            finally:
                session.room.leave_soon(size)
        except PostroadError as error:
            return Error.of(error)

    def undelivered(self, response: Packet, session: Session) -> None:
        """Give back what a response would have handed over, when it could not be sent."""
        if isinstance(response, q.TakeMessagesResponse) and session.client is not None:
            self._give_back(response.messages, session.client.client_id)

    async def stats(self, queue_id: int) -> QueueStats:
        queue = await self.storage.get_queue_name(queue_id)
        depth = await self.storage.depth(queue_id)
        counts = self._counts.of(queue_id)
        rates = counts.per_second(time.monotonic())
        return QueueStats(queue, depth, counts.put_total, counts.taken_total, counts.done_total, *rates)

    async def all_stats(self) -> list[QueueStats]:
        """Figures of the first queues, as many as a page has, for metrics."""
        return [await self.stats(queue.queue_id) for queue in await self.storage.list_queues(limit=self.limits.page_rows_max)]

    # what clients ask

    def _make_handlers(self) -> dict[type[Packet], Callable[[Any, Session], Awaitable[Packet]]]:
        return {
            Ping: self._ping,
            t.RegisterClient: self._register,
            t.IdentifyClient: self._identify,
            t.DeleteClient: self._delete_client,
            t.CreateQueue: self._create_queue,
            t.DeleteQueue: self._delete_queue,
            t.GetQueueId: self._get_queue_id,
            t.GetQueueName: self._get_queue_name,
            t.GetQueues: self._get_queues,
            t.GetActiveQueues: self._get_active_queues,
            t.GetMessages: self._get_messages,
            t.PutMessage: self._put_message,
            t.ReadMessage: self._read_message,
            t.ReadResponse: self._read_response,
            q.PutMessages: self._put_messages,
            q.TakeMessages: self._take_messages,
            q.DoneMessages: self._finish_messages,
            q.ReleaseMessages: self._release_messages,
            q.ExtendLeases: self._extend_leases,
            q.ConfigureQueue: self._configure_queue,
            q.GetQueueSettings: self._get_settings,
            q.GetQueueStats: self._get_stats,
            q.BindQueue: self._bind_queue,
            q.UnbindQueue: self._unbind_queue,
            q.GetBindings: self._get_bindings,
        }

    async def _ping(self, _packet: Ping, _session: Session) -> Packet:
        return Pong()

    async def _register(self, packet: t.RegisterClient, session: Session) -> Packet:
        name = self.limits.check_name(packet.client_name)
        try:
            self._shares.check("clients", session.rights.owner)
            session.client = await self.storage.request_id(name, packet.mode, packet.key)
            self._shares.add("clients", session.client.client_id, session.rights.owner)
        except (NameTakenError, QueueLimitError) as error:
            if not packet.existing:
                raise
            try:
                session.client = await self.storage.find_client(name)
            except UnknownClientError:
                raise error from None
        return t.RegisterClientResponse(session.client.client_id)

    async def _identify(self, packet: t.IdentifyClient, session: Session) -> Packet:
        session.client = await self.storage.identify(check_client_id(packet.client_id))
        name = session.rights.shown_name(session.client.name) or session.client.name
        return t.IdentifyClientResponse(session.client.mode, name)

    async def _delete_client(self, packet: t.DeleteClient, session: Session) -> Packet:
        client = _require_client(packet, session)
        if packet.client_id != client.client_id:
            _may_write(packet, session)
        await self.storage.delete_client(check_client_id(packet.client_id))
        self._shares.remove("clients", packet.client_id)
        if packet.client_id == client.client_id:
            session.client = None
        return t.Success()

    async def _create_queue(self, packet: t.CreateQueue, session: Session) -> Packet:
        _may_write(packet, session)
        name = self.limits.check_name(packet.queue_name)
        settings = self._settings(packet.lease_ms, packet.max_deliveries, packet.dead_letter_id)
        self._shares.check("queues", session.rights.owner)
        queue_id = (await self.storage.create_queue(name, settings)).queue_id
        self._shares.add("queues", queue_id, session.rights.owner)
        return t.CreateQueueResponse(queue_id)

    async def _delete_queue(self, packet: t.DeleteQueue, session: Session) -> Packet:
        _may_write(packet, session)
        await self.storage.delete_queue(check_queue_id(packet.queue_id))
        self._counts.forget(packet.queue_id)
        self._shares.remove("queues", packet.queue_id)
        self._watched.pop(packet.queue_id, None)
        self._waiters.wake_all(packet.queue_id)
        return t.Success()

    async def _get_queue_id(self, packet: t.GetQueueId, _session: Session) -> Packet:
        return t.GetQueueIdResponse((await self.storage.get_queue_id(self.limits.check_name(packet.queue_name))).queue_id)

    async def _get_queue_name(self, packet: t.GetQueueName, _session: Session) -> Packet:
        return t.GetQueueNameResponse((await self.storage.get_queue_name(check_queue_id(packet.queue_id))).name)

    async def _get_queues(self, packet: t.GetQueues, session: Session) -> Packet:
        after, limit = min(packet.after_queue_id, ID_MAX), self.limits.page_rows_max
        while True:  # an empty page says that there are no more, so pages of which nothing may be shown are skipped
            found = await self.storage.list_queues(after=after, limit=limit)
            shown = self._permissions.shown(found, session.rights)
            if shown or len(found) < limit:
                return t.GetQueuesResponse(tuple(t.Queue(each.queue_id, each.name) for each in shown), more=len(found) == limit)
            after = found[-1].queue_id

    async def _get_active_queues(self, packet: t.GetActiveQueues, session: Session) -> Packet:
        client = _require_client(packet, session)
        after, limit = min(packet.after_queue_id, ID_MAX), self.limits.page_rows_max
        while True:
            found = await self.storage.get_active_queues(client.client_id, after=after, limit=limit)
            shown = self._permissions.shown(found, session.rights)
            if shown or len(found) < limit:
                queues = tuple(t.Queue(each.queue_id, each.name) for each in shown)
                return t.GetActiveQueuesResponse(queues, more=len(found) == limit)
            after = found[-1].queue_id

    async def _get_messages(self, packet: t.GetMessages, session: Session) -> Packet:
        queue_id, after = check_queue_id(packet.queue_id), packet.after_message_id
        sees_all = session.rights is OPEN or await self._permissions.may_manage(queue_id, session.rights)
        own_id = 0 if session.client is None else session.client.client_id
        while True:  # a page of which nothing may be shown is skipped: an empty one is the end
            page = await self.storage.get_messages_from_queue(
                queue_id, after=after, limit=self.limits.page_rows_max, bytes_max=self.limits.page_bytes_max
            )
            shown = tuple(each for each in page if sees_all or each.receiver_id in (None, own_id))
            if shown or not page:
                return t.GetMessagesResponse(shown, more=bool(page))
            after = page[-1].message_id

    # putting

    async def _put_message(self, packet: t.PutMessage, session: Session) -> Packet:
        client = _may_write(packet, session)
        self.limits.check_batch(len(packet.queue_ids), len(packet.queue_ids) * len(packet.message))
        rows = [
            NewMessage(
                queue_id,
                client.client_id,
                self.limits.check_payload(packet.message),
                check_receiver_id(packet.receiver_id),
                check_context(packet.context),
                check_priority(packet.priority),
            )
            for queue_id in dict.fromkeys(packet.queue_ids)
            if 1 <= queue_id <= ID_MAX
        ]
        results = await self._put(rows)
        return t.PutMessageResponse(tuple(row.queue_id for row, r in zip(rows, results, strict=True) if r.message_id is not None))

    async def _put_messages(self, packet: q.PutMessages, session: Session) -> Packet:
        client = _may_write(packet, session)
        self.limits.check_batch(len(packet.messages), sum(len(m.message) for m in packet.messages))
        known = [m for m in packet.messages if 1 <= m.queue_id <= ID_MAX]
        results = iter(await self._put([self._new_message(m, client.client_id) for m in known]))
        answers = [next(results) if 1 <= m.queue_id <= ID_MAX else None for m in packet.messages]
        return q.PutMessagesResponse(
            tuple(q.PutResult(a.message_id, a.duplicate) if a else q.PutResult(None, False) for a in answers)
        )

    def _new_message(self, message: q.NewMessage, sender_id: int) -> NewMessage:
        ttl_ms = message.ttl_ms
        return NewMessage(
            message.queue_id,
            sender_id,
            self.limits.check_payload(message.message),
            check_receiver_id(message.receiver_id),
            check_context(message.context),
            check_priority(message.priority),
            self.limits.check_delay_ms(message.delay_ms, "a delay"),
            None if ttl_ms is None else self.limits.check_delay_ms(ttl_ms, "a time to live"),
            self.limits.check_key(message.key),
            self.limits.check_attributes(message.attributes),
        )

    async def _put(self, rows: Sequence[NewMessage]) -> list[PutResult]:
        """Put; what a sleeping take may have is put as leased to it and handed over when it is durable."""
        waiters = self._waiters.reserve(rows)
        leased = [_lease_to(waiters[i], row) if i in waiters else row for i, row in enumerate(rows)]
        self._waiters.put_started(leased)
        put = asyncio.ensure_future(self.storage.put(leased))
        try:
            results = await asyncio.shield(put)
        except asyncio.CancelledError:  # the putter went away; the put goes on, and those who wait for it must hear
            self._track(put)
            put.add_done_callback(lambda done: self._hand_over_later(done, leased, waiters))
            raise
        except BaseException:
            self._put_failed(leased, waiters)
            raise
        self._after_put(leased, results, waiters)
        return results

    def _hand_over_later(
        self, put: asyncio.Task[list[PutResult]], rows: Sequence[NewMessage], waiters: dict[int, Waiter]
    ) -> None:
        if put.cancelled() or put.exception() is not None:
            self._put_failed(rows, waiters)
        else:
            self._after_put(rows, put.result(), waiters)

    def _put_failed(self, rows: Sequence[NewMessage], waiters: dict[int, Waiter]) -> None:
        self._waiters.put_ended(rows)
        for waiter in waiters.values():
            waiter.let_go()

    def _after_put(self, rows: Sequence[NewMessage], results: Sequence[PutResult], waiters: dict[int, Waiter]) -> None:
        self._waiters.put_ended(rows)  # in one step with `visible` below: nothing is handed over in between
        for i, (row, result) in enumerate(zip(rows, results, strict=True)):
            self._counts.of(row.queue_id).put_total += 1
            for delay_ms in (row.delay_ms, row.ttl_ms, row.lease_ms):
                if delay_ms:
                    self._due_in(delay_ms)
            if i in waiters:
                self._hand_over(waiters[i], row, result)
        self._waiters.visible(row for row in rows if not row.delay_ms and row.lease_to is None)

    def _hand_over(self, waiter: Waiter, row: NewMessage, result: PutResult) -> None:
        if result.message_id is None or result.duplicate:
            waiter.let_go()
            return
        message = Message(
            result.message_id,
            row.queue_id,
            row.sender_id,
            row.receiver_id,
            row.context,
            row.priority,
            result.time_of_arrival_ms,
            row.payload,
            State.LEASED,
            1,
            row.key,
            row.attributes,
        )
        if not waiter.hand(message):
            self._give_back([message], waiter.request.client_id)

    def fed(self, queue_id: int, count: int) -> None:
        """Hear that a binding put messages into a queue (see `feeder.py`)."""
        if count:
            self._counts.of(queue_id).put_total += count
            self._waiters.wake_all(queue_id)

    # taking

    async def _read_message(self, packet: t.ReadMessage, session: Session) -> Packet:
        client = _require_client(packet, session)
        request = TakeRequest(
            check_queue_id(packet.queue_id), client.client_id, packet.mode, check_sender_id(packet.sender_id), lease_ms=0
        )
        return t.ReadMessageResponse(tuple(await self._take(request, packet.wait_ms, session)))

    async def _read_response(self, packet: t.ReadResponse, session: Session) -> Packet:
        client, context = _require_client(packet, session), check_context(packet.context)
        request = TakeRequest(check_queue_id(packet.queue_id), client.client_id, ReadMode.ARRIVAL, context=context, lease_ms=0)
        return t.ReadResponseResponse(tuple(await self._take(request, packet.wait_ms, session)))

    async def _take_messages(self, packet: q.TakeMessages, session: Session) -> Packet:
        client = _require_client(packet, session)
        self.limits.check_batch(packet.limit)
        request = TakeRequest(
            check_queue_id(packet.queue_id),
            client.client_id,
            packet.mode,
            check_sender_id(packet.sender_id),
            check_context(packet.context),
            packet.limit,
            self.limits.check_lease_ms(packet.lease_ms),
            self.limits.batch_bytes_max,
        )
        return q.TakeMessagesResponse(tuple(await self._take(request, packet.wait_ms, session)))

    async def _take(self, request: TakeRequest, wait_ms: int, session: Session) -> list[Message]:
        if self.limits.check_wait_ms(wait_ms) == 0:
            return await self._take_once(request, session)
        deadline = time.monotonic() + wait_ms / 1000
        with self._waiters.waiter(request) as waiter:
            while True:
                waiter.woken = False
                watched = request.queue_id in self._watched
                taken = await self._take_once(request, session)
                remaining = deadline - time.monotonic()
                if taken or remaining <= 0:
                    return taken
                self._watched[request.queue_id] = time.monotonic()
                if watched:
                    handed = await self._wait(waiter, min(remaining, self._poll_s))
                    if handed is not None:
                        self._counts.of(request.queue_id).taken_total += 1
                        return [handed]
                else:  # what came before this call is seen by the next attempt, what comes after is signalled
                    await self.storage.watch(request.queue_id)

    async def _wait(self, waiter: Waiter, timeout_s: float) -> Message | None:
        try:
            return await waiter.wait(timeout_s)
        except asyncio.CancelledError:
            if waiter.handed is not None:
                self._give_back([waiter.handed], waiter.request.client_id)
            raise

    async def _take_once(self, request: TakeRequest, session: Session) -> list[Message]:
        """Take when there is room for the answer."""
        size = min(request.bytes_max, request.limit * (session.row_bytes or self.limits.payload_bytes_max))
        if not session.room.try_enter(size):
            await session.room.enter(size)
        try:
            taken = await self._take_now(request)
        finally:
            session.room.leave_soon(size)
        if taken:
            largest = max(len(message.message) for message in taken)
            session.row_bytes = max(ROW_BYTES_MIN, largest, (session.row_bytes or self.limits.payload_bytes_max) // 2)
        return taken

    async def _take_now(self, request: TakeRequest) -> list[Message]:
        """Take; if the caller goes away meanwhile, give back what it would have got."""
        task = asyncio.ensure_future(self.storage.take(request))
        try:
            taken = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._track(task)
            task.add_done_callback(lambda done: self._drop_abandoned(done, request))
            raise
        if taken:
            self._counts.of(request.queue_id).taken_total += len(taken)
            if request.lease_ms:
                self._due_in(request.lease_ms)
        return taken

    def _drop_abandoned(self, task: asyncio.Task[list[Message]], request: TakeRequest) -> None:
        if not task.cancelled() and task.exception() is None and request.lease_ms != 0:
            self._give_back(task.result(), request.client_id)

    def _give_back(self, messages: Iterable[Message], client_id: int) -> None:
        leases = [Lease(m.queue_id, m.message_id, m.delivery, client_id) for m in messages]
        if leases:
            self._track(asyncio.ensure_future(self._release(leases, undelivered=True)))

    async def _release(self, leases: Sequence[Lease], *, delay_ms: int = 0, undelivered: bool = False) -> list[LeaseStatus]:
        statuses = await self.storage.release(leases, delay_ms=delay_ms, undelivered=undelivered)
        if delay_ms:
            self._due_in(delay_ms)
        for queue_id in dict.fromkeys(lease.queue_id for lease in leases):
            self._waiters.wake_all(queue_id)
        return statuses

    async def _finish_messages(self, packet: q.DoneMessages, session: Session) -> Packet:
        leases = self._leases(packet, packet.leases, session)
        statuses = await self.storage.done(leases)
        held = Counter(lease.queue_id for lease, status in zip(leases, statuses, strict=True) if status is LeaseStatus.HELD)
        for queue_id, count in held.items():
            self._counts.of(queue_id).done_total += count
        return q.DoneMessagesResponse(tuple(statuses))

    async def _release_messages(self, packet: q.ReleaseMessages, session: Session) -> Packet:
        leases = self._leases(packet, packet.leases, session)
        delay_ms = self.limits.check_delay_ms(packet.delay_ms, "a delay")
        return q.ReleaseMessagesResponse(tuple(await self._release(leases, delay_ms=delay_ms)))

    async def _extend_leases(self, packet: q.ExtendLeases, session: Session) -> Packet:
        leases = self._leases(packet, packet.leases, session)
        self.limits.check_lease_ms(packet.lease_ms, minimum=1)
        return q.ExtendLeasesResponse(tuple(await self.storage.extend(leases, lease_ms=packet.lease_ms)))

    def _leases(self, packet: Packet, named: Sequence[q.LeaseRef], session: Session) -> list[Lease]:
        client_id = _require_client(packet, session).client_id
        self.limits.check_batch(len(named))
        return [Lease(min(n.queue_id, ID_MAX), n.message_id, min(n.delivery, ID_MAX), client_id) for n in named]

    # settings, figures, bindings

    async def _configure_queue(self, packet: q.ConfigureQueue, session: Session) -> Packet:
        _may_write(packet, session)
        settings = self._settings(packet.lease_ms, packet.max_deliveries, packet.dead_letter_id)
        await self.storage.configure_queue(check_queue_id(packet.queue_id), settings)
        return t.Success()

    def _settings(self, lease_ms: int, max_deliveries: int, dead_letter_id: int | None) -> QueueSettings:
        dead = None if dead_letter_id is None else check_queue_id(dead_letter_id)
        return self.limits.check_settings(QueueSettings(lease_ms, max_deliveries, dead))

    async def _get_settings(self, packet: q.GetQueueSettings, _session: Session) -> Packet:
        settings = (await self.storage.get_queue_name(check_queue_id(packet.queue_id))).settings
        return q.GetQueueSettingsResponse(settings.lease_ms, settings.max_deliveries, settings.dead_letter_id)

    async def _get_stats(self, packet: q.GetQueueStats, _session: Session) -> Packet:
        stats = await self.stats(check_queue_id(packet.queue_id))
        depth = stats.depth
        return q.GetQueueStatsResponse(
            depth.waiting,
            depth.scheduled,
            depth.leased,
            depth.oldest_age_ms,
            stats.put_total,
            stats.taken_total,
            stats.done_total,
            stats.put_per_s,
            stats.taken_per_s,
            stats.done_per_s,
        )

    async def _bind_queue(self, packet: q.BindQueue, session: Session) -> Packet:
        _may_write(packet, session)
        text = self.limits.check_filter(packet.filter_text)
        if self._check_filter is not None and session.rights is OPEN:  # else `permit` has parsed it
            async with self._permissions.parsing:
                await asyncio.to_thread(work_with_pauses, partial(self._check_filter, text))
        self._shares.check("bindings", session.rights.owner)
        binding = await self.storage.bind(check_queue_id(packet.queue_id), text, priority=check_priority(packet.priority))
        self._shares.add("bindings", binding.binding_id, session.rights.owner)
        return q.BindQueueResponse(binding.binding_id)

    async def _unbind_queue(self, packet: q.UnbindQueue, session: Session) -> Packet:
        _may_write(packet, session)
        await self.storage.unbind(check_binding_id(packet.binding_id))
        self._shares.remove("bindings", packet.binding_id)
        return t.Success()

    async def _get_bindings(self, _packet: q.GetBindings, session: Session) -> Packet:
        found = await self.storage.bindings()
        if session.rights is not OPEN:
            found = [each for each in found if await self._permissions.may_manage(each.queue_id, session.rights)]
        return q.GetBindingsResponse(tuple(q.BoundFilter(b.binding_id, b.queue_id, b.filter_text, b.priority) for b in found))

    # the clockwork

    async def _clockwork(self) -> None:
        while True:
            pause = self._poll_s
            self._earliest_due = math.inf
            try:
                pause = await self._tick()
            except StorageUnavailableError:
                self._watched.clear()  # a storage that comes back knows no waiters; they register again at their next attempt
                self._waiters.wake_all(None)
            now = time.monotonic()
            self._clock_next = min(now + pause, self._earliest_due)
            self._clock_wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._clock_wake.wait(), timeout=max(0.0, self._clock_next - now))
            self._clock_next = -math.inf

    async def _tick(self) -> float:
        """Promote what is due and return the pause until the next time, in seconds."""
        promotion = await self.storage.promote()
        for queue_id in promotion.visible:
            self._waiters.wake_all(queue_id)
        now = time.monotonic()
        self._counts.sample()
        for queue_id in [each for each, seen in self._watched.items() if now - seen > WATCH_LINGER_S]:
            if not self._waiters.waits_on(queue_id):
                del self._watched[queue_id]
                await self.storage.unwatch(queue_id)
        if now >= self._keys_next:
            forgotten = await self.storage.forget_keys(older_than_ms=self._key_window_ms)
            self._keys_next = now if forgotten else now + KEYS_EVERY_S
        if promotion.next_due_ms is None:
            return self._poll_s
        return min(self._poll_s, promotion.next_due_ms / 1000 + DUE_SLACK_S)

    def _due_in(self, delay_ms: int) -> None:
        """Let the clockwork run earlier than planned, when something is due before."""
        due = time.monotonic() + delay_ms / 1000 + DUE_SLACK_S
        self._earliest_due = min(self._earliest_due, due)
        if due < self._clock_next:
            self._clock_wake.set()

    def _track(self, task: asyncio.Future[Any]) -> None:
        assert isinstance(task, asyncio.Task)
        self._background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # a message that could not be given back comes again when its lease ends


def _lease_to(waiter: Waiter, row: NewMessage) -> NewMessage:
    return replace(row, lease_to=waiter.request.client_id, lease_ms=waiter.request.lease_ms)


def _require_client(packet: Packet, session: Session) -> Client:
    if session.client is None:
        raise NotIdentifiedError(REGISTRY.by_type[type(packet)].name)
    return session.client


def _may_write(packet: Packet, session: Session) -> Client:
    client = _require_client(packet, session)
    if client.mode is not ClientMode.READ_AND_PUT:
        name = REGISTRY.by_type[type(packet)].name
        raise ReadOnlyClientError(f"client {client.name!r} is read-only; {name} needs a client that may put")
    return client
