"""A segmented log on a disk that fails."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.storage.rows import EVERYTHING, batch_of, read_all, rows_of

from postroad.errors import CorruptSegmentError, StorageFailedError, StorageFullError
from postroad.storage import LogOptions, SegmentLog
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.format import Bytes

PUBEND = 5 << 8
SMALL = LogOptions(segment_bytes=3000)


class FaultyDisk(Disk):
    """Real files; the operation that is due fails, after doing half of a write."""

    def __init__(self, error: int = errno.ENOSPC) -> None:
        self.error = error
        self.countdown = -1  # fails when it reaches 0
        self.only: str | None = None
        self.room: int | None = None  # bytes that may still be written

    def _step(self, operation: str) -> None:
        if self.only is not None and operation != self.only:
            return
        self.countdown -= 1
        if self.countdown == 0:
            raise OSError(self.error, os.strerror(self.error))

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[Bytes], offset: int) -> None:
        joined = b"".join(bytes(buffer) for buffer in buffers)
        if self.room is not None and len(joined) > self.room:
            super().write(descriptor, [joined[: self.room]], offset)
            self.room = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.room is not None:
            self.room -= len(joined)
        try:
            self._step("write")
        except OSError:
            super().write(descriptor, [joined[: len(joined) // 2]], offset)
            raise
        super().write(descriptor, [joined], offset)

    def sync(self, descriptor: int) -> None:
        self._step("sync")
        super().sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        self._step("truncate")
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step("remove")
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")
        super().sync_directory(path)


def test_a_full_disk_refuses_the_append_and_leaves_the_log_usable(tmp_path: Path) -> None:
    """Nothing of the refused append stays; once there is room, appends go on where they were."""
    disk = FaultyDisk()
    log = SegmentLog.open(tmp_path, PUBEND, disk=disk)
    log.append([batch_of([1, 2])])
    disk.room = 500
    size = log._active.path.stat().st_size
    for _ in range(3):
        with pytest.raises(StorageFullError) as caught:
            log.append([batch_of(range(10, 30), (4,)), batch_of([40])])
        assert caught.value.retryable
        assert log._active.path.stat().st_size == size
        assert [row[0] for row in read_all(log)] == [1, 2]
        assert log.state().publishers == ((1, 2),)
    disk.room = None
    log.append([batch_of([10], (4,))])
    log.abandon()
    log = SegmentLog.open(tmp_path, PUBEND)
    assert log.torn is None
    assert [row[0] for row in read_all(log)] == [1, 2, 10]
    log.close()


def test_releasing_works_on_a_full_disk(tmp_path: Path) -> None:
    """It must: releasing is what makes room."""
    disk = FaultyDisk()
    log = SegmentLog.open(tmp_path, PUBEND, SMALL, disk)
    for tick in range(1, 200, 5):
        log.append([batch_of(range(tick, tick + 5))])
    disk.room = 0
    with pytest.raises(StorageFullError):
        log.append([batch_of([300])])
    assert log.release(150) > 100
    disk.room = None
    log.append([batch_of([300])])
    log.close()


@pytest.mark.parametrize("step", range(1, 16))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whatever_operation_fails_nothing_confirmed_is_lost(tmp_path: Path, step: int, error: int) -> None:
    """Each step of appends and rolls fails once; afterwards the log has all that was confirmed and nothing that was refused."""
    disk = FaultyDisk(error)
    log = SegmentLog.open(tmp_path, PUBEND, LogOptions(segment_bytes=1500), disk)
    confirmed: list[int] = []
    refused: list[int] = []
    disk.countdown = step
    for tick in range(1, 120, 3):
        try:
            log.append([batch_of([tick, tick + 1, tick + 2])])
        except (StorageFullError, StorageFailedError):
            refused.append(tick)
        else:
            confirmed += [tick, tick + 1, tick + 2]
        assert [row[0] for row in read_all(log)] == confirmed
    assert refused
    log.abandon()
    log = SegmentLog.open(tmp_path, PUBEND)
    assert [row[0] for row in read_all(log)] == confirmed
    log.append([batch_of([1000])])
    log.close()


def test_after_a_failed_sync_nothing_is_written_until_the_log_is_opened_again(tmp_path: Path) -> None:
    """A second sync may wrongly succeed, so there is none."""
    disk = FaultyDisk(errno.EIO)
    log = SegmentLog.open(tmp_path, PUBEND, disk=disk)
    log.append([batch_of([1])])
    disk.only, disk.countdown = "sync", 1
    for _ in range(3):
        with pytest.raises(StorageFailedError, match="sync failed"):
            log.append([batch_of([2])])
    with pytest.raises(StorageFailedError):
        log.release(1)
    assert [row[0] for row in read_all(log)] == [1]
    log.close()
    log = SegmentLog.open(tmp_path, PUBEND)
    log.append([batch_of([2])])
    assert [row[0] for row in read_all(log)] == [1, 2]
    log.close()


def test_a_failure_to_cut_back_ends_the_use_of_the_log(tmp_path: Path) -> None:
    """With half an append in the file, another behind it would be damage."""
    disk = FaultyDisk()
    log = SegmentLog.open(tmp_path, PUBEND, disk=disk)
    log.append([batch_of([1])])
    disk.room, disk.only, disk.countdown = 100, "truncate", 1
    with pytest.raises(StorageFullError):
        log.append([batch_of([2])])
    disk.room = None
    with pytest.raises(StorageFailedError, match="could not be truncated"):
        log.append([batch_of([2])])
    log.abandon()
    log = SegmentLog.open(tmp_path, PUBEND)
    assert log.torn is not None
    assert [row[0] for row in read_all(log)] == [1]
    log.close()


def test_a_log_closes_in_good_order_also_on_a_full_disk(tmp_path: Path) -> None:
    """Without room for a trailer the next opening reads the segment through."""
    disk = FaultyDisk()
    log = SegmentLog.open(tmp_path, PUBEND, disk=disk)
    log.append([batch_of([1, 2, 3])])
    disk.room = 0
    log.close()
    log = SegmentLog.open(tmp_path, PUBEND)
    assert (log.torn, [row[0] for row in read_all(log)]) == (None, [1, 2, 3])
    log.close()


FILL_UNTIL_FULL = """
import resource, sys
from pathlib import Path
from postroad.errors import StorageFullError
from postroad.storage import SegmentLog
from tests.storage.rows import batch_of
log = SegmentLog.open(Path(sys.argv[1]), 1280)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
tick = 1
try:
    while True:
        log.append([batch_of(range(tick, tick + 50))])
        tick += 50
