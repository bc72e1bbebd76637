"""The covering graph of advertisements, and what a subscription demands of a broker (the RacsCBPS paper, sections 3.1 to 3.5).

An advertisement says that some publishers send messages that match a filter, at most so many a
second. Equal filters are one *node*. A node stands below the nodes that cover it; an edge leads
from it to each node that it covers with none between (its *successors*), and back (its
*predecessors*). Each node knows how many advertisements stand at it or below it (`count`) and the
sum of their rates (`rate`).

Advertising (3.2) adds to the node and to all its ancestors, each once: case (a). A new filter is
put between its predecessors and successors: case (b). What stands below it is counted over the
*set* of nodes below, so a node that is below two successors counts once. The paper corrects the
double counting by the successors of the successors; that misses what they share further down
(`tests/papers/test_racs.py` has a graph of five nodes). We sum what each node advertises itself,
which is the same formula with the sets taken whole. Withdrawing (3.3) takes the same way back; a
node without advertisements goes, and its predecessors take over the successors that nothing else
connects to them.

A subscription's demand is exact where its filter stands in the graph, and otherwise lies between
the largest rate below it and the smallest above: formula (1), here `formula`. Theorem 1 says that
messages then arrive within these bounds. Its upper bound assumes that nothing from outside reaches
into the filter: an advertisement that *overlaps* it without being covered by the node above can
exceed the bound, as `x < 9` does for a subscription `x > 5` below `x > 3`. A guarantee must not
rest on that. So brokers reserve by `demand`: the sum of all that the filter covers, and of all that
it may have messages in common with. Where the theorem's assumption holds, that interval lies within
the one of formula (1).

Rates are whole numbers of thousandths of a message per second (`millirate`), so what is added and
taken away leaves nothing.

Cost: an index finds the nodes that cover a filter, are covered by it or overlap it, so an operation
costs about as much as nodes are really related to its filter. Invariants: no two nodes have the
same filter; edges form no circle, and none leads past a node in between; `rate` and `count` of a
node are the sums over the set of all nodes reached from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from postroad.core.broker.admission.estimating import Histograms, expected
from postroad.core.filters.algebra.hulls import BOXES_MAX
from postroad.core.filters.filter import Filter
from postroad.core.filters.index.covering_index import CoveringIndex, Search

NODES_MAX: Final = 1 << 17
_WITHOUT_LIMIT: Final = 1 << 62


class Interval(NamedTuple):
    """Bounds; `high` is None where nothing bounds it from above."""

    low: int
    high: int | None

    @property
    def is_exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Demand:
    """What a subscription asks of a broker: how many thousandths of a message per second, from how many advertisements."""

    millirate: Interval
    count: Interval


@dataclass(slots=True)
class Share:
    """What the publishers of one pubend advertise with one filter."""

    count: int = 0
    millirate: int = 0
    sampled: list[tuple[int, Histograms]] | None = None  # those of `millirate` whose values are sampled, with their rates

    def expected(self, wanted: Iterable[Filter]) -> int:
        """Return how much of it filters that overlap it are expected to bring together."""
        if self.sampled is None:
            return self.millirate
        rest, found, filters = self.millirate, 0, list(wanted)
        for millirate, histograms in self.sampled:
            mask = 0
            for each in filters:
                mask |= histograms.mask(each)
            rest -= millirate
            found += expected(millirate, mask)
        return rest + found


class Node:
    """One advertised filter in the graph."""

    __slots__ = ("count", "filter", "is_exact", "millirate", "own", "predecessors", "shares", "successors")

    def __init__(self, filter_: Filter) -> None:
        self.filter = filter_
        self.is_exact = is_exact(filter_)
        self.shares: dict[int, Share] = {}  # by pubend: what is advertised with this very filter
        self.own = Share()  # all of it
        self.count = 0  # here and below
        self.millirate = 0
        self.predecessors: dict[Node, None] = {}
        self.successors: dict[Node, None] = {}

    def __repr__(self) -> str:
        return f"Node({str(self.filter)!r}, count={self.count}, millirate={self.millirate})"


class RelatedFilters(CoveringIndex[Filter]):
    """The filters that may cover, lie below or overlap a given one. The filters found still have to be compared."""

    def __init__(self) -> None:
        super().__init__()
        self._long: dict[Filter, None] = {}  # of more boxes than hulls are kept of

    def put(self, filter_: Filter) -> None:
        self.add(filter_, filter_.hulls)
        if len(filter_.normal.boxes) > BOXES_MAX:
            self._long[filter_] = None

    def take(self, filter_: Filter) -> None:
        self.remove(filter_)
        self._long.pop(filter_, None)

    def covering(self, filter_: Filter) -> Iterator[Filter]:
        """Yield the other filters that cover this one, each once."""
        hulls = filter_.hulls
        if not hulls:
            return
        for member in dict.fromkeys(self.above(hulls[0], Search(_WITHOUT_LIMIT))):
            if member != filter_ and member.covers(filter_):
                yield member

    def covered(self, filter_: Filter) -> Iterator[Filter]:
        """Yield the other filters that this one covers, each once."""
        found: dict[Filter, None] = {}
        for hull in filter_.hulls:
            found.update(dict.fromkeys(self.below(hull, Search(_WITHOUT_LIMIT))))
        for member in found:
            if member != filter_ and _holds_first(filter_, member) and filter_.covers(member):
                yield member

    def overlapping(self, filter_: Filter) -> Iterator[Filter]:
        """Yield all filters that may have a message in common with this one, itself included, each once."""
        if len(filter_.normal.boxes) > BOXES_MAX:
            yield from (member for member in self if member.overlaps(filter_) is not False)
            return
        found: dict[Filter, None] = dict(self._long)
        for hull in filter_.hulls:
            found.update(dict.fromkeys(self.meeting(hull)))
        simple = is_simple(filter_)
        for member in found:
            if (simple and is_simple(member)) or member.overlaps(filter_) is not False:
                yield member

    def __iter__(self) -> Iterator[Filter]:
        return iter(self._numbers)


class AdvertisementGraph:
    """All advertisements that a broker knows, ordered by covering."""

    def __init__(self) -> None:
        self._nodes: dict[Filter, Node] = {}
        self._same: dict[Filter, Filter] = {}  # filters that match the same messages as a node's, by proof
        self._index = RelatedFilters()

    def __len__(self) -> int:
        return len(self._nodes)

    def nodes(self) -> Iterable[Node]:
        return self._nodes.values()

    def find(self, filter_: Filter) -> Node | None:
        """Return the node of a filter."""
        return self._nodes.get(self._same.get(filter_, filter_))

    # --- advertise and withdraw ---

    def advertise(self, filter_: Filter, pubend: int, millirate: int, histograms: Histograms | None = None) -> Node:
        """Count an advertisement (section 3.2); return its node."""
        node = self.find(filter_)
        if node is None:
            node = self._insert(filter_)
        share = node.shares.setdefault(pubend, Share())
        self._add(node, share, 1, millirate)
        if histograms is not None:
            share.sampled = [*(share.sampled or ()), (millirate, histograms)]
        return node

    def withdraw(self, filter_: Filter, pubend: int, millirate: int, histograms: Histograms | None = None) -> Node:
        """Discount an advertisement (section 3.3); return its node, which may have gone."""
        node = self.find(filter_)
        assert node is not None, filter_
        share = node.shares[pubend]
        self._add(node, share, -1, -millirate)
        if histograms is not None:
            assert share.sampled is not None
            share.sampled.remove((millirate, histograms))
            share.sampled = share.sampled or None
        if not share.count:
            assert not share.millirate, share
            del node.shares[pubend]
        if not node.shares:
            self._remove(node)
        return node

    # --- what a subscription demands ---

    def formula(self, filter_: Filter) -> Demand:
        """Return the demand by formula (1). Without a node above there is no upper bound."""
        node = self.find(filter_)
        if node is not None:
            return Demand(Interval(node.millirate, node.millirate), Interval(node.count, node.count))
        # The least rate above is that of a predecessor, and the largest below that of a successor: rates grow upwards.
        above = [self._nodes[each] for each in self._index.covering(filter_)]
        below = [self._nodes[each] for each in self._index.covered(filter_)]
        return Demand(
            Interval(max((each.millirate for each in below), default=0), min((each.millirate for each in above), default=None)),
            Interval(max((each.count for each in below), default=0), min((each.count for each in above), default=None)),
        )

    def demand(self, filter_: Filter) -> Demand:
        """Return what may arrive for a filter: at least all that it covers, at most all that overlaps it."""
        below = [self._nodes[each] for each in self._index.covered(filter_)]
        node = self.find(filter_)
        if node is not None and node not in below:
            below = [node, *below]
        near = list(self.overlapping(filter_))
        return Demand(
            Interval(sum(each.own.millirate for each in below), sum(each.own.millirate for each in near)),
            Interval(sum(each.own.count for each in below), sum(each.own.count for each in near)),
        )

    def expected(self, filter_: Filter) -> int:
        """Return the rate that is expected for a filter: what overlaps it, as far as sampled values do not say less."""
        return sum(share.expected((filter_,)) for node in self.overlapping(filter_) for share in node.shares.values())

    def overlapping(self, filter_: Filter) -> Iterator[Node]:
        """Yield the nodes that may have a message in common with a filter."""
        for each in self._index.overlapping(filter_):
            yield self._nodes[each]

    # --- inside ---

    def _add(self, node: Node, share: Share, count: int, millirate: int) -> None:
        for part in (share, node.own):
            part.count += count
            part.millirate += millirate
        for each in (node, *ancestors(node)):
            each.count += count
            each.millirate += millirate

    def _insert(self, filter_: Filter) -> Node:
        above = closed((self._nodes[each] for each in self._index.covering(filter_)), up=True)
        below = closed((self._nodes[each] for each in self._index.covered(filter_)), up=False)
        same = next((each for each in above if each in below), None)
        if same is not None:
            self._same[filter_] = same.filter
            return same
        node = self._nodes[filter_] = Node(filter_)
        self._index.put(filter_)
        self._connect(node, above, below)
        for each in below:
            node.count += each.own.count
            node.millirate += each.own.millirate
        if not all(each.is_exact for each in (node, *above, *below)):
            # It may connect nodes that were not known to cover each other.
            for each in above:
                _sum_again(each)
        return node

    def _connect(self, node: Node, above: dict[Node, None], below: dict[Node, None]) -> None:
        """Put a node between those above and those below it."""
        predecessors = dict(above)
        for each in above:
            for further in each.predecessors:
                predecessors.pop(further, None)
        successors = dict(below)
        for each in below:
            for further in each.successors:
                successors.pop(further, None)
        for lower in successors:
            for upper in list(lower.predecessors):
                if upper in above:
                    del lower.predecessors[upper], upper.successors[lower]
        for upper in predecessors:
            _link(upper, node)
        for lower in successors:
            _link(node, lower)

    def _remove(self, node: Node) -> None:
        del self._nodes[node.filter]
        self._index.take(node.filter)
        if self._same:
            self._same = {filter_: same for filter_, same in self._same.items() if same != node.filter}
        for upper in node.predecessors:
            del upper.successors[node]
        for lower in node.successors:
            del lower.predecessors[node]
        if not node.predecessors:
            return
        for lower in node.successors:
            reached = ancestors(lower)
            for upper in node.predecessors:
                if upper not in reached:
                    _link(upper, lower)


def is_exact(filter_: Filter) -> bool:
    """Tell whether `covers` never says no to what is so, between two filters of this kind."""
    normal = filter_.normal
    return len(normal.boxes) == 1 and normal.is_plain and normal.is_independent


def is_simple(filter_: Filter) -> bool:
    """Tell whether the filter is one interval for each attribute: then two that look as if they overlap do."""
    if not is_exact(filter_):
        return False
    return all(
        constraint.flags == 0 and isinstance(constraint.strings, tuple) and len(constraint.numbers) + len(constraint.strings) == 2
        for constraint in filter_.normal.boxes[0].values()
    )


def ancestors(node: Node) -> dict[Node, None]:
    """Return every node above a node, each once."""
    return closed(node.predecessors, up=True)


def descendants(node: Node) -> dict[Node, None]:
    """Return every node below a node, each once."""
    return closed(node.successors, up=False)


def closed(nodes: Iterable[Node], *, up: bool) -> dict[Node, None]:
    """Return the nodes with all that stand above, or below, any of them."""
    found = dict.fromkeys(nodes)
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        for each in node.predecessors if up else node.successors:
            if each not in found:
                found[each] = None
                waiting.append(each)
    return found


def _link(upper: Node, lower: Node) -> None:
    upper.successors[lower] = None
    lower.predecessors[upper] = None


def _sum_again(node: Node) -> None:
    below = [node, *descendants(node)]
    node.count = sum(each.own.count for each in below)
    node.millirate = sum(each.own.millirate for each in below)


def _holds_first(filter_: Filter, member: Filter) -> bool:
    """Ask what the search from below asks, so that two filters are related the same way whichever came first."""
    return len(member.hulls) == 1 or (
        bool(member.hulls)
        and any(set(hull.keys).issubset(member.hulls[0].keys) and hull.holds(member.hulls[0]) for hull in filter_.hulls)
    )
