"""A broker's data directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.rows import batch_of

from postroad.core.protocol.orders import BrokerState, PubendState
from postroad.errors import (
    CorruptMetadataError,
    LogMissingError,
    StorageFailedError,
    StorageFormatError,
    StorageLockedError,
    WrongBrokerError,
)
from postroad.storage import open_broker_storage

BROKER = 9
PUBENDS = [BROKER << 8, BROKER << 8 | 1]


def test_a_new_directory_gives_an_empty_state(tmp_path: Path) -> None:
    """The first incarnation of a broker without a past, in a private directory."""
    storage = open_broker_storage(tmp_path / "data", BROKER, PUBENDS)
    assert storage.state == BrokerState(BROKER, 1, (PubendState(PUBENDS[0]), PubendState(PUBENDS[1])))
    assert storage.torn == ()
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    storage.close()


def test_a_broker_finds_what_it_left(tmp_path: Path) -> None:
    """Rows, metadata and the count of its starts."""
    storage = open_broker_storage(tmp_path, BROKER, PUBENDS)
    storage.logs[PUBENDS[1]].append([batch_of([5, 6], (3,))])
    storage.metadata.store([("reserved/1", b"\0\1"), ("gone", b"x")])
    storage.metadata.store([("gone", None)])
    storage.close()
    storage = open_broker_storage(tmp_path, BROKER, PUBENDS)
    pubends = (PubendState(PUBENDS[0]), PubendState(PUBENDS[1], 6, 0, ((3, 6),)))
    assert storage.state == BrokerState(BROKER, 2, pubends, (("reserved/1", b"\0\1"),))
    storage.close()


def test_a_torn_tail_is_reported(tmp_path: Path) -> None:
    """So that the broker can say it."""
    storage = open_broker_storage(tmp_path, BROKER, PUBENDS[:1])
    log = storage.logs[PUBENDS[0]]
    log.append([batch_of([5, 6])])
    file = log._active.path
    log.abandon()
    storage.close()
    with file.open("ab") as opened:
        opened.write(b"half a record")
    storage = open_broker_storage(tmp_path, BROKER, PUBENDS[:1])
    assert [(torn.file, torn.bytes_cut) for torn in storage.torn] == [(str(file), 13)]
    storage.close()


def test_a_pubend_is_opened_as_long_as_its_log_is_there(tmp_path: Path) -> None:
    """Also when the configuration names it no more: its messages may still be wanted."""
    open_broker_storage(tmp_path, BROKER, PUBENDS).close()
    storage = open_broker_storage(tmp_path, BROKER, PUBENDS[:1])
    assert [state.pubend for state in storage.state.pubends] == PUBENDS
    storage.close()


def test_a_directory_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    """The second is refused and leaves no trace."""
    storage = open_broker_storage(tmp_path, BROKER, PUBENDS)
    with pytest.raises(StorageLockedError):
        open_broker_storage(tmp_path, BROKER, PUBENDS)
    storage.close()
    storage = open_broker_storage(tmp_path, BROKER, PUBENDS)
    assert storage.state.incarnation == 2
    storage.close()


def test_another_brokers_directory_is_refused(tmp_path: Path) -> None:
    """Two brokers with one past would give out the same ticks."""
    open_broker_storage(tmp_path, BROKER, PUBENDS).close()
    with pytest.raises(WrongBrokerError, match="belongs to broker 9, not to broker 8"):
        open_broker_storage(tmp_path, 8, [8 << 8])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"format": "one", "broker": 9}', b"\xff" * 9000])
def test_a_strange_format_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Whatever it holds."""
    open_broker_storage(tmp_path, BROKER, PUBENDS).close()
    (tmp_path / "format").write_bytes(content)
    with pytest.raises(StorageFormatError):
        open_broker_storage(tmp_path, BROKER, PUBENDS)


def test_another_format_or_a_missing_format_file_is_refused(tmp_path: Path) -> None:
    """Data of a later release is not touched."""
    open_broker_storage(tmp_path, BROKER, PUBENDS).close()
    (tmp_path / "format").write_bytes(b'{"format": 2, "broker": 9}')
    with pytest.raises(StorageFormatError, match="format 2"):
        open_broker_storage(tmp_path, BROKER, PUBENDS)
    (tmp_path / "format").unlink()
    with pytest.raises(StorageFormatError, match="missing"):
        open_broker_storage(tmp_path, BROKER, PUBENDS)


def test_a_log_that_vanished_is_refused(tmp_path: Path) -> None:
    """A new empty log in its place would be a silent loss."""
    open_broker_storage(tmp_path, BROKER, PUBENDS).close()
    for file in (tmp_path / "pubends" / f"{PUBENDS[1]:016x}").glob("*.segment"):
        file.unlink()
    with pytest.raises(LogMissingError, match=str(PUBENDS[1])):
        open_broker_storage(tmp_path, BROKER, PUBENDS)


def test_a_refused_opening_lets_go_of_everything(tmp_path: Path) -> None:
    """After the damage is mended, the same process can open the directory."""
    open_broker_storage(tmp_path, BROKER, PUBENDS).close()
    file = tmp_path / "metadata.sqlite"
    whole = file.read_bytes()
    file.write_bytes(b"garbage!" * 1000)
    with pytest.raises(CorruptMetadataError):
        open_broker_storage(tmp_path, BROKER, PUBENDS)
    file.write_bytes(whole)
    open_broker_storage(tmp_path, BROKER, PUBENDS).close()


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """With our own error, not the operating system's."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailedError):
        open_broker_storage(tmp_path / "file", BROKER, PUBENDS)
