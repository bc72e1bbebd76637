"""Audits that continue behind the last one say what one says that reads everything, also about damage in the past."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.synthetic import EPOCH_MS, Broker, Rows, Subscriber, World, some_subscribers

from postroad.core.protocol.packets import pubend_id
from postroad.errors import PostroadError, TrackFileError
from postroad.spark.jobs.audit import Summary
from postroad.spark.jobs.evidence import Scope, Verdict
from postroad.spark.jobs.verdicts.continuing import Recorded, Wish, audit_behind, keep, read_everything
from postroad.spark.jobs.verdicts.table import VerdictTable
from postroad.spark.jobs.verdicts.watching import watch
from postroad.storage.directory import open_broker_storage
from postroad.storage.segment.log import LogOptions
from postroad.tracking.files.format import pack, unpack
from postroad.tracking.histories.events import Delivered, TrackEvent
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.types import MessageId

pytestmark = pytest.mark.pipeline  # long: selected by `make pipeline`

EXACT = TrackingSettings(strategy=Strategy.EXACT, persistence_ms=1_000)
BLOOM = TrackingSettings(strategy=Strategy.BLOOM, m=16_384, k=12, n=300, persistence_ms=1_500, few_as_ids=False)
LINE = {1: (2,), 2: (1, 3), 3: (2,)}
STRATEGIES = {1: EXACT, 2: BLOOM, 3: EXACT}
PEOPLE = [*some_subscribers(4, (2, 3)), Subscriber("~3.1.7@reader", 3, (0, 1, 2, 3))]


@dataclass
class Books:
    """A world and its table of verdicts."""

    spark: SparkSession
    world: World
    path: Path

    @property
    def table(self) -> VerdictTable:
        return VerdictTable.open(self.spark, str(self.path))

    @property
    def scope(self) -> Scope:
        return Scope(self.world.now_ms + 500)

    def audit(self, *, anew: bool = False) -> Recorded:
        wish = Wish(self.world.data, anew=anew)
        done = audit_behind(self.spark, self.table, wish, self.scope)
        keep(self.table, wish, done)
        done.audit.close()
        return done

    def everything(self) -> Summary:
        done = read_everything(self.spark, Wish(self.world.data), self.scope)
        done.close()
        return done.summary


def numbers(found: Summary) -> dict[str, object]:
    names = ("published", "expected", "counted", "missing", "skipped", "explained", "lost", "doubtful", "waiting", "verdict")
    return {name: getattr(found, name) for name in names}


@pytest.fixture
def books(spark: SparkSession, tmp_path: Path) -> Iterator[Books]:
    world = World(tmp_path / "data", PEOPLE, links=LINE, settings=STRATEGIES, origins=[1, 3], segment_bytes=20_000)
    yield Books(spark, world, tmp_path / "verdicts")
    for broker in world.brokers.values():
        broker.storage.close()


@pytest.mark.timeout(900)
def test_a_continued_audit_says_what_one_of_everything_says(books: Books) -> None:
    """With unfinished elements at each seam, over a crash, and when the brokers have ended."""
    books.world.run(2_300, rate=60)
    kinds = [books.audit().record.evidence]
    books.world.run(1_300, rate=60)
    books.world.crash(2)
    books.world.run(700, rate=60)
    books.world.restart(2)
    books.world.run(1_600, rate=60)
    kinds.append(books.audit().record.evidence)
    books.world.run(1_100, rate=60)
    books.world.finish()
    found = books.audit()
    kinds.append(found.record.evidence)
    assert numbers(found.audit.summary) == numbers(books.everything())
    assert found.audit.summary.verdict is Verdict.CLOSES
    assert kinds == ["files", "continued", "continued"]
    accounts = pq.read_table(books.path / "accounts").to_pylist()
    newest = {row["pubend"]: row["checked_until"] for row in accounts if row["subscriber"] == "sub0" and row["audit"] == 3}
    assert set(newest) == {"100", "300"}


def spoil(path: Path, edit: Callable[[pa.Table], pa.Table]) -> None:
    """Write a track file anew with other rows, all its checksums right."""
    table = unpack(pa.py_buffer(path.read_bytes()))
    path.write_bytes(b"".join(pack(table.head, edit(pa.Table.from_batches([table.whole()])))[0]))


def first_delivery(change: Callable[[list[int]], list[int]]) -> Callable[[pa.Table], pa.Table]:
    """Return an edit of the counters of the first element of a subscriber that lists at least two ids."""

    def edit(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        row = next(row for row in rows if row["kind"] == "subscriber" and len(row["counters"] or ()) > 1)
        row["counters"] = change(row["counters"])
        for name in ("milliseconds", "publishers"):
            row[name] = row[name][: len(row["counters"])]
        row["count"] = len(row["counters"])
        return pa.Table.from_pylist(rows, schema=table.schema)

    return edit


@contextmanager
def put_back(path: Path) -> Iterator[None]:
    """Give a file back its content and time afterwards."""
    content, found = path.read_bytes(), path.stat()
    yield
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Books:
    """Give a world that was audited once while it ran, and has ended since."""
    path = tmp_path_factory.mktemp("past")
    world = World(path / "data", PEOPLE, links=LINE, settings=STRATEGIES, origins=[1, 3], segment_bytes=20_000)
    books = Books(spark, world, path / "verdicts")
    world.run(3_300, rate=60)
    assert books.audit().record.is_base
    world.run(1_000, rate=60)
    world.finish()
    return books


def old_tracks(data: Path) -> Path:
    """Return a track file of broker 3 that the first audit read."""
    return sorted((data / "broker3" / "tracks").glob("*.parquet"))[1]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_a_delivery(path: Path) -> None:
    spoil(path, first_delivery(lambda counters: counters[:-1]))


def swap_a_delivery(path: Path) -> None:
    spoil(path, first_delivery(lambda counters: [counters[0] ^ 1, *counters[1:]]))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_damaged_file_of_the_past_is_named_by_an_audit_that_continues(past: Books, damage: Callable[[Path], None]) -> None:
    """It would not read the file, and fails as an audit does that reads everything."""
    old = old_tracks(Path(past.world.data[0]).parent)
    with put_back(old):
        damage(old)
        with pytest.raises(TrackFileError, match=old.name):
            past.audit()


@pytest.mark.timeout(900)
def test_a_damaged_segment_of_the_past_is_named_by_an_audit_that_continues(past: Books) -> None:
    """Of a log whose messages were checked."""
    segment = min((past.world.brokers[1].path / "pubends").glob("*/*.segment"))
    with put_back(segment):
        segment.write_bytes(segment.read_bytes()[:-100])
        with pytest.raises(PostroadError, match=segment.name):
            past.audit()


@pytest.mark.timeout(900)
def test_a_delivery_removed_from_the_past_is_missing(past: Books) -> None:
    """The file is whole, and another one than was read: everything is read, and the message is named."""
    old = old_tracks(Path(past.world.data[0]).parent)
    with put_back(old):
        lose_a_delivery(old)
        found = past.audit()
    assert (found.record.evidence, found.record.verdict) == ("files", "does not close")
    assert found.audit.summary.missing == 1
    assert old.name in found.record.reason
    found = past.audit()
    assert (found.record.evidence, found.record.verdict) == ("continued", "closes")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", [None, lose_a_delivery, swap_a_delivery])
def test_released_messages_are_audited_by_what_was_kept_of_them(
    past: Books, tmp_path: Path, change: Callable[[Path], None] | None
) -> None:
    """They are gone, what was promised of them is not: with a delivery less, or another in its place, the books do not close."""
    data, table = tmp_path / "data", tmp_path / "verdicts"
    shutil.copytree(Path(past.world.data[0]).parent, data)
    shutil.copytree(past.path, table)
    for verdict in sorted((table / "verdicts").glob("*.json"))[1:]:
        verdict.unlink()
    storage = open_broker_storage(data / "broker1", 1, [pubend_id(1)], LogOptions(segment_bytes=20_000))
    assert storage.logs[pubend_id(1)].release((EPOCH_MS + 2_500) << 16) >> 16 > EPOCH_MS + 1_000
    storage.close()
    if change is not None:
        change(old_tracks(data))
    wish = Wish([str(data / f"broker{number}") for number in LINE])
    found = audit_behind(past.spark, VerdictTable.open(past.spark, str(table)), wish, past.scope)
    found.audit.close()
    assert found.record.evidence == "kept"
    assert found.record.published == len(past.world.truth.published)
    if change is None:
        assert (found.record.verdict, found.record.stated) == ("closes", ())
        assert found.record.expected == found.record.counted == len(past.world.truth.delivered)
    else:
        assert found.record.verdict == "does not close", found.record
        assert found.record.unexplained == 1


class Withholding(World):
    """A world whose broker 3 once leaves a delivery out of its tracks."""

    withhold = False
    withheld: bytes = b""

    def _deliver(self, broker: Broker, rows: Rows) -> list[TrackEvent]:
        events = super()._deliver(broker, rows)
        for place, event in enumerate(events):
            if self.withhold and broker.number == 3 and isinstance(event, Delivered) and event.subscriber == "sub1":
                self.withhold, self.withheld = False, bytes(event.ids[0])
                events[place] = Delivered(event.subscriber, event.pubend, event.ids[1:])
        return events


@pytest.mark.timeout(900)
def test_a_watch_names_a_withheld_delivery_once_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """With T_p = 10 s and a round every 20 s the alarm comes within a minute; the table keeps the verdict and continues."""
    slow = TrackingSettings(strategy=Strategy.EXACT, persistence_ms=10_000)
    world = Withholding(tmp_path / "data", PEOPLE, links=LINE, settings=slow, origins=[1])
    table = VerdictTable.open(spark, str(tmp_path / "verdicts"))
    rounds = watch(spark, table, Wish(world.data), lambda: Scope(world.now_ms))
    world.run(20_000, rate=4, step_ms=500)
    assert (first := next(rounds)).alarms == ()
    assert first.code == 0
    world.withhold, begun_ms = True, world.now_ms
    alarms: tuple[str, ...] = ()
    while not alarms:
        world.run(20_000, rate=4, step_ms=500)
        alarms = next(rounds).alarms
    assert world.now_ms - begun_ms < 60_000
    assert alarms == (f"missing: {MessageId.from_bytes(world.withheld)}, sub1",)
    world.run(20_000, rate=4, step_ms=500)
    after = next(rounds)
    assert (after.alarms, after.code) == ((), 0)
    assert after.record is not None
    assert any("accepted" in text for text in after.record.stated)
    kept = [(record.verdict, record.evidence, record.accepted) for record in table.records()]
    assert kept == [("closes", "files", False), ("does not close", "continued", True)]


@pytest.mark.timeout(900)
def test_a_period_is_audited_by_its_messages(books: Books) -> None:
    """Only messages of the period are read, each is looked up, and a delivery that is missing in it is named."""
    books.world.run(4_000, rate=60)
    books.world.finish()
    truth = books.world.truth
    since, until = EPOCH_MS + 1_000, EPOCH_MS + 2_700
    inside = {item for item, tick in truth.ticks.items() if since <= tick >> 16 < until}
    wish = Wish(books.world.data, window=(since, until))
    done = read_everything(books.spark, wish, books.scope)
    done.close()
    delivered = sum(1 for item, _, _ in truth.delivered if item in inside)
    found = done.summary
    assert (found.published, found.expected, found.counted) == (len(inside), delivered, delivered)
    assert found.verdict is Verdict.CLOSES
    for path in sorted((books.world.brokers[3].path / "tracks").glob("*.parquet"))[1:3]:
        spoil(path, first_delivery(lambda counters: counters[:-1]))
    done = read_everything(books.spark, wish, books.scope)
    named = {row["subscriber"] for row in done.findings.filter("verdict = 'missing'").collect()}
    done.close()
    assert done.summary.verdict is Verdict.DOES_NOT_CLOSE
    assert 1 <= done.summary.missing <= 2
    assert named
