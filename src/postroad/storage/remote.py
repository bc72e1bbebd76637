"""Files in an object store, or in any other file system with a URI, for those who read what brokers wrote.

`path_of` makes a path of a URI. It has the methods of `pathlib.Path` that readers of logs, tracks and metadata use, so the same
code reads a local directory and a shipped copy. Nothing here locks or renames: an object appears whole or not at all. The clients
are those of `pyarrow.fs`, with credentials from the environment. `AWS_ENDPOINT_URL` names another store that speaks S3: Arrow
itself does not look at it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PosixPath
from typing import IO, Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from postroad.storage.segment.disk import Disk

ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
AHEAD_BYTES: Final = 8 << 20
"""How much is asked for at once when a file is read from front to back: a request costs some tens of milliseconds."""

_FIRST_DESCRIPTOR: Final = 1 << 30  # above what a process has open
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names


class RemotePath(PosixPath):
    """A path whose first part is a scheme, such as `s3:`, and whose second part is a bucket or host."""

    __slots__ = ()

    def __str__(self) -> str:
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is not a local file")

    def absolute(self) -> RemotePath:
        return self

    def exists(self, **_: Any) -> bool:
        return _type(self) != "NotFound"

    def is_dir(self, **_: Any) -> bool:
        return _type(self) == "Directory"

    def is_file(self, **_: Any) -> bool:
        return _type(self) == "File"

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]  # the type of a path is its own
        return (path for path, _ in _children(self))

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """Yield what matches, level by level; names that begin with a dot match `*` as they do locally."""
        first, _sign, rest = pattern.partition("/")
        for path, is_directory in _children(self) if _is_pattern(first) else [(self / first, True)]:
            if not fnmatchcase(path.name, first):
                continue
            if rest and is_directory:
                yield from path.glob(rest)
            elif not rest and (_is_pattern(first) or path.exists()):
                yield path

    def read_bytes(self) -> bytes:
        return self.read_buffer().to_pybytes()

    def read_buffer(self) -> pa.Buffer:
        with self.open() as file:
            return file.read_buffer()  # type: ignore[no-any-return, attr-defined]  # a file of Arrow

    def open(self, *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        """Open a file of Arrow for reading; it has `read`, `read_at` and `size`."""
        filesystem, path = located(self)
        return filesystem.open_input_file(path)  # type: ignore[no-any-return]

    def write_bytes(self, data: Any) -> int:
        """Make the object appear whole."""
        filesystem, path = located(self)
        if not _is_store(filesystem):
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(path) as file:
            file.write(data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        filesystem, path = located(self)
        try:
            filesystem.delete_file(path)
        except FileNotFoundError:
            if not missing_ok:
                raise


def is_uri(text: str) -> bool:
    """Say whether a text names a place by a URI: a scheme and `//`, or Hadoop's `file:/path`."""
    scheme, sign, rest = text.partition(":")
    return bool(sign) and scheme[:1].isalpha() and (rest.startswith("//") or (scheme == "file" and rest.startswith("/")))


def path_of(source: str | Path) -> Path:
    """Return the path that a text or URI names; `file:` URIs are local paths."""
    if isinstance(source, Path) or not is_uri(source):
        return Path(source)
    return Path(url2pathname(urlsplit(source).path)) if source.startswith("file:") else RemotePath(source)


def located(path: RemotePath) -> tuple[Any, str]:
    """Return Arrow's file system of a path, and its name there; `ValueError` for a scheme that Arrow does not know."""
    scheme, host, *names = path.parts
    known = _SCHEMES.get(scheme[:-1], scheme[:-1])
    endpoint = next((found for name in ENDPOINT_VARIABLES if (found := os.environ.get(name))), "") if known == "s3" else ""
    filesystem, root = _filesystem(known, host, endpoint)
    return filesystem, "/".join((root.rstrip("/"), *names)) if names else root


