"""The whole exception tree.

Every error that a user can see is a `PostroadError` with a stable numeric `code` (error packets carry it, and
`docs/reference/errors.md` lists it), a `retryable` flag, and its data as attributes. Expected refusals are return values, not
exceptions; bugs in Postroad are `AssertionError`.

Codes are grouped: 1xx values and batches, 2xx filters, 3xx wire, 4xx storage, 5xx overlay and clients, 6xx queues, 7xx topics,
8xx Spark, 9xx security.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Protocol

ADMISSION_REASONS_MAX: Final = 8
ATTRIBUTES_SHOWN_MAX: Final = 8


class PostroadError(Exception):
    """Base class of all errors that Postroad raises.

    ```python
    try:
        await client.publish({"symbol": "ACME"}, timeout=30)
    except postroad.PostroadError as error:
        print(error.code, error.retryable, error)
    ```
    """

    code: ClassVar[int] = 100
    retryable: ClassVar[bool] = False


class InvalidValueError(PostroadError, ValueError):
    """A value (id, tick, attribute, name, limit) is outside of its documented bounds."""

    code = 101


class BatchError(PostroadError):
    """Bytes or columns are not a valid Postroad batch."""

    code = 102


class BatchLimitError(BatchError):
    """A batch, message or attribute is larger than the limits allow. `limit` is the name of the limit, `maximum` its value."""

    code = 103

    def __init__(self, reason: str, limit: str, maximum: int) -> None:
        self.limit = limit
        self.maximum = maximum
        super().__init__(f"{reason}; the limit {limit} is {maximum:,}")


class PayloadError(PostroadError, ValueError):
    """A payload is not JSON, or not JSON of the type that was asked for."""

    code = 104


class FilterError(PostroadError, ValueError):
    """A filter cannot be used."""

    code = 200


class FilterSyntaxError(FilterError):
    """The text of a filter cannot be parsed. `position` counts characters from 0; `str()` shows the text with a pointer to it.

    ```python
    try:
        postroad.Filter("price >")
    except postroad.FilterSyntaxError as error:
        print(error.position, error)
    ```
    """

    code = 201

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason = reason
        self.text = text
        self.position = position
        super().__init__(reason, text, position)

    def __str__(self) -> str:
        return f"{self.reason} at position {self.position}\n{_pointer(self.text, self.position)}"


class FilterLimitError(FilterSyntaxError):
    """A filter is longer, more deeply nested or more expensive than the configured limits allow."""

    code = 202


class WireError(PostroadError):
    """Bytes from a peer do not follow the protocol."""

    code = 300


class StorageError(PostroadError):
    """A data directory or database cannot be used."""

    code = 400


class StorageUnavailableError(StorageError):
    """The database cannot be reached or closed the connection. It may be unknown whether the last change was stored."""

    code = 410
    retryable = True


class StorageSchemaError(StorageError):
    """The database has a schema that this version does not know, or a migration file was changed after it was applied."""

    code = 411


class PostgresMissingError(StorageError):
    """Queues in PostgreSQL need the package `asyncpg`, which is not installed: `pip install 'postroad[postgres]'`."""

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
    """A client or queue with this name already exists."""

    code = 604


class ReadOnlyClientError(QueueError):
    """A read-only client tried to change something."""

    code = 605


class LeaseLostError(QueueError):
    """The lease ended, so the message waits in the queue again or another client has it."""

    code = 606


class QueueLimitError(QueueError):
    """A payload, batch, waiting time or lease exceeds the configured limit."""

    code = 608


class NoResponseError(QueueError):
    """No response to a request arrived in time. The request may still be answered later."""

    code = 609
    retryable = True


class QueueBusyError(QueueError):
    """Too many calls or takes are waiting already; try again later."""

    code = 610
    retryable = True


class UnknownBindingError(QueueError):
    """No binding has this id."""

    code = 611


class ConnectionLostError(QueueError):
    """The connection to the broker was lost; reconnect and repeat the calls that are safe to repeat."""

    code = 612
    retryable = True


class RemoteError(QueueError):
    """A broker answered with an error code this version does not know."""

    code = 613


class QueueSettingsError(QueueError):
    """The queue exists with other settings than the ones it was declared with."""

    code = 614


class RequestFailedError(QueueError):
    """The handler that served a request raised an error; the text is the error's."""

    code = 615


