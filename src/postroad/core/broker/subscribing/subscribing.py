"""Requests of subscribers: subscribe, unsubscribe, flow control, and what a lost connection means.

A subscription without a name begins immediately (`activation`), a durable one at its home (`durable_moves`).
"""

from __future__ import annotations

import msgspec

from postroad.core.broker.context import Context, SendWhenStored
from postroad.core.broker.log_reads import LogReads
from postroad.core.broker.subscribing.acknowledgements import Acknowledgements
from postroad.core.broker.subscribing.activation import Activation
from postroad.core.broker.subscribing.catching_up import CatchingUp
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.subscribing.durable_moves import DurableMoves
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.broker.views import ConfirmedHolds, HostedPubends, LogHolds, RelayedStreams
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import (
    Flow,
    Positions,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from postroad.errors import (
    DuplicateHandleError,
    DurableElsewhereError,
    FilterError,
    TooManyError,
    UnknownHandleError,
)


class Subscribing:
    """Handles the requests of subscribers."""

    def __init__(
        self,
        context: Context,
        pubends: HostedPubends,
        streams: RelayedStreams,
        edge: Edge,
        durables: Durables,
        keeper: ConfirmedHolds,
        holds: LogHolds,
        log_reads: LogReads,
    ) -> None:
        self._context = context
        self._edge = edge
        self._durables = durables
        self._keeper = keeper
        self.acknowledgements = Acknowledgements(context, edge, durables)
        self.catching_up = CatchingUp(context, pubends, streams, edge, log_reads)
        self.activation = Activation(
            context, pubends, streams, edge, durables, keeper, holds, self.catching_up, self.acknowledgements
        )
        self.moves = DurableMoves(context, pubends, streams, edge, durables, self.activation, self.acknowledgements)

    def subscribe(self, link: LinkId, packet: Subscribe, request: int, now: float) -> None:
        context = self._context
        if self.is_in_use(link, packet.handle):
            context.refuse(link, request, DuplicateHandleError(f"handle {packet.handle} is in use on this connection"))
            return
        if len(self._edge.subscriptions) >= context.config.subscriptions_max:
            context.refuse(
                link, request, TooManyError(f"this broker allows at most {context.config.subscriptions_max} subscriptions")
            )
            return
        if self._identity_has_too_many(link):
            most = context.config.subscriptions_per_identity_max
            context.refuse(link, request, TooManyError(f"one identity has at most {most} subscriptions at this broker"))
            return
        try:
            too_many = self._edge.filter_load.check(link, context.filter(packet.filter))
        except FilterError as error:
            context.refuse(link, request, error)
            return
        if too_many is not None:
            context.refuse(link, request, too_many)
            return
        positions, done = self.activation.check_positions(packet)
        packet = msgspec.structs.replace(packet, positions=positions, acknowledged=done)
        if packet.name is None:
            self.activation.begin(link, request, packet, positions, done, now)
        else:
            self.moves.subscribe(link, request, packet, packet.name, now)

    def _identity_has_too_many(self, link: LinkId) -> bool:
        owner, rights = self._context.rights_of(link).owner, self._context.rights
        if not owner:
            return False
        own = sum(self._edge.count_of_link(each) for each, of_link in rights.items() if of_link.owner == owner)
        return own >= self._context.config.subscriptions_per_identity_max

    def is_in_use(self, link: LinkId, handle: int) -> bool:
        """Tell whether a connection has a subscription with this handle, or waits for one."""
        return self.moves.is_waiting(link, handle) or self._edge.find(link, handle) is not None

    def unsubscribe(self, link: LinkId, packet: Unsubscribe, request: int, now: float) -> None:
        subscription = self._edge.find(link, packet.handle)
        if self.moves.give_up(link, packet.handle):
            if packet.forget:  # only the home can delete: it may serve another client, or know a newer version
                self._context.refuse(link, request, _not_deleted())
            else:
                self._context.send(link, Unsubscribed(packet.handle), request)
            return
        if subscription is None:
            self._context.refuse(link, request, UnknownHandleError(f"this connection has no subscription {packet.handle}"))
            return
        if subscription.name is not None and packet.forget:
            self._forget(subscription.name, link, packet, request)
            self.activation.drop((subscription,), now)
            self._edge.remove(subscription)
            return
        if subscription.name is not None:
            self.moves.leave(subscription)
        self.activation.drop((subscription,), now)
        self._edge.end(subscription, request)

    def _forget(self, name: str, link: LinkId, packet: Unsubscribe, request: int) -> None:
        """Delete a durable subscription everywhere; its client is told when the deletion is on disk."""
        context = self._context
        context.flood(self._durables.forget(name))
        context.store(self._durables.changes(), SendWhenStored(link, Unsubscribed(packet.handle), request))

    def flow(self, link: LinkId, packet: Flow, now: float) -> None:
        subscription = self._edge.find(link, packet.handle)
        if subscription is None:
            return
        self._edge.flow(subscription, is_open=packet.open)
        if packet.open:
            for pubend in subscription.progress:
                self.catching_up.serve(pubend, now)

    def link_lost(self, link: LinkId, now: float) -> None:
        """Remove the subscriptions of a lost link, but hold the logs so that the clients can come back."""
        self.moves.link_lost(link)
        gone = self._edge.of_link(link)
        kept: Positions = {}
        for subscription in gone:
            if subscription.name is not None:
                self.moves.leave(subscription)
            else:
                for pubend, tick in self._edge.cursors(subscription).items():
                    kept[pubend] = min(tick, kept.get(pubend, tick))
        self._keeper.keep_until(now + self._context.config.subscriber_grace_s, kept)
        self.activation.drop(gone, now)
        self._edge.link_lost(link)

    def wake(self, now: float) -> None:
        """Repeat questions to other brokers, and end those that take too long."""
        self.moves.ask_former_homes(now)
        self.activation.ask_for_proofs(now)
        self.moves.wake(now)


def _not_deleted() -> DurableElsewhereError:
    return DurableElsewhereError(
        "not deleted: this broker is not the home of the subscription, and does not know the home or has no answer from it; "
        "try again later"
    )
