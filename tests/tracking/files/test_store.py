"""A broker's tracks, on disk and in memory: one suite over both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.tracking.files.elements import BROKER, START, element, ids_at

from postroad.core.batch.batch import Ids
from postroad.errors import StorageFullError
from postroad.tracking.files.catalog import FileName, TrackOptions
from postroad.tracking.files.directories import DirectoryFiles, MemoryFiles, TrackFiles, merge_lock
from postroad.tracking.files.format import pack, unpack
from postroad.tracking.files.merging import merged_head, merged_rows
from postroad.tracking.files.track_store import Recovered, TrackStore
from postroad.tracking.histories.elements import (
    Crash,
    Element,
    Farewell,
    Flush,
    HistoryKey,
    Horizon,
    Kind,
    Links,
    Lost,
    Record,
    Span,
)
from postroad.tracking.histories.settings import Strategy
from postroad.tracking.queries.answers import STILL, HoleKind, Searched

PUBLISHED = HistoryKey(Kind.PUBLISHER, BROKER)
PUBEND = BROKER << 8
Reopen = Callable[[], TrackFiles]


@pytest.fixture(params=["directory", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Give the files of one broker anew at each call, as a start of the broker does."""
    memory = MemoryFiles()
    return lambda: memory if request.param == "memory" else DirectoryFiles(tmp_path / "tracks")


def flush(closed: Sequence[Element] = (), copies: Sequence[Element] = (), records: Sequence[Record] = ()) -> Flush:
    return Flush(tuple(closed), tuple(copies), tuple(records))


def start(files: Reopen, incarnation: int = 1, now_ms: int = START, options: TrackOptions | None = None) -> TrackStore:
    return TrackStore.open(files(), BROKER, incarnation, now_ms=now_ms, options=options)


def keys(found: Searched) -> list[tuple[int, HistoryKey]]:
    return [(row, key) for row, key, _, _ in found.hits]


def names(files: Reopen) -> list[str]:
    return sorted(status.name for status in files().listed())


def at(*offsets: int) -> Ids:
    """Make ids at these milliseconds after the start."""
    return ids_at([START + offset for offset in offsets])


def test_what_was_written_is_found_again_also_after_a_restart(files: Reopen) -> None:
    """Ids of every strategy, by range and by singleton."""
    store = start(files)
    exact, late = at(100, 200, 300), at(5)
    subscriber = HistoryKey(Kind.SUBSCRIBER, BROKER, subscriber="s")
    store.write(
        flush(
            [
                element(1, np.concatenate([exact, late]), late=[START + 5]),
                element(2, exact, strategy=Strategy.BLOOM, kind=Kind.SUBSCRIBER, subscriber="s"),
                element(3, exact, strategy=Strategy.ASYNC, kind=Kind.ROUTING, peer=4),
            ]
        ),
        now_ms=START + 10_000,
    )
    asked = np.concatenate([exact[1:2], late, at(150)])
    for again in (store, start(files, incarnation=2, now_ms=START + 20_000)):
        found = again.search(asked)
        assert keys(found) == [(0, PUBLISHED), (0, HistoryKey(Kind.ROUTING, BROKER, peer=4)), (0, subscriber), (1, PUBLISHED)]
        assert found.hits.probability[[0, 1, 3]].tolist() == [0, 0, 0]
        assert 0 < found.hits.probability[2] < 0.01


def test_an_id_of_another_broker_is_not_found(files: Reopen) -> None:
    """A history holds messages of one origin."""
    store = start(files)
    store.write(flush([element(1, at(1, 2, 3))]), now_ms=START + 10)
    assert keys(store.search(ids_at([START + 1], broker=8))) == []


def test_copies_are_replaced_and_the_newest_counts(files: Reopen) -> None:
    """At most one file of copies remains, and a finished element supersedes its copies."""
    store = start(files)
    store.write(flush(copies=[element(1, at(1, 2))]), now_ms=START + 1000)
    store.write(flush(copies=[element(1, at(1, 2, 3))]), now_ms=START + 2000)
    assert len([name for name in names(files) if "open" in name]) == 1
    assert keys(store.search(at(3))) == [(0, PUBLISHED)]
    store.write(flush([element(1, at(1, 2, 3, 4))]), now_ms=START + 3000)
    assert not [name for name in names(files) if "open" in name]
    assert keys(store.search(at(1, 2, 3, 4))) == [(row, PUBLISHED) for row in range(4)]


