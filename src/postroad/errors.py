"""The whole exception tree.

Every error a user can meet is a `PostroadError` with a stable numeric `code` (it travels in error packets and is listed in
`docs/reference/errors.md`), a `retryable` flag, and its data as attributes. Expected refusals are return values, not
exceptions; our own bugs are `AssertionError`.

Codes are grouped: 1xx values and batches, 2xx filters, 3xx wire, 4xx storage, 5xx overlay and clients, 6xx queues, 7xx topics,
8xx Spark.
"""

from __future__ import annotations

from typing import ClassVar, Final


class PostroadError(Exception):
    """Base of everything Postroad raises on purpose."""

    code: ClassVar[int] = 100
    retryable: ClassVar[bool] = False


class InvalidValueError(PostroadError, ValueError):
    """A value (id, tick, attribute, name, limit) breaks its documented bounds."""

    code = 101


class BatchError(PostroadError):
    """Bytes or columns are not a valid Postroad batch."""

    code = 102


class BatchLimitError(BatchError):
    """A batch, message or attribute is larger than the limits allow. `limit` names the bound, `maximum` is its value."""

    code = 103

    def __init__(self, reason: str, limit: str, maximum: int) -> None:
        self.limit = limit
        self.maximum = maximum
        super().__init__(f"{reason}; the limit {limit} is {maximum:,}")


class FilterError(PostroadError, ValueError):
    """A filter cannot be used."""

    code = 200


class FilterSyntaxError(FilterError):
    """A filter's text does not parse. `position` counts characters from 0; `str()` shows the place with a pointer line."""

    code = 201

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason = reason
        self.text = text
        self.position = position
        super().__init__(reason, text, position)

    def __str__(self) -> str:
        return f"{self.reason} at position {self.position}\n{_pointer(self.text, self.position)}"


class FilterLimitError(FilterSyntaxError):
    """A filter is longer, deeper or costlier than the configured limits allow."""

    code = 202


class WireError(PostroadError):
    """Bytes from a peer do not follow the protocol."""

    code = 300


class StorageError(PostroadError):
    """A data directory or database cannot be used."""

    code = 400


class StorageUnavailableError(StorageError):
    """The database is away, restarting or dropped the connection. Whether the last change was kept may be unknown."""

    code = 410
    retryable = True


class StorageSchemaError(StorageError):
    """The database holds a schema this version does not know, or a migration file was changed after it was applied."""

    code = 411


class PostgresMissingError(StorageError):
    """Queues are to be kept in PostgreSQL, but the package `asyncpg` is not installed: `pip install 'postroad[postgres]'`."""

    code = 413


class StorageInUseError(StorageError):
    """Another process has the embedded database open."""

    code = 412


class QueueError(PostroadError):
    """A queue operation was refused."""

    code = 600


class UnknownClientError(QueueError):
    """No client has this id."""

    code = 602


class UnknownQueueError(QueueError):
    """No queue has this id or name."""

    code = 603


class NameTakenError(QueueError):
    """A client or queue of this name exists already."""

    code = 604


class ReadOnlyClientError(QueueError):
    """A read-only client tried to change something."""

    code = 605


class LeaseLostError(QueueError):
    """The lease ended, so the message is waiting again or with somebody else."""

    code = 606


class QueueLimitError(QueueError):
    """A payload, batch, wait or lease is beyond the configured limit."""

    code = 608


class NoResponseError(QueueError):
    """No response to a request arrived in time. The request may still be answered later."""

    code = 609
    retryable = True


class QueueBusyError(QueueError):
    """Too many calls or takes are waiting already; come again later."""

    code = 610
    retryable = True


class UnknownBindingError(QueueError):
    """No binding has this id."""

    code = 611


class ConnectionLostError(QueueError):
    """The connection to the broker is gone; reconnect and repeat what is safe to repeat."""

    code = 612
    retryable = True


class RemoteError(QueueError):
    """A broker answered with an error code this version does not know."""

    code = 613


class MalformedFrameError(WireError):
    """A frame's header makes no sense. `frames` are the sound frames of the same chunk that stood before it."""

    code = 301

    def __init__(self, reason: str, frames: tuple[tuple[int, int, bytes | memoryview], ...] = ()) -> None:
        self.frames = frames
        super().__init__(reason)


