"""How busy the broker's thread is, and how much memory the machine has left: what admission control measures.

A thread that always has something to do is at the limit of its CPU, also when other programs take a
part of that CPU. Linux counts for each thread how long it ran and how long it waited for a CPU; both
are *busy* here. Elsewhere only the time that it ran is known.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")  # nanoseconds that it ran, and that it waited
MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")
KIB: Final = 1024


def busy_s(schedstat: Path = SCHEDSTAT) -> float:
    """Return how long this thread has used a CPU or waited for one."""
    try:
        ran, waited = schedstat.read_text(encoding="ascii").split()[:2]
    except (OSError, ValueError):
        return time.thread_time()
    return (int(ran) + int(waited)) / 1e9


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return how many bytes programs may still allocate, on the machine and in the control group; None if it is not known."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    available = next((int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:")), None)
    in_group = _available_in_group(cgroup)
    if available is None or in_group is None:
        return available
    return min(available, in_group)


def _available_in_group(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = (cgroup / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else None
