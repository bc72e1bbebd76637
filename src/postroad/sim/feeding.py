"""Bound queues: the product's own feeder, in the process of a simulated broker, and the database that survives it.

The feeder is written with asyncio. `WorldLoop` runs its tasks as events of the world, so that they are as repeatable as all else.
The database is a model: rows and cursor change together, at some moment between the call and its answer, and nothing of that is
lost. The overlay is read by a client of the broker itself, as `queues.broker_service` does it. A message counts as delivered
when it is in the queue.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from types import SimpleNamespace
from typing import Any, Final, cast

from postroad.core.batch.batch import Batch
from postroad.core.session.events import RowsDelivered
from postroad.queues.feeder import FedBatch, Feeder
from postroad.queues.service import QueueService
from postroad.sim import history as seen
from postroad.sim.brokers import BrokerNode, ids_of
from postroad.sim.clients import ClientNode, Habits
from postroad.sim.history import History
from postroad.sim.network import Network
from postroad.sim.world import World
from postroad.storage.queues.base import Binding, FeedRow

LOOK_S: Final = 0.5
CLAIM_MS: Final = 1_500
CALL_S_MAX: Final = 0.02  # each way


_AnyLoop: Any = asyncio.AbstractEventLoop  # most of its methods are left out: a feeder uses timers and tasks


class WorldLoop(_AnyLoop):  # type: ignore[misc]
    """Runs the tasks of one process as events of the world; while the process is paused they wait."""

    def __init__(self, world: World, paused_until: Callable[[], float]) -> None:
        self._world = world
        self._paused_until = paused_until
        self._failed: BaseException | None = None
        self._left: deque[asyncio.Handle] | None = None  # what still runs of a process that has ended

    def end(self, task: asyncio.Task[Any]) -> None:
        """End the process: cancel its task, and let nothing run but what that sets going."""
        self._left = deque()
        task.cancel()
        while self._left:
            self._run(self._left.popleft())

    def time(self) -> float:
        return self._world.now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_at(self._world.now, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self._left is None:
            self._world.at(when, self._run_later, handle)
        else:
            self._left.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **how: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **how)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed = context.get("exception") or RuntimeError(context.get("message"))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: its event finds out."""

    def _run_later(self, handle: asyncio.TimerHandle) -> None:
        if self._left is not None:
            return
        if self._world.now < self._paused_until():
            self._world.at(self._paused_until(), self._run_later, handle)
        else:
            self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        before = asyncio._get_running_loop()  # noqa: SLF001 - a loop of another kind has to be announced like that
        asyncio._set_running_loop(self)  # noqa: SLF001
        try:
            handle._run()  # noqa: SLF001
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001
        if self._failed is not None:
            raise self._failed


class QueueDatabase:
    """The tables of bindings and queues. Nothing of them is lost when a broker crashes."""

    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self.chance: Final[random.Random] = world.chance("queue database")
        self.bound: dict[int, Binding] = {}
        self.cursors: dict[int, dict[int, int]] = {}
        self.claims: dict[int, tuple[int, float]] = {}  # binding -> (broker, until when)
        self.fed = 0

    def bind(self, filter_text: str) -> Binding:
        number = len(self.cursors) + 1
        self.bound[number] = binding = Binding(number, number, filter_text, 5)
        self.cursors[number] = {}
        return binding

    def cursors_of(self, binding: int) -> dict[int, int]:
        return dict(self.cursors[binding])

    def put(self, binding: int, pubend: int, upto: int, rows: Sequence[FeedRow], messages: Mapping[int, Any]) -> int:
        """Put the rows above the cursor, and move it: one transaction."""
        cursor = self.cursors[binding].get(pubend, 0)
        fresh = [row for row in rows if row.tick > cursor]
        for row in fresh:
            event = seen.Delivered(
                self.world.now, queue_name(binding), pubend, row.tick, row.key, messages[row.tick], row.payload
            )
            self.history.add(event)
        if fresh:
            self.history.add(seen.Committed(self.world.now, queue_name(binding), pubend, upto))
        self.cursors[binding][pubend] = max(cursor, upto)
        self.fed += len(fresh)
        return len(fresh)


