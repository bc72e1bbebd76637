"""Damaged files: a valid prefix or a typed error, never other rows and never a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.rows import Row, batch_of, rows_of

from postroad.errors import CorruptSegmentError, StorageError, StorageFormatError
from postroad.storage import LogOptions, SegmentLog
from postroad.storage.segment.format import ALIGNMENT, pack_record, padding, parse_header

PUBEND = 5 << 8
SMALL = LogOptions(segment_bytes=4000)
FUZZ = settings(max_examples=300, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, list[Row]]]:
    """Two logs of several segments: one closed in good order, one not."""
    made = {}
    for orderly in (True, False):
        path = tmp_path_factory.mktemp("original") / "log"
        log = SegmentLog.open(path, PUBEND, SMALL)
        batches = [batch_of(range(i * 8 + 1, i * 8 + 9), (1, 2, 3)) for i in range(12)]
        for first, second in zip(batches[::2], batches[1::2], strict=True):
            log.append([first, second])
        (log.close if orderly else log.abandon)()
        made[orderly] = (path, rows_of(batches))
    return made


def outcome(path: Path) -> tuple[list[Row], StorageError | None]:
    """Open a log and read as far as it goes, piece by piece."""
    try:
        log = SegmentLog.open(path, PUBEND, SMALL)
    except StorageError as error:
        return [], error
    rows: list[Row] = []
    lo = 0
    try:
        while lo < 1000:
            piece = log.read(lo, 1000, 1)
            rows += rows_of(piece.batches)
            lo = piece.hi
    except StorageError as error:
        return rows, error
    finally:
        log.abandon()
    return rows, None


def check(rows: list[Row], error: StorageError | None, original: list[Row]) -> None:
    """Accept a prefix of the original rows, and a typed error or none."""
    assert isinstance(error, CorruptSegmentError | StorageFormatError | None)
    assert rows == original[: len(rows)]


def changed(original: Path, tmp_path: Path, which: int, change: bytes | None, at: int, cut: bool) -> Path:
    """Copy a log and overwrite (or cut) one of its files at an offset."""
    path = tmp_path / "log"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(original, path)
    files = sorted(path.glob("*.segment"))
    file = files[which % len(files)]
    data = bytearray(file.read_bytes())
    at %= max(len(data), 1)
    if cut:
        del data[at:]
    elif change is None:
        data[at] ^= 1 << (which % 8)
    else:
        data[at : at + len(change)] = change
    file.write_bytes(data)
    return path


@FUZZ
@given(orderly=st.booleans(), which=st.integers(0, 63), at=st.integers(0, 1 << 16))
def test_a_flipped_bit_never_changes_a_row(
    originals: dict[bool, tuple[Path, list[Row]]], tmp_path: Path, orderly: bool, which: int, at: int
) -> None:
    """Any bit of any file."""
    path, original = originals[orderly]
    rows, error = outcome(changed(path, tmp_path, which, None, at, cut=False))
    check(rows, error, original)
    assert error is not None or len(rows) >= len(original) - 16


@FUZZ
@given(orderly=st.booleans(), which=st.integers(0, 63), at=st.integers(0, 1 << 16))
def test_a_file_cut_short_gives_a_prefix_or_an_error(
    originals: dict[bool, tuple[Path, list[Row]]], tmp_path: Path, orderly: bool, which: int, at: int
) -> None:
    """Any length of any file."""
    path, original = originals[orderly]
    rows, error = outcome(changed(path, tmp_path, which, None, at, cut=True))
    check(rows, error, original)


@FUZZ
@given(orderly=st.booleans(), which=st.integers(0, 63), at=st.integers(0, 1 << 16), change=st.binary(min_size=1, max_size=300))
def test_garbage_in_a_file_gives_a_prefix_or_an_error(
    originals: dict[bool, tuple[Path, list[Row]]], tmp_path: Path, orderly: bool, which: int, at: int, change: bytes
) -> None:
    """Any bytes anywhere, also behind the end."""
    path, original = originals[orderly]
    rows, error = outcome(changed(path, tmp_path, which, change, at, cut=False))
    check(rows, error, original)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=500), magic=st.booleans())
def test_a_garbage_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, magic: bool) -> None:
    """A file that is no segment is never taken for one."""
    path = tmp_path_factory.mktemp("garbage")
    (path / f"{0:016x}.segment").write_bytes(b"PRsegmnt\1\0\0\0" + data if magic else data)
    rows, error = outcome(path)
    assert rows == []
    assert isinstance(error, CorruptSegmentError | StorageFormatError)
    shutil.rmtree(path)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(min_size=1, max_size=400), rows=st.integers(1, 3))
def test_a_record_that_holds_no_batch_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, rows: int) -> None:
    """Correct checks over bytes that are no batch: the decoder's refusal names the place."""
    path = tmp_path_factory.mktemp("forged")
    SegmentLog.open(path, PUBEND).close()
    file = path / f"{0:016x}.segment"
    head = file.read_bytes()
    place, salt = len(head), parse_header(head).salt
    record = pack_record([data], rows=rows, first=1, last=rows, group=place, offset=place, salt=salt)
    file.write_bytes(head + record + data + padding(len(data)))
    assert len(record) == ALIGNMENT
    found, error = outcome(path)
    assert found == []
    assert isinstance(error, CorruptSegmentError)
    assert error.offset == place
    shutil.rmtree(path)
