"""What makes the client comfortable: confirmations, acknowledging in any order, handlers, starts at a time, JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import postroad
import postroad.sync
from postroad.client.acknowledging import Acknowledgements, GivenBatch
from postroad.client.confirmations import Confirmations
from postroad.client.handlers import run_handlers
from postroad.errors import ClosedError, InvalidValueError, PayloadError, PublishRefusedError, UnfinishedError
from postroad.testing import broker
from postroad.types import MessageId

Scenario = Callable[[postroad.Client], Awaitable[None]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One broker for the module: every test uses attributes and names of its own."""
    with broker(data_dir=tmp_path_factory.mktemp("broker")) as address:
        yield address


def run(url: str, scenario: Scenario) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), postroad.connect(url) as client:
            await scenario(client)

    asyncio.run(whole())


def test_a_message_is_durable_when_publish_returns(url: str) -> None:
    """Nothing is outstanding, and a subscriber that begins with the oldest message finds it."""

    async def scenario(client: postroad.Client) -> None:
        message_id = await client.publish({"t": "durable"}, "text")
        assert client._own_publisher is not None
        assert client._own_publisher.outstanding == 0
        subscription = await client.subscribe("t = 'durable'", start="earliest")
        found = await subscription.get(timeout=10)
        assert found is not None
        assert (found.id, found.payload) == (message_id, b"text")
        assert abs(found.time - datetime.now(UTC)) < timedelta(minutes=1)
        assert await asyncio.gather(*(client.publish({"t": "many", "n": n}) for n in range(50)))

    run(url, scenario)


def test_a_confirmation_comes_for_this_message_and_not_before(url: str) -> None:
    """One of many, all of many, and of columns; a foreign id is refused."""

    async def scenario(client: postroad.Client) -> None:
        publisher = client.publisher()
        ids = [await publisher.publish({"t": "confirmed", "n": n}) for n in range(300)]
        assert publisher.outstanding == 300
        await publisher.confirmed(ids[0], timeout=10)
        await publisher.confirmed(ids, timeout=10)
        assert publisher.outstanding == 0
        columns = await publisher.publish_many({"n": [1, 2, 3]}, [b""] * 3)
        await publisher.confirmed(columns, timeout=10)
        with pytest.raises(InvalidValueError, match="not published by this publisher"):
            await client.publisher().confirmed(ids[0])
        await publisher.publish({"t": "confirmed"})
        await publisher.close()
        with pytest.raises(ClosedError):
            await publisher.confirmed(ids[0])

    run(url, scenario)


class FakeSession:
    """A session with one registration, whose first outstanding tick the test sets."""

    def __init__(self) -> None:
        self.first: int | None = 1

    def first_outstanding(self, _key: int, _broker: int, _publisher: int) -> int | None:
        return self.first

    def is_publishers(self, _key: int, _broker: int, _publisher: int) -> bool:
        return True


def test_a_refused_message_is_never_confirmed() -> None:
    """The session forgets refused messages like durable ones: the refusal must be told first, also to who asks late."""

    async def scenario() -> None:
        session = FakeSession()
        confirmations = Confirmations(session, 1)  # type: ignore[arg-type]
        ids = [MessageId.make(1, 1, 0, counter) for counter in (1, 2, 3)]
        waiting = [confirmations.wait_for(each) for each in ids]
        session.first = None
        error = PublishRefusedError(bytes(ids[1]), bytes(ids[1]), InvalidValueError("no"))
        confirmations.refused(error)
        confirmations.changed()
        assert [each.exception() for each in waiting] == [None, error, None]
        late = confirmations.wait_for(ids[1])
        assert late.exception() is error

    asyncio.run(scenario())


