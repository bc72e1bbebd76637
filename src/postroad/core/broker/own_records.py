"""Reads a broker's own records at its start.

A damaged record (wrong checksum, or it cannot be decoded) is never used as a value, and never stops the broker. The broker
replaces it by an assumption that is safe, and tells the operator once per start what that means:

- a durable subscription exists; it takes the filter of its client and continues from the oldest position it can have;
- a hold keeps everything until its broker sends a new one; the floor keeps everything until clients had time to return;
- a pubend without its horizon continues above everything it can have announced (`Pubend.restart_above`);
- publisher ids continue far above all that were seen;
- a named writer is refused, because it is not known which of its batches were written;
- known brokers are collected from the other records, and later from link states;
- the home of another broker's durable subscription is asked for again, as for an unknown name.

A record whose key is damaged may have been any of these, so all assumptions apply at once, except for names, which are not known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.context import KNOWN_KEY
from postroad.core.broker.holding.release import FLOOR_KEY
from postroad.core.broker.holding.table import HOLD_KEY, HoldTable
from postroad.core.broker.incarnations import BORN_KEY, HEARD_KEY, INCARNATION_KEY, Heard, StoredLives
from postroad.core.broker.lost_ranges import LOST_KEY, Loss, Losses
from postroad.core.broker.publishing.named_writers import WRITER_KEY
from postroad.core.broker.publishing.publishers import HORIZON_KEY, OWNER_KEY, PUBLISHER_KEY
from postroad.core.broker.subscribing.durable import DURABLE_KEY, HOME_KEY, Durables
from postroad.core.broker.subscribing.naming import NAME_KEY, Reservation
from postroad.core.protocol.orders import BrokerState, Notice, PubendState
from postroad.core.protocol.packets import Positions, pubend_broker, pubend_id
from postroad.errors import PostroadError

UNREADABLE: Final = ""  # the key of a record whose key is damaged
PUBLISHERS_SKIPPED: Final = 1 << 24  # when it is not known how many ids were assigned
PUBLISHER_LIMIT: Final = 1 << 32
_NUMBER_BYTES: Final = 8

CONSEQUENCES: Final = {
    DURABLE_KEY: "the subscription continues from the oldest message kept for this broker, so messages may be delivered again",
    HOME_KEY: "the broker asks for the home of this subscription again when its client connects",
    NAME_KEY: "two brokers may create the durable subscription with this name at the same time",
    HOLD_KEY: "no messages are deleted until that broker has reported again what it needs",
    FLOOR_KEY: "no messages are deleted until disconnected clients have had time to return",
    HORIZON_KEY: "the stream of this pubend continues a little ahead of the clock",
    OWNER_KEY: "the client of this publisher gets a new one when it returns",
    PUBLISHER_KEY: "new publishers get ids far above those that were used",
    KNOWN_KEY: "the list of brokers is rebuilt from other records and from the neighbours",
    WRITER_KEY: "batches of this writer are refused; read what was written, and write the rest under another name",
    INCARNATION_KEY: "the next incarnation is taken from the clock, which is above all earlier numbers",
    LOST_KEY: "everything before the first tick of this pubend counts as lost",
    BORN_KEY: "the first tick of this pubend is no longer known; its log and its horizon are intact",
    HEARD_KEY: "earlier reports of other brokers are forgotten",
    "advertised/": "the durable advertisement ends until its client advertises again",
    "reserved/": "the reservation of this durable subscription is made again if the broker has an admission criterion",
    "incarnation": "the number of this start is taken from the clock, which is above all earlier numbers",
    "pubends": "the broker opens the logs that it finds in the directory; it would not notice a missing one",
    UNREADABLE: "it may have been any record, so all horizons, holds and publisher ids count as damaged",
}
NAMELESS: Final = "without a readable name"
_OTHER: Final = "it is ignored"


@dataclass(slots=True)
class OwnRecords:
    """The values of the records, with assumptions in place of damaged ones."""

    table: HoldTable
    durables: Durables
    horizons: Positions = field(default_factory=dict)
    unknown_horizons: list[int] = field(default_factory=list)  # pubends
    losses: Losses = field(default_factory=Losses)
    lives: StoredLives = field(default_factory=StoredLives)
    floor: Positions = field(default_factory=dict)
    floor_for_grace: Positions = field(default_factory=dict)  # the floor; if it is damaged, everything is held instead
    known: dict[int, list[int]] = field(default_factory=dict)
    publisher_next: int = 0
    publisher_owners: dict[int, str] = field(default_factory=dict)  # publisher -> identity
    reservations: dict[str, Reservation] = field(default_factory=dict)  # durable names
    writers: dict[str, bytes] = field(default_factory=dict)
    advertised: dict[str, bytes] = field(default_factory=dict)  # durable advertisements
    reserved: dict[str, None] = field(default_factory=dict)  # durable subscriptions that hold a reservation
    damaged: list[str] = field(default_factory=list)  # keys

    def notices(self) -> list[Notice]:
        return [
            Notice(f"the stored record {key or NAMELESS} is damaged: {CONSEQUENCES.get(_kind(key), _OTHER)}", error=True)
            for key in self.damaged
        ]


def load_records(state: BrokerState, retired: Collection[int] = ()) -> OwnRecords:
    """Read a broker's records; `retired` are the brokers that will never return."""
    records = OwnRecords(HoldTable(), Durables(state.broker, retired))
    damaged = list(state.damaged)
    for key, value in state.metadata:
        try:
            _read(records, key, value)
        except (msgspec.MsgspecError, PostroadError, ValueError):
            damaged.append(key)
    records.damaged = sorted(damaged, key=lambda key: (_kind(key) == DURABLE_KEY, key))  # their assumptions need the others
    records.floor_for_grace = records.floor
    if FLOOR_KEY in damaged or UNREADABLE in damaged:
        _assume_known(records, state)
        records.floor_for_grace = dict.fromkeys(_pubends(records, state.pubends), 0) | records.floor
    for key in records.damaged:
        _assume(records, key, state)
    records.lives.used = records.unknown_horizons
    return records


