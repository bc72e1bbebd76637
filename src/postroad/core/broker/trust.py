"""Plausibility checks for the packets of other brokers.

Brokers of one overlay trust each other to follow the protocol. A broker with a bug, a damaged disk or a wrong clock must still
not stop the others. Therefore numbers have bounds with room above them, and a broker may only make statements about itself:

- An incarnation counts the starts of a broker. It stays below `INCARNATION_MAX`, so that `incarnation << 32 | n` fits 64 bits.
- Sequences and versions stay below `COUNT_MAX`.
- These numbers rise by one, and a broker must always be able to write a record newer than any that others have. So the numbers
  next to a bound are believed only one small step after the other; see `leaves_room`.
- A tick contains a time. A tick more than `AHEAD_MS` ahead of our clock is ignored, whoever sends it.
- A broker reports only its own pubends. Rows lie inside the range they are sent with. Nobody else speaks in our name.

A violation that a wrong clock cannot explain is an `ImplausibleError`: the packet is refused and changes nothing. A tick too far
ahead is ignored without an error, because the wrong clock may be ours; `stats()` counts it under `disbelieved`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import (
    CatchUpReply,
    DurableHome,
    Hold,
    HoldConfirmed,
    HomeQuery,
    HomeReply,
    Knowledge,
    LinkState,
    LogDamaged,
    NameAnswer,
    NameReserve,
    Packet,
    Remembered,
    pubend_broker,
)
from postroad.errors import ImplausibleError
from postroad.types import COUNTER_BITS

INCARNATION_MAX: Final = 1 << 31
COUNT_MAX: Final = 1 << 48
COST_MAX: Final = 1 << 20
RESERVED_SHIFT: Final = 6  # the last 1/64 below a bound is reserved for small steps
STEP_SHIFT: Final = 25  # a small step is 1/2**25 of the bound: 64 incarnations
AHEAD_MS: Final = 24 * 3600 * 1000
TICK_MS_MAX: Final = (1 << 47) - 1


def latest_tick(wall_ms: int) -> int:
    """Return the highest plausible tick at this time; without a clock every tick is plausible."""
    return min(wall_ms + AHEAD_MS if wall_ms else TICK_MS_MAX, TICK_MS_MAX) << COUNTER_BITS


def believable(positions: Mapping[int, int], wall_ms: int) -> dict[int, int]:
    """Return the positions whose ticks are plausible."""
    latest = latest_tick(wall_ms)
    return {pubend: tick for pubend, tick in positions.items() if tick <= latest}


def leaves_room(number: int, known: int, bound: int) -> bool:
    """Tell whether a reported number is believable: its owner can still choose many higher ones below the bound.

    `known` is the highest number known before. Numbers next to the bound are believed only if they are a small step above it.
    """
    return number < max(bound - (bound >> RESERVED_SHIFT), known) + (bound >> STEP_SHIFT)


def check(packet: Packet, batch: Batch | None) -> None:
    """Raise `ImplausibleError` if a packet of another broker contains an impossible value."""
    match packet:
        case LinkState():
            _check_link_state(packet)
        case DurableHome():
            _check_count("a durable subscription's version", packet.version, COUNT_MAX)
        case Hold():
            _check_count("the incarnation of a hold", packet.incarnation, INCARNATION_MAX)
            _check_count("the version of a hold", packet.version, COUNT_MAX)
        case HoldConfirmed():
            _check_count("the incarnation of a hold", packet.incarnation, INCARNATION_MAX)
            _check_count("the version of a hold", packet.version, COUNT_MAX)
            _check_owner(packet.source, packet.released)
        case HomeQuery() if packet.doubtful:
            _check_count("a durable subscription's version", packet.version, COUNT_MAX)
        case HomeReply():
            _check_count("a durable subscription's version", packet.home_version, COUNT_MAX)
        case NameReserve() | NameAnswer():
            _check_count("a durable subscription's version", packet.version, COUNT_MAX)
        case Remembered():
            _check_count("an incarnation", packet.incarnation, INCARNATION_MAX)
            _check_owner(packet.target, packet.horizons)
            _check_owner(packet.target, packet.rows)
            _check_owner(packet.target, packet.reserved)
        case Knowledge() | CatchUpReply():
            _check_rows(packet.lo, packet.hi, batch)
        case LogDamaged() if packet.lo > packet.hi:
            raise ImplausibleError(f"a range of ticks ends at {packet.hi}, before it begins at {packet.lo}")
        case _:
            pass


def _check_link_state(record: LinkState) -> None:
    _check_count("an incarnation", record.incarnation, INCARNATION_MAX)
    _check_count("the sequence of a link state", record.sequence, COUNT_MAX)
    _check_owner(record.origin, record.pubends)
    for broker, cost in record.neighbours:
        if cost > COST_MAX:
            raise ImplausibleError(
                f"broker {record.origin} reports a cost of {cost} to broker {broker}; the maximum is {COST_MAX}"
            )


def _check_owner(broker: int, pubends: Mapping[int, int] | list[int]) -> None:
    for pubend in pubends:
        if pubend_broker(pubend) != broker:
            raise ImplausibleError(
                f"broker {broker} sent knowledge of pubend {pubend:x}, which belongs to broker {pubend_broker(pubend)}"
            )


def _check_rows(lo: int, hi: int, batch: Batch | None) -> None:
    if lo > hi:
        raise ImplausibleError(f"a range of ticks ends at {hi}, before it begins at {lo}")
    if batch is not None and len(batch):
        ticks = batch.ticks()
        first, last = int(ticks[0]), int(ticks[-1])
        if first <= lo or last > hi:
            raise ImplausibleError(f"rows from tick {first} to {last} lie outside of their range, ({lo}, {hi}]")


def _check_count(what: str, value: int, bound: int) -> None:
    if value >= bound:
        raise ImplausibleError(f"{what} is {value}; it must be below {bound}")