def test_json_goes_in_and_comes_out_with_its_type(url: str) -> None:
    """The content type is an attribute that filters may use; what is not JSON of the type is a typed error."""

    @dataclass
    class Order:
        number: int
        items: list[str]

    async def scenario(client: postroad.Client) -> None:
        subscription = await client.subscribe("content_type = 'application/json' AND t = 'json'")
        await client.publish({"t": "json"}, b"not json")
        await client.publish({"t": "json"}, json=Order(7, ["a"]))
        await client.publish({"t": "json"}, json=None)
        message, nothing = await subscription.get(), await subscription.get()
        assert message.json() == {"number": 7, "items": ["a"]}
        assert message.json(Order) == Order(7, ["a"])
        assert nothing.json() is None
        with pytest.raises(PayloadError, match="Expected `object`"):
            nothing.json(Order)
        for bad in ({"payload": b"x", "json": 1}, {"json": object()}, {"attributes": {"content_type": "text/plain"}, "json": 1}):
            with pytest.raises(InvalidValueError):
                await client.publish(**bad)  # type: ignore[arg-type]

    run(url, scenario)


def test_get_and_fetch_wait_no_longer_than_asked(url: str) -> None:
    """None and an empty list after the time; what is there comes at once; the end is an error."""

    async def scenario(client: postroad.Client) -> None:
        subscription = await client.subscribe("t = 'fetch'")
        assert await subscription.get(timeout=0.05) is None
        assert await subscription.fetch(10, timeout=0.05) == []
        publisher = client.publisher()
        ids = [await publisher.publish({"t": "fetch"}) for _ in range(30)]
        found: list[postroad.Message] = []
        while len(found) < 30:
            found += await subscription.fetch(7, timeout=10)
        assert [each.id for each in found] == ids
        await subscription.close()
        with pytest.raises(ClosedError):
            await subscription.get()

    run(url, scenario)


def test_a_start_at_a_time_begins_with_the_first_message_after_it(url: str) -> None:
    """A datetime and a timedelta; an existing durable subscription goes on where it was instead."""

    async def scenario(client: postroad.Client) -> None:
        async def numbers(**how: Any) -> list[object]:
            async with await client.subscribe("t = 'since'", **how) as subscription:
                return [each["n"] for each in await subscription.fetch(10, timeout=0.5)]

        await client.publish({"t": "since", "n": 1})
        await asyncio.sleep(0.005)
        between = datetime.now(UTC)
        await asyncio.sleep(0.005)
        await client.publish({"t": "since", "n": 2})
        assert await numbers(start=between) == [2]
        assert await numbers(start=timedelta(minutes=5)) == [1, 2]
        assert await numbers(start=datetime.now(UTC) + timedelta(hours=1)) == []
        assert await numbers(start=timedelta(minutes=5), name="since") == [1, 2]
        async with await client.subscribe("t = 'since'", name="since", start=between) as again:
            assert [each["n"] for each in await again.fetch(10, timeout=0.5)] == [1, 2]
            await again.ack()
        assert await numbers(start=timedelta(minutes=5), name="since") == []
        with pytest.raises(InvalidValueError, match="start is"):
            await numbers(start="yesterday")

    run(url, scenario)