def _kind(key: str) -> str:
    """Return the kind of a record: its key up to the slash, or all of it."""
    head, slash, _ = key.partition("/")
    return head + slash


def _read(records: OwnRecords, key: str, value: bytes) -> None:
    match _kind(key):
        case "hold/":
            records.table.load(key, value)
        case "durable/" | "home/":
            records.durables.load(key, value)
        case "horizon/":
            records.horizons[int(key.removeprefix(HORIZON_KEY))] = _number(value)
        case "born/":
            records.lives.born[int(key.removeprefix(BORN_KEY))] = _number(value)
        case "lost/":
            records.losses.load(key, value)
        case "heard":
            records.lives.heard = msgspec.msgpack.decode(value, type=Heard)
        case "incarnation-base":
            records.lives.base = _number(value)
        case "hold-floor":
            records.floor = msgspec.msgpack.decode(value, type=dict[int, int])
        case "known-brokers":
            records.known = msgspec.msgpack.decode(value, type=dict[int, list[int]])
        case "name/":
            records.reservations[key.removeprefix(NAME_KEY)] = msgspec.msgpack.decode(value, type=Reservation)
        case "publisher-next":
            records.publisher_next = _number(value)
        case "publisher-owner/":
            records.publisher_owners[int(key.removeprefix(OWNER_KEY))] = value.decode()
        case "writer/":
            records.writers[key] = value
        case "advertised/":
            records.advertised[key] = value
        case "reserved/":
            records.reserved[key.removeprefix("reserved/")] = None
        case _:
            pass


def _number(value: bytes) -> int:
    if len(value) != _NUMBER_BYTES:
        raise ValueError(f"a stored number has {_NUMBER_BYTES} bytes, not {len(value)}")
    return int.from_bytes(value, "big")


def _assume(records: OwnRecords, key: str, state: BrokerState) -> None:
    """Replace a damaged record by a safe assumption."""
    kind = _kind(key)
    name = key.removeprefix(kind)
    if kind in {HOLD_KEY, HORIZON_KEY} and not name.isdecimal():
        kind = UNREADABLE
    if kind == HOLD_KEY:
        records.table.load_damaged(int(name))
    elif kind == HORIZON_KEY:
        records.unknown_horizons.append(int(name))
    elif kind == LOST_KEY and name.isdecimal() and int(name) in records.lives.born:
        records.losses.add(int(name), Loss(0, records.lives.born[int(name)], state.incarnation, 0))
    elif kind == DURABLE_KEY:
        records.durables.load_damaged(name, records.floor_for_grace)
    elif kind == PUBLISHER_KEY:
        records.publisher_next = _above_all_publishers(state.pubends)
    elif kind == KNOWN_KEY:
        _assume_known(records, state)
    elif kind == UNREADABLE:
        records.unknown_horizons = [each.pubend for each in state.pubends]
        records.publisher_next = max(records.publisher_next, _above_all_publishers(state.pubends))
        _assume_known(records, state)
        for broker in {**dict.fromkeys(records.known), state.broker: None}:
            if broker not in records.table.holders():
                records.table.load_damaged(broker)


def _assume_known(records: OwnRecords, state: BrokerState) -> None:
    """Add the brokers that other records mention to the known ones."""
    brokers = [home.broker for home in records.durables.homes.values()]
    brokers += [*records.table.holders(), *(pubend_broker(pubend) for pubend in records.floor)]
    for broker in brokers:
        if broker not in {0, state.broker} and broker not in records.known:
            hosted = [pubend for pubend in records.floor if pubend_broker(pubend) == broker]
            records.known[broker] = hosted or [pubend_id(broker)]


def _pubends(records: OwnRecords, hosted: Sequence[PubendState]) -> list[int]:
    return [*(each.pubend for each in hosted), *(pubend for pubends in records.known.values() for pubend in pubends)]


def _above_all_publishers(pubends: Sequence[PubendState]) -> int:
    """Return a publisher id that was never assigned: no broker assigns so many ids that publish nothing."""
    highest = max((publisher for each in pubends for publisher, _ in each.publishers), default=0)
    return min(highest + PUBLISHERS_SKIPPED, PUBLISHER_LIMIT - 1)
