"""Track files on a disk that fails, in a process that is killed, and with bytes that changed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.storage.test_segment_faults import FaultyDisk
from tests.tracking.files.elements import BROKER, START, element, ids_at

from postroad.errors import StorageError, StorageFailedError, StorageFullError
from postroad.tracking.files.catalog import FileName
from postroad.tracking.files.directories import DirectoryFiles
from postroad.tracking.files.format import FormatError, unpack
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import Flush, HistoryKey, Horizon, Kind
from postroad.tracking.histories.settings import Strategy
from postroad.tracking.queries.answers import HoleKind, Searched

PUBLISHED = HistoryKey(Kind.PUBLISHER, BROKER)
SEED = 20_262
FUZZ = settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
FILES = 5


def write_some(path: Path) -> None:
    """Write a mark and four files; file n holds the ids at n seconds, as ids and as blooms."""
    store = TrackStore.open(path, BROKER, 1, now_ms=START)
    for step in range(1, FILES):
        ids = ids_at([START + step * 1000 + offset for offset in range(5)])
        kinds = {"kind": Kind.SUBSCRIBER, "subscriber": "s", "strategy": Strategy.BLOOM}
        elements = (element(step, ids), element(step + 10, ids, **kinds))  # type: ignore[arg-type]  # of a dictionary
        store.write(Flush(elements, (), (Horizon(1, step),)), now_ms=START + step * 1000 + 500)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "tracks"
    write_some(path)
    return path


def published(found: Searched) -> list[int]:
    return [row for row, key, _, _ in found.hits if key == PUBLISHED]


def ask(path: Path) -> Searched:
    """Start the broker again and ask for one id of every file, and for one that is in none."""
    store = TrackStore.open(path, BROKER, 2, now_ms=START + 60_000)
    return store.search(ids_at([START + step * 1000 for step in range(1, FILES)] + [START + 1500]))


@pytest.mark.parametrize("step", range(1, 14))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whatever_operation_fails_the_flush_is_refused_and_may_be_tried_again(tmp_path: Path, step: int, error: int) -> None:
    """Nothing that was confirmed is lost, nothing half-written is found, and the flush is written once there is room."""
    disk = FaultyDisk(error)
    path = tmp_path / "tracks"
    store = TrackStore.open(DirectoryFiles(path, disk), BROKER, 1, now_ms=START)
    disk.countdown = step
    asked = ids_at([START + number * 10 for number in range(6)])
    for number in range(6):
        copies = (element(100, asked[: number + 1], opened_ms=START + 1),)
        flush = Flush((element(number + 1, asked[number : number + 1]),), copies, (Horizon(1, number),))
        while True:
            try:
                store.write(flush, now_ms=START + number)
                break
            except (StorageFullError, StorageFailedError):
                assert published(store.search(asked, flush.closed)) == [*range(number + 1)]
        assert published(store.search(asked)) == [*range(number + 1)]
        assert not list(path.glob(".*"))
    again = TrackStore.open(path, BROKER, 2, now_ms=START + 100)
    assert published(again.search(asked)) == [*range(6)]
    assert dict(again.recovered.horizons) == {1: 5}


def test_what_an_interrupted_write_left_is_removed(tmp_path: Path) -> None:
    """And names that we never give are left alone."""
    write_some(tmp_path)
    (tmp_path / ".0000000001-0000000009.parquet.new").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "my.parquet").write_text("mine")
    assert published(ask(tmp_path)) == [0, 1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir() if "-" not in path.name) == ["my.parquet", "notes.txt"]
    assert not list(tmp_path.glob(".*"))


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from postroad.tracking.histories.elements import Flush, Horizon
from postroad.tracking.files.track_store import TrackStore
from tests.tracking.files.elements import BROKER, START, element, ids_at
incarnation = int(sys.argv[2])
first = incarnation * 1_000_000
store = TrackStore.open(Path(sys.argv[1]), BROKER, incarnation, now_ms=START + first)
print("open", flush=True)
done = first
while True:
    done += 10
    times = [START + ms for ms in range(done - 10, done)]
    whole = ids_at([START + ms for ms in range(first, done)][-500:])
    living = element(999_999, whole, incarnation=incarnation, subscriber="s", opened_ms=START + first)
    finished = element(done, ids_at(times), incarnation=incarnation)
    store.write(Flush((finished,), (living,), (Horizon(1, done),)), now_ms=START + done)
    print(done, flush=True)
"""


