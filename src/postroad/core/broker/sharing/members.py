"""The members of one shared subscription: who is given which row, and what is finished.

A pure machine without links, packets or disks; `groups` connects it to those. Rows come in (`add`), are given to members
(`give`), and are finished when a member acknowledges them (`finish`) and that is on disk (`stored`). A member that leaves gives
back what it holds. `docs/internals/shared-subscriptions.md` says what is promised.

Invariants:

- A row is held by at most one member. Only its holder can finish it, and a finished row is never given again.
- Free rows are given in the order in which they came, so a row that comes back is given before newer ones.
- Of the rows with the same key at most one is held or waits for the disk, and it is the oldest one (`_Lane`).
- Everything that matches up to `floor` of a pubend is finished. Above it, `unfinished` says what is not.
- `unfinished` is true by itself, whatever the cursors that it is stored with: it only says that rows are finished.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.types import AttributeValue

MEMBERS_MAX: Final = 256
CREDIT_MAX: Final = 4096  # rows that one member may hold
ROWS_MAX: Final = 8192  # rows that are kept for all members; then no more are taken until there are fewer than half
BYTES_MAX: Final = 16 << 20  # the same in bytes, about

_Key = tuple[str, AttributeValue]


@dataclass(slots=True, eq=False)
class Row:
    """A row that is not finished. `order` is its place among all rows that came."""

    order: int
    pubend: int
    tick: int
    key: _Key | None
    batch: Batch
    index: int
    size: int


@dataclass(slots=True)
class _Member:
    credit: int
    takes_rows: bool = True
    held: dict[tuple[int, int], Row] = field(default_factory=dict)  # by (pubend, tick)

    @property
    def has_room(self) -> bool:
        return self.takes_rows and len(self.held) < self.credit


@dataclass(slots=True)
class _Lane:
    """The rows with one key. `first` is free, held, or waits for the disk; the others wait behind it."""

    first: Row
    others: deque[Row] = field(default_factory=deque)


@dataclass(slots=True)
class _Stretch:
    """One pubend. Every matching row up to `reached` came, and those that are not finished are in `ticks`."""

    reached: int
    highest: int = 0  # of the finished rows
    ticks: list[int] = field(default_factory=list)  # ascending
    carried: list[int] = field(default_factory=list)  # unfinished rows below `highest` that have not come yet, ascending

    @property
    def floor(self) -> int:
        return self.ticks[0] - 1 if self.ticks else self.reached

    def is_finished(self, tick: int) -> bool:
        """Tell whether a row that comes was finished in a former life of the group."""
        if tick > self.highest:
            return False
        place = bisect_left(self.carried, tick)
        return place == len(self.carried) or self.carried[place] != tick

    def reach(self, tick: int) -> None:
        self.reached = max(self.reached, tick)
        del self.carried[: bisect_left(self.carried, self.reached + 1)]

    def unfinished(self, cursor: int) -> list[int]:
        """Return the highest finished tick and the unfinished ones below it; nothing if all of that lies below the cursor."""
        if self.highest <= cursor:
            return []
        return [self.highest, *self.ticks[: bisect_left(self.ticks, self.highest)], *self.carried]


@dataclass(frozen=True, slots=True)
class Given:
    """Rows of one pubend for one member, in order."""

    member: int
    pubend: int
    rows: Batch


class Members:
    """The members of one shared subscription, and the rows that are not finished. `key` is an attribute, empty for no order."""

    def __init__(self, key: str = "", *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._key = key
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._members: dict[int, _Member] = {}
        self._stretches: dict[int, _Stretch] = {}
        self._lanes: dict[_Key, _Lane] = {}
        self._finished_lanes: dict[tuple[int, int], _Key] = {}  # by (pubend, tick): acknowledged rows that are not on disk yet
        self._free: list[tuple[int, Row]] = []  # a heap by `Row.order`: rows that nobody holds and that may be given
        self._orders = 0
        self._rows = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._members)

    # --- members ---

    def join(self, member: int, credit: int) -> None:
        """Add a member that may hold `credit` rows."""
        self._members[member] = _Member(min(credit, CREDIT_MAX))

    def leave(self, member: int) -> None:
        """Remove a member; what it holds is free again."""
        for row in self._members.pop(member).held.values():
            heapq.heappush(self._free, (row.order, row))

    def take_rows(self, member: int, *, ready: bool) -> None:
        """Stop or go on giving rows to a member."""
        self._members[member].takes_rows = ready

    def held_by(self, member: int) -> int:
        """Return how many rows a member holds."""
        return len(self._members[member].held)

    # --- rows ---

    def begin(self, pubend: int, tick: int, unfinished: Sequence[int] = ()) -> None:
        """Begin in a pubend after a tick, with what a former life of the group stored (see `unfinished`)."""
        stretch = self._stretches[pubend] = _Stretch(tick)
        if unfinished:
            stretch.highest = unfinished[0]
            stretch.carried = sorted(each for each in unfinished[1:] if each > tick)

    def add(self, pubend: int, rows: Batch, hi: int) -> Batch | None:
        """Take the rows of a delivery up to `hi`, which goes on where the last one ended.

        Return those that members of a former group have finished.
        """
        stretch = self._stretches.setdefault(pubend, _Stretch(0))
        ticks = [int(tick) for tick in rows.ticks()]
        if not all(stretch.reached < tick for tick in ticks):
            rows = rows.within(stretch.reached, max(hi, stretch.reached))
            ticks = [int(tick) for tick in rows.ticks()]
        fresh = [index for index, tick in enumerate(ticks) if not stretch.is_finished(tick)]
        if fresh:
            kept = rows.compact()  # the rows outlive the batch that they come from
            size = kept.size // len(kept)
            for index, key in zip(fresh, self._keys_of(kept, fresh), strict=True):
                self._add_row(stretch, pubend, ticks[index], key, kept, index, size)
        self.reach(pubend, hi)
        if len(fresh) == len(ticks):
            return None
        taken = dict.fromkeys(fresh)
        return rows.take([index for index in range(len(ticks)) if index not in taken])

    def _add_row(self, stretch: _Stretch, pubend: int, tick: int, key: _Key | None, kept: Batch, index: int, size: int) -> None:
        self._orders += 1
        row = Row(self._orders, pubend, tick, key, kept, index, size)
        insort(stretch.ticks, tick)
        self._rows += 1
        self._bytes += size
        lane = None if key is None else self._lanes.get(key)
        if lane is not None:
            lane.others.append(row)
            return
        if key is not None:
            self._lanes[key] = _Lane(row)
        heapq.heappush(self._free, (row.order, row))

    def _keys_of(self, rows: Batch, indices: Iterable[int]) -> Iterator[_Key | None]:
        column = rows.attribute(self._key) if self._key else None
        for index in indices:
            value = None if column is None else column[index].as_py()
            if value is None:
                yield None
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield ("number", value) if value == value else ("nan", "")  # noqa: PLR0124  # NaN does not equal itself
            else:
                yield type(value).__name__, value

    def reach(self, pubend: int, tick: int) -> None:
        """Note that no more rows come up to a tick: nothing more matches, or the rest is gone."""
        self._stretches.setdefault(pubend, _Stretch(0)).reach(tick)

    @property
    def is_full(self) -> bool:
        return self._rows >= self._rows_max or self._bytes >= self._bytes_max

    @property
    def is_half_empty(self) -> bool:
        return self._rows <= self._rows_max // 2 and self._bytes <= self._bytes_max // 2

    @property
    def rows(self) -> int:
        """How many rows are not finished."""
        return self._rows

    @property
    def held_rows(self) -> int:
        """How many of them members hold."""
        return sum(len(member.held) for member in self._members.values())

    # --- giving ---

    def give(self, stopped: Collection[int] = ()) -> list[Given]:
        """Give free rows to members with room, the oldest first, each to the member that holds the fewest; none to `stopped`."""
        room = [
            (len(member.held), number) for number, member in self._members.items() if member.has_room and number not in stopped
        ]
        heapq.heapify(room)
        given: dict[tuple[int, int], list[list[Row]]] = {}  # by member and pubend: rows that came in the same batch
        while self._free and room:
            _, row = heapq.heappop(self._free)
            number = room[0][1]
            member = self._members[number]
            member.held[row.pubend, row.tick] = row
            parts = given.setdefault((number, row.pubend), [])
            if parts and parts[-1][-1].batch is row.batch:
                parts[-1].append(row)
            else:
                parts.append([row])
            if member.has_room:
                heapq.heapreplace(room, (len(member.held), number))
            else:
                heapq.heappop(room)
        return [self._as_given(number, pubend, rows) for (number, pubend), parts in given.items() for rows in parts]

    @staticmethod
    def _as_given(member: int, pubend: int, rows: list[Row]) -> Given:
        """Take the rows out of the batch they came in, so that a row that is held long does not keep the others."""
        batch = rows[0].batch.take([row.index for row in rows])
        if len(batch) < len(rows[0].batch):
            batch = batch.compact()
        for index, row in enumerate(rows):
            row.batch, row.index = batch, index
        return Given(member, pubend, batch)

    # --- finishing ---

    def finish(self, member: int, pubend: int, ticks: Iterable[int]) -> tuple[list[int], list[int]]:
        """Finish rows that a member holds. Return their ticks, and those of rows that it does not hold: they are refused."""
        held = self._members[member].held
        done: list[int] = []
        refused: list[int] = []
        for tick in ticks:
            row = held.pop((pubend, tick), None)
            if row is None:
                refused.append(tick)
                continue
            done.append(tick)
            stretch = self._stretches[pubend]
            del stretch.ticks[bisect_left(stretch.ticks, tick)]
            stretch.highest = max(stretch.highest, tick)
            self._rows -= 1
            self._bytes -= row.size
            if row.key is not None:
                self._finished_lanes.setdefault((pubend, tick), row.key)
        return done, refused

    def stored(self, pubend: int, ticks: Iterable[int]) -> None:
        """Note that acknowledgements are on disk: the next rows with the same keys may be given."""
        for tick in ticks:
            key = self._finished_lanes.pop((pubend, tick), None)
            if key is None:
                continue
            lane = self._lanes[key]
            if lane.others:
                lane.first = lane.others.popleft()
                heapq.heappush(self._free, (lane.first.order, lane.first))
            else:
                del self._lanes[key]

    def floor(self, pubend: int) -> int:
        """Return the tick up to which everything is finished."""
        return self._stretches[pubend].floor

    def floors(self) -> dict[int, int]:
        return {pubend: stretch.floor for pubend, stretch in self._stretches.items()}

    def unfinished(self, cursors: Mapping[int, int]) -> dict[int, list[int]]:
        """Return, for each pubend with finished rows above its cursor, the highest of those and the unfinished ticks below it."""
        found = {pubend: stretch.unfinished(cursors.get(pubend, 0)) for pubend, stretch in self._stretches.items()}
        return {pubend: ticks for pubend, ticks in found.items() if ticks}


def still_unfinished(unfinished: Mapping[int, Sequence[int]], cursors: Mapping[int, int]) -> dict[int, list[int]]:
    """Leave out of a stored `unfinished` what lies below the cursors."""
    kept: dict[int, list[int]] = {}
    for pubend, (highest, *ticks) in unfinished.items():
        cursor = cursors.get(pubend, 0)
        if highest > cursor:
            kept[pubend] = [highest, *(tick for tick in ticks if tick > cursor)]
    return kept
