"""Whether there is room on the disk: noticed once, told once, looked for again now and then.

A full disk is a state. When a write finds no room, the state is told and messages are refused without trying, until there is room
again; that is looked for once in `PROBE_S`, when somebody publishes. Metadata is written on from the reserve.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from postroad.errors import StorageFullError
from postroad.storage.reserve import Reserve

log = logging.getLogger("postroad.disk")

PROBE_S: Final = 1.0
REMIND_S: Final = 600.0
QUIET_S: Final = 10.0  # after the end of a full time, in which another beginning is not told


class DiskSpace:
    """Used by all threads that write."""

    def __init__(self, reserve: Reserve, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0  # appends, since the start
        self._reserve: Final = reserve
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._full: StorageFullError | None = None
        self._probe_at = 0.0
        self._remind_at = 0.0
        self._quiet_until = 0.0
        self._told = False  # that the disk is full
        if not reserve.take() and reserve.lacking:  # it was given up before: what is free is for the metadata
            self.found_full(StorageFullError(str(reserve.directory), "the disk is nearly full"), refused=False)

    @property
    def full(self) -> bool:
        return self._full is not None

    def check(self) -> None:
        """Raise while the disk is known to be full, but for one try now and then."""
        with self._lock:
            if self._full is None:
                return
            now = self._clock()
            if now >= self._probe_at:
                self._probe_at = now + PROBE_S
                if self._reserve.take() or not self._reserve.lacking:
                    return
            self.refused += 1
            self._remind(now)
            raise StorageFullError(self._full.path, self._full.reason)

    def found_full(self, error: StorageFullError, *, refused: bool) -> None:
        """Note that a write found no room."""
        with self._lock:
            now = self._clock()
            self.refused += refused
            if self._full is None:
                self._probe_at = now + PROBE_S
                self._remind_at = now + REMIND_S
                self._told = now >= self._quiet_until
                if self._told:
                    log.error(
                        "the disk is full: new messages are refused until there is space; stored messages can still be read: %s",
                        error,
                    )
            self._full = error
            self._remind(now)

    def give(self) -> bool:
        """Give up the reserve for metadata; tell whether there was any."""
        return self._reserve.give()

    def found_room(self) -> None:
        """Note that messages could be written."""
        if self._full is None:
            return
        with self._lock:
            self._full = None
            self._quiet_until = self._clock() + QUIET_S
            if self._told:
                log.warning("there is space on the disk again; %d appends were refused", self.refused)

    def _remind(self, now: float) -> None:
        if now >= self._remind_at:
            self._remind_at = now + REMIND_S
            log.error("the disk is still full; %d appends were refused", self.refused)
