"""What a broker does when it finds that its disk is behind what it once said.

An incarnation counts the starts of a broker, on its disk. When that disk is lost, or an old copy of it comes back, the count
falls, and others refuse what the broker says as older than what they know. They tell it: a neighbour sends the newer link state,
a pubend's broker answers an older hold with the newer number. The broker then *outbids* them: it stores an incarnation above all
it heard of and goes on under that. Until it is stored, nothing is said under it, so that no two lives ever use the same one.

The disk's own count goes on below: what is stored is the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from postroad.core.orders import Notice
from postroad.core.packets import HoldConfirmed, LinkState
from postroad.core.parts import Parts
from postroad.core.trust import COUNT_MAX, INCARNATION_MAX

INCARNATION_KEY: Final = "incarnation-base"


def started_incarnation(count: int, metadata: Mapping[str, bytes]) -> int:
    """Return the incarnation of a broker whose disk counts so many starts."""
    return min(count + _base(metadata), INCARNATION_MAX - 1)


def assumed_base(damaged: Sequence[str], now_s: int) -> tuple[tuple[str, bytes], ...]:
    """Return what stands in for a damaged base: the clock, which is above any count of starts."""
    return ((INCARNATION_KEY, now_s.to_bytes(8, "big")),) if INCARNATION_KEY in damaged else ()


class Recovery:
    """Recognises that a former life of this broker said more than its disk knows."""

    def __init__(self, parts: Parts, metadata: Mapping[str, bytes]) -> None:
        self._parts = parts
        self._count = parts.incarnation - _base(metadata)
        self._adopting = parts.incarnation  # what is being stored, or was
        self._hold_version = 0

    def heard_of_self(self, record: LinkState) -> None:
        """Take a link state that names us as its origin."""
        incarnation = self._parts.router.outbid(record)
        if incarnation is not None:
            self._outbid(incarnation)

    def hold_refused(self, packet: HoldConfirmed) -> None:
        """Take word that a hold of ours is older than one that is known."""
        ours = (self._parts.incarnation, self._parts.keeper.version)
        if (packet.incarnation, packet.version) <= ours:
            return  # it overtook the one that was refused
        if packet.incarnation == self._parts.incarnation and packet.version + 1 < COUNT_MAX:
            self._parts.keeper.adopt(packet.incarnation, packet.version)
            return
        self._hold_version = packet.version if packet.incarnation + 1 >= INCARNATION_MAX else 0
        self._outbid(min(packet.incarnation + 1, INCARNATION_MAX - 1))

    def _outbid(self, incarnation: int) -> None:
        if incarnation <= self._adopting:
            return
        self._adopting = incarnation
        text = (
            f"another life of broker {self._parts.broker} was heard of: this one goes on as incarnation {incarnation}; "
            "either its files were lost or replaced by an old copy, or two brokers have this id"
        )
        self._parts.orders.append(Notice(text, error=True))
        base = (incarnation - self._count).to_bytes(8, "big")
        self._parts.store(((INCARNATION_KEY, base),), lambda _now: self._adopt(incarnation))

    def _adopt(self, incarnation: int) -> None:
        if incarnation <= self._parts.incarnation:
            return
        self._parts.incarnation = incarnation
        self._parts.router.adopt(incarnation)
        self._parts.keeper.adopt(incarnation, self._hold_version)


def _base(metadata: Mapping[str, bytes]) -> int:
    return int.from_bytes(metadata.get(INCARNATION_KEY, b"\0"), "big")
