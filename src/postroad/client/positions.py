"""A subscription's positions in a file, so that a new life of the client goes on where the old one was.

The file is replaced, never changed: the new text is written beside it and synced, renamed over it, and the directory is synced.
A crash at any moment leaves the old positions or the new ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from postroad.errors import PositionFileError

VERSION: Final = 1
_Tick = Annotated[int, Meta(ge=0)]


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    postroad_positions: int  # the version of this format
    filter: str
    positions: dict[str, _Tick]  # pubend in hexadecimal -> tick


def load_positions(path: Path, filter_text: str) -> dict[int, int]:
    """Return the saved positions, none when there is no file yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PositionFileError(f"cannot read the positions in {path}: {error.strerror}") from error
    try:
        saved = msgspec.json.decode(data, type=_Saved)
        positions = {int(pubend, 16): tick for pubend, tick in saved.positions.items()}
    except (msgspec.MsgspecError, ValueError) as error:
        raise PositionFileError(f"{path} is not a file of positions: {error}") from error
    if saved.postroad_positions != VERSION:
        raise PositionFileError(f"{path} has version {saved.postroad_positions}; this release reads {VERSION}")
    if saved.filter != filter_text:
        raise PositionFileError(
            f"{path} holds the positions of the filter {saved.filter!r}, not of {filter_text!r}: use another file, or remove it"
        )
    return positions


def save_positions(path: Path, filter_text: str, positions: Mapping[int, int]) -> None:
    """Replace the file durably; blocks until it is on disk."""
    saved = _Saved(VERSION, filter_text, {f"{pubend:x}": tick for pubend, tick in sorted(positions.items())})
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(saved)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PositionFileError(f"cannot save the positions in {path}: {error.strerror}") from error
