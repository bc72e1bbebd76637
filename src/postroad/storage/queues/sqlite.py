"""SQLite: the embedded default, for one process.

The rules are those of the reference (`memory`) in SQL; the writer thread gives group commit. There is no other process to
hear from, so `watch` has nothing to do and the service's own signal is enough.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from postroad.errors import NameTakenError, UnknownBindingError, UnknownClientError, UnknownQueueError
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
    ReadMode,
    State,
    TakeRequest,
    VisibleCallback,
)
from postroad.storage.queues.memory import new_message, wall_clock_ms
from postroad.storage.queues.sqlite_writer import SqliteWriter

_QUEUE: Final = "SELECT queue_id, queue_name, lease_ms, max_deliveries, dead_letter_id FROM queues"
_MESSAGE: Final = (
    "message_id, queue_id, sender_id, receiver_id, context, priority, time_of_arrival, message, "
    "state, delivery, key, attributes, origin_queue_id"
)
_UNEXPIRED: Final = "(expires IS NULL OR expires > :now)"


def _take_statement(mode: ReadMode, *, one_sender: bool) -> str:
    """Two index scans (for me, for anybody), merged by SQLite in the order both have."""
    order = "priority DESC, message_id" if mode is ReadMode.PRIORITY else "message_id"
    sender = "AND sender_id = :sender_id" if one_sender else ""
    scan = (
        "SELECT priority, message_id, length(message) FROM messages "  # noqa: S608 - constants only
        f"WHERE queue_id = :queue_id AND coalesce(receiver_id, 0) = {{}} {sender} AND state = 0 AND {_UNEXPIRED}"
    )
    return f"{scan.format(':client_id')} UNION ALL {scan.format('0')} ORDER BY {order} LIMIT :limit"


_TAKES: Final = {(mode, one): _take_statement(mode, one_sender=one) for mode in ReadMode for one in (False, True)}
_TAKE_RESPONSE: Final = (
    "SELECT priority, message_id, length(message) FROM messages WHERE queue_id = :queue_id "  # noqa: S608 - constants only
    f"AND coalesce(receiver_id, 0) = :client_id AND context = :context AND state = 0 AND {_UNEXPIRED} "
    "ORDER BY message_id LIMIT :limit"
)
_PUT: Final = (
    "INSERT INTO messages (queue_id, sender_id, receiver_id, context, priority, time_of_arrival, message, state, key, "
    "attributes, due, expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class SqliteQueueStorage:
    """See `QueueStorage`."""

    def __init__(self, path: Path | str, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._writer = SqliteWriter(Path(path))
        self._clock_ms = clock_ms

    async def open(self) -> None:
        await self._writer.open()

    async def close(self) -> None:
        await self._writer.close()

    def on_visible(self, callback: VisibleCallback) -> None:
        """Nothing to report: the database belongs to this process."""

    async def watch(self, _queue_id: int) -> None:
        return

    async def unwatch(self, _queue_id: int) -> None:
        return

    # clients

    async def request_id(self, name: str, mode: ClientMode, key: bytes | None = None) -> Client:
        def work(db: sqlite3.Connection) -> Client:
            try:
                cursor = db.execute(
                    "INSERT INTO clients (client_name, client_mode, client_key) VALUES (?, ?, ?)", (name, int(mode), key)
                )
            except sqlite3.IntegrityError as error:
                row = db.execute("SELECT client_id FROM clients WHERE client_name = ? AND client_key = ?", (name, key)).fetchone()
                if row is None:
                    raise NameTakenError(f"a client named {name!r} exists already") from error
                return Client(row[0], name, mode)
            return Client(_last_id(cursor), name, mode)

        return await self._writer.run(work)

    async def identify(self, client_id: int) -> Client:
        def work(db: sqlite3.Connection) -> Client:
            row = db.execute(
                "SELECT client_id, client_name, client_mode FROM clients WHERE client_id = ?", (client_id,)
            ).fetchone()
            if row is None:
                raise UnknownClientError(f"no client has the id {client_id}")
            return Client(row[0], row[1], ClientMode(row[2]))

        return await self._writer.run(work)

    async def find_client(self, name: str) -> Client:
        def work(db: sqlite3.Connection) -> Client:
            row = db.execute("SELECT client_id, client_mode FROM clients WHERE client_name = ?", (name,)).fetchone()
            if row is None:
                raise UnknownClientError(f"no client is named {name!r}")
            return Client(row[0], name, ClientMode(row[1]))

        return await self._writer.run(work)

    async def delete_client(self, client_id: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            if db.execute("DELETE FROM clients WHERE client_id = ?", (client_id,)).rowcount == 0:
                raise UnknownClientError(f"no client has the id {client_id}")

        await self._writer.run(work)

    # queues

    async def create_queue(self, name: str, settings: QueueSettings = QueueSettings()) -> Queue:  # noqa: B008 - frozen
        def work(db: sqlite3.Connection) -> Queue:
            if settings.dead_letter_id is not None:
                _get_queue(db, settings.dead_letter_id)
            try:
                cursor = db.execute(
                    "INSERT INTO queues (queue_name, lease_ms, max_deliveries, dead_letter_id) VALUES (?, ?, ?, ?)",
                    (name, settings.lease_ms, settings.max_deliveries, settings.dead_letter_id),
                )
            except sqlite3.IntegrityError as error:
                raise NameTakenError(f"a queue named {name!r} exists already") from error
            return _get_queue(db, _last_id(cursor))

        return await self._writer.run(work)

    async def delete_queue(self, queue_id: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            _get_queue(db, queue_id)
            db.execute("DELETE FROM queues WHERE queue_id = ?", (queue_id,))
            db.execute("DELETE FROM messages WHERE queue_id = ?", (queue_id,))
            db.execute("DELETE FROM keys WHERE queue_id = ?", (queue_id,))
            db.execute(
                "DELETE FROM cursors WHERE binding_id IN (SELECT binding_id FROM bindings WHERE queue_id = ?)", (queue_id,)
            )
            db.execute("DELETE FROM bindings WHERE queue_id = ?", (queue_id,))

        await self._writer.run(work)

    async def get_queue_id(self, name: str) -> Queue:
        def work(db: sqlite3.Connection) -> Queue:
            row = db.execute(f"{_QUEUE} WHERE queue_name = ?", (name,)).fetchone()
            if row is None:
                raise UnknownQueueError(f"no queue is named {name!r}")
            return _queue(row)

        return await self._writer.run(work)

    async def get_queue_name(self, queue_id: int) -> Queue:
        return await self._writer.run(lambda db: _get_queue(db, queue_id))

    async def list_queues(self, *, after: int = 0, limit: int) -> list[Queue]:
        statement = f"{_QUEUE} WHERE queue_id > ? ORDER BY queue_id LIMIT ?"
        return await self._writer.run(lambda db: [_queue(r) for r in db.execute(statement, (after, limit))])

    async def get_active_queues(self, client_id: int, *, after: int = 0, limit: int) -> list[Queue]:
        waiting = (
            "EXISTS (SELECT 1 FROM messages m WHERE m.queue_id = queues.queue_id "
            "AND coalesce(m.receiver_id, 0) = {} AND m.state = 0 AND {})"
        )
        mine, anybody = waiting.format(":client_id", _UNEXPIRED), waiting.format("0", _UNEXPIRED)
        statement = f"{_QUEUE} WHERE queue_id > :after AND ({mine} OR {anybody}) ORDER BY queue_id LIMIT :limit"
        values = {"client_id": client_id, "after": after, "limit": limit, "now": self._clock_ms()}
        return await self._writer.run(lambda db: [_queue(r) for r in db.execute(statement, values)])

    async def configure_queue(self, queue_id: int, settings: QueueSettings) -> Queue:
        def work(db: sqlite3.Connection) -> Queue:
            if settings.dead_letter_id is not None:
                _get_queue(db, settings.dead_letter_id)
            db.execute(
                "UPDATE queues SET lease_ms = ?, max_deliveries = ?, dead_letter_id = ? WHERE queue_id = ?",
                (settings.lease_ms, settings.max_deliveries, settings.dead_letter_id, queue_id),
            )
            return _get_queue(db, queue_id)

        return await self._writer.run(work)

    async def get_messages_from_queue(self, queue_id: int, *, after: int = 0, limit: int, bytes_max: int) -> list[Message]:
        now = self._clock_ms()

        def work(db: sqlite3.Connection) -> list[Message]:
            _get_queue(db, queue_id)
            rows = db.execute(
                f"SELECT {_MESSAGE} FROM messages WHERE queue_id = :queue_id AND message_id > :after "  # noqa: S608 - constants only
                f"AND (state = 2 OR {_UNEXPIRED}) ORDER BY message_id LIMIT :limit",
                {"queue_id": queue_id, "after": after, "limit": limit, "now": now},
            )
            page: list[Message] = []
            total = 0
            for row in rows:
                total += len(row[7])
                if page and total > bytes_max:
                    break
                page.append(_message(row))
            return page

        return await self._writer.run(work)

    # messages

    async def put(self, rows: Sequence[NewMessage]) -> list[PutResult]:
        now = self._clock_ms()
        return await self._writer.run(lambda db: _put_all(db, rows, now))

    async def take(self, request: TakeRequest) -> list[Message]:
        now = self._clock_ms()
        return await self._writer.run(lambda db: _take(db, request, now))

    async def done(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        statement = "DELETE FROM messages WHERE message_id = ? AND queue_id = ? AND state = 2 AND delivery = ? AND leased_by = ?"

        def change(db: sqlite3.Connection, lease: Lease) -> bool:
            return db.execute(statement, (lease.message_id, lease.queue_id, lease.delivery, lease.client_id)).rowcount > 0

        return await self._on_leases(leases, change)

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0, undelivered: bool = False) -> list[LeaseStatus]:
        now = self._clock_ms()

        def change(db: sqlite3.Connection, lease: Lease) -> bool:
            if not _is_held(db, lease):
                return False
            _give_back(db, lease.message_id, now, delay_ms=delay_ms, spend=not undelivered)
            return True

        return await self._on_leases(leases, change)

    async def extend(self, leases: Sequence[Lease], *, lease_ms: int) -> list[LeaseStatus]:
        due = self._clock_ms() + lease_ms

        def change(db: sqlite3.Connection, lease: Lease) -> bool:
            held = _is_held(db, lease)
            if held:
                db.execute("UPDATE messages SET due = ? WHERE message_id = ?", (due, lease.message_id))
            return held

        return await self._on_leases(leases, change)

    async def _on_leases(self, leases: Sequence[Lease], change: Callable[[sqlite3.Connection, Lease], bool]) -> list[LeaseStatus]:
        def work(db: sqlite3.Connection) -> list[LeaseStatus]:
            return [LeaseStatus.HELD if change(db, lease) else _not_held(db, lease) for lease in leases]

        return await self._writer.run(work)

    # the clockwork

    async def promote(self, *, rows_max: int = PROMOTE_ROWS_MAX) -> Promotion:
        now = self._clock_ms()
        return await self._writer.run(lambda db: _promote(db, now, rows_max))

    async def forget_keys(self, *, older_than_ms: int, rows_max: int = PROMOTE_ROWS_MAX) -> int:
        values = (self._clock_ms() - older_than_ms, rows_max)

        def work(db: sqlite3.Connection) -> int:
            old = db.execute(
                "SELECT queue_id, sender_id, key FROM keys WHERE put_at < ? ORDER BY put_at LIMIT ?", values
            ).fetchall()
            db.executemany("DELETE FROM keys WHERE queue_id = ? AND sender_id = ? AND key = ?", old)
            return len(old)

        return await self._writer.run(work)

    async def depth(self, queue_id: int) -> QueueDepth:
        now = self._clock_ms()

        def work(db: sqlite3.Connection) -> QueueDepth:
            _get_queue(db, queue_id)
            rows = db.execute(
                "SELECT state, count(*), min(time_of_arrival) FROM messages WHERE queue_id = ? GROUP BY state", (queue_id,)
            )
            found = {State(state): (count, oldest) for state, count, oldest in rows}
            waiting, scheduled, leased = (found.get(s, (0, None))[0] for s in (State.WAITING, State.SCHEDULED, State.LEASED))
            oldest = found.get(State.WAITING, (0, None))[1]
            return QueueDepth(waiting, scheduled, leased, None if oldest is None else max(0, now - oldest))

        return await self._writer.run(work)

    async def depth_by_priority(self, queue_id: int) -> dict[int, int]:
        def work(db: sqlite3.Connection) -> dict[int, int]:
            _get_queue(db, queue_id)
            counts = "SELECT priority, count(*) FROM messages WHERE queue_id = ? AND state = ? GROUP BY priority"
            return dict(db.execute(counts, (queue_id, State.WAITING)).fetchall())

        return await self._writer.run(work)

    # bound queues

    async def bind(self, queue_id: int, filter_text: str, *, priority: int = 5) -> Binding:
        def work(db: sqlite3.Connection) -> Binding:
            _get_queue(db, queue_id)
            values = (queue_id, filter_text, priority)
            cursor = db.execute("INSERT INTO bindings (queue_id, filter_text, priority) VALUES (?, ?, ?)", values)
            return Binding(_last_id(cursor), *values)

        return await self._writer.run(work)

    async def unbind(self, binding_id: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            _get_binding(db, binding_id)
            db.execute("DELETE FROM cursors WHERE binding_id = ?", (binding_id,))
            db.execute("DELETE FROM bindings WHERE binding_id = ?", (binding_id,))

        await self._writer.run(work)

    async def bindings(self) -> list[Binding]:
        statement = "SELECT binding_id, queue_id, filter_text, priority FROM bindings ORDER BY binding_id"
        return await self._writer.run(lambda db: [Binding(*row) for row in db.execute(statement)])

    async def claim(self, binding_id: int, *, for_ms: int) -> bool:  # noqa: ARG002 - there is no other process
        await self._writer.run(lambda db: _get_binding(db, binding_id))
        return True

    async def cursors(self, binding_id: int) -> dict[int, int]:
        def work(db: sqlite3.Connection) -> dict[int, int]:
            _get_binding(db, binding_id)
            return dict(
                db.execute("SELECT pubend, tick FROM cursors WHERE binding_id = ? ORDER BY pubend", (binding_id,)).fetchall()
            )

        return await self._writer.run(work)

    async def feed(self, binding_id: int, pubend: int, upto: int, rows: Sequence[FeedRow]) -> int:
        now = self._clock_ms()

        def work(db: sqlite3.Connection) -> int:
            binding = _get_binding(db, binding_id)
            row = db.execute("SELECT tick FROM cursors WHERE binding_id = ? AND pubend = ?", (binding_id, pubend)).fetchone()
            cursor = -1 if row is None else row[0]
            results = _put_all(db, [new_message(binding, r) for r in rows if cursor < r.tick <= upto], now)
            db.execute(
                "INSERT OR REPLACE INTO cursors (binding_id, pubend, tick) VALUES (?, ?, ?)",
                (binding_id, pubend, max(cursor, upto)),
            )
            return sum(not r.duplicate for r in results)

        return await self._writer.run(work)


# What runs in the writer thread.


def _put_all(db: sqlite3.Connection, rows: Sequence[NewMessage], now: int) -> list[PutResult]:
    exists = {
        q: db.execute("SELECT 1 FROM queues WHERE queue_id = ?", (q,)).fetchone() for q in sorted({r.queue_id for r in rows})
    }
    return [_put(db, row, now) if exists[row.queue_id] else PutResult(None) for row in rows]


def _put(db: sqlite3.Connection, new: NewMessage, now: int) -> PutResult:
    if new.key is not None:
        identity = (new.queue_id, new.sender_id, new.key)
        known = db.execute("SELECT message_id FROM keys WHERE queue_id = ? AND sender_id = ? AND key = ?", identity).fetchone()
        if known is not None:
            return PutResult(known[0], duplicate=True)
    values = (
        new.queue_id,
        new.sender_id,
        new.receiver_id,
        new.context,
        new.priority,
        now,
        new.payload,
        int(State.SCHEDULED if new.delay_ms else State.WAITING),
        new.key,
        new.attributes,
        now + new.delay_ms if new.delay_ms else None,
        None if new.ttl_ms is None else now + new.ttl_ms,
    )
    message_id = _last_id(db.execute(_PUT, values))
    if new.key is not None:
        db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", (new.queue_id, new.sender_id, new.key, message_id, now))
    if new.lease_to is not None:
        lease_ms = _get_queue(db, new.queue_id).settings.lease_ms if new.lease_ms is None else new.lease_ms
        _hand_over(db, message_id, new.lease_to, lease_ms, now)
    return PutResult(message_id, time_of_arrival_ms=now)


def _take(db: sqlite3.Connection, request: TakeRequest, now: int) -> list[Message]:
    queue = _get_queue(db, request.queue_id)
    lease_ms = queue.settings.lease_ms if request.lease_ms is None else request.lease_ms
    values = {
        "queue_id": request.queue_id,
        "client_id": request.client_id,
        "sender_id": request.sender_id,
        "context": request.context,
        "limit": request.limit,
        "now": now,
    }
    statement = _TAKE_RESPONSE if request.context is not None else _TAKES[request.mode, request.sender_id is not None]
    taken: list[Message] = []
    total = 0
    for _, message_id, size in db.execute(statement, values).fetchall():
        total += size
        if taken and total > request.bytes_max:
            break
        taken.append(_hand_over(db, message_id, request.client_id, lease_ms, now))
    return taken


def _hand_over(db: sqlite3.Connection, message_id: int, client_id: int, lease_ms: int, now: int) -> Message:
    row = db.execute(
        "UPDATE messages SET state = 2, delivery = delivery + 1, leased_by = ?, due = ? WHERE message_id = ? "  # noqa: S608 - constants only
        f"RETURNING {_MESSAGE}",
        (client_id, now + lease_ms, message_id),
    ).fetchall()[0]
    if lease_ms == 0:
        db.execute("DELETE FROM messages WHERE message_id = ?", (message_id,))
    return _message(row)


def _is_held(db: sqlite3.Connection, lease: Lease) -> bool:
    statement = "SELECT 1 FROM messages WHERE message_id = ? AND queue_id = ? AND state = 2 AND delivery = ? AND leased_by = ?"
    return db.execute(statement, (lease.message_id, lease.queue_id, lease.delivery, lease.client_id)).fetchone() is not None


def _not_held(db: sqlite3.Connection, lease: Lease) -> LeaseStatus:
    row = db.execute("SELECT 1 FROM messages WHERE message_id = ?", (lease.message_id,)).fetchone()
    return LeaseStatus.ABSENT if row is None else LeaseStatus.LOST


def _give_back(db: sqlite3.Connection, message_id: int, now: int, *, delay_ms: int, spend: bool) -> tuple[int, bool]:
    """Return the queue the message is in now, and whether it went to the dead letters."""
    queue_id, state, delivery, limit, target = db.execute(
        "SELECT m.queue_id, m.state, m.delivery, q.max_deliveries, d.queue_id "
        "FROM messages m JOIN queues q ON q.queue_id = m.queue_id "
        "LEFT JOIN queues d ON d.queue_id = q.dead_letter_id WHERE m.message_id = ?",
        (message_id,),
    ).fetchone()
    if spend and target is not None and state == State.LEASED and 0 < limit <= delivery:
        db.execute(
            "UPDATE messages SET queue_id = ?, origin_queue_id = ?, state = 0, leased_by = NULL, due = NULL, expires = NULL "
            "WHERE message_id = ?",
            (target, queue_id, message_id),
        )
        return target, True
    back = (int(State.SCHEDULED if delay_ms else State.WAITING), now + delay_ms if delay_ms else None, message_id)
    db.execute("UPDATE messages SET state = ?, due = ?, leased_by = NULL WHERE message_id = ?", back)
    return queue_id, False


def _promote(db: sqlite3.Connection, now: int, rows_max: int) -> Promotion:
    visible, dead = Counter[int](), 0
    due = db.execute("SELECT message_id FROM messages WHERE due <= ? ORDER BY due LIMIT ?", (now, rows_max)).fetchall()
    for (message_id,) in due:
        queue_id, died = _give_back(db, message_id, now, delay_ms=0, spend=True)
        visible[queue_id] += 1
        dead += died
    expired = db.execute(
        "DELETE FROM messages WHERE message_id IN "
        "(SELECT message_id FROM messages WHERE expires <= ? AND state <> 2 ORDER BY expires LIMIT ?)",
        (now, rows_max),
    ).rowcount
    first = [
        db.execute("SELECT due FROM messages WHERE due IS NOT NULL ORDER BY due LIMIT 1").fetchone(),
        db.execute("SELECT expires FROM messages WHERE expires IS NOT NULL AND state <> 2 ORDER BY expires LIMIT 1").fetchone(),
    ]
    times = [row[0] for row in first if row is not None]
    return Promotion(visible, dead, expired, max(0, min(times) - now) if times else None)


def _get_queue(db: sqlite3.Connection, queue_id: int) -> Queue:
    row = db.execute(f"{_QUEUE} WHERE queue_id = ?", (queue_id,)).fetchone()
    if row is None:
        raise UnknownQueueError(f"no queue has the id {queue_id}")
    return _queue(row)


def _get_binding(db: sqlite3.Connection, binding_id: int) -> Binding:
    statement = "SELECT binding_id, queue_id, filter_text, priority FROM bindings WHERE binding_id = ?"
    row = db.execute(statement, (binding_id,)).fetchone()
    if row is None:
        raise UnknownBindingError(f"no binding has the id {binding_id}")
    return Binding(*row)


def _queue(row: Any) -> Queue:
    return Queue(row[0], row[1], QueueSettings(row[2], row[3], row[4]))


def _message(row: Any) -> Message:
    (
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


def _last_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid
