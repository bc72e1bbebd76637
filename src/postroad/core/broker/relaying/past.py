"""Answers to brokers that miss a part of a stream: from the cache, else from the log of a pubend that is hosted here.

A child asks for gaps with `Nack`; what the cache here does not have is passed on towards the pubend's broker, and read from the
log there. A subscription that is behind asks with `CatchUp`, which any broker on the way answers that has the stretch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.knowledge import COMPLETE, Segment
from postroad.core.broker.log_reads import LogReads
from postroad.core.broker.pieces import CATCH_UP_BYTES, bare, pieces
from postroad.core.broker.relaying.stream import Stream
from postroad.core.broker.views import HostedPubends
from postroad.core.protocol.orders import LinkId, LogRead, ReadLog, Send
from postroad.core.protocol.packets import CatchUp, CatchUpReply, Nack, Released


@dataclass(frozen=True, slots=True)
class GapFromLog:
    """A read of the log for a child that sent a NACK."""

    link: LinkId
    pubend: int
    lo: int


@dataclass(frozen=True, slots=True)
class CatchUpFromLog:
    """A read of the log for another broker's subscription that is behind."""

    question: CatchUp


class Past:
    """Serves the past of streams to other brokers."""

    def __init__(self, context: Context, pubends: HostedPubends, streams: Mapping[int, Stream], log_reads: LogReads) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._log_reads = log_reads

    # --- gaps ---

    def answer_nack(self, link: LinkId, nack: Nack, now: float) -> None:
        """Answer a child from the cache; read what is missing where the log is here."""
        stream = self._streams.get(nack.pubend)
        if stream is None:
            return
        for lo, hi in stream.nack(link, nack, now):
            end = min(hi, self._pubends[nack.pubend].horizon)
            if lo < end:
                self._log_reads.ask(ReadLog(nack.pubend, 0, lo, end, CATCH_UP_BYTES), GapFromLog(link, nack.pubend, lo))

    def take_gap(self, wanted: GapFromLog, result: LogRead) -> None:
        """Send a child what was read of its gap."""
        position = wanted.lo
        if result.released > position:
            self._context.send(wanted.link, Released(wanted.pubend, result.released))
            position = result.released
        stream = self._streams[wanted.pubend]
        for begin, hi, batches, gone in result.stretches(position):
            if gone > begin:
                continue  # lost: a subscriber that keeps missing it asks for its own past, and is told of the gap there
            position = begin
            for batch in batches:
                end = int(batch.ticks()[-1])
                stream.reply(wanted.link, Segment(position, end, COMPLETE, batch))
                position = end
            if position < hi:
                stream.reply(wanted.link, Segment(position, hi, COMPLETE, None))

    # --- catching up ---

    def answer_catch_up(self, question: CatchUp) -> bool:
        """Answer from the cache or the log; False to pass the question on."""
        stream = self._streams.get(question.pubend)
        if stream is None:
            return False
        wanted = self._context.filter(question.filter)
        reached, rows = stream.from_cache(wanted, question.lo, question.hi, CATCH_UP_BYTES)
        if reached > question.lo:
            self._reply(question, question.lo, reached, rows, 0)
            return True
        if not stream.hosted_here:
            return False
        horizon = self._pubends[question.pubend].horizon
        if question.lo < horizon:  # else nothing is decided there, and it asks again
            order = ReadLog(question.pubend, 0, question.lo, min(question.hi, horizon), CATCH_UP_BYTES)
            self._log_reads.ask(order, CatchUpFromLog(question))
        return True

    def take_catch_up(self, wanted: CatchUpFromLog, result: LogRead) -> None:
        """Send another broker what was read for its subscription."""
        question = wanted.question
        filter_ = self._context.filter(question.filter)
        for position, hi, batches, released in result.stretches(question.lo):
            matching = [found for b in batches if len(found := b.filter(filter_.evaluate(b)))]
            self._reply(question, position, hi, matching, released, more=hi < result.hi)

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
