"""What brokers and clients of the overlay say to each other.

Each struct here is one packet; `wire.packets.overlay` gives it a method id. A packet that is said to carry rows travels with
a `Batch` beside it. Ticks, epochs, versions and ids of brokers and pubends are unsigned integers; a pubend's id is
`broker << 8 | index`, so it names the broker that hosts it.

Three families: a client and its broker; two neighbours; and *unicast*, sent by one broker to any other and passed on hop by
hop (`target`, `source` and `hops` come first in each of those).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from postroad.core.batch.row_codec import Binary, FewRows, Rows

U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 64 bits, and msgspec takes no larger bound than int64
WallMs = Annotated[int, Meta(ge=0, lt=1 << 47)]  # ids have 48 bits for them, and time goes on
Name = Annotated[str, Meta(min_length=1, max_length=255)]
AttributeName = Annotated[str, Meta(max_length=255)]
FilterText = Annotated[str, Meta(max_length=65536)]
Positions = Annotated[dict[U64, U64], Meta(max_length=65536)]  # pubend -> tick

RowTicks = Annotated[dict[U64, Annotated[list[U64], Meta(max_length=65536)]], Meta(max_length=65536)]  # pubend -> ticks of rows

PUBEND_BITS: Final = 8
HOPS_MAX: Final = 32


def pubend_id(broker: int, index: int = 0) -> int:
    return broker << PUBEND_BITS | index


def pubend_broker(pubend: int) -> int:
    return pubend >> PUBEND_BITS


class Packet(msgspec.Struct, frozen=True, array_like=True):
    """Base of all packets of the overlay."""

    is_answer: ClassVar[bool] = False  # it answers a client's question, see `Session.ask`; one that comes twice is ignored


# --- a client and its broker ---------------------------------------------------------------------------------------------


class OpenPublisher(Packet, frozen=True, array_like=True):
    """Ask for a publisher id, or go on with one this client had at this broker (`resume`).

    `reopens`: whenever a message is refused, the client opens the publisher again, and the broker ignores what comes before that.
    Otherwise a later message could become durable while the refusal is lost with the connection, and the refused message would
    look durable, too.
    """

    resume: U32 | None = None
    reopens: bool = False


class Credit(msgspec.Struct, frozen=True, array_like=True):
    """A publisher may have so many messages unacknowledged: its pubend is held to `rate` messages per second.

    It is so since `since_ms`, by the broker's clock, because of what `broker` can take.
    """

    messages: U32
    rate: Annotated[float, Meta(ge=0)]
    since_ms: WallMs
    broker: U32


class PublisherOpened(Packet, frozen=True, array_like=True):
    """The publisher may send. `last` is the highest tick of its ids that is durable, 0 for none.

    Timestamps of ids may differ from the broker's clock by `skew_tolerance_ms`, 0 when it does not tell.
    """

    publisher: U32
    broker: U32
    pubend: U64
    wall_ms: WallMs
    window_bytes: U32
    last: U64
    skew_tolerance_ms: U32 = 0
    credit: Credit | None = None


class Publish(Packet, frozen=True, array_like=True):
    """Messages as rows, ids ascending. The broker turns them into columns at its group commit.

    `age_ms` tells how long ago the last one was made, by the broker's clock as the client knows it: waiting is no skew.
    """

    publisher: U32
    rows: Rows
    binary: Binary = msgspec.field(default_factory=dict)
    age_ms: U64 = 0


class PublishColumns(Packet, frozen=True, array_like=True):
    """Messages as a batch (carries rows; their ticks are ignored), ids ascending; `age_ms` as in `Publish`."""

    publisher: U32
    age_ms: U64 = 0


class PublishAcknowledged(Packet, frozen=True, array_like=True):
    """Every message of the publisher whose id's tick is at most `last` is durable. `wall_ms` is the broker's clock.

    It is repeated when the credit changes. Without a credit only the window of `PublisherOpened` limits the publisher.
    """

    publisher: U32
    last: U64
    wall_ms: WallMs = 0
    credit: Credit | None = None


class PublishRefused(Packet, frozen=True, array_like=True):
    """The messages with these ids were not taken. The rest of the stream goes on, of a publisher that `reopens` after that.

    With empty ids another connection has opened the publisher, and nothing is taken from this one until it opens it again.
    With the code of `SkewError`, nothing of the publisher is taken until it was opened again; `wall_ms` is the broker's clock.
    Then what is not from the future may be sent again, with its age.
    """

    publisher: U32
    first: Annotated[bytes, Meta(max_length=64)]
    last: Annotated[bytes, Meta(max_length=64)]
    code: U32
    reason: Annotated[str, Meta(max_length=4096)]
    wall_ms: WallMs = 0


class Subscribe(Packet, frozen=True, array_like=True):
    """Ask for every message that matches. `handle` is the client's own number for the subscription.

    `name` makes it durable. `positions` says where the client already is, and `acknowledged` what it has done with (all of
    that, where a pubend is not named): what lies between may be needed again. A pubend that is not named starts at the
    activation of the subscription, or with `earliest` at the oldest message still held.

    `shared` joins the members of a durable subscription, or creates one with members: the answer is `Joined`. A member is given
    rows in any order, holds at most `credit` of them and acknowledges each. With `key`, an attribute, rows with the same value
    are given one after the other.
    """

    handle: U32
    filter: FilterText
    name: Name | None = None
    positions: Positions = {}
    earliest: bool = False
    acknowledged: Positions = {}
    criterion: Annotated[str, Meta(max_length=64)] = ""  # of its admission, in place of the broker's: off, full, or like 20%
    shared: bool = False
    key: AttributeName = ""
    credit: U32 = 0


class Subscribed(Packet, frozen=True, array_like=True):
    """The subscription is active on every broker of the path: all that matches after these ticks will come."""

    handle: U32
    starts: Positions


class Started(Packet, frozen=True, array_like=True):
    """A pubend that was not reachable when the subscription began has joined it at this tick."""

    handle: U32
    pubend: U64
    tick: U64


class Deliver(Packet, frozen=True, array_like=True):
    """In (lo, hi] of the pubend, these rows and no others match (carries rows)."""

    handle: U32
    pubend: U64
    lo: U64
    hi: U64


class DeliverRows(Deliver, frozen=True, array_like=True):
    """As `Deliver`, of few rows, which stand here as values; to clients whose `Hello` has the feature `rows`."""

    rows: FewRows


class Advance(Packet, frozen=True, array_like=True):
    """Nothing more matches up to these ticks, beyond what was delivered."""

    handle: U32
    positions: Positions


class Gap(Packet, frozen=True, array_like=True):
    """The messages in (lo, hi] were released before this subscription got them: they are lost to it, and it is told."""

    handle: U32
    pubend: U64
    lo: U64
    hi: U64


class Acknowledge(Packet, frozen=True, array_like=True):
    """The client has done with everything up to these ticks.

    With `confirm`, and if the subscription is durable, `AcknowledgementStored` follows when the broker has them on disk.
    """

    handle: U32
    positions: Positions
    confirm: bool = False


class AcknowledgementStored(Packet, frozen=True, array_like=True):
    """The broker has stored these cursors of a durable subscription: after any crash it goes on from there or later."""

    handle: U32
    positions: Positions


class Joined(Packet, frozen=True, array_like=True):
    """The client is a member of a shared subscription, which began after these ticks."""

    handle: U32
    starts: Positions


class SharedHome(Packet, frozen=True, array_like=True):
    """The answer to a member at the wrong broker: the shared subscription lives at broker `home`, and only there."""

    handle: U32
    home: U32


class AcknowledgeRows(Packet, frozen=True, array_like=True):
    """A member has done with these rows: pubend -> ticks. `RowsAcknowledged` follows when that is on disk."""

    handle: U32
    ticks: RowTicks


class RowsAcknowledged(Packet, frozen=True, array_like=True):
    """These rows are acknowledged on disk: nobody is given them again. Those `refused` this member does not hold (any more)."""

    handle: U32
    ticks: RowTicks
    refused: RowTicks = {}


class Flow(Packet, frozen=True, array_like=True):
    """Send no rows of this subscription for now, or go on: its reader is slow, and others share the connection."""

    handle: U32
    open: bool


class Unsubscribe(Packet, frozen=True, array_like=True):
    """End a subscription; with `forget`, a durable one is deleted, else it waits for its client.

    A deletion is answered when it is on disk. It is refused by a broker that is not the home of the subscription yet.
    """

    handle: U32
    forget: bool = False


class Unsubscribed(Packet, frozen=True, array_like=True):
    """Nothing more will come for this handle. Unasked, it says that a durable subscription has another home."""

    handle: U32


class ListPubends(Packet, frozen=True, array_like=True):
    """Ask which pubends there are, and which ticks of each can be read.

    With `durables`, the durable subscriptions of the overlay are listed too: those with a name after `after`, in order of names.
    """

    durables: bool = False
    after: Annotated[str, Meta(max_length=255)] = ""


class DurableEntry(msgspec.Struct, frozen=True, array_like=True):
    """A durable subscription. `filter` is None when its home cannot be asked now.

    `behind_ms` is how far its slowest cursor lies behind what its home knows of the stream. A shared one may have a `key`, and
    has `members` now.
    """

    name: Name
    home: U32
    filter: FilterText | None = None
    connected: bool = False
    behind_ms: U64 = 0
    shared: bool = False
    key: AttributeName = ""
    members: U32 = 0


DurablePage = Annotated[list[DurableEntry], Meta(max_length=65536)]


class PubendSpan(msgspec.Struct, frozen=True, array_like=True):
    """The ticks in (released, horizon] of a pubend are decided and held; the last message is at tick `last`, or was there."""

    pubend: U64
    released: U64
    horizon: U64
    last: U64


Spans = Annotated[list[PubendSpan], Meta(max_length=65536)]


class Pubends(Packet, frozen=True, array_like=True):
    """Every pubend within reach; `unreachable` are those that exist and whose brokers did not answer."""

    spans: Spans
    unreachable: Annotated[list[U64], Meta(max_length=65536)]
    durables: DurablePage = []
    more: bool = False  # there are more durable subscriptions, after the last name here


class ReadRange(Packet, frozen=True, array_like=True):
    """Ask for what matches in (lo, hi] of a pubend, wherever it is hosted. `bare`: only ticks and ids are wanted."""

    pubend: U64
    filter: FilterText
    lo: U64
    hi: U64
    bare: bool = False


class RangeRead(Packet, frozen=True, array_like=True):
    """In (lo, hi] these rows match and no others (carries rows); what is in (lo, released] is gone.

    With `more`, another answer to the same request follows. An answer may end before the range that was asked for; a range
    whose `hi` equals its `lo` says that nothing more is decided yet.
    """

    pubend: U64
    lo: U64
    hi: U64
    released: U64
    more: bool = False


class OpenEpoch(Packet, frozen=True, array_like=True):
    """Ask to write batch number `epoch` of a named writer, for the first time or again.

    Whoever opens it last is listened to; an earlier connection that still writes it is refused from then on.
    """

    name: Name
    epoch: U64


class EpochOpened(Packet, frozen=True, array_like=True):
    """The batch may be written, with the id `publisher | broker | base + n` for row n; those up to tick `last` are durable.

    With `rows`, it was sealed with so many rows, and nothing of it may be sent.
    """

    publisher: U32
    broker: U32
    pubend: U64
    wall_ms: WallMs
    window_bytes: U32
    last: U64
    base: U64
    rows: U64 | None = None


class SealEpoch(Packet, frozen=True, array_like=True):
    """All `rows` of a batch are durable: whoever repeats it need not send them."""

    name: Name
    epoch: U64
    rows: U64


class EpochSealed(Packet, frozen=True, array_like=True):
    """The seal is durable; `rows` is what the batch was sealed with, the first time."""

    rows: U64


# --- two neighbours ------------------------------------------------------------------------------------------------------


class LinkState(Packet, frozen=True, array_like=True):
    """What one broker tells all about itself, flooded; the newest (incarnation, sequence) counts.

    `started_ms` is the broker's clock at its start: it tells two lives apart that have the same incarnation.
    `advertises`: its clients have advertised, so there is a list to ask for (`AdvertisementsWanted`).
    """

    origin: U32
    incarnation: U64
    sequence: U64
    neighbours: Annotated[list[tuple[U32, U32]], Meta(max_length=4096)]  # (broker, cost)
    pubends: Annotated[list[U64], Meta(max_length=256)]
    started_ms: WallMs = 0
    advertises: bool = False


class DurableHome(Packet, frozen=True, array_like=True):
    """Where a durable subscription lives, flooded; the newest version counts.

    `settled` tells the former home that the new one holds the logs, so that it may let go. `broker` is 0 once forgotten.
    `created_ms` is the clock of its first home when it was created, 0 if not known; of one forgotten, it says which creation was.
    """

    name: Name
    version: U64
    broker: U32
    settled: bool
    created_ms: WallMs = 0


class Interest(Packet, frozen=True, array_like=True):
    """What the sender wants of one pubend from now on, under a new epoch: in full, or as a change to the epoch before.

    A large interest comes in several packets of the same epoch, and counts when the last has come: `full` in the first means that
    the former interest ends, `more` that another packet follows.
    """

    pubend: U64
    epoch: U64
    full: bool
    add: Annotated[list[FilterText], Meta(max_length=65536)]
    remove: Annotated[list[FilterText], Meta(max_length=65536)]
    more: bool = False


class InterestActive(Packet, frozen=True, array_like=True):
    """The whole path applies the epoch: from `tick` on, the sender's stream is complete for it."""

    pubend: U64
    epoch: U64
    tick: U64