def test_everything_confirmed_before_a_kill_is_found(tmp_path: Path) -> None:
    """Through six kills at any moment: no id is missing up to the last confirmed flush, and its end is a stated hole."""
    chance = random.Random(SEED)
    confirmed: dict[int, int] = {}
    for incarnation in range(1, 7):
        command = [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path), str(incarnation)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            early = [process.stdout.readline() for _ in range(chance.randint(1, 25))]
            time.sleep(chance.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
            lines = ("".join(early) + process.stdout.read()).split("\n")
        confirmed[incarnation] = int(lines[-2])
        store = TrackStore.open(tmp_path, BROKER, 100 + incarnation, now_ms=START + 900_000_000)
        told = f"seed {SEED}, incarnation {incarnation}"
        assert store.damaged == (), told
        assert store.recovered.crash is not None, told
        assert store.recovered.crash.from_ms >= START + confirmed[incarnation], told
        assert store.recovered.horizons[1] >= confirmed[incarnation], told
        for each, last in confirmed.items():
            times = [START + ms for ms in range(each * 1_000_000, last)]
            assert published(store.search(ids_at(times))) == [*range(len(times))], told
        for file in tmp_path.glob(f"{100 + incarnation:010d}-*"):
            file.unlink()  # the next process is not a successor of this one
    assert max(confirmed.values()) % 1_000_000 > 50


def changed(original: Path, tmp_path: Path, which: int, at: int, change: bytes | None, *, cut: bool = False) -> tuple[Path, str]:
    """Copy the files and damage one of them."""
    path = tmp_path / "tracks"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(original, path)
    file = sorted(path.glob("*.parquet"))[which % FILES]
    data = bytearray(file.read_bytes())
    at %= len(data)
    if cut:
        del data[at:]
    elif change is None:
        data[at] ^= 1 << (which % 8)
    else:
        data[at : at + len(change)] = change
    same = bytes(data) == file.read_bytes()
    file.write_bytes(data)
    return path, "" if same else file.name


def check(path: Path, damaged: str) -> None:
    """Expect every id but those of the damaged file, and a hole for exactly what it held."""
    found = ask(path)
    step = int(damaged[11:21]) if damaged else 0
    assert published(found) == [row for row in range(FILES - 1) if row + 1 != step]
    assert 4 not in found.hits.rows.tolist()
    holes = [hole for hole in found.holes if hole.kind is HoleKind.DAMAGED]
    assert len(holes) == bool(damaged) if step else len(holes) <= 1  # the mark holds nothing that is searched for
    for hole in holes:
        assert damaged in hole.reason
        assert "restore the file from a copy" in hole.reason
        assert hole.concerns(START + step * 1000)


def test_no_byte_of_a_file_can_change_unnoticed(original: Path) -> None:
    """Each of them, one after the other."""
    data = (original / "0000000001-0000000001.parquet").read_bytes()
    for at in range(len(data)):
        with pytest.raises(FormatError):
            unpack(pa.py_buffer(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]))


@FUZZ
@given(which=st.integers(0, 63), at=st.integers(0, 1 << 16))
@example(which=1, at=2849)
def test_a_flipped_bit_is_damage_and_never_another_answer(original: Path, tmp_path: Path, which: int, at: int) -> None:
    """Any bit of any file."""
    check(*changed(original, tmp_path, which, at, None))


