"""PostgreSQL: one database, many brokers.

All work is done by the stored procedures in `sql/`, named after Table 3.5; this module carries values to and from them. Single
calls of many clients are merged (`combine`), connections come from a bounded pool, and one more connection listens for other
brokers' puts. Foreign exceptions are mapped here and nowhere else. See docs/internals/queues.md for locks, indexes and waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import asyncpg

from postroad.errors import (
    InvalidValueError,
    NameTakenError,
    StorageUnavailableError,
    UnknownBindingError,
    UnknownClientError,
    UnknownQueueError,
)
from postroad.storage.queues.base import (
    PROMOTE_ROWS_MAX,
    Binding,
    Client,
    ClientMode,
    FeedRow,
    Lease,
    LeaseStatus,
    Message,
    NewMessage,
    Promotion,
    PutResult,
    Queue,
    QueueDepth,
    QueueSettings,
    State,
    TakeRequest,
    VisibleCallback,
    in_reading_order,
)
from postroad.storage.queues.combine import Combiner
from postroad.storage.queues.migrations import migrate

POOL_MAX: Final = 8
TIMEOUT_S: Final = 30.0
WATCH_MS: Final = 60_000
RECONNECT_S_MAX: Final = 2.0
_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")

# Each statement has one index made for it. Without these a plan chosen while the tables were empty (a sequential scan)
# may stay cached when they are full.
PLANNER_SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

# What passes when the server is away, restarting, overloaded or was asked to stop a statement. DataError is an InterfaceError
# by inheritance but means a wrong argument, which is a bug of ours.
_AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DeadlockDetectedError,
    asyncpg.QueryCanceledError,
)

_Connection = Any  # asyncpg's pool hands out proxies; its stubs name them differently from connections


class PostgresQueueStorage:
    """See `QueueStorage`. `schema` separates services in one database."""

    def __init__(self, dsn: str, *, schema: str = "postroad", pool_max: int = POOL_MAX, timeout_s: float = TIMEOUT_S) -> None:
        if not _SCHEMA_NAME.fullmatch(schema):
            raise InvalidValueError(f"a schema name has lower-case letters, digits and underscores, not {schema!r}")
        self._dsn, self._schema, self._pool_max, self._timeout_s = dsn, schema, pool_max, timeout_s
        self._broker = secrets.randbelow(1 << 31) or 1
        self._pool: asyncpg.Pool[Any] | None = None
        self._watched: set[int] = set()
        self._callback: VisibleCallback | None = None
        self._listener: asyncio.Task[None] | None = None
        self._puts: Combiner[NewMessage, PutResult] = Combiner(
            self._put_batch, parallel=2, item_bytes=lambda r: len(r.payload), lane=lambda r: r.sender_id
        )
        self._takes: Combiner[TakeRequest, list[Message] | UnknownQueueError] = Combiner(
            self._take_batch, parallel=2, rows_max=64
        )
        self._dones: Combiner[Lease, LeaseStatus] = Combiner(self._finish_batch, parallel=2)

    async def open(self) -> None:
        async with self._map_errors():
            settings = {"search_path": self._schema, **PLANNER_SETTINGS}
            connection = await asyncpg.connect(self._dsn, timeout=self._timeout_s)
            try:
                await migrate(connection, self._schema)
            finally:
                await connection.close()
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,  # a floor would be restored noisily while the server is away
                max_size=self._pool_max,
                command_timeout=self._timeout_s,
                timeout=self._timeout_s,
                server_settings=settings,
                reset=_no_reset,
            )
        self._listener = asyncio.create_task(self._listen())

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        for combiner in (self._puts, self._takes, self._dones):
            await combiner.drain()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                await asyncio.wait_for(pool.close(), timeout=5)
            except (TimeoutError, *_AWAY):
                pool.terminate()

    # signals from other brokers

    def on_visible(self, callback: VisibleCallback) -> None:
        self._callback = callback

    async def watch(self, queue_id: int) -> None:
        self._watched.add(queue_id)
        await self._value("SELECT watch_queue($1, $2, $3)", self._broker, queue_id, WATCH_MS)

    async def unwatch(self, queue_id: int) -> None:
        self._watched.discard(queue_id)
        await self._value("SELECT unwatch_queue($1, $2)", self._broker, queue_id)

    async def _listen(self) -> None:
        """Keep one listening connection, whatever happens to it, and write our waiters again after each loss."""
        delay = 0.05
        while True:
            with contextlib.suppress(StorageUnavailableError):
                async with self._map_errors():
                    connection = await asyncpg.connect(self._dsn, timeout=self._timeout_s)
                    try:
                        delay = 0.05
                        await self._listen_on(connection)
                    finally:
                        connection.terminate()
            await asyncio.sleep(delay)
            delay = min(RECONNECT_S_MAX, delay * 2)

    async def _listen_on(self, connection: asyncpg.Connection[Any]) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(f"postroad_{self._schema}", self._heard)
        for queue_id in sorted(self._watched):
            await self.watch(queue_id)
        self._report(None)
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), timeout=WATCH_MS / 3_000)
            if not lost.is_set() and self._watched:
                await self._value("SELECT keep_watching($1, $2)", self._broker, WATCH_MS)

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        text = str(payload)
        self._report(int(text) if text.isdecimal() and len(text) < 11 else None)

    def _report(self, queue_id: int | None) -> None:
        if self._callback is not None:
            self._callback(queue_id)

    # clients

    async def request_id(self, name: str, mode: ClientMode, key: bytes | None = None) -> Client:
        try:
            client_id = await self._value("SELECT request_id($1, $2, $3)", name, int(mode), key)
        except asyncpg.UniqueViolationError as error:
            raise NameTakenError(f"a client named {name!r} exists already") from error
        return Client(client_id, name, mode)

    async def identify(self, client_id: int) -> Client:
        row = await self._row("SELECT * FROM identify($1)", client_id)
        if row is None:
            raise UnknownClientError(f"no client has the id {client_id}")
        return Client(row["client_id"], row["client_name"], ClientMode(row["client_mode"]))

    async def find_client(self, name: str) -> Client:
        row = await self._row("SELECT * FROM find_client($1)", name)
        if row is None:
            raise UnknownClientError(f"no client is named {name!r}")
        return Client(row["client_id"], row["client_name"], ClientMode(row["client_mode"]))

    async def delete_client(self, client_id: int) -> None:
        if await self._value("SELECT delete_client($1)", client_id) is None:
            raise UnknownClientError(f"no client has the id {client_id}")

    # queues

    async def create_queue(self, name: str, settings: QueueSettings = QueueSettings()) -> Queue:  # noqa: B008 - frozen
        if settings.dead_letter_id is not None:
            await self.get_queue_name(settings.dead_letter_id)
        try:
            row = await self._row(
                "SELECT * FROM create_queue($1, $2, $3, $4)",
                name,
                settings.lease_ms,
                settings.max_deliveries,
                settings.dead_letter_id,
            )
        except asyncpg.UniqueViolationError as error:
            raise NameTakenError(f"a queue named {name!r} exists already") from error
        return _queue(row)

    async def delete_queue(self, queue_id: int) -> None:
        if await self._value("SELECT delete_queue($1)", queue_id) is None:
            raise UnknownQueueError(f"no queue has the id {queue_id}")

    async def get_queue_id(self, name: str) -> Queue:
        row = await self._row("SELECT * FROM get_queue_id($1)", name)
        if row is None:
            raise UnknownQueueError(f"no queue is named {name!r}")
        return _queue(row)

    async def get_queue_name(self, queue_id: int) -> Queue:
        row = await self._row("SELECT * FROM get_queue_name($1)", queue_id)
        if row is None:
            raise UnknownQueueError(f"no queue has the id {queue_id}")
        return _queue(row)

    async def list_queues(self, *, after: int = 0, limit: int) -> list[Queue]:
        return [_queue(r) for r in await self._rows("SELECT * FROM list_queues($1, $2)", after, limit)]

    async def get_active_queues(self, client_id: int, *, after: int = 0, limit: int) -> list[Queue]:
        return [_queue(r) for r in await self._rows("SELECT * FROM get_active_queues($1, $2, $3)", client_id, after, limit)]

    async def configure_queue(self, queue_id: int, settings: QueueSettings) -> Queue:
        if settings.dead_letter_id is not None:
            await self.get_queue_name(settings.dead_letter_id)
        row = await self._row(
            "SELECT * FROM configure_queue($1, $2, $3, $4)",
            queue_id,
            settings.lease_ms,
            settings.max_deliveries,
            settings.dead_letter_id,
        )
        if row is None:
            raise UnknownQueueError(f"no queue has the id {queue_id}")
        return _queue(row)

    async def get_messages_from_queue(self, queue_id: int, *, after: int = 0, limit: int, bytes_max: int) -> list[Message]:
        rows = await self._rows("SELECT * FROM get_messages_from_queue($1, $2, $3, $4)", queue_id, after, limit, bytes_max)
        if not rows:
            await self.get_queue_name(queue_id)
        return [_message(r) for r in rows]

    # messages

    async def put(self, rows: Sequence[NewMessage]) -> list[PutResult]:
        return await self._puts.call(rows)

    async def _put_batch(self, rows: list[NewMessage]) -> list[PutResult]:
        keys = [r.key for r in rows]
        put = await self._row(
            "SELECT * FROM put_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
            self._broker,
            sorted({r.queue_id for r in rows}),
            list({r.queue_id for r in rows if r.lease_to is None and not r.delay_ms}),
            [r.queue_id for r in rows],
            [r.sender_id for r in rows],
            [r.receiver_id for r in rows],
            [r.context for r in rows],
            [r.priority for r in rows],
            [r.delay_ms for r in rows],
            [r.ttl_ms for r in rows],
            None if all(k is None for k in keys) else keys,
            [r.attributes for r in rows],
            [r.payload for r in rows],
            [r.lease_to for r in rows],
            [r.lease_ms for r in rows],
        )
        arrived = put["arrived"]
        if put["duplicates"] is None:
            return [PutResult(i, time_of_arrival_ms=arrived) for i in put["message_ids"]]
        results = zip(put["message_ids"], put["duplicates"], strict=True)
        return [PutResult(i, duplicate=d, time_of_arrival_ms=arrived) for i, d in results]

    async def take(self, request: TakeRequest) -> list[Message]:
        (taken,) = await self._takes.call([request])
        if isinstance(taken, UnknownQueueError):
            raise taken
        return taken

    async def _take_batch(self, requests: list[TakeRequest]) -> list[list[Message] | UnknownQueueError]:
        rows = await self._rows(
            "SELECT * FROM take_batch($1, $2, $3, $4, $5, $6, $7, $8)",
            [r.queue_id for r in requests],
            [r.client_id for r in requests],
            [int(r.mode) for r in requests],
            [r.sender_id for r in requests],
            [r.context for r in requests],
            [r.limit for r in requests],
            [r.lease_ms for r in requests],
            [r.bytes_max for r in requests],
        )
        results: list[list[Message] | UnknownQueueError] = [[] for _ in requests]
        for row in rows:
            place = row[0] - 1
            taken = results[place]
            if row[1] is None:
                results[place] = UnknownQueueError(f"no queue has the id {row[2]}")
            elif isinstance(taken, list):
                taken.append(_message(row))
        for place, request in enumerate(requests):
            taken = results[place]
            if isinstance(taken, list) and len(taken) > 1:
                results[place] = in_reading_order(taken, request.mode)
        return results

    async def done(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        return await self._dones.call(leases)

    async def _finish_batch(self, leases: list[Lease]) -> list[LeaseStatus]:
        return await self._on_leases("SELECT done_batch($1, $2, $3, $4)", leases)

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0, undelivered: bool = False) -> list[LeaseStatus]:
        statement = "SELECT release_batch($5, $1, $2, $3, $4, $6, $7)"
        return await self._on_leases(statement, leases, self._broker, delay_ms, undelivered)

    async def extend(self, leases: Sequence[Lease], *, lease_ms: int) -> list[LeaseStatus]:
        return await self._on_leases("SELECT extend_batch($1, $2, $3, $4, $5)", leases, lease_ms)

    async def _on_leases(self, statement: str, leases: Sequence[Lease], *more: object) -> list[LeaseStatus]:
        """Call with the leases in ascending order, so that two calls lock rows in one order, and answer in the caller's."""
        if not leases:
            return []
        order = sorted(range(len(leases)), key=lambda i: (leases[i].queue_id, leases[i].message_id))
        columns = (
            [leases[i].queue_id for i in order],
            [leases[i].message_id for i in order],
            [leases[i].delivery for i in order],
            [leases[i].client_id for i in order],
        )
        statuses = await self._value(statement, *columns, *more)
        answers = [LeaseStatus.LOST] * len(leases)
        for place, status in zip(order, statuses, strict=True):
            answers[place] = LeaseStatus(status)
        return answers

    # the clockwork

    async def promote(self, *, rows_max: int = PROMOTE_ROWS_MAX) -> Promotion:
        row = await self._row("SELECT * FROM promote($1, $2)", self._broker, rows_max)
        next_due = row["next_due_ms"]
        return Promotion(
            Counter(row["queue_ids"] or ()), row["dead"], row["expired"], None if next_due is None else max(0, next_due)
        )

    async def forget_keys(self, *, older_than_ms: int, rows_max: int = PROMOTE_ROWS_MAX) -> int:
        return int(await self._value("SELECT forget_keys($1, $2)", older_than_ms, rows_max))

    async def depth(self, queue_id: int) -> QueueDepth:
        row = await self._row("SELECT * FROM queue_depth($1)", queue_id)
        if row["waiting"] + row["scheduled"] + row["leased"] == 0:
            await self.get_queue_name(queue_id)
        age = row["oldest_age_ms"]
        return QueueDepth(row["waiting"], row["scheduled"], row["leased"], None if age is None else max(0, age))

    async def depth_by_priority(self, queue_id: int) -> dict[int, int]:
        await self.get_queue_name(queue_id)
        counts = "SELECT priority, count(*) AS waiting FROM messages WHERE queue_id = $1 AND state = $2 GROUP BY priority"
        return {row["priority"]: row["waiting"] for row in await self._rows(counts, queue_id, State.WAITING)}

    # bound queues

    async def bind(self, queue_id: int, filter_text: str, *, priority: int = 5) -> Binding:
        row = await self._row("SELECT * FROM bind_queue($1, $2, $3)", queue_id, filter_text, priority)
        if row is None:
            raise UnknownQueueError(f"no queue has the id {queue_id}")
        return _binding(row)

    async def unbind(self, binding_id: int) -> None:
        if await self._value("SELECT unbind($1)", binding_id) is None:
            raise UnknownBindingError(f"no binding has the id {binding_id}")

    async def bindings(self) -> list[Binding]:
        return [
            _binding(r)
            for r in await self._rows("SELECT binding_id, queue_id, filter_text, priority FROM bindings ORDER BY binding_id")
        ]

    async def claim(self, binding_id: int, *, for_ms: int) -> bool:
        claimed = await self._value("SELECT claim_binding($1, $2, $3)", self._broker, binding_id, for_ms)
        if claimed is None:
            raise UnknownBindingError(f"no binding has the id {binding_id}")
        return bool(claimed)

    async def cursors(self, binding_id: int) -> dict[int, int]:
        rows = await self._rows("SELECT pubend, tick FROM cursors WHERE binding_id = $1 ORDER BY pubend", binding_id)
        if not rows and await self._row("SELECT 1 FROM bindings WHERE binding_id = $1", binding_id) is None:
            raise UnknownBindingError(f"no binding has the id {binding_id}")
        return {r["pubend"]: r["tick"] for r in rows}

    async def feed(self, binding_id: int, pubend: int, upto: int, rows: Sequence[FeedRow]) -> int:
        put = await self._value(
            "SELECT feed_binding($1, $2, $3, $4, $5, $6, $7, $8)",
            self._broker,
            binding_id,
            pubend,
            upto,
            [r.tick for r in rows],
            [r.key for r in rows],
            [r.payload for r in rows],
            [r.attributes for r in rows],
        )
        if put is None:
            raise UnknownBindingError(f"no binding has the id {binding_id}")
        return int(put)

    # the driver boundary

    async def _value(self, statement: str, *arguments: object) -> Any:
        async with self._connection() as connection:
            return await connection.fetchval(statement, *arguments)

    async def _row(self, statement: str, *arguments: object) -> Any:
        async with self._connection() as connection:
            return await connection.fetchrow(statement, *arguments)

    async def _rows(self, statement: str, *arguments: object) -> list[Any]:
        async with self._connection() as connection:
            return await connection.fetch(statement, *arguments)  # type: ignore[no-any-return]

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[_Connection]:
        if self._pool is None:
            raise StorageUnavailableError("the queue storage is not open")
        async with self._map_errors(), self._pool.acquire(timeout=self._timeout_s) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _map_errors(self) -> AsyncIterator[None]:
        try:
            yield
        except asyncpg.DataError:
            raise
        except _AWAY as error:
            raise StorageUnavailableError(f"PostgreSQL does not answer ({type(error).__name__}: {error}); try again") from error


async def _no_reset(_connection: object) -> None:
    """Save the round trip by which a pool cleans a returned connection: ours never change their session."""


def _queue(row: Any) -> Queue:
    return Queue(row["queue_id"], row["queue_name"], QueueSettings(row["lease_ms"], row["max_deliveries"], row["dead_letter_id"]))


def _binding(row: Any) -> Binding:
    return Binding(row["binding_id"], row["queue_id"], row["filter_text"], row["priority"])


def _message(row: Any) -> Message:
    """Read a `message_row`; its first column says which take it answers."""
    (
        _,
        message_id,
        queue_id,
        sender_id,
        receiver_id,
        context,
        priority,
        arrival,
        message,
        state,
        delivery,
        key,
        attributes,
        origin,
    ) = row
    return Message(
        message_id,
        queue_id,
        sender_id,
        receiver_id,
        context,
        priority,
        arrival,
        message,
        State(state),
        delivery,
        key,
        attributes,
        origin,
    )
