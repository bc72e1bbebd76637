"""The ledger with estimates: an advertisement brings what the reserved filters that overlap it are expected to match of it.

The filters that use an advertisement count together (see `estimating`), so each use knows them. A
change of a use costs as much as it has filters.

Invariant: `brought(r)` is the sum of what the uses of r are charged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from postroad.core.broker.admission.advertisements import AdvertisementGraph, Node
from postroad.core.broker.admission.ledger import Capacities, Holder, Ledger, Resource, resources_of
from postroad.core.filters.filter import Filter


@dataclass(slots=True)
class _Use:
    """One advertised filter of one pubend on one resource."""

    filters: dict[Filter, int] = field(default_factory=dict)  # reserved filter -> how many holders
    charged: int = 0


class EstimatingLedger(Ledger):
    """Charges what is expected in place of the most that may come."""

    def __init__(self, graph: AdvertisementGraph, capacities: Capacities) -> None:
        super().__init__(graph, capacities)
        self._charges: dict[Filter, dict[int, dict[Resource, _Use]]] = {}  # advertised filter -> pubend -> resource

    @property
    def is_empty(self) -> bool:
        return not self._charges and super().is_empty

    def _more(self, filter_: Filter, node: Node, pubend: int, resource: Resource) -> int:
        use = self._charges.get(node.filter, {}).get(pubend, {}).get(resource)
        if use is None:
            return node.shares[pubend].expected((filter_,))
        return 0 if filter_ in use.filters else node.shares[pubend].expected((*use.filters, filter_)) - use.charged

    def _share_changed(self, node: Node, pubend: int, millirate: int) -> None:
        del millirate
        uses = self._charges.get(node.filter, {})
        for resource, use in uses.get(pubend, {}).items():
            self._charge(node, pubend, resource, use)
        if pubend not in node.shares and pubend in uses:
            self._forget(node, pubend)

    def _use(self, node: Node, pubend: int, holder: Holder, filter_: Filter) -> None:
        uses = self._charges.setdefault(node.filter, {}).setdefault(pubend, {})
        for resource in resources_of(holder):
            use = uses.get(resource)
            if use is None:
                use = uses[resource] = _Use()
            use.filters[filter_] = use.filters.get(filter_, 0) + 1
            if use.filters[filter_] == 1:
                self._charge(node, pubend, resource, use)

    def _leave(self, node: Node, pubend: int, holder: Holder, filter_: Filter) -> None:
        uses = self._charges[node.filter][pubend]
        for resource in resources_of(holder):
            use = uses[resource]
            use.filters[filter_] -= 1
            if not use.filters[filter_]:
                del use.filters[filter_]
                self._charge(node, pubend, resource, use)
            if not use.filters:
                del uses[resource]
        if not uses:
            self._forget(node, pubend)

    def _charge(self, node: Node, pubend: int, resource: Resource, use: _Use) -> None:
        share = node.shares.get(pubend)
        charged = share.expected(use.filters) if share is not None and use.filters else 0
        self._bring(resource, charged - use.charged)
        use.charged = charged

    def _forget(self, node: Node, pubend: int) -> None:
        uses = self._charges[node.filter]
        del uses[pubend]
        if not uses:
            del self._charges[node.filter]
