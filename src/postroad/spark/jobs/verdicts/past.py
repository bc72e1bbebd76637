"""Whether the evidence that earlier audits read is still what it was, without reading it again.

A file that is finished never changes. So its size and the time of its last change are noted before it is read, and compared
later: a file that was written to, replaced or removed is noticed. A broker removes files for good reasons, and says so: a merged
file stands for others, the record beside the tracks names the last one that was dropped, and a log marks what it released. A bit
that rots on the disk changes neither size nor time; only an audit that reads everything notices that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import SparkSession

from postroad.spark.jobs.filesystems import place
from postroad.spark.jobs.published import LogFiles, Published
from postroad.spark.jobs.tracks import FileHead, Tracks, dropped_to, order_of, track_files
from postroad.storage.remote import is_uri
from postroad.storage.segment.recovery import SUFFIX

Identities: TypeAlias = dict[str, tuple[int, int]]

LAKE_FILES: Final = "day=*/*/*.parquet"
COPIES: Final = ".open.parquet"


def look(spark: SparkSession, sources: Sequence[str], lake: str | None, published: Published | None) -> Identities:
    """Return size and time of change of everything that an audit reads and that does not change any more."""
    paths = [path for path in track_files(sources) if not path.endswith(COPIES)]
    if lake is not None:
        paths += [each.path for each in place(spark, lake).listed(LAKE_FILES)]
    if isinstance(published, LogFiles):
        paths += _closed_segments(published)
    return dict(_identify(spark, paths))


def _closed_segments(published: LogFiles) -> Iterator[str]:
    for path in {part.segment.path for part in published.parts if part.segment.trailer is not None}:
        yield str(path)


def _identify(spark: SparkSession, paths: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    paths = list(paths)
    far = {path for path in paths if is_uri(path)}
    for root in sorted({path.rpartition("/")[0] for path in far}):
        yield from ((each.path, (each.size, 0)) for each in place(spark, root).listed("*") if each.path in far)
    for path in (each for each in paths if each not in far):
        try:
            found = Path(path).stat()
        except FileNotFoundError:  # a broker that runs removes files
            continue
        yield path, (found.st_size, found.st_mtime_ns)


def changed_files(former: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return files that are not what they were."""
    return sorted(path for path, identity in now.items() if path in former and former[path] != identity)


def missing_files(former: Iterable[str], now: Mapping[str, tuple[int, int]], tracks: Tracks, published: Published) -> list[str]:
    """Return files that were there, are gone, and are not accounted for by those who may remove them."""
    gone = sorted(path for path in former if path not in now)
    released = {hole.pubend: hole.hi for hole in published.absent if hole.known}
    return [
        path for path in gone if not (_is_released(path, released) if path.endswith(SUFFIX) else _is_replaced(path, tracks.files))
    ]


def _is_released(path: str, released: Mapping[int, int]) -> bool:
    """Say whether a segment lies in what its log released; its name is the tick that it follows on."""
    file = Path(path)
    base, pubend = int(file.name.removesuffix(SUFFIX), 16), int(file.parent.name, 16)
    return base < released.get(pubend, -1)


def _is_replaced(path: str, files: Sequence[FileHead]) -> bool:
    """Say whether a merged file covers a track file, or its broker dropped it."""
    order = order_of(path)
    if order is None:
        return False
    directory = path.rpartition("/")[0]
    if not is_uri(directory) and order <= (dropped_to(directory) or (-1, -1)):
        return True
    merged = (file for file in files if file.directory == directory and file.replaces)
    return any((order_of(file.previous) or (-1, -1)) < order <= file.order for file in merged)
