"""Elements for tests of track files, and how to compare them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE, NO_SINGLETONS, Element, HistoryKey, Kind
from postroad.tracking.histories.settings import Strategy

BROKER = 7
START = 1_790_000_000_000
M, K, N = 4096, 8, 300


def ids_at(times: Sequence[int], publishers: Sequence[int] = (1, 2, 3), broker: int = BROKER) -> Ids:
    """Make an id per timestamp, which decides the publisher the counter tells equal timestamps apart."""
    made = np.empty(len(times), ID_DTYPE)
    seen: dict[int, int] = {}
    for row, ms in enumerate(times):
        counter = seen[ms] = seen.get(ms, -1) + 1
        made[row] = (publishers[ms % len(publishers)], broker, ms << 16 | counter)
    return made.view(np.dtype((np.void, 16)))


def element(
    number: int,
    ids: Ids,
    *,
    strategy: Strategy = Strategy.EXACT,
    kind: Kind = Kind.PUBLISHER,
    incarnation: int = 1,
    subscriber: str = "",
    peer: int = 0,
    late: Sequence[int] = (),
    opened_ms: int = START,
) -> Element:
    """Make an element that holds these ids; those with the timestamps `late` are singletons."""
    parts = ids.view(ID_DTYPE)
    times = (parts["tick"].astype(np.int64) >> 16).tolist()
    ranged = [ms for ms in times if ms not in late]
    origin = int(parts["broker"][0]) if len(parts) else BROKER
    bits = None
    if strategy is Strategy.BLOOM:
        bits = np.zeros(M // 8, np.uint8)
        blooms.add(bits, blooms.positions(ids, M, K, broker=BROKER))
    return Element(
        key=HistoryKey(kind, origin, peer, subscriber),
        incarnation=incarnation,
        number=number,
        strategy=strategy,
        opened_ms=opened_ms,
        closed_ms=opened_ms + 10_000,
        from_ms=min(ranged, default=1),
        to_ms=max(ranged, default=0),
        singletons=np.array(late, np.int64) if late else NO_SINGLETONS,
        count=len(ids),
        m=M if bits is not None else 0,
        k=K if bits is not None else 0,
        n=N if bits is not None else 0,
        bits=bits,
        ids=None if bits is not None else ids,
        broker=BROKER,
    )


def plain(each: Element) -> tuple[object, ...]:
    """Return an element as values that compare."""
    return (
        *(each.key, each.incarnation, each.number, each.strategy, each.opened_ms, each.closed_ms, each.from_ms, each.to_ms),
        *(each.singletons.tolist(), each.count, each.m, each.k, each.n, each.neighbours, each.broker),
        None if each.bits is None else bytes(each.bits),
        None if each.ids is None else each.ids.tobytes(),
    )