@settings(FUZZ, max_examples=150)
@given(which=st.integers(0, 63), at=st.integers(0, 1 << 16))
def test_a_file_cut_short_is_damage(original: Path, tmp_path: Path, which: int, at: int) -> None:
    """Any length of any file, also none."""
    check(*changed(original, tmp_path, which, at, None, cut=True))


@settings(FUZZ, max_examples=150)
@given(which=st.integers(0, 63), at=st.integers(0, 1 << 16), change=st.binary(min_size=1, max_size=300))
def test_garbage_in_a_file_is_damage(original: Path, tmp_path: Path, which: int, at: int, change: bytes) -> None:
    """Any bytes anywhere, also behind the end."""
    check(*changed(original, tmp_path, which, at, change))


@settings(max_examples=300)
@given(data=st.binary(max_size=400), tail=st.booleans())
def test_garbage_is_no_track_file(data: bytes, tail: bool) -> None:
    """Also when it ends as Parquet does."""
    with pytest.raises(FormatError):
        unpack(pa.py_buffer(data + (b"\0\0\0\0PAR1" if tail else b"")))


def test_a_file_of_another_broker_is_not_ours(original: Path, tmp_path: Path) -> None:
    """Copied into the directory by mistake, it is a hole with a reason, and its ids are not taken for ours."""
    shutil.copytree(original, tmp_path / "tracks")
    other = TrackStore.open(tmp_path / "other", 99, 1, now_ms=START)
    other.write(Flush((element(1, ids_at([START + 2000], broker=99)),), (), ()), now_ms=START)
    shutil.copy(tmp_path / "other" / str(FileName(1, 1)), tmp_path / "tracks" / str(FileName(1, 2)))
    found = ask(tmp_path / "tracks")
    assert published(found) == [0, 2, 3]
    (reason,) = [hole.reason for hole in found.holes if hole.kind is HoleKind.DAMAGED]
    assert "belongs to broker 99" in reason


def test_a_file_under_the_name_of_another_is_not_believed(original: Path, tmp_path: Path) -> None:
    """It would count twice, and the other would be missed."""
    shutil.copytree(original, tmp_path / "tracks")
    shutil.copy(tmp_path / "tracks" / str(FileName(1, 1)), tmp_path / "tracks" / str(FileName(1, 2)))
    found = ask(tmp_path / "tracks")
    assert published(found) == [0, 2, 3]
    assert [hole.kind for hole in found.holes if hole.concerns(START + 2000)].count(HoleKind.DAMAGED) == 1


def test_any_parquet_file_is_not_a_track_file(original: Path, tmp_path: Path) -> None:
    """Without the check it was not written by a broker."""
    shutil.copytree(original, tmp_path / "tracks")
    pq.write_table(pa.table({"kind": ["publisher"]}), tmp_path / "tracks" / str(FileName(1, 2)))
    found = ask(tmp_path / "tracks")
    assert published(found) == [0, 2, 3]
    (reason,) = [hole.reason for hole in found.holes if hole.kind is HoleKind.DAMAGED]
    assert "not written by a broker" in reason


def test_a_file_that_somebody_removed_is_a_hole(original: Path, tmp_path: Path) -> None:
    """The file after it says that it was there."""
    shutil.copytree(original, tmp_path / "tracks")
    (tmp_path / "tracks" / str(FileName(1, 2))).unlink()
    found = ask(tmp_path / "tracks")
    assert published(found) == [0, 2, 3]
    (hole,) = [hole for hole in found.holes if hole.kind is HoleKind.DAMAGED]
    assert "the file is missing" in hole.reason
    assert hole.concerns(START + 2000)


