"""Traces and explanations over a client's connection: rounds of questions, each to many brokers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from postroad.core.batch.message import Message
from postroad.core.batch.row_codec import join_rows
from postroad.core.protocol.packets import pubend_id
from postroad.core.protocol.status import BrokerReport
from postroad.core.session.machine import QUESTIONS_MAX
from postroad.errors import InvalidValueError, ProtocolViolationError, UnfinishedError
from postroad.tracking.queries.explanation import Evidence, Explanation, approximate_tick, explain
from postroad.tracking.queries.packets import TracksAnswered
from postroad.tracking.queries.questions import (
    IDS_MAX,
    NAME_MAX,
    CoverageAnswer,
    CoverageQuestion,
    MapAnswer,
    MapQuestion,
    MessageAnswer,
    MessageQuestion,
    Question,
    Status,
    StatusAnswer,
    StatusQuestion,
    TracksAnswer,
    TracksQuestion,
)
from postroad.tracking.queries.reconstruction import Reconstruction, Trace, Unasked
from postroad.types import MessageId, Tick

AnyId: TypeAlias = MessageId | str | bytes
Ask: TypeAlias = Callable[[int, Question], Awaitable[TracksAnswered]]

AT_ONCE: Final = QUESTIONS_MAX // 2  # questions under way for one call
BUSY_TRIES: Final = 6
BUSY_S: Final = 0.05  # the first pause, doubled each time


def message_id(value: AnyId) -> MessageId:
    """Return a message id given as itself, as 16 bytes or as text, or raise `InvalidValueError`."""
    if isinstance(value, MessageId):
        return value
    if isinstance(value, str):
        return MessageId.parse(value)
    if not isinstance(value, bytes):
        raise InvalidValueError(f"a message id is a MessageId, 16 bytes or text, not {type(value).__name__}")
    return MessageId.from_bytes(value)


class Tracer:
    """One call of `trace_many` or `explain`, by way of the broker `home`."""

    def __init__(self, ask: Ask, home: int) -> None:
        self._ask_once: Final = ask
        self._home: Final = home
        self._room: Final = asyncio.Semaphore(AT_ONCE)

    async def trace_many(self, ids: Iterable[AnyId]) -> list[Trace]:
        wanted = [message_id(each) for each in ids]
        return [] if not wanted else await self._trace(wanted, await self._map())

    async def explain(self, wanted: AnyId, subscriber: str) -> Explanation:
        if not 0 < len(subscriber) <= NAME_MAX:
            raise InvalidValueError(f"a subscriber's name has 1 to {NAME_MAX} characters, not {len(subscriber)}")
        each = message_id(wanted)
        overlay = await self._map()
        (trace,), answered = await asyncio.gather(
            self._trace([each], overlay), self._ask(each.broker, MessageQuestion(bytes(each)))
        )
        message = answered.answer if isinstance(answered.answer, MessageAnswer) else None
        pubend = message.pubend if message is not None else pubend_id(each.broker)
        question = CoverageQuestion(subscriber, pubend, approximate_tick(trace, message))
        coverage, unasked = await self._coverage(overlay, question)
        return explain(Evidence(trace, subscriber, overlay, message, coverage, unasked))

    async def message(self, wanted: AnyId) -> Message | None:
        """Read one message from the log of its broker; None: the log no longer has it, or the broker cannot be asked."""
        each = message_id(wanted)
        answer = (await self._ask(each.broker, MessageQuestion(bytes(each)))).answer
        if not isinstance(answer, MessageAnswer) or answer.row is None:
            return None
        ((_, attributes, payload),) = join_rows([answer.row], answer.binary)
        return Message.of(each, attributes, payload, Tick(answer.tick))

    async def status(self, broker: int | None, question: StatusQuestion) -> BrokerReport:
        """Ask one broker how it is; None: the home broker."""
        wanted = self._home if broker is None else broker
        answered = await self._ask(wanted, question)
        if isinstance(answered.answer, StatusAnswer):
            return answered.answer.report
        raise UnfinishedError(f"broker {wanted} did not report its status: {answered.reason or 'it did not say why'}")

    async def brokers(self) -> dict[int, list[int] | None]:
        """Return every broker of the overlay with its neighbours; None: it has told none since the home broker started."""
        return (await self._map()).brokers

    async def _map(self) -> MapAnswer:
        answered = await self._ask(self._home, MapQuestion())
        if not isinstance(answered.answer, MapAnswer):
            raise ProtocolViolationError(f"broker {self._home} did not report the map of the overlay: {answered.reason}")
        return answered.answer

    async def _trace(self, ids: Sequence[MessageId], overlay: MapAnswer) -> list[Trace]:
        search = Reconstruction(ids, overlay)
        while asks := search.asks():
            await asyncio.gather(*(self._ask_tracks(search, broker, each) for broker, each in asks.items()))
            search.finish_round()
        return search.traces()

    async def _ask_tracks(self, search: Reconstruction, broker: int, ids: Sequence[MessageId]) -> None:
        """Ask one broker about all ids, in as many questions as it takes, one after the other."""
        waiting, after = list(ids), ""
        while waiting:
            part = waiting[:IDS_MAX]
            answered = await self._ask(broker, TracksQuestion(b"".join(map(bytes, part)), after))
            answer = answered.answer
            if not isinstance(answer, TracksAnswer):
                search.failed(broker, answered.status, answered.reason)
                return
            if not answer.answered and answer.after <= after:
                search.failed(broker, Status.FAILED, "its answer has no end")
                return
            search.answered(broker, part, answer)
            waiting, after = waiting[answer.answered :], answer.after

    async def _coverage(self, overlay: MapAnswer, question: CoverageQuestion) -> tuple[dict[int, CoverageAnswer], list[Unasked]]:
        """Ask every broker what the subscriber was promised: it may have been anywhere."""
        answers = await asyncio.gather(*(self._ask(broker, question) for broker in overlay.brokers))
        found: dict[int, CoverageAnswer] = {}
        unasked: list[Unasked] = []
        for broker, answered in zip(overlay.brokers, answers, strict=True):
            if isinstance(answered.answer, CoverageAnswer):
                found[broker] = answered.answer
            else:
                unasked.append(Unasked(broker, answered.status, answered.reason))
        return found, unasked

    async def _ask(self, broker: int, question: Question) -> TracksAnswered:
        """Ask, and again after a pause when the broker is busy."""
        async with self._room:
            answered = await self._ask_once(broker, question)
            for attempt in range(BUSY_TRIES):
                if answered.status is not Status.BUSY:
                    break
                await asyncio.sleep(BUSY_S * 2**attempt)
                answered = await self._ask_once(broker, question)
            return answered
