"""A broker's data directory: one call opens everything in it.

lock                        held while a process uses the directory
format                      one JSON object: the version of this layout, and the broker it belongs to
reserve                     room for metadata when the disk is full
metadata.sqlite             incarnation, durable subscriptions, cursors, reserved horizons, holds
pubends/<16 hex digits>/    the log of one pubend
    lock
    <16 hex digits>.segment named by the tick it follows on
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from postroad.core.broker.incarnations import assumed_base, started_incarnation
from postroad.core.protocol.orders import BrokerState
from postroad.errors import LogMissingError, StorageFormatError, WrongBrokerError
from postroad.storage.reserve import Reserve
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.log import LOCK_NAME, LogOptions, SegmentLog, write_error
from postroad.storage.segment.recovery import SUFFIX, TornTail
from postroad.storage.sqlite.metadata import SqliteMetadata

FORMAT_VERSION: Final = 1
FORMAT_NAME: Final = "format"
METADATA_NAME: Final = "metadata.sqlite"
PUBENDS_NAME: Final = "pubends"
_FORMAT_BYTES_MAX: Final = 4096
_LOG_NAME: Final = re.compile(r"[0-9a-f]{16}")


class _Format(msgspec.Struct, forbid_unknown_fields=False):
    format: int
    broker: int


@dataclass(frozen=True, slots=True)
class BrokerStorage:
    """Everything a broker has on disk, open and locked until `close()`."""

    path: Path
    state: BrokerState
    logs: Mapping[int, SegmentLog]
    metadata: SqliteMetadata
    torn: tuple[TornTail, ...]  # unfinished appends that were cut
    reserve: Reserve
    _resources: ExitStack

    def close(self) -> None:
        self._resources.close()


def open_broker_storage(
    path: Path, broker_id: int, pubends: Sequence[int], options: LogOptions | None = None, disk: Disk | None = None
) -> BrokerStorage:
    """Open the data directory of a broker, or make it, and count a new incarnation.

    A pubend that was hosted once is opened also when `pubends` does not name it any more: its log may still hold messages.
    """
    disk = disk or Disk()
    with ExitStack() as stack:
        try:
            disk.make_directory(path)
            reserve = Reserve(path)
            reserve.make_room()
            stack.callback(os.close, disk.lock(path / LOCK_NAME))
            _check_format(path, broker_id, disk)
        except OSError as error:
            raise write_error(error, path) from error
        metadata = SqliteMetadata(path / METADATA_NAME)
        stack.callback(metadata.close)
        disk.sync_directory(path)
        logs = _open_logs(path, metadata, pubends, options, disk, stack)
        count = metadata.next_incarnation()
        damaged = metadata.damaged()
        stored = (*metadata.load(), *assumed_base(damaged, int(time.time())))
        incarnation = started_incarnation(count, dict(stored))
        state = BrokerState(
            broker=broker_id,
            incarnation=incarnation,
            pubends=tuple(log.state() for log in logs.values()),
            metadata=stored,
            damaged=damaged,
        )
        torn = tuple(log.torn for log in logs.values() if log.torn is not None)
        reserve.take()
        return BrokerStorage(path, state, logs, metadata, torn, reserve, stack.pop_all())


def broker_of(path: Path) -> int | None:
    """Return whose data directory this is, None where no broker has been; the directory may be in use."""
    file = path / FORMAT_NAME
    return _read_format(file).broker if file.is_file() else None


def log_path(directory: Path, pubend: int) -> Path:
    return directory / f"{pubend:016x}"


def find_logs(path: Path) -> dict[int, Path]:
    """Return the logs in a data directory by pubend, for those who only read: nothing is opened or locked."""
    file = path / FORMAT_NAME
    if not file.is_file():
        raise StorageFormatError(str(path), "this is not the data directory of a broker (it has no file named format)")
    _check_version(path, _read_format(file))
    return logs_in(path)


def logs_in(path: Path) -> dict[int, Path]:
    """Return the logs below a directory by pubend, whatever else it holds."""
    found = sorted(each for each in (path / PUBENDS_NAME).glob("*") if _LOG_NAME.fullmatch(each.name))
    return {int(each.name, 16): each for each in found if any(each.glob(f"*{SUFFIX}"))}


def _open_logs(
    path: Path,
    metadata: SqliteMetadata,
    pubends: Sequence[int],
    options: LogOptions | None,
    disk: Disk,
    stack: ExitStack,
) -> dict[int, SegmentLog]:
    directory, known = path / PUBENDS_NAME, metadata.pubends()
    for pubend in known:
        if not any(log_path(directory, pubend).glob(f"*{SUFFIX}")):
            raise LogMissingError(str(directory), pubend)
    logs: dict[int, SegmentLog] = {}
    for pubend in sorted({*known, *pubends, *logs_in(path)}):
        logs[pubend] = SegmentLog.open(log_path(directory, pubend), pubend, options, disk, tolerant=True)
        stack.callback(logs[pubend].close)
    metadata.add_pubends([pubend for pubend in logs if pubend not in known])
    return logs


def _check_format(path: Path, broker_id: int, disk: Disk) -> None:
    file = path / FORMAT_NAME
    if not file.exists():
        if (path / METADATA_NAME).exists() or (path / PUBENDS_NAME).exists():
            raise StorageFormatError(str(file), "the file is missing, but the directory contains data of a broker")
        _write_format(file, broker_id, disk)
        return
    found = _read_format(file)
    _check_version(path, found)
    if found.broker != broker_id:
        raise WrongBrokerError(str(path), broker_id, found.broker)


def _check_version(path: Path, found: _Format) -> None:
    if found.format != FORMAT_VERSION:
        reason = f"the data have format {found.format}; this release reads format {FORMAT_VERSION}"
        raise StorageFormatError(str(path), reason)


def _read_format(file: Path) -> _Format:
    with file.open("rb") as opened:
        data = opened.read(_FORMAT_BYTES_MAX)
    try:
        return msgspec.json.decode(data, type=_Format)
    except msgspec.MsgspecError as error:
        raise StorageFormatError(str(file), f"this is not the format file of a broker ({error})") from error


def _write_format(file: Path, broker_id: int, disk: Disk) -> None:
    new = file.with_suffix(".new")
    descriptor = disk.create(new)
    try:
        disk.write(descriptor, [msgspec.json.encode(_Format(FORMAT_VERSION, broker_id)) + b"\n"], 0)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(new, file)
    disk.sync_directory(file.parent)
