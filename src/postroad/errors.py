"""The whole exception tree.

Every error a user can meet is a `PostroadError` with a stable numeric `code` (it travels in error packets and is listed in
`docs/reference/errors.md`), a `retryable` flag, and its data as attributes. Expected refusals are return values, not
exceptions; our own bugs are `AssertionError`.

Codes are grouped: 1xx values and batches, 2xx filters, 3xx wire, 4xx storage, 5xx overlay and clients, 6xx queues, 7xx topics.
"""

from __future__ import annotations

from typing import ClassVar


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
    """A storage cannot be used."""

    code = 400


class StorageUnavailableError(StorageError):
    """The database is away, restarting or dropped the connection. Whether the last change was kept may be unknown."""

    code = 410
    retryable = True


class StorageSchemaError(StorageError):
    """The database holds a schema this version does not know, or a migration file was changed after it was applied."""

    code = 411


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


def _pointer(text: str, position: int, width: int = 72) -> str:
    """Two lines: the part of the text around the position, made printable, and a caret below the place."""
    start = max(0, position - width // 2)
    head, tail = text[start:position], text[position : start + width]
    lead = "..." if start else ""
    trail = "..." if start + width < len(text) else ""
    printable_head = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    printable_tail = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in tail)
    return f"  {lead}{printable_head}{printable_tail}{trail}\n  {' ' * (len(lead) + len(printable_head))}^"
