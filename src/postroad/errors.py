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
    """A broker's data directory cannot be used."""

    code = 400


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
        super().__init__(f"writing {path} failed: {reason}; check the disk, then restart the broker")


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


def _pointer(text: str, position: int, width: int = 72) -> str:
    """Two lines: the part of the text around the position, made printable, and a caret below the place."""
    start = max(0, position - width // 2)
    head, tail = text[start:position], text[position : start + width]
    lead = "..." if start else ""
    trail = "..." if start + width < len(text) else ""
    printable_head = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    printable_tail = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in tail)
    return f"  {lead}{printable_head}{printable_tail}{trail}\n  {' ' * (len(lead) + len(printable_head))}^"
