"""Named writers: batches that a program may write several times and that are accepted once.

A program that repeats a whole batch after a failure, as Spark does, gives every row the same message id each time, and the pubend
recognises the rows it already has. For that, the first id of a batch must be the same in every attempt, even after a crash of the
broker. So the broker chooses it when the batch is first opened, stores it with the writer's name and the number of the batch (its
*epoch*), and only then answers. Row n has the id `publisher | broker | base + n`.

A writer keeps one publisher id forever, and one pubend. The ids of a publisher ascend, so epochs must come in order. Once a later
epoch is opened, a row of an earlier one that was not accepted would look like a repetition. An earlier epoch is therefore
refused, unless it was *sealed*: then all its rows are durable and need not be sent.

Only the connection that opened a writer last may write. Two attempts at one batch send the same rows, so no row is accepted twice
whichever attempt wins; and rows of one epoch cannot mix with those of a later one.

When a write to the log fails, its rows are refused, and so is everything from those writers until they are opened again: if a
later frame were accepted, the refused rows would look like repetitions.

Invariants: a base is on disk before the client receives it; it lies above every id accepted from the publisher; bases ascend.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from postroad.core.broker.context import Context, SendWhenStored
from postroad.core.broker.publishing.publishers import Publishing
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import EpochOpened, EpochSealed, OpenEpoch, SealEpoch
from postroad.core.protocol.rights import owner_of
from postroad.errors import PostroadError, StaleEpochError, TooManyError, UnknownHandleError
from postroad.types import COUNTER_BITS

WRITER_KEY: Final = "writer/"
WRITERS_MAX: Final = 1 << 16
EPOCHS_MAX: Final = 64  # remembered per writer
UNUSED_MS: Final = 86_400_000  # when there are too many writers, one that was unused for so long is forgotten


class _Epoch(msgspec.Struct, array_like=True):
    epoch: int
    base: int
    rows: int | None = None  # when sealed


class _Writer(msgspec.Struct, array_like=True):
    publisher: int
    pubend: int
    used_ms: int
    epochs: list[_Epoch]  # ascending


@dataclass(frozen=True, slots=True)
class EpochStored:
    """Work after a write: answer the client that opened a batch."""

    link: LinkId
    request: int
    name: str
    epoch: int


class NamedWriters:
    """The writers of this broker."""

    def __init__(self, context: Context, publishing: Publishing) -> None:
        self._context = context
        self._publishing = publishing
        self._writers: dict[str, _Writer] = {}
        self._owned: Counter[str] = Counter()  # writers by the identity in their names
        self._damaged: dict[str, None] = {}  # writers whose records cannot be read
        self._waiting: list[tuple[LinkId, OpenEpoch, int]] = []  # for a publisher id

    def load(self, key: str, value: bytes) -> None:
        self._add(key.removeprefix(WRITER_KEY), msgspec.msgpack.decode(value, type=_Writer))

    def load_damaged(self, name: str) -> None:
        """Refuse a writer whose record is damaged: it is not known which batches it wrote."""
        self._damaged[name] = None

    def __len__(self) -> int:
        return len(self._writers)

    def open(self, link: LinkId, packet: OpenEpoch, request: int) -> None:
        self._check_known(packet.name)
        writer = self._writers.get(packet.name)
        if writer is None:
            writer = self._new_writer(link, packet, request)
            if writer is None:
                return  # answered when publisher ids are available again
        known = next((each for each in writer.epochs if each.epoch == packet.epoch), None)
        if known is None or known.rows is None:
            known = self._writable(packet, writer, known)
            self._publishing.adopt(writer.publisher, link, writer.pubend)
        writer.used_ms = self._context.wall_ms
        self._store(packet.name, writer, EpochStored(link, request, packet.name, known.epoch))

    def seal(self, link: LinkId, packet: SealEpoch, request: int) -> None:
        self._check_known(packet.name)
        writer = self._writers.get(packet.name)
        known = None if writer is None else next((each for each in writer.epochs if each.epoch == packet.epoch), None)
        if writer is None or known is None:
            raise UnknownHandleError(f"batch {packet.epoch} of {packet.name!r} was not opened at this broker")
        if known.rows is None:
            known.rows = packet.rows
        self._store(packet.name, writer, SendWhenStored(link, EpochSealed(known.rows), request))

    def link_lost(self, link: LinkId) -> None:
        self._waiting = [entry for entry in self._waiting if entry[0] != link]

    def wake(self) -> None:
        """Continue with the requests that waited for a publisher id."""
        waiting, self._waiting = self._waiting, []
        for link, packet, request in waiting:
            try:
                self.open(link, packet, request)
            except PostroadError as error:
                self._context.refuse(link, request, error)

    # --- inside ---

    def _check_known(self, name: str) -> None:
        if name in self._damaged:
            text = f"it is unknown how much of the batches of {name!r} was written, since their record is damaged"
            raise StaleEpochError(f"{text}; read what was written, and write the rest under another name")

    def _new_writer(self, link: LinkId, packet: OpenEpoch, request: int) -> _Writer | None:
        most = self._context.config.names_per_identity_max
        if not self._context.rights_of(link).admin and self._owned[owner_of(packet.name)] >= most:
            raise TooManyError(f"an identity has at most {most} named writers at one broker")
        self._make_room()
        publisher = self._publishing.new_publisher()
        if publisher is None:
            self._waiting.append((link, packet, request))
            return None
        writer = _Writer(publisher, self._publishing.spread(publisher).pubend, self._context.wall_ms, [])
        self._add(packet.name, writer)
        return writer

    def _add(self, name: str, writer: _Writer) -> None:
        self._writers[name] = writer
        self._owned[owner_of(name)] += 1

    def _make_room(self) -> None:
        if len(self._writers) + len(self._waiting) < WRITERS_MAX:
            return
        name, oldest = min(self._writers.items(), key=lambda each: each[1].used_ms)
        if self._context.wall_ms - oldest.used_ms < UNUSED_MS:
            raise TooManyError(f"this broker remembers at most {WRITERS_MAX} writers")
        del self._writers[name]
        self._owned[owner_of(name)] -= 1
        self._context.store(((WRITER_KEY + name, None),))

    def _writable(self, packet: OpenEpoch, writer: _Writer, known: _Epoch | None) -> _Epoch:
        """Return the epoch with its base, new or as stored; raise if rows of it could be lost."""
        latest = writer.epochs[-1] if writer.epochs else None
        if latest is not None and packet.epoch < latest.epoch:
            text = f"batch {packet.epoch} of {packet.name!r} was sent after batch {latest.epoch} had started"
            raise StaleEpochError(f"{text}; batches of one name must come in order")
        pubend = self._publishing.pubends[writer.pubend]
        accepted = pubend.remembered(writer.publisher)
        if known is not None:
            if accepted is None and known.base <= pubend.forgotten:
                text = f"it is no longer known how much of batch {packet.epoch} of {packet.name!r} was written"
                raise StaleEpochError(f"{text}; read what was written, and write the rest under another name")
            return known
        floor = max(accepted or 0, pubend.forgotten, 0 if latest is None else latest.base)
        begun = _Epoch(packet.epoch, max(self._context.wall_ms << COUNTER_BITS, floor + 1))
        writer.epochs = [*writer.epochs[-EPOCHS_MAX + 1 :], begun]
        return begun

    def epoch_stored(self, stored: EpochStored) -> None:
        """Tell a client that its batch is open."""
        writer = self._writers.get(stored.name)
        known = None if writer is None else next((each for each in writer.epochs if each.epoch == stored.epoch), None)
        if writer is None or known is None:
            return  # the writer was forgotten meanwhile to make room; its client opens it again
        accepted = self._publishing.pubends[writer.pubend].durable(writer.publisher)
        window = self._context.config.publish_window_bytes
        me, wall_ms = self._context.broker, self._context.wall_ms
        answer = EpochOpened(writer.publisher, me, writer.pubend, wall_ms, window, accepted, known.base, known.rows)
        self._context.send(stored.link, answer, stored.request)

    def _store(self, name: str, writer: _Writer, then: object) -> None:
        self._context.store(((WRITER_KEY + name, msgspec.msgpack.encode(writer)),), then)