class MalformedFrameError(WireError):
    """The header of a frame is invalid. `frames` are the valid frames before it in the same chunk."""

    code = 301

    def __init__(self, reason: str, frames: tuple[tuple[int, int, bytes | memoryview], ...] = ()) -> None:
        self.frames = frames
        super().__init__(reason)


class FrameTooLargeError(MalformedFrameError):
    """A frame is longer than the connection's maximum. It was discarded."""

    code = 302

    def __init__(self, length: int, maximum: int, frames: tuple[tuple[int, int, bytes | memoryview], ...] = ()) -> None:
        self.length = length
        self.maximum = maximum
        super().__init__(f"the frame has {length:,} bytes; at most {maximum:,} are allowed", frames)


class UnknownMethodError(WireError):
    """This version of the protocol has no packet with this method id."""

    code = 303

    def __init__(self, method: int) -> None:
        self.method = method
        super().__init__(f"unknown method 0x{method:04x}")


class MalformedPacketError(WireError):
    """The payload of a packet cannot be decoded. `packet` is the name that belongs to its method id."""

    code = 304

    def __init__(self, packet: str, reason: str) -> None:
        self.packet = packet
        self.reason = reason
        super().__init__(f"malformed {packet}: {reason}")


class WrongDirectionError(WireError):
    """A peer sent a packet that only the other side of the connection may send."""

    code = 305

    def __init__(self, packet: str, direction: str) -> None:
        self.packet = packet
        self.direction = direction
        super().__init__(f"{packet} must not be sent {direction}")


class NotIdentifiedError(WireError):
    """A peer must identify itself before it sends this packet."""

    code = 306

    def __init__(self, packet: str) -> None:
        self.packet = packet
        super().__init__(f"{packet} needs an identified connection: send Hello, RegisterClient or IdentifyClient first")


class ProtocolVersionError(WireError):
    """Two peers have no version of the protocol in common."""

    code = 307

    def __init__(self, ours: tuple[int, int], theirs: tuple[int, int]) -> None:
        self.ours = ours
        self.theirs = theirs
        super().__init__(f"no common protocol version: we support {ours[0]} to {ours[1]}, the peer {theirs[0]} to {theirs[1]}")


class ProtocolViolationError(WireError):
    """A peer sent a valid packet that is not allowed at this point. The connection is closed."""

    code = 350


class HandshakeError(WireError):
    """A peer did not identify itself in time, or did so at the wrong moment."""

    code = 351


class TooManyConnectionsError(WireError):
    """The broker has reached its configured maximum of connections."""

    code = 352
    retryable = True


class ShuttingDownError(WireError):
    """The broker is shutting down."""

    code = 353
    retryable = True


class InternalError(WireError):
    """The broker failed to process a packet because of a bug. It closes this connection and continues to serve the others."""

    code = 355


class BufferLimitError(WireError):
    """One connection, or all connections together, used more buffer memory in the broker than its configuration allows."""

    code = 356
    retryable = True


class ListenError(PostroadError):
    """A broker cannot listen on its address: another program uses it, or it is not an address of this machine."""

    code = 354


class StorageFullError(StorageError):
    """No space is left to write. Nothing was written; try again when there is space."""

    code = 401
    retryable = True

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"no space left to write {path}: {reason}; free some space or raise the limit, then try again")


class CorruptSegmentError(StorageError):
    """A segment of a pubend's log was damaged after it was written. `file` and `offset` say where."""

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
    """Files have another format version, or are not Postroad files."""

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
    """The disk failed during a write, so its content is uncertain. The broker writes nothing more until it is restarted."""

    code = 406

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} cannot be used: {reason}; check the disk, then restart the broker")


class LogMissingError(StorageError):
    """The log of a pubend existed before and is missing now."""

    code = 407

    def __init__(self, path: str, pubend: int) -> None:
        self.path = path
        self.pubend = pubend
        super().__init__(f"the log of pubend {pubend} is missing from {path}; restore it from a copy")


class CorruptMetadataError(StorageError):
    """The metadata file of a broker is damaged."""

    code = 408

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(f"{file} is damaged: {reason}; restore it from a copy")


