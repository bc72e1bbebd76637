"""A damaged log that is opened tolerantly: all rows around the damage, the damage with its ticks, and never a wrong row."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.storage.rows import EVERYTHING, batch_of, rows_of

from postroad.cli import main
from postroad.storage import LogOptions, SegmentLog, open_broker_storage
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.durable_mark import MARK_NAME
from postroad.storage.segment.external_reader import observe
from postroad.storage.segment.format import ALIGNMENT
from postroad.storage.segment.repair import repair_log, survey_log

PUBEND = 5 << 8
SMALL = LogOptions(segment_bytes=3000)
BATCHES, ROWS = 24, 10


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A log of several segments; every batch was appended and made durable by itself."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    for i in range(BATCHES):
        log.append([batch_of(range(i * ROWS + 1, i * ROWS + ROWS + 1), (1, 2))])
    log.abandon()
    found = sorted(tmp_path.glob("*.segment"))
    assert len(found) > 4
    return found


def survey(path: Path, disk: Disk | None = None, pieces: int = 1500) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ticks of all rows that can be read, and the ranges that are lost; together they are everything."""
    log = SegmentLog.open(path, PUBEND, SMALL, disk, tolerant=True)
    ticks: list[int] = []
    lost: list[tuple[int, int]] = []
    lo = log.released
    hi = max(log.state().last_tick, BATCHES * ROWS)
    while lo < hi:
        piece = log.read_around(lo, hi, pieces)
        assert piece.hi > lo
        ticks += [row[0] for row in rows_of(piece.batches)]
        for each in piece.lost:
            assert each.lo < each.hi
            assert each.reason
            lost.append((each.lo, each.hi))
        lo = piece.hi
    assert ticks == sorted(set(ticks))
    covered = {tick for begin, end in lost for tick in range(begin + 1, min(end, BATCHES * ROWS) + 1)}
    assert not covered & set(ticks)
    assert covered | set(ticks) >= set(range(log.released + 1, BATCHES * ROWS + 1))
    log.abandon()
    return ticks, lost


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def flip(file: Path, offset: int) -> None:
    overwrite(file, offset, bytes([file.read_bytes()[offset] ^ 0x10]))


def test_any_flipped_bit_costs_one_batch_at_most(files: list[Path]) -> None:
    """In headers, snapshots, records, payloads, indexes and trailers of any segment."""
    for file in (files[0], files[2], files[-1]):
        data = file.read_bytes()
        mark = (file.parent / MARK_NAME).read_bytes()
        for offset in range(0, len(data), 41):
            flip(file, offset)
            ticks, lost = survey(file.parent)
            whole = BATCHES * ROWS - len(ticks)
            assert whole in {0, ROWS}, (file.name, offset)
            assert (whole == ROWS) == bool(lost)
            again, lost_again = survey(file.parent)
            assert (again, lost_again) == (ticks, lost), "opening once more shows the same"
            file.write_bytes(data)
            for left in file.parent.glob("*.segment"):
                if left not in files:
                    left.unlink()
            (file.parent / MARK_NAME).write_bytes(mark)


@pytest.mark.parametrize(
    ("damage", "lost_segments"),
    [
        (lambda file: file.unlink(), 1),
        (lambda file: file.write_bytes(b""), 1),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), 1),
        (lambda file: overwrite(file, 0, bytes(ALIGNMENT)), 1),
        (lambda file: os.truncate(file, file.stat().st_size - 3), 0),
        (lambda file: os.truncate(file, file.stat().st_size // 2), 1),
        (lambda file: overwrite(file, 700, bytes(1500)), 1),
        (lambda file: overwrite(file, file.stat().st_size - 200, bytes(200)), 1),
        (lambda file: file.write_bytes(file.read_bytes() + b"more" * 100), 0),
    ],
)
def test_a_segment_that_is_damaged_as_a_whole_costs_no_row_of_another(
    files: list[Path], damage: Callable[[Path], object], lost_segments: int
) -> None:
    """Gone, empty, zeros, without header, cut short, a hole of zeros in its middle, zeros or more at its end."""
    bases = [int(file.stem, 16) for file in files]
    damage(files[2])
    ticks, lost = survey(files[0].parent)
    expected = [tick for tick in range(1, BATCHES * ROWS + 1) if not bases[2] < tick <= bases[3]]
    assert [tick for tick in ticks if not bases[2] < tick <= bases[3]] == expected
    assert all(bases[2] <= lo < hi <= bases[3] for lo, hi in lost)
    assert bool(lost) == bool(lost_segments)


def test_damage_before_the_end_of_the_last_segment_is_stepped_over(files: list[Path]) -> None:
    """A later append proves that it was durable; the log is written on, and the rest is found again."""
    flip(files[-1], ALIGNMENT * 2 + 70)
    before, lost = survey(files[0].parent)
    assert len(lost) == 1
    log = SegmentLog.open(files[0].parent, PUBEND, SMALL, tolerant=True)
    log.append([batch_of([1000])])
    assert len(log.damage) == 1
    log.close()
    ticks, again = survey(files[0].parent)
    assert again[: len(lost)] == lost
    assert ticks == [*before, 1000]


