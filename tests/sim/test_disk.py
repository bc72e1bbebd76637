"""A disk that loses what was not synced."""

from __future__ import annotations

from postroad.core.batch.batch import Batch
from postroad.core.protocol.orders import Append, Appended, LogRead, ReadLog, ReleaseLog, Store, Stored
from postroad.sim.disk import Disk, DiskProfile
from postroad.sim.world import World
from postroad.types import MessageId

PUBEND = 0x100


def rows(*ticks: int, publisher: int = 7) -> Batch:
    ids = [bytes(MessageId.make(publisher, 1, 0, tick)) for tick in ticks]
    return Batch.from_columns(ids, [b""] * len(ticks), {"n": list(ticks)}, ticks=list(ticks))


def rows_at(*ticks: int) -> Batch:
    return rows(*range(len(ticks))).with_ticks(list(ticks))


def disk_of(seed: int = 1, **profile: int) -> tuple[World, Disk, list[object]]:
    world = World(seed)
    return world, Disk(world, "1", DiskProfile(**profile), (PUBEND,)), []


def test_a_write_is_reported_when_it_is_durable_and_not_before() -> None:
    """The fact comes after the latency, and the state has the rows then."""
    world, disk, facts = disk_of()
    disk.write(Append(PUBEND, 1, (rows(5, 6),)), facts.append)
    disk.write(Store(2, (("key", b"value"),)), facts.append)
    assert facts == []
    assert disk.start(1).pubends[0].last_tick == 0
    world.run(1.0)
    assert sorted(map(str, facts)) == sorted(map(str, [Appended(PUBEND, 1), Stored(2)]))
    state = disk.start(1)
    assert state.pubends[0].last_tick == 6
    assert state.pubends[0].publishers == ((7, 6),)
    assert dict(state.metadata) == {"key": b"value"}


def test_a_damaged_batch_is_left_out_and_named() -> None:
    """Only closed segments are damaged; what is read around the damage comes, and what is lost lies between."""
    world, disk, facts = disk_of(segment_batches=1)
    assert disk.spoil_log(PUBEND) is None
    disk.write(Append(PUBEND, 1, (rows_at(5, 6), rows_at(8))), facts.append)
    world.run(1.0)
    assert disk.spoil_log(PUBEND) == (0, 6)
    assert disk.spoil_log(PUBEND) is None
    found: list[LogRead] = []
    disk.read(ReadLog(PUBEND, 2, 0, 9, 1000), found.append)
    disk.read(ReadLog(PUBEND, 3, 5, 9, 1000), found.append)
    world.run(2.0)
    found.sort(key=lambda read: read.token)
    assert [[(each.lo, each.hi) for each in read.lost] for read in found] == [[(0, 6)], [(5, 6)]]
    assert [[message.tick for batch in read.batches for message in batch] for read in found] == [[8], [8]]


def test_a_damaged_record_stays_damaged_until_something_new_is_stored() -> None:
    """Each start is told of it."""
    world, disk, facts = disk_of()
    assert disk.spoil_record() is None
    disk.write(Store(1, (("key", b"value"),)), facts.append)
    world.run(1.0)
    assert disk.spoil_record() == "key"
    assert [disk.start(1).damaged for _ in range(2)] == [("key",), ("key",)]
    assert dict(disk.start(1).metadata) == {}
    disk.write(Store(2, (("key", b"new"),)), facts.append)
    world.run(2.0)
    assert disk.start(1).damaged == ()
    assert dict(disk.start(1).metadata) == {"key": b"new"}


def test_a_crash_keeps_a_prefix_of_what_was_not_synced_and_reports_nothing() -> None:
    """Over many seeds each prefix occurs, down to parts of one append; facts of the former life never come."""
    kept = set()
    for seed in range(60):
        world, disk, facts = disk_of(seed)
        disk.write(Append(PUBEND, 1, (rows(1), rows(2))), facts.append)
        disk.write(Append(PUBEND, 2, (rows(3),)), facts.append)
        disk.crash()
        world.run(1.0)
        assert facts == []
        kept.add(disk.start(1).pubends[0].last_tick)
    assert kept == {0, 1, 2, 3}