def test_acknowledging_out_of_order_moves_the_position_only_as_far_as_nothing_is_left_behind() -> None:
    """Rows of two batches in every order of finishing: the position is the end of the finished prefix."""
    import itertools

    for order in itertools.permutations(range(4)):
        acknowledgements = Acknowledgements()
        batches = [GivenBatch(None, 1, 2, last) for last in (20, 40)]  # type: ignore[arg-type]
        for batch in batches:
            acknowledgements.begin(batch)
        done: set[int] = set()
        position = 0
        for row in order:
            position = acknowledgements.finish(batches[row // 2], row % 2, (row + 1) * 10) or position
            done.add(row)
            prefix = next(each for each in range(5) if each not in done)
            assert position == prefix * 10
        assert position == 40


def test_what_was_not_acknowledged_comes_again_and_nothing_else(url: str) -> None:
    """Messages 0, 1 and 3 are acknowledged, in another order: 2 comes again, and 3, which lies behind it."""

    async def scenario(client: postroad.Client) -> None:
        subscription = await client.subscribe("t = 'again'", name="again")
        for n in range(4):
            await client.publish({"t": "again", "n": n})
        messages = [await subscription.get() for _ in range(4)]
        await messages[3].ack()
        await messages[1].ack()
        await messages[0].ack()
        assert client.session.is_stored(subscription._key, {messages[1].pubend: messages[1].tick})
        await subscription.close()
        again = await client.subscribe("t = 'again'", name="again")
        assert [each["n"] for each in await again.fetch(10, timeout=1)] == [2, 3]
        await again.ack()
        await again.close(forget=True)

    run(url, scenario)


def test_run_acknowledges_after_success_and_drains_when_cancelled(url: str) -> None:
    """Handlers run side by side; those that have begun finish; a message whose handler failed comes again."""

    async def scenario(client: postroad.Client) -> None:
        subscription = await client.subscribe("t = 'run'", name="run")
        for n in range(6):
            await client.publish({"t": "run", "n": n})
        begun, finish, finished = asyncio.Semaphore(0), asyncio.Event(), []

        async def handler(message: postroad.Message) -> None:
            begun.release()
            await finish.wait()
            finished.append(message["n"])

        task = asyncio.create_task(subscription.run(handler, concurrency=3))
        for _ in range(3):
            await begun.acquire()
        task.cancel()
        await asyncio.sleep(0)
        finish.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert finished == [0, 1, 2]
        await subscription.close()

        subscription = await client.subscribe("t = 'run'", name="run")

        def failing(message: postroad.Message) -> None:
            if message["n"] == 4:
                raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await subscription.run(failing, concurrency=1)
        await subscription.close()
        again = await client.subscribe("t = 'run'", name="run")
        assert [each["n"] for each in await again.fetch(10, timeout=1)] == [4, 5]
        await again.close(forget=True)

    run(url, scenario)


def test_several_failing_handlers_are_all_told_and_a_second_cancellation_ends_them() -> None:
    """No error is swallowed, and no handler can keep a program from ending."""

    async def several() -> None:
        arrived = asyncio.Barrier(2)

        async def take() -> int:
            return 1

        async def fail(_: int) -> None:
            await arrived.wait()
            raise ValueError("no")

        with pytest.raises(ExceptionGroup) as raised:
            await run_handlers(take, fail, 2)
        assert len(raised.value.exceptions) == 2

    async def stubborn() -> None:
        began = asyncio.Event()

        async def take() -> int:
            return 1

        async def wait(_: int) -> None:
            began.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(run_handlers(take, wait, 1))
        await began.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(several())
    asyncio.run(stubborn())


def test_the_blocking_client_has_the_same_comforts(url: str) -> None:
    """Publish, get, fetch, ack and run without an event loop."""
    with postroad.sync.connect(url, name="blocking") as client:
        subscription = client.subscribe("t = 'sync'", name="sync comforts")
        client.publish({"t": "sync", "n": 1}, json=[1])
        message = subscription.get(timeout=10)
        assert message is not None
        message.ack()
        assert message.json() == [1]
        assert subscription.get(timeout=0.05) is None
        publisher = client.publisher()
        publisher.confirmed([publisher.publish({"t": "sync", "n": n}) for n in range(2, 5)], timeout=10)
        numbers = [each["n"] for each in subscription.fetch(1, timeout=10)]

        def handler(received: postroad.sync.Message) -> None:
            numbers.append(received["n"])
            received.ack()
            if len(numbers) == 3:
                raise StopWorkError

        with pytest.raises(StopWorkError):
            subscription.run(handler, concurrency=1)
        assert numbers == [2, 3, 4]
        subscription.close(forget=True)


class StopWorkError(Exception):
    """Ends `run` in a test."""


def test_addresses_come_from_the_environment_when_none_is_given(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSTROAD_URL, also as host:port; the time to connect is the caller's."""
    monkeypatch.setenv("POSTROAD_URL", url.removeprefix("postroad://"))

    async def scenario() -> None:
        async with postroad.connect() as client:
            assert client.broker == 1
        with pytest.raises(postroad.PostroadError, match=r"within 0\.2 s"):
            async with postroad.connect("127.0.0.1:1", timeout=0.2):
                pass

    asyncio.run(scenario())


def test_publish_gives_up_when_the_broker_does_not_answer_in_time(tmp_path: Path) -> None:
    """The message is in doubt, and the error says that it may become durable later."""

    async def scenario() -> None:
        with broker(data_dir=tmp_path) as address:
            client = postroad.connect(address)
            await client.__aenter__()
        with pytest.raises(UnfinishedError, match="may become durable later"):
            await client.publish({"a": 1}, timeout=0.2)
        await client.close(flush=False)

    asyncio.run(scenario())
