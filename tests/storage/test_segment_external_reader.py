"""Reading a log's files beside the broker that writes them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.storage.rows import EVERYTHING, Row, batch_of, rows_of

from postroad.errors import CorruptSegmentError, GapError, LogMissingError, StorageFullError
from postroad.storage import LogOptions, SegmentLog
from postroad.storage.segment import external_reader
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.durable_mark import MARK_NAME
from postroad.storage.segment.external_reader import LogView, layouts, observe, parts, read_part, sound_parts
from postroad.storage.segment.format import Bytes

PUBEND = 5 << 8
SMALL = LogOptions(segment_bytes=3000)


def append(log: SegmentLog, first: int, batches: int = 6) -> list[Row]:
    """Append batches of ten rows, each by itself."""
    rows: list[Row] = []
    for i in range(batches):
        batch = batch_of(range(first + i * 10, first + i * 10 + 10))
        log.append([batch])
        rows += rows_of([batch])
    return rows


def read(view: LogView, lo: int = 0, hi: int = EVERYTHING, bytes_wanted: int = 1 << 20) -> list[Row]:
    return [row for part in parts(view, lo, hi, bytes_wanted) for row in rows_of(read_part(part))]


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.segment"))


def test_a_running_log_is_read_up_to_its_last_append(tmp_path: Path) -> None:
    """Everything acknowledged can be read, in closed segments and in the one being written, and the lock does not matter."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    rows = append(log, 1, 20)
    view = observe(tmp_path, PUBEND)
    assert len(view.segments) > 2
    assert (view.released, view.last) == (0, 200)
    assert read(view) == rows
    rows += append(log, 201, 1)
    assert read(view) == rows[:-10]  # the view stays what it was
    assert read(observe(tmp_path, PUBEND)) == rows
    log.close()
    assert read(observe(tmp_path, PUBEND)) == rows


def test_a_killed_log_is_read_up_to_what_was_acknowledged(tmp_path: Path) -> None:
    """The end of the process changes nothing: the mark still says what was durable."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows = append(log, 1)
    log.abandon()
    assert read(observe(tmp_path, PUBEND)) == rows
    with segments(tmp_path)[-1].open("ab") as file:
        file.write(b"the beginning of an append")
    assert read(observe(tmp_path, PUBEND)) == rows


class _FullDisk(Disk):
    """Writes only the first buffers of an append, then has no room; a reader looks before the file is cut back."""

    def __init__(self, looks: list[LogView]) -> None:
        self.full_after: int | None = None
        self.looks = looks

    def write(self, descriptor: int, buffers: list[Bytes], offset: int) -> None:  # type: ignore[override]
        if self.full_after is None:
            super().write(descriptor, buffers, offset)
            return
        super().write(descriptor, buffers[: self.full_after], offset)
        raise OSError(28, "No space left on device")

    def truncate(self, descriptor: int, size: int) -> None:
        self.looks.append(observe(self.path, PUBEND))
        super().truncate(descriptor, size)

    path: Path


def test_records_of_an_append_that_fails_are_never_read(tmp_path: Path) -> None:
    """A whole record may stand in the file, though its append was refused and its ticks will be given to other messages."""
    looks: list[LogView] = []
    disk = _FullDisk(looks)
    disk.path = tmp_path
    log = SegmentLog.open(tmp_path, PUBEND, disk=disk)
    rows = append(log, 1)
    disk.full_after = 5  # one whole record and the header of the next
    with pytest.raises(StorageFullError):
        log.append([batch_of(range(101, 111)), batch_of(range(111, 121))])
    assert [read(view) for view in looks] == [rows]
    disk.full_after = None
    rows += append(log, 101, 1)
    assert read(observe(tmp_path, PUBEND)) == rows
    log.close()


@pytest.mark.parametrize("mark", [None, b"", b"x" * 64])
def test_without_a_mark_the_last_append_is_not_trusted(tmp_path: Path, mark: bytes | None) -> None:
    """What later appends prove to be durable is read; the last append has no such witness."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows = append(log, 1)
    if mark is None:
        (tmp_path / MARK_NAME).unlink()
    else:
        (tmp_path / MARK_NAME).write_bytes(mark)
    assert read(observe(tmp_path, PUBEND)) == rows[:-10]
    log.abandon()
    SegmentLog.open(tmp_path, PUBEND).abandon()  # recovery keeps whole records and marks them
    assert read(observe(tmp_path, PUBEND)) == rows