class _Storage:
    """The database as one broker calls it."""

    def __init__(self, database: QueueDatabase, broker: int, attributes: Mapping[tuple[int, int], Mapping[int, Any]]) -> None:
        self._database = database
        self._broker = broker
        self._attributes = attributes

    async def _on_the_way(self) -> None:
        await asyncio.sleep(self._database.chance.uniform(0.0, CALL_S_MAX))

    async def bindings(self) -> list[Binding]:
        await self._on_the_way()
        return list(self._database.bound.values())

    async def claim(self, binding_id: int, *, for_ms: int) -> bool:
        await self._on_the_way()
        now, (owner, until) = self._database.world.now, self._database.claims.get(binding_id, (0, 0.0))
        free = owner == self._broker or now >= until
        if free:
            self._database.claims[binding_id] = self._broker, now + for_ms / 1000
        await self._on_the_way()
        return free

    async def cursors(self, binding_id: int) -> dict[int, int]:
        await self._on_the_way()
        return self._database.cursors_of(binding_id)

    async def feed(self, binding_id: int, pubend: int, upto: int, rows: Sequence[FeedRow]) -> int:
        await self._on_the_way()
        put = self._database.put(binding_id, pubend, upto, rows, self._attributes[binding_id, pubend])
        await self._on_the_way()
        return put


class QueueClient(ClientNode):
    """The client with which a broker reads the overlay for a binding."""

    rows: asyncio.Queue[tuple[int, Batch]]

    def crash(self, *, lose_file: bool = False) -> None:
        """End with its connection. Nothing is forgotten: what is in the queue counts, and what is not comes again."""
        for following in self.following:
            following.ended = True
        super().crash(lose_file=lose_file)

    def _take_rows(self, event: RowsDelivered) -> None:
        following = self._following(event.subscription)
        if following is not None:
            self.history.add(seen.Arrived(self.world.now, *self._hearing, following.name or "", ids_of(event.batch)))
            self.rows.put_nowait((event.pubend, event.batch))

    def is_rejected(self) -> bool:
        return any(self._is_rejected(following) for following in self.following if not following.ended)

    def acknowledge(self, pubend: int, tick: int) -> None:
        """Tell the broker that rows are in the queue."""
        key = self.following[0].key
        if self.session is not None and key is not None and key in self.session.subscriptions:
            self.session.acknowledge(key, pubend, tick, confirm=False)
            self._act()


