"""Answers to brokers that miss a part of a stream: from the cache, or from the log of a pubend that is hosted here.

A child requests gaps with `Nack`. What the cache does not have is requested from the next broker towards the pubend's broker,
which reads its log. A subscription that is behind sends `CatchUp`; the first broker on the path whose cache has the range answers
it, at the latest the pubend's broker from its log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from postroad.core.batch.batch import Batch
from postroad.core.broker.answer_pieces import CATCH_UP_BYTES, bare, first_part, pieces
from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.knowledge import COMPLETE, KnowledgeRange
from postroad.core.broker.log_reads import LogReads
from postroad.core.broker.relaying.stream import REPLY_BYTES_MAX, Stream
from postroad.core.broker.views import HostedPubends
from postroad.core.protocol.orders import LinkId, LogRead, ReadLog, Send
from postroad.core.protocol.packets import CatchUp, CatchUpReply, LogDamaged, Nack, Released


@dataclass(frozen=True, slots=True)
class GapFromLog:
    """The purpose of a log read: a child sent a NACK."""

    link: LinkId
    pubend: int
    lo: int
    hi: int
    bytes_left: int  # for the rest of the range, after what one read returns


@dataclass(frozen=True, slots=True)
class CatchUpFromLog:
    """The purpose of a log read: a subscription at another broker is behind."""

    question: CatchUp


class NackAnswers:
    """Serves older parts of streams to other brokers."""

    def __init__(self, context: Context, pubends: HostedPubends, streams: Mapping[int, Stream], log_reads: LogReads) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._log_reads = log_reads

    # --- gaps ---

    def answer_nack(self, link: LinkId, nack: Nack, now: float) -> None:
        """Answer a child from the cache; if the log is here, read the missing ranges from it."""
        stream = self._streams.get(nack.pubend)
        if stream is None:
            return
        for lo, hi in stream.nack(link, nack, now):
            end = min(hi, self._pubends[nack.pubend].horizon)
            if lo < end:
                self._read_gap(GapFromLog(link, nack.pubend, lo, end, REPLY_BYTES_MAX))

    def _read_gap(self, wanted: GapFromLog) -> None:
        self._log_reads.ask(ReadLog(wanted.pubend, 0, wanted.lo, wanted.hi, CATCH_UP_BYTES), wanted)

    def take_gap(self, wanted: GapFromLog, result: LogRead) -> None:
        """Send a child what was read for its NACK."""
        position = wanted.lo
        if result.released > position:
            self._context.send(wanted.link, Released(wanted.pubend, result.released))
            position = result.released
        stream = self._streams[wanted.pubend]
        for begin, hi, batches, gone in result.stretches(position):
            if gone > begin:
                self._context.send(wanted.link, LogDamaged(wanted.pubend, begin, gone))
                continue
            position = begin
            for batch in batches:
                end = int(batch.ticks()[-1])
                stream.reply(wanted.link, KnowledgeRange(position, end, COMPLETE, batch))
                position = end
            if position < hi:
                stream.reply(wanted.link, KnowledgeRange(position, hi, COMPLETE, None))
        left = wanted.bytes_left - CATCH_UP_BYTES
        if wanted.lo < result.hi < wanted.hi and left > 0:
            self._read_gap(replace(wanted, lo=result.hi, bytes_left=left))

    # --- catching up ---

    def answer_catch_up(self, question: CatchUp) -> bool:
        """Answer from the cache or the log; False to pass the request on."""
        stream = self._streams.get(question.pubend)
        if stream is None:
            return False
        wanted = self._context.filter(question.filter)
        bytes_max = min(question.size or CATCH_UP_BYTES, CATCH_UP_BYTES)
        reached, rows = stream.from_cache(wanted, question.lo, question.hi, bytes_max)
        if reached > question.lo:
            if question.size:
                rows, reached = first_part(rows, question.lo, reached, bytes_max)
            self._reply(question, question.lo, reached, rows, 0)
            return True
        if not stream.hosted_here:
            return False
        horizon = self._pubends[question.pubend].horizon
        if question.lo < horizon:  # otherwise nothing is decided there yet; the requester tries again
            order = ReadLog(question.pubend, 0, question.lo, min(question.hi, horizon), CATCH_UP_BYTES)
            self._log_reads.ask(order, CatchUpFromLog(question))
        return True

    def take_catch_up(self, wanted: CatchUpFromLog, result: LogRead) -> None:
        """Send another broker the matching rows of what was read."""
        question = wanted.question
        filter_ = self._context.filter(question.filter)
        bytes_left = question.size
        for position, hi, batches, released in result.stretches(question.lo):
            matching = [found for b in batches if len(found := b.filter(filter_.evaluate(b)))]
            reached = hi
            if question.size:
                matching, reached = first_part(matching, position, hi, bytes_left)
                bytes_left = max(bytes_left - sum(batch.size for batch in matching), 0)
            more = reached == hi < result.hi and (bytes_left > 0 or not question.size)
            self._reply(question, position, reached, matching, released, more=more)
            if not more:
                return

    def _reply(
        self, question: CatchUp, position: int, reached: int, rows: list[Batch], released: int, *, more: bool = False
    ) -> None:
        link = self._context.routes.route(question.source)
        if link is None:
            return
        me, target = self._context.broker, question.source
        for batch, hi, follows in pieces([bare(each) for each in rows] if question.bare else rows, reached):
            reply = CatchUpReply(
                target, me, FULL_HOPS, question.request, question.pubend, position, hi, released, follows or more
            )
            self._context.orders.append(Send(link, reply, batch, data=True))
            position = hi
