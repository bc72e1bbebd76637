"""Planted bugs of the topics service. Each replaces one method of the product; the simulator must notice every one of them.

A mutant is a function that installs itself with a `Planter`. Nothing of this is reachable from the product's own code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from tests.mutants.planting import Planter
from tests.mutants.results import Outcome, name_code_state, save_results

from postroad.sim.topics import simulation
from postroad.topics.machines import client, handover, merge, orders, proxy, replica, server
from postroad.topics.machines import messages as m
from postroad.topics.machines import rows as r

SIMULATOR: Final = "topics"
SEEDS_MAX: Final = 200
Install = Callable[[Planter], None]
MUTANTS: Final[dict[str, Install]] = {}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the body with one bug planted."""
    plant = Planter()
    try:
        MUTANTS[name](plant)
        yield
    finally:
        plant.take_out()


def mutant(install: Install) -> Install:
    MUTANTS[install.__name__] = install
    return install


@mutant
def put_forgets_the_counter(plant: Planter) -> None:
    """A repeated PUT is taken for a new message."""

    def make(original: Any) -> Any:
        def put(self: replica.TopicCopy, publisher: bytes, counter: int, *rest: Any, **more: Any) -> Any:
            known = self.publishers.get(publisher)
            if known is not None and known.counter == counter and m.message_id(publisher, counter) not in self.ids:
                del self.publishers[publisher]
            return original(self, publisher, counter, *rest, **more)

        return put

    plant.wrap(replica.TopicCopy, "put", make)


@mutant
def get_removes_at_once(plant: Planter) -> None:
    """A message counts as received when it was sent, not when the client names it."""

    def make(original: Any) -> Any:
        def get(self: replica.TopicCopy, client: bytes, last: bytes) -> Any:
            verdict, rows, sequence = original(self, client, last)
            if sequence is not None and not self.subscribers[client].late:
                self.subscribers[client].position = sequence
                rows = [*rows, self.subscriber_row(client)]
            return verdict, rows, sequence

        return get

    plant.wrap(replica.TopicCopy, "get", make)


@mutant
def late_subscribe_counts(plant: Planter) -> None:
    """Operation numbers are ignored: a late duplicate of SUBSCRIBE undoes the UNSUBSCRIBE after it."""

    def make(original: Any) -> Any:
        def subscribe(self: replica.TopicCopy, client: bytes, operation: int | None, stamp: int) -> Any:
            del operation
            return original(self, client, None, stamp)

        return subscribe

    plant.wrap(replica.TopicCopy, "subscribe", make)


@mutant
def unsubscribe_is_only_said(plant: Planter) -> None:
    """UNSUBSCRIBE is answered, but changes nothing."""

    def make(original: Any) -> Any:
        del original

        def unsubscribe(self: replica.TopicCopy, client: bytes, operation: int | None, stamp: int) -> Any:
            del self, client, operation, stamp
            return replica.Verdict.DONE, []

        return unsubscribe

    plant.wrap(replica.TopicCopy, "unsubscribe", make)


@mutant
def unsubscribe_is_not_stored(plant: Planter) -> None:
    """UNSUBSCRIBE is forgotten when the server crashes."""

    def make(original: Any) -> Any:
        def unsubscribe(self: replica.TopicCopy, client: bytes, operation: int | None, stamp: int) -> Any:
            verdict, rows = original(self, client, operation, stamp)
            return verdict, [row for row in rows if not isinstance(row, r.SaveSubscriber)]

        return unsubscribe

    plant.wrap(replica.TopicCopy, "unsubscribe", make)


@mutant
def committed_move_thaws(plant: Planter) -> None:
    """A copy serves again although its move was committed."""

    def make(original: Any) -> Any:
        def move_failed(self: server.ServerMachine, tag: Any, now: float) -> None:
            move = self.moves.get(tag.topic)
            if move is not None and move.attempt == tag.attempt:
                move.committed = False
            original(self, tag, now)

        return move_failed

    plant.wrap(server.ServerMachine, "_move_failed", make)


@mutant
def moved_copy_is_sent_without_counters(plant: Planter) -> None:
    """A transfer leaves out the publishers' counters."""

    def make(original: Any) -> Any:
        def lines(copy: replica.TopicCopy) -> list[bytes]:
            return [line for line in original(copy) if not line.startswith(b"@pub")]

        return lines

    plant.wrap(handover, "_lines", make)


@mutant
def merge_ignores_their_new_messages(plant: Planter) -> None:
    """Subscribers of the receiving copy do not get the messages that only the other copy had."""

    def make(original: Any) -> Any:
        def insert(self: Any) -> None:
            original(self)
            self.fresh.clear()

        return insert

    plant.wrap(merge._Merge, "_insert", make)


@mutant
def merge_repeats_what_was_read(plant: Planter) -> None:
    """In a merge every message counts as unread again."""

    def make(original: Any) -> Any:
        def after(self: Any, sequences: list[int], stamp: int | None) -> list[int]:
            return sorted({*original(self, sequences, stamp), *self.ours.log})

        return after

    plant.wrap(merge._Merge, "_after", make)


@mutant
def merge_mixes_a_publishers_order(plant: Planter) -> None:
    """The late list is in no order."""

    def make(original: Any) -> Any:
        def ordered(self: Any, unread: list[int]) -> list[int]:
            return list(reversed(original(self, unread)))

        return ordered

    plant.wrap(merge._Merge, "_sort", make)