@lru_cache(maxsize=32)
def _filesystem(scheme: str, host: str, endpoint: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem  # noqa: PLC0415  # loads the clients of all stores: only where one is used

    told = urlsplit(endpoint)
    query = f"?endpoint_override={told.netloc}&scheme={told.scheme}" if endpoint else ""
    return FileSystem.from_uri(f"{scheme}://{host}/{query}")


def _is_store(filesystem: Any) -> bool:
    """Say whether names with `/` are all there is to directories."""
    return filesystem.type_name in {"s3", "gcs", "abfs"}


def _type(path: RemotePath) -> str:
    filesystem, name = located(path)
    return str(filesystem.get_file_info(name).type.name)


def _children(path: RemotePath) -> Iterator[tuple[RemotePath, bool]]:
    """Return what lies directly below a path, in the order of names, and whether each is a directory."""
    from pyarrow.fs import FileSelector  # noqa: PLC0415  # see `_filesystem`

    filesystem, name = located(path)
    found = filesystem.get_file_info(FileSelector(name, allow_not_found=True))
    names = sorted((each.base_name, each.type.name == "Directory") for each in found)
    return ((path / base, is_directory) for base, is_directory in names)


def matching(path: Path) -> Iterator[Path]:
    """Yield the paths that match one with patterns (`*`, `?`, `[`) in its parts."""
    fixed = next((index for index, part in enumerate(path.parts) if _is_pattern(part)), None)
    if fixed is None:
        yield path
    else:
        yield from path.parents[len(path.parts) - fixed - 1].glob("/".join(path.parts[fixed:]))


def read_whole(path: Path) -> pa.Buffer:
    """Return the bytes of a file, here or there."""
    return path.read_buffer() if isinstance(path, RemotePath) else pa.py_buffer(path.read_bytes())


def size_of(path: Path) -> int:
    """Return the size of a file, here or there."""
    if not isinstance(path, RemotePath):
        return path.stat().st_size
    filesystem, name = located(path)
    info = filesystem.get_file_info(name)
    if info.size is None:
        raise FileNotFoundError(str(path))
    return int(info.size)


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


@dataclass(slots=True)
class _OpenFile:
    """`held` are the bytes from `begin` on that were read last."""

    file: Any
    begin: int = 0
    held: pa.Buffer = field(default_factory=lambda: pa.py_buffer(b""))

    def read(self, size: int, offset: int) -> pa.Buffer:
        end = self.begin + len(self.held)
        if not self.begin <= offset <= offset + size <= end:
            ahead = max(size, AHEAD_BYTES) if self.begin < offset <= end else size
            wanted = max(0, min(ahead, self.file.size() - offset))
            self.held = pa.py_buffer(self.file.read_at(wanted, offset))
            self.begin = offset
        return self.held.slice(offset - self.begin, min(size, len(self.held) - (offset - self.begin)))


class ReadingDisk(Disk):
    """Reads local files and remote ones. Descriptors of remote files are numbers that the system does not use."""

    def __init__(self) -> None:
        self._files: dict[int, _OpenFile] = {}
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)
        self._lock = threading.Lock()

    def open(self, path: Path, *, writable: bool = False) -> int:
        if not isinstance(path, RemotePath):
            return super().open(path, writable=writable)
        file = _OpenFile(path.open())
        with self._lock:
            descriptor = next(self._numbers)
            self._files[descriptor] = file
        return descriptor

    def close(self, descriptor: int) -> None:
        if descriptor < _FIRST_DESCRIPTOR:
            super().close(descriptor)
            return
        self._files.pop(descriptor).file.close()

    def size(self, descriptor: int) -> int:
        return super().size(descriptor) if descriptor < _FIRST_DESCRIPTOR else int(self._files[descriptor].file.size())

    def read(self, descriptor: int, size: int, offset: int) -> pa.Buffer:
        if descriptor < _FIRST_DESCRIPTOR:
            return super().read(descriptor, size, offset)
        return self._files[descriptor].read(size, offset)
