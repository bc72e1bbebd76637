"""Shipping to an archive: verified, resumed where it ended, and the same however often it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.object_store import object_store
from tests.spark.data import batch_of, write_log

from postroad import shipping
from postroad.cli import main
from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import pubend_id
from postroad.storage import LogOptions, open_broker_storage
from postroad.storage.directory import find_logs
from postroad.storage.remote import RemotePath, path_of
from postroad.storage.segment.external_reader import observe, parts, read_part

FIRST = pubend_id(1)


@pytest.fixture(scope="module")
def store() -> Iterator[None]:
    with object_store():
        yield


@pytest.fixture(params=["file", "s3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, store: None) -> str:
    return f"s3://archive/{tmp_path.name}" if request.param == "s3" else (tmp_path / "archive").as_uri()


def batches_of(count: int) -> list[Batch]:
    """Make batches that fill a segment each, and a small one."""
    rows = [batch_of(first * 500, 500, {"n": list(range(500))}) for first in range(count)]
    return [*rows, batch_of(count * 500, 10, {"n": list(range(10))})]


def write_broker(path: Path, batches: int = 6) -> Path:
    """Make a data directory with several segments, as a broker leaves it that ended."""
    return write_log(path, {FIRST: batches_of(batches)}, segment_bytes=1 << 15)


def rows_in(root: Path) -> int:
    view = observe(find_logs(root)[FIRST], FIRST)
    return sum(len(batch) for part in parts(view, 0, view.last, 1 << 20) for batch in read_part(part))


def files_in(archive: str) -> list[Path]:
    return sorted(path_of(archive).glob("broker-1/pubends/*/*.segment"))


def test_closed_segments_are_shipped_and_a_second_run_sends_nothing(archive: str, tmp_path: Path) -> None:
    """The open segment waits until it is closed, unless unfinished ones are wanted."""
    source = tmp_path / "data"
    storage = open_broker_storage(source, 1, [FIRST], LogOptions(segment_bytes=1 << 15))
    for batch in batches_of(6):
        storage.logs[FIRST].append([batch])
    first = shipping.ship([str(source)], archive)
    assert not first.problems
    closed = [segment for segment in observe(find_logs(source)[FIRST], FIRST).segments if segment.trailer is not None]
    assert len(files_in(archive)) == len(closed) > 1
    assert [path.read_bytes() for path in files_in(archive)] == [segment.path.read_bytes() for segment in closed]
    again = shipping.ship([str(source)], archive)
    assert (again.files, again.problems) == (0, ())
    whole = shipping.ship([str(source)], archive, unfinished=True)
    assert whole.files == 2, "the open segment and its mark"
    assert rows_in(path_of(archive) / "broker-1") == 3010
    storage.close()
    assert shipping.ship([str(source)], archive).files > 0, "it is closed now"
    assert rows_in(path_of(archive) / "broker-1") == 3010


def test_a_run_that_was_interrupted_is_finished_by_the_next(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that are there without a journal are read, not sent again; the others are sent."""
    source = write_broker(tmp_path / "data")

    def interrupt(target: Path, entries: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shipping, "_write_journal", interrupt)
        patched.setattr(shipping, "BATCH_FILES", 2)
        with pytest.raises(KeyboardInterrupt):
            shipping.ship([str(source)], archive)
    sent = len(files_in(archive))
    assert sent == 2
    total = sum(segment.trailer is not None for segment in observe(find_logs(source)[FIRST], FIRST).segments)
    done = shipping.ship([str(source)], archive)
    assert len(files_in(archive)) == total
    assert done.files == total - sent + 2, "format and metadata are files as well"


def test_a_write_that_reads_back_differently_is_a_problem_and_no_journal_has_it(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that loses a byte is noticed at once, and the next run sends the file again."""
    source = write_broker(tmp_path / "data")
    write = shipping._write

    def damage(target: Path, data: pa.Buffer) -> None:
        write(target, pa.py_buffer(data.to_pybytes()[:-1] + b"!") if target.suffix == ".segment" else data)

    with monkeypatch.context() as patched:
        patched.setattr(shipping, "_write", damage)
        spoiled = shipping.ship([str(source)], archive)
    assert len(spoiled.problems) == len(files_in(archive)) > 0
    assert not shipping.ship([str(source)], archive).problems
    assert not shipping.check(archive).problems


def test_verify_names_what_changed_in_the_archive(archive: str, tmp_path: Path) -> None:
    """A changed and a removed object are both told; the command says so and fails."""
    source = write_broker(tmp_path / "data")
    shipping.ship([str(source)], archive)
    first, second = files_in(archive)[:2]
    data = bytearray(first.read_bytes())
    data[1000] ^= 1
    first.write_bytes(bytes(data))
    second.unlink()
    told = CliRunner().invoke(main, ["pipeline", "ship", "--to", archive, "--verify"])
    assert told.exit_code == 1
    assert f"{first.name}: it is not what was shipped" in told.output
    assert f"{second.name}: it is missing" in told.output


def test_a_damaged_segment_is_not_shipped_and_the_others_are(archive: str, tmp_path: Path) -> None:
    """The archive never gets what the log itself would refuse; the command fails."""
    source = write_broker(tmp_path / "data")
    victim = sorted(find_logs(source)[FIRST].glob("*.segment"))[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(bytes(data))
    told = CliRunner().invoke(main, ["pipeline", "ship", "--data", str(source), "--to", archive])
    assert told.exit_code == 1
    assert victim.name in told.output
    assert victim.name not in {path.name for path in files_in(archive)}
    assert len(files_in(archive)) > 1


def test_journals_are_made_one_when_they_are_many(archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shipped stays known."""
    monkeypatch.setattr(shipping, "JOURNAL_FILES_MAX", 2)
    monkeypatch.setattr(shipping, "BATCH_FILES", 1)
    source = write_broker(tmp_path / "data")
    shipping.ship([str(source)], archive)
    assert len(list(path_of(archive).glob("broker-1/shipped/*.json"))) <= 3
    assert shipping.ship([str(source)], archive).files == 0


def test_a_store_that_nobody_knows_is_an_error() -> None:
    """The scheme is refused before anything is read."""
    with pytest.raises(ValueError, match="nowhere"):
        RemotePath("nowhere://x/y").exists()
