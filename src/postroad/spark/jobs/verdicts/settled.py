"""What an audit hands to the next one, so that the past need not be read again.

Expected and recorded deliveries are sums, so an audit can go on where the last one stopped:

- Of each account and pubend it is known up to which tick it is *decided* what was promised. Claims begin behind it.
- Of each broker it is known up to which moment its finished elements were counted. Other files hold newer ones. A merged file
  holds both, and the moment at which an element was closed tells them apart.
- *Carried* rows correct the sums at the seam. What copies of unfinished elements held was counted, and comes again in finished
  elements, so it is carried as expected. Deliveries that no span claimed yet are carried as recorded. So are the entries of
  routing histories in the last interval beyond what was expected there.

Only what closes is handed on, so nothing that is open is ever cut off, unless somebody accepts what is missing: then the next
audit begins behind it, and says so.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.spark.jobs import evidence, reconcile
from postroad.spark.jobs.expectations import EVERYTHING, GRAIN_MS, Claims, Settled, Standing, Target, is_temporary
from postroad.spark.jobs.histories import NumberedHistory, histories_of, numbered
from postroad.spark.jobs.trackfiles import COPIES_SUFFIX
from postroad.spark.jobs.tracks import RECORD, FileHead, KnownTracks, Tracks

VERSION: Final = 1


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A row of the books that belongs to what comes next. `lo` and `hi` are grains of time."""

    target: Target
    lo: int
    hi: int
    expected: int
    counted: int


class Totals(msgspec.Struct, frozen=True):
    """What the audits so far counted. `counted` is without copies, which come again."""

    published: int = 0
    expected: int = 0
    counted: int = 0
    explained: int = 0
    lost: int = 0
    unexpected: int = 0
    unexpected_by_chance: float = 0.0