def test_an_element_in_several_files_counts_once_in_the_probability(files: Reopen) -> None:
    """A copy left behind by a crash says nothing new."""
    ids = at(*range(200))
    store = start(files)
    store.write(flush(copies=[element(1, ids[:150], strategy=Strategy.BLOOM)]), now_ms=START + 1000)
    copies = {name: files().read(name).to_pybytes() for name in names(files) if "open" in name}
    store.write(flush([element(1, ids, strategy=Strategy.BLOOM)]), now_ms=START + 2000)
    alone = store.search(ids[:1]).hits.probability.tolist()
    for name, data in copies.items():
        files().write(name, [data])
    assert start(files, incarnation=2, now_ms=START + 3000).search(ids[:1]).hits.probability.tolist() == alone


def test_elements_in_memory_are_searched_and_supersede_stored_copies(files: Reopen) -> None:
    """What the tracker still holds is newer than any file."""
    store = start(files)
    store.write(flush(copies=[element(1, at(1, 2))]), now_ms=START + 1000)
    found = store.search(at(1, 5), [element(1, at(1, 2, 5)), element(2, at(5), kind=Kind.SUBSCRIBER, subscriber="s")])
    assert keys(found) == [(0, PUBLISHED), (1, PUBLISHED), (1, HistoryKey(Kind.SUBSCRIBER, BROKER, subscriber="s"))]


def test_copies_of_a_dead_incarnation_stay(files: Reopen) -> None:
    """Nobody will finish those elements any more."""
    start(files).write(flush(copies=[element(1, at(1, 2))]), now_ms=START + 1000)
    store = start(files, incarnation=2, now_ms=START + 5000)
    store.write(flush(copies=[element(1, at(7), incarnation=2)]), now_ms=START + 6000)
    store.write(flush(copies=[element(1, at(7, 8), incarnation=2)]), now_ms=START + 7000)
    assert keys(store.search(at(1, 2, 8))) == [(row, PUBLISHED) for row in range(3)]


def test_another_writer_of_the_same_incarnation_goes_on(files: Reopen) -> None:
    """A tracking process was killed: its copies stay, what it had not written is reported, and no number is given twice."""
    first = start(files)
    assert first.first_number == 0
    first.write(flush(copies=[element(1, at(1, 2))], records=[Horizon(PUBEND, 55)]), now_ms=START + 1000)
    second = start(files, now_ms=START + 5000)
    assert second.recovered == Recovered(Crash(1, START + 1000, START + 5000), {PUBEND: 55})
    number = second.first_number
    assert number > 1 << 30
    second.write(flush(copies=[element(number, at(7))]), now_ms=START + 6000)
    second.write(flush(copies=[element(number, at(7, 8))]), now_ms=START + 7000)
    assert keys(second.search(at(1, 2, 7, 8))) == [(row, PUBLISHED) for row in range(4)]
    assert len([name for name in names(files) if "open" in name]) == 2
    third = start(files, now_ms=START + 9000)
    assert third.first_number > number + (1 << 30)


def test_after_a_farewell_nothing_is_missing(files: Reopen) -> None:
    """The next incarnation begins with the horizons and without a hole."""
    start(files).write(flush(records=[Horizon(PUBEND, 55), Farewell(START + 1000)]), now_ms=START + 1000)
    store = start(files, incarnation=2, now_ms=START + 90_000)
    assert (store.recovered.crash, dict(store.recovered.horizons)) == (None, {PUBEND: 55})
    assert store.search(at(50_000)).holes == ()


