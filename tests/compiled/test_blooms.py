"""The compiled ADD against numpy's, and what happens where it is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import hatch_build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.tracking.ids import make_ids

from postroad import compiled
from postroad.core.tracking import blooms

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
        patch.setattr(compiled, "bloom_add", compiled.load(library))
        blooms.add_ids(memory[8:-8], array, m, k, masks, broker)
    blooms.add_ids_by_numpy(by_numpy, array, m, k, masks, broker)
    assert memory[8:-8].tobytes() == by_numpy.tobytes()
    assert not memory[:8].any()
    assert not memory[-8:].any()


@needs_compiler
def test_bits_that_were_there_stay(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding in parts is adding at once; ids may stand apart in memory."""
    monkeypatch.setattr(compiled, "bloom_add", compiled.load(library))
    ids = make_ids(2_000)
    parts, whole = blooms.empty(65_536), blooms.empty(65_536)
    blooms.add_ids(parts, ids[::2], 65_536, 16)
    blooms.add_ids(parts, ids[1::2], 65_536, 16)
    blooms.add_ids(whole, ids, 65_536, 16)
    assert parts.tobytes() == whole.tobytes()


@needs_compiler
def test_the_installation_has_compiled_it() -> None:
    """Where there is a compiler, `make setup` has used it; if this fails, run that."""
    assert compiled.bloom_add is not None


@needs_compiler
def test_a_library_that_computes_something_else_is_not_used(tmp_path: Path) -> None:
    """Left behind by an older checkout: its function has another name. A file that is no library counts as none too."""
    source, older = tmp_path / "older.c", tmp_path / "older.so"
    source.write_text("void postroad_bloom_add_1(void) {}\n")
    subprocess.run([*hatch_build.compiler(), "-shared", "-fPIC", "-o", older, source], check=True)
    assert compiled.load(older) is None
    text = tmp_path / "text.so"
    text.write_bytes(b"not a library")
    assert compiled.load(text) is None
    assert compiled.load(tmp_path / "missing.so") is None


def test_without_it_numpy_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library: the same bits."""
    monkeypatch.setattr(compiled, "bloom_add", None)
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