class TrackFileError(StorageError):
    """A track file is damaged, or Postroad did not write it. Searches skip it and report its content as a hole."""

    code = 409

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(f"{file} cannot be read: {reason}; restore the file from a copy, or move it away and accept the hole")


class OverlayError(PostroadError):
    """A broker of the overlay cannot fulfil a request."""

    code = 500


class DurableBusyError(OverlayError):
    """Another client uses the durable subscription with this name, or used it a moment ago."""

    code = 501
    retryable = True


class DurableElsewhereError(OverlayError):
    """The home broker of the durable subscription cannot be reached now, and the client has no positions.

    Or the subscription is new, and fewer than a majority of the known brokers answered, or this broker has not reached any
    neighbour since it was set up.
    """

    code = 502
    retryable = True


class DurableFilterError(OverlayError):
    """A durable subscription with this name and another filter exists; delete it first."""

    code = 503


class UnknownDurableError(OverlayError):
    """There is no durable subscription with this name."""

    code = 510


class SharedElsewhereError(OverlayError):
    """A shared subscription lives at another broker, its home, and the client has no connection to that one.

    `home` is the id of that broker. Give the client its address as well, or start the broker if it is down.
    """

    code = 511
    retryable = True

    def __init__(self, name: str, home: int) -> None:
        self.name = name
        self.home = home
        super().__init__(f"the shared subscription {name!r} lives at broker {home}: connect to that broker")


class RedeliveredError(OverlayError):
    """The message is not acknowledged: the connection was lost before that was stored, so another member may get the message.

    If the acknowledgement was on its way, it may be stored all the same; then nobody gets the message again.
    """

    code = 512


class DurableKindError(OverlayError):
    """A durable subscription with this name exists, and it is shared, or is not shared, or has another key."""

    code = 513


class UnknownHandleError(OverlayError):
    """This connection has no subscription or publisher with this handle."""

    code = 504


class DuplicateHandleError(OverlayError):
    """This connection already uses this handle for a subscription."""

    code = 505


class TooManyError(OverlayError):
    """A configured maximum (subscriptions, publishers) is reached."""

    code = 506


class WrongRoleError(OverlayError):
    """A peer sent a packet of the wrong role: a client sent a broker's packet, or a broker sent a client's."""

    code = 507


class ImplausibleError(OverlayError):
    """A broker sent an impossible value: a number beyond its bound, or a statement that only another broker may make."""

    code = 509


class SkewError(OverlayError):
    """A message's timestamp and the broker's clock differ by more than the broker tolerates: one of the clocks was changed.

    The client has corrected its clock and continues. Messages from the future must be published again with new ids.
    """

    code = 508
    retryable = True

    def __init__(self, skew_ms: int, tolerance_ms: int) -> None:
        self.skew_ms = skew_ms
        self.tolerance_ms = tolerance_ms
        side = "behind" if skew_ms > 0 else "ahead of"
        super().__init__(f"the timestamp is {abs(skew_ms)} ms {side} the broker's clock, which tolerates {tolerance_ms} ms")


class ConfigError(PostroadError):
    """A configuration or topology file cannot be used. The text names the key and suggests a similar one."""

    code = 550


class NotConnectedError(OverlayError):
    """None of the given broker addresses could be reached in time."""

    code = 551
    retryable = True


class ClosedError(OverlayError):
    """The client, publisher or subscription was closed."""

    code = 552


class GapError(OverlayError):
    """Messages of `pubend` in the ticks (lo, hi] were released before this subscription received them. They are lost."""

    code = 553

    def __init__(self, pubend: int, lo: int, hi: int) -> None:
        self.pubend = pubend
        self.lo = lo
        self.hi = hi
        super().__init__(f"messages of pubend {pubend:x} in the ticks ({lo}, {hi}] were released before they were delivered")


class PublishRefusedError(OverlayError):
    """The broker refused the messages with ids from `first` to `last` (16 bytes each). `cause` is the broker's error."""

    code = 554

    def __init__(self, first: bytes, last: bytes, cause: PostroadError) -> None:
        self.first = first
        self.last = last
        self.cause = cause
        self.retryable = cause.retryable  # type: ignore[misc]  # as its cause: a full disk may be freed, a wrong value stays wrong
        super().__init__(f"the broker refused the messages {first.hex()} to {last.hex()}: {cause}  [error {cause.code}]")