class FeederNode:
    """The feeder of one broker; it lives and dies with the broker."""

    def __init__(self, world: World, network: Network, history: History, node: BrokerNode, database: QueueDatabase) -> None:
        self._world = world
        self._network = network
        self._history = history
        self.node = node
        self._database = database
        self._lives = 0
        self._attributes: dict[tuple[int, int], dict[int, Any]] = {}  # (binding, pubend) -> tick -> attributes
        self.clients: dict[int, QueueClient] = {}  # by binding
        node.beside.append(self)
        self.start()

    def start(self) -> None:
        self._lives += 1
        self._loop = WorldLoop(self._world, lambda: self.node.paused_until)
        self._task: asyncio.Task[None] | None = None
        self._world.after(0.0, self._begin, self._lives)

    def stop(self) -> None:
        for client in self.clients.values():
            client.crash()
        self.clients.clear()
        if self._task is not None:
            self._loop.end(self._task)
            self._task = None

    def _begin(self, life: int) -> None:
        if life == self._lives and self.node.alive:
            self._task = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        storage = _Storage(self._database, self.node.broker, self._attributes)
        service = cast("QueueService", SimpleNamespace(storage=storage, fed=lambda _queue, _put: None))
        async with Feeder(service, self._stream, look_s=LOOK_S, claim_ms=CLAIM_MS):
            await self._loop.create_future()

    async def _stream(self, binding: Binding, cursors: Mapping[int, int]) -> AsyncGenerator[FedBatch, None]:
        number, name = binding.binding_id, queue_name(binding.binding_id)
        client = QueueClient(
            self._world,
            self._network,
            self._history,
            f"{name}@{self.node.broker}/{self._lives}/{int(self._world.now * 1000)}",
            [self.node],
            habits=Habits(keeps_file=False, confirms=False),
        )
        client.rows = asyncio.Queue()
        self.clients[number] = client
        following = client.follow(binding.filter_text, subscription=name, name=_durable(binding))
        following.saved = dict(cursors) or None
        # Where nothing was put yet the queue knows no place: it goes on where its home says.
        self._history.add(seen.Forgot(self._world.now, name, dict(cursors)))
        client.start()
        try:
            while True:
                pubend, batch = await client.rows.get()
                known = self._attributes.setdefault((number, pubend), {})
                rows = []
                for message in batch:
                    known[message.tick] = dict(message.attributes)
                    rows.append(FeedRow(message.tick, bytes(message.id), message.payload))
                upto = rows[-1].tick
                yield FedBatch(pubend, upto, rows)
                client.acknowledge(pubend, upto)
        finally:
            client.crash()
            if self.clients.get(number) is client:
                del self.clients[number]


def _durable(binding: Binding) -> str:
    return f"queue binding {binding.binding_id}"


def queue_name(binding: int) -> str:
    return f"queue{binding}"


class BoundQueues:
    """All bound queues of a run, and the feeders of its brokers."""

    def __init__(self, world: World, network: Network, history: History) -> None:
        self.database: Final = QueueDatabase(world, history)
        self.feeders: list[FeederNode] = []
        self._world, self._network, self._history = world, network, history

    def feed_from(self, node: BrokerNode) -> None:
        """Let a broker feed queues, one of all that do."""
        self.feeders.append(FeederNode(self._world, self._network, self._history, node, self.database))

    def move_from(self, node: BrokerNode, others: Iterable[BrokerNode]) -> None:
        """A broker is gone for good: if no other one feeds queues, let one of the others do so."""
        if self.feeders and all(feeder.node is node or feeder.node.retired for feeder in self.feeders):
            self.feed_from(next(iter(others)))

    def bind(self, filter_text: str) -> None:
        """Let a queue have what matches, from about now on."""
        binding = self.database.bind(filter_text)
        name = queue_name(binding.binding_id)
        self._world.note("bound", f"{name}: {filter_text}")
        self._history.add(seen.Asked(self._world.now, name, filter_text, durable=True, earliest=False, name=_durable(binding)))

    def give_up_rejected(self) -> None:
        """Unbind queues for whose subscription there is no room. Nobody deletes that, so its home goes on to hold the logs."""
        for feeder in self.feeders:
            for number, client in list(feeder.clients.items()):
                if client.is_rejected():
                    self.database.bound.pop(number, None)
                    self._history.add(seen.Ended(self._world.now, queue_name(number)))
                    client.crash()

    def open_ends(self, last: Mapping[int, int]) -> Iterator[str]:
        """Say which queues do not have everything yet."""
        for number in self.database.bound:
            clients = [client for feeder in self.feeders for each, client in feeder.clients.items() if each == number]
            if len(clients) != 1:
                yield f"{queue_name(number)} is fed by {len(clients)} brokers"
                continue
            yield from clients[0].open_ends(last)
            if not clients[0].rows.empty():
                yield f"{queue_name(number)} lacks what its feeder has got"

    def end(self) -> None:
        """End the feeders when the run is over: tasks that are only dropped complain."""
        for feeder in self.feeders:
            feeder.stop()

    def record_positions(self) -> None:
        for feeder in self.feeders:
            for client in feeder.clients.values():
                client.record_positions()