def test_a_file_that_cannot_be_read_is_a_hole(original: Path, tmp_path: Path) -> None:
    """A bad sector, or a directory where a file should be."""
    shutil.copytree(original, tmp_path / "tracks")
    (tmp_path / "tracks" / str(FileName(1, 2))).unlink()
    (tmp_path / "tracks" / str(FileName(1, 2))).mkdir()
    found = ask(tmp_path / "tracks")
    assert published(found) == [0, 2, 3]
    (reason,) = [hole.reason for hole in found.holes if hole.kind is HoleKind.DAMAGED]
    assert os.strerror(errno.EISDIR) in reason


def test_the_newest_file_damaged_means_a_crash(original: Path, tmp_path: Path) -> None:
    """Nobody knows what it said, so the file before it is the last that counts."""
    path, _ = changed(original, tmp_path, FILES - 1, 100, b"garbage")
    store = TrackStore.open(path, BROKER, 2, now_ms=START + 60_000)
    assert store.recovered.crash is not None
    assert store.recovered.crash.from_ms == START + 3500
    assert dict(store.recovered.horizons) == {1: 3}


def test_with_every_file_damaged_the_broker_still_starts(original: Path, tmp_path: Path) -> None:
    """It begins anew, and everything before is a hole."""
    shutil.copytree(original, tmp_path / "tracks")
    for file in (tmp_path / "tracks").iterdir():
        file.write_bytes(b"")
    store = TrackStore.open(tmp_path / "tracks", BROKER, 2, now_ms=START + 60_000)
    store.write(Flush((element(1, ids_at([START + 61_000])),), (), ()), now_ms=START + 62_000)
    assert published(store.search(ids_at([START + 61_000]))) == [0]
    assert store.search(ids_at([START + 1000])).holes


FILL_UNTIL_FULL = """
import resource, sys
from pathlib import Path
from postroad.tracking.histories.elements import Flush
from postroad.errors import StorageFullError
from postroad.tracking.files.track_store import TrackStore
from tests.tracking.files.elements import BROKER, START, element, ids_at
store = TrackStore.open(Path(sys.argv[1]), BROKER, 1, now_ms=START)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
flush = Flush((element(1, ids_at(range(START, START + 50))),), (), ())
try:
    store.write(flush, now_ms=START)
except StorageFullError as error:
    print(error.code, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.write(flush, now_ms=START)
print(len(store.search(ids_at(range(START, START + 50))).hits), flush=True)
"""


def test_a_limit_on_the_file_size_is_a_full_disk(tmp_path: Path) -> None:
    """The operating system's own refusal, in a process of its own."""
    command = [sys.executable, "-c", FILL_UNTIL_FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(StorageFullError.code), "50"]


def test_a_directory_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    """The wiring decides whether to go on without tracks."""
    (tmp_path / "tracks").write_text("a file")
    with pytest.raises(StorageError, match="tracks"):
        TrackStore.open(tmp_path / "tracks", BROKER, 1, now_ms=START)


def test_reading_beside_writing_and_merging_misses_nothing(tmp_path: Path) -> None:
    """A search in another thread finds all that was confirmed before it began."""
    store = TrackStore.open(tmp_path, BROKER, 1, now_ms=START)
    confirmed = [0]
    problems: list[str] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            end = confirmed[-1]
            found = published(store.search(ids_at([START + ms for ms in range(end)])))
            if found != [*range(end)] or store.damaged:
                problems.append(f"{end}: {len(found)} {store.damaged}")

    reader = threading.Thread(target=follow)
    reader.start()
    for step in range(1, 400):
        ids = ids_at([START + ms for ms in range(step * 2)])
        copies = (element(5000, ids[-20:], opened_ms=START + 1),) if step % 20 == 0 else ()
        store.write(Flush((element(step, ids[-2:]),), copies, ()), now_ms=START + step)
        confirmed.append(step * 2)
        if step % 50 == 0:
            store.retain(START + step * 10_000_000 // 50)
    done.set()
    reader.join()
    assert problems == []
    assert any("merged" in path.name for path in tmp_path.iterdir())
