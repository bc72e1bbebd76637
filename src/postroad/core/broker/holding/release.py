"""Holds on their way: what this broker needs of others' logs, and what others need of ours."""

from __future__ import annotations

from typing import Final

import msgspec

from postroad.core.broker.context import FULL_HOPS, Parts
from postroad.core.broker.holding.holds import FLOOR_KEY
from postroad.core.protocol.orders import ReleaseLog
from postroad.core.protocol.packets import Hold, HoldConfirmed, Positions, pubend_broker

LAZY_STORE_S: Final = 5.0


class Releasing:
    """Sends and takes holds, and releases what nobody holds."""

    def __init__(self, parts: Parts, floor: Positions) -> None:
        self._parts = parts
        self._floor = dict(floor)  # as stored
        self._store_at = 0.0
        self._ordered: dict[int, int] = {}  # pubend -> tick already ordered to be released
        self._storing: dict[int, Hold | None] = {}  # holders of which a hold is being stored -> the newest that came meanwhile

    # --- our holds ---

    def needed(self) -> Positions:
        parts = self._parts
        return parts.keeper.lowest(parts.edge.holds(), parts.durables.holds())

    def tell(self, *, again: bool = False) -> None:
        """Send every pubend's broker what we need of it, where that changed; with `again`, also what it did not confirm.

        After a start every broker is told once, also that we need nothing: a former life may have crashed before it could say so.
        """
        needed = self.needed()
        by_broker: dict[int, Positions] = {pubend_broker(pubend): {} for pubend in self._parts.streams}
        for pubend, tick in needed.items():
            by_broker.setdefault(pubend_broker(pubend), {})[pubend] = tick
        for broker, ticks in by_broker.items():
            if not self._parts.router.reachable(broker):
                continue
            version = self._parts.keeper.to_send(broker, ticks, again=again)
            if version is not None:
                hold = Hold(broker, self._parts.broker, FULL_HOPS, self._parts.incarnation, version, ticks)
                if broker == self._parts.broker:
                    self.take(hold)
                else:
                    self._parts.unicast(hold)

    def tell_for(self, positions: Positions) -> None:
        """Send holds if a new subscription needs more than is held."""
        for pubend, tick in positions.items():
            if not self._parts.keeper.holds_already(pubend_broker(pubend), {pubend: tick}):
                self.tell()
                return

    def floor_changes(self, positions: Positions) -> tuple[tuple[str, bytes | None], ...]:
        """Return what must be stored before a new subscription counts on our holds: a floor that is new or lower."""
        if all(pubend in self._floor and self._floor[pubend] <= tick for pubend, tick in positions.items()):
            return ()
        for pubend, tick in positions.items():
            self._floor[pubend] = min(tick, self._floor.get(pubend, tick))
        return ((FLOOR_KEY, msgspec.msgpack.encode(self._floor)),)

    def confirmed(self, packet: HoldConfirmed) -> None:
        """Take the answer to a hold of ours."""
        self._parts.keeper.confirmed(packet.source, packet.incarnation, packet.version, packet.released)

    # --- others' holds ---

    def take(self, hold: Hold) -> None:
        """Take a hold; confirm it, after it is durable if it is new or lower than before."""
        here = self._parts.pubends
        ticks = {pubend: min(tick, here[pubend].horizon) for pubend, tick in hold.ticks.items() if pubend in here}
        taken = self._parts.table.take(msgspec.structs.replace(hold, ticks=ticks))
        if not taken.accepted:
            if taken.newer is not None and hold.source != self._parts.broker:
                newest = taken.newer.incarnation, taken.newer.version
                self._parts.unicast(HoldConfirmed(hold.source, self._parts.broker, FULL_HOPS, *newest, {}, refused=True))
            return
        if hold.source in self._storing:
            self._storing[hold.source] = hold
        elif taken.store:
            self._store(hold)
        else:
            self._confirm(hold)

    def _store(self, hold: Hold) -> None:
        """Store a hold, then what came of its holder meanwhile: on a slow disk no more than one write of each waits."""
        self._storing[hold.source] = None

        def stored(_now: float) -> None:
            newest = self._storing.pop(hold.source)
            self._confirm(hold)
            if newest is not None and newest != hold:
                self._store(newest)

        self._parts.store(self._parts.table.changes(), stored)

    def _confirm(self, hold: Hold) -> None:
        here = [p for p in hold.ticks if p in self._parts.pubends]
        released = {p: max(self._parts.pubends[p].released, self._ordered.get(p, 0)) for p in here}
        me, them = self._parts.broker, hold.source
        packet = HoldConfirmed(them, me, FULL_HOPS, hold.incarnation, hold.version, released)
        if them == me:
            self.confirmed(packet)
        else:
            self._parts.unicast(packet)

    def release(self, now: float) -> None:
        """Order the release of what nobody holds and the configured time has passed; store lazily what rose."""
        homes = self._parts.durables.home_brokers() - set(self._parts.config.retired)
        for pubend_id, pubend in self._parts.pubends.items() if now >= self._parts.keep_all_until else ():
            if not self._parts.table.is_held_by(homes, pubend_id):
                continue  # a durable subscription there has not heard of this pubend yet: it belongs to it from the first tick
            held = self._parts.table.lowest(pubend_id)
            kept = (self._parts.wall_ms - int(self._parts.config.keep_s * 1000)) << 16
            tick = min(pubend.last if held is None else held, kept, pubend.last)  # where no message is, nothing is gone
            if self._parts.notes is not None:  # what is not tracked yet must be there after a crash
                tick = min(tick, self._parts.tracked.get(pubend_id, 0))
            if tick > max(pubend.released, self._ordered.get(pubend_id, 0)):
                self._ordered[pubend_id] = tick
                self._parts.orders.append(ReleaseLog(pubend_id, tick))
        if now >= self._store_at:
            self._store_at = now + LAZY_STORE_S
            changes = self._parts.table.changes()
            needed = self.needed()
            if needed != self._floor:
                self._floor = needed
                changes += ((FLOOR_KEY, msgspec.msgpack.encode(needed)),)
            if changes:
                self._parts.store(changes)
