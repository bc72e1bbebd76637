"""A broker's disk behind the event loop: orders go to threads, facts come back.

Each log has one thread that writes and one that reads; the metadata has its own. A write without space on the
disk becomes a fact for the machine, and is logged once (see `disk_space`). A read that fails is repeated. After any other
failure the contents of the disk are unknown: the broker stops, and the next start reads them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.protocol.orders import (
    Append,
    Appended,
    AppendFailed,
    BrokerState,
    Fact,
    LogRead,
    LogReadFailed,
    LogReleased,
    Lost,
    ReadLog,
    ReleaseLog,
    Store,
    Stored,
)
from postroad.core.protocol.packets import pubend_id
from postroad.errors import StorageError, StorageFullError
from postroad.runtime.config import NodeConfig
from postroad.runtime.disk_space import DiskSpace
from postroad.runtime.worker import Worker
from postroad.storage import BrokerStorage, LogOptions, LogSlice, SegmentLog, open_broker_storage
from postroad.storage.base import SliceAround

log = logging.getLogger("postroad.disk")

FULL_RETRY_S: Final = 0.5
READS_AT_ONCE: Final = 8
DAMAGE_MAX: Final = 1024  # places of one log that are remembered and told


class AroundDamage:
    """A log that is read around its damage, for those who do not tell it."""

    def __init__(self, segment_log: SegmentLog) -> None:
        self._log: Final = segment_log

    def read(self, lo: int, hi: int, bytes_max: int) -> LogSlice:
        return LogSlice(*self._log.read_around(lo, hi, bytes_max)[:3])


class Disk:
    """Carries out orders; `report` gets each fact, `failed` what cannot be lived with. Both are called on the event loop."""

    def __init__(
        self,
        storage: BrokerStorage,
        retention_bytes: int,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Fact], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.state: Final[BrokerState] = storage.state
        self.appended_rows = 0
        self.appends = 0
        self.room: Final = DiskSpace(storage.reserve)
        self._storage: Final = storage
        self._retention_bytes: Final = retention_bytes
        self._report: Final = report
        self._failed: Final = failed
        self._stopping = False
        self._damage: dict[int, dict[str, None]] = {}  # pubend -> what was told
        for pubend, segment_log in storage.logs.items():
            for each in segment_log.damage:
                self._tell_damage(pubend, Lost(each.lo, each.hi, str(each.error)))
        self._reading = 0
        self._reads: deque[ReadLog] = deque()  # that wait for their turn
        self._writers = {pubend: Worker(loop, f"log-{pubend:x}-write") for pubend in storage.logs}
        self._readers = {pubend: Worker(loop, f"log-{pubend:x}-read") for pubend in storage.logs}
        self._metadata = Worker(loop, "metadata")

    @property
    def logs(self) -> Mapping[int, SegmentLog]:
        return self._storage.logs

    @property
    def path(self) -> Path:
        return self._storage.path

    def append(self, order: Append) -> None:
        pubend, token, batches = order.pubend, order.token, order.batches
        segment_log = self._storage.logs[pubend]

        def work() -> int:
            self.room.check()
            try:
                released = _append(segment_log, batches, self._retention_bytes)
            except StorageFullError as error:
                self.room.found_full(error, refused=True)
                raise
            self.room.found_room()
            return released

        def done(released: int) -> None:
            self.appends += 1
            self.appended_rows += sum(map(len, batches))
            self._report(Appended(pubend, token))
            if released:
                self._report(LogReleased(pubend, released))

        def failed(error: Exception) -> None:
            if isinstance(error, StorageFullError):
                self._report(AppendFailed(pubend, token, error))
            else:
                self._failed(error)

        self._writers[pubend].submit(work, done, failed)

    def read(self, order: ReadLog) -> None:
        """Read when few reads are under way: what was read waits for the event loop, in memory."""
        self._reads.append(order)
        self._read_next()

    def _read_next(self) -> None:
        while self._reads and self._reading < READS_AT_ONCE:
            self._reading += 1
            self._read(self._reads.popleft())

    def _read(self, order: ReadLog) -> None:
        pubend, token = order.pubend, order.token
        segment_log = self._storage.logs[pubend]

        def done(found: SliceAround) -> None:
            for lost in found.lost:
                self._tell_damage(pubend, lost)
            self._reading -= 1
            self._report(LogRead(pubend, token, *found))
            self._read_next()

        def failed(error: Exception) -> None:
            if not isinstance(error, StorageError):
                self._failed(error)
                return
            log.error("messages of pubend %x cannot be read now: %s", pubend, error)
            self._reading -= 1
            self._report(LogReadFailed(pubend, token))
            self._read_next()

        self._readers[pubend].submit(lambda: segment_log.read_around(order.lo, order.hi, order.bytes_max), done, failed)

    def _tell_damage(self, pubend: int, lost: Lost) -> None:
        """Log damage once."""
        known = self._damage.setdefault(pubend, {})
        if lost.reason in known or len(known) >= DAMAGE_MAX:
            return
        known[lost.reason] = None
        text = "messages of pubend %x, ticks %d to %d, are lost: %s (see `postroad log check`)"
        log.error(text, pubend, lost.lo + 1, lost.hi, lost.reason)

    @property
    def damaged_places(self) -> int:
        return sum(map(len, self._damage.values()))

    @property
    def log_bytes(self) -> int:
        """The size of all logs on the disk."""
        return sum(each.size for each in list(self.logs.values()))

    def release(self, order: ReleaseLog) -> None:
        segment_log = self._storage.logs[order.pubend]
        self._writers[order.pubend].submit(
            lambda: segment_log.release(order.tick),
            lambda released: self._report(LogReleased(order.pubend, released)),
            self._failed,
        )

    def store(self, order: Store) -> None:
        self._metadata.submit(lambda: self._store(order), lambda _: self._report(Stored(order.token)), self._failed)

    def _store(self, order: Store) -> None:
        """Try until there is room: what depends on it waits meanwhile."""
        while True:
            try:
                self._storage.metadata.store(order.changes)
            except StorageFullError as error:
                self.room.found_full(error, refused=False)
                if self.room.give():
                    continue
                if self._stopping:
                    raise
                time.sleep(FULL_RETRY_S)
            else:
                return

    @property
    def busy(self) -> bool:
        """Whether something that was ordered is not yet durable."""
        return self._metadata.pending > 0 or any(worker.pending for worker in self._writers.values())

    def close(self) -> None:
        """Finish everything and close the files; blocks."""
        self._stopping = True
        for worker in (*self._writers.values(), *self._readers.values(), self._metadata):
            worker.stop()
        self._storage.close()


def _append(segment_log: SegmentLog, batches: Sequence[Batch], retention_bytes: int) -> int:
    """Append, then keep the log within its bound; return up to where it was shortened, 0 for not at all."""
    segment_log.append(batches)
    if segment_log.size <= retention_bytes:
        return 0
    before = segment_log.released
    released = segment_log.retain(retention_bytes)
    return released if released > before else 0


def open_disk(
    config: NodeConfig,
    loop: asyncio.AbstractEventLoop,
    report: Callable[[Fact], None],
    failed: Callable[[Exception], None],
) -> Disk:
    """Open the broker's directory; blocks while the logs are read back."""
    options = LogOptions(segment_bytes=config.storage.segment_bytes)
    pubends = [pubend_id(config.id, index) for index in range(config.pubends)]
    storage = open_broker_storage(Path(config.data_dir), config.id, pubends, options)
    for torn in storage.torn:
        log.warning("removed an incomplete write: %s", torn)
    return Disk(storage, config.storage.retention_bytes, loop, report, failed)
