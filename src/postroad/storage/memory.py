"""The reference twins: what the durable storages promise, said as shortly as possible.

Tests compare the others with these, and the simulator runs on them. Writing and syncing are separate steps here, so that a
simulated disk can take time for the second and `crash()` can lose the first: `append` is `write` and `sync`, and likewise
`store` is `stage` and `sync`. Nothing that was not synced is ever read.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroad.core.batch.batch import Batch
from postroad.core.protocol.orders import PubendState
from postroad.errors import StorageFailedError
from postroad.storage.base import LogSlice
from postroad.storage.publishers import PUBLISHERS_MAX, LastIds


class MemoryLog:
    """A pubend's log in memory. Its unit of release is the batch."""

    def __init__(self, pubend: int, publishers_max: int = PUBLISHERS_MAX) -> None:
        self.pubend = pubend
        self._durable: list[Batch] = []
        self._written: list[Batch] = []
        self._released = 0
        self._last = 0
        self._last_ids = LastIds(publishers_max=publishers_max)
        self._closed = False

    def append(self, batches: Sequence[Batch]) -> None:
        self.write(batches)
        self.sync()

    def write(self, batches: Sequence[Batch]) -> None:
        """Take batches without making them durable."""
        self._check_open()
        last = _last_tick(self._written[-1]) if self._written else self._last
        for batch in batches:
            if not len(batch):
                continue
            ticks = batch.ticks()
            assert int(ticks[0]) > last, "ticks ascend from batch to batch"
            assert bool((ticks[1:] > ticks[:-1]).all()), "ticks ascend within a batch"
            self._written.append(batch)
            last = int(ticks[-1])

    def sync(self) -> None:
        """Make durable what was written."""
        for batch in self._written:
            self._durable.append(batch)
            self._last_ids.note(batch.ids())
            self._last = _last_tick(batch)
        self._written = []

    def crash(self) -> None:
        """Lose what was not synced; the log is then as if opened anew."""
        self._written = []
        self._closed = False

    def read(self, lo: int, hi: int, bytes_max: int) -> LogSlice:
        self._check_open()
        batches: list[Batch] = []
        used, reached = 0, lo
        for batch in self._durable:
            part = batch.within(lo, hi)
            if not len(part):
                continue
            if batches and used + batch.size > bytes_max:
                return LogSlice(reached, tuple(batches), self._released)
            batches.append(part)
            used, reached = used + batch.size, _last_tick(part)
        return LogSlice(hi, tuple(batches), self._released)

    def release(self, tick: int) -> int:
        self._check_open()
        while self._durable and _last_tick(self._durable[0]) <= tick:
            self._released = _last_tick(self._durable.pop(0))
        return self._released

    def retain(self, bytes_max: int) -> int:
        self._check_open()
        size = sum(batch.size for batch in self._durable)
        while len(self._durable) > 1 and size > bytes_max:
            size -= self._durable[0].size
            self._released = _last_tick(self._durable.pop(0))
        return self._released

    def state(self) -> PubendState:
        return PubendState(self.pubend, self._last, self._released, self._last_ids.pairs())

    @property
    def forgotten(self) -> int:
        """The highest tick of an id whose publisher was forgotten."""
        return self._last_ids.snapshot()[1]

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailedError(f"pubend {self.pubend}", "the log is closed")


class MemoryMetadata:
    """A broker's metadata in memory."""

    def __init__(self) -> None:
        self._durable: dict[str, bytes] = {}
        self._staged: list[tuple[str, bytes | None]] = []
        self._incarnation = 0

    def load(self) -> tuple[tuple[str, bytes], ...]:
        return tuple(sorted(self._durable.items()))

    def damaged(self) -> tuple[str, ...]:
        return ()

    def store(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        self.stage(changes)
        self.sync()

    def stage(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        """Take changes without making them durable."""
        self._staged.extend(changes)

    def sync(self) -> None:
        for key, value in self._staged:
            if value is None:
                self._durable.pop(key, None)
            else:
                self._durable[key] = value
        self._staged = []

    def crash(self) -> None:
        """Lose what was not synced."""
        self._staged = []

    def next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def close(self) -> None:
        """Nothing to do; it can be used again."""


def _last_tick(batch: Batch) -> int:
    return int(batch.ticks()[-1])