class Knowledge(Packet, frozen=True, array_like=True):
    """In (lo, hi] these rows are data and every other tick is silence for the receiver's interest `epoch` (carries rows)."""

    pubend: U64
    lo: U64
    hi: U64
    epoch: U64


class Nack(Packet, frozen=True, array_like=True):
    """The sender wants these ranges again, at least at this epoch of its interest."""

    pubend: U64
    epoch: U64
    ranges: Annotated[list[tuple[U64, U64]], Meta(max_length=1024)]


class Released(Packet, frozen=True, array_like=True):
    """Everything of the pubend up to `tick` is final and gone from its log."""

    pubend: U64
    tick: U64


class CongestionQuery(Packet, frozen=True, array_like=True):
    """A pubend is at tick `position`: a broker whose subscribers fall behind it answers with `CongestionAlert`.

    Sent each second down the tree. `sequence` rises, also over restarts.
    """

    pubend: U64
    sequence: U64
    position: U64


class SlowestBroker(msgspec.Struct, frozen=True, array_like=True):
    """The doubt horizon of a broker moves at `rate` tick seconds per second, and is `lag_ms` behind the pubend."""

    rate: Annotated[float, Meta(ge=0, le=1000)]
    lag_ms: WallMs
    broker: U32


class CongestionAlert(Packet, frozen=True, array_like=True):
    """The slowest live and the slowest recovering broker among the sender and those below it, that query `sequence` found."""

    pubend: U64
    sequence: U64
    live: SlowestBroker | None = None
    recovering: SlowestBroker | None = None


