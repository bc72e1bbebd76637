"""Track files are chained: what was removed or rewritten behind the broker's back does not fit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from tests.tracking.files.elements import BROKER, START, element, ids_at

from postroad.tracking.files.catalog import FileName, Sort, TrackOptions
from postroad.tracking.files.chain import ChainEnds, breaks, decode_ends, digest_text, is_named
from postroad.tracking.files.directories import DirectoryFiles, chain_path
from postroad.tracking.files.format import TrackTable, pack, unpack
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import Flush


@pytest.fixture
def tracks(tmp_path: Path) -> Path:
    return tmp_path / "tracks"


def open_store(tracks: Path, incarnation: int = 1, options: TrackOptions | None = None) -> TrackStore:
    return TrackStore.open(tracks, BROKER, incarnation, now_ms=START, options=options)


def write(store: TrackStore, steps: range) -> None:
    for step in steps:
        store.write(Flush((element(step + 1, ids_at([START + step])),), (), ()), now_ms=START + step)


def table_of(path: Path) -> TrackTable:
    return unpack(pa.py_buffer(path.read_bytes()))


def chain_of(tracks: Path) -> list[tuple[str, str, TrackTable]]:
    """Return the files of the chain as readers see them: without those that others replace."""
    tables = {path.name: table_of(path) for path in sorted(tracks.glob("*.parquet")) if ".open" not in path.name}
    replaced = {name for table in tables.values() for name in table.head.replaces}
    listed = [(FileName.parse(name), name, table) for name, table in tables.items() if name not in replaced]
    return [(name, digest_text(table.digest), table) for _, name, table in sorted(listed, key=lambda each: each[0] or (0, 0))]


def found_breaks(tracks: Path) -> list[str]:
    return list(breaks([(name, digest, table.head) for name, digest, table in chain_of(tracks)]))


def ends_of(tracks: Path) -> ChainEnds:
    ends = decode_ends(chain_path(tracks).read_bytes())
    assert ends is not None
    return ends


def rewrite(path: Path) -> None:
    """Take the last row out of a file; the file itself stays sound."""
    table = table_of(path)
    rows = pa.Table.from_batches([table.whole()])
    path.write_bytes(b"".join(pack(table.head, rows.slice(0, rows.num_rows - 1))[0]))


def test_every_file_names_the_digest_of_the_one_before_it(tracks: Path) -> None:
    """Also over a restart; and what lies beside the directory names the newest."""
    write(open_store(tracks), range(4))
    write(open_store(tracks, 2), range(4, 6))
    chain = chain_of(tracks)
    assert len(chain) == 8
    assert found_breaks(tracks) == []
    for (_, digest, _), (_, _, table) in pairwise(chain):
        assert table.head.previous_digest == digest
    ends = ends_of(tracks)
    assert (ends.newest, ends.digest) == chain[-1][:2]


def test_a_rewritten_file_does_not_fit_its_follower(tracks: Path) -> None:
    """A row is gone, and the file is sound by its own check."""
    write(open_store(tracks), range(4))
    rewrite(tracks / str(FileName(1, 2)))
    (told,) = found_breaks(tracks)
    assert str(FileName(1, 3)) in told


def test_merging_keeps_the_chain_and_tells_of_breaks(tracks: Path) -> None:
    """A merged file stands for the last that it replaces; a break in between is not merged away."""
    store = open_store(tracks)
    write(store, range(70))
    newest = ends_of(tracks)
    rewrite(tracks / str(FileName(1, 5)))
    store.retain(START + 10_000_000)
    merged = tracks / str(FileName(1, 63, Sort.MERGED))
    assert merged.exists()
    (told,) = found_breaks(tracks)
    assert str(FileName(1, 6)) in told
    assert ends_of(tracks) == newest
    head = table_of(merged).head
    assert is_named(digest_text(table_of(tracks / str(FileName(1, 63))).digest), "", head)


def test_what_was_dropped_by_age_is_written_down_first(tracks: Path) -> None:
    """The chain begins after that; its end stays where it was."""
    options = TrackOptions(retention_ms=1_000)
    store = open_store(tracks, options=options)
    write(store, range(5))
    newest = ends_of(tracks).newest
    store.retain(START + 20_000)
    ends = ends_of(tracks)
    assert [path.name for path in tracks.glob("*.parquet")] == [newest]
    assert ends.newest == newest
    assert ends.dropped == table_of(tracks / newest).head.previous


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), rewrite])
def test_a_start_that_misses_the_newest_file_says_so_for_good(tracks: Path, spoil: Callable[[Path], None]) -> None:
    """An old backup was put back while the broker was down: its first file tells, whatever is merged later."""
    write(open_store(tracks), range(4))
    spoil(tracks / ends_of(tracks).newest)
    write(open_store(tracks, 2), range(4, 6))
    assert any(str(FileName(1, 4)) in told for told in found_breaks(tracks))


def test_a_crash_between_the_file_and_the_record_breaks_nothing(tracks: Path) -> None:
    """The record names the file before the newest; the next start goes on."""
    write(open_store(tracks), range(4))
    before = chain_path(tracks).read_bytes()
    write(open_store(tracks, 2), range(4, 5))
    chain_path(tracks).write_bytes(before)
    write(open_store(tracks, 3), range(5, 6))
    assert found_breaks(tracks) == []


def test_nonsense_in_the_record_is_no_record(tracks: Path) -> None:
    """A broker starts all the same, and writes it anew."""
    write(open_store(tracks), range(2))
    chain_path(tracks).write_bytes(b"{")
    assert decode_ends(DirectoryFiles(tracks).read_chain()) is None
    write(open_store(tracks, 2), range(2, 3))
    assert ends_of(tracks).newest == chain_of(tracks)[-1][0]
