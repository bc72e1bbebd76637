"""A broker whose disk takes long asks for no more and more writes."""

from __future__ import annotations

from tests.core.broker.machines import Machine, Machines

from postroad.core.broker.context import KNOWN_KEY
from postroad.core.broker.holding.table import HOLD_KEY
from postroad.core.broker.incarnations import HEARD_KEY
from postroad.core.broker.publishing.publishers import HORIZON_KEY
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import Send, Store
from postroad.core.protocol.packets import Hold, HoldConfirmed, LinkState, pubend_id

PUBEND = pubend_id(1)


def with_key(stores: list[Store], key: str) -> int:
    return sum(any(each.startswith(key) for each, _ in store.changes) for store in stores)


def test_one_horizon_is_being_stored_however_long_it_takes() -> None:
    """The clock goes on meanwhile; when the write is done, the next one stores where it is then."""
    machines = Machines()
    node = machines.start(1)
    machines.run(3.0)
    machines.writes_finish = False
    machines.run(60.0)
    assert with_key(node.unfinished, HORIZON_KEY) == 1
    machines.writes_finish = True
    machines.finish_writes()
    machines.run(3.0)
    pubend = node.broker._pubends[PUBEND]
    assert pubend.horizon >= (node.broker._context.wall_ms - 2000) << 16


class Confirmations(Machines):
    """Notes which holds were confirmed to other brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.confirmed: list[int] = []

    def _do(self, node: Machine, order: Output) -> None:
        if isinstance(order, Send) and isinstance(order.message, HoldConfirmed):
            self.confirmed.append(order.message.version)
        super()._do(node, order)


def test_of_holds_that_come_during_a_write_only_the_newest_is_stored() -> None:
    """Each is confirmed no sooner than what it says is on disk, and the newest one in the end."""
    machines = Confirmations()
    node = machines.start(1)
    machines.start(2)
    machines.link(1, 2)
    machines.run(5.0)
    machines.writes_finish = False
    link = next(iter(node.links))
    waiting = len(node.unfinished)
    machines.confirmed.clear()
    for version in range(1000, 1050):
        machines.give(1, Hold(1, 2, 31, 1, version, {PUBEND: 3000 - version}), link=link)
    assert with_key(node.unfinished[waiting:], HOLD_KEY) == 1
    assert machines.confirmed == []
    machines.finish_writes()
    assert with_key(node.unfinished, HOLD_KEY) == 1
    machines.finish_writes()
    assert machines.confirmed == [1000, 1049]


def test_lists_of_brokers_are_written_one_at_a_time() -> None:
    """A neighbour that floods link states orders no pile of writes, and what came last is on disk in the end."""
    machines = Machines()
    node = machines.start(1)
    machines.start(2)
    machines.link(1, 2)
    machines.run(1.0)
    machines.writes_finish = False
    link = next(iter(node.links))
    for number in range(10, 60):
        machines.give(1, LinkState(number, 1, 1, [], [pubend_id(number)], 1000 + number), link=link)
    assert with_key(node.unfinished, HEARD_KEY) == with_key(node.unfinished, KNOWN_KEY) == 1
    machines.writes_finish = True
    machines.finish_writes()
    stored = node.metadata
    assert not node.broker._context.newest
    restarted = Machines().start(1, stored, incarnation=2).broker
    assert set(range(10, 60)) <= restarted._context.known.keys()
    assert restarted._lives._heard.lives.keys() == node.broker._lives._heard.lives.keys()
