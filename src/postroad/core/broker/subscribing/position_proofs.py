"""Checks positions that a client or a home broker sends against the horizons of their pubends.

A subscription continues at its position, and everything up to it is never sent. A position beyond the pubend's horizon would
therefore suppress messages that do not exist yet. Each position is compared with the highest tick that this broker knows of the
pubend. A higher position is *unproven*: it moves no cursor, the subscription waits in that pubend, and the pubend's broker is
asked for its horizon. The answer proves the position of an honest client that comes from a broker which was further. A position
beyond the answer is *void*: the subscription continues from the cursor of its home, or from its creation, so nothing is skipped.

Only pubends that some broker has announced can be checked. Others may be announced later, so their positions are kept while the
client is connected: at most `UNKNOWN_MAX` per subscription and `UNKNOWN_TOTAL_MAX` in all. They are never stored.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.subscribing.subscription import Subscription
from postroad.core.broker.views import HostedPubends, RelayedStreams
from postroad.core.protocol.packets import Positions, PubendsQuery, PubendsReply, Subscribe, pubend_broker
from postroad.errors import TooManyError
from postroad.types import COUNTER_BITS

UNKNOWN_MAX: Final = 1024
UNKNOWN_TOTAL_MAX: Final = 1 << 16
ASK_AGAIN_S: Final = 1.0


class PositionProofs:
    """The unproven positions of one broker's subscriptions."""

    def __init__(self, context: Context, pubends: HostedPubends, streams: RelayedStreams) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._horizons: Positions = {}  # the last answer for each pubend
        self._unproven: dict[int, dict[int, Subscription]] = {}  # pubend -> number of subscription
        self._asked: dict[int, tuple[int, float]] = {}  # broker -> (the last query, when it is repeated)
        self._fresh: dict[int, None] = {}  # brokers to query at once, because of a new position
        self._unknown: dict[int, int] = {}  # number of subscription -> positions kept in pubends that nobody announced
        self._unknown_total = 0

    # --- bounds ---

    def take(self, packet: Subscribe) -> tuple[Positions, Positions]:
        """Return the positions and acknowledgements of a request, within bounds."""
        room = min(UNKNOWN_MAX, UNKNOWN_TOTAL_MAX - self._unknown_total)
        unknown = (pubend for pubend in packet.positions if not self._is_known(pubend))
        if next(islice(unknown, room, None), None) is not None:  # counting all would hold up others
            raise TooManyError(
                f"the subscription has positions for more than {room} pubends that this broker does not know; "
                f"at most {UNKNOWN_MAX} are allowed for one subscription and {UNKNOWN_TOTAL_MAX} for all"
            )
        positions = dict(packet.positions)
        done = {pubend: min(tick, positions[pubend]) for pubend, tick in packet.acknowledged.items() if pubend in positions}
        return positions, done

    def begin(self, subscription: Subscription) -> None:
        """Record which positions of a new subscription are unproven."""
        unknown = 0
        for pubend, tick in subscription.positions.items():
            if not self._is_known(pubend):
                unknown += 1
                subscription.unproven[pubend] = None
            elif not self._is_plausible(pubend, tick):
                subscription.unproven[pubend] = None
        if unknown:
            self._unknown[subscription.number] = unknown
            self._unknown_total += unknown

    def end(self, subscription: Subscription) -> None:
        self._unknown_total -= self._unknown.pop(subscription.number, 0)
        for pubend in subscription.unproven:
            self._unproven.get(pubend, {}).pop(subscription.number, None)

    # --- proof ---

    def limit(self, pubend: int) -> int:
        """Return the highest tick that this broker knows a pubend to have announced."""
        hosted = self._pubends.get(pubend)
        if hosted is not None:
            return hosted.horizon
        stream = self._streams.get(pubend)
        known = max(stream.cache.frontier, stream.active_tick) if stream is not None else 0
        return max(known, self._horizons.get(pubend, 0))

    def likely(self, positions: Positions, done: Positions) -> Positions:
        """Return cursors for a subscription whose home is unreachable: its client's positions, but not beyond our clock."""
        now = self._context.wall_ms << COUNTER_BITS
        return {pubend: min(done.get(pubend, tick), now) for pubend, tick in positions.items() if self._is_known(pubend)}

    def check(self, subscription: Subscription, pubend: int) -> int | None:
        """Prove a position if that is possible without a query. Return the horizon of a hosted pubend if it is void."""
        tick, limit = subscription.positions.get(pubend, 0), self.limit(pubend)
        if tick <= limit:
            self._settle(subscription, pubend)
            return None
        if pubend in self._pubends:
            return limit
        subscription.unproven[pubend] = None
        self._unproven.setdefault(pubend, {})[subscription.number] = subscription
        subscription.progress[pubend].question = 0
        self._fresh[pubend_broker(pubend)] = None
        return None

    def void(self, subscription: Subscription, pubend: int, tick: int) -> None:
        """Replace a position that was found to be void."""
        subscription.positions[pubend] = subscription.done[pubend] = tick
        self._settle(subscription, pubend)

    def ask(self, now: float) -> None:
        """Query the brokers of unproven positions for their horizons, and repeat queries without an answer."""
        if not self._unproven and not self._asked and not self._fresh:
            return
        brokers = dict.fromkeys(pubend_broker(pubend) for pubend, waiting in self._unproven.items() if waiting)
        for broker in brokers:
            _, again_at = self._asked.get(broker, (0, 0.0))
            if broker in self._fresh or now >= again_at:
                request = self._context.next_request()
                self._context.unicast(PubendsQuery(broker, self._context.broker, FULL_HOPS, request))
                self._asked[broker] = request, now + ASK_AGAIN_S
                self._stamp(broker, request)
        self._fresh.clear()
        self._asked = {broker: asked for broker, asked in self._asked.items() if broker in brokers}

    def told(self, reply: PubendsReply) -> list[tuple[Subscription, int, int]]:
        """Handle an answer; return each (subscription, pubend, horizon) that it decides.

        A position is void only by the answer to a query that was sent after it arrived: an older answer may be out of date.
        """
        if reply.source not in self._asked:
            return []
        decided: list[tuple[Subscription, int, int]] = []
        for span in reply.spans:
            waiting = self._unproven.get(span.pubend)
            if not waiting or pubend_broker(span.pubend) != reply.source:
                continue
            self._horizons[span.pubend] = span.horizon
            for subscription in list(waiting.values()):
                question = subscription.progress[span.pubend].question
                proven = subscription.positions[span.pubend] <= span.horizon
                if proven or 0 < question <= reply.request:
                    decided.append((subscription, span.pubend, span.horizon))
        return decided

    # --- inside ---

    def _is_known(self, pubend: int) -> bool:
        return pubend in self._streams or pubend in self._context.known.get(pubend_broker(pubend), ())

    def _is_plausible(self, pubend: int, tick: int) -> bool:
        """Tell whether a position may move a cursor before it is proven.

        It may if it is within the known stream, or if its broker is unreachable and it is not later than our clock.
        """
        if tick <= self.limit(pubend):
            return True
        return not self._context.routes.reachable(pubend_broker(pubend)) and tick <= self._context.wall_ms << COUNTER_BITS

    def _settle(self, subscription: Subscription, pubend: int) -> None:
        subscription.unproven.pop(pubend, None)
        waiting = self._unproven.get(pubend, {})
        waiting.pop(subscription.number, None)
        if not waiting:
            self._unproven.pop(pubend, None)

    def _stamp(self, broker: int, request: int) -> None:
        for pubend, waiting in self._unproven.items():
            if pubend_broker(pubend) == broker:
                for subscription in waiting.values():
                    progress = subscription.progress[pubend]
                    progress.question = progress.question or request
