"""Queues over the client's connection: declared on demand, worked with retries and dead letters, served, bound."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import postroad
import postroad.sync
from postroad.errors import (
    ClosedError,
    InvalidValueError,
    NoResponseError,
    QueueLimitError,
    QueueSettingsError,
    RequestFailedError,
)
from postroad.testing import broker
from postroad.wire.packets.queues import NewMessage

Scenario = Callable[[postroad.Client], Awaitable[None]]
NAMES = (f"queue {n}" for n in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One broker for the module: every test has queues of its own."""
    with broker(data_dir=tmp_path_factory.mktemp("broker")) as address:
        yield address


def run(url: str, scenario: Scenario, **how: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), postroad.connect(url, **how) as client:
            await scenario(client)

    asyncio.run(whole())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110  # the broker is asked
            await asyncio.sleep(0.01)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def drained(queue: postroad.WorkQueue) -> bool:
    stats = await queue.stats()
    return stats.waiting + stats.leased + stats.scheduled == 0


def test_a_queue_is_there_when_it_is_used_also_in_the_second_run(url: str) -> None:
    """The same name by the same program, again and again; attributes and JSON come out as they went in."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        jobs = client.queue(name)
        await jobs.put(json={"image": 17}, attributes={"kind": "resize", "size": 2.5, "raw": b"\0"})
        await jobs.put("later", delay=3600)
        first = await jobs.put("once", key="k", priority=1)
        assert await jobs.put("once", key="k", priority=1) == first
        assert await jobs.put_many([b"many"] * 3)
        async with await jobs.take() as delivery:
            assert delivery.json() == {"image": 17}
            assert delivery.attributes == {"content_type": "application/json", "kind": "resize", "size": 2.5, "raw": b"\0"}
        taken = await jobs.take_many(10, timeout=5)
        assert [each.payload for each in taken] == [b"many"] * 3 + [b"once"]
        for each in taken:
            await each.done()
        assert await jobs.take(timeout=0) is None
        assert [each.payload async for each in jobs.messages()] == [b"later"]
        await jobs.delete()

    for _ in range(2):
        run(url, scenario, name="worker")


def test_other_settings_than_those_of_the_queue_are_an_error(url: str) -> None:
    """The same settings are not, and none are never; a queue with a limit of deliveries has a dead-letter queue."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        await client.queue(name, lease=5, max_deliveries=3).declare()
        await client.queue(name, lease=5, max_deliveries=3).declare()
        await client.queue(name).put(b"x")
        assert (await client.queues.get_queue_by_name(name + ".dead")).queue_id
        for other in ({"lease": 6}, {"max_deliveries": 2}, {"max_deliveries": 3, "dead_letter": "elsewhere"}):
            with pytest.raises(QueueSettingsError, match="exists with"):
                await client.queue(name, **other).put(b"x")

    run(url, scenario)


def test_failed_messages_are_tried_again_then_become_dead_letters_and_can_be_redriven(url: str) -> None:
    """`retries` times after the first; the dead letter says why; redriven, it is worked like a new one."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        jobs = client.queue(name)
        tries: list[bytes] = []
        broken = True

        async def handler(delivery: postroad.Delivery) -> None:
            tries.append(delivery.payload)
            if delivery.payload == b"bad" and broken:
                raise ValueError("no such image")

        await jobs.put("bad", attributes={"n": 1})
        await jobs.put("good")
        task = asyncio.create_task(jobs.work(handler, retries=2, backoff=lambda attempt: 0.01 * attempt))
        await until(lambda: drained(jobs))
        assert sorted(tries) == [b"bad"] * 3 + [b"good"]
        (dead,) = [each async for each in jobs.dead.messages()]
        assert dead.attributes == {"n": 1, "error": "ValueError: no such image", "from_queue": name}
        await client.queue(name + ".dead").put("of another queue")
        broken = False
        assert await jobs.redrive() == 1
        await until(lambda: drained(jobs))
        assert tries[-1] == b"bad"
        assert [each.payload async for each in jobs.dead.messages()] == [b"of another queue"]
        await stop(task)

    run(url, scenario)


def test_a_message_that_ends_its_workers_becomes_a_dead_letter(url: str) -> None:
    """Its deliveries are counted by the service, so a worker that dies counts as well."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        jobs = client.queue(name)
        await jobs.put("poison")
        for _ in range(3):  # three workers that vanish
            delivery = await jobs.take(timeout=5)
            assert delivery is not None
            await delivery.release()

        async def never(_: postroad.Delivery) -> None:
            raise AssertionError

        task = asyncio.create_task(jobs.work(never, retries=2))
        await until(lambda: drained(jobs))
        (dead,) = [each async for each in jobs.dead.messages()]
        assert dead.attributes["error"] == "3 deliveries ended without an answer"
        await stop(task)

    run(url, scenario)


