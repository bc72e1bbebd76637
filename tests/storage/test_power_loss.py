"""A log on a disk that loses what was not synced.

A killed process leaves its writes behind in the kernel; a power cut does not. Here the disk remembers what each sync made
durable. A cut keeps that, and of everything newer an arbitrary choice of sectors, with or without the latest directory.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.storage.rows import batch_of, read_all, rows_of

from postroad.storage import LogOptions, SegmentLog
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.format import Bytes

PUBEND = 5 << 8
OPTIONS = LogOptions(segment_bytes=2500)
SECTOR = 512


class PowerCut(BaseException):
    """Not an error a program could handle."""


class VolatileDisk(Disk):
    """Real files, with a memory of what was synced; cuts the power at the operation that is due."""

    def __init__(self, directory: Path, operations: int) -> None:
        self._directory = directory
        self._operations = operations
        self._synced: dict[int, bytes] = {}  # by inode
        self._entries: dict[str, int] = {}

    def _step(self) -> None:
        self._operations -= 1
        if self._operations < 0:
            raise PowerCut

    def write(self, descriptor: int, buffers: Sequence[Bytes], offset: int) -> None:
        self._step()
        super().write(descriptor, buffers, offset)
        self._step()

    def sync(self, descriptor: int) -> None:
        self._step()
        self._synced[os.fstat(descriptor).st_ino] = os.pread(descriptor, 1 << 30, 0)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        self._entries = {entry.name: entry.inode() for entry in os.scandir(path)}

    def cut_power(self, chance: random.Random) -> None:
        """Leave in the directory what a power cut now could leave."""
        current = {path.name: path.stat().st_ino for path in self._directory.iterdir()}
        content = {path.stat().st_ino: path.read_bytes() for path in self._directory.iterdir()}
        left = chance.choice([current, self._entries])
        after = {name: _mixed(self._synced.get(inode, b""), content.get(inode), chance) for name, inode in left.items()}
        for path in self._directory.iterdir():
            path.unlink()
        for name, data in after.items():
            (self._directory / name).write_bytes(data)


def _mixed(synced: bytes, current: bytes | None, chance: random.Random) -> bytes:
    """Take each sector from what was synced or from what was written since."""
    if current is None:
        return synced
    size = chance.choice([len(synced), len(current), chance.randint(*sorted([len(synced), len(current)]))])
    old, new = synced.ljust(size, b"\0"), current.ljust(size, b"\0")
    return b"".join(chance.choice([old, new])[at : at + SECTOR] for at in range(0, size, SECTOR))[:size]


def write_until_the_cut(directory: Path, operations: int, confirmed: list[int], released: list[int]) -> VolatileDisk:
    """Append and release until the power is cut, noting what was confirmed."""
    disk = VolatileDisk(directory, operations)
    try:
        log = SegmentLog.open(directory, PUBEND, OPTIONS, disk)
    except PowerCut:
        return disk
    try:
        while True:
            tick = confirmed[-1] + 1
            log.append([batch_of(range(tick, tick + 4)), batch_of(range(tick + 4, tick + 9))])
            confirmed.append(tick + 8)
            if len(confirmed) % 5 == 0:
                released.append(log.release(tick - 20))
    except PowerCut:
        return disk
    finally:
        log.abandon()


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_a_power_cut_takes_nothing_that_was_confirmed(tmp_path: Path, first: int) -> None:
    """Whenever it comes, the log opens, has all confirmed rows above the mark, and only rows that were written."""
    for seed in range(first, first + 30):
        chance = random.Random(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        confirmed, released = [0], [0]
        told = f"seed {seed}"
        write_until_the_cut(directory, chance.randint(0, 120), confirmed, released).cut_power(chance)
        log = SegmentLog.open(directory, PUBEND, OPTIONS)
        state = log.state()
        assert confirmed[-1] <= state.last_tick <= confirmed[-1] + 9, told
        assert released[-1] <= state.released <= confirmed[-1], told
        expected = [batch_of([tick]) for tick in range(state.released + 1, state.last_tick + 1)]
        assert [row[::2] for row in read_all(log)] == [row[::2] for row in rows_of(expected)], told
        log.append([batch_of([state.last_tick + 1])])
        log.close()
