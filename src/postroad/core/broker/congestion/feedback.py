"""PDCC: queries to the brokers below a pubend, their alerts, and the rate that follows (section 3.1).

At the pubend's broker: every `query_s` each hosted pubend sends a query, and its rule learns what was published. Alerts come in
consolidated, as at a relay (Fig. 5); the rule then decides the rate, which the pubend's pacer keeps.
At every other broker of the tree: a query goes on to the children. If the broker has subscribers, it answers for itself; its
answer counts like that of a child. Silence up to the position of a query goes with it, so that quiet streams are not behind.

Only alerts slow a pubend down. A broker that is away sends none, and one with the rule `none` passes on those of others only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from postroad.core.broker.congestion.consolidation import Alert, Consolidation, slower
from postroad.core.broker.congestion.doubt_meter import RATE_MAX, DoubtMeter, DoubtReading
from postroad.core.broker.congestion.improved_rule import QUEUE_MS_ALERT
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.rate_rule import RateRule, Throttle, make_rate_rule
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import LinkId, Send
from postroad.core.protocol.packets import CongestionAlert, CongestionQuery, SlowestBroker

SEQUENCES_LATE_MAX: Final = 60  # an older alert says nothing of the present


class PacedPubend(Protocol):
    """A pubend of this broker, as congestion control sees it."""

    horizon: int
    published: PublishedCount

    def hold_to(self, throttle: Throttle | None, now: float) -> None: ...


class Tree(Protocol):
    """The stream of a pubend at this broker: who is above and below."""

    hosted_here: bool
    parent: LinkId | None

    @property
    def children(self) -> list[LinkId]: ...

    def flush_through(self, tick: int) -> None: ...


class DeliveryProgress(Protocol):
    """How far this broker's subscribers are in a stream; `engaged` of them take part."""

    engaged: int
    delivered: int

    @property
    def recovering(self) -> bool: ...


@dataclass(slots=True)
class _Source:
    """What a hosted pubend's congestion control remembers."""

    rule: RateRule
    alerts: Consolidation
    throttle: Throttle | None = None


@dataclass(slots=True)
class _Followed:
    """The same of a pubend elsewhere whose queries come here."""

    meter: DoubtMeter
    alerts: Consolidation
    sequence: int = 0