def test_a_lease_is_kept_while_the_handler_runs(url: str) -> None:
    """The handler takes several leases' time; nobody else gets the message."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        jobs = client.queue(name)
        await jobs.put("long")
        runs, finish = [], asyncio.Event()

        async def handler(delivery: postroad.Delivery) -> None:
            runs.append(delivery.delivery)
            await finish.wait()

        task = asyncio.create_task(jobs.work(handler, lease=0.3))
        await until(lambda: asyncio.sleep(0, bool(runs)))
        assert await jobs.take(timeout=1.2) is None
        finish.set()
        await until(lambda: drained(jobs))
        assert runs == [1]
        await stop(task)

    run(url, scenario)


def test_a_worker_that_is_cancelled_finishes_what_it_has_begun_and_keeps_nothing(url: str) -> None:
    """What was begun is done; what was not, another worker can take at once, also while a take was on its way."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        jobs = client.queue(name)
        await jobs.put_many(str(n) for n in range(5))
        begun, finish, done = asyncio.Semaphore(0), asyncio.Event(), []

        async def handler(delivery: postroad.Delivery) -> None:
            begun.release()
            await finish.wait()
            done.append(delivery.payload)

        task = asyncio.create_task(jobs.work(handler, concurrency=2))
        for _ in range(2):
            await begun.acquire()
        task.cancel()
        await asyncio.sleep(0)
        finish.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [b"0", b"1"]
        stats = await jobs.stats()
        assert (stats.waiting, stats.leased) == (3, 0)

        empty = client.queue(next(NAMES))
        taking = asyncio.create_task(empty.take(timeout=30))
        await until(lambda: asyncio.sleep(0, bool(client.services._waiting)))
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
        await empty.put("for whoever comes")

        async def someone_gets_it() -> bool:
            return await empty.take(timeout=0.1) is not None

        await until(someone_gets_it)

    run(url, scenario)