class State(msgspec.Struct, frozen=True):
    """Everything that an audit hands on."""

    version: int
    reached: tuple[tuple[Target, int, int], ...]  # account, pubend, tick
    seen: dict[int, int]
    routed: tuple[tuple[int, int, int], ...]  # broker, pubend, tick
    waiting: tuple[tuple[Target, int, int], ...]  # account, first grain, messages
    carried: tuple[Carried, ...]
    totals: Totals
    histories: tuple[NumberedHistory, ...]
    heads: tuple[FileHead, ...]
    closed_ms: dict[int, int]
    life_ms: int
    records: bytes
    first_ms: dict[int, int]  # when each broker published first
    identities: dict[str, tuple[int, int]]  # of files: size, and when it was changed
    accepted: tuple[str, ...] = ()  # what was missing and is known

    def settled(self) -> Settled:
        return Settled(
            {(target, pubend): tick for target, pubend, tick in self.reached},
            self.seen,
            {(broker, pubend): tick for broker, pubend, tick in self.routed},
            {target for target, _, _ in self.waiting},
        )

    def known_tracks(self) -> KnownTracks:
        with pa.ipc.open_stream(io.BytesIO(self.records)) as reader:
            records = reader.read_all()
        return KnownTracks({head.path: head for head in self.heads}, records, self.closed_ms, self.life_ms)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What of an audit goes into a state."""

    tracks: Tracks
    claims: Claims
    decided: Mapping[tuple[Target, int], int]
    routed: Mapping[tuple[int, int], int]
    ranges: Mapping[int, tuple[int, int]]
    counts: DataFrame
    closing: DataFrame
    totals: Totals  # with what copies hold


def carried_rows(claims: Claims, carried: Iterable[Carried]) -> list[tuple[int, int, int, int, int]]:
    return [(claims.target(each.target), each.lo, each.hi, each.expected, each.counted) for each in carried]


def state_after(done: Outcome, former: State | None, identities: Mapping[str, tuple[int, int]]) -> State:
    """Make the state that continues behind an audit."""
    before = former.settled() if former is not None else Settled({}, {}, {}, ())
    reached = {**before.reached}
    for key, tick in done.decided.items():
        reached[key] = max(tick, reached.get(key, -1))
    routed = {**before.routed}
    for place, tick in done.routed.items():
        routed[place] = max(tick, routed.get(place, -1))
    copies = _copies(done)
    in_copies = sum(row.expected for row in copies if row.target.kind == "subscriber")
    seen = {pubend: max(last, before.seen.get(pubend, -1)) for pubend, (_, last) in done.ranges.items()}
    known = former.histories if former is not None else ()
    heads = [head for head in done.tracks.files if not head.copies]
    closed: dict[int, int] = {}
    for head in heads:
        closed[head.broker] = max(closed.get(head.broker, 0), head.written_ms)
    return State(
        version=VERSION,
        reached=tuple((target, pubend, tick) for (target, pubend), tick in sorted(reached.items())),
        seen={**before.seen, **seen},
        routed=tuple((broker, pubend, tick) for (broker, pubend), tick in sorted(routed.items())),
        waiting=_waiting(done),
        carried=(*copies, *_surplus(done)),
        totals=msgspec.structs.replace(done.totals, counted=done.totals.counted - in_copies),
        histories=numbered((*known, *histories_of(done.tracks.elements.filter(~_is_copy())))),
        heads=tuple(heads),
        closed_ms=closed,
        life_ms=done.tracks.life_ms,
        records=_kept_records(done.tracks),
        first_ms={**evidence.first_published(done.claims, done.counts), **(former.first_ms if former is not None else {})},
        identities=dict(identities),
        accepted=former.accepted if former is not None else (),
    )


def _is_copy() -> Any:
    return F.col("file").endswith(COPIES_SUFFIX)


def _copies(done: Outcome) -> list[Carried]:
    """Carry what copies of unfinished elements hold: it was counted, and will be again."""
    rows = done.tracks.elements.filter(_is_copy())
    histories = histories_of(rows)
    if not histories:
        return []
    found = reconcile.count(rows.sparkSession, done.claims, histories, rows).collect()
    return [Carried(done.claims.targets[row["target"]], row["lo"], row["hi"], row["counted"], 0) for row in found]


def _surplus(done: Outcome) -> list[Carried]:
    """Carry what histories hold beyond what is claimed so far: in the last interval of a routing history, or in doubt."""
    doubtful = done.counts.filter(F.col("standing").isin(int(Standing.DOUBTFUL), int(Standing.WAITING)))
    soft = {row["target"]: row["count"] for row in doubtful.groupBy("target").agg(F.sum("count").alias("count")).collect()}
    more = done.closing.filter(F.col("counted") > F.col("expected")).withColumn("surplus", F.col("counted") - F.col("expected"))
    last = more.groupBy("target").agg(F.max_by(F.struct("from_ms", "to_ms", "surplus"), "to_ms").alias("row")).collect()
    carried = []
    for each in last:
        row, target = each["row"], done.claims.targets[each["target"]]
        if target.kind == "routing" or soft.get(each["target"], 0) >= row["surplus"]:
            lo, hi = (row[name] // GRAIN_MS for name in ("from_ms", "to_ms"))
            carried.append(Carried(target, lo, hi, 0, row["surplus"]))
    return carried


def _waiting(done: Outcome) -> tuple[tuple[Target, int, int], ...]:
    rows = done.counts.filter((F.col("standing") == int(Standing.WAITING)) & (F.col("target") != EVERYTHING))
    found = rows.groupBy("target").agg(F.min("grain").alias("grain"), F.sum("count").alias("count")).collect()
    return tuple(sorted((done.claims.targets[row["target"]], row["grain"], row["count"]) for row in found))


def _kept_records(tracks: Tracks) -> bytes:
    """Return the records that later claims may need: the newest version of each, without spans that are over and done with."""
    everything = F.struct(*RECORD)
    newest = F.max_by(everything, F.struct("to_tick", "sequence")).alias("row")
    spans = tracks.of_kind("span").groupBy("broker", "incarnation", "number", "subscriber", "pubend").agg(newest)
    horizons = tracks.of_kind("horizon").groupBy("broker", "pubend").agg(newest)
    others = tracks.records.filter(F.col("kind").isin("crash", "lost", "links")).select(*RECORD)
    kept = spans.select("row.*").unionByName(horizons.select("row.*")).unionByName(others.drop_duplicates(_IDENTITY))
    table = kept.toArrow()
    table = table.take(pa.array(_needed(table.to_pylist()), pa.int64()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


_IDENTITY: Final = [name for name in RECORD if name != "sequence"]


def _needed(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Say which rows to keep: of the spans of a durable subscription in a pubend the first and last ones."""
    streams: dict[tuple[str, int], list[int]] = {}
    kept: list[int] = []
    for number, row in enumerate(rows):
        if row["kind"] != "span":
            kept.append(number)
        elif not is_temporary(row["subscriber"]):
            streams.setdefault((row["subscriber"], row["pubend"]), []).append(number)
        elif row["closed_ms"] is None:
            kept.append(number)
    for numbers in streams.values():
        by_time = sorted(numbers, key=lambda each: (rows[each]["opened_ms"], rows[each]["from_tick"]))
        furthest = max(numbers, key=lambda each: (rows[each]["to_tick"], rows[each]["opened_ms"]))
        same = next(each for each in by_time if rows[each]["filter"] == rows[by_time[-1]]["filter"])  # since when it is this one
        kept += {by_time[0], by_time[-1], furthest, same}
    return sorted(kept)