class Feedback:
    """The congestion control of one broker."""

    def __init__(
        self,
        broker: int,
        incarnation: int,
        settings: CongestionSettings,
        pubends: Mapping[int, PacedPubend],
        orders: list[Output],
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._pubends = pubends
        self._orders = orders
        self._query_at = 0.0
        self._sequence = incarnation << 32
        self._first_sequence = self._sequence
        self._sources: dict[int, _Source] = {}
        if settings.rule is not Rule.NONE:
            self._sources = {pubend: _Source(make_rate_rule(settings), Consolidation()) for pubend in pubends}
        self._followed: dict[int, _Followed] = {}
        self.alerts_taken = 0

    # --- at the pubend's broker ---

    def is_due(self, now: float) -> bool:
        """Tell whether the hosted pubends are to send queries now. Silence up to now must be announced first."""
        return bool(self._sources) and now >= self._query_at

    def query(self, trees: Mapping[int, Tree], now: float, wall_ms: int) -> None:
        """Send a query for each hosted pubend."""
        self._query_at = now + self._settings.query_s
        self._sequence += 1
        for pubend, source in self._sources.items():
            hosted = self._pubends[pubend]
            hosted.published.sample(now, hosted.horizon)
            source.rule.queried(self._sequence, hosted.published, now)
            hosted.published.end_interval()
            self._apply(pubend, source, None, now, wall_ms)
            trees[pubend].flush_through(hosted.horizon)
            packet = CongestionQuery(pubend, self._sequence, hosted.horizon)
            self._orders.extend(Send(child, packet) for child in trees[pubend].children)

    def _apply_alert(self, pubend: int, source: _Source, alert: Alert, now: float, wall_ms: int) -> None:
        passed = source.alerts.take(alert)
        if passed is None:
            return
        self.alerts_taken += 1
        source.rule.alerted(passed, self._pubends[pubend].published, now)
        reason = slower(passed.live, passed.recovering)
        self._apply(pubend, source, reason, now, wall_ms)
        if self._settings.rule is Rule.IMPROVED and reason is not None:
            self._even_out(reason.broker, now, wall_ms)

    def _apply(self, pubend: int, source: _Source, reason: DoubtReading | None, now: float, wall_ms: int) -> None:
        """Let the pubend keep the rate that its rule has decided."""
        rate, before = source.rule.rate, source.throttle
        if rate is None:
            source.throttle = None
        elif before is None:
            source.throttle = Throttle(rate, wall_ms, reason.broker if reason is not None else 0)
        elif rate != before.rate or (reason is not None and reason.broker != before.broker):
            source.throttle = Throttle(rate, before.since_ms, before.broker if reason is None else reason.broker)
        self._pubends[pubend].hold_to(source.throttle, now)

    def _even_out(self, broker: int, now: float, wall_ms: int) -> None:
        """Give the pubends that slow down for one broker, and use up their rates, the mean of them."""
        sharing = [
            (pubend, source)
            for pubend, source in self._sources.items()
            if source.throttle is not None and source.throttle.broker == broker and self._pubends[pubend].published.is_held_back
        ]
        if len(sharing) < 2:
            return
        mean = sum(source.rule.rate or 0.0 for _, source in sharing) / len(sharing)
        for pubend, source in sharing:
            source.rule.rate = mean
            self._apply(pubend, source, None, now, wall_ms)

    # --- at the other brokers ---

    def sample(self, pubend: int, doubt: DeliveryProgress, now: float) -> None:
        """Measure how fast the doubt horizon of a stream moves here, if its pubend asks for that."""
        followed = self._followed.get(pubend)
        if followed is None:
            return
        if doubt.engaged:
            followed.meter.sample(doubt.delivered, recovering=doubt.recovering, now=now)
        else:
            followed.meter.forget()

    def queried(self, query: CongestionQuery, tree: Tree, doubt: DeliveryProgress) -> None:
        """Pass a query on to the children, and answer for this broker's own subscribers."""
        followed = self._followed.get(query.pubend)
        if followed is None:
            queue_ms = QUEUE_MS_ALERT if self._settings.rule is Rule.IMPROVED else None
            followed = _Followed(DoubtMeter(self._settings, self._broker, queue_ms), Consolidation())
            self._followed[query.pubend] = followed
        if query.sequence <= followed.sequence:
            return  # it came twice, or from a former parent
        followed.sequence = query.sequence
        tree.flush_through(query.position)
        self._orders.extend(Send(child, query) for child in tree.children if child != tree.parent)
        if not doubt.engaged or self._settings.rule is Rule.NONE:
            return
        reading = followed.meter.queried(query.position, doubt.delivered, recovering=doubt.recovering)
        if reading is not None:
            pair = (None, reading) if doubt.recovering else (reading, None)
            self._pass_on(query.pubend, followed, Alert(query.sequence, *pair), tree)

    def alerted(self, alert: CongestionAlert, tree: Tree, now: float, wall_ms: int) -> None:
        """Take the alert of a child: it concerns a pubend of this broker, or goes on to the parent."""
        taken = Alert(alert.sequence, _reading(alert.live), _reading(alert.recovering))
        if tree.hosted_here:
            source = self._sources.get(alert.pubend)
            late = self._sequence - alert.sequence
            if source is not None and 0 <= late <= SEQUENCES_LATE_MAX and alert.sequence > self._first_sequence:
                self._apply_alert(alert.pubend, source, taken, now, wall_ms)
            return
        followed = self._followed.get(alert.pubend)
        if followed is not None and alert.sequence <= followed.sequence:
            self._pass_on(alert.pubend, followed, taken, tree)

    def _pass_on(self, pubend: int, followed: _Followed, alert: Alert, tree: Tree) -> None:
        passed = followed.alerts.take(alert)
        if passed is not None and tree.parent is not None:
            packet = CongestionAlert(pubend, passed.sequence, _pack(passed.live), _pack(passed.recovering))
            self._orders.append(Send(tree.parent, packet))

    # --- what can be seen ---

    def throttles(self) -> dict[int, Throttle]:
        """Return the pubends of this broker that are held to a rate."""
        return {pubend: source.throttle for pubend, source in self._sources.items() if source.throttle is not None}


def _reading(packed: SlowestBroker | None) -> DoubtReading | None:
    if packed is None or not 0 <= packed.rate <= RATE_MAX:  # not a number: msgspec takes that for a number within its bounds
        return None
    return DoubtReading(packed.rate, packed.lag_ms, packed.broker)


def _pack(reading: DoubtReading | None) -> SlowestBroker | None:
    return None if reading is None else SlowestBroker(reading.rate, reading.lag_ms, reading.broker)