class FrameTooLargeError(MalformedFrameError):
    """A frame is longer than the connection's maximum. Nothing of it was kept."""

    code = 302

    def __init__(self, length: int, maximum: int, frames: tuple[tuple[int, int, bytes | memoryview], ...] = ()) -> None:
        self.length = length
        self.maximum = maximum
        super().__init__(f"a frame of {length:,} bytes, where at most {maximum:,} are allowed", frames)


class UnknownMethodError(WireError):
    """A packet's method id is in no table of this version of the protocol."""

    code = 303

    def __init__(self, method: int) -> None:
        self.method = method
        super().__init__(f"unknown method 0x{method:04x}")


class MalformedPacketError(WireError):
    """A packet's payload does not decode as the packet its method id promises. `packet` is its name."""

    code = 304

    def __init__(self, packet: str, reason: str) -> None:
        self.packet = packet
        self.reason = reason
        super().__init__(f"malformed {packet}: {reason}")


class WrongDirectionError(WireError):
    """A peer sent a packet that only the other side may send."""

    code = 305

    def __init__(self, packet: str, direction: str) -> None:
        self.packet = packet
        self.direction = direction
        super().__init__(f"{packet} may not travel {direction}")


class NotIdentifiedError(WireError):
    """A peer sent a packet that needs identification before it identified itself."""

    code = 306

    def __init__(self, packet: str) -> None:
        self.packet = packet
        super().__init__(f"{packet} needs identification: send Hello, RegisterClient or IdentifyClient first")


class ProtocolVersionError(WireError):
    """Two peers have no version of the protocol in common."""

    code = 307

    def __init__(self, ours: tuple[int, int], theirs: tuple[int, int]) -> None:
        self.ours = ours
        self.theirs = theirs
        super().__init__(f"no common protocol version: we speak {ours[0]} to {ours[1]}, the peer {theirs[0]} to {theirs[1]}")


class ProtocolViolationError(WireError):
    """A peer sent sound packets that make no sense at this point; the connection is given up."""

    code = 350


class HandshakeError(WireError):
    """A peer did not say who it is, in time or at the right moment."""

    code = 351


class TooManyConnectionsError(WireError):
    """The broker serves as many connections as it is configured to."""

    code = 352
    retryable = True


class ShuttingDownError(WireError):
    """The broker is about to stop."""

    code = 353
    retryable = True


class InternalError(WireError):
    """The broker failed to process a packet because of a bug of its own. It closes this connection and serves the others."""

    code = 355


class BufferLimitError(WireError):
    """A connection, or all of them together, made the broker keep more bytes than its configuration allows."""

    code = 356
    retryable = True


class ListenError(PostroadError):
    """A broker cannot listen on its address: another program does, or the address is not this machine's."""

    code = 354


class StorageFullError(StorageError):
    """There is no room left to write. Nothing of the write remains; it may be tried again once there is room."""

    code = 401
    retryable = True

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"no room to write {path}: {reason}; free some space or raise the limit, then try again")


class CorruptSegmentError(StorageError):
    """A segment of a pubend's log is damaged where it once was whole. `file` and `offset` name the place."""

    code = 402

    def __init__(self, file: str, offset: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.reason = reason
        super().__init__(f"{file} is damaged at offset {offset}: {reason}; restore the file from a copy")


class StorageLockedError(StorageError):
    """Another process has the data directory or log open."""

    code = 403
    retryable = True

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} is in use by another process; stop it, or choose another data directory")


class StorageFormatError(StorageError):
    """Files are of another format version, or no Postroad files at all."""

    code = 404

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class WrongBrokerError(StorageError):
    """A data directory belongs to another broker."""

    code = 405

    def __init__(self, path: str, broker: int, owner: int) -> None:
        self.path = path
        self.broker = broker
        self.owner = owner
        super().__init__(f"{path} belongs to broker {owner}, not to broker {broker}; correct the broker id or the path")


class StorageFailedError(StorageError):
    """The disk failed while writing, so what it holds is uncertain: nothing more is written until the broker starts again."""

    code = 406

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} cannot be used: {reason}; check the disk, then restart the broker")


class LogMissingError(StorageError):
    """A pubend's log was created once and is gone."""

    code = 407

    def __init__(self, path: str, pubend: int) -> None:
        self.path = path
        self.pubend = pubend
        super().__init__(f"the log of pubend {pubend} is missing from {path}; restore it from a copy")


class CorruptMetadataError(StorageError):
    """The file of a broker's metadata is damaged."""

    code = 408

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(f"{file} is damaged: {reason}; restore it from a copy")


