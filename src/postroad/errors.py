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


class ConnectionLostError(PostroadError):
    """The connection to the broker is gone; reconnect and repeat what is safe to repeat."""

    code = 501
    retryable = True


class RemoteError(PostroadError):
    """A broker answered with an error code this version does not know."""

    code = 502


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


def _pointer(text: str, position: int, width: int = 72) -> str:
    """Two lines: the part of the text around the position, made printable, and a caret below the place."""
    start = max(0, position - width // 2)
    head, tail = text[start:position], text[position : start + width]
    lead = "..." if start else ""
    trail = "..." if start + width < len(text) else ""
    printable_head = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    printable_tail = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in tail)
    return f"  {lead}{printable_head}{printable_tail}{trail}\n  {' ' * (len(lead) + len(printable_head))}^"
