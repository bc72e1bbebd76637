"""What is compiled: the loops of tracking that numpy needs several passes for, scattered bits above all (`blooms.c`).

The installation compiles it where there is a compiler (`hatch_build.py`). Where there is none, or the package runs from a
checkout that was never installed, `library` is None and numpy does the same work, three times slower. The library knows nothing
of Python, so it fits every version of it. The name of a function carries a number that changes with what it computes: a library
that an older checkout has left behind is not used.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

LIBRARY: Final = Path(__file__).with_name("blooms.so")


class Finding(NamedTuple):
    """Searches for many ids at once; `spark/jobs/matching.py` says what the arguments are."""

    bloom_find: Callable[[int, int, int, int], None]  # probes, their count, ids, bytes per id of what is found
    ids_find: Callable[[int, int, int, int, int], None]  # lookups, their count, ids, their count, bytes per id
    ids_pack: Callable[[int, int, int, int, int, int, int, int], None]  # columns, offsets, origins, rows; ids, whether in order


class Library(NamedTuple):
    """Arrays are given by their addresses."""

    bloom_add: Callable[[int, int, int, int, int], None]  # parts, their count, m, k, salt
    extents: Callable[[int, int, int, int, int, int], None]  # ids, rows, stops, their count, lows, highs
    finding: Finding | None  # None in a library that an older checkout has compiled


def load(path: Path) -> Library | None:
    """Return the functions, or None if there is no library here, or not the one that is meant."""
    if sys.byteorder != "little" or not path.exists():
        return None
    try:
        found = ctypes.CDLL(str(path))
        bloom_add, extents = found.postroad_bloom_add_4, found.postroad_extents_1
    except (OSError, AttributeError):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    bloom_add.argtypes = [pointer, size, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64]
    extents.argtypes = [pointer, pointer, pointer, size, pointer, pointer]
    bloom_add.restype = extents.restype = None
    return Library(bloom_add, extents, _finding(found))


def _finding(found: ctypes.CDLL) -> Finding | None:
    try:
        bloom_find, ids_find, ids_pack = found.postroad_bloom_find_1, found.postroad_ids_find_1, found.postroad_ids_pack_1
    except AttributeError:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    bloom_find.argtypes = [pointer, size, pointer, size]
    ids_find.argtypes = [pointer, size, pointer, size, size]
    ids_pack.argtypes = [*(pointer,) * 5, size, pointer, pointer]
    bloom_find.restype = ids_find.restype = ids_pack.restype = None
    return Finding(bloom_find, ids_find, ids_pack)


library: Final = load(LIBRARY)
