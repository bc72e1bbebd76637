"""Room that a broker keeps for itself on its disk.

A full disk must not keep a broker from starting and from serving what it has: both need small writes to the metadata. So a file
of some megabytes stands in the data directory, and is emptied when the disk is full. What is given up is taken again when there
is room. A broker does not append messages meanwhile, so the room stays for the metadata, unless other programs take it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

RESERVE_NAME: Final = "reserve"
RESERVE_BYTES: Final = 4 << 20
DISK_SHARE: Final = 16  # on a small disk: one part of so many
_MODE: Final = 0o600


class Reserve:
    """The file of one data directory. Its methods never raise: without a reserve a broker only has less room."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self._path: Final = directory / RESERVE_NAME
        self._size: Final = min(RESERVE_BYTES, _capacity(directory) // DISK_SHARE)

    def give(self) -> bool:
        """Free the room; tell whether there was any to free."""
        with suppress(OSError):
            if self._path.stat().st_size:
                os.truncate(self._path, 0)
                return True
        return False

    def take(self) -> bool:
        """Take the room again; tell whether it is held now."""
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size == self._size:
                return True
            if self.lacking:
                return False
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _MODE)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            except OSError:
                os.ftruncate(descriptor, 0)
                raise
            finally:
                os.close(descriptor)
            return True
        return False

    def free(self) -> int:
        """Return how many bytes are free on the disk."""
        with suppress(OSError):
            found = os.statvfs(self.directory)
            return int(found.f_bavail * found.f_frsize)
        return 0

    @property
    def lacking(self) -> bool:
        """Whether the disk is too full to take the room: what is taken must not fill it."""
        return self.free() < self._size + self._size // 4

    def make_room(self) -> None:
        """Free the room if the disk is nearly full."""
        if self.free() < self._size:
            self.give()


def _capacity(directory: Path) -> int:
    with suppress(OSError):
        found = os.statvfs(directory)
        return int(found.f_blocks * found.f_frsize)
    return 0
