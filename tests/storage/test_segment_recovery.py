"""What a segmented log makes of its files when it is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.rows import EVERYTHING, Row, batch_of, read_all, rows_of

from postroad.errors import CorruptSegmentError, StorageFormatError, StorageLockedError
from postroad.storage import LogOptions, SegmentLog
from postroad.storage.segment.format import ALIGNMENT, pack_record, padding

PUBEND = 5 << 8
SMALL = LogOptions(segment_bytes=3000)


def append_one_by_one(log: SegmentLog, batches: int = 6) -> tuple[list[Row], list[int]]:
    """Append batches of ten rows; return all rows and the offset of each batch in its file."""
    rows: list[Row] = []
    offsets = []
    for i in range(batches):
        batch = batch_of(range(i * 10 + 1, i * 10 + 11), (1, 2))
        log.append([batch])
        rows += rows_of([batch])
        offsets.append(log._active.end)
    return rows, offsets


def last_segment(path: Path) -> Path:
    return max(path.glob("*.segment"))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_torn_tail_is_cut_and_reported(tmp_path: Path) -> None:
    """Every cut through the last record loses that record only."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows, offsets = append_one_by_one(log)
    log.abandon()
    file = last_segment(tmp_path)
    whole = file.read_bytes()
    for size in range(offsets[-2] + 1, offsets[-1], 37):
        file.write_bytes(whole[:size])
        log = SegmentLog.open(tmp_path, PUBEND)
        assert log.torn is not None
        assert (log.torn.file, log.torn.offset, log.torn.bytes_cut) == (str(file), offsets[-2], size - offsets[-2])
        assert read_all(log) == rows[:-10]
        assert file.stat().st_size == offsets[-2]
        assert log.state().publishers == ((1, 49), (2, 50))
        log.append([batch_of([1000])])
        assert [row[0] for row in read_all(log)][-2:] == [50, 1000]
        log.abandon()


def test_a_damaged_record_with_later_ones_behind_it_is_refused(tmp_path: Path) -> None:
    """What was acknowledged is never cut off silently: the error names file and offset."""
    log = SegmentLog.open(tmp_path, PUBEND)
    _, offsets = append_one_by_one(log)
    log.abandon()
    file = last_segment(tmp_path)
    for place in (offsets[1] + 3, offsets[1] + 9, offsets[1] + ALIGNMENT - 1, offsets[1] + ALIGNMENT + 100):
        flip(file, place)
        with pytest.raises(CorruptSegmentError) as caught:
            SegmentLog.open(tmp_path, PUBEND)
        assert (caught.value.file, caught.value.offset) == (str(file), offsets[1])
        flip(file, place)
    SegmentLog.open(tmp_path, PUBEND).close()


def test_an_unsynced_append_whose_pages_came_out_of_order_is_a_torn_tail(tmp_path: Path) -> None:
    """A power cut may keep the second batch of an append and lose the first; neither was acknowledged."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows, offsets = append_one_by_one(log)
    log.append([batch_of([100]), batch_of([101])])
    log.abandon()
    flip(last_segment(tmp_path), offsets[-1] + ALIGNMENT + 5)
    log = SegmentLog.open(tmp_path, PUBEND)
    assert log.torn is not None
    assert log.torn.offset == offsets[-1]
    assert read_all(log) == rows
    log.close()


def test_zeros_behind_the_last_record_are_a_torn_tail(tmp_path: Path) -> None:
    """A file may have grown before its data arrived."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows, offsets = append_one_by_one(log)
    log.abandon()
    with last_segment(tmp_path).open("ab") as file:
        file.write(bytes(10_000))
    log = SegmentLog.open(tmp_path, PUBEND)
    assert log.torn is not None
    assert (log.torn.offset, log.torn.bytes_cut) == (offsets[-1], 10_000)
    assert read_all(log) == rows
    log.close()


def test_a_record_inside_a_payload_is_no_record(tmp_path: Path) -> None:
    """A torn batch that carries the bytes of a record, even of this log's format, is still just torn."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows, offsets = append_one_by_one(log)
    forged = [
        pack_record([b"x" * ALIGNMENT], rows=1, first=9000, last=9000, group=offset, offset=offset, salt=0)
        for offset in range(offsets[-1] + ALIGNMENT, offsets[-1] + 20 * ALIGNMENT, ALIGNMENT)
    ]
    log.abandon()
    with last_segment(tmp_path).open("ab") as file:
        file.write(b"torn" * 16 + b"".join(forged))
    log = SegmentLog.open(tmp_path, PUBEND)
    assert log.torn is not None
    assert read_all(log) == rows
    log.close()


def test_a_closed_log_opens_without_reading_its_records(tmp_path: Path) -> None:
    """Closing ends the last segment, so its records are not read through again; publishers are in the next header."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows, offsets = append_one_by_one(log)
    log.close()
    first, last = sorted(tmp_path.glob("*.segment"))
    flip(first, offsets[0] + ALIGNMENT + 7)
    log = SegmentLog.open(tmp_path, PUBEND)
    assert log.state().publishers == ((1, 59), (2, 60))
    assert last.stat().st_size < 200
    with pytest.raises(CorruptSegmentError) as caught:
        read_all(log)
    assert (caught.value.file, caught.value.offset) == (str(first), offsets[0])
    assert rows_of(log.read(20, EVERYTHING, 1 << 20).batches) == rows[20:]
    log.close()
    assert len(list(tmp_path.glob("*.segment"))) == 2