class LogDamaged(Packet, frozen=True, array_like=True):
    """The answer to a NACK: everything of the pubend in (lo, hi] is lost, because the log is damaged there."""

    pubend: U64
    lo: U64
    hi: U64


class HorizonsReserved(Packet, frozen=True, array_like=True):
    """How far a broker may announce its pubends from now on. Its neighbours store that, in case it loses its files.

    It comes on every new link between brokers, and whenever a broker has stored higher horizons.
    """

    horizons: Positions


# --- administration ------------------------------------------------------------------------------------------------------


class LimitLink(Packet, frozen=True, array_like=True):
    """Limit what this broker sends to a neighbour, in bytes per second; 0 ends the limit. It lasts until the broker restarts."""

    broker: U32
    bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 50)]


class LinkLimited(Packet, frozen=True, array_like=True):
    """The limit holds from now on."""

    is_answer: ClassVar[bool] = True

    broker: U32
    bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 50)]


# --- unicast ------------------------------------------------------------------------------------------------------------


class Unicast(Packet, frozen=True, array_like=True):
    """Base of what travels from `source` to `target`, at most `hops` links far."""

    is_data: ClassVar[bool] = False  # it may wait for the data ahead of it

    target: U32
    source: U32
    hops: Annotated[int, Meta(ge=0, le=HOPS_MAX)]