def test_without_a_farewell_there_is_a_hole_from_the_last_file_to_the_start(files: Reopen) -> None:
    """The window is told when the tracks are opened, and again after any later start."""
    first = start(files)
    first.write(flush([element(1, at(1))], records=[Horizon(PUBEND, 55)]), now_ms=START + 10_000)
    store = start(files, incarnation=2, now_ms=START + 90_000)
    assert store.recovered.crash == Crash(1, START + 10_000, START + 90_000)
    assert dict(store.recovered.horizons) == {PUBEND: 55}
    store.write(flush(records=[Farewell(START + 95_000)]), now_ms=START + 95_000)
    third = start(files, incarnation=3, now_ms=START + 95_001)
    assert third.recovered.crash is None
    for again in (store, third):
        (hole,) = again.search(at(50_000)).holes
        assert (hole.kind, hole.from_ms, hole.to_ms) == (HoleKind.CRASH, START - 1_000, START + 101_000)
        assert again.search(at(200_000)).holes == ()


def test_horizons_are_carried_over_from_file_to_file(files: Reopen) -> None:
    """Also of a pubend that was silent for many files and starts."""
    store = start(files)
    store.write(flush(records=[Horizon(PUBEND, 5), Horizon(PUBEND + 1, 9)]), now_ms=START + 1)
    store.write(flush(records=[Horizon(PUBEND, 7)]), now_ms=START + 2)
    for incarnation in (2, 3, 4):
        store = start(files, incarnation, START + incarnation)
        assert dict(store.recovered.horizons) == {PUBEND: 7, PUBEND + 1: 9}


def test_incarnations_that_kept_no_tracks_are_a_hole(files: Reopen) -> None:
    """Tracking was off, or the broker fell before it could leave a mark."""
    start(files).write(flush(records=[Farewell(START + 1000)]), now_ms=START + 1000)
    assert start(files, incarnation=4, now_ms=START + 8000).recovered.crash == Crash(3, START + 1000, START + 8000)


def test_what_the_tracker_could_not_keep_is_a_hole(files: Reopen) -> None:
    """A crash record of the living incarnation counts like one of a dead one."""
    store = start(files)
    store.write(flush(records=[Crash(1, START + 100_000, START + 101_000)]), now_ms=START + 102_000)
    assert [hole.kind for hole in store.search(at(100_500)).holes] == [HoleKind.CRASH]


def test_what_is_older_than_the_tracks_is_a_hole(files: Reopen) -> None:
    """Before tracking began nothing can be known."""
    store = start(files)
    assert [hole.kind for hole in store.search(at(-1)).holes] == [HoleKind.DROPPED]
    assert store.search(at(0)).holes == ()


def test_retention_by_age_drops_whole_files_from_the_oldest(files: Reopen) -> None:
    """The newest stays whatever its age, and what is gone is a hole, also after a restart."""
    options = TrackOptions(retention_ms=50_000)
    store = start(files, options=options)
    for step in range(10):
        ids = at(*range(step * 10_000, step * 10_000 + 10_000, 500))
        store.write(flush([element(step + 1, ids, opened_ms=START + step * 10_000)]), now_ms=START + (step + 1) * 10_000)
    store.retain(START + 100_000)
    assert store.kept_from_ms == START + 39_501
    assert [hole.kind for hole in store.search(at(39_500)).holes] == [HoleKind.DROPPED]
    assert keys(store.search(at(39_500))) == []
    assert keys(store.search(at(40_000))) == [(0, PUBLISHED)]
    store.write(flush([element(11, at(100_500))], records=[Farewell(START + 101_000)]), now_ms=START + 101_000)
    again = start(files, incarnation=2, now_ms=START + 102_000, options=options)
    assert again.kept_from_ms >= START + 39_501
    again.retain(START + 10_000_000)
    assert len(names(files)) == 1


def test_retention_after_a_crash_knows_what_was_dropped(files: Reopen) -> None:
    """The oldest file says when its first element was opened, though nothing said that files were dropped before it."""
    store = start(files, options=TrackOptions(retention_ms=15_000))
    for step in range(5):
        ids = at(*range(step * 10_000, step * 10_000 + 10_000, 1000))
        store.write(flush([element(step + 1, ids, opened_ms=START + step * 10_000)]), now_ms=START + (step + 1) * 10_000)
    store.retain(START + 50_000)
    again = start(files, incarnation=2, now_ms=START + 60_000)
    assert again.kept_from_ms == START + 30_000


