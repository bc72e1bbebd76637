"""File descriptors: how many there are, and how many of them connections may take.

A log that cannot open its next segment looks like a failed disk, so connections never take the last descriptors.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger("postroad.node")

RESERVED_MIN: Final = 64
RESERVED_MAX: Final = 512
UNLIMITED: Final = 1 << 20


def raise_limit() -> None:
    """Raise this process's soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        log.warning("the limit of open files stays at %d: %s", soft, error)


def connections_within(limit: int, wanted: int, links: int) -> int:
    """Return how many connections may be open at a time; `links` are dialled by us and come on top.

    An eighth is kept for logs, metadata, tracks, queues and links, within bounds.
    """
    reserved = min(max(RESERVED_MIN, limit // 8), RESERVED_MAX) + 2 * links
    return max(1, min(wanted, limit - reserved))


def connections_max(wanted: int, links: int) -> int:
    """Return the configured maximum, or less when the operating system allows less."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = UNLIMITED if soft == resource.RLIM_INFINITY else soft
    possible = connections_within(limit, wanted, links)
    if possible < wanted:
        log.warning("at most %d connections instead of %d: the limit of open files is %d (ulimit -n)", possible, wanted, limit)
    return possible