class Hold(Unicast, frozen=True, array_like=True):
    """A subscriber-hosting broker needs the pubends' messages after these ticks; the newest (incarnation, version) counts.

    An absent pubend is not held any more.
    """

    incarnation: U64
    version: U64
    ticks: Positions


class HoldConfirmed(Unicast, frozen=True, array_like=True):
    """The hold is durable; `released` tells what was gone already.

    With `refused`, it is older than the hold that is known of its broker, which is this one.
    """

    incarnation: U64
    version: U64
    released: Positions
    refused: bool = False


class CatchUp(Unicast, frozen=True, array_like=True):
    """Ask for what matches one filter in (lo, hi]; a broker on the way may answer as far as its cache holds.

    `size`: the answer may end where the rows are about so many bytes; 0: as many as a broker answers with at a time.
    """

    request: U64
    pubend: U64
    filter: FilterText
    lo: U64
    hi: U64
    bare: bool = False  # only ticks and ids are wanted
    size: U64 = 0


class CatchUpReply(Unicast, frozen=True, array_like=True):
    """In (lo, hi] these rows match and no others (carries rows); what is in (lo, released] is gone.

    With `more`, the answer to the request goes on after `hi`.
    """

    request: U64
    pubend: U64
    lo: U64
    hi: U64
    released: U64
    more: bool = False


