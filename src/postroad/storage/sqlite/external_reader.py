"""A broker's metadata as anybody may read them, beside the broker that writes them: of a copy, so that nothing is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from postroad.errors import StorageFailedError
from postroad.storage.remote import RemotePath
from postroad.storage.sqlite.metadata import SqliteMetadata


@contextmanager
def copied_metadata(path: Path) -> Iterator[SqliteMetadata]:
    """Open a copy of the metadata at `path`, which may be in use."""
    if not path.is_file():
        raise StorageFailedError(str(path), "the file is missing")
    with TemporaryDirectory(prefix="postroad-metadata-") as directory:
        copy = Path(directory) / path.name
        try:
            _copy(path, copy)
        except (sqlite3.Error, OSError) as error:
            raise StorageFailedError(str(path), str(error)) from error
        with closing(SqliteMetadata(copy)) as metadata:
            yield metadata


def _copy(path: Path, target: Path) -> None:
    if isinstance(path, RemotePath):  # shipped whole, by `back_up`
        target.write_bytes(path.read_bytes())
        return
    back_up(path, target)


def back_up(path: Path, target: Path) -> None:
    """Copy metadata that may be in use, in one consistent state."""
    try:
        _back_up(path, target, "mode=ro")
    except sqlite3.OperationalError:  # nobody runs, and the files that reading needs beside it cannot be made
        _back_up(path, target, "immutable=1")


def _back_up(path: Path, target: Path, mode: str) -> None:
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    with closing(sqlite3.connect(uri, uri=True)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