def test_retention_by_bytes_keeps_the_newest_files(files: Reopen) -> None:
    """As many as fit, and never none."""
    store = start(files, options=TrackOptions(retention_bytes=30_000))
    for step in range(20):
        store.write(flush([element(step + 1, at(*range(step * 1000, step * 1000 + 900)))]), now_ms=START + step * 1000)
    store.retain(START + 20_000)
    assert store.bytes <= 30_000
    assert keys(store.search(at(19_000))) == [(0, PUBLISHED)]
    assert keys(store.search(at(10))) == []
    tiny = start(files, incarnation=2, now_ms=START + 30_000, options=TrackOptions(retention_bytes=1))
    tiny.retain(START + 30_000)
    assert len(names(files)) == 1


def test_living_copies_are_not_dropped(files: Reopen) -> None:
    """They are not old; they only have a low number."""
    store = start(files, options=TrackOptions(retention_bytes=1))
    store.write(flush([element(2, at(5))], copies=[element(1, at(1, 2))]), now_ms=START + 1000)
    store.retain(START + 2000)
    assert len([name for name in names(files) if "open" in name]) == 1
    assert keys(store.search(at(1))) == [(0, PUBLISHED)]


def test_a_large_flush_becomes_several_files(files: Reopen) -> None:
    """Records stand in the last, so a crash between them claims nothing that is not there."""
    store = start(files, options=TrackOptions(file_bytes=5000))
    elements = [element(n, at(*range(n * 1000, n * 1000 + 100))) for n in range(8)]
    store.write(flush(elements, records=[Farewell(START + 9000)]), now_ms=START + 9000)
    assert len(names(files)) == 1 + 8 / 2
    again = start(files, incarnation=2, now_ms=START + 10_000)
    assert again.recovered.crash is None
    assert len(keys(again.search(at(*range(0, 8000, 1000))))) == 8


def test_a_crash_between_the_files_of_a_flush_is_a_crash(files: Reopen) -> None:
    """Without the file that ends it, a flush did not happen, but what is there is found."""
    store = start(files, options=TrackOptions(file_bytes=5000))
    store.write(flush(records=[Horizon(PUBEND, 5)]), now_ms=START + 1000)
    elements = [element(n, at(*range(n * 1000, n * 1000 + 100))) for n in range(8)]
    store.write(flush(elements, records=[Horizon(PUBEND, 9), Farewell(START + 9000)]), now_ms=START + 9000)
    files().remove(names(files)[-1])
    again = start(files, incarnation=2, now_ms=START + 20_000)
    assert again.recovered.crash == Crash(1, START + 1000, START + 20_000)
    assert dict(again.recovered.horizons) == {PUBEND: 5}
    assert len(keys(again.search(at(*range(0, 8000, 1000))))) == 6


def test_spans_tell_what_a_subscription_was_promised(files: Reopen) -> None:
    """The newest version of a span counts; ticks outside of every span have none."""
    store = start(files)
    ms = START << 16
    span = Span("s", 1, PUBEND, "a > 1", ms, ms + 100, START)
    store.write(flush(records=[span]), now_ms=START + 10)
    longer = Span("s", 1, PUBEND, "a > 1", ms, ms + 200, START, START + 20)
    lost = Lost("s", PUBEND, ms + 150, ms + 160, START + 15)
    store.write(flush(records=[longer, lost, Span("t", 2, PUBEND, "b", ms, ms + 500, START)]), now_ms=START + 20)
    crashed = Span("s", 1, PUBEND, "a > 1", ms, ms + 100, START, START + 20)
    for again, first in ((store, span), (start(files, incarnation=2, now_ms=START + 30), crashed)):
        assert again.coverage("s", PUBEND, ms + 50).spans == (first,)
        assert again.coverage("s", PUBEND, ms + 100).spans == (first,)
        found = again.coverage("s", PUBEND, ms + 155)
        assert (found.spans, found.lost) == ((longer,), (lost,))
        found = again.coverage("s", PUBEND, ms)
        assert (found.spans, found.lost, found.before, found.after) == ((), (), None, longer)
        found = again.coverage("s", PUBEND, ms + 201)
        assert (found.spans, found.lost, found.before, found.after) == ((), (), longer, None)
        assert again.coverage("s", PUBEND + 1, ms + 50).spans == ()
    fresh = Span("s", 1, PUBEND, "a > 1", ms, ms + 300, START)
    assert store.coverage("s", PUBEND, ms + 250, [fresh, Links(START, (1,))]).spans == (fresh,)


