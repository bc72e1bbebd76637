"""Subscribing, as an application sees it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, overload

from postroad.client.acknowledging import Acknowledgements, GivenBatch
from postroad.client.handlers import as_coroutine, run_handlers
from postroad.client.positions import save_positions
from postroad.core.batch import message as core
from postroad.core.batch.batch import Batch
from postroad.core.batch.message import RowColumns
from postroad.errors import ClosedError, GapError, PostroadError, UnfinishedError

if TYPE_CHECKING:
    from postroad.client.connection import Client

log = logging.getLogger("postroad.client")

OnGap: TypeAlias = Literal["raise", "skip"] | Callable[[GapError], None]

IDLE_SAVE_S: Final = 5.0
FLOOD_BYTES: Final = 128 << 20  # beyond its bound, before we give the broker up: more than can be on its way
STORE_S: Final = 10.0  # how long the end of `run` waits until the last acknowledgements are stored
AUTO_ACK_S: Final = 0.5  # how far behind acknowledgements may be that nobody asked for


class Message(core.Message):
    """A message that a subscription received.

    ```python
    subscription = await client.subscribe("symbol = 'ACME'")
    await client.publish({"symbol": "ACME", "price": 101.5}, json={"note": "up"})
    async for message in subscription:
        print(message.id, message.time, message["price"], message.attributes, message.json())
        await message.ack()
        break
    ```
    """

    __slots__ = ("_given",)

    def __init__(self, columns: RowColumns, row: int, given: GivenBatch) -> None:
        self._columns = columns  # as the base does, without the call: there is one of these for every message
        self._row = row
        self._attributes = None
        self._given = given

    @property
    def pubend(self) -> int:
        """The stream it came from: messages of one stream come in order."""
        return self._given.pubend

    async def ack(self, *, wait: bool = True) -> None:
        """Say that this message is done with, so that it does not come again.

        Messages may be acknowledged in any order. When this returns, the acknowledgement is stored, unless a message before it in
        its stream is not acknowledged yet: then it is noted, and stored together with that one. A crash before that repeats it.
        `wait=False` does not wait for the broker. A subscription without a name or a position file acknowledges by itself.
        """
        await self._given.subscription._ack_one(self, self._given, self._row, wait=wait)


@dataclass(frozen=True, slots=True)
class _Arrived:
    pubend: int
    batch: Batch
    size: int


class Subscription:
    """Made by `Client.subscribe`. Iterate over it for messages, or over `batches()` for columns; not both at a time.

    ```python
    async with await client.subscribe("symbol = 'ACME'", name="my-ticker") as quotes:
        first = await quotes.get(timeout=1)  # None after a second
        several = await quotes.fetch(100, timeout=1)  # what came, at most 100
        await quotes.run(handle, concurrency=8)  # until it is cancelled
    ```

    Messages of one pubend come in order, each once. `ack()` says that the application has done with all it was given; what is not
    acknowledged comes again after a crash of the client, if the subscription has a name or a position file. What `ack()` has
    returned for is stored and never comes again. A subscription without a name or a file acknowledges by itself.
    """

    def __init__(
        self,
        client: Client,
        key: int,
        filter_text: str,
        *,
        name: str | None,
        position_file: Path | None,
        on_gap: OnGap,
        auto_ack: bool,
        receive_bytes: int,
        begun_at: tuple[int, Mapping[int, int]] = (0, {}),  # the tick of a start at a time, and where it is in each stream
    ) -> None:
        self.filter: Final = filter_text
        self.name: Final = name
        self.starts: dict[int, int] = {}
        self._client: Final = client
        self._key: Final = key
        self._file: Final = position_file
        self._on_gap: Final = on_gap
        self._auto_ack: Final = auto_ack
        self._receive_bytes: Final = receive_bytes
        self._buffered = 0  # bytes received and not finished by the application
        self._open = True
        self._not_before, self._begun_at = begun_at
        self._acknowledgements: Final = Acknowledgements()
        self._taking: Final = asyncio.Lock()
        self._waiting: deque[_Arrived | GapError] = deque()
        self._arrived: Final = asyncio.Event()
        self._active: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._ended: Final = asyncio.Event()
        self._stored: Final = asyncio.Event()  # set when the broker confirmed acknowledgements, and when it never will
        self._failure: Exception | None = None
        self._not_deleted: Exception | None = None
        self._current: Iterator[Message] = iter(())
        self._current_arrived: _Arrived | None = None
        self._given: dict[int, int] = {}  # pubend -> tick of the last message of the batches the application has finished
        self._last: Message | None = None  # what the application got last of the present batch
        self._saved: dict[int, int] = {}
        self._saver: asyncio.Task[None] | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._save_lock: Final = asyncio.Lock()

    # --- receiving -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = next(self._current, None)
        while message is None:
            self._release_current()
            arrived = await self._next()
            self._current_arrived = arrived
            rows, given = arrived.batch.rows(), self._find_given(arrived)
            if not self._auto_ack:
                self._acknowledgements.begin(given)
            self._current = iter([Message(rows, row, given) for row in range(len(arrived.batch))])
            message = next(self._current, None)
        self._last = message
        return message

    @overload
    async def get(self) -> Message: ...

    @overload
    async def get(self, timeout: float | None) -> Message | None: ...

    async def get(self, timeout: float | None = None) -> Message | None:
        """Return the next message; with a `timeout`, None when none comes within so many seconds.

        Raises `ClosedError` when the subscription has ended.
        """
        try:
            async with asyncio.timeout(timeout), self._taking:
                return await self.__anext__()
        except TimeoutError:
            return None
        except StopAsyncIteration:
            raise ClosedError("the subscription has ended") from None

    async def fetch(self, limit: int, *, timeout: float | None = None) -> list[Message]:
        """Wait for a message, at most `timeout` seconds, and return it with the others that are here, at most `limit`."""
        first = await self.get(timeout)
        found = [] if first is None else [first]
        while found and len(found) < limit and self.waiting:
            found.append(await self.__anext__())
        return found

    async def run(self, handler: Callable[[Message], Any], *, concurrency: int = 8) -> None:
        """Call a handler with each message, `concurrency` at a time, and acknowledge a message when its handler returns.

        A handler is a coroutine function, or a plain function, which runs in a thread. With `concurrency=1` messages are handled
        in order. When a handler raises, no more messages are taken, the handlers that have begun finish, and the error is raised;
        its message is not acknowledged. When `run` is cancelled, the handlers that have begun finish first as well.
        """
        call = as_coroutine(handler)

        async def take() -> Message:
            async with self._taking:
                return await self.__anext__()

        async def handle(message: Message) -> None:
            await call(message)
            await message.ack(wait=False)

        try:
            await run_handlers(take, handle, concurrency)
        finally:
            await self._store_acknowledged()

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield the messages as batches: columns `tick`, `id`, `payload` and one per attribute."""
        async for _, batch in self.deliveries():
            yield batch

    async def deliveries(self) -> AsyncIterator[tuple[int, Batch]]:
        """Yield batches, each with the pubend whose stream it is a stretch of."""
        while True:
            self._release_current()
            try:
                arrived = await self._next()
            except StopAsyncIteration:
                return
            self._current_arrived = arrived
            self._last = Message(arrived.batch.rows(), len(arrived.batch) - 1, self._find_given(arrived))
            yield arrived.pubend, arrived.batch

    async def _next(self) -> _Arrived:
        while True:
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, _Arrived):
                    return item
                self._tell_gap(item)
            if self._failure is not None:
                raise self._failure
            if self._ended.is_set():
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    def _find_given(self, arrived: _Arrived) -> GivenBatch:
        return GivenBatch(self, arrived.pubend, len(arrived.batch), arrived.batch.last_tick)

    def _tell_gap(self, gap: GapError) -> None:
        if self._on_gap == "raise":
            raise gap
        if callable(self._on_gap):
            self._on_gap(gap)

    def _release_current(self) -> None:
        """Give back the room of what the application has finished, and acknowledge it when that is our task."""
        arrived = self._current_arrived
        if arrived is None:
            return
        self._current_arrived = self._last = None
        self._given[arrived.pubend] = arrived.batch.last_tick
        self._buffered -= arrived.size
        if not self._open and self._buffered <= self._receive_bytes // 2:
            self._open = True
            self._client._flow(self._key, is_open=True)
        if self._auto_ack and self._ack_timer is None:
            self._ack_timer = asyncio.get_running_loop().call_later(AUTO_ACK_S, self._ack_by_itself)

    def _ack_by_itself(self) -> None:
        self._ack_timer = None
        self._acknowledge(self._given)

    # --- acknowledging ---------------------------------------------------------------------------------------------------

    async def ack(self, message: Message | None = None, *, wait: bool = True) -> None:
        """Say that everything given so far is done with, or everything of its pubend up to one message.

        When this returns, the acknowledgement is stored: with a position file in the file, else, if the subscription has a
        name, on the disk of its broker. After a crash of the client or the broker nothing acknowledged comes again. Without
        a connection it waits for one. It also waits while a subscription that came to another broker cannot be settled there,
        because the broker it came from, or one whose messages it gets, is down. Use `asyncio.timeout` to wait no longer than
        you like; the acknowledgement is not lost by that.

        Acknowledgements are cumulative and many are stored with one write, so acknowledge now and then rather than after each
        message. With `wait=False` a subscription with a name does not wait for its broker: the acknowledgement is sent and
        stored within about a second, and after a crash before that the messages come again.
        """
        ticks = dict(self._given) if message is None else {}
        if message is None:
            message = self._last
        if message is not None:
            ticks[message.pubend] = message.tick
            self._acknowledgements.finish_through(ticks, message._given, message._row)  # its own
        else:
            self._acknowledgements.finish_through(ticks)
        confirm = wait and self.name is not None and self._file is None
        self._acknowledge(ticks, confirm=confirm)
        if self._file is not None:
            await self._save()
        elif confirm:
            await self._wait_stored(ticks)

    async def _ack_one(self, message: Message, given: GivenBatch, row: int, *, wait: bool) -> None:
        """Do what `Message.ack` says."""
        if self._auto_ack:
            return
        reached = self._acknowledgements.finish(given, row, message.tick)
        if reached is None:
            return
        ticks = {given.pubend: reached}
        confirm = wait and self.name is not None and self._file is None
        self._acknowledge(ticks, confirm=confirm)
        if wait and self._file is not None:
            await self._save()
        elif confirm:
            await self._wait_stored(ticks)

    async def _store_acknowledged(self) -> None:
        """Wait a moment until what was acknowledged without waiting is stored."""
        if self._auto_ack or self._failure is not None or self._ended.is_set():
            return
        try:
            async with asyncio.timeout(STORE_S):
                if self._file is not None:
                    await self._save()
                elif self.name is not None:
                    positions = self.positions()
                    self._acknowledge(positions, confirm=True)
                    await self._wait_stored(positions)
        except (TimeoutError, PostroadError) as error:
            log.warning(
                "the last acknowledgements of %r may not be stored: %s", self.name, str(error) or f"no answer in {STORE_S:g} s"
            )

    def _acknowledge(self, ticks: dict[int, int], *, confirm: bool = False) -> None:
        session = self._client.session
        if self._key in session.subscriptions:
            for pubend, tick in ticks.items():
                session.acknowledge(self._key, pubend, tick, confirm=confirm)
            self._client._plan_pump()

    async def _wait_stored(self, ticks: dict[int, int]) -> None:
        while not self._client.session.is_stored(self._key, ticks):
            if self._failure is not None:
                raise self._failure
            if self._ended.is_set():
                raise ClosedError("the subscription ended before its broker confirmed the acknowledgement")
            self._stored.clear()
            await self._stored.wait()

    async def _save(self) -> None:
        assert self._file is not None
        async with self._save_lock:
            positions = self.positions()
            if positions != self._saved:
                await asyncio.to_thread(save_positions, self._file, self.filter, positions)
                self._saved = positions
                self._client.session.approve(self._key, positions)
                self._client._plan_pump()

    @property
    def waiting(self) -> bool:
        """Whether more messages have been received than the application has taken."""
        return bool(self._waiting) or length_hint(self._current) > 0

    def positions(self) -> dict[int, int]:
        """Return where a new subscription should go on: per pubend, the tick up to which all is acknowledged."""
        session = self._client.session
        return session.positions(self._key) if self._key in session.subscriptions else dict(self._saved)

    async def _save_when_idle(self) -> None:
        """Follow the silence in the file, so that the logs need not be kept for messages that do not match."""
        while True:
            await asyncio.sleep(IDLE_SAVE_S)
            await self._save()

    # --- the end ---------------------------------------------------------------------------------------------------------

    async def close(self, *, forget: bool = False) -> None:
        """End the subscription. One with a name waits for its client; `forget` deletes it.

        With `forget`, an error says that no broker confirmed the deletion: then the subscription may go on to exist.
        """
        if self._ack_timer is not None:
            self._acknowledge(self._given)
        self._stop()
        if self._file is not None and self._failure is None and not self._ended.is_set():
            await self._save()
        await self._client._end_subscription(self._key, forget=forget, ended=self._ended)
        self._drop(ClosedError("the subscription was closed"))
        if forget and self.name is not None and not self._ended.is_set():
            raise UnfinishedError(f"no broker confirmed in time that {self.name!r} is deleted; delete it again later")
        if self._not_deleted is not None:
            raise self._not_deleted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the client's calls ----------------------------------------------------------------------------------------------

    async def _wait_active(self) -> None:
        await self._active
        if self._file is not None:
            await self._save()
            self._saver = asyncio.get_running_loop().create_task(self._save_when_idle())

    def _activate(self, starts: dict[int, int]) -> None:
        for pubend, tick in starts.items():
            self.starts.setdefault(pubend, tick)
        if not self._active.done():
            self._active.set_result(None)

    def _take_joined(self, pubend: int, tick: int) -> None:
        self.starts.setdefault(pubend, tick)

    def _queue_rows(self, pubend: int, batch: Batch, size: int) -> None:
        if self._not_before:
            later = self._cut_early(pubend, batch)
            if later is None:
                return
            batch = later
        self._waiting.append(_Arrived(pubend, batch, size))
        self._arrived.set()
        self._buffered += size
        if self._open and self._buffered > self._receive_bytes:
            self._open = False
            self._client._flow(self._key, is_open=False)
        elif self._buffered > self._receive_bytes + FLOOD_BYTES:
            self._client._give_up_flooding(self._buffered)

    def _cut_early(self, pubend: int, batch: Batch) -> Batch | None:
        """Leave out what was published before the start that was asked for: such messages are done with."""
        if batch.ticks()[0] > self._not_before:
            return batch
        if batch.last_tick > self._not_before:
            return batch.within(self._not_before, batch.last_tick)
        if not self._auto_ack:
            self._acknowledge({pubend: batch.last_tick})
        return None

    def _acknowledgement_stored(self) -> None:
        self._stored.set()

    def _queue_gap(self, gap: GapError) -> None:
        if self._begun_at.get(gap.pubend) == gap.lo:
            return  # what was asked for begins before the oldest message: begin with that one
        self._waiting.append(gap)
        self._arrived.set()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if not self._active.done():
            self._active.set_exception(error)
            self._active.exception()  # nobody may be waiting for it
        self._arrived.set()
        self._ended.set()
        self._stored.set()

    def _take_end(self, error: Exception | None = None) -> None:
        """Take note of the end, and why it is not certain that a durable subscription is deleted, where that was asked."""
        self._not_deleted = error
        self._ended.set()
        self._arrived.set()
        self._stored.set()

    def _stop(self) -> None:
        """End what runs in the background."""
        if self._saver is not None:
            self._saver.cancel()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def _drop(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stored.set()
        self._current_arrived = self._last = None
        self._buffered = 0
        self._waiting.clear()
        self._acknowledgements.clear()
        self._current = iter(())