class PositionFileError(OverlayError):
    """A file of positions cannot be read or written, or its content is invalid."""

    code = 555


class UnfinishedError(OverlayError):
    """An operation did not finish in time; it may still finish later."""

    code = 556
    retryable = True


class UnknownPubendError(OverlayError):
    """No known broker hosts this pubend, or none of the given directories contains its log."""

    code = 561


class PubendUnreachableError(OverlayError):
    """The broker that hosts the pubend cannot be reached now."""

    code = 562
    retryable = True


class StaleEpochError(OverlayError):
    """A later batch of the named writer has started, or the broker no longer knows how much of this batch was written."""

    code = 563


class EpochChangedError(OverlayError):
    """A named writer repeated a batch with other rows, or split differently, than the first time."""

    code = 564


class BrokerRefusal(Protocol):
    """Why one broker refuses a subscription; `core.protocol.admission.Refusal` says what the fields mean."""

    @property
    def broker(self) -> int: ...

    @property
    def resource(self) -> str: ...

    @property
    def neighbour(self) -> int: ...

    @property
    def demanded(self) -> int: ...

    @property
    def available(self) -> int: ...


class AdmissionError(OverlayError):
    """The overlay cannot serve this subscription now.

    `refusals` says which brokers refuse, for want of which resource, and how much was demanded and is
    available. `brokers` are all that were asked. `largest_rate` is the most that a subscription could
    bring and fit, in messages per second, and `fitting_filter` the same filter with a narrower range
    that would fit; None where that is not known.

    ```python
    try:
        await client.subscribe("price > 100")
    except postroad.AdmissionError as error:
        print(error.refusals, error.fitting_filter)
    ```
    """

    code = 565
    retryable = True

    def __init__(
        self,
        refusals: Sequence[BrokerRefusal],
        brokers: Sequence[int] = (),
        largest_rate: float | None = None,
        fitting_filter: str | None = None,
    ) -> None:
        self.refusals = tuple(refusals)
        self.brokers = tuple(brokers)
        self.largest_rate = largest_rate
        self.fitting_filter = fitting_filter
        reasons = "; ".join(str(each) for each in self.refusals[:ADMISSION_REASONS_MAX])
        more = len(self.refusals) - ADMISSION_REASONS_MAX
        text = f"the subscription was not admitted: {reasons}" + (f"; and {more} more" if more > 0 else "")
        if largest_rate is not None:
            text += f". At most {largest_rate:g} messages/s more would fit"
        if fitting_filter is not None:
            text += f". This would fit: {fitting_filter}"
        super().__init__(text)


class OutsideAdvertisementError(OverlayError):
    """A message does not match what its client has advertised; `attributes` are those of the message."""

    code = 566

    def __init__(self, attributes: Mapping[str, object]) -> None:
        self.attributes = dict(attributes)
        shown = ", ".join(f"{name} = {value!r}" for name, value in list(self.attributes.items())[:ATTRIBUTES_SHOWN_MAX])
        super().__init__(f"the message ({shown or 'without attributes'}) is outside of what its publisher has advertised")


def error_of_code(code: int, text: str) -> PostroadError:
    """Make the exception for an error code from a peer: an instance of its class with the text as its only data."""
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
    """Mixin in front of an error class: replaces the data by a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        Exception.__init__(self, text)  # type: ignore[arg-type]  # mixed into exception classes only

    def __str__(self) -> str:
        return self.text


_DESCRIBED: Final[dict[type[PostroadError], type[PostroadError]]] = {}  # at most one per class of this file


class TopicsError(PostroadError):
    """A topic operation failed. A `get` that fails has received nothing and lost nothing."""

    code = 700


class TopicsUnavailableError(TopicsError):
    """No proxy answered, or the topic's server is down, busy or moving the topic. The operation may or may not have been done."""

    code = 701
    retryable = True


class TopicsNotSubscribedError(TopicsError):
    """A client that is not subscribed to the topic called `get`."""

    code = 702


class TopicsRefusedError(TopicsError):
    """The service refused the operation: a limit is reached, or the service already knows a newer request."""

    code = 703