def test_an_old_mark_does_not_hide_what_later_appends_prove(tmp_path: Path) -> None:
    """After a power cut the mark may be older than the file."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows = append(log, 1, 2)
    old = (tmp_path / MARK_NAME).read_bytes()
    rows += append(log, 21, 4)
    (tmp_path / MARK_NAME).write_bytes(old)
    assert read(observe(tmp_path, PUBEND)) == rows[:-10]
    log.abandon()


def test_parts_cover_a_range_exactly_whatever_their_size(tmp_path: Path) -> None:
    """Cutting by bytes neither drops nor repeats a row, in closed and open segments."""
    log = SegmentLog.open(tmp_path, PUBEND, LogOptions(segment_bytes=400_000))
    rows: list[Row] = []
    for first in range(1, 4000, 100):
        batch = batch_of(range(first, first + 100), payload_bytes=300)
        log.append([batch])
        rows += rows_of([batch])
    view = observe(tmp_path, PUBEND)
    assert len(view.segments) > 1
    assert view.segments[-1].end - view.segments[-1].start > 70_000
    for bytes_wanted, count in ((1, 40), (70_000, 8), (1 << 30, len(view.segments))):
        cut = parts(view, 0, EVERYTHING, bytes_wanted)
        assert len(cut) >= min(count, 8)
        assert read(view, bytes_wanted=bytes_wanted) == rows
        assert read(view, 150, 2345, bytes_wanted) == [row for row in rows if 150 < row[0] <= 2345]
    assert read(view, 5000) == []
    assert read(view, 7, 7) == []
    log.close()


def test_a_segment_released_after_it_was_planned_is_a_gap(tmp_path: Path) -> None:
    """The rows are gone, and that is said with the ticks, not passed over."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    append(log, 1, 20)
    view = observe(tmp_path, PUBEND)
    first = parts(view, 0, EVERYTHING, 1 << 20)[0]
    log.release(view.segments[1].last)
    with pytest.raises(GapError) as caught:
        rows_of(read_part(first))
    assert (caught.value.pubend, caught.value.lo, caught.value.hi) == (PUBEND, 0, view.segments[0].last)
    later = observe(tmp_path, PUBEND)
    assert later.released == view.segments[1].last
    log.close()


def test_a_file_that_vanished_otherwise_is_damage(tmp_path: Path) -> None:
    """A missing segment in the middle is an error, or a hole for those who ask to go on."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    rows = append(log, 1, 20)
    log.close()
    view = observe(tmp_path, PUBEND)
    gone = view.segments[1]
    gone.path.unlink()
    with pytest.raises(CorruptSegmentError, match="the file is missing"):
        read(view)
    with pytest.raises(CorruptSegmentError, match="previous segment ends"):
        observe(tmp_path, PUBEND)
    tolerant = observe(tmp_path, PUBEND, tolerant=True)
    assert [(hole.lo, hole.hi) for hole in tolerant.holes] == [(gone.base, gone.last)]
    assert read(tolerant) == [row for row in rows if not gone.base < row[0] <= gone.last]


@pytest.mark.parametrize("cut", [1, 64, 700])
def test_a_truncated_segment_is_refused_or_a_hole(tmp_path: Path, cut: int) -> None:
    """A closed segment without its trailer was cut by someone: its file is named."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    rows = append(log, 1, 20)
    log.close()
    file = segments(tmp_path)[1]
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(CorruptSegmentError) as caught:
        observe(tmp_path, PUBEND)
    assert caught.value.file == str(file)
    view = observe(tmp_path, PUBEND, tolerant=True)
    (hole,) = view.holes
    assert read(view) == [row for row in rows if not hole.lo < row[0] <= hole.hi]


def test_an_open_segment_shorter_than_its_mark_is_refused(tmp_path: Path) -> None:
    """What was acknowledged is missing, so the reader is told."""
    log = SegmentLog.open(tmp_path, PUBEND)
    append(log, 1)
    log.abandon()
    file = segments(tmp_path)[-1]
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(CorruptSegmentError, match="were durable"):
        observe(tmp_path, PUBEND)


