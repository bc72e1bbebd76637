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

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from postroad.errors import StorageFailedError, TrackFileError, TracksMissingError
from postroad.spark.jobs.arrow import schema_of
from postroad.spark.jobs.published import pieces, pieces_of
from postroad.storage.remote import RemotePath, path_of, read_whole, size_of
from postroad.storage.segment.disk import Disk
from postroad.tracking.files.catalog import FileName, Sort
from postroad.tracking.files.directories import merge_lock, write_durably
from postroad.tracking.files.format import FileEnd, FormatError, TrackTable, pack, unpack, unpack_end
from postroad.tracking.files.merging import merged_head, merged_rows
from postroad.tracking.files.row_index import Identity, identity_of
from postroad.tracking.files.schema import RowError, elements_of, records_of, to_table
from postroad.tracking.histories.elements import Element, Record
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.strategies import sort_ids

UNIT_BYTES_MAX: Final = 64 << 20  # of files that become one
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
class _FileGroup:
    directory: str
    names: tuple[str, ...]
    options: Options


def track_directories(sources: Sequence[str]) -> list[Path]:
    """Find the directories of tracks that sources name: each itself, its `tracks`, or those of the data directories in it."""
    found: dict[Path, None] = {}
    for source in sources:
        root = path_of(source).absolute()
        candidates = [root, root / "tracks", *sorted(root.glob("*/tracks"))]
        here = [path for path in candidates if path.is_dir() and any(path.glob("*.parquet"))]
        if not here:
            raise TracksMissingError(source)
        found.update(dict.fromkeys(here))
    return list(found)


def compact(spark: SparkSession, sources: Sequence[str], options: Options) -> list[Any]:
    """Compact tracks, in place only in local directories; returns rows of `COMPACTED`, one per unit of work."""
    directories = track_directories(sources)
    with ExitStack() as stack:
        for directory in () if options.out else directories:
            if isinstance(directory, RemotePath):
                raise StorageFailedError(str(directory), "tracks in a store cannot be replaced in place; write them elsewhere")
            stack.enter_context(merge_lock(directory, wait=True))
        units = [unit for directory in directories for unit in _units(directory, options)]
        return pieces(spark, units).mapInArrow(_work, COMPACTED).collect()


def _units(directory: Path, options: Options) -> Iterator[_FileGroup]:
    """Cut the files of a directory into runs of one incarnation, bounded in bytes."""
    names = sorted(
        (name for path in directory.glob("*.parquet") if (name := FileName.parse(path.name)) is not None),
        key=lambda name: name.order,
    )
    replaced = _find_replaced(directory, names)
    settled = [name for name in names if name.sort is not Sort.COPIES and str(name) not in replaced]
    if options.out is None:
        settled = settled[:-1]
    run: list[FileName] = []
    size = 0
    for name in settled:
        added = size_of(directory / str(name))
        if run and (name.incarnation != run[0].incarnation or size + added > UNIT_BYTES_MAX):
            yield _FileGroup(str(directory), tuple(map(str, run)), options)
            run, size = [], 0
        run.append(name)
        size += added
    if run:
        yield _FileGroup(str(directory), tuple(map(str, run)), options)


def _find_replaced(directory: Path, names: Sequence[FileName]) -> set[str]:
    """Return the files that a merged one replaces and that still lie beside it: they are dead, whoever made it."""
    found: set[str] = set()
    for name in names:
        if name.sort is Sort.MERGED:
            with suppress(FormatError, OSError), _opened(directory / str(name)) as file:  # its worker says so
                end = unpack_end(file.read_buffer(), file.size())
                found.update(end.head.replaces if isinstance(end, FileEnd) else ())
    return found


def _opened(path: Path) -> Any:
    return path.open() if isinstance(path, RemotePath) else pa.memory_map(str(path))


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
    table: TrackTable
    size: int


def _compact_unit(unit: _FileGroup) -> dict[str, Any]:
    directory = path_of(unit.directory)
    files = [_read(directory, name) for name in unit.names]
    head = files[-1].table.head
    elements, records = _rows(directory, files)
    copied = _find_copied(directory)
    apart = [element for element in elements if identity_of(element) in copied]
    joined = join([element for element in elements if identity_of(element) not in copied]) + apart
    joined = [element for element in joined if last_ms(element) >= unit.options.expire_ms]
    outcome: dict[str, Any] = {
        "directory": unit.directory,
        "broker": head.broker,
        "incarnation": head.incarnation,
        "files": len(files),
        "elements": len(elements),
        "elements_left": len(joined),
        "bytes": sum(file.size for file in files),
    }
    if unit.options.out is None and len(files) == 1 and len(joined) == len(elements):
        return outcome | {"files_left": 1, "bytes_left": files[0].size}
    return outcome | {"files_left": 1, "bytes_left": _write(unit, directory, files, joined, records)}


def _rows(directory: Path, files: Sequence[_File]) -> tuple[list[Element], list[Record]]:
    """Return the elements of files, and their records but for those that a later one supersedes."""
    rows = merged_rows([file.table for file in files])
    try:
        return list(elements_of(rows)), list(records_of(rows))
    except RowError as error:
        raise TrackFileError(str(directory / files[0].name), str(error)) from error


def _find_copied(directory: Path) -> set[Identity]:
    """Return the elements of which copies are there: they keep their names, so that readers know the one for the other."""
    names = [path.name for path in directory.glob("*.parquet")]
    copies = [name for name in names if (parsed := FileName.parse(name)) is not None and parsed.sort is Sort.COPIES]
    found: set[Identity] = set()
    for name in copies:
        with suppress(TrackFileError):  # the broker replaced it; what it copied lives on, and is in no file that we touch
            found.update(identity_of(element) for element in _rows(directory, [_read(directory, name)])[0])
    return found


def _write(
    unit: _FileGroup, directory: Path, files: Sequence[_File], joined: Sequence[Element], records: Sequence[Record]
) -> int:
    """Write the result and remove what it replaces; return its size."""
    names = [name for file in files if (name := FileName.parse(file.name)) is not None]
    present = {path.name for path in directory.glob("*.parquet")}
    head = merged_head([file.table for file in files], names, present)
    target = str(FileName(head.incarnation, head.sequence, Sort.MERGED))
    kept_from_ms = max(unit.options.expire_ms, *(file.table.head.kept_from_ms for file in files))
    replaces = tuple(name for name in head.replaces if name != target)
    head = msgspec.structs.replace(head, kept_from_ms=kept_from_ms, replaces=replaces)
    data, _ = pack(head, to_table(head.stamp, joined, records))
    out = unit.options.out
    where = directory if out is None else Path(out) / f"broker-{head.broker}" / "tracks"
    where.mkdir(parents=True, exist_ok=True)
    # Under a name of its own until it is whole: a broker that starts here removes what its former life left unfinished.
    write_durably(where / target, where / f".{target}.{os.getpid()}.compact", data, Disk())
    if out is None:
        for file in files:
            if file.name != target:
                (directory / file.name).unlink(missing_ok=True)
    return sum(map(len, data))


def _read(directory: Path, name: str) -> _File:
    path = directory / name
    try:
        data = read_whole(path)
        table = unpack(data)
        table.whole()
        return _File(name, table, data.size)
    except (FormatError, OSError) as error:
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