class TrackFileError(StorageError):
    """A file of tracks is damaged or not ours. Searches go on without it and report what it held as a hole."""

    code = 409

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(f"{file} cannot be read: {reason}; restore the file from a copy, or move it away to live with the hole")


class OverlayError(PostroadError):
    """A request to a broker of the overlay cannot be met."""

    code = 500


class DurableBusyError(OverlayError):
    """Another client is connected to the durable subscription of this name, or was a moment ago."""

    code = 501
    retryable = True


class DurableElsewhereError(OverlayError):
    """The durable subscription is at home at a broker that cannot be reached now, and the client brought no positions.

    Or it is new, and the brokers that answer are not a majority of those that are known, or the broker has not reached any of
    its neighbours since it was set up.
    """

    code = 502
    retryable = True


class DurableFilterError(OverlayError):
    """The durable subscription of this name exists with another filter; forget it first."""

    code = 503


class UnknownDurableError(OverlayError):
    """No durable subscription has this name."""

    code = 510


class UnknownHandleError(OverlayError):
    """No subscription or publisher has this number on this connection."""

    code = 504


class DuplicateHandleError(OverlayError):
    """The connection already uses this number for a subscription."""

    code = 505


class TooManyError(OverlayError):
    """A configured maximum (subscriptions, publishers) is reached."""

    code = 506


class WrongRoleError(OverlayError):
    """A packet came from a peer that may not send it: a client's on a broker's link, or the other way round."""

    code = 507


class ImplausibleError(OverlayError):
    """A broker said something that cannot be: a number beyond its bound, or something that is not its to say."""

    code = 509


class SkewError(OverlayError):
    """A message's timestamp and the broker's clock differ by more than the broker tolerates: one of the clocks was stepped.

    The client has corrected its clock and goes on; messages from the future can only be published again, under new ids.
    """

    code = 508
    retryable = True

    def __init__(self, skew_ms: int, tolerance_ms: int) -> None:
        self.skew_ms = skew_ms
        self.tolerance_ms = tolerance_ms
        side = "behind" if skew_ms > 0 else "ahead of"
        super().__init__(f"the timestamp is {abs(skew_ms)} ms {side} the broker's clock, which tolerates {tolerance_ms} ms")


class ConfigError(PostroadError):
    """A configuration or topology file cannot be used. The text names the key and, where one is near, what was probably meant."""

    code = 550


class NotConnectedError(OverlayError):
    """No broker of the given addresses could be reached in time."""

    code = 551
    retryable = True


class ClosedError(OverlayError):
    """The client, publisher or subscription was closed."""

    code = 552


class GapError(OverlayError):
    """Messages of `pubend` in the ticks (lo, hi] were released before this subscription got them: they are lost to it."""

    code = 553

    def __init__(self, pubend: int, lo: int, hi: int) -> None:
        self.pubend = pubend
        self.lo = lo
        self.hi = hi
        super().__init__(f"messages of pubend {pubend:x} in the ticks ({lo}, {hi}] were released before they were delivered")


class PublishRefusedError(OverlayError):
    """The broker did not take the messages with ids from `first` to `last` (16 bytes each). `cause` is the broker's error."""

    code = 554

    def __init__(self, first: bytes, last: bytes, cause: PostroadError) -> None:
        self.first = first
        self.last = last
        self.cause = cause
        self.retryable = cause.retryable  # type: ignore[misc]  # as its cause: a full disk passes, a wrong value does not
        super().__init__(f"the broker refused the messages {first.hex()} to {last.hex()}: {cause}  [error {cause.code}]")


class PositionFileError(OverlayError):
    """A file of positions cannot be read, written or understood."""

    code = 555


class UnfinishedError(OverlayError):
    """What was waited for did not happen in time; it may still happen."""

    code = 556
    retryable = True


class UnknownPubendError(OverlayError):
    """No broker ever heard of hosts this pubend, or no given directory holds its log."""

    code = 561


class PubendUnreachableError(OverlayError):
    """The broker that hosts the pubend cannot be reached now."""

    code = 562
    retryable = True


class StaleEpochError(OverlayError):
    """A batch of a named writer comes when a later one was begun already, or the broker does not know any more how far it was."""

    code = 563


class EpochChangedError(OverlayError):
    """A batch of a named writer is repeated with other rows, or in other parts, than the first time."""

    code = 564


def error_of_code(code: int, text: str) -> PostroadError:
    """Make the exception a peer described by its code: an instance of its class here, with only the text as data."""
    known = _class_of_code(code)
    if known not in _DESCRIBED:
        _DESCRIBED[known] = type(known.__name__, (_Described, known), {"__module__": known.__module__, "__doc__": known.__doc__})
    return _DESCRIBED[known](text)


