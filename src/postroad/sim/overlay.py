"""A simulated overlay: brokers, cables, clients and one history, under one virtual clock.

This is the place where both the random runs (`soak`) and the deliberate schedules of the tests are built:

    overlay = Overlay(seed=1)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    reader = overlay.client("reader", 3)
    writer = overlay.client("writer", 1)
    overlay.at(1.0, lambda: reader.follow(overlay.filter(everything()), subscription="all"))
    overlay.at(2.0, lambda: writer.publish({"n": 1}, b"first"))
    overlay.at(3.0, overlay.node(2).crash)
    overlay.run(5.0)
    overlay.settle()
    assert overlay.violations() == []
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeVar

from postroad.sim.brokers import BrokerNode
from postroad.sim.checkers import Violation, check
from postroad.sim.clients import IDLE_SAVE_S, ClientNode, Habits
from postroad.sim.disk import DiskProfile
from postroad.sim.feeding import BoundQueues
from postroad.sim.history import (
    Delivered,
    DiskLost,
    History,
    Logged,
    Measured,
    Remains,
    ReservationsCompared,
    Retired,
    Settled,
    StillThrottled,
)
from postroad.sim.network import Cable, CableProfile, Network
from postroad.sim.predicates import Predicate, Predicates
from postroad.sim.reservations import reservation_faults
from postroad.sim.workers import WorkerNode
from postroad.sim.world import World
from postroad.tracking.tap.tracked_broker import TrackedConfig
from postroad.types import tick_milliseconds

ClientT = TypeVar("ClientT", bound=ClientNode)
SETTLE_S_MAX: Final = 300.0  # what a healed overlay may take to converge
SETTLE_STEP_S: Final = 0.25
MEASURE_EVERY_S: Final = 1.0
RETIRE_STEP_S: Final = 0.3  # between two brokers that are told that another is gone for good
REST_MARGIN_S: Final = 3.0  # on top of what brokers promise to wait before they release


class Overlay:
    """All there is in one run."""

    def __init__(
        self, seed: int = 0, *, config: TrackedConfig | None = None, story: bool = False, history: History | None = None
    ) -> None:
        self.world: Final = World(seed, story=story)
        self.network: Final = Network(self.world)
        self.history: Final = history or History()
        self.predicates: Final = Predicates()
        self.config: Final = config or TrackedConfig()
        self.nodes: Final[dict[int, BrokerNode]] = {}
        self.retired: tuple[int, ...] = ()
        self.links: Final[list[Cable]] = []
        self.clients: Final[dict[str, ClientNode]] = {}
        self.failure: Violation | None = None
        self.traits: Final[Counter[str]] = Counter()  # what this run has that not every run has
        self.queues: Final = BoundQueues(self.world, self.network, self.history)
        self.grow: Callable[[], BrokerNode | None] = lambda: None  # adds a broker as the workload makes them, if it may
        self.world.after(MEASURE_EVERY_S, self._measure)

    # --- building

    def broker(
        self, number: int, *, disk: DiskProfile | None = None, config: TrackedConfig | None = None, pubends: int = 1
    ) -> BrokerNode:
        own = replace(config or self.config, retired=self.retired)
        node = BrokerNode(self.world, self.network, self.history, number, own, disk or DiskProfile(), pubends)
        self.nodes[number] = node
        node.start()
        return node

    def brokers(self, *numbers: int) -> None:
        for number in numbers:
            self.broker(number)

    def link(self, a: int, b: int, profile: CableProfile | None = None) -> Cable:
        """Join two brokers."""
        cable = self.network.cable(self.nodes[a], self.nodes[b], profile or CableProfile(), f"{a}-{b}")
        self.links.append(cable)
        cable.dial(0.0)
        return cable

    def client(
        self, name: str, *brokers: int, habits: Habits | None = None, profile: CableProfile | None = None, start: bool = True
    ) -> ClientNode:
        """Make a client that dials these brokers in turn."""
        nodes = [self.nodes[number] for number in brokers]
        client = ClientNode(self.world, self.network, self.history, name, nodes, habits=habits, profile=profile)
        return self._begin(client, start=start)

    def worker(
        self, name: str, *brokers: int, habits: Habits | None = None, profile: CableProfile | None = None, start: bool = True
    ) -> WorkerNode:
        """Make a client that works on shared subscriptions; it dials these brokers in turn."""
        nodes = [self.nodes[number] for number in brokers]
        worker = WorkerNode(self.world, self.network, self.history, name, nodes, habits=habits, profile=profile)
        return self._begin(worker, start=start)

    def _begin(self, client: ClientT, *, start: bool) -> ClientT:
        client.directory = self.nodes
        self.clients[client.name] = client
        if start:
            client.start()
        return client

    def filter(self, predicate: Predicate) -> str:
        """Make a filter known to the oracle; return its text."""
        return self.predicates.add(predicate)

    def retire(self, number: int) -> None:
        """Let a broker be gone for good; the others are told so in their files, and started again one by one.

        Its neighbours are linked to each other in its place, and one of the others feeds the queues if it alone did. Clients go
        elsewhere; those that were connected to it, or do not know what became of a message there, give that up and start anew.
        """
        node = self.nodes.pop(number)
        node.crash()
        node.retired = True
        self.retired = (*self.retired, number)
        self.history.add(DiskLost(self.world.now, number, node.pubends))
        self.history.add(Retired(self.world.now, number, node.pubends))
        self._join_neighbours(node)
        self.queues.move_from(node, self.nodes.values())
        for client in self.clients.values():
            client.brokers = [each for each in client.brokers if each is not node] or list(self.nodes.values())
            if client.alive and client.depends_on(node):
                client.crash()
                self.world.after(RETIRE_STEP_S, client.start_if_down)
        for index, other in enumerate(self.nodes.values()):
            other.config = replace(other.config, retired=self.retired)
            self.world.after((2 + index) * RETIRE_STEP_S, self._start_again, other)

    def _join_neighbours(self, node: BrokerNode) -> None:
        cables = [each for each in self.links if node in {each.a, each.b}]
        others = [each.b if each.a is node else each.a for each in cables]
        for cable in cables:
            self.links.remove(cable)
            cable.hang_up()
            self.network.forget(cable)
        for cable, (one, other) in zip(cables, pairwise(others), strict=False):
            assert isinstance(one, BrokerNode)
            assert isinstance(other, BrokerNode)
            if not any({each.a, each.b} == {one, other} and not each.is_removed for each in self.links):
                self.link(one.broker, other.broker, cable.profile)

    def _start_again(self, node: BrokerNode) -> None:
        if node.alive:
            node.stop()
            self.world.after(RETIRE_STEP_S / 2, node.start_if_down)

    def node(self, number: int) -> BrokerNode:
        return self.nodes[number]

    def cable(self, a: int, b: int) -> Cable:
        names = {f"{a}-{b}", f"{b}-{a}"}
        return next(cable for cable in self.links if cable.name in names)

    def spare_links(self) -> list[Cable]:
        """Return the links without any one of which the others still join all brokers."""
        here = [cable for cable in self.links if not cable.is_removed]
        return [cable for cable in here if self._are_joined([each for each in here if each is not cable])]

    def _are_joined(self, cables: list[Cable]) -> bool:
        reached, found = {next(iter(self.nodes))}, 0
        while len(reached) > found:
            found = len(reached)
            for cable in cables:
                ends = {number for number, node in self.nodes.items() if node in {cable.a, cable.b}}
                reached |= ends if ends & reached else set()
        return len(reached) == len(self.nodes)

    def at(self, when: float, action: Callable[[], object]) -> None:
        def act() -> None:
            action()

        self.world.at(when, act)

    # --- running

    def run(self, until: float) -> None:
        """Let time pass; an exception in a machine ends the run and is a violation."""
        if self.failure is not None:
            return
        try:
            self.world.run(until)
        except Exception as error:  # noqa: BLE001 - whatever a machine raises is what we are looking for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} in {frame.name} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})"
            self.world.note("crashed", text)
            self.failure = Violation("crashed", self.world.now, f"{text}\n{''.join(traceback.format_exception(error))}")

    def heal(self) -> None:
        """End every fault: the liveness phase begins."""
        self.world.note("phase", "everything heals")
        for cable in self.network.cables:
            cable.squeeze(1.0)
            cable.heal()
        for node in self.nodes.values():
            node.disk.heal()
            node.watch_packet = None
            if not node.alive:
                node.start()
        for client in self.clients.values():
            client.pause_reading(False)
            for following in client.following:
                client.take_rows(following, True)
            if not client.alive:
                client.start()

    def settle(self, within_s: float = SETTLE_S_MAX) -> bool:
        """Let time pass until everyone has everything, or no longer than this; return whether it converged."""
        until = self.world.now + within_s
        self._converge(until)
        for client in self.clients.values():
            client.give_up_rejected()
        self.queues.give_up_rejected()
        self._converge(until)
        if self.failure is not None:
            return False
        reasons = tuple(self.open_ends())
        self.world.note("phase", "all has converged" if not reasons else f"it has not converged: {'; '.join(reasons)}")
        self.history.add(Settled(self.world.now, reasons))
        return not reasons

    def _converge(self, until: float) -> None:
        while self.failure is None and self.world.now < until and not self.converged():
            self.run(min(until, self.world.now + SETTLE_STEP_S))

    def converged(self) -> bool:
        """Tell whether every publisher and every subscription knows all there is."""
        return next(self.open_ends(), None) is None

    def open_ends(self) -> Iterator[str]:
        """Say what has not converged."""
        last: dict[int, int] = {pubend: log.last_tick for node in self.nodes.values() for pubend, log in node.disk.logs.items()}
        for client in self.clients.values():
            yield from client.open_ends(last)
        yield from self.queues.open_ends(last)

    def rest(self) -> None:
        """After all has converged, let as much time pass as clients and brokers may wait before logs are released.

        Note what logs still hold then.
        """
        configs = [node.config for node in self.nodes.values()]
        waits = [config.subscriber_grace_s + config.keep_s + 12 * config.silence_s for config in configs]
        self.run(
            self.world.now + IDLE_SAVE_S + max(waits) + max(c.tracking.persistence_ms for c in configs) / 1000 + REST_MARGIN_S
        )
        if self.failure is not None:
            return
        for node in self.nodes.values():
            for pubend, throttle in node.throttles().items():
                self.history.add(StillThrottled(self.world.now, pubend, throttle.rate, throttle.broker))
        self.history.add(ReservationsCompared(self.world.now, tuple(reservation_faults(self.nodes))))
        for client in self.clients.values():
            client.record_positions()
        self.queues.record_positions()
        for node in self.nodes.values():
            kept_ms = int(1000 * (node.config.keep_s + 2 * node.config.silence_s + REST_MARGIN_S))
            for pubend, tick in node.disk.oldest_segments():
                if (
                    tick_milliseconds(tick) < node.wall_ms() - kept_ms
                ):  # after a crash or a clock step ticks are ahead of the clock
                    self.history.add(Remains(self.world.now, pubend, tick))

    def violations(self) -> list[Violation]:
        """Say what was broken, now that the run is over."""
        for client in self.clients.values():
            client.record_positions()
        self.queues.record_positions()
        self.queues.end()
        for node in self.nodes.values():
            node.record_tracks()
        found = check(self.history, self.predicates)
        return found if self.failure is None else [self.failure, *(each for each in found if each.kind != "stuck")]

    @property
    def messages(self) -> int:
        """Count the messages that became durable."""
        return sum(isinstance(event, Logged) for event in self.history)

    @property
    def deliveries(self) -> int:
        return sum(isinstance(event, Delivered) for event in self.history)

    # --- watching

    def _measure(self) -> None:
        for node in self.nodes.values():
            if node.alive:
                self.history.add(Measured(self.world.now, node.broker, node.bounded_figures()))
        self.world.after(MEASURE_EVERY_S, self._measure)
