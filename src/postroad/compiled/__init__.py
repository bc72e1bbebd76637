"""What is compiled: the one loop that numpy cannot do well, scattered bits (`blooms.c`).

The installation compiles it where there is a compiler (`hatch_build.py`). Where there is none, or the package runs from a
checkout that was never installed, `bloom_add` is None and numpy does the same work, three times slower. The library knows nothing
of Python, so it fits every version of it. The name of the function carries a number that changes with what it computes: a library
that an older checkout has left behind is not used.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

LIBRARY: Final = Path(__file__).with_name("blooms.so")

BloomAdd: TypeAlias = Callable[[int, int, int | None, int, int, int, int], None]
"""Takes the addresses of the bits, the ids and the masks, the count, m, k and the salt."""


def load(library: Path) -> BloomAdd | None:
    """Return the function, or None if there is no library here, or not the one that is meant."""
    if sys.byteorder != "little" or not library.exists():
        return None
    try:
        found = ctypes.CDLL(str(library)).postroad_bloom_add_2
    except (OSError, AttributeError):
        return None
    pointer = ctypes.c_void_p
    found.argtypes = [pointer, pointer, pointer, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64]
    found.restype = None
    add: BloomAdd = found
    return add


bloom_add: Final = load(LIBRARY)
