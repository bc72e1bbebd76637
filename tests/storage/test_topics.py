"""SQLite and the in-memory twin keep the same rows; a server loaded from either is the server that was."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroad.errors import TopicsStoreError
from postroad.storage.topics import sqlite as stores
from postroad.storage.topics.memory import MemoryTopicStore
from postroad.storage.topics.sqlite import SqliteTopicStore
from postroad.topics.machines import rows as r

topics = st.sampled_from([b"t", b"u/..", b"\x00 \xff"])
clients = st.sampled_from([b"a", b"b"])
small = st.integers(0, 5)

independent_rows = st.one_of(
    st.builds(r.SaveTopic, topics, clients, st.lists(clients, max_size=3).map(tuple), clients, clients),
    st.builds(r.DropTopic, topics),
    st.builds(r.SavePublisher, topics, clients, small, small, small),
    st.builds(r.DropPublisher, topics, clients),
    st.builds(r.SaveSubscriber, topics, clients, st.booleans(), small, small, small, small),
    st.builds(r.DropSubscriber, topics, clients),
    st.builds(r.SetLate, topics, clients, st.lists(small, unique=True, max_size=4).map(tuple)),
    st.builds(r.DropMessages, topics, st.lists(small, max_size=3).map(tuple)),
    st.builds(r.SaveMoved, topics, clients, clients, st.lists(clients, max_size=2).map(tuple), small),
    st.builds(r.DropMoved, topics),
    st.builds(r.SetMark, st.sampled_from(["clock", "moved"]), small),
    st.builds(r.SaveServer, clients, clients),
    st.builds(r.DropServer, clients),
    st.builds(r.SaveRoute, topics, clients),
    st.builds(r.SaveMemory, topics, clients, small, small, clients),
    st.builds(r.SaveReceived, topics, clients, st.binary(max_size=5)),
    st.builds(r.SaveUnfinished, topics, small, st.binary(max_size=5)),
    st.builds(r.DropUnfinished, topics),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(independent_rows, max_size=25), st.integers(0, 2**63 - 1))
def test_both_stores_hold_the_same_after_any_rows(tmp_path: Path, rows: list[r.Row], number: int) -> None:
    """One sequence of orders, one state, also after closing and opening again."""
    directory = tmp_path / f"{number}"
    memory, sqlite = MemoryTopicStore(), SqliteTopicStore(directory, "x", b"owner")
    sequence = 100
    for row in rows:
        extra = [r.AddMessage(b"t", sequence, b"%d:a" % sequence, number, b"body"), row]
        sequence += 1
        memory.commit(extra)
        sqlite.commit(extra)
    sqlite.close()
    sqlite = SqliteTopicStore(directory, "x", b"owner")
    try:
        assert sqlite.load_server() == memory.load_server()
        assert sqlite.load_proxy() == memory.load_proxy()
        assert sqlite.load_client() == memory.load_client()
        assert sqlite.body(b"t", 100) == memory.body(b"t", 100)
        assert sqlite.received(b"t") == memory.received(b"t")
    finally:
        sqlite.close()
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_staged_bodies_are_taken_in_or_forgotten(tmp_path: Path, kind: str) -> None:
    """The parts of a transfer wait outside the log; loading forgets what was never completed."""
    store = MemoryTopicStore() if kind == "memory" else SqliteTopicStore(tmp_path, "x", b"owner")
    store.commit([r.Stage(b"t", b"c", ((b"1:a", b"one"), (b"2:a", b"two")))])
    store.commit([r.TakeStaged(b"t", b"c", b"2:a", 7, 99), r.Unstage(b"t", b"c")])
    assert store.body(b"t", 7) == b"two"
    assert [m.id for m in store.load_server().messages] == [b"2:a"]
    if isinstance(store, SqliteTopicStore):
        store.close()


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """All rows or none; the error is typed."""
    store = SqliteTopicStore(tmp_path, "x", b"owner")
    message = r.AddMessage(b"t", 1, b"1:a", 1, b"x")
    store.commit([message])
    with pytest.raises(TopicsStoreError):
        store.commit([r.SetMark("clock", 5), message])
    assert store.load_server().marks == {}
    store.close()


def test_commits_are_synced_in_full(tmp_path: Path) -> None:
    """WAL with synchronous=FULL: a commit is on disk when it returns."""
    store = SqliteTopicStore(tmp_path, "x", b"owner")
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_a_second_process_is_told_that_the_id_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process at a time may use an id."""
    monkeypatch.setattr(stores, "LOCK_WAIT_S", 0.05)
    first = SqliteTopicStore(tmp_path, "x", b"owner")
    with pytest.raises(TopicsStoreError, match="another process"):
        SqliteTopicStore(tmp_path, "x", b"owner")
    first.close()
    SqliteTopicStore(tmp_path, "x", b"owner").close()


def test_another_owners_database_is_refused(tmp_path: Path) -> None:
    """A data directory mixed up by hand is noticed."""
    SqliteTopicStore(tmp_path, "x", b"owner").close()
    with pytest.raises(TopicsStoreError, match="belongs to"):
        SqliteTopicStore(tmp_path, "x", b"somebody else")


def test_a_later_format_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    """Neither is overwritten."""
    SqliteTopicStore(tmp_path, "x", b"owner").close()
    with sqlite3.connect(tmp_path / "x.sqlite3") as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(TopicsStoreError, match="format 99"):
        SqliteTopicStore(tmp_path, "x", b"owner")
    (tmp_path / "y.sqlite3").write_bytes(b"not a database at all" * 100)
    with pytest.raises(TopicsStoreError):
        SqliteTopicStore(tmp_path, "y", b"owner")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TopicsStoreError):
        SqliteTopicStore(tmp_path / "file", "x", b"owner")
