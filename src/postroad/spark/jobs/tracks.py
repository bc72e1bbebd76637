"""The tracks of many brokers as DataFrames: which elements there are, which records, and where they have holes.

`open_tracks` lists files, reads every row without its ids and bits, keeps of each element the newest copy, and passes over files
that a compacted one replaces. What cannot be read is an error that names the file, or, on request, a hole that the result states.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from typing import Final, Literal, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.errors import TrackFileError, TracksMissingError
from postroad.spark.cluster import parallelism
from postroad.spark.jobs import trackfiles
from postroad.spark.jobs.trackfiles import COPIES_SUFFIX, DAMAGED, FILE, GONE, INDEX
from postroad.storage.directory import broker_of, logs_in
from postroad.storage.remote import matching, path_of
from postroad.tracking.files.catalog import FileName
from postroad.tracking.files.chain import ChainEnds, breaks, decode_ends, is_named
from postroad.tracking.files.directories import read_chain
from postroad.tracking.files.schema import HISTORY_KINDS
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.queries.answers import HoleKind
from postroad.types import MILLISECONDS_MAX

OnDamage: TypeAlias = Literal["fail", "skip"]

TRACKS_NAME: Final = "tracks"
LATE_MS: Final = TrackingSettings().late_ms
FILES_PER_TASK: Final = 64
LISTINGS_MAX: Final = 5  # a broker that runs removes files while we read
ABSENT: Final = "absent"
MISSING: Final = "missing"
UNKNOWN_BROKER: Final = -1
RECORD: Final = (  # the columns of records
    *("broker", "incarnation", "sequence", "kind", "subscriber", "number", "opened_ms", "closed_ms", "from_ms", "to_ms"),
    *("neighbours", "pubend", "from_tick", "to_tick", "filter"),
)
HISTORY: Final = ("broker", "kind", "origin", "peer", "subscriber")
_PATTERNS: Final = ("*.parquet", f"{TRACKS_NAME}/*.parquet", f"*/{TRACKS_NAME}/*.parquet")
_IDENTITY: Final = ("broker", "incarnation", "number", "kind", "origin", "peer", "subscriber", "opened_ms")
_ORDER: Final = re.compile(r"(\d+)-(\d+)(?:\.open|\.merged)?\.parquet$")


@dataclass(frozen=True, slots=True, order=True)
class TrackHole:
    """Messages with timestamps in [from_ms, to_ms] may be missing from this broker's histories though it saw them."""

    broker: int
    kind: str  # a HoleKind, or `missing` (a file) or `absent` (all tracks of the broker)
    from_ms: int
    to_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class FileHead:
    """What is known of one file."""

    path: str
    kind: str
    broker: int
    order: tuple[int, int]
    written_ms: int
    kept_from_ms: int
    previous: str
    replaces: tuple[str, ...]
    size: int
    problem: str
    digest: str
    previous_digest: str
    stands_for: tuple[str, ...]
    broken: tuple[str, ...]
    persistence_ms: int
    low_ms: int  # timestamps of the ids in its elements; low > high if there are none
    high_ms: int

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def copies(self) -> bool:
        return self.name.endswith(COPIES_SUFFIX)


@dataclass(frozen=True, slots=True)
class KnownTracks:
    """What an earlier job kept of tracks that it read, so that their files need not be read again.

    `closed_ms` says up to which moment the finished elements of each broker were counted; a merged file holds older ones as well.
    """

    heads: Mapping[str, FileHead]
    records: pa.Table
    closed_ms: Mapping[int, int]
    life_ms: int


@dataclass(frozen=True, slots=True)
class Tracks:
    """Open tracks. `elements` and `records` have the columns of a track file (docs/reference/pipeline.md), `close` frees them."""

    spark: SparkSession
    index: DataFrame
    elements: DataFrame
    records: DataFrame
    files: tuple[FileHead, ...]
    holes: tuple[TrackHole, ...]
    brokers: frozenset[int]
    doubts: tuple[str, ...] = ()  # files that should be there and are not, or are not what they were
    unchained: tuple[str, ...] = ()  # files of which nobody can say whether they were changed
    life_ms: int = 0  # the longest life of an element

    @property
    def persistence_ms(self) -> int:
        """Return the longest T_p that brokers say they have, 0 if none says it."""
        return max((file.persistence_ms for file in self.files), default=0)

    def close(self) -> None:
        self.index.unpersist()

    def of_kind(self, kind: str) -> DataFrame:
        return self.records.filter(F.col("kind") == kind)