class HomeQuery(Unicast, frozen=True, array_like=True):
    """The client of a durable subscription is here: hand it over.

    `doubtful`: no client is here, but a damaged record, which may have settled. `version` is that of the record. A broker that
    still has the subscription claims a higher version.
    """

    name: Name
    version: U64
    doubtful: bool = False


class HomeReply(Unicast, frozen=True, array_like=True):
    """The cursors of a durable subscription; `busy` while its client is connected there; not `known`: it is not there.

    `damaged`: its record could not be read, so the filter is not known and the cursors are lower bounds.
    `starts` tells where it began in each pubend, and `created_ms` when it was created.
    """

    name: Name
    version: U64
    known: bool
    busy: bool
    filter: FilterText
    cursors: Positions
    damaged: bool = False
    created_ms: WallMs = 0
    starts: Positions = {}
    lost: bool = False  # it was at home there, and the record is gone with the broker's files
    home_version: U64 = 0  # of the record there
    begun: Annotated[list[U64], Meta(max_length=65_536)] = []  # pubends where the client may have been told the start
    lost_cursors: Annotated[
        list[U64], Meta(max_length=65_536)
    ] = []  # pubends where its client gets a gap, because its cursor was lost
    shared: bool = False  # it has members, who connect there


class Remembered(Unicast, frozen=True, array_like=True):
    """What the source knows of the target's former lives: a broker whose files are gone learns what it once was.

    `incarnation` is the highest that the source heard of, 0 for none, `starts` the times at which the last lives began.
    `horizons` is how far it heard of the target's pubends, `rows` the last message it heard of in each, `reserved` how far the
    target said that it may announce them. It comes on every new
    link, after all other records, and from everybody who hears of a new life.
    """

    incarnation: U64
    starts: Annotated[list[WallMs], Meta(max_length=64)]
    horizons: Positions
    rows: Positions
    reserved: Positions = {}


class NameReserve(Unicast, frozen=True, array_like=True):
    """The source is about to create a durable subscription of this name: keep the name for it.

    `number` tells its attempts apart. A home of the name up to `version` is known to be gone.
    """

    name: Name
    number: U64
    version: U64


class NameAnswer(Unicast, frozen=True, array_like=True):
    """A vote: the name is `granted`, and that is stored; or it has a `home`, or another `creator` has reserved it.

    If it is granted, the `creator` is a retired broker that had reserved it before, 0 if there was none.

    `version` is the newest that is known of the name, and `members` are the brokers the source knows, itself included. A source
    that lost its files `forgot` which names there were.
    """

    name: Name
    number: U64
    granted: bool
    home: U32
    version: U64
    created_ms: WallMs
    creator: U32
    members: Annotated[list[U32], Meta(max_length=4096)]
    forgot: bool = False


class NameRelease(Unicast, frozen=True, array_like=True):
    """The source does not create this name: its reservations up to `number` end."""

    name: Name
    number: U64


class PubendsQuery(Unicast, frozen=True, array_like=True):
    """Ask a broker which ticks of its pubends can be read, and with `durables` for its durable subscriptions."""

    request: U64
    durables: bool = False
    after: Annotated[str, Meta(max_length=255)] = ""


class PubendsReply(Unicast, frozen=True, array_like=True):
    """The pubends of the source, and its durable subscriptions if they were asked for; `more` as in `Pubends`."""

    request: U64
    spans: Spans
    durables: DurablePage = []
    more: bool = False
