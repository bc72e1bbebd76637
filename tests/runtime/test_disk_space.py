"""A full disk as a state: told once, probed now and then, over when a write succeeds."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from postroad.errors import StorageFullError
from postroad.runtime.disk_space import PROBE_S, REMIND_S, DiskSpace
from postroad.storage.reserve import Reserve

FULL = StorageFullError("log", "No space left on device")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(room: DiskSpace) -> bool:
    try:
        room.check()
    except StorageFullError:
        return True
    return False


def test_a_full_disk_is_told_once_and_probed_once_per_interval(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However many appends are refused meanwhile; long times are told again, rarely."""
    clock = Clock()
    room = DiskSpace(Reserve(tmp_path), clock)
    assert not refused(room)
    room.found_full(FULL, refused=True)
    assert room.full
    assert all(refused(room) for _ in range(900))
    clock.now += PROBE_S
    assert not refused(room), "one append may try"
    room.found_full(FULL, refused=True)
    assert all(refused(room) for _ in range(100))
    assert room.refused == 1002
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    clock.now += REMIND_S
    refused(room)
    refused(room)
    assert len(caplog.records) == 2


def test_the_state_ends_with_a_write_that_succeeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both ends are told; one that flickers is not told over and over."""
    clock = Clock()
    room = DiskSpace(Reserve(tmp_path), clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            room.found_full(FULL, refused=True)
            clock.now += PROBE_S / 10
            room.found_room()
    assert not room.full
    assert not refused(room)
    assert len(caplog.records) == 2


def test_the_reserve_is_given_and_taken_again(tmp_path: Path) -> None:
    """It is a file of its size, or empty."""
    reserve = Reserve(tmp_path)
    assert reserve.take()
    size = (tmp_path / "reserve").stat().st_size
    assert size > 0
    assert reserve.give()
    assert not reserve.give()
    assert (tmp_path / "reserve").stat().st_size == 0
    assert reserve.take()
    assert (tmp_path / "reserve").stat().st_size == size
