"""The compiled ADD against numpy's, and what happens where it is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import hatch_build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.ids import make_ids

from postroad import compiled
from postroad.tracking.histories import blooms

needs_compiler = pytest.mark.skipif(not hatch_build.compiler(), reason="there is no C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("compiled") / "blooms.so"
    assert not hatch_build.build(made)
    return made


@needs_compiler
@given(
    ids=st.lists(st.binary(min_size=16, max_size=16), max_size=20),
    m=st.sampled_from([1, 8, 1_000, 4_096, 65_536, 100_003, 1 << 20]) | st.integers(1, 1 << 20),
    k=st.integers(1, 64),
    mask=st.none() | st.integers(0, (1 << 64) - 1),
    broker=st.integers(0, 0xFFFF_FFFF),
    unaligned=st.booleans(),
)
def test_it_sets_the_bits_that_numpy_sets(
    library: Path, ids: list[bytes], m: int, k: int, mask: int | None, broker: int, unaligned: bool
) -> None:
    """Same bits, none outside, for any m, k, mask and broker, wherever the ids begin."""
    array = np.frombuffer(b"?" * unaligned + b"".join(ids), "V16", offset=int(unaligned))
    masks = None if mask is None else np.full(len(ids), mask, np.uint64)
    memory = np.zeros((m + 7 >> 3) + 16, np.uint8)
    by_numpy = blooms.empty(m)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "library", compiled.load(library))
        blooms.add_ids(memory[8:-8], array, m, k, masks, broker)
    blooms.add_ids_by_numpy(by_numpy, array, m, k, masks, broker)
    assert memory[8:-8].tobytes() == by_numpy.tobytes()
    assert not memory[:8].any()
    assert not memory[-8:].any()


@needs_compiler
def test_bits_that_were_there_stay(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding in parts is adding at once; ids may stand apart in memory."""
    monkeypatch.setattr(compiled, "library", compiled.load(library))
    ids = make_ids(2_000)
    parts, whole = blooms.empty(65_536), blooms.empty(65_536)
    blooms.add_ids(parts, ids[::2], 65_536, 16)
    blooms.add_ids(parts, ids[1::2], 65_536, 16)
    blooms.add_ids(whole, ids, 65_536, 16)
    assert parts.tobytes() == whole.tobytes()


@needs_compiler
@given(
    parts=st.lists(st.lists(st.integers(0, 29), max_size=5), max_size=6),
    masked=st.booleans(),
    m=st.sampled_from([1_000, 65_536]),
    unaligned=st.booleans(),
)
def test_many_additions_set_the_bits_that_numpy_sets(
    library: Path, parts: list[list[int]], masked: bool, m: int, unaligned: bool
) -> None:
    """Rows of one array of ids for several blooms, some of them twice; without rows, the ids as they stand."""
    ids = np.frombuffer(b"?" * unaligned + make_ids(30).tobytes(), "V16", offset=int(unaligned))
    found = {}
    for way in (compiled.load(library), None):
        made = [blooms.empty(m) for _ in range(4)]
        additions = [blooms.Addition(made[3], ids[:7])]
        for number, rows in enumerate(parts):
            masks = np.array(rows, np.uint64) + np.uint64(number) if masked else None
            additions.append(blooms.Addition(made[number % 3], ids, np.array(rows, np.uint32), masks))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "library", way)
            blooms.add_all(additions, m, 5, broker=2)
        found[way is None] = [bits.tobytes() for bits in made]
    assert found[True] == found[False]


@needs_compiler
@given(
    ticks=st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=12),
    parts=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=5), min_size=1, max_size=6),
    unaligned=st.booleans(),
)
def test_extents_are_the_lowest_and_the_highest_tick(
    library: Path, ticks: list[int], parts: list[list[int]], unaligned: bool
) -> None:
    """Of each part of the rows, by either way."""
    data = b"?" * unaligned + b"".join(b"\xff" * 8 + tick.to_bytes(8, "big") for tick in ticks)
    ids = np.frombuffer(data, "V16", offset=int(unaligned))
    parts = [[row % len(ticks) for row in rows] for rows in parts]
    rows = np.array([row for each in parts for row in each], np.uint32)
    expected = [[min(ticks[row] for row in each) for each in parts], [max(ticks[row] for row in each) for each in parts]]
    for way in (compiled.load(library), None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "library", way)
            lows, highs = blooms.extents(ids, rows, np.cumsum([len(each) for each in parts]))
        assert [lows.tolist(), highs.tolist()] == expected


@needs_compiler
def test_the_installation_has_compiled_it() -> None:
    """Where there is a compiler, `make setup` has used it; if this fails, run that."""
    assert compiled.library is not None


@needs_compiler
def test_a_library_that_computes_something_else_is_not_used(tmp_path: Path) -> None:
    """Left behind by an older checkout: one of its functions has another name. A file that is no library counts as none too."""
    source, older = tmp_path / "older.c", tmp_path / "older.so"
    source.write_text("void postroad_bloom_add_1(void) {}\nvoid postroad_extents_1(void) {}\n")
    subprocess.run([*hatch_build.compiler(), "-shared", "-fPIC", "-o", older, source], check=True)
    assert compiled.load(older) is None
    text = tmp_path / "text.so"
    text.write_bytes(b"not a library")
    assert compiled.load(text) is None
    assert compiled.load(tmp_path / "missing.so") is None


def test_without_it_numpy_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library: the same bits."""
    monkeypatch.setattr(compiled, "library", None)
    ids, bits = make_ids(5_000), blooms.empty(65_536)
    blooms.add_ids(bits, ids, 65_536, 16, broker=3)
    assert blooms.contains(bits, blooms.positions(ids, 65_536, 16, broker=3)).all()


def test_without_a_compiler_the_installation_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler, or one that fails: a reason, and no library, not even one from before."""
    library = tmp_path / "blooms.so"
    library.write_bytes(b"old")
    monkeypatch.setattr(hatch_build, "compiler", list)
    assert hatch_build.build(library) == "there is no C compiler"
    assert not library.exists()
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho no space >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(hatch_build, "compiler", lambda: [str(failing)])
    assert hatch_build.build(library).endswith("cc failed: no space")
    assert list(tmp_path.iterdir()) == [failing]