def test_neighbours_are_told_with_the_time_until_which_they_were(files: Reopen) -> None:
    """Also those that are gone, for messages of their time."""
    store = start(files)
    store.write(flush(records=[Links(START, (2, 3))]), now_ms=START + 1)
    store.write(flush(records=[Links(START + 500, (3,)), Links(START + 900, (3, 4))]), now_ms=START + 1000)
    for again in (store, start(files, incarnation=2, now_ms=START + 2000)):
        assert again.search(at(1)).neighbours == {2: START + 500, 3: STILL, 4: STILL}
    living = [Links(START + 3000, (5,))]
    assert store.search(at(1), (), living).neighbours == {2: START + 500, 3: START + 3000, 4: START + 3000, 5: STILL}


def test_a_full_disk_refuses_the_flush_and_takes_it_later() -> None:
    """Also the mark of an incarnation: what the one before lost is told by the first flush that finds room."""
    memory = MemoryFiles()
    TrackStore.open(memory, BROKER, 1, now_ms=START).write(flush(records=[Horizon(PUBEND, 5)]), now_ms=START + 1000)
    memory.room_bytes = 10
    store = TrackStore.open(memory, BROKER, 2, now_ms=START + 2000)
    assert store.recovered.crash == Crash(1, START + 1000, START + 2000)
    waiting = flush([element(1, at(5000))], [element(2, at(5001))], [Horizon(PUBEND, 8)])
    for _ in range(3):
        with pytest.raises(StorageFullError):
            store.write(waiting, now_ms=START + 9000)
    memory.room_bytes = None
    store.write(waiting, now_ms=START + 9500)
    again = TrackStore.open(memory, BROKER, 3, now_ms=START + 60_000)
    assert dict(again.recovered.horizons) == {PUBEND: 8}
    crashes = [hole.reason for hole in again.search(at(1500)).holes if hole.kind is HoleKind.CRASH]
    assert crashes[0].startswith("incarnation 1")
    assert keys(again.search(at(5000, 5001))) == [(0, PUBLISHED), (1, PUBLISHED)]


def test_many_ids_are_searched_in_parts_that_fit_into_memory(files: Reopen) -> None:
    """The answer is that of one search."""
    store = start(files)
    for step in range(12):
        ids = at(*range(step * 1000, step * 1000 + 1000, 10))
        store.write(
            flush([element(step + 1, ids), element(step + 50, ids[::2], kind=Kind.SUBSCRIBER, subscriber="s")]), now_ms=START
        )
    asked = at(*range(11_990, -10, -10))
    whole = store.search(asked)
    narrow = start(files, incarnation=2, options=TrackOptions(search_bytes=9000, element_bytes=5000, index_bytes=2000))
    parts = narrow.search(asked)
    assert keys(parts) == keys(whole)
    assert len(keys(whole)) == 1200 + 600
    assert narrow._catalog._elements.bytes <= 5000
    assert len(narrow._catalog._indexes.values) <= 2


def test_caches_stay_within_their_bounds(tmp_path: Path) -> None:
    """Years of files do not live in memory."""
    options = TrackOptions(index_bytes=8000, element_bytes=20_000)
    store = TrackStore.open(tmp_path, BROKER, 1, now_ms=START, options=options)
    for step in range(60):
        store.write(flush([element(step + 1, at(*range(step * 1000, step * 1000 + 300)))]), now_ms=START + step * 1000)
    for step in range(0, 60, 7):
        assert keys(store.search(at(step * 1000))) == [(0, PUBLISHED)]
    assert store._catalog._indexes.bytes <= 8000
    assert store._catalog._elements.bytes <= 20_000


