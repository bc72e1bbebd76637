"""What opening a log reads does not grow with the messages it holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.storage.rows import batch_of

from postroad.storage import LogOptions, SegmentLog
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.format import ALIGNMENT

PUBEND = 5 << 8
SEGMENT_BYTES = 20_000


class CountingDisk(Disk):
    """Leaves syncing out and counts what is read."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def sync(self, descriptor: int) -> None:
        pass

    def read(self, descriptor: int, size: int, offset: int) -> pa.Buffer:
        found = super().read(descriptor, size, offset)
        self.bytes_read += len(found)
        return found


def opened(path: Path, segments: int, *, orderly: bool) -> int:
    """Make a log of so many closed segments, and return the bytes that are read to open it."""
    log = SegmentLog.open(path, PUBEND, LogOptions(segment_bytes=SEGMENT_BYTES), CountingDisk())
    tick = 0
    while len(log._closed) < segments:
        log.append([batch_of(range(tick + 1, tick + 21), (1, 2), 100)])
        tick += 20
    (log.close if orderly else log.abandon)()
    disk = CountingDisk()
    SegmentLog.open(path, PUBEND, LogOptions(segment_bytes=SEGMENT_BYTES), disk, tolerant=True).abandon()
    return disk.bytes_read


def test_a_closed_segment_costs_its_header_and_trailer(tmp_path: Path) -> None:
    """After a crash as after a good end; only the last segment is read through after a crash."""
    for orderly in (True, False):
        few = opened(tmp_path / f"few-{orderly}", 5, orderly=orderly)
        many = opened(tmp_path / f"many-{orderly}", 50, orderly=orderly)
        assert many - few == 45 * 2 * ALIGNMENT
        assert few < (3 if orderly else 1) * SEGMENT_BYTES