def test_requests_are_answered_and_failures_are_told(url: str) -> None:
    """Bytes, text and values; an error of the handler; nobody there."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        calls = client.queue(name)

        def add(delivery: postroad.Delivery) -> Any:
            numbers = delivery.json(list[int])
            return sum(numbers) if len(numbers) > 1 else "alone"

        task = asyncio.create_task(calls.serve(add))
        assert (await calls.request(json=[2, 2], timeout=10)).json(int) == 4
        assert (await calls.request(json=[2], timeout=10)).payload == b"alone"
        answers = await asyncio.gather(*(calls.request(json=[n, n], timeout=20) for n in range(40)))
        assert [each.json() for each in answers] == [2 * n for n in range(40)]
        with pytest.raises(RequestFailedError, match="PayloadError"):
            await calls.request("no JSON", timeout=10)
        await stop(task)
        with pytest.raises(NoResponseError):
            await calls.request(json=[1, 1], timeout=0.2)

    run(url, scenario)


def test_an_answer_is_not_taken_as_a_request_by_the_client_that_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client serves and asks: the answer is there before it is waited for, and the worker looks for the next request."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        calls = client.queue(name)
        asked: list[Any] = []

        def double(delivery: postroad.Delivery) -> Any:
            asked.append(delivery.json())
            return 2 * delivery.json(int)

        take = client.queues._take

        async def take_later(queue: Any, mode: Any, sender: Any, context: int | None, *rest: Any) -> Any:
            async def answered() -> bool:
                return (await calls.stats()).done_total > 0

            if context is not None:
                await until(answered)
            return await take(queue, mode, sender, context, *rest)

        monkeypatch.setattr(client.queues, "_take", take_later)
        task = asyncio.create_task(calls.serve(double))
        assert (await calls.request(json=21, timeout=20)).json() == 42
        assert asked == [21]
        await stop(task)

    run(url, scenario)


def test_a_bound_queue_gives_decoded_attributes_and_is_bound_once(url: str) -> None:
    """Binding again is the same binding; messages of the overlay arrive with attributes and payload."""
    name = next(NAMES)

    async def scenario(client: postroad.Client) -> None:
        orders = client.queue(name)
        assert await orders.bind("type = 'order'") == await orders.bind("type = 'order'")

        async def arrived() -> bool:
            await client.publish({"type": "order", "total": 7.5}, json={"id": 1})
            return (await orders.stats()).waiting > 0

        await until(arrived)
        delivery = await orders.take(timeout=10)
        assert delivery is not None
        assert (delivery.attributes["total"], delivery.json()) == (7.5, {"id": 1})
        await orders.unbind()
        assert not [each for each in await client.queues.bindings() if each.filter_text == "type = 'order'"]

    run(url, scenario)


def test_the_service_refuses_attributes_that_are_none(url: str) -> None:
    """A hostile client sends bytes that are not a map, too many of them, or values that no message may have."""

    async def scenario(client: postroad.Client) -> None:
        queue = await client.queue(next(NAMES)).declare()
        too_large = b"\x81\xa1a\xda\xff\xff" + b"x" * 0xFFFF
        for packed, error in (
            (b"\xc1", InvalidValueError),
            (b"\x93\x01\x02\x03", InvalidValueError),
            (b"\x81\xa1a\xc0", InvalidValueError),
            (b"\x81\xa0\x01", InvalidValueError),
            (b"\x81\xa1a\xa2\xff\xff", InvalidValueError),
            (b"\x81\xa1a" + b"\x91" * 50_000, InvalidValueError),
            (b"\x81\xa1a", InvalidValueError),
            (too_large, QueueLimitError),
        ):
            with pytest.raises(error):
                await client.queues.put_batch([NewMessage(queue.queue_id, b"", attributes=packed)])
        with pytest.raises(InvalidValueError):
            await client.queue(next(NAMES)).put(b"", attributes={"a": None})  # type: ignore[dict-item]

    run(url, scenario)


def test_a_queue_of_a_client_that_was_closed_is_an_error(url: str) -> None:
    """And not a wait for ever."""

    async def scenario() -> None:
        async with postroad.connect(url) as client:
            jobs = client.queue("closed")
        with pytest.raises(ClosedError):
            await jobs.put(b"x")

    asyncio.run(scenario())


def test_the_blocking_client_has_the_same_queues(url: str) -> None:
    """Put, take, done, work and request without an event loop."""
    name = next(NAMES)
    with postroad.sync.connect(url) as client:
        jobs = client.queue(name)
        jobs.put(json=[1])
        with jobs.take(timeout=10) as delivery:  # type: ignore[union-attr]
            assert delivery.json() == [1]
        assert jobs.take(timeout=0) is None
        jobs.put("last")
        finished: list[bytes] = []

        def handler(received: postroad.sync.Delivery) -> None:
            finished.append(received.payload)
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)  # Ctrl-C while the handler runs

        with pytest.raises(KeyboardInterrupt):
            jobs.work(handler, concurrency=1)
        assert finished == [b"last"]
        assert jobs.take(timeout=0) is None
        with pytest.raises(NoResponseError):
            jobs.request("anybody?", timeout=0.1)
        jobs.delete()