def test_stores_are_all_or_nothing() -> None:
    """A crash never keeps half of a store."""
    for seed in range(20):
        _, disk, facts = disk_of(seed)
        disk.write(Store(1, (("a", b"1"), ("b", b"1"))), facts.append)
        disk.crash()
        assert len(disk.metadata) in {0, 2}


def test_reading_stops_at_the_bound_and_says_where() -> None:
    """A bounded read returns whole batches and up to where they are complete."""
    world, disk, facts = disk_of()
    disk.write(Append(PUBEND, 1, (rows(1, 2), rows(3, 4), rows(5, 6))), facts.append)
    world.run(1.0)
    answers: list[LogRead] = []
    disk.read(ReadLog(PUBEND, 9, 1, 5, bytes_max=1), answers.append)
    disk.read(ReadLog(PUBEND, 10, 1, 5, bytes_max=1 << 20), answers.append)
    world.run(2.0)
    by_token = {answer.token: answer for answer in answers}
    assert (by_token[9].hi, [int(t) for b in by_token[9].batches for t in b.ticks()]) == (2, [2])
    assert (by_token[10].hi, [int(t) for b in by_token[10].batches for t in b.ticks()]) == (5, [2, 3, 4, 5])


def test_reading_is_exact_for_ticks_beyond_the_precision_of_floats() -> None:
    """Neighbouring ticks of today are told apart."""
    world, disk, facts = disk_of()
    now = 1_800_000_000_000 << 16
    disk.write(Append(PUBEND, 1, (rows_at(now, now + 1, now + 2),)), facts.append)
    world.run(1.0)
    _, found, _ = disk.logs[PUBEND].read(now, now + 1, 1 << 20)
    assert [tick for batch in found for tick in batch.ticks().tolist()] == [now + 1]


def test_release_gives_back_whole_segments_only() -> None:
    """Rows beyond the last whole segment stay."""
    world, disk, facts = disk_of(segment_batches=2)
    disk.write(Append(PUBEND, 1, (rows(1), rows(2), rows(3))), facts.append)
    world.run(1.0)
    disk.release(ReleaseLog(PUBEND, 3))
    assert disk.logs[PUBEND].released == 2
    assert disk.logs[PUBEND].read(0, 9, 1 << 20)[1][0].ticks().tolist() == [3]


def test_retention_gives_back_the_oldest_rows_and_says_so() -> None:
    """A log over its bound lets go by itself."""
    world, disk, facts = disk_of(segment_batches=1, retention_rows_max=2)
    freed: list[tuple[int, int, int, bool]] = []
    disk.freed = lambda *args: freed.append(args)
    disk.write(Append(PUBEND, 1, (rows(1), rows(2), rows(3))), facts.append)
    world.run(1.0)
    assert freed == [(PUBEND, 1, 1, True)]


def test_publishers_are_found_again_after_their_rows_were_released() -> None:
    """The last id of each publisher survives the release of its rows."""
    world, disk, facts = disk_of(segment_batches=1)
    disk.write(Append(PUBEND, 1, (rows(1, publisher=3), rows(2, publisher=4))), facts.append)
    world.run(1.0)
    disk.release(ReleaseLog(PUBEND, 2))
    assert disk.start(1).pubends[0].publishers == ((3, 1), (4, 2))


def test_a_stalled_disk_finishes_nothing_until_it_goes_on() -> None:
    """A stall delays writes under way."""
    world, disk, facts = disk_of()
    disk.write(Store(1, ()), facts.append)
    disk.stall(5.0)
    world.run(4.9)
    assert facts == []
    world.run(5.1)
    assert facts == [Stored(1)]


def test_what_waits_for_a_slow_disk_is_quick_when_the_disk_is_quick_again() -> None:
    """Only the write under way is still slow; those behind it begin later, and take what they take then."""
    world, disk, facts = disk_of()
    disk.slow_down(1000.0)
    for token in range(1, 101):
        disk.write(Store(token, ()), facts.append)
    disk.heal()
    world.run(5.0)
    assert facts == [Stored(token) for token in range(1, 101)]
