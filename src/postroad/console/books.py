"""The result of the last audit, as `postroad pipeline audit --books FILE` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from postroad.errors import StorageFormatError

FILE_BYTES_MAX: Final = 16 << 20
ROWS_MAX: Final = 1000


class BooksRow(msgspec.Struct, frozen=True):
    """What one subscriber should have got, and did."""

    subscriber: str
    expected: int
    delivered: int
    missing: int


class NamedMessage(msgspec.Struct, frozen=True):
    """A message that the audit names: what is wrong with it, and for whom."""

    verdict: str
    id: str
    subscriber: str
    reason: str = ""


class BooksFile(msgspec.Struct, frozen=True):
    """One audit. `told` says in a sentence or two what it compared."""

    verdict: Annotated[str, Meta(max_length=64)]
    told: str
    at_ms: int
    published: int
    expected: int
    delivered: int
    missing: int
    explained: int = 0
    subscribers: list[BooksRow] = []
    named: list[NamedMessage] = []


def read_books(path: Path) -> dict[str, Any]:
    """Return the last audit as plain values; empty if there was none yet."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise StorageFormatError(str(path), "the file of an audit is never so large")
        books = msgspec.json.decode(path.read_bytes(), type=BooksFile)
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise StorageFormatError(str(path), f"this is not the file of an audit: {error}") from error
    shown = msgspec.to_builtins(books)
    shown["subscribers"] = sorted(shown["subscribers"], key=lambda row: (-row["missing"], row["subscriber"]))[:ROWS_MAX]
    shown["named"] = shown["named"][:ROWS_MAX]
    assert isinstance(shown, dict)
    return shown