def _class_of_code(code: int) -> type[PostroadError]:
    classes: list[type[PostroadError]] = [PostroadError]
    for each in classes:
        if each.code == code and not issubclass(each, _Described):
            return each
        classes.extend(each.__subclasses__())
    return PostroadError


class _Described:
    """Stands before an error class to replace its data by a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        Exception.__init__(self, text)  # type: ignore[arg-type]  # mixed into exception classes only

    def __str__(self) -> str:
        return self.text


_DESCRIBED: Final[dict[type[PostroadError], type[PostroadError]]] = {}  # at most one per class of this file


class TopicsError(PostroadError):
    """A topic operation failed. The seed's guarantees for an error hold: nothing was received or lost by a `get`."""

    code = 700


class TopicsUnavailableError(TopicsError):
    """No proxy answered, or the topic's server is away, busy or moving the topic. Whether the operation was done is not known."""

    code = 701
    retryable = True


class TopicsNotSubscribedError(TopicsError):
    """A `get` by a client that is not subscribed to the topic."""

    code = 702


class TopicsRefusedError(TopicsError):
    """The service refuses the operation: a limit is reached, or the request is older than what it already knows."""

    code = 703


class TopicsConflictError(TopicsUnavailableError):
    """The client's own copy of the topic is on another server, and the two are not merged yet."""

    code = 704


class TopicsStoreError(TopicsError):
    """The data directory cannot be read or written, belongs to someone else, or is in use by another process."""

    code = 705


class TopicsProtocolError(TopicsError, WireError):
    """Bytes from a peer are not one of the eight messages, or break a bound."""

    code = 706


class TopicsDependencyError(TopicsError):
    """The topics service needs pyzmq, which is not installed."""

    code = 707


class SparkError(PostroadError):
    """A Spark session, the data source or the sink `postroad`, or a job of the pipeline cannot do what was asked."""

    code = 800


class SparkUnavailableError(SparkError):
    """Spark cannot be started: PySpark or Java is missing or too old. The text says what to install."""

    code = 801


class TracksMissingError(SparkError):
    """No files of tracks where a job was told to look."""

    code = 820

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"no track files in {source}; name a broker's data directory, a directory of tracks or a glob of their files"
        )


class LogsMissingError(SparkError):
    """No pubend logs where a job was told to look."""

    code = 821

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(f"no pubend logs in {source}; name a broker's data directory, or a directory that holds some")


class UnclaimedPubendError(SparkError):
    """Tracks speak of a pubend whose log is not at hand, so its messages cannot be checked."""

    code = 822

    def __init__(self, pubend: int) -> None:
        self.pubend = pubend
        super().__init__(
            f"tracks speak of pubend {pubend:x}, and no log of it was given: add the data directory of broker {pubend >> 8}, "
            "or leave its messages unchecked with --on-damage skip"
        )


class LakeError(SparkError):
    """A lake of messages is not as its commits say, or another ingest changed it."""

    code = 823

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the lake {path}: {reason}")


class SparkOptionError(SparkError):
    """An option of the Spark source or sink `postroad` is unknown, missing, or has a value it cannot have."""

    code = 802


class SparkSchemaError(SparkError):
    """A schema does not fit the Spark source or sink: a column of a type messages cannot have, or names that clash."""

    code = 803


class AttributeMismatchError(SparkError):
    """The messages at `tick` have an attribute of another kind than the column it is read into."""

    code = 804

    def __init__(self, attribute: str, kind: str, wanted: str, pubend: int, tick: int) -> None:
        self.attribute = attribute
        self.kind = kind
        self.wanted = wanted
        self.pubend = pubend
        self.tick = tick
        super().__init__(
            f"attribute {attribute!r} is {kind} at tick {tick} of pubend {pubend}, and its column is {wanted}; give a schema "
            "with another type, or the option onMismatch=null to read such values as NULL"
        )


def _pointer(text: str, position: int, width: int = 72) -> str:
    """Two lines: the part of the text around the position, made printable, and a caret below the place."""
    start = max(0, position - width // 2)
    head, tail = text[start:position], text[position : start + width]
    lead = "..." if start else ""
    trail = "..." if start + width < len(text) else ""
    printable_head = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    printable_tail = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in tail)
    return f"  {lead}{printable_head}{printable_tail}{trail}\n  {' ' * (len(lead) + len(printable_head))}^"
