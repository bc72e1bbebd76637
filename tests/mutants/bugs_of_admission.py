"""Planted bugs in admission control: reservations, advertisements, the gate of publishers."""

from __future__ import annotations

from typing import Any

from tests.mutants.planting import Planter, mutant

from postroad.core.broker.admission.admission import Admission
from postroad.core.broker.admission.publisher_gate import PublisherGate
from postroad.core.broker.admission.reservations import Reservations
from postroad.core.broker.admission.spreading import AdvertisementSpread

NEEDED = "admission control"


@mutant("admission", NEEDED)
def reserve_for_ever(plant: Planter) -> None:
    """A subscription that ends releases nothing."""

    def make(dropped: Any) -> Any:
        def forgetful(self: Admission, number: int, name: str | None) -> None:
            self._held.pop(number, None)
            dropped(self, number, name)

        return forgetful

    plant.wrap(Admission, "dropped", make)


@mutant("admission", NEEDED)
def reserve_what_was_rejected(plant: Planter) -> None:
    """A subscription that is rejected stays reserved on its path."""

    def make(decide: Any) -> Any:
        def careless(self: Reservations, entry: Any, *, admitted: bool) -> None:
            if admitted:
                decide(self, entry, admitted=admitted)

        return careless

    plant.wrap(Reservations, "decide", make)


@mutant("admission", NEEDED)
def admit_at_home_only(plant: Planter) -> None:
    """The brokers of a path take no notice of an admission."""

    def make(take: Any) -> Any:
        def deaf(self: Reservations, link: int, packet: Any) -> None:
            if not packet.admitted:
                take(self, link, packet)

        return deaf

    plant.wrap(Reservations, "take_decision", make)


@mutant("admission", NEEDED, "link cut")
def keep_what_a_lost_link_reserved(plant: Planter) -> None:
    """What came by a link stays reserved when the link is lost."""

    def make(lost: Any) -> Any:
        def keeping(self: Reservations, link: int) -> None:
            kept = self._of_link.pop(link, None)
            flows = {holder: flow for holder, flow in self._flows.items() if holder.link == link}
            lost(self, link)
            if kept is not None:
                self._of_link[link] = kept
                self._flows.update(flows)

        return keeping

    plant.wrap(Reservations, "link_lost", make)


@mutant("admission", NEEDED, "link removal")
def reserve_on_the_first_route_only(plant: Planter) -> None:
    """When routes change, reservations stay where they were."""
    plant.set(Reservations, "_scope_changed", lambda _self, _holder, _flow: None)


@mutant("admission", NEEDED)
def ignore_later_advertisements(plant: Planter) -> None:
    """What is advertised after a subscription was admitted is not reserved on its path."""
    plant.set(Reservations, "_extend", lambda _self, _node, _pubend: None)


@mutant("admission", NEEDED)
def tell_advertisements_once(plant: Planter) -> None:
    """A neighbour that asked for a list of advertisements hears of no change."""
    plant.set(AdvertisementSpread, "_push", lambda *_: None)


@mutant("admission", NEEDED, "link removal")
def ask_the_first_neighbour_for_ever(plant: Planter) -> None:
    """A broker whose route to a publisher's broker changes goes on waiting for its former neighbour's word."""

    def make(follow: Any) -> Any:
        def stubborn(self: AdvertisementSpread, broker: int, origin: Any, link: Any) -> None:
            if not origin.version:
                follow(self, broker, origin, link)

        return stubborn

    plant.wrap(AdvertisementSpread, "_follow", make)


@mutant("admission", NEEDED)
def drop_what_exceeds_the_rate(plant: Planter) -> None:
    """Messages above the rate of their publisher are dropped instead of kept back."""

    def make(due: Any) -> Any:
        def nothing(self: PublisherGate, now: float) -> Any:
            for client in self._clients.values():
                client.waiting.clear()
            return iter(())

        return nothing

    plant.wrap(PublisherGate, "due", make)


@mutant("admission", NEEDED)
def overtake_what_waits(plant: Planter) -> None:
    """A message that the rate allows passes the earlier ones of its publisher that wait."""

    def make(allowed: Any) -> Any:
        def hasty(self: PublisherGate, link: int, client: Any, new: Any, now: float) -> Any:
            waiting, client.waiting = client.waiting, type(client.waiting)()
            result = allowed(self, link, client, new, now)
            waiting.extend(client.waiting)
            client.waiting = waiting
            return result

        return hasty

    plant.wrap(PublisherGate, "_pass", make)