except StorageFullError as error:
    print(tick - 1, error.code, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append([batch_of([tick])])
log.close()
"""


def test_a_limit_on_the_file_size_is_a_full_disk(tmp_path: Path) -> None:
    """The operating system's own refusal, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FILL_UNTIL_FULL, tmp_path / "log"], capture_output=True, text=True, check=True, timeout=60
    )
    last, code = map(int, done.stdout.split())
    assert code == StorageFullError.code
    log = SegmentLog.open(tmp_path / "log", 1280)
    assert [row[0] for row in read_all(log)] == [*range(1, last + 2)]
    log.close()


def test_a_limit_of_the_size_is_there_to_test_with() -> None:
    """The test above means something only where the limit exists."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


class UnreadableDisk(Disk):
    """Reads beyond the first kilobyte fail with an input/output error."""

    def read(self, descriptor: int, size: int, offset: int) -> pa.Buffer:
        if offset + size > 1024:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(descriptor, size, offset)


def test_a_bad_sector_is_an_error_with_file_and_offset(tmp_path: Path) -> None:
    """Reading damage is no crash and no silence."""
    log = SegmentLog.open(tmp_path, PUBEND, disk=UnreadableDisk())
    for tick in range(1, 100, 10):
        log.append([batch_of(range(tick, tick + 10))])
    with pytest.raises(CorruptSegmentError, match="cannot read"):
        read_all(log)
    log.close()


def test_reading_beside_appending_and_releasing_sees_whole_batches_only(tmp_path: Path) -> None:
    """Readers in other threads find every row above the released mark they are told, and none twice."""
    log = SegmentLog.open(tmp_path, PUBEND, LogOptions(segment_bytes=20_000))
    problems: list[BaseException] = []
    confirmed = [0]
    done = threading.Event()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as problem:  # noqa: BLE001 - told to the test below
                problems.append(problem)

        return run

    def follow() -> None:
        while not done.is_set():
            start = log.released
            end = confirmed[-1]
            piece = log.read(start, end, 50_000) if end > start else None
            if piece is not None:
                ticks = [row[0] for row in rows_of(piece.batches)]
                first = max(start, piece.released) + 1
                assert ticks == [*range(first, piece.hi + 1)], (start, end, piece.hi, ticks[:1], ticks[-1:])

    readers = [threading.Thread(target=guarded(follow)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(300):
        log.append([batch_of(range(i * 20 + 1, i * 20 + 21))])
        confirmed.append(i * 20 + 20)
        if i % 7 == 0:
            log.release(i * 20 - 500)
    done.set()
    for reader in readers:
        reader.join()
    assert not problems
    assert log.released > 0
    assert log.read(0, EVERYTHING, 1).released == log.released
    log.close()