class TopicsConflictError(TopicsUnavailableError):
    """Another server has a copy of the topic with this client's state, and the copies are not merged yet."""

    code = 704


class TopicsStoreError(TopicsError):
    """The data directory cannot be read or written, belongs to another server or client, or is in use by another process."""

    code = 705


class TopicsProtocolError(TopicsError, WireError):
    """Bytes from a peer are not a message of the protocol, or exceed a limit."""

    code = 706


class TopicsDependencyError(TopicsError):
    """The topics service needs pyzmq, which is not installed."""

    code = 707


class SparkError(PostroadError):
    """A Spark session, the data source or sink `postroad`, or a pipeline job failed."""

    code = 800


class SparkUnavailableError(SparkError):
    """Spark cannot be started: PySpark or Java is missing or too old. The text says what to install."""

    code = 801


class TracksMissingError(SparkError):
    """The given place contains no track files."""

    code = 820

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"no track files in {source}; give the data directory of a broker, a directory of track files or a glob pattern"
        )


class LogsMissingError(SparkError):
    """The given place contains no pubend logs."""

    code = 821

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(f"no pubend logs in {source}; give the data directory of a broker, or a directory that contains some")


class UnclaimedPubendError(SparkError):
    """Track files mention a pubend whose log was not given, so its messages cannot be checked."""

    code = 822

    def __init__(self, pubend: int) -> None:
        self.pubend = pubend
        super().__init__(
            f"track files mention pubend {pubend:x}, but its log was not given: add the data directory of broker {pubend >> 8}, "
            "or use --on-damage skip to leave its messages unchecked"
        )


class LakeError(SparkError):
    """The files of a lake do not match its commits, or another ingest changed it."""

    code = 823

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the lake {path}: {reason}")


class VerdictTableError(SparkError):
    """A table of verdicts cannot be read, or another audit wrote to it."""

    code = 824

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the table of verdicts {path}: {reason}")


class SparkOptionError(SparkError):
    """An option of the Spark source or sink `postroad` is unknown, missing or has an invalid value."""

    code = 802


class SparkSchemaError(SparkError):
    """A schema does not fit the Spark source or sink: a column has a type that messages cannot have, or two names collide."""

    code = 803


class AttributeMismatchError(SparkError):
    """A message at `tick` has an attribute whose type does not fit its column."""

    code = 804

    def __init__(self, attribute: str, kind: str, wanted: str, pubend: int, tick: int) -> None:
        self.attribute = attribute
        self.kind = kind
        self.wanted = wanted
        self.pubend = pubend
        self.tick = tick
        super().__init__(
            f"attribute {attribute!r} is {kind} at tick {tick} of pubend {pubend}, but its column is {wanted}; use a schema "
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


class SecurityError(PostroadError):
    """Base class of what authentication, encryption and permissions refuse."""

    code = 900


class UnauthenticatedError(SecurityError):
    """This port serves only clients and brokers that prove who they are, with a token or a certificate."""

    code = 901


class PermissionDeniedError(SecurityError):
    """The identity of this connection lacks a permission. `identity` is its name, `action` what it tried."""

    code = 902

    def __init__(self, identity: str, action: str) -> None:
        self.identity = identity
        self.action = action
        super().__init__(f"{identity or 'an anonymous client'} may not {action}")


class TokenError(SecurityError):
    """The token is unknown, revoked or expired. The error does not say which."""

    code = 903

    def __init__(self) -> None:
        super().__init__("the token is not valid: it is unknown, revoked or expired")


class PlainTokenError(SecurityError):
    """A token was about to travel, or travelled, over a connection without TLS. Use a `postroads://` address."""

    code = 904


class CertificateError(SecurityError):
    """A certificate, a private key or a file of trusted authorities cannot be used, or names the wrong peer."""

    code = 905


class CryptographyMissingError(SecurityError):
    """Making certificates needs the package `cryptography`, which is not installed: `pip install 'postroad[security]'`."""

    code = 906


class RateLimitError(SecurityError):
    """An identity or an address used more than its limit; try again later."""

    code = 907
    retryable = True


class IdentitiesError(SecurityError):
    """The file of identities cannot be read or changed."""

    code = 908


class ExposedError(SecurityError):
    """A broker or server would listen where others can reach it, without TLS and identities. The text says what to do."""

    code = 909