def open_tracks(
    spark: SparkSession,
    sources: Sequence[str],
    *,
    on_damage: OnDamage = "fail",
    late_ms: int = LATE_MS,
    trackless: bool = False,
    known: KnownTracks | None = None,
) -> Tracks:
    """Open the tracks of data directories, of directories of tracks, or of globs and URIs of track files.

    With `known` only the other files are read: `elements` are those of them, `records` and `files` are of all.
    Raises `TracksMissingError` where there are none, unless `trackless` allows data directories without tracks, and
    `TrackFileError` for a damaged or missing file, unless `on_damage` is `skip`.
    """
    if trackless:
        sources = [source for source in sources if not (is_data_directory(source) and not _list_files(source))]
    ends = {directory: _chain_ends(directory) for directory in _directories(sources)}
    index, heads = _steady_index(spark, sources, known)
    heads = _with_brokers(heads)
    replaced = {f"{head.directory}/{name}" for head in heads for name in head.replaces if name != head.name}
    heads = [head for head in heads if head.path not in replaced]
    rows = index.filter(~F.col("file").isin(sorted(replaced))) if replaced else index
    elements = _elements(rows, copies=any(head.copies for head in heads))
    records = rows.filter(~F.col("kind").isin(FILE, DAMAGED, GONE, *HISTORY_KINDS))
    life_ms = _longest_life(elements)
    if known is not None:
        elements = _fresh(elements, heads, known)
        records = spark.createDataFrame(known.records).unionByName(records.select(*RECORD))
        life_ms = max(life_ms, known.life_ms)
    holes = _file_holes(heads, life_ms + late_ms)
    if on_damage == "fail" and (bad := next((hole for hole in holes if hole.kind in {HoleKind.DAMAGED, MISSING}), None)):
        index.unpersist()
        file, _, problem = bad.reason.partition(": ")
        raise TrackFileError(file, problem)
    holes += _find_dropped(heads) + _crashes(records, late_ms)
    brokers = frozenset(head.broker for head in heads if head.kind == FILE)
    doubts, unchained = _check_chains(heads, ends)
    return Tracks(spark, index, elements, records, tuple(heads), tuple(sorted(holes)), brokers, doubts, unchained, life_ms)


def _fresh(elements: DataFrame, heads: Sequence[FileHead], known: KnownTracks) -> DataFrame:
    """Leave out what merged files hold of elements that were counted already."""
    merged = sorted(head.path for head in heads if head.replaces)
    if not merged or not known.closed_ms:
        return elements
    counted_to = [part for broker, moment in sorted(known.closed_ms.items()) for part in (F.lit(broker), F.lit(moment))]
    reached = F.coalesce(F.create_map(*counted_to)[F.col("broker")], F.lit(-1))
    return elements.filter(~F.col("file").isin(merged) | (F.col("closed_ms") > reached))


def _steady_index(spark: SparkSession, sources: Sequence[str], known: KnownTracks | None) -> tuple[DataFrame, list[FileHead]]:
    """Read the index; when files vanish meanwhile, list and read again."""
    former = {} if known is None else known.heads
    for attempt in range(1, LISTINGS_MAX + 1):
        paths = track_files(sources)
        index = _read_index(spark, [path for path in paths if path not in former])
        heads = [_head(row) for row in index.filter(F.col("kind").isin(FILE, DAMAGED, GONE)).collect()]
        heads += [former[path] for path in paths if path in former]
        if attempt == LISTINGS_MAX or not any(head.kind == GONE for head in heads):
            return index, heads
        index.unpersist()
    raise AssertionError


def track_files(sources: Sequence[str]) -> list[str]:
    """Find the files of tracks that sources name."""
    found: dict[str, None] = {}
    for source in sources:
        listed = _list_files(source)
        if not listed:
            raise TracksMissingError(source)
        found.update(dict.fromkeys(listed))
    return sorted(found)


def is_data_directory(source: str) -> bool:
    """Say whether logs of brokers are here, whatever became of their tracks."""
    path = path_of(source)
    return path.is_dir() and any(logs_in(each) for each in (path, *path.glob("*")))