def test_a_damaged_record_is_found_when_it_is_read(tmp_path: Path) -> None:
    """Rows before the damage come, then the error names file and offset."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows = append(log, 1)
    log.close()
    file = segments(tmp_path)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    found: list[Row] = []

    def read_on() -> None:
        for part in parts(observe(tmp_path, PUBEND), 0, EVERYTHING, 1 << 20):
            for batch in read_part(part):
                found.extend(rows_of([batch]))

    with pytest.raises(CorruptSegmentError):
        read_on()
    assert 0 < len(found) < len(rows)
    assert found == rows[: len(found)]


def test_a_log_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    """An empty directory is no log."""
    with pytest.raises(LogMissingError):
        observe(tmp_path, PUBEND)


def test_layouts_are_sampled_or_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small log is looked at whole; of a large one places spread over it, unless all is asked for."""
    log = SegmentLog.open(tmp_path, PUBEND, LogOptions(segment_bytes=300_000))
    for first in range(1, 4000, 100):
        log.append([batch_of(range(first, first + 100), payload_bytes=300)])
    view = observe(tmp_path, PUBEND)
    assert len(list(layouts(view, 3))) == 40
    monkeypatch.setattr(external_reader, "LOOKED_AT_WHOLE", 1000)
    assert len(list(layouts(view, None))) == 40
    assert 3 <= len(list(layouts(view, 3))) < 40
    assert {layout.names for layout in layouts(view, 3)} == {("symbol",)}
    log.close()


def test_reading_beside_appends_and_releases_sees_a_prefix_without_holes(tmp_path: Path) -> None:
    """Whatever moment is looked at, the rows are those from `released` to `last`, all of them."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    done = threading.Event()

    def write() -> None:
        for i in range(300):
            log.append([batch_of(range(i * 10 + 1, i * 10 + 11))])
            if i % 20 == 19:
                log.release(i * 10 - 100)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    looks, gaps = 0, 0
    while not done.is_set() or looks == 0:
        view = observe(tmp_path, PUBEND)
        looks += 1
        try:
            ticks = [row[0] for row in read(view)]
        except GapError:
            gaps += 1
            continue
        assert ticks == list(range(view.released + 1, view.last + 1))
    writer.join()
    assert looks > gaps
    assert observe(tmp_path, PUBEND).last == 3000
    log.close()


def test_a_log_says_up_to_where_it_was_released(tmp_path: Path) -> None:
    """What was removed by others is beyond that mark."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    append(log, 1, 30)
    assert observe(tmp_path, PUBEND).marked == 0
    released = log.release(100)
    log.close()
    view = observe(tmp_path, PUBEND)
    assert view.released == released == view.marked > 0
    segments(tmp_path)[0].unlink()
    view = observe(tmp_path, PUBEND)
    assert view.released > view.marked == released
    (tmp_path / "released").write_bytes(b"nonsense")
    assert observe(tmp_path, PUBEND).marked == 0


@pytest.mark.parametrize("seed", range(12))
def test_what_is_around_a_damaged_byte_is_found(tmp_path: Path, seed: int) -> None:
    """Header or body, in a closed segment or the last: every row is either read or in a hole, and most are read."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    rows = append(log, 1, 30)
    log.abandon()
    view = observe(tmp_path, PUBEND)
    segment = view.segments[seed % len(view.segments)]
    place = segment.start + (seed * 7919) % (segment.end - segment.start)
    data = bytearray(segment.path.read_bytes())
    data[place] ^= 0x55
    segment.path.write_bytes(data)
    found: list[Row] = []
    holes = []
    for each in view.segments:
        listed, damaged = sound_parts(PUBEND, each, 1000)
        found += [row for part in listed for row in rows_of(read_part(part))]
        holes += damaged
    read_ticks = {row[0] for row in found}
    lost = {row[0] for row in rows} - read_ticks
    assert len(lost) <= 20
    assert all(any(hole.lo < tick <= hole.hi for hole in holes) for tick in lost)
    assert not any(hole.lo < tick <= hole.hi for hole in holes for tick in read_ticks)