def test_without_the_header_of_the_last_segment_the_log_goes_on_above_the_clock(files: list[Path]) -> None:
    """Its last tick is not known, so none that was given out comes again; publishers are known from the segments before."""
    overwrite(files[-1], 0, bytes(ALIGNMENT))
    log = SegmentLog.open(files[0].parent, PUBEND, SMALL, tolerant=True)
    state = log.state()
    assert state.last_tick > 1_700_000_000_000 << 16
    assert dict(state.publishers).keys() == {1, 2}
    first = state.last_tick + 1
    log.append([batch_of([first])])
    piece = log.read_around(int(files[-1].stem, 16), EVERYTHING, 1 << 20)
    assert [row[0] for row in rows_of(piece.batches)] == [first]
    assert [(each.lo, each.hi) for each in piece.lost] == [(int(files[-1].stem, 16), first - 1)]
    log.close()


def test_publishers_are_found_in_older_segments_when_the_last_snapshot_is_damaged(files: list[Path]) -> None:
    """What they sent is recognised when it comes again."""
    log = SegmentLog.open(files[0].parent, PUBEND, SMALL, tolerant=True)
    publishers = log.state().publishers
    log.abandon()
    overwrite(files[-1], ALIGNMENT + 2, b"\xff\xff")
    log = SegmentLog.open(files[0].parent, PUBEND, SMALL, tolerant=True)
    assert log.state().publishers == publishers
    assert log.damage
    log.abandon()


class BadSector(Disk):
    """A disk that cannot read 512 bytes of one file."""

    def __init__(self, name: str, place: int) -> None:
        self._name, self._place = name, place

    def read(self, descriptor: int, size: int, offset: int) -> pa.Buffer:
        bad = range(max(offset, self._place), min(offset + size, self._place + 512))
        if bad and Path(f"/proc/self/fd/{descriptor}").readlink().name == self._name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(descriptor, size, offset)


def test_a_sector_that_cannot_be_read_costs_the_batches_on_it(files: list[Path]) -> None:
    """What stands before and behind is read."""
    ticks, lost = survey(files[0].parent, BadSector(files[2].name, 1600))
    assert 0 < BATCHES * ROWS - len(ticks) <= 2 * ROWS
    assert lost


def test_a_file_that_vanishes_while_the_log_is_open_is_damage(files: list[Path]) -> None:
    """It was not released: its ticks are lost, the others are read."""
    log = SegmentLog.open(files[0].parent, PUBEND, SMALL, tolerant=True)
    base, following = int(files[2].stem, 16), int(files[3].stem, 16)
    files[2].unlink()
    piece = log.read_around(0, BATCHES * ROWS, 1 << 20)
    assert [(each.lo, each.hi) for each in piece.lost] == [(base, following)]
    assert len(rows_of(piece.batches)) == BATCHES * ROWS - (following - base)
    log.release(BATCHES * ROWS)
    log.abandon()


def test_a_whole_log_is_surveyed_without_changing_it(files: list[Path]) -> None:
    """Every damaged place is found, and none in a log that is whole."""
    path = files[0].parent
    assert survey_log(path, PUBEND).damage == ()
    flip(files[1], files[1].stat().st_size // 2)
    files[3].unlink()
    flip(files[5], files[5].stat().st_size - 70)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    lost = [(each.lo, each.hi) for each in survey_log(path, PUBEND).damage if each.hi > each.lo]
    assert lost == survey(path)[1]
    assert len(lost) == 2
    assert before == {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_repaired_log_keeps_its_rows_and_its_holes(files: list[Path]) -> None:
    """The damaged files are kept aside, the log is whole but for the missing ranges, and a second repair finds nothing to do."""
    path = files[0].parent
    flip(files[1], files[1].stat().st_size // 2)
    flip(files[1], ALIGNMENT + 40)
    overwrite(files[2], 0, bytes(ALIGNMENT))
    flip(files[3], files[3].stat().st_size - ALIGNMENT - 60)
    ticks, lost = survey(path)
    repaired = repair_log(path, PUBEND)
    assert [each.name for each in repaired.moved_aside] == [f"{file.name}.damaged" for file in files[1:4]]
    assert survey(path) == (ticks, lost)
    view = observe(path, PUBEND, tolerant=True)
    assert [(hole.lo, hole.hi) for hole in view.holes] == lost
    assert repair_log(path, PUBEND).moved_aside == ()
    assert {(each.lo, each.hi) for each in survey_log(path, PUBEND).damage} == set(lost)


def test_the_command_lists_and_repairs_damage(tmp_path: Path) -> None:
    """Exit code 1 for damage; a log in use is not repaired."""
    storage = open_broker_storage(tmp_path, 5, [PUBEND], SMALL)
    for i in range(BATCHES):
        storage.logs[PUBEND].append([batch_of(range(i * ROWS + 1, i * ROWS + ROWS + 1), (1, 2))])
    runner = CliRunner()
    assert "no damage" in runner.invoke(main, ["log", "check", str(tmp_path)]).output
    busy = runner.invoke(main, ["log", "repair", str(tmp_path)])
    assert busy.exit_code == 1
    assert "in use" in busy.output
    storage.close()
    file = sorted(tmp_path.glob("pubends/*/*.segment"))[1]
    flip(file, file.stat().st_size // 2)
    checked = runner.invoke(main, ["log", "check", str(tmp_path), "--json"])
    assert checked.exit_code == 1
    (document,) = json.loads(checked.output)
    (damage,) = document["damage"]
    assert damage["file"] == str(file)
    done = runner.invoke(main, ["log", "repair", str(tmp_path)])
    assert done.exit_code == 0
    assert f"{damage['lo'] + 1} to {damage['hi']} are lost" in done.output
    assert file.with_name(file.name + ".damaged").exists()
    assert runner.invoke(main, ["log", "repair", str(tmp_path), "--json"]).exit_code == 0
