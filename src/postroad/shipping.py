"""Copy what brokers wrote to another place: closed segments and tracks, verified, so that a cluster can read them there.

    <archive>/broker-7/format, metadata.sqlite
    <archive>/broker-7/pubends/<16 hex digits>/<16 hex digits>.segment, released, durable
    <archive>/broker-7/tracks/*.parquet, and the record of their chain beside
    <archive>/broker-7/shipped/<time>-<random>.json       journals: name, size and digest of what was shipped

The copy has the layout of a directory of data directories, so every job reads it (`--data <archive>`).

A file is checked before it is sent (each record of a segment, the checksum of a track file), read back afterwards and compared.
Only then a journal says that it is there. A run that is interrupted, at any moment, leaves whole objects which the next run reads
and writes down, or sends again. What a journal has with the same size is not touched again, so running twice costs two listings.
Files whose content changes (marks, the record of the chain, metadata) are sent last, if their digest changed: they never promise
what is not there yet. Nothing is ever removed, except copies of unfinished elements that the broker has replaced.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from postroad.core.protocol.packets import pubend_broker
from postroad.errors import LogMissingError, PostroadError, StorageFailedError
from postroad.storage.directory import FORMAT_NAME, METADATA_NAME, PUBENDS_NAME, broker_of, logs_in
from postroad.storage.remote import RemotePath, path_of, read_whole, size_of
from postroad.storage.segment.durable_mark import MARK_NAME, RELEASED_NAME
from postroad.storage.segment.external_reader import LogView, observe, sound_parts
from postroad.storage.segment.reader import Segment
from postroad.storage.sqlite.external_reader import back_up
from postroad.tracking.files.catalog import FileName, Sort
from postroad.tracking.files.directories import chain_path
from postroad.tracking.files.format import FormatError, unpack

JOURNALS: Final = "shipped"
TRACKS: Final = "tracks"
JOURNAL_FILES_MAX: Final = 32  # journals of a broker, before they are made one
BATCH_FILES: Final = 16  # shipped between two journals: what an interrupted run reads again at most
WORKERS: Final = 4
_CHECKED_BYTES: Final = 64 << 20


class Shipped(msgspec.Struct, frozen=True):
    """A file as it was shipped, by its name below the broker's directory."""

    name: str
    size: int
    digest: str


class Problem(NamedTuple):
    file: str
    reason: str


@dataclass(slots=True)
class Outcome:
    """What a run did: files and bytes that it sent, files that were there, and what could not be shipped."""

    files: int = 0
    bytes: int = 0
    present: int = 0
    problems: tuple[Problem, ...] = ()

    def add(self, other: Outcome) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.present += other.present
        self.problems += other.problems


class _File(NamedTuple):
    """A file to ship: its name there, how to get its bytes (checked, or an error), and its size if that is known."""

    name: str
    size: int
    read: Callable[[], pa.Buffer]


def ship(sources: Sequence[str], archive: str, *, unfinished: bool = False) -> Outcome:
    """Ship the data directories that sources name: each itself, or those in it.

    `unfinished` ships what is durable of open segments as well, and copies of unfinished elements of tracks.
    """
    total = Outcome()
    for directory in data_directories(sources):
        broker = _broker(directory)
        total.add(_Shipment(directory, path_of(archive).absolute() / f"broker-{broker}").run(unfinished=unfinished))
    return total


def check(archive: str) -> Outcome:
    """Read everything that was shipped to an archive, and compare it with the digests of the journals."""
    total = Outcome()
    root = path_of(archive).absolute()
    for directory in sorted(path for path in root.iterdir() if (path / JOURNALS).is_dir()):
        known = _journal_entries(directory)
        for shipped in known.values():
            try:
                found = xxh3_128_hexdigest(memoryview(read_whole(directory / shipped.name)))
                reason = "" if found == shipped.digest else "it is not what was shipped"
            except FileNotFoundError:
                reason = "it is missing"
            total.present += 1
            if reason:
                total.problems += (Problem(str(directory / shipped.name), reason),)
    return total