def _list_files(source: str) -> list[str]:
    """List a directory of tracks, a broker's data directory, a directory of data directories, or what matches a pattern."""
    path = path_of(source).absolute()  # tasks run elsewhere
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        return next((files for pattern in _PATTERNS if (files := _keep_named([str(file) for file in path.glob(pattern)]))), [])
    if not has_magic(source):
        return []
    return _keep_named([name for each in matching(path) for name in ([str(each)] if each.is_file() else _list_files(str(each)))])


def _keep_named(paths: Iterable[str]) -> list[str]:
    """Keep what is named as brokers name their tracks."""
    return sorted(path for path in paths if FileName.parse(path.rpartition("/")[2]) is not None)


def _read_index(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    tasks = min(max(1, len(paths)), max(parallelism(spark), len(paths) // FILES_PER_TASK))
    files = spark.createDataFrame([(path,) for path in paths], "file string").repartition(tasks, "file")
    return files.mapInArrow(trackfiles.read_index, INDEX).persist(StorageLevel.MEMORY_AND_DISK)


def _head(row: Row) -> FileHead:
    said = row["head"]
    return FileHead(
        path=row["file"],
        kind=row["kind"],
        broker=UNKNOWN_BROKER if row["broker"] is None else row["broker"],
        order=order_of(row["file"]) or (row["incarnation"] or 0, row["sequence"] or 0),
        written_ms=said["written_ms"] or 0,
        kept_from_ms=said["kept_from_ms"] or 0,
        previous=said["previous"] or "",
        replaces=tuple(said["replaces"] or ()),
        size=said["size"] or 0,
        problem=said["problem"] or "",
        digest=said["digest"] or "",
        previous_digest=said["previous_digest"] or "",
        stands_for=tuple(said["stands_for"] or ()),
        broken=tuple(said["broken"] or ()),
        persistence_ms=said["persistence_ms"] or 0,
        low_ms=1 if said["low_ms"] is None else said["low_ms"],
        high_ms=0 if said["high_ms"] is None else said["high_ms"],
    )


def _with_brokers(heads: Iterable[FileHead]) -> list[FileHead]:
    """Give files that cannot be read the broker of their directory."""
    heads = sorted(heads, key=lambda head: (head.directory, head.order, head.path))
    brokers = {head.directory: head.broker for head in heads if head.kind == FILE}
    for directory in {head.directory for head in heads} - brokers.keys():
        brokers[directory] = broker_of(path_of(directory).parent) or UNKNOWN_BROKER
    return [head if head.kind == FILE else replace(head, broker=brokers.get(head.directory, UNKNOWN_BROKER)) for head in heads]


def _elements(rows: DataFrame, *, copies: bool) -> DataFrame:
    elements = rows.filter(F.col("kind").isin(*HISTORY_KINDS)).drop("head", "pubend", "from_tick", "to_tick", "filter")
    size = F.when(F.col("strategy") == "bloom", (F.col("m") + 7) / 8).otherwise(F.col("count") * 16).cast("long")
    elements = elements.withColumn("size", size)
    if not copies:
        return elements
    newest = Window.partitionBy(*_IDENTITY).orderBy(F.desc("sequence"))
    return elements.withColumn("copy", F.row_number().over(newest)).filter(F.col("copy") == 1).drop("copy")


def _longest_life(elements: DataFrame) -> int:
    found = elements.agg(F.max(F.col("closed_ms") - F.col("opened_ms"))).first()
    return 0 if found is None or found[0] is None else int(found[0])


def _file_holes(heads: Sequence[FileHead], slack_ms: int) -> list[TrackHole]:
    """Say which time a file that is damaged or missing may have held: from the file before it to the one after it."""
    holes: list[TrackHole] = []
    by_directory: dict[str, list[FileHead]] = defaultdict(list)
    for head in heads:
        by_directory[head.directory].append(head)
    for directory, files in by_directory.items():
        present = {file.order for file in files if not file.copies}
        present.update(order for file in files for name in file.replaces if (order := order_of(name)) is not None)
        oldest = min(present, default=(0, 0))  # what was before it is dropped, as `kept_from_ms` says
        for index, file in enumerate(files):
            before, after = files[:index], files[index:]
            if file.kind != FILE:
                kind = HoleKind.DAMAGED.value if file.kind == DAMAGED else MISSING
                holes.append(_between(before, after, slack_ms, kind, f"{file.path}: {file.problem}", file.broker))
            elif (wanted := order_of(file.previous)) is not None and wanted > oldest and wanted not in present:
                reason = f"{directory}/{file.previous}: the file is missing"
                holes.append(_between(before, after, slack_ms, MISSING, reason, file.broker))
    return holes


def _directories(sources: Sequence[str]) -> set[str]:
    return {path.rpartition("/")[0] for source in sources for path in _list_files(source)}


def _chain_ends(directory: str) -> ChainEnds | None:
    return decode_ends(read_chain(path_of(directory)))


def dropped_to(directory: str) -> tuple[int, int] | None:
    """Return the last file that a broker dropped by age or size, as the record beside its tracks says."""
    ends = _chain_ends(directory)
    return None if ends is None else order_of(ends.dropped)


def _check_chains(heads: Sequence[FileHead], before: Mapping[str, ChainEnds | None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Follow the chain of each directory; return what is wrong with it, and what is not chained.

    `before` is what was written down of its ends before the files were listed: a broker that runs goes on.
    """
    doubts: list[str] = []
    unchained: list[str] = []
    by_directory: dict[str, list[FileHead]] = defaultdict(list)
    for head in heads:
        if not head.copies:
            by_directory[head.directory].append(head)
    for directory, files in by_directory.items():
        sound = [file for file in files if file.kind == FILE]
        chained = any(file.previous_digest for file in sound)
        ends = before.get(directory)
        doubts += [f"{directory}: {text}" for text in breaks([(file.name, file.digest, file) for file in _neighbours(sound)])]
        if not chained and ends is None:
            unchained.append(f"{directory}: its files are not chained, so changed or removed files cannot be noticed")
        elif ends is None:
            unchained.append(f"{directory}: the newest file is not recorded, so it cannot be noticed if newer files were removed")
        else:
            doubts += [f"{directory}: {text}" for text in _check_ends(files, ends, _chain_ends(directory) or ends)]
    return tuple(doubts), tuple(unchained)


def _neighbours(files: Sequence[FileHead]) -> Iterator[FileHead]:
    """Yield the files so that each follows on the one it names; where one is missing, which is a hole, the next names none."""
    for number, file in enumerate(files):
        follows = number > 0 and order_of(file.previous) == files[number - 1].order
        yield file if follows or not file.previous_digest else replace(file, previous_digest="")


def _check_ends(files: Sequence[FileHead], before: ChainEnds, now: ChainEnds) -> Iterator[str]:
    wanted = order_of(before.newest)
    at_hand = [file for file in files if file.order == wanted]
    if wanted is not None and not at_hand:
        if files[-1].order < wanted:
            yield f"the newest files up to {before.newest} are missing"
    elif not any(file.kind != FILE or is_named(before.digest, file.digest, file) for file in at_hand):
        yield f"{before.newest} was rewritten"
    first = order_of(files[0].previous)
    if first is not None and files[0].previous_digest and (order_of(now.dropped) or (-1, -1)) < first:
        yield f"the oldest files up to {files[0].previous} are missing, and the broker did not delete them"


def _between(
    before: Sequence[FileHead], after: Sequence[FileHead], slack_ms: int, kind: str, reason: str, broker: int
) -> TrackHole:
    low = max((file.written_ms for file in before if file.kind == FILE), default=slack_ms) - slack_ms
    high = min((file.written_ms for file in after if file.kind == FILE), default=MILLISECONDS_MAX - slack_ms) + slack_ms
    return TrackHole(broker, kind, max(low, 0), high, reason)


def order_of(name: str) -> tuple[int, int] | None:
    """Return incarnation and sequence of a track file by its name."""
    found = _ORDER.search(name)
    return (int(found.group(1)), int(found.group(2))) if found else None


def _find_dropped(heads: Sequence[FileHead]) -> list[TrackHole]:
    kept: dict[int, int] = {}
    for head in heads:
        kept[head.broker] = max(kept.get(head.broker, 0), head.kept_from_ms)
    return [
        TrackHole(broker, HoleKind.DROPPED.value, 0, since - 1, "older than the retention time")
        for broker, since in kept.items()
        if since > 0
    ]


def _crashes(records: DataFrame, late_ms: int) -> list[TrackHole]:
    rows = records.filter(F.col("kind") == "crash").select("broker", "number", "from_ms", "to_ms").distinct().collect()
    return [
        TrackHole(row["broker"], HoleKind.CRASH.value, max(row["from_ms"] - late_ms, 0), row["to_ms"] + late_ms, _crash_text(row))
        for row in rows
    ]


def _crash_text(row: Row) -> str:
    return f"incarnation {row['number']} did not shut down cleanly"
