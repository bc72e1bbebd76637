"""Many small files become one: a broker that flushes every ten seconds writes 8,640 a day, and readers pay by the file.

The merged file holds the rows of the others as they are, but for records that a later one supersedes, and its head names them as
replaced. It gets a name of its own, and the replaced files stay for a while, so that a reader which listed the directory before
still finds all it saw. Only files of one incarnation are merged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from postroad.tracking.files.catalog import FileName, Sort, TrackFile
from postroad.tracking.files.chain import BROKEN_MAX, breaks, digest_text, stands_for
from postroad.tracking.files.format import Head, TrackTable

MERGE_FILES: Final = 64
SETTLED_MS: Final = 600_000  # younger files are left alone
GRACE_MS: Final = 3_600_000  # for how long replaced files stay


def mergeable(files: Sequence[TrackFile], now_ms: int, bytes_max: int) -> list[TrackFile]:
    """Return the oldest run of neighbouring small files of one incarnation that is worth merging, or nothing."""
    replaced = {name for file in files for name in file.replaces}
    run: list[TrackFile] = []
    for file in files:
        if file.name.sort is Sort.COPIES or file.name in replaced:
            continue
        if file.time_ms > now_ms - SETTLED_MS:
            break
        small = file.error is None and file.summary is not None and file.size <= bytes_max // MERGE_FILES
        if run and (not small or file.name.incarnation != run[0].name.incarnation):
            run = []
        if small:
            run.append(file)
        if len(run) == MERGE_FILES:
            return run
    return []


def outdated(files: Sequence[TrackFile], now_ms: int) -> list[TrackFile]:
    """Return the replaced files that have stayed long enough."""
    present = {file.name: file for file in files}
    replaced = {name: file for file in files for name in file.replaces}
    return [present[name] for name, by in replaced.items() if name in present and by.merged_ms < now_ms - GRACE_MS]


def merged_head(tables: Sequence[TrackTable], names: Sequence[FileName], present: Collection[str]) -> Head:
    """Return the head of the file that replaces these, in their order, and what they replace and is still present."""
    first, last = tables[0].head, tables[-1].head
    earlier = (name for table in tables for name in table.head.replaces if name in present)
    gone = dict.fromkeys((*earlier, *map(str, names)))
    listed = list(zip(names, tables, strict=True))
    return Head(
        broker=last.broker,
        incarnation=last.incarnation,
        sequence=last.sequence,
        written_ms=last.written_ms,
        kept_from_ms=last.kept_from_ms,
        complete=last.complete,
        previous=first.previous,
        replaces=tuple(gone),
        previous_digest=first.previous_digest,
        stands_for=stands_for(digest_text(tables[-1].digest), last),
        broken=tuple(breaks([(str(name), digest_text(table.digest), table.head) for name, table in listed]))[:BROKEN_MAX],
        persistence_ms=last.persistence_ms,
    )


def merged_rows(tables: Sequence[TrackTable]) -> pa.Table:
    """Return the rows of all tables without the spans and horizons of which a later version follows."""
    whole = pa.Table.from_batches([table.whole() for table in tables])
    newest: dict[tuple[Any, ...], int] = {}
    keep = np.ones(whole.num_rows, np.bool_)
    columns = (whole.column(name).to_pylist() for name in ("kind", "incarnation", "number", "pubend", "subscriber"))
    for row, (kind, *name) in enumerate(zip(*columns, strict=True)):
        if kind in {"span", "horizon"}:
            keep[newest.get((kind, *name), row)] = False
            keep[row] = True
            newest[kind, *name] = row
    return whole.filter(pa.array(keep))
