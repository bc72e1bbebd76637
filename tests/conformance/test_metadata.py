"""One suite over every implementation of a broker's metadata."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.errors import CorruptMetadataError, StorageError, StorageFailedError, StorageFormatError, StorageFullError
from postroad.storage import MemoryMetadata, Metadata, SqliteMetadata

PAGE_BYTES = 4096
keys = st.sampled_from(["a", "b", "hold/7", "", "ü"])
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=20)), max_size=6)


class Places:
    """Opens the same metadata again and again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._memory = MemoryMetadata()

    def open(self) -> Metadata:
        return self._memory if self._path is None else SqliteMetadata(self._path)


@pytest.fixture(params=["memory", "sqlite"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    return Places(tmp_path / "metadata.sqlite" if request.param == "sqlite" else None)


def test_metadata_starts_empty_and_keeps_what_is_stored(places: Places) -> None:
    """Values are bytes, sorted by key; None deletes; a later change of the same key wins."""
    metadata = places.open()
    assert metadata.load() == ()
    metadata.store([("b", b"2"), ("a", b"1"), ("c", b"3")])
    metadata.store([("c", None), ("missing", None), ("a", b"x"), ("a", b""), ("d", b"4"), ("d", None)])
    metadata.store([])
    metadata.close()
    metadata = places.open()
    assert metadata.load() == (("a", b""), ("b", b"2"))
    metadata.close()


def test_incarnations_count_every_start(places: Places) -> None:
    """Across closings."""
    for expected in range(1, 4):
        metadata = places.open()
        assert metadata.next_incarnation() == expected
        metadata.close()


def test_sqlite_does_what_a_dictionary_does(tmp_path: Path) -> None:
    """Any sequence of changes gives the same pairs in both."""
    metadata, memory = SqliteMetadata(tmp_path / "metadata.sqlite"), MemoryMetadata()

    @settings(max_examples=60, deadline=None)
    @given(changes)
    def compare(some: list[tuple[str, bytes | None]]) -> None:
        metadata.store(some)
        memory.store(some)
        assert metadata.load() == memory.load()

    compare()
    metadata.close()


def test_memory_loses_what_was_not_synced() -> None:
    """A crash before the sync leaves the old values."""
    metadata = MemoryMetadata()
    metadata.store([("a", b"1")])
    metadata.stage([("a", b"2"), ("b", b"2")])
    assert metadata.load() == (("a", b"1"),)
    metadata.crash()
    metadata.sync()
    assert metadata.load() == (("a", b"1"),)


def test_a_full_sqlite_file_refuses_the_change_as_a_whole_and_stays_usable(tmp_path: Path) -> None:
    """SQLite's own limit of pages stands in for a full disk."""
    metadata = SqliteMetadata(tmp_path / "metadata.sqlite")
    metadata.store([("small", b"1")])
    metadata._connection.execute("PRAGMA max_page_count = 12")
    with pytest.raises(StorageFullError):
        metadata.store([("small", b"2"), ("large", b"x" * 100_000)])
    assert metadata.load() == (("small", b"1"),)
    metadata.store([("small", b"3")])
    assert metadata.load() == (("small", b"3"),)
    metadata.close()


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda file: file.write_bytes(b"no database" * 500), CorruptMetadataError),
        (lambda file: _with(file, "PRAGMA user_version = 9"), StorageFormatError),
        (lambda file: _with(file, "PRAGMA application_id = 9"), StorageFormatError),
    ],
)
def test_a_strange_file_is_refused(tmp_path: Path, damage: Callable[[Path], object], error: type[Exception]) -> None:
    """Damage, another version, another program's file."""
    file = tmp_path / "metadata.sqlite"
    SqliteMetadata(file).close()
    damage(file)
    with pytest.raises(error):
        SqliteMetadata(file)


def _with(file: Path, statement: str) -> None:
    metadata = SqliteMetadata(file)
    metadata._connection.execute(statement)
    metadata.close()


def test_closed_sqlite_metadata_refuses_writes(tmp_path: Path) -> None:
    """With our own error."""
    metadata = SqliteMetadata(tmp_path / "metadata.sqlite")
    metadata.close()
    with pytest.raises(StorageFailedError):
        metadata.store([("a", b"1")])
    with pytest.raises(StorageFailedError):
        metadata.load()


def test_a_change_that_fails_halfway_leaves_nothing_and_ends_the_writing(tmp_path: Path) -> None:
    """SQLite itself refuses the second value here, after the first was written in the same transaction."""
    metadata = SqliteMetadata(tmp_path / "metadata.sqlite")
    metadata.store([("a", b"1")])
    metadata._connection.execute(
        "CREATE TRIGGER no BEFORE INSERT ON pairs WHEN new.key = 'no' BEGIN SELECT RAISE(FAIL, 'no'); END"
    )
    with pytest.raises(StorageFailedError):
        metadata.store([("a", b"2"), ("no", b"2")])
    assert metadata.load() == (("a", b"1"),)
    with pytest.raises(StorageFailedError):
        metadata.store([("a", b"3")])
    metadata.close()


def _closed(file: Path) -> Path:
    metadata = SqliteMetadata(file)
    metadata.store([("durable/alice", b"position-of-alice"), ("durable/bob", b"position-of-bob..")])
    metadata.add_pubends([256])
    metadata.next_incarnation()
    metadata.close()
    return file


def _damage(file: Path, before: bytes, after: bytes) -> None:
    data = file.read_bytes()
    assert data.count(before) == 1
    file.write_bytes(data.replace(before, after))