@mutant
def disputed_topics_are_settled(plant: Planter) -> None:
    """A server reclaims messages although another server has a copy of the topic."""

    def make(original: Any) -> Any:
        def answered(self: server.ServerMachine, tag: Any, status: m.Status, now: float) -> None:
            fields = {**status.extensions, "l": b"%d" % self.clock.last}
            original(self, tag, replace(status, body=b"", extensions=fields), now)

        return answered

    plant.wrap(server.ServerMachine, "_periodic_answered", make)


@mutant
def lost_list_of_servers_stays_lost(plant: Planter) -> None:
    """A proxy that lost its list takes the servers it hears of first for all there are."""

    def forget(original: Any) -> Any:
        del original
        return lambda self, message: None  # noqa: ARG005 - the replaced method's arguments

    def complete(original: Any) -> Any:
        del original

        def at_once(self: proxy.ProxyMachine, now: float) -> None:
            del now
            self._listed = True

        return at_once

    plant.wrap(proxy.ProxyMachine, "_remember", forget)
    plant.wrap(proxy.ProxyMachine, "_complete_list", complete)


@mutant
def client_stores_the_counter_late(plant: Planter) -> None:
    """A put's counter is not on disk before the request leaves."""

    def make(original: Any) -> Any:
        def reserve(self: client.ClientMachine, operation: client.Operation) -> None:
            original(self, operation)
            if isinstance(operation, client.PutTo):
                self._orders.pop()

        return reserve

    plant.wrap(client.ClientMachine, "_reserve", make)


@mutant
def unfinished_put_is_put_again(plant: Planter) -> None:
    """`FinishPut` uses a new counter, so the service cannot recognise the put."""

    def make(original: Any) -> Any:
        def begin(self: client.ClientMachine, operation: client.Operation, **more: Any) -> None:
            unfinished = self.unfinished(operation.topic)
            if isinstance(operation, client.FinishPut) and unfinished is not None:
                memory = self._memory(operation.topic)
                memory.counter += 1
                memory.unfinished = replace(unfinished, counter=memory.counter)
            original(self, operation, **more)

        return begin

    plant.wrap(client.ClientMachine, "begin", make)


@mutant
def client_returns_before_it_stored(plant: Planter) -> None:
    """A received message is handed over, but not stored."""

    def make(original: Any) -> Any:
        def persist(self: client.ClientMachine, *rows: r.ClientRow) -> None:
            if not any(isinstance(row, r.SaveReceived) for row in rows):
                original(self, *rows)

        return persist

    plant.wrap(client.ClientMachine, "_persist", make)


@mutant
def answers_before_the_disk(plant: Planter) -> None:
    """A server answers before what it did is durable."""

    def make(original: Any) -> Any:
        def outputs(self: server.ServerMachine) -> Sequence[orders.Order]:
            return sorted(original(self), key=lambda order: isinstance(order, orders.Persist))

        return outputs

    def work(original: Any) -> Any:
        def answer_first(self: simulation.TopicNode) -> None:
            if isinstance(self.machine, server.ServerMachine):
                replies = [order for order in self._queue if isinstance(order, orders.Reply) and order.body is None]
                self._carry_out(replies)
                self._queue = [order for order in self._queue if order not in replies]
            original(self)

        return answer_first

    plant.wrap(server.ServerMachine, "outputs", make)
    plant.wrap(simulation.TopicNode, "_work", work)


@mutant
def messages_are_never_reclaimed(plant: Planter) -> None:
    """What everybody has read stays for ever."""

    def make(original: Any) -> Any:
        del original
        return lambda self, horizon, **more: []  # noqa: ARG005 - the replaced method's arguments

    plant.wrap(replica.TopicCopy, "settle", make)


@mutant
def merges_are_never_ordered(plant: Planter) -> None:
    """Proxies see two owners of a topic and do nothing."""

    def make(original: Any) -> Any:
        del original
        return lambda self, topic, now: None  # noqa: ARG005 - the replaced method's arguments

    plant.wrap(proxy.ProxyMachine, "_resolve", make)


# Found early: these run in the ordinary suite.
SAMPLE: Final = ("get_removes_at_once", "unsubscribe_is_not_stored", "merges_are_never_ordered", "committed_move_thaws")


def hunt(name: str, seeds: range, code: str = "") -> Outcome:
    """Run seeds with one bug planted until one shows it."""
    outcome, began = Outcome(name, "topics", _say(name), code), time.process_time()
    with planted(name):
        for seed in seeds:
            outcome.add(seed, {example.partition(":")[0] for example in simulation.simulate(seed).verdicts.examples})
            if outcome.found:
                break
    outcome.seconds = round(time.process_time() - began, 1)
    return outcome


def _say(name: str) -> str:
    return (MUTANTS[name].__doc__ or "").strip().rstrip(".")


def main() -> int:
    """Hunt all planted bugs, keep what came of it; 1 when one was not found."""
    code, missed, outcomes = name_code_state(), [], {}
    for name in MUTANTS:
        outcomes[name] = each = hunt(name, range(SEEDS_MAX), code)
        missed += [] if each.found else [name]
        print(f"{name}: {f'seed {each.first}' if each.found else 'NOT FOUND'}, {', '.join(each.checkers)}", flush=True)  # noqa: T201 - a command
    if "--keep" in sys.argv:
        save_results(SIMULATOR, outcomes, set(MUTANTS))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
