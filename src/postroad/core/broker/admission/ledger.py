"""The ledger: what the reserved filters bring over each link of a broker and to its CPU, and whether another one fits.

A *holder* is whoever reserved: the neighbour's link by which a reservation came, or `LOCAL` for the
clients of this broker. Its *scope* is the set of pubends whose messages go that way. A reserved
filter brings every advertisement of the scope that overlaps it: once over the link of its holder,
and once to the CPU of the broker, whatever the number of filters that want the same. So a filter
that is covered by what is reserved costs nothing more, and of one that overlaps it only the
difference counts.

The sums follow the advertisements as they come and go. Nobody is thrown out when they exceed a
capacity; only what would bring more is refused then. The paper computes a demand once, when the
subscription comes.

Cost: a reservation and a release look at the advertisements that overlap the filter, an
advertisement at the reserved filters that overlap it, and only if nothing was advertised with that
filter for its pubend before.

Memory is counted for reservations and for advertisements, as in section 4.2; both take about as
much as their filters.

Invariants: `brought(r)` is the sum of the rates of all advertisements with a use of r; the ledger
that was released completely is equal to a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from postroad.core.broker.admission.advertisements import AdvertisementGraph, Node, RelatedFilters
from postroad.core.filters.filter import Filter

Resource: TypeAlias = int  # a link, or CPU
LOCAL: Final = -1
CPU: Final[Resource] = -2
FILTER_BYTES: Final = 1_000  # about what a reservation or an advertisement takes, beside the text of its filter
BYTES_PER_CHARACTER: Final = 20  # of a filter: text, tree, normal form, index


class Holder(NamedTuple):
    """Whose reservations: the link by which they came, `LOCAL` for our own clients, and the flow on that link."""

    link: int
    flow: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """A reservation asks more of a resource than it has left; in thousandths of a message per second, memory in bytes."""

    resource: str  # "bandwidth", "cpu" or "memory"
    link: int  # of the bandwidth, else 0
    demanded: int
    available: int


@dataclass(slots=True)
class Capacities:
    """What a broker can do; None where nothing limits it."""

    cpu_millirate: int | None = None
    link_millirate: int | None = None
    memory_bytes: int | None = None
    links: dict[int, int] | None = None  # of single links, in place of `link_millirate`

    def of_link(self, link: int) -> int | None:
        return (self.links or {}).get(link, self.link_millirate)


class Ledger:
    """The reservations of one broker."""

    def __init__(self, graph: AdvertisementGraph, capacities: Capacities) -> None:
        self.capacities = capacities
        self.memory = 0  # of reservations
        self._advertised_memory = 0
        self._graph = graph
        self._filters = RelatedFilters()
        self._holders: dict[Filter, dict[Holder, int]] = {}  # reserved filter -> holder -> number of reservations
        self._held: dict[Holder, dict[Filter, None]] = {}
        self._scopes: dict[Holder, dict[int, None]] = {}
        self._uses: dict[Filter, dict[int, dict[Resource, int]]] = {}  # advertised filter -> pubend -> resource -> users
        self._brought: dict[Resource, int] = {}

    # --- what there is ---

    @property
    def memory_used(self) -> int:
        """About how much memory the reservations and the advertisements take."""
        return self.memory + self._advertised_memory

    def brought(self, resource: Resource) -> int:
        """Return how much the reserved filters bring to a resource."""
        return self._brought.get(resource, 0)

    def resources(self) -> Iterator[tuple[Resource, int]]:
        """Yield what is brought to each resource that is used."""
        yield from self._brought.items()

    def filters(self, holder: Holder) -> Iterable[Filter]:
        """Return what a holder has reserved, each filter once."""
        return self._held.get(holder, {})

    def holders(self, filter_: Filter) -> Iterable[tuple[Holder, int]]:
        """Return who reserved a filter, and how often."""
        return self._holders.get(filter_, {}).items()

    def reserved(self) -> Iterator[tuple[Filter, Holder, int]]:
        """Yield every reserved filter with its holder and the number of reservations."""
        for filter_, holders in self._holders.items():
            for holder, count in holders.items():
                yield filter_, holder, count

    def overlapping(self, filter_: Filter) -> Iterator[Filter]:
        """Yield the reserved filters that may have a message in common with this one."""
        return self._filters.overlapping(filter_)

    def added(self, filter_: Filter, holder: Holder, resource: Resource) -> Iterator[tuple[Node, int]]:
        """Yield each advertisement that reserving a filter would bring to a resource in addition, with its rate."""
        if holder in self._holders.get(filter_, ()):
            return
        for node, pubend in self._brings(filter_, holder):
            more = self._more(filter_, node, pubend, resource)
            if more:
                yield node, more

    def __len__(self) -> int:
        return sum(sum(holders.values()) for holders in self._holders.values())

    @property
    def is_empty(self) -> bool:
        return not (self._holders or self._held or self._uses or self._brought or self.memory)

    def cost(self, filter_: Filter, holder: Holder) -> dict[Resource, int]:
        """Return what reserving a filter would bring to each resource in addition."""
        resources = resources_of(holder)
        added = dict.fromkeys(resources, 0)
        if holder in self._holders.get(filter_, ()):
            return added
        for node, pubend in self._brings(filter_, holder):
            for resource in resources:
                added[resource] += self._more(filter_, node, pubend, resource)
        return added

    def limit(self, resource: Resource) -> int | None:
        return self.capacities.cpu_millirate if resource == CPU else self.capacities.of_link(resource)

    def check(self, filter_: Filter, holder: Holder) -> list[Shortage]:
        """Return what is missing for a reservation; nothing if it fits (section 4.2)."""
        missing = []
        for resource, added in self.cost(filter_, holder).items():
            limit = self.limit(resource)
            if added and limit is not None and self.brought(resource) + added > limit:
                kind, link = ("cpu", 0) if resource == CPU else ("bandwidth", resource)
                missing.append(Shortage(kind, link, added, max(0, limit - self.brought(resource))))
        memory, size = self.capacities.memory_bytes, size_of(filter_)
        if memory is not None and self.memory_used + size > memory:
            missing.append(Shortage("memory", 0, size, max(0, memory - self.memory_used)))
        return missing

    # --- reservations ---

    def reserve(self, filter_: Filter, holder: Holder) -> None:
        """Count a reservation, whether it fits or not."""
        self.memory += size_of(filter_)
        holders = self._holders.get(filter_)
        if holders is None:
            holders = self._holders[filter_] = {}
            self._filters.put(filter_)
        holders[holder] = holders.get(holder, 0) + 1
        if holders[holder] == 1:
            self._held.setdefault(holder, {})[filter_] = None
            for node, pubend in self._brings(filter_, holder):
                self._use(node, pubend, holder, filter_)

    def release(self, filter_: Filter, holder: Holder) -> None:
        """Take back a reservation."""
        self.memory -= size_of(filter_)
        holders = self._holders[filter_]
        holders[holder] -= 1
        if holders[holder]:
            return
        for node, pubend in self._brings(filter_, holder):
            self._leave(node, pubend, holder, filter_)
        del holders[holder], self._held[holder][filter_]
        if not self._held[holder]:
            del self._held[holder]
        if not holders:
            del self._holders[filter_]
            self._filters.take(filter_)

    def set_scope(self, holder: Holder, pubends: Iterable[int]) -> None:
        """Say the messages of which pubends go to a holder."""
        before, after = self._scopes.get(holder, {}), dict.fromkeys(pubends)
        came = {pubend: None for pubend in after if pubend not in before}
        went = {pubend: None for pubend in before if pubend not in after}
        for filter_ in self._held.get(holder, ()):
            for node in self._graph.overlapping(filter_):
                for pubend in node.shares:
                    if pubend in came:
                        self._use(node, pubend, holder, filter_)
                    elif pubend in went:
                        self._leave(node, pubend, holder, filter_)
        if after:
            self._scopes[holder] = after
        else:
            self._scopes.pop(holder, None)

    def scope(self, holder: Holder) -> Iterable[int]:
        return self._scopes.get(holder, {})

    # --- advertisements ---

    def advertised(self, node: Node, pubend: int, millirate: int) -> None:
        """Follow an advertisement that was added to the graph."""
        self._advertised_memory += size_of(node.filter)
        if node.shares[pubend].count > 1:
            self._share_changed(node, pubend, millirate)
            return
        for filter_ in self._filters.overlapping(node.filter):
            for holder in self._holders[filter_]:
                if pubend in self._scopes.get(holder, ()):
                    self._use(node, pubend, holder, filter_)

    def withdrawn(self, node: Node, pubend: int, millirate: int) -> None:
        """Follow an advertisement that was taken from the graph."""
        self._advertised_memory -= size_of(node.filter)
        self._share_changed(node, pubend, -millirate)
        uses = self._uses.get(node.filter, {})
        if pubend not in node.shares and pubend in uses:
            del uses[pubend]
            if not uses:
                del self._uses[node.filter]

    # --- inside ---

    def _brings(self, filter_: Filter, holder: Holder) -> Iterator[tuple[Node, int]]:
        scope = self._scopes.get(holder)
        if scope:
            for node in self._graph.overlapping(filter_):
                for pubend in node.shares:
                    if pubend in scope:
                        yield node, pubend

    def _more(self, filter_: Filter, node: Node, pubend: int, resource: Resource) -> int:
        """Return what a filter would bring of an advertisement that overlaps it, beyond what is there."""
        del filter_
        return 0 if resource in self._uses.get(node.filter, {}).get(pubend, ()) else node.shares[pubend].millirate

    def _share_changed(self, node: Node, pubend: int, millirate: int) -> None:
        """Follow a change of what is advertised with a filter for a pubend."""
        for resource in self._uses.get(node.filter, {}).get(pubend, ()):
            self._bring(resource, millirate)

    def _use(self, node: Node, pubend: int, holder: Holder, filter_: Filter) -> None:
        del filter_
        users = self._uses.setdefault(node.filter, {}).setdefault(pubend, {})
        for resource in resources_of(holder):
            count = users[resource] = users.get(resource, 0) + 1
            if count == 1:
                self._bring(resource, node.shares[pubend].millirate)

    def _leave(self, node: Node, pubend: int, holder: Holder, filter_: Filter) -> None:
        del filter_
        uses = self._uses[node.filter]
        users = uses[pubend]
        for resource in resources_of(holder):
            users[resource] -= 1
            if not users[resource]:
                del users[resource]
                self._bring(resource, -node.shares[pubend].millirate)
        if not users:
            del uses[pubend]
            if not uses:
                del self._uses[node.filter]

    def _bring(self, resource: Resource, millirate: int) -> None:
        total = self._brought.get(resource, 0) + millirate
        assert total >= 0, (resource, total)
        self._brought[resource] = total
        if not total:
            del self._brought[resource]


def size_of(filter_: Filter) -> int:
    """Return about how much memory a reservation or an advertisement takes."""
    return FILTER_BYTES + BYTES_PER_CHARACTER * filter_.length


def resources_of(holder: Holder) -> tuple[Resource, ...]:
    """Return what the messages of a holder use."""
    return (CPU,) if holder.link == LOCAL else (CPU, holder.link)