def test_a_crash_between_closing_a_segment_and_beginning_the_next_is_healed(tmp_path: Path) -> None:
    """The closed segment is read through once more for its publishers."""
    log = SegmentLog.open(tmp_path, PUBEND)
    rows, _ = append_one_by_one(log)
    log.close()
    following = last_segment(tmp_path)
    following.rename(following.with_suffix(".new"))
    log = SegmentLog.open(tmp_path, PUBEND)
    assert (log.torn, read_all(log)) == (None, rows)
    assert log.state().publishers == ((1, 59), (2, 60))
    assert not list(tmp_path.glob("*.new"))
    log.close()


def test_a_segment_missing_from_the_middle_is_refused(tmp_path: Path) -> None:
    """The segments must follow on each other."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    append_one_by_one(log, 12)
    log.close()
    files = sorted(tmp_path.glob("*.segment"))
    assert len(files) > 3
    files[1].unlink()
    with pytest.raises(CorruptSegmentError, match="previous segment ends") as caught:
        SegmentLog.open(tmp_path, PUBEND, SMALL)
    assert caught.value.file == str(files[2])


def test_a_damaged_trailer_or_index_of_a_closed_segment_is_refused(tmp_path: Path) -> None:
    """The trailer when the log is opened, the index when it is first used."""
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    append_one_by_one(log, 12)
    log.close()
    first = min(tmp_path.glob("*.segment"))
    size = first.stat().st_size
    flip(first, size - 20)
    with pytest.raises(CorruptSegmentError, match="trailer"):
        SegmentLog.open(tmp_path, PUBEND, SMALL)
    flip(first, size - 20)
    flip(first, size - ALIGNMENT - 60)
    log = SegmentLog.open(tmp_path, PUBEND, SMALL)
    with pytest.raises(CorruptSegmentError, match="index"):
        log.read(3, 20, 1000)
    log.close()


def test_a_log_of_another_pubend_or_version_is_refused(tmp_path: Path) -> None:
    """Each with an error that says so."""
    SegmentLog.open(tmp_path, PUBEND).close()
    with pytest.raises(StorageFormatError, match=f"pubend {PUBEND}, not 77"):
        SegmentLog.open(tmp_path, 77)
    flip(last_segment(tmp_path), 8, 5)
    with pytest.raises(StorageFormatError, match="version 33"):
        SegmentLog.open(tmp_path, PUBEND)


def test_a_file_with_a_strange_name_is_refused(tmp_path: Path) -> None:
    """Better than reading it in the wrong place."""
    (tmp_path / "copy of a.segment").write_bytes(b"")
    with pytest.raises(StorageFormatError, match="16 hexadecimal digits"):
        SegmentLog.open(tmp_path, PUBEND)


def test_a_log_is_opened_once_at_a_time(tmp_path: Path) -> None:
    """The second opening is refused until the first is closed."""
    log = SegmentLog.open(tmp_path, PUBEND)
    with pytest.raises(StorageLockedError):
        SegmentLog.open(tmp_path, PUBEND)
    log.close()
    SegmentLog.open(tmp_path, PUBEND).close()


def test_files_are_private_and_descriptors_are_returned(tmp_path: Path) -> None:
    """Mode 0600 in a directory of mode 0700, and closing leaves nothing open, also after refusals."""
    before = open_descriptors()
    directory = tmp_path / "new" / "log"
    log = SegmentLog.open(directory, PUBEND, SMALL)
    append_one_by_one(log, 12)
    read_all(log)
    log.release(60)
    log.close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o600}
    flip(min(directory.glob("*.segment")), 30)
    with pytest.raises(CorruptSegmentError):
        SegmentLog.open(directory, PUBEND)
    assert open_descriptors() == before


def test_the_index_finds_any_tick_of_a_large_segment(tmp_path: Path) -> None:
    """Reads start close to what they look for, in an open segment as in a closed one."""
    log = SegmentLog.open(tmp_path, PUBEND)
    for i in range(100):
        log.append([batch_of(range(i * 50 + 1, i * 50 + 51), payload_bytes=400)])
    assert len(log._active.index.ticks) > 20
    for _ in range(2):
        for lo in range(0, 5000, 171):
            assert [row[0] for row in read_all(log, lo, lo + 3)] == [tick for tick in range(lo + 1, lo + 4) if tick <= 5000]
        log.close()
        log = SegmentLog.open(tmp_path, PUBEND)
    log.close()


def test_batches_are_written_as_they_were_received(tmp_path: Path) -> None:
    """What a read batch was decoded from goes to the next log byte for byte."""
    log = SegmentLog.open(tmp_path / "a", PUBEND)
    log.append([batch_of(range(1, 50))])
    read = log.read(0, 100, 1 << 20).batches[0]
    copy = SegmentLog.open(tmp_path / "b", PUBEND)
    copy.append([read])
    assert read.encoded is not None
    body = b"".join(bytes(part) for part in read.encoded)
    assert last_segment(tmp_path / "b").read_bytes().endswith(body + padding(len(body)))
    log.close()
    copy.close()