def data_directories(sources: Sequence[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for source in sources:
        root = Path(source).absolute()
        here = [path for path in (root, *sorted(root.glob("*"))) if (path / FORMAT_NAME).is_file() or logs_in(path)]
        if not here:
            raise StorageFailedError(source, "there is no data directory of a broker")
        found.update(dict.fromkeys(here))
    return list(found)


def _broker(directory: Path) -> int:
    broker = broker_of(directory)
    return next(pubend_broker(pubend) for pubend in logs_in(directory)) if broker is None else broker


class _Shipment:
    """What of one data directory is shipped in one run."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._known = _journal_entries(target)
        self._new: list[Shipped] = []
        self._outcome = Outcome()

    def run(self, *, unfinished: bool) -> Outcome:
        chain = _bytes_or_none(chain_path(self._source / TRACKS))  # before the files: then none of them is behind it
        logs = self._logs(unfinished=unfinished)
        self._send(file for view, _ in logs for file in self._segments(view, unfinished=unfinished))
        self._send(self._tracks(unfinished=unfinished))
        changing = [(FORMAT_NAME, _bytes_or_none(self._source / FORMAT_NAME)), (chain_path(Path(TRACKS)).name, chain)]
        for view, marks in logs:
            changing += [(f"{PUBENDS_NAME}/{view.path.name}/{name}", data) for name, data in marks]
        self._send(_File(name, -1, partial(pa.py_buffer, data)) for name, data in changing if data is not None)
        if (self._source / METADATA_NAME).is_file():
            self._send([_File(METADATA_NAME, -1, partial(_metadata, self._source / METADATA_NAME))])
        if unfinished:
            self._remove_replaced_copies()
        return self._outcome

    def _logs(self, *, unfinished: bool) -> list[tuple[LogView, list[tuple[str, bytes | None]]]]:
        """Look at the logs, and at their marks before that."""
        found = []
        for pubend, path in logs_in(self._source).items():
            marks = [(RELEASED_NAME, _bytes_or_none(path / RELEASED_NAME))]
            if unfinished:
                marks.append((MARK_NAME, _bytes_or_none(path / MARK_NAME)))
            try:
                view = observe(path, pubend, tolerant=True)
            except LogMissingError as error:
                self._fail(str(path), str(error))
                continue
            for hole in view.holes:
                self._fail(str(path), str(hole.error))
            found.append((view, marks))
        return found

    def _segments(self, view: LogView, *, unfinished: bool) -> Iterator[_File]:
        for segment in view.segments:
            name = f"{PUBENDS_NAME}/{view.path.name}/{segment.path.name}"
            if segment.trailer is not None:
                size = segment.path.stat().st_size if segment.path.exists() else 0
                yield _File(name, size, partial(_sound_segment, view.pubend, segment))
            elif unfinished and segment.end > segment.start:
                yield _File(name, segment.end, partial(_sound_segment, view.pubend, segment))

    def _tracks(self, *, unfinished: bool) -> Iterator[_File]:
        for path in sorted((self._source / TRACKS).glob("*.parquet")):
            name = FileName.parse(path.name)
            if name is None or (name.sort is Sort.COPIES and not unfinished):
                continue
            try:
                size = path.stat().st_size
            except FileNotFoundError:  # replaced by a merged one meanwhile, which the next run ships
                continue
            yield _File(f"{TRACKS}/{path.name}", size, partial(_sound_tracks, path))

    def _send(self, files: Iterable[_File]) -> None:
        """Ship files, several at once; a journal says so after every few of them."""
        wanted = []
        for file in files:
            known = self._known.get(file.name)
            if known is not None and known.size == file.size:
                self._outcome.present += 1
            else:
                wanted.append(file)
        for start in range(0, len(wanted), BATCH_FILES):
            with ThreadPoolExecutor(WORKERS) as pool:
                done = list(pool.map(self._ship, wanted[start : start + BATCH_FILES]))
            self._write_journal([shipped for shipped in done if shipped is not None])

    def _ship(self, file: _File) -> Shipped | None:
        """Send a file unless it is there, and read it back; return None if there is nothing new to write down."""
        try:
            data = file.read()
        except FileNotFoundError:
            if file.name.startswith(PUBENDS_NAME):
                self._fail(file.name, "the segment was released before it was shipped")
            return None
        except (PostroadError, FormatError, OSError) as error:
            self._fail(file.name, str(error))
            return None
        shipped = Shipped(file.name, data.size, xxh3_128_hexdigest(memoryview(data)))
        if self._known.get(file.name) == shipped:
            self._outcome.present += 1
            return None
        target = self._target / file.name
        if not _holds(target, shipped):
            _write(target, data)
            self._outcome.files += 1
            self._outcome.bytes += data.size
            if not _holds(target, shipped):
                self._fail(str(target), "it was written, but reads back differently")
                return None
        return shipped

    def _write_journal(self, entries: list[Shipped]) -> None:
        if not entries:
            return
        self._known |= {entry.name: entry for entry in entries}
        _write_journal(self._target, entries)
        listed = _journals(self._target)
        if len(listed) > JOURNAL_FILES_MAX:
            _write_journal(self._target, list(self._known.values()))
            for path in listed:
                path.unlink(missing_ok=True)

    def _remove_replaced_copies(self) -> None:
        here = {path.name for path in (self._source / TRACKS).glob("*.parquet")}
        for path in (self._target / TRACKS).glob("*.parquet"):
            name = FileName.parse(path.name)
            if name is not None and name.sort is Sort.COPIES and path.name not in here:
                path.unlink(missing_ok=True)

    def _fail(self, file: str, reason: str) -> None:
        self._outcome.problems += (Problem(file, reason),)


# --- bytes ---------------------------------------------------------------------------------------------------------------


def _sound_segment(pubend: int, segment: Segment) -> pa.Buffer:
    """Return the bytes of a segment, of an open one its durable part, after a look at every record."""
    holes = sound_parts(pubend, segment, _CHECKED_BYTES)[1]
    if holes:
        raise holes[0].error
    with segment.path.open("rb") as file:
        return pa.py_buffer(file.read() if segment.trailer is not None else file.read(segment.end))


def _sound_tracks(path: Path) -> pa.Buffer:
    data = pa.py_buffer(path.read_bytes())
    unpack(data).whole()
    return data


def _metadata(path: Path) -> pa.Buffer:
    with tempfile.TemporaryDirectory(prefix="postroad-ship-") as directory:
        copy = Path(directory) / path.name
        back_up(path, copy)
        return pa.py_buffer(copy.read_bytes())


def _bytes_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _holds(target: Path, shipped: Shipped) -> bool:
    """Say whether these bytes are there, by reading them."""
    try:
        return size_of(target) == shipped.size and xxh3_128_hexdigest(memoryview(read_whole(target))) == shipped.digest
    except FileNotFoundError:
        return False


def _write(target: Path, data: pa.Buffer) -> None:
    """Make a file appear whole."""
    if isinstance(target, RemotePath):
        target.write_bytes(data)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(target)


# --- journals ------------------------------------------------------------------------------------------------------------


def _journals(target: Path) -> list[Path]:
    return sorted((target / JOURNALS).glob("*.json"))


def _journal_entries(target: Path) -> dict[str, Shipped]:
    """Return what was shipped, by name; what a later journal says counts."""
    found: dict[str, Shipped] = {}
    for path in _journals(target):
        try:
            entries = msgspec.json.decode(path.read_bytes(), type=tuple[Shipped, ...])
        except msgspec.MsgspecError as error:
            raise StorageFailedError(str(path), f"it is not a journal of shipped files ({error})") from error
        found |= {entry.name: entry for entry in entries}
    return found


def _write_journal(target: Path, entries: Sequence[Shipped]) -> None:
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    _write(target / JOURNALS / name, pa.py_buffer(msgspec.json.encode(tuple(entries))))