@pytest.mark.parametrize("bit", range(0, 8 * len(b"position-of-alice"), 5))
def test_a_flipped_bit_in_a_value_makes_a_damaged_record_of_it(tmp_path: Path, bit: int) -> None:
    """The value is never given out, its key is named, the others are whole."""
    file = _closed(tmp_path / "metadata.sqlite")
    value = bytearray(b"position-of-alice")
    value[bit // 8] ^= 1 << bit % 8
    _damage(file, b"position-of-alice", bytes(value))
    metadata = SqliteMetadata(file)
    assert metadata.load() == (("durable/bob", b"position-of-bob.."),)
    assert metadata.damaged() == ("durable/alice",)
    metadata.store([("durable/alice", b"anew")])
    assert metadata.damaged() == ()
    assert dict(metadata.load())["durable/alice"] == b"anew"
    metadata.close()


def test_values_that_changed_places_are_damaged(tmp_path: Path) -> None:
    """A checksum covers the key."""
    file = _closed(tmp_path / "metadata.sqlite")
    with sqlite3.connect(file) as connection:
        rows = connection.execute("SELECT value, row_sum, key FROM pairs ORDER BY key").fetchall()
        swapped = [(*rows[1][:2], rows[0][2]), (*rows[0][:2], rows[1][2])]
        connection.executemany("UPDATE pairs SET value = ?, row_sum = ? WHERE key = ?", swapped)
    connection.close()
    metadata = SqliteMetadata(file)
    assert metadata.load() == ()
    assert metadata.damaged() == ("durable/alice", "durable/bob")
    metadata.close()


@pytest.mark.parametrize("key", [b"durable/alicf", b"durable/al\xffce"])
def test_a_record_whose_key_is_damaged_has_no_name(tmp_path: Path, key: bytes) -> None:
    """It is not taken for a record of another key, and can be deleted without knowing the key."""
    file = _closed(tmp_path / "metadata.sqlite")
    _damage(file, b"durable/alice", key)
    metadata = SqliteMetadata(file)
    assert metadata.damaged() == ("",)
    assert metadata.load() == (("durable/bob", b"position-of-bob.."),)
    metadata.store([("", None)])
    assert metadata.damaged() == ()
    assert metadata.load() == (("durable/bob", b"position-of-bob.."),)
    metadata.close()


def test_a_damaged_incarnation_rises_above_every_former_one(tmp_path: Path) -> None:
    """Others know the former ones: it may not fall."""
    file = _closed(tmp_path / "metadata.sqlite")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE counters SET value = 0")
    connection.close()
    metadata = SqliteMetadata(file)
    first = metadata.next_incarnation()
    assert first > 1_000_000_000
    assert metadata.damaged() == ("incarnation",)
    assert metadata.next_incarnation() == first + 1
    metadata.close()


def test_a_damaged_list_of_pubends_names_no_other_pubend(tmp_path: Path) -> None:
    """The log of a pubend that never was is not missed."""
    file = _closed(tmp_path / "metadata.sqlite")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE pubends SET pubend = '257'")
    connection.close()
    metadata = SqliteMetadata(file)
    assert metadata.pubends() == ()
    assert metadata.damaged() == ("pubends",)
    metadata.add_pubends([256])
    assert metadata.pubends() == (256,)
    metadata.close()


def test_metadata_of_a_release_without_checksums_is_taken_over(tmp_path: Path) -> None:
    """Its values get theirs when it is opened first."""
    file = tmp_path / "metadata.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript(
            """
            CREATE TABLE pairs (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
            CREATE TABLE pubends (pubend TEXT PRIMARY KEY) WITHOUT ROWID;
            CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
            INSERT INTO counters VALUES ('incarnation', 41);
            INSERT INTO pubends VALUES ('18446744073709551615');
            INSERT INTO pairs VALUES ('a', x'00ff'), ('b', x'');
            PRAGMA application_id = 0x50726D64; PRAGMA user_version = 1;
            """
        )
    connection.close()
    for incarnation in (42, 43):
        metadata = SqliteMetadata(file)
        assert metadata.load() == (("a", b"\0\xff"), ("b", b""))
        assert metadata.damaged() == ()
        assert metadata.pubends() == (2**64 - 1,)
        assert metadata.next_incarnation() == incarnation
        metadata.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_anywhere_in_the_file_is_never_silent(tmp_path: Path, seed: int) -> None:
    """The record is whole, or named as damaged, or the file is refused; nothing vanishes and nothing changes unnoticed."""
    chance = random.Random(seed)
    file = tmp_path / "metadata.sqlite"
    pairs = {f"durable/n{number}": bytes([number]) * 60 for number in range(200)}
    metadata = SqliteMetadata(file)
    metadata.store(list(pairs.items()))
    metadata.close()
    whole = file.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        page = chance.randrange(len(data) // PAGE_BYTES) * PAGE_BYTES
        place = page + chance.randrange(chance.choice([120, PAGE_BYTES]))
        data[place] ^= 1 << chance.randrange(8)
        for each in tmp_path.iterdir():
            each.unlink()
        file.write_bytes(data)
        try:
            metadata = SqliteMetadata(file)
        except StorageError:
            continue
        try:
            found = dict(metadata.load())
            damaged = metadata.damaged()
        except StorageError:
            continue
        finally:
            metadata.close()
        assert all(pairs[key] == value for key, value in found.items()), (seed, place)
        assert len(pairs) - len(found) <= len(damaged), (seed, place)
