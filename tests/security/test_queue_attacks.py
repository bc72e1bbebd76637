"""What an identity tries with queues beyond its permissions: ids that it guesses, and more of everything than its share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from postroad.core.filters.filter import Filter
from postroad.core.protocol.rights import Grant, Rights
from postroad.errors import QueueLimitError, UnknownQueueError
from postroad.queues import permissions
from postroad.queues.limits import QueueLimits
from postroad.queues.service import QueueService, Session
from postroad.storage.queues.base import ClientMode
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.packets.session import Error
from postroad.wire.registry import Packet

EVIL = Rights("evil", queues=(Grant("put", "jobs"), Grant("take", "jobs"), Grant("manage", "evil")), admin=False)
VICTIM = Rights("victim", queues=tuple(Grant(action, "*") for action in ("put", "take", "manage")), admin=False)


@asynccontextmanager
async def served(**limits: int) -> AsyncIterator[tuple[QueueService, Session, Session]]:
    """Run a service with the queues `jobs` (1), `secret` (2) and `evil` (3); yield it and the sessions of both identities."""
    service = QueueService(MemoryQueueStorage(), limits=QueueLimits(**limits), check_filter=Filter)
    await service.start()
    victim, evil = Session(rights=VICTIM), Session(rights=EVIL)
    for session in (victim, evil):
        await service.handle(t.RegisterClient("c", ClientMode.READ_AND_PUT, existing=True), session)
    for name in ("jobs", "secret", "evil"):
        await service.storage.create_queue(name)
    try:
        yield service, victim, evil
    finally:
        await service.stop()


def put(queue_id: int, payload: bytes = b"x", receiver_id: int | None = None) -> t.PutMessage:
    return t.PutMessage(queue_ids=(queue_id,), receiver_id=receiver_id, context=None, priority=5, message=payload)


BY_ID: list[type[Packet]] = [t.GetQueueName, q.GetQueueSettings, q.GetQueueStats, t.GetMessages, t.DeleteQueue]


@pytest.mark.parametrize("kind", BY_ID)
def test_an_id_that_is_guessed_does_not_tell_the_name_of_a_queue(kind: type[Packet]) -> None:
    """The answer is the one for a queue that does not exist."""

    async def scenario() -> None:
        async with served() as (service, _, evil):
            secret, missing = [await service.handle(kind(each), evil) for each in (2, 4)]
            assert isinstance(secret, Error)
            assert isinstance(missing, Error)
            assert secret.code == UnknownQueueError.code
            assert secret.text == missing.text.replace("4", "2")
            for packet in (put(2), q.TakeMessages(2), q.BindQueue(2, "a = 1")):
                answer = await service.handle(packet, evil)
                assert isinstance(answer, Error)
                assert "secret" not in answer.text

    asyncio.run(scenario())


def test_messages_that_are_addressed_to_another_client_are_not_shown() -> None:
    async def scenario() -> None:
        async with served() as (service, victim, evil):
            assert victim.client is not None
            assert evil.client is not None
            for receiver, text in ((victim.client.client_id, b"private"), (None, b"open"), (evil.client.client_id, b"mine")):
                await service.handle(put(1, text, receiver), victim)
            seen = await service.handle(t.GetMessages(1), evil)
            assert isinstance(seen, t.GetMessagesResponse)
            assert [each.message for each in seen.messages] == [b"open", b"mine"]
            everything = await service.handle(t.GetMessages(1), victim)  # who manages the queue may look at all of it
            assert isinstance(everything, t.GetMessagesResponse)
            assert len(everything.messages) == 3

    asyncio.run(scenario())


def test_a_page_of_which_nothing_may_be_shown_is_not_the_end_of_the_queue() -> None:
    async def scenario() -> None:
        async with served(page_rows_max=2) as (service, victim, evil):
            assert victim.client is not None
            for receiver in (victim.client.client_id,) * 4 + (None,):
                await service.handle(put(1, b"x", receiver), victim)
            seen = await service.handle(t.GetMessages(1), evil)
            assert isinstance(seen, t.GetMessagesResponse)
            assert len(seen.messages) == 1

    asyncio.run(scenario())


def test_an_identity_has_a_share_of_clients_and_bindings() -> None:
    async def scenario() -> None:
        async with served(clients_per_identity_max=2, bindings_per_identity_max=2) as (service, victim, evil):
            more = [t.RegisterClient(f"x{n}", ClientMode.READ_AND_PUT, existing=True) for n in range(2)]
            answers = [await service.handle(each, evil) for each in more]
            assert isinstance(answers[1], Error)
            assert answers[1].code == QueueLimitError.code
            again = await service.handle(t.RegisterClient("c", ClientMode.READ_AND_PUT, existing=True), evil)
            assert isinstance(again, t.RegisterClientResponse)  # one that exists may come back
            assert isinstance(await service.handle(more[0], victim), t.RegisterClientResponse)

            bound = [await service.handle(q.BindQueue(3, f"a = {n}"), evil) for n in range(3)]
            assert isinstance(bound[2], Error)
            assert bound[2].code == QueueLimitError.code
            assert isinstance(bound[0], q.BindQueueResponse)
            await service.handle(q.UnbindQueue(bound[0].binding_id), evil)
            assert isinstance(await service.handle(q.BindQueue(3, "a = 9"), evil), q.BindQueueResponse)
            assert isinstance(await service.handle(q.BindQueue(1, "a = 1"), victim), q.BindQueueResponse)

    asyncio.run(scenario())


def test_a_costly_filter_of_a_binding_is_not_parsed_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def parse(text: str) -> Filter:
        threads.append(threading.get_ident())
        return Filter(text)

    monkeypatch.setattr(permissions, "Filter", parse)

    async def scenario() -> None:
        async with served() as (service, _, evil):
            assert isinstance(await service.handle(q.BindQueue(3, "a = 1"), evil), q.BindQueueResponse)

    asyncio.run(scenario())
    assert threads
    assert threading.get_ident() not in threads
