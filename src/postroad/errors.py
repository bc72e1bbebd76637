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


def _pointer(text: str, position: int, width: int = 72) -> str:
    """Two lines: the part of the text around the position, made printable, and a caret below the place."""
    start = max(0, position - width // 2)
    head, tail = text[start:position], text[position : start + width]
    lead = "..." if start else ""
    trail = "..." if start + width < len(text) else ""
    printable_head = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    printable_tail = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in tail)
    return f"  {lead}{printable_head}{printable_tail}{trail}\n  {' ' * (len(lead) + len(printable_head))}^"
