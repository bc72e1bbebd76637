"""`compact`: many small elements of one history become few full ones (the paper's future work, section 7).

Blooms of one history with the same m, k and n are joined bit by bit as long as their counts together stay within n: the union of
two blooms is the bloom of the union, so no answer gets worse than that of a bloom that was filled from the start. Only neighbours
in time are joined, and their ranges become one that spans both, so an id meets no more elements than before. Elements that keep
ids are joined up to the most ids an element takes. Records keep only what a later one does not supersede.

The unit of work is a run of files of one incarnation in one directory. Its result is one file under a new name whose head names
those it replaces; they are removed only when it is durable. Readers pass over replaced files, so at no moment, also after a crash
at any moment, is a row missing or counted twice. Copies of unfinished elements and the newest file are left alone: the broker
may be at work.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from postroad.core.tracking.elements import Element, Farewell, Horizon, Record, Span
from postroad.core.tracking.settings import Strategy, TrackingSettings
from postroad.core.tracking.strategies import sort_ids
from postroad.errors import StorageFailedError, TrackFileError, TracksMissingError
from postroad.spark.jobs.arrow import schema_of
from postroad.spark.jobs.published import pieces, pieces_of
from postroad.storage.tracks.catalog import FileName, Sort
from postroad.storage.tracks.format import FormatError, Head, pack, unpack
from postroad.storage.tracks.index import Identity, identity_of
from postroad.storage.tracks.schema import RowError, elements_of, records_of, to_table

UNIT_BYTES_MAX: Final = 64 << 20  # of files that become one
LOCK_NAME: Final = ".merge.lock"
IDS_MAX: Final = TrackingSettings().ids_max
SINGLETONS_MAX: Final = TrackingSettings().singletons_max
COMPACTED: Final = (
    "directory string, broker long, incarnation long, files long, files_left long, elements long, elements_left long, "
    "bytes long, bytes_left long, problem string"
)


@dataclass(frozen=True, slots=True)
class Options:
    """`expire_ms`: elements and records that end before it are dropped. `out`: where to write, in place if None."""

    expire_ms: int = 0
    out: str | None = None


@dataclass(frozen=True, slots=True)
class _Unit:
    directory: str
    names: tuple[str, ...]
    options: Options


def track_directories(sources: Sequence[str]) -> list[Path]:
    """Find the directories of tracks that sources name: each itself, its `tracks`, or those of the data directories in it."""
    found: dict[Path, None] = {}
    for source in sources:
        root = Path(source).absolute()
        candidates = [root, root / "tracks", *sorted(root.glob("*/tracks"))]
        here = [path for path in candidates if path.is_dir() and any(path.glob("*.parquet"))]
        if not here:
            raise TracksMissingError(source)
        found.update(dict.fromkeys(here))
    return list(found)


def compact(spark: SparkSession, sources: Sequence[str], options: Options) -> list[Any]:
    """Compact the tracks in local directories; returns rows of `COMPACTED`, one per unit of work."""
    directories = track_directories(sources)
    with locked([] if options.out else directories):
        units = [unit for directory in directories for unit in _units(directory, options)]
        return pieces(spark, units).mapInArrow(_work, COMPACTED).collect()


@contextmanager
def locked(directories: Iterable[Path]) -> Iterator[None]:
    """Keep other compactions from these directories meanwhile."""
    descriptors: list[int] = []
    try:
        for directory in directories:
            descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            descriptors.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _units(directory: Path, options: Options) -> Iterator[_Unit]:
    """Cut the files of a directory into runs of one incarnation, bounded in bytes."""
    names = sorted(
        (name for path in directory.glob("*.parquet") if (name := FileName.parse(path.name)) is not None),
        key=lambda name: name.order,
    )
    settled = [name for name in names if name.sort is not Sort.COPIES]
    if options.out is None:
        settled = settled[:-1]
    run: list[FileName] = []
    size = 0
    for name in settled:
        added = (directory / str(name)).stat().st_size
        if run and (name.incarnation != run[0].incarnation or size + added > UNIT_BYTES_MAX):
            yield _Unit(str(directory), tuple(map(str, run)), options)
            run, size = [], 0
        run.append(name)
        size += added
    if run:
        yield _Unit(str(directory), tuple(map(str, run)), options)


# --- in the workers -------------------------------------------------------------------------------------------------------


def _work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for unit in pieces_of(batches):
        try:
            row = _compact_unit(unit)
        except (TrackFileError, StorageFailedError) as error:
            row = {"directory": unit.directory, "files": len(unit.names), "problem": str(error)}
        yield pa.RecordBatch.from_pylist([row], schema=_COMPACTED_SCHEMA)


_COMPACTED_SCHEMA: Final = schema_of(
    [
        pa.field("directory", pa.string()),
        *(pa.field(name, pa.int64()) for name in COMPACTED.replace(" long", "").replace(" string", "").split(", ")[1:-1]),
        pa.field("problem", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    head: Head
    elements: tuple[Element, ...]
    records: tuple[Record, ...]
    size: int


def _compact_unit(unit: _Unit) -> dict[str, Any]:
    directory = Path(unit.directory)
    files = [_read(directory, name) for name in unit.names]
    replaced = {name for file in files for name in file.head.replaces}
    living = [file for file in files if file.name not in replaced]
    elements = [element for file in living for element in file.elements]
    copied = _copied(directory)
    apart = [element for element in elements if identity_of(element) in copied]
    joined = join([element for element in elements if identity_of(element) not in copied]) + apart
    joined = [element for element in joined if last_ms(element) >= unit.options.expire_ms]
    records = condense([record for file in living for record in file.records])
    outcome = {
        *(("directory", unit.directory), ("broker", living[-1].head.broker), ("incarnation", living[-1].head.incarnation)),
        *(("files", len(files)), ("elements", len(elements)), ("elements_left", len(joined))),
        ("bytes", sum(file.size for file in files)),
    }
    return dict(outcome) | _write(unit, directory, files, living, joined, records)


def _copied(directory: Path) -> set[Identity]:
    """Return the elements of which copies are there: they keep their names, so that readers know the one for the other."""
    names = [path.name for path in directory.glob("*.parquet")]
    copies = [name for name in names if (parsed := FileName.parse(name)) is not None and parsed.sort is Sort.COPIES]
    found: set[Identity] = set()
    for name in copies:
        with suppress(TrackFileError):  # the broker replaced it; what it copied lives on, and is in no file that we touch
            found.update(identity_of(element) for element in _read(directory, name).elements)
    return found


def _write(
    unit: _Unit,
    directory: Path,
    files: Sequence[_File],
    living: Sequence[_File],
    joined: Sequence[Element],
    records: Sequence[Record],
) -> dict[str, Any]:
    """Write the result and remove what it replaces, unless nothing would change."""
    elements = sum(len(file.elements) for file in living)
    out = unit.options.out
    if out is None and len(files) == 1 and len(joined) == elements:
        return {"files_left": 1, "bytes_left": files[0].size}
    newest = FileName.parse(living[-1].name)
    assert newest is not None
    target = FileName(newest.incarnation, newest.sequence, Sort.MERGED)
    first, last = living[0].head, living[-1].head
    kept_from_ms = max(unit.options.expire_ms, *(file.head.kept_from_ms for file in living))
    names = dict.fromkeys([*(name for file in files for name in file.head.replaces), *unit.names])
    head = Head(
        broker=last.broker,
        incarnation=last.incarnation,
        sequence=last.sequence,
        written_ms=last.written_ms,
        kept_from_ms=kept_from_ms,
        complete=last.complete,
        previous=first.previous,
        replaces=tuple(name for name in names if name != str(target)),
    )
    data, _ = pack(head, to_table(head.stamp, joined, records))
    where = directory if out is None else Path(out) / f"broker-{last.broker}" / "tracks"
    _make_durable(where / str(target), data)
    if out is None:
        for name in unit.names:
            if name != str(target):
                (directory / name).unlink(missing_ok=True)
    return {"files_left": 1, "bytes_left": sum(map(len, data))}


def _make_durable(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Make a file appear whole, or raise. Until then it has a name that a broker at work in the directory does not know."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.compact")
    try:
        with new.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StorageFailedError(str(path), error.strerror or str(error)) from error


def _read(directory: Path, name: str) -> _File:
    path = directory / name
    try:
        data = pa.py_buffer(path.read_bytes())
        table = unpack(data)
        whole = pa.Table.from_batches([table.whole()])
        return _File(name, table.head, tuple(elements_of(whole)), tuple(records_of(whole)), len(data))
    except (FormatError, RowError, OSError) as error:
        raise TrackFileError(str(path), str(error)) from error


# --- joining --------------------------------------------------------------------------------------------------------------


def join(elements: Sequence[Element]) -> list[Element]:
    """Join the elements of each history: neighbours in time, as long as they fit together."""
    by_history: dict[Any, list[Element]] = defaultdict(list)
    for element in elements:
        form = (element.m, element.k, element.n, element.neighbours) if element.bits is not None else ()
        by_history[element.key, form].append(element)
    joined: list[Element] = []
    for mine in by_history.values():
        mine.sort(key=lambda element: (first_ms(element), element.number))
        run = [mine[0]]
        for element in mine[1:]:
            if not _fit(run, element):
                joined.append(_union(run))
                run = []
            run.append(element)
        joined.append(_union(run))
    return sorted(joined, key=lambda element: (element.incarnation, element.number))


def _fit(run: Sequence[Element], element: Element) -> bool:
    most = element.n if element.bits is not None else IDS_MAX
    count = sum(each.count for each in run) + element.count
    late = sum(len(each.singletons) for each in run) + len(element.singletons)
    return count <= most and late <= SINGLETONS_MAX


def _union(run: Sequence[Element]) -> Element:
    """Make one element of several, with the name of the newest."""
    if len(run) == 1:
        return run[0]
    newest = max(run, key=lambda element: element.number)
    ranged = [element for element in run if element.from_ms <= element.to_ms]
    late = np.unique(np.concatenate([element.singletons for element in run]))
    low = min((element.from_ms for element in ranged), default=newest.from_ms)
    high = max((element.to_ms for element in ranged), default=newest.to_ms)
    bits, ids, strategy = None, None, newest.strategy
    if newest.bits is not None:
        bits = np.bitwise_or.reduce([np.frombuffer(element.bits, np.uint8) for element in run if element.bits is not None])
    else:
        ids = sort_ids(np.concatenate([element.ids for element in run if element.ids is not None]))
        strategy = Strategy.EXACT
    return replace(
        newest,
        strategy=strategy,
        opened_ms=min(element.opened_ms for element in run),
        closed_ms=max(element.closed_ms for element in run),
        from_ms=low,
        to_ms=high,
        singletons=late[(late < low) | (late > high)],
        count=sum(element.count for element in run),
        bits=bits,
        ids=ids,
    )


def first_ms(element: Element) -> int:
    if element.from_ms <= element.to_ms:
        return element.from_ms
    return int(element.singletons.min(initial=1 << 62))


def last_ms(element: Element) -> int:
    """Return the newest timestamp in an element."""
    late = int(element.singletons.max(initial=-1))
    return max(element.to_ms, late) if element.from_ms <= element.to_ms else late


def condense(records: Sequence[Record]) -> list[Record]:
    """Keep of spans and horizons the newest, of equal records one."""
    newest: dict[Any, Record] = {}
    for record in records:
        match record:
            case Span():
                name: Any = ("span", record.number, record.pubend, record.subscriber)
            case Horizon():
                name = ("horizon", record.pubend)
            case Farewell():
                name = ("farewell",)
            case _:
                name = record
        newest.pop(name, None)
        newest[name] = record
    return list(newest.values())
