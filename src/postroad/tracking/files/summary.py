"""How far a track file reaches, and what every search must know of it: kept in its head, so that the rest need not be read."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from postroad.tracking.files.schema import HISTORY_KINDS, INT64_MAX, RowError, record_rows
from postroad.tracking.histories.elements import Crash, Links, Milliseconds

NEVER: Final = INT64_MAX
_COVERAGE: Final = frozenset({"span", "lost"})


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """Extents; a file without such rows has low > high. Crashes are (incarnation, from, to), links (since, neighbours)."""

    low_ms: int = NEVER  # timestamps of ids, singletons included
    high_ms: int = -1
    opened_low_ms: int = NEVER  # of elements, by the broker's clock
    low_tick: int = NEVER  # of spans and losses
    high_tick: int = -1
    crashes: tuple[tuple[int, int, int], ...] = ()
    links: tuple[tuple[int, tuple[int, ...]], ...] = ()


def summarise(rows: pa.RecordBatch) -> Summary:
    """Return the summary of a file with these rows; the heavy columns are not needed."""
    kinds = rows.column("kind").to_pylist()
    history = np.array([kind in HISTORY_KINDS for kind in kinds], np.bool_)
    coverage = np.array([kind in _COVERAGE for kind in kinds], np.bool_)
    from_ms, to_ms = integers(rows, "from_ms"), integers(rows, "to_ms")
    ranged = history & (from_ms <= to_ms)
    singletons, _ = flat(rows.column("singletons"))
    notable = list(record_rows(rows, [row for row, kind in enumerate(kinds) if kind in {"crash", "links"}]))
    return Summary(
        low_ms=min(_least(from_ms[ranged]), _least(singletons)),
        high_ms=max(_most(to_ms[ranged]), _most(singletons)),
        opened_low_ms=_least(integers(rows, "opened_ms")[history]),
        low_tick=_least(integers(rows, "from_tick")[coverage]),
        high_tick=_most(integers(rows, "to_tick")[coverage]),
        crashes=tuple((each.incarnation, each.from_ms, each.to_ms) for each in notable if isinstance(each, Crash)),
        links=tuple((each.since_ms, each.neighbours) for each in notable if isinstance(each, Links)),
    )


def flat(column: Any) -> tuple[Milliseconds, Milliseconds]:
    """Return all values of a list column, and the row of each."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    if int(lengths.sum()) != len(values):
        raise RowError("a list of singletons does not fit its row")
    return values, np.repeat(np.arange(len(column)), lengths)


def integers(rows: pa.RecordBatch, name: str) -> Milliseconds:
    found: Milliseconds = rows.column(name).fill_null(-1).to_numpy(zero_copy_only=False)
    return found


def _least(values: Milliseconds) -> int:
    return int(values.min(initial=NEVER))


def _most(values: Milliseconds) -> int:
    return int(values.max(initial=-1))
