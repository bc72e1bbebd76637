"""The nine traps of `docs/internals/overlay.md`: for each, the product without what guards against it.

`tests/sim/test_traps.py` runs each in a schedule written for its trap; `make mutants` looks for them in random runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from tests.mutants.planting import Planter, mutant

from postroad.core.broker.holding.table import HoldTable
from postroad.core.broker.incarnations import Incarnations
from postroad.core.broker.machine import Broker
from postroad.core.broker.publishing.pubend import Pubend
from postroad.core.broker.relaying.stream import Stream
from postroad.core.broker.subscribing.activation import Activation
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.subscribing.edge import FOREVER, Edge, EdgeStream
from postroad.core.broker.subscribing.subscription import State
from postroad.core.protocol.packets import pubend_broker
from postroad.core.session.machine import Session
from postroad.core.session.publishing import Registration
from postroad.sim.network import End


@mutant("relaying")
def take_any_silence(plant: Planter) -> None:
    """Trap 1: silence counts for everybody, whatever interest it was asked under."""
    plant.set(EdgeStream, "need_at", lambda _self, _tick: (0, FOREVER))
    plant.set(Stream, "_suffices", lambda _self, _label, _child: True)
    plant.set(Stream, "_complete_from", lambda _self, _wanted: 0)


@mutant("subscribing")
def start_before_the_path_is_ready(plant: Planter) -> None:
    """Trap 2: a subscription starts when its interest was sent, not when the whole path applies it."""

    def activate_sent(self: Activation, pubend: int, tick: int | None) -> None:
        stream = self._streams[pubend]
        for subscription in self._edge.waiting(pubend, stream.epoch_sent):
            self._edge.activate(subscription, pubend, stream.cache.frontier if tick is None else tick)
            self._unsettled[subscription.number] = self._ready[subscription.number] = subscription

    plant.set(Activation, "_activate_waiting", activate_sent)
    plant.set(Activation, "_is_ready", lambda _self, _pubend, progress: progress.state is State.ACTIVE)
    plant.set(EdgeStream, "require", lambda _self, _tick, _label: None)


@mutant("publishing", "clock step", "broker crash")
def forget_the_announced_horizon(plant: Planter) -> None:
    """Trap 3: silence is announced up to the clock and nothing is reserved for it, so that it is forgotten in a crash."""

    def make(init: Any) -> Any:
        def forgetful(self: Pubend, state: Any, _reserved: int, orders: Any) -> None:
            init(self, state, 0, orders)

        return forgetful

    def make_silence(silence: Any) -> Any:
        def unreserved(self: Pubend, wall_ms: int) -> Any:
            reserved, self.reserved = self.reserved, wall_ms << 16
            try:
                return silence(self, wall_ms)
            finally:
                self.reserved = reserved

        return unreserved

    def make_told(told: Any) -> Any:
        def deaf(self: Incarnations, packet: Any, now: float, **how: Any) -> None:
            told(self, msgspec.structs.replace(packet, incarnation=0), now, **how)

        return deaf

    plant.wrap(Pubend, "__init__", make)
    plant.wrap(Pubend, "silence", make_silence)
    plant.wrap(Incarnations, "told", make_told)


@mutant("publishing", "broker crash", "far publishers")
def forget_publishers_without_a_link(plant: Planter) -> None:
    """Trap 4: the ids of a publisher are known while it is connected only."""

    def make(init: Any) -> Any:
        def forgetful(self: Pubend, state: Any, *rest: Any) -> None:
            init(self, replace(state, publishers=()), *rest)

        return forgetful

    def make_durable(durable: Any) -> Any:
        def forget(self: Pubend, publisher: int, tick: int) -> None:
            durable(self, publisher, tick)
            entry = self._publishers.get(publisher)
            if entry is not None and entry.link is None:
                del self._publishers[publisher]

        return forget

    plant.wrap(Pubend, "__init__", make)
    plant.wrap(Pubend, "_durable", make_durable)


@mutant("holding")
def drop_the_holds_of_the_unreachable(plant: Planter) -> None:
    """Trap 5: the hold of a broker to which no way leads is dropped."""

    def make(changed: Any) -> Any:
        def drop(self: Broker, now: float) -> None:
            router = self._router
            for broker in {pubend_broker(pubend): None for pubend in router.pubends()}:
                if not router.reachable(broker):
                    self._table._records.pop(broker, None)
            changed(self, now)

        return drop

    plant.wrap(Broker, "_routes_changed", make)
    plant.set(HoldTable, "is_held_by", lambda _self, _brokers, _pubend: True)


@mutant("durable names")
def take_the_cursors_of_the_home(plant: Planter) -> None:
    """Trap 6: where a durable subscription goes on is what its home has heard of, not what its client says."""

    def cursors_first(_self: Durables, cursors: Mapping[int, int], brought: Mapping[int, int]) -> dict[int, int]:
        return {**brought, **cursors}

    plant.set(Durables, "positions", cursors_first)


@mutant("relaying", "link squeeze")
def drop_control_when_full(plant: Planter) -> None:
    """Trap 7: a full backlog drops control frames as it drops data."""

    def overflows(self: End, size: int, _data: bool) -> bool:
        profile = self.cable.profile
        return profile.drops_data and self.queued > 0 and self.queued + size > profile.backlog_bytes_max

    plant.set(End, "_overflows", overflows)


@mutant("relaying")
def trust_that_knowledge_comes_once(plant: Planter) -> None:
    """Trap 8: knowledge is taken from every neighbour, and delivered each time it comes."""

    def make(learned: Any) -> Any:
        def deliver_again(self: Broker, pubend: int, segment: Any, now: float, **how: Any) -> None:
            stream = self._streams.ensure(pubend)
            edge = self._edge.streams[pubend]
            if segment.label <= stream.epoch_active and segment.hi <= edge.delivered:
                _deliver_known(self._edge, pubend, segment)
            learned(self, pubend, segment, now, **how)

        return deliver_again

    plant.set(Broker, "_is_parent", lambda self, pubend, _link: pubend in self._streams)
    plant.wrap(Broker, "_spread_knowledge", make)


def _deliver_known(edge: Edge, pubend: int, segment: Any) -> None:
    """Deliver a stretch to live subscriptions as if none of them had it."""
    places = [each.progress[pubend] for each in edge.subscriptions.values() if pubend in each.progress]
    positions = [place.position for place in places]
    for place in places:
        place.position = min(place.position, segment.lo)
    edge.deliver(pubend, segment)
    for place, position in zip(places, positions, strict=True):
        place.position = position


@mutant("session")
def publish_doubtful_messages_elsewhere(plant: Planter) -> None:
    """Trap 9: what one broker has not acknowledged is given to the next one."""

    def make(use: Any) -> Any:
        def republish(self: Session, publisher: Any, registration: Registration) -> None:
            use(self, publisher, registration)
            for other in publisher.registrations.values():
                if other is not registration:
                    for attributes, payload in _abandon(other):
                        registration.add(attributes, payload, self._clock_ms)

        return republish

    plant.wrap(Session, "_use", make)


def _abandon(registration: Registration) -> list[tuple[Any, bytes]]:
    """Give up every message of a registration and return what they held."""
    registration._seal()
    given_up: list[tuple[Any, bytes]] = []
    for frame in registration._frames:
        rows = frame.rows if frame.batch is None else [(None, dict(m.attributes), m.payload) for m in frame.batch]
        given_up.extend((attributes, payload) for _, attributes, payload in rows)
    registration._frames.clear()
    registration.messages = registration.bytes = registration._in_flight = 0
    return given_up
