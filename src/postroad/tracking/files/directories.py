"""Where track files lie: a directory, or memory for simulations. A file is there whole or not at all."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from postroad.errors import StorageFailedError, StorageFullError, TrackFileError
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.log import write_error
from postroad.tracking.files.chain import CHAIN_SUFFIX

NEW_PREFIX: Final = "."  # readers of the directory, Spark among them, pass over hidden files
NEW_SUFFIX: Final = ".new"
SUFFIX: Final = ".parquet"
LOCK_NAME: Final = ".merge.lock"
WRITER_LOCK_NAME: Final = ".writer.lock"
LOCK_POLL_S: Final = 0.02


class FileStatus(NamedTuple):
    name: str
    size: int
    changed_ms: int


class TrackFiles(Protocol):
    """All calls block. Writing is for one thread; reading may run beside it."""

    def listed(self) -> list[FileStatus]: ...

    def status(self, name: str) -> FileStatus: ...

    def read(self, name: str) -> pa.Buffer:
        """Return a whole file, or raise `TrackFileError`; a file that is not there is a `FileNotFoundError`."""
        ...

    def read_end(self, name: str, bytes_max: int) -> tuple[pa.Buffer, int]:
        """Return the last bytes of a file, and the size of it; raise as `read` does."""
        ...

    def write(self, name: str, data: Sequence[bytes | memoryview]) -> None:
        """Make a file durable under its name, or raise `StorageFullError` or `StorageFailedError` and leave none."""
        ...

    def remove(self, name: str) -> None: ...

    def read_chain(self) -> bytes | None:
        """Return the record of the chain beside the files, None if there is none."""
        ...

    def write_chain(self, data: bytes) -> None:
        """Replace the record of the chain, or raise as `write` does and leave the former."""
        ...

    def merging(self) -> AbstractContextManager[bool]:
        """Keep others from merging these files meanwhile; False when somebody else does it now."""
        ...

    def path(self, name: str) -> str:
        """Name the file for a person."""
        ...


class DirectoryFiles:
    """Files in a directory. What an interrupted write left is removed at the beginning."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._path: Final = path
        self._disk: Final = disk or Disk()
        try:
            self._disk.make_directory(path)
            for left_over in path.glob(f"{NEW_PREFIX}*{NEW_SUFFIX}"):
                self._disk.remove(left_over)
        except OSError as error:
            raise write_error(error, path) from error

    def listed(self) -> list[FileStatus]:
        found = []
        for path in self._path.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                found.append(self.status(path.name))
        return found

    def status(self, name: str) -> FileStatus:
        status = (self._path / name).stat()
        return FileStatus(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def read(self, name: str) -> pa.Buffer:
        return self.read_end(name, 1 << 62)[0]

    def read_end(self, name: str, bytes_max: int) -> tuple[pa.Buffer, int]:
        path = self._path / name
        try:
            descriptor = self._disk.open(path)
            try:
                size = self._disk.size(descriptor)
                length = min(size, bytes_max)
                return self._disk.read(descriptor, length, size - length), size
            finally:
                self._disk.close(descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise TrackFileError(str(path), error.strerror or str(error)) from error

    def write(self, name: str, data: Sequence[bytes | memoryview]) -> None:
        write_durably(self._path / name, self._path / f"{NEW_PREFIX}{name}{NEW_SUFFIX}", data, self._disk)

    def remove(self, name: str) -> None:
        try:
            with suppress(FileNotFoundError):
                self._disk.remove(self._path / name)
        except OSError as error:
            raise StorageFailedError(str(self._path / name), error.strerror or str(error)) from error

    def read_chain(self) -> bytes | None:
        return read_chain(self._path)

    def write_chain(self, data: bytes) -> None:
        path = chain_path(self._path)
        write_durably(path, path.with_name(f"{NEW_PREFIX}{path.name}{NEW_SUFFIX}"), [data], self._disk)

    def merging(self) -> AbstractContextManager[bool]:
        return merge_lock(self._path, wait=False)

    def path(self, name: str) -> str:
        return str(self._path / name)


def chain_path(directory: Path) -> Path:
    """Return where the record of the chain lies: beside the directory, so that a restored directory does not bring its own."""
    return directory.with_name(directory.name + CHAIN_SUFFIX)


def read_chain(directory: Path) -> bytes | None:
    try:
        return chain_path(directory).read_bytes()
    except OSError:
        return None


def write_durably(path: Path, new: Path, data: Sequence[bytes | memoryview], disk: Disk) -> None:
    """Make a file appear whole under its name, by way of a new one beside it, or raise and leave neither."""
    try:
        descriptor = disk.create(new)
        try:
            disk.write(descriptor, data, 0)
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.rename(new, path)
        disk.sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            disk.remove(new)
        raise write_error(error, path) from error


@contextmanager
def merge_lock(directory: Path, *, wait: bool) -> Iterator[bool]:
    """Be the only one who merges the files of a directory, a broker or a compaction; False when that is somebody else now."""
    with _lock_file(directory / LOCK_NAME) as descriptor:
        yield _is_locked(descriptor, wait=wait)


@contextmanager
def writer_lock(directory: Path, wait_s: float) -> Iterator[None]:
    """Be the only one who tracks in a directory: the process of a broker that died may still be writing there."""
    until = time.monotonic() + wait_s
    try:
        Disk().make_directory(directory)
    except OSError as error:
        raise write_error(error, directory) from error
    with _lock_file(directory / WRITER_LOCK_NAME) as descriptor:
        while not _is_locked(descriptor, wait=False):
            if time.monotonic() > until:
                raise StorageFailedError(str(directory), "another process is still writing tracks there")
            time.sleep(LOCK_POLL_S)
        yield


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise write_error(error, path) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@dataclass(slots=True)
class _Kept:
    data: bytes
    changed_ms: int


class MemoryFiles:
    """Files in memory, for a simulated broker: they outlive its crashes. `room_bytes` makes a full disk."""

    def __init__(self) -> None:
        self.room_bytes: int | None = None
        self._writes = 0  # in place of a clock
        self._chain: bytes | None = None
        self._files: dict[str, _Kept] = {}

    def listed(self) -> list[FileStatus]:
        return [self.status(name) for name in sorted(self._files)]

    def status(self, name: str) -> FileStatus:
        return FileStatus(name, len(self._files[name].data), self._files[name].changed_ms)

    def read(self, name: str) -> pa.Buffer:
        return self.read_end(name, 1 << 62)[0]

    def read_end(self, name: str, bytes_max: int) -> tuple[pa.Buffer, int]:
        kept = self._files.get(name)
        if kept is None:
            raise FileNotFoundError(name)
        size = len(kept.data)
        return pa.py_buffer(kept.data).slice(max(size - bytes_max, 0)), size

    def write(self, name: str, data: Sequence[bytes | memoryview]) -> None:
        joined = b"".join(data)
        if self.room_bytes is not None and len(joined) > self.room_bytes:
            raise StorageFullError(name, "no space left in the simulated disk")
        self._writes += 1
        self._files[name] = _Kept(joined, self._writes)

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def read_chain(self) -> bytes | None:
        return self._chain

    def write_chain(self, data: bytes) -> None:
        self._chain = data

    def merging(self) -> AbstractContextManager[bool]:
        return nullcontext(enter_result=True)

    def path(self, name: str) -> str:
        return name
