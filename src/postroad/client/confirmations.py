"""Confirmations of published messages: who waits until which message is durable.

The session tells when some messages of a publisher became durable, and which were refused. A message waits with the others of its
registration (one publisher id at one broker), whose ids ascend; those below the first outstanding one have an outcome.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from itertools import count
from typing import Final

from postroad.core.session.machine import Session
from postroad.errors import InvalidValueError, PublishRefusedError
from postroad.types import MessageId

REFUSALS_MAX: Final = 1024
"""Refusals remembered for those who ask late."""


class Confirmations:
    """The waiting callers of one publisher."""

    def __init__(self, session: Session, key: int) -> None:
        self._session: Final = session
        self._key: Final = key
        self._waiting: dict[tuple[int, int], list[tuple[int, int, asyncio.Future[None]]]] = {}  # registration -> heap by tick
        self._numbers: Final = count()
        self._refusals: Final[deque[PublishRefusedError]] = deque(maxlen=REFUSALS_MAX)

    def wait_for(self, message_id: MessageId) -> asyncio.Future[None]:
        """Return a future that is done when the message is durable, or has the error why it never will be."""
        if not self._session.is_publishers(self._key, message_id.broker, message_id.publisher):
            raise InvalidValueError(f"the message {message_id} was not published by this publisher")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refusal = self._refusal(bytes(message_id))
        if refusal is not None:
            future.set_exception(refusal)
        elif self._is_settled(message_id.broker, message_id.publisher, message_id.tick):
            future.set_result(None)
        else:
            heap = self._waiting.setdefault((message_id.broker, message_id.publisher), [])
            heapq.heappush(heap, (message_id.tick, next(self._numbers), future))
        return future

    def changed(self) -> None:
        """Tell those whose messages became durable."""
        for registration, heap in list(self._waiting.items()):
            first = self._session.first_outstanding(self._key, *registration)
            while heap and (first is None or heap[0][0] < first):
                future = heapq.heappop(heap)[2]
                if not future.done():
                    future.set_result(None)
            if not heap:
                del self._waiting[registration]

    def refused(self, error: PublishRefusedError) -> None:
        """Tell those whose messages the broker refused."""
        self._refusals.append(error)
        first = MessageId.from_bytes(error.first)
        registration = (first.broker, first.publisher)
        last = MessageId.from_bytes(error.last).tick
        for tick, _, future in self._waiting.get(registration, ()):
            if first.tick <= tick <= last and not future.done():
                future.set_exception(error)

    def failed(self, error: Exception) -> None:
        """Tell everybody: nothing will be confirmed any more."""
        waiting, self._waiting = self._waiting, {}
        for heap in waiting.values():
            for _, _, future in heap:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # the caller may have given up

    def _refusal(self, message_id: bytes) -> PublishRefusedError | None:
        return next((each for each in self._refusals if each.first <= message_id <= each.last), None)

    def _is_settled(self, broker: int, publisher: int, tick: int) -> bool:
        first = self._session.first_outstanding(self._key, broker, publisher)
        return first is None or tick < first