class CountingFiles(MemoryFiles):
    """Counts how often each file is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: dict[str, int] = {}

    def read(self, name: str):  # type: ignore[no-untyped-def]  # noqa: ANN201  # that of its base
        self.reads[name] = self.reads.get(name, 0) + 1
        return super().read(name)


def test_a_batch_search_reads_each_file_it_needs_once_and_no_other() -> None:
    """Ids of one file do not touch the others once their reach is known."""
    counting = CountingFiles()
    store = TrackStore.open(counting, BROKER, 1, now_ms=START)
    for step in range(10):
        store.write(flush([element(step + 1, at(*range(step * 1000, step * 1000 + 100)))]), now_ms=START + step * 1000)
    store.search(at(*range(3000, 3100), *range(5000, 5100)))
    assert sorted(counting.reads.values()) == [1, 1]
    store.search(at(3005))
    assert sum(counting.reads.values()) == 2


def test_small_files_are_merged_and_nothing_changes(files: Reopen) -> None:
    """The merged file answers as the many did, also while those are still there, and takes their place after a while."""
    store = start(files)
    span = [Span("s", 1, PUBEND, "a", START << 16, (START << 16) + step, START) for step in range(70)]
    for step in range(70):
        ids = at(*range(step * 1000, step * 1000 + 900, 100))
        records: list[Record] = [span[step], Horizon(PUBEND, step), Lost("s", PUBEND, step, step + 1, START)]
        opened = START + step * 1000
        store.write(flush([element(step + 1, ids, opened_ms=opened)], records=records), now_ms=opened + 1000)
    asked = at(*range(0, 70_000, 500))
    before = keys(store.search(asked))
    size = store.bytes
    store.retain(START + 10_000_000)
    assert "0000000001-0000000063.merged.parquet" in names(files)
    assert keys(store.search(asked)) == before
    assert keys(start(files, 2, START + 10_000_000).search(asked)) == before
    store.retain(START + 20_000_000)
    assert len(names(files)) == 1 + 7 + 1
    again = start(files, 3, START + 20_000_000)
    for each in (store, again):
        assert keys(each.search(asked)) == before
        assert [hole.kind for hole in each.search(asked).holes if hole.kind is not HoleKind.CRASH] == []
        assert each.coverage("s", PUBEND, (START << 16) + 30).spans[0].from_tick == START << 16
    assert store.bytes < size / 2
    assert dict(again.recovered.horizons) == {PUBEND: 69}


def test_small_files_of_a_former_incarnation_are_merged_too(files: Reopen) -> None:
    """Also when nobody has searched in them since the restart."""
    store = start(files)
    for step in range(70):
        store.write(flush([element(step + 1, at(step * 10), opened_ms=START + step)]), now_ms=START + step)
    again = start(files, 2, START + 10_000_000)
    again.retain(START + 10_000_000)
    assert "0000000001-0000000063.merged.parquet" in names(files)
    assert len(keys(again.search(at(*range(0, 700, 10))))) == 70


def test_files_that_somebody_else_merges_now_are_left_to_him(tmp_path: Path) -> None:
    """A compaction holds the lock of the directory; when it is done, the broker merges what there is then."""
    path = tmp_path / "tracks"
    store = TrackStore.open(path, BROKER, 1, now_ms=START)
    for step in range(70):
        store.write(flush([element(step + 1, at(step * 10), opened_ms=START + step)]), now_ms=START + step)
    with merge_lock(path, wait=False) as mine:
        assert mine
        store.retain(START + 10_000_000)
        assert not list(path.glob("*.merged.parquet"))
        with merge_lock(path, wait=False) as taken:
            assert not taken
    store.retain(START + 10_000_000)
    assert [file.name for file in path.glob("*.merged.parquet")] == ["0000000001-0000000063.merged.parquet"]
    assert len(keys(store.search(at(*range(0, 700, 10))))) == 70


def test_a_file_that_is_compacted_by_somebody_else_is_noticed(files: Reopen) -> None:
    """Its cached index is not used for other rows, and files that are gone are not holes when another replaces them."""
    store = start(files)
    for step in range(3):
        store.write(flush([element(step + 1, at(step * 10, step * 10 + 1))]), now_ms=START + step)
    assert len(keys(store.search(at(0, 10, 20)))) == 3
    disk = files()
    tables = [unpack(disk.read(str(FileName(1, sequence)))) for sequence in (1, 2, 3)]
    head = merged_head(tables, [FileName(1, sequence) for sequence in (1, 2, 3)], set())
    rows = merged_rows(tables)
    disk.write(str(FileName(1, 3)), pack(head, rows.take([2, 0, 1]))[0])
    for sequence in (1, 2):
        disk.remove(str(FileName(1, sequence)))
    store._catalog._elements.drop(list)
    found = store.search(at(0, 10, 21))
    assert keys(found) == [(row, PUBLISHED) for row in range(3)]
    assert found.holes == ()
    again = start(files, 2, START + 5).search(at(0, 10, 21))
    assert keys(again) == [(row, PUBLISHED) for row in range(3)]
    assert [hole.kind for hole in again.holes] == [HoleKind.CRASH]


class WatchedFiles(MemoryFiles):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def read_end(self, name: str, bytes_max: int) -> tuple[pa.Buffer, int]:
        data, size = super().read_end(name, bytes_max)
        self.bytes_read += data.size
        return data, size


def test_after_a_restart_only_the_ends_of_files_are_read_to_know_which_matter() -> None:
    """A month of tracks does not pass through memory for one question."""
    watched = WatchedFiles()
    store = TrackStore.open(watched, BROKER, 1, now_ms=START)
    noise = np.random.default_rng(1).integers(0, 1 << 32, 20_000)
    for step in range(20):
        ids = ids_at([START + step * 20_000 + ms for ms in range(20_000)], publishers=noise.tolist())
        store.write(flush([element(step + 1, ids)], records=[Links(START + step, (2, 3))]), now_ms=START + step * 20_000)
    again = TrackStore.open(watched, BROKER, 2, now_ms=START + 500_000)
    watched.bytes_read = 0
    found = again.search(ids_at([START + 100_005], publishers=noise.tolist()))
    assert [row for row, _, _, _ in found.hits] == [0]
    assert found.neighbours == {2: STILL, 3: STILL}
    assert watched.bytes_read < store.bytes / 3


def test_a_head_that_is_longer_than_usual_is_read_as_well(files: Reopen) -> None:
    """Many changes of neighbours in one flush do not fit into the end that is read first."""
    store = start(files)
    links = [Links(START + step, tuple(range(100 + step, 140 + step))) for step in range(900)]
    store.write(flush([element(1, at(5))], records=links), now_ms=START + 1000)
    again = start(files, 2, START + 2000)
    found = again.search(at(5))
    assert keys(found) == [(0, PUBLISHED)]
    assert len(found.neighbours) == 939


def test_a_crash_between_the_steps_of_a_flush_loses_nothing_that_was_written_before() -> None:
    """The element was finished, its file is not there yet, and its last copy still is."""
    memory = MemoryFiles()
    store = TrackStore.open(memory, BROKER, 1, now_ms=START)
    store.write(flush(copies=[element(1, at(1, 2))]), now_ms=START + 1000)
    memory.room_bytes = 10
    with pytest.raises(StorageFullError):
        store.write(flush([element(1, at(1, 2, 3))]), now_ms=START + 2000)
    memory.room_bytes = None
    assert keys(TrackStore.open(memory, BROKER, 2, now_ms=START + 3000).search(at(1, 2, 3))) == [(0, PUBLISHED), (1, PUBLISHED)]


def test_a_file_that_is_rewritten_under_its_name_is_noticed(files: Reopen) -> None:
    """Rows of another order under a cached index would be other elements."""
    store = start(files)
    late = {"kind": Kind.SUBSCRIBER, "subscriber": "s"}
    elements = [element(1, at(1)), element(2, at(100), **late), element(3, at(200))]  # type: ignore[arg-type]  # of a dictionary
    store.write(flush(elements), now_ms=START + 1000)
    name, disk = str(FileName(1, 1)), files()
    table = unpack(disk.read(name))
    rows = pa.Table.from_batches([table.whole()]).take([1, 2, 0])
    disk.write(name, pack(replace(table.head, kept_from_ms=1), rows)[0])
    assert keys(store.search(at(1, 200))) == [(0, PUBLISHED), (1, PUBLISHED)]
