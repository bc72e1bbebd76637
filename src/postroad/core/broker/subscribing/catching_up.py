"""Catching up: a subscription that is behind receives older messages piece by piece, until it is live.

A piece comes from the cache of the stream if its labels cover the filter. Otherwise it comes from the log: this broker reads it
for a pubend hosted here, or sends `CatchUp` to the pubend's broker.

Each subscription has one request at a time (`Progress.piece`), so one that is far behind takes no more memory than one piece.
A request that is not answered is repeated, with a longer wait each time. There is no error path: lost requests, lost answers and
full queues all look the same here, and the retry handles them.

Under congestion control, subscriptions of about the same position send one request together (see `congestion.shared_past`).

Invariant: a piece is used only if it continues the range that was sent (lo <= position < hi). Every answer that does so is
correct, whichever request it belongs to, because ticks never change. A late answer is therefore used, not dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.broker.answer_pieces import CATCH_UP_BYTES
from postroad.core.broker.congestion.settings import Rule
from postroad.core.broker.congestion.shared_past import PieceOfPast, SharedPast, union
from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.log_reads import LogReads
from postroad.core.broker.subscribing.edge import CATCH_UP_RETRY_S, Edge
from postroad.core.broker.subscribing.subscription import PieceAsked, Progress, State, Subscription
from postroad.core.broker.views import HostedPubends, RelayedStreams
from postroad.core.protocol.orders import LogRead, ReadLog
from postroad.core.protocol.packets import CatchUp, CatchUpReply, pubend_broker

CATCH_UP_AT_ONCE: Final = 256
CATCH_UP_WAIT_S_MAX: Final = 32.0  # for the answer of another broker: it may stand in the queue of a slow link
LOG_WAIT_S_MAX: Final = 4.0  # for our own log
ROUND_TRIPS: Final = 2  # of the last answer, which the next one may take
CATCH_UP_SPREAD_S: Final = 0.15
PIECES_AT_ONCE: Final = 4  # from the cache, before other subscriptions have their turn


@dataclass(frozen=True, slots=True)
class PastFromLog:
    """The purpose of a log read: the next piece for a subscription that is behind."""

    subscription: int
    pubend: int
    lo: int


@dataclass(slots=True)
class _Asked:
    """A request to another broker."""

    pubend: int
    takers: list[int]  # the subscriptions whose filters are in it
    at: float
    piece: PieceOfPast | None = None  # what their cluster shares; others of it may wait for this to end


class CatchingUp:
    """Serves the subscriptions of this broker that are behind."""

    def __init__(
        self, context: Context, pubends: HostedPubends, streams: RelayedStreams, edge: Edge, log_reads: LogReads
    ) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._edge = edge
        self._log_reads = log_reads
        self._requests: dict[int, _Asked] = {}
        self._shares = context.config.congestion.rule is not Rule.NONE
        self._round_trips: dict[int, float] = {}  # by pubend: the last one
        self._pasts: dict[int, SharedPast] = {}  # by pubend, while somebody is behind

    def serve(self, pubend: int, now: float) -> None:
        """Get the next piece for up to `CATCH_UP_AT_ONCE` subscriptions that are behind."""
        if not self._edge.anyone_is_behind(pubend):
            self._pasts.pop(pubend, None)
            self._round_trips.pop(pubend, None)
            return
        for count, (subscription, progress) in enumerate(self._edge.catching_up(pubend)):
            if count >= CATCH_UP_AT_ONCE:
                break
            self.next_piece(subscription, pubend, progress, now)

    def route_changed(self, pubend: int, now: float) -> None:
        """Repeat soon what was asked on the former route: it may be lost, and whoever did not answer may be back."""
        self._round_trips.pop(pubend, None)
        for _, progress in self._edge.behind(pubend):
            if progress.piece is not None and progress.piece.retry_at > now + CATCH_UP_RETRY_S:
                progress.piece = PieceAsked(0, now + CATCH_UP_RETRY_S)

    def take_reply(self, reply: CatchUpReply, batch: Batch | None, now: float) -> None:
        """Use a piece that another broker sent, for all that it was asked for."""
        asked = self._requests.get(reply.request)
        if not reply.more:
            self._requests.pop(reply.request, None)
        if asked is None or asked.pubend != reply.pubend:
            return
        self._round_trips[reply.pubend] = now - asked.at
        rows = [batch] if batch is not None else []
        if asked.piece is None:
            for subscription in self._present(asked.takers):
                self._take(subscription, reply.pubend, reply.lo, reply.hi, rows, reply.released, now, more=reply.more)
            return
        self._take_together(asked, asked.piece, reply, rows, now)

    def _present(self, numbers: list[int]) -> list[Subscription]:
        found = (self._edge.subscriptions.get(number) for number in numbers)
        return [subscription for subscription in found if subscription is not None]

    def _take_together(self, asked: _Asked, piece: PieceOfPast, reply: CatchUpReply, rows: list[Batch], now: float) -> None:
        """Give those that asked together their rows; when the answer is complete, let their cluster ask for the next piece."""
        pubend = reply.pubend
        piece.answered_bytes += sum(batch.size for batch in rows)
        for subscription in self._present(asked.takers):
            if not self._edge.is_behind(subscription, pubend):
                continue  # it is live, or it cannot take rows now
            progress = subscription.progress[pubend]
            if reply.lo <= progress.position < reply.hi:
                if reply.released > progress.position:
                    self._edge.gap(subscription, pubend, reply.released)
                wanted = [found for each in rows if len(found := each.filter(subscription.filter.evaluate(each)))]
                self._edge.caught_up(subscription, pubend, reply.hi, wanted)
            if reply.more and self._edge.is_behind(subscription, pubend):
                progress.piece = PieceAsked(0, piece.due)
        if reply.more:
            return
        if pubend in self._pasts:
            self._pasts[pubend].answered(piece, now)
        waiting = [each for each in self._present(piece.members) if self._edge.is_behind(each, pubend)]
        for subscription in waiting:
            subscription.progress[pubend].piece = None
        for subscription in waiting:
            if self._edge.is_behind(subscription, pubend):
                self.next_piece(subscription, pubend, subscription.progress[pubend], now)

    def take_log(self, wanted: PastFromLog, result: LogRead, now: float) -> None:
        """Use what was read in the log of this broker; the filter is applied here."""
        for begin, hi, batches, released in result.stretches(wanted.lo):
            subscription = self._edge.subscriptions.get(wanted.subscription)
            if subscription is None:
                return
            matching = [found for b in batches if len(found := b.filter(subscription.filter.evaluate(b)))]
            self._take(subscription, wanted.pubend, begin, hi, matching, released, now, more=hi < result.hi)

    def next_piece(self, subscription: Subscription, pubend: int, progress: Progress, now: float) -> None:
        """Send pieces from the cache while there are any; request the first one that is not in the cache."""
        if progress.piece is not None and now < progress.piece.retry_at:
            return  # the answer may still come
        stream = self._streams[pubend]
        for _ in range(PIECES_AT_ONCE):
            target = self._edge.target(progress, pubend)
            reached, rows = stream.from_cache(subscription.filter, progress.position, target, CATCH_UP_BYTES)
            if reached <= progress.position:
                self._ask(subscription, pubend, progress, target, now)
                return
            self._edge.caught_up(subscription, pubend, reached, rows)
            if not self._edge.wants_more(subscription, pubend):
                return

    def _ask(self, subscription: Subscription, pubend: int, progress: Progress, target: int, now: float) -> None:
        if self._shares and pubend not in self._pubends:
            self._ask_together(subscription, pubend, progress, now)
            return
        request = self._context.next_request()
        # Spread the retries: subscriptions whose requests were dropped together must not repeat them together.
        tries = progress.piece.tries if progress.piece is not None else 0
        usual = max(CATCH_UP_RETRY_S, ROUND_TRIPS * self._round_trips.get(pubend, 0.0))
        wait = min(usual * 2 ** min(tries, 8), LOG_WAIT_S_MAX if pubend in self._pubends else CATCH_UP_WAIT_S_MAX)
        progress.piece = PieceAsked(tries + 1, now + wait + CATCH_UP_SPREAD_S * (request % 8))
        lo = progress.position
        if pubend in self._pubends:
            order = ReadLog(pubend, 0, lo, min(target, self._pubends[pubend].horizon), CATCH_UP_BYTES)
            self._log_reads.ask(order, PastFromLog(subscription.number, pubend, lo))
            return
        self._send(request, _Asked(pubend, [subscription.number], now), str(subscription.filter), lo, target)

    def _ask_together(self, subscription: Subscription, pubend: int, progress: Progress, now: float) -> None:
        """Ask for the next piece of a subscription's cluster, or wait with it for the one that is under way."""
        past = self._pasts.setdefault(pubend, SharedPast(self._context.config.congestion))
        piece = past.near(progress.position, now)
        if piece is not None:
            piece.members.append(subscription.number)
            progress.piece = PieceAsked(0, piece.due)
            return
        turn = past.next_turn(now)
        if turn is not None:
            progress.piece = PieceAsked(0, min(turn, now + CATCH_UP_RETRY_S))
            return
        free = [(each, its) for each, its in self._edge.behind(pubend) if its.piece is None or now >= its.piece.retry_at]
        first, last = past.cluster([its.position for _, its in free], progress.position)
        members = sorted((its.position, each.number) for each, its in free if first <= its.position <= last)
        takers = [self._edge.subscriptions[number] for _, number in members]
        tries = 1 + max(
            (its.piece.tries for _, its in free if its.piece is not None and first <= its.position <= last), default=0
        )
        target = max(self._edge.target(each.progress[pubend], pubend) for each in takers)
        wanted, taken = union([each.filter for each in takers], self._context.filter)
        piece = past.ask(first, last, [each.number for each in takers], tries, len(str(wanted)), now)
        for each in takers:
            each.progress[pubend].piece = PieceAsked(tries, piece.due)
        asked = _Asked(pubend, piece.members[:taken], now, piece)
        self._send(self._context.next_request(), asked, str(wanted), first, target, piece.size)

    def _send(self, request: int, asked: _Asked, filter_: str, lo: int, hi: int, size: int = 0) -> None:
        self._requests[request] = asked
        while len(self._requests) > 4 * CATCH_UP_AT_ONCE:  # the oldest are most likely lost; the retry repeats them
            del self._requests[next(iter(self._requests))]
        broker = pubend_broker(asked.pubend)
        me = self._context.broker
        self._context.unicast(CatchUp(broker, me, FULL_HOPS, request, asked.pubend, filter_, lo, hi, False, size))

    def _take(
        self,
        subscription: Subscription,
        pubend: int,
        lo: int,
        hi: int,
        rows: list[Batch],
        released: int,
        now: float,
        *,
        more: bool,
    ) -> None:
        """Deliver the piece (lo, hi], also if its request was repeated meanwhile: on a slow link every answer is late.

        `released` is the tick up to which the log is deleted. With `more`, pieces of the same answer follow.
        """
        progress = subscription.progress.get(pubend)
        if progress is None or progress.state is not State.CATCHING_UP or lo > progress.position or hi <= progress.position:
            return
        if released > progress.position:
            self._edge.gap(subscription, pubend, released)
        self._edge.caught_up(subscription, pubend, hi, rows)
        if not self._edge.wants_more(subscription, pubend):
            return
        if more:  # they are on their way: do not request them
            progress.piece = PieceAsked(0, now + CATCH_UP_RETRY_S)
        else:
            self.next_piece(subscription, pubend, progress, now)
