"""What an audit hands on: claims are cut where they are decided, and files may be gone only if somebody says why."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from postroad.spark.jobs.expectations import TICK_END, Claims, Settled, Standing, Target, behind, decided, routed
from postroad.spark.jobs.published import LogFiles, LogHole, not_checked
from postroad.spark.jobs.tracks import FileHead, Tracks
from postroad.spark.jobs.verdicts import past, settled

ALICE, BOB = Target("subscriber", 1, 0, "alice"), Target("subscriber", 1, 0, "bob")
PUBEND = 0x100


def claims() -> Claims:
    """Alice has everything up to tick 100 and is attached; Bob has it up to 40 and is away."""
    made = Claims()
    made.add(ALICE, PUBEND, "a > 1", 0, 100, Standing.EXPECTED, 2)
    made.add(ALICE, PUBEND, "a > 1", 100, TICK_END, Standing.DOUBTFUL, 2)
    made.add(BOB, PUBEND, "", 0, 40, Standing.EXPECTED, 3)
    made.add(BOB, PUBEND, "", 40, TICK_END, Standing.WAITING, 3)
    return made


def ranges(made: Claims) -> dict[tuple[str, Standing], tuple[int, int]]:
    return {(made.targets[each.target].subscriber, Standing(each.standing)): (each.lo, each.hi) for each in made.claims}


def test_claims_begin_behind_what_is_decided() -> None:
    """Waiting messages that were counted are not counted again while nothing more of their account is decided."""
    made = claims()
    assert decided(made) == {(ALICE, PUBEND): 100, (BOB, PUBEND): 40}
    assert routed(made) == {(2, PUBEND): 100, (3, PUBEND): 40}
    former = Settled({(ALICE, PUBEND): 60, (BOB, PUBEND): 40}, {PUBEND: 70}, {}, {BOB})
    assert behind(made, former) == {BOB}
    assert ranges(made) == {
        ("alice", Standing.EXPECTED): (60, 100),
        ("alice", Standing.DOUBTFUL): (100, TICK_END),
        ("bob", Standing.WAITING): (70, TICK_END),
    }


def test_waiting_messages_are_counted_again_when_some_were_delivered() -> None:
    """Bob came back for a while, and left: what waits now begins where he stopped."""
    made = claims()
    former = Settled({(BOB, PUBEND): 10}, {PUBEND: 70}, {}, {BOB})
    assert behind(made, former) == set()
    assert ranges(made)["bob", Standing.EXPECTED] == (10, 40)
    assert ranges(made)["bob", Standing.WAITING] == (40, TICK_END)


def span(subscriber: str, opened_ms: int, lo: int, hi: int, *, text: str = "", closed_ms: int | None = 1) -> dict[str, object]:
    row = {"kind": "span", "subscriber": subscriber, "pubend": PUBEND, "filter": text, "opened_ms": opened_ms}
    return {**row, "closed_ms": closed_ms, "from_tick": lo, "to_tick": hi}


def test_spans_that_are_over_are_not_kept() -> None:
    """Of a durable subscription the ends stay, and where its present filter began; of others those that have not ended."""
    rows: list[dict[str, object]] = [
        *(span("alice", 10 * number, number, number + 1, text="old" if number < 3 else "new") for number in range(8)),
        span("~1.1.1@x", 5, 0, 9),
        span("~1.1.2@x", 5, 0, 9, closed_ms=None),
        {"kind": "crash"},
    ]
    assert settled._needed(rows) == [0, 3, 7, 9, 10]


def head(name: str, previous: str = "", replaces: tuple[str, ...] = ()) -> FileHead:
    digits = name.split(".", maxsplit=1)[0].split("-")
    order = (int(digits[0]), int(digits[1]))
    path = f"/nowhere/tracks/{name}"
    return FileHead(path, "file", 1, order, 0, 0, previous, replaces, 1, "", "", "", (), (), 0, 1, 0)


def test_files_may_be_gone_if_a_merged_one_or_the_log_accounts_for_them() -> None:
    """A merged file stands for all since its predecessor; a log for what it released; nobody for the others."""
    merged = head("0000000001-0000000009.merged.parquet", "0000000001-0000000002.parquet", ("0000000001-0000000009.parquet",))
    tracks = Tracks(None, None, None, None, (merged,), (), frozenset())  # type: ignore[arg-type]  # only the files matter
    logs = LogFiles(None, {}, (), (), (LogHole(PUBEND, 0, 0x50, "released by its broker"),))  # type: ignore[arg-type]
    segments = [f"/nowhere/pubends/{PUBEND:016x}/{base:016x}.segment" for base in (0x10, 0x50)]
    files = [f"/nowhere/tracks/0000000001-{number:010d}.parquet" for number in (2, 3, 9, 10)]
    gone = past.missing_files([*segments, *files], {}, tracks, logs)
    assert gone == sorted([segments[1], files[0], files[3]])


def test_changed_files_are_told_by_size_and_time(tmp_path: Path) -> None:
    """A file that is written again with the same bytes is another one."""
    path = tmp_path / "x"
    path.write_bytes(b"1")
    before = dict(past._identify(None, [str(path), str(tmp_path / "gone")]))  # type: ignore[arg-type]  # only for URIs
    assert list(before) == [str(path)]
    assert past.changed_files(before, dict(past._identify(None, [str(path)]))) == []  # type: ignore[arg-type]
    path.unlink()
    path.write_bytes(b"1")
    after = dict(past._identify(None, [str(path)]))  # type: ignore[arg-type]
    assert past.changed_files(before, after) == [str(path)]


def test_what_is_absent_was_checked_as_far_as_an_audit_saw_it() -> None:
    """What lies behind that is still absent."""
    absent = (LogHole(PUBEND, 0, 50, "released"), LogHole(0x200, 0, 50, "released"))
    assert not_checked(absent, {PUBEND: 30, 0x200: 60}) == (LogHole(PUBEND, 30, 50, "released"),)
