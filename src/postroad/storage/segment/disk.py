"""The few file operations of a log, in one place so that tests can make any of them fail.

Errors are `OSError`; the log turns them into its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from postroad.errors import StorageLockedError
from postroad.storage.segment.format import Bytes

_BUFFERS_MAX: Final = 1000  # below IOV_MAX (1024)
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


class Disk:
    """Real files. Stateless: descriptors belong to the caller."""

    def create(self, path: Path) -> int:
        """Make a new empty file, replacing a left-over of the same name."""
        return os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)

    def open(self, path: Path, *, writable: bool = False) -> int:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def write(self, descriptor: int, buffers: Sequence[Bytes], offset: int) -> None:
        """Write all buffers one after the other, starting at the offset."""
        pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        start = 0
        while start < len(pending):
            written = os.pwritev(descriptor, pending[start : start + _BUFFERS_MAX], offset)
            offset += written
            while start < len(pending) and written >= len(pending[start]):
                written -= len(pending[start])
                start += 1
            if written:
                pending[start] = pending[start][written:]

    def read(self, descriptor: int, size: int, offset: int) -> pa.Buffer:
        """Read up to `size` bytes into aligned memory; fewer only at the end of the file."""
        buffer = pa.allocate_buffer(size)
        view = memoryview(buffer)
        filled = 0
        while filled < size:
            count = os.preadv(descriptor, [view[filled:]], offset + filled)
            if count == 0:
                break
            filled += count
        return buffer.slice(0, filled)

    def open_mark(self, path: Path) -> int:
        """Open the file of the mark, empty if it is new."""
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)

    def mark(self, descriptor: int, data: bytes) -> None:
        """Replace the mark, in one small write."""
        os.pwrite(descriptor, data, 0)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it, durably, if it is not there yet."""
        if path.is_dir():
            return
        if path.parent != path:
            self.make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self.sync_directory(path.parent)

    def lock(self, path: Path) -> int:
        """Take the lock file of a directory until its descriptor is closed (also by the end of the process)."""
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StorageLockedError(str(path.parent)) from None
        return descriptor
