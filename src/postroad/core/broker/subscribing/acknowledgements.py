"""Acknowledgements: how far the clients of durable subscriptions are, and when that is durable.

A client that asks for it is told when its acknowledgement is stored: from then on it never gets those messages again. All that is
acknowledged while one write is under way is stored by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from postroad.core.broker.context import Context
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Acknowledge, AcknowledgementStored, Positions


@dataclass(frozen=True, slots=True)
class AcknowledgementsStored:
    """Work after a write: confirm to clients what they acknowledged, by number of subscription."""

    positions: dict[int, Positions]


class Acknowledgements:
    """What clients wait to be stored."""

    def __init__(self, context: Context, edge: Edge, durables: Durables) -> None:
        self._context = context
        self._edge = edge
        self._durables = durables
        self._asked: dict[int, Positions] = {}  # number of subscription -> cursors its client wants to know stored
        self._early: dict[int, Positions] = {}  # the same for those whose home has not settled here
        self._storing = False

    def take(self, link: LinkId, packet: Acknowledge) -> None:
        """Note what a client has processed; with `confirm`, tell it when that is durable."""
        subscription = self._edge.find(link, packet.handle)
        if subscription is None:
            return  # it ended while the acknowledgement was on its way
        self._edge.acknowledge(subscription, packet.positions)
        if subscription.name is None:
            return
        cursors = self._edge.cursors(subscription)
        self._durables.moved_on(subscription.name, cursors)
        if packet.confirm:
            asked = self._asked.setdefault(subscription.number, {})
            asked.update({pubend: cursors[pubend] for pubend in packet.positions if pubend in cursors})
            self._store()

    def _store(self) -> None:
        """Store what clients wait for, all that came while the last write was under way with one write, then confirm it."""
        if self._storing or not self._asked:
            return
        asked, self._asked = self._asked, {}
        subscriptions, durables = self._edge.subscriptions, self._durables
        for number, positions in asked.items():
            name = subscriptions[number].name if number in subscriptions else None
            if name in durables.here and not durables.is_kept(name, positions):
                durables.mark(name)
        if durables.dirty:
            self._storing = True
            self._context.store(durables.changes(), AcknowledgementsStored(asked))
        else:
            self.stored(asked)

    def stored(self, asked: dict[int, Positions]) -> None:
        """Confirm what is durable now, and go on with what was acknowledged meanwhile."""
        self._storing = False
        for number, positions in asked.items():
            self._confirm(number, positions)
        self._store()

    def _confirm(self, number: int, positions: Positions) -> None:
        subscription = self._edge.subscriptions.get(number)
        if subscription is None or subscription.name is None:
            return  # its client asks again where it is now
        durable = self._durables.here.get(subscription.name)
        if durable is not None and not durable.settled:  # its client may still go back to the former home, which knows less
            self._early.setdefault(number, {}).update(positions)
            return
        if self._durables.is_kept(subscription.name, positions):
            self._context.send(subscription.link, AcknowledgementStored(subscription.handle, positions))

    def settled(self, subscription: int) -> None:
        """Go on with what the client of a durable subscription asked before this broker was its home."""
        early = self._early.pop(subscription, None)
        if early is not None:
            self._asked.setdefault(subscription, {}).update(early)
            self._store()

    def forget(self, subscription: int) -> None:
        """Forget what a subscription that ends had asked before its home settled."""
        self._early.pop(subscription, None)
