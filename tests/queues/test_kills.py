"""Sixteen takers, two brokers, one PostgreSQL, twenty thousand messages; then the same with everything killed once.

The takers are in processes of their own. Each writes what it took and what it finished, line by line, so that a killed taker's
work is known up to its death. A message counts as finished when `done` returned.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from tests.private_postgres import PrivatePostgres, free_port

from postroad.queues.client import QueueClient
from postroad.wire.packets.queues import NewMessage
from postroad.wire.packets.telesto import Queue

MESSAGES = 20_000
TAKER_PROCESSES = 4
TAKERS_EACH = 4
LEASE_S = 4.0
DEADLINE_S = 240.0

# One process with four takers. Lines: "T message delivery priority take" when taken, "D message" when done returned.
TAKER = """
import asyncio, itertools, sys
from postroad.errors import LeaseLostError
from postroad.queues.client import QueueClient

async def taker(number, ports, path, queue_id):
    others = [("127.0.0.1", p) for p in ports[1:]]
    async with QueueClient.register("127.0.0.1", ports[0], name=f"taker {number}", others=others, retry_s=60) as client:
        with open(path, "a", buffering=1) as log:
            for take in itertools.count():
                taken = await client.take_batch(queue_id, 20, timeout=5)
                log.write("".join(f"T {d.message.message_id} {d.delivery} {d.message.priority} {take}\\n" for d in taken))
                if not taken:
                    continue
                try:
                    await client.done(taken)
                except LeaseLostError:
                    for d in taken:
                        try:
                            await client.done([d])
                        except LeaseLostError:
                            continue
                        log.write(f"D {d.message.message_id}\\n")
                else:
                    log.write("".join(f"D {d.message.message_id}\\n" for d in taken))

async def main():
    first, path, queue_id, *ports = sys.argv[1:]
    ports = [int(p) for p in ports]
    turned = [ports[i:] + ports[:i] for i in range(len(ports))]
    await asyncio.gather(*(
        taker(int(first) + i, turned[i % len(ports)], f"{path}.{i}", int(queue_id)) for i in range(4)))

asyncio.run(main())
"""


@dataclass
class Stage:
    """The processes of a run."""

    cluster: PrivatePostgres
    directory: Path
    ports: list[int]
    servers: list[subprocess.Popen[bytes]]
    takers: list[subprocess.Popen[bytes]]

    def start_server(self, index: int) -> None:
        arguments = ["--listen", f"127.0.0.1:{self.ports[index]}", "--queues", self.cluster.dsn]
        arguments += ["--id", str(index + 1), "--data-dir", str(self.directory / f"broker-{index + 1}")]
        if index < len(self.servers):
            _end(self.servers[index])
        self.servers[index:] = [
            subprocess.Popen(
                [sys.executable, "-m", "postroad.cli", "broker", *arguments], stdout=subprocess.PIPE, env=_environment()
            ),
            *self.servers[index + 1 :],
        ]
        out = self.servers[index].stdout
        assert out is not None
        assert b"listens on" in out.readline()


def _environment() -> dict[str, str]:
    source = str(Path(__file__).parents[2] / "src")
    return {**os.environ, "PYTHONPATH": source}


@contextmanager
def stage(directory: Path) -> Iterator[Stage]:
    with PrivatePostgres() as cluster, ExitStack() as stack:
        built = Stage(cluster, directory, [free_port(), free_port()], [], [])
        stack.callback(_end_all, built)
        built.start_server(0)
        built.start_server(1)
        yield built


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _end_all(built: Stage) -> None:
    for process in (*built.takers, *built.servers):
        _end(process)


def run(tmp_path: Path, disturb: Callable[[Stage, Callable[[], int]], None]) -> tuple[list[list[str]], dict[int, int]]:
    """Put all messages, start sixteen takers, disturb, wait until all is done. Return the takers' logs and the priorities put."""
    with stage(tmp_path) as built:
        queue_id, priorities = asyncio.run(_fill(built.ports[0]))
        for i in range(TAKER_PROCESSES):
            arguments = [str(i * TAKERS_EACH), str(tmp_path / f"log{i}"), str(queue_id), *map(str, built.ports)]
            built.takers.append(subprocess.Popen([sys.executable, "-c", TAKER, *arguments], env=_environment()))

        def done_so_far() -> int:
            return sum(line.startswith("D") for lines in _logs(tmp_path) for line in lines)

        disturber = threading.Thread(target=disturb, args=(built, done_so_far))
        disturber.start()
        asyncio.run(_wait_empty(built.ports, queue_id))
        disturber.join()
        return _logs(tmp_path), priorities


async def _fill(port: int) -> tuple[int, dict[int, int]]:
    async with QueueClient.register("127.0.0.1", port, name="putter") as client:
        queue = await client.create_queue("jobs", lease=LEASE_S)
        priorities = {}
        for start in range(0, MESSAGES, 1_000):
            batch = [
                NewMessage(queue.queue_id, b"%d" % i, priority=i * 7 % 10 + 1, key=b"%d" % i) for i in range(start, start + 1_000)
            ]
            ids = await client.put_batch(batch)
            priorities.update(dict(zip(ids, (m.priority for m in batch), strict=True)))
        return queue.queue_id, priorities


async def _wait_empty(ports: list[int], queue_id: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    others = [("127.0.0.1", p) for p in ports[1:]]
    async with QueueClient.register("127.0.0.1", ports[0], name="watcher", others=others, retry_s=60) as client:
        while time.monotonic() < deadline:
            stats = await client.stats(queue_id)
            if stats.waiting + stats.scheduled + stats.leased == 0:
                await asyncio.sleep(1.0)  # the takers' last lines
                return
            await asyncio.sleep(0.25)
        raise AssertionError("the queue is not empty in time")


def _logs(tmp_path: Path) -> list[list[str]]:
    """Return the lines of each taker, whole ones only: a killed process may leave half of one."""
    texts = [path.read_text() for path in sorted(tmp_path.glob("log*"))]
    return [text[: text.rfind("\n") + 1].splitlines() for text in texts]


def _check(logs: list[list[str]], priorities: dict[int, int], *, killed: bool) -> None:
    done = Counter(int(line.split()[1]) for lines in logs for line in lines if line.startswith("D"))
    by_taker = [[tuple(map(int, line.split()[1:])) for line in lines if line.startswith("T")] for lines in logs]
    taken = [each for those in by_taker for each in those]
    deliveries = Counter((message, delivery) for message, delivery, _, _ in taken)
    assert max(deliveries.values()) == 1, "one delivery went to two takers"
    assert max(done.values()) == 1, "a message was finished twice"
    assert set(done) <= set(priorities)
    assert {message for message, *_ in taken} == set(priorities), "a message was never delivered"
    if not killed:
        assert set(done) == set(priorities)
        assert len(taken) == MESSAGES, "a message was delivered more than once"
    pairs = (pair for those in by_taker for pair in pairwise(those))  # each taker numbers its takes from 0
    for (_, _, priority, take), (_, _, next_priority, next_take) in pairs:
        assert take != next_take or priority >= next_priority, "priorities fall within a take"


def test_each_of_twenty_thousand_messages_is_delivered_once_by_two_brokers_to_sixteen_takers(tmp_path: Path) -> None:
    """Nothing is killed: one delivery and one end per message; each taker sees priorities fall, never rise."""
    logs, priorities = run(tmp_path, lambda _stage, _done: None)
    _check(logs, priorities, killed=False)
    for path in sorted(tmp_path.glob("log*")):
        seen = [int(line.split()[3]) for line in path.read_text().splitlines() if line.startswith("T")]
        assert seen == sorted(seen, reverse=True)


def test_nothing_is_lost_when_a_taker_a_broker_and_postgres_are_killed(tmp_path: Path) -> None:
    """Leases end and messages come again; what was finished never does."""
    finished_before_kill: list[int] = []

    def disturb(built: Stage, done_so_far: Callable[[], int]) -> None:
        def at(count: int) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while done_so_far() < count and time.monotonic() < deadline:
                time.sleep(0.05)
            finished_before_kill.append(done_so_far())

        at(MESSAGES // 10)
        built.takers[0].send_signal(signal.SIGKILL)
        at(MESSAGES // 5)
        built.servers[0].send_signal(signal.SIGKILL)
        built.servers[0].wait()
        at(MESSAGES // 3)
        built.cluster.crash()
        time.sleep(0.5)
        built.cluster.start()
        at(MESSAGES // 2)
        built.start_server(0)

    logs, priorities = run(tmp_path, disturb)
    assert len(finished_before_kill) == 4
    assert finished_before_kill[2] < MESSAGES, "the kills came while work was under way"
    _check(logs, priorities, killed=True)
    finished_at: dict[int, int] = {}
    for path in sorted(tmp_path.glob("log*")):
        for number, line in enumerate(path.read_text().splitlines()):
            if line.startswith("D"):
                finished_at[int(line.split()[1])] = number
        for number, line in enumerate(path.read_text().splitlines()):
            if line.startswith("T") and finished_at.get(int(line.split()[1]), 1 << 60) < number:
                pytest.fail(f"message {line.split()[1]} came again after it was finished")


def test_request_and_response_cross_from_one_broker_to_the_other(tmp_path: Path) -> None:
    """Two broker processes on one PostgreSQL: the request goes in at one, the answer comes from the other."""

    async def answer(worker: QueueClient, queue: Queue) -> None:
        delivery = await worker.take(queue, timeout=30)
        assert delivery is not None
        async with delivery:
            await delivery.reply(b"re: " + delivery.payload)

    async def scenario(ports: list[int]) -> None:
        async with (
            QueueClient.register("127.0.0.1", ports[0], name="ann") as ann,
            QueueClient.register("127.0.0.1", ports[1], name="bob") as bob,
        ):
            queue = await ann.create_queue("questions")
            answering = asyncio.create_task(answer(bob, queue))
            response = await ann.request(queue, b"hello", receiver=bob.client_id, timeout=30)
            await answering
            assert (response.message, response.sender_id) == (b"re: hello", bob.client_id)

    with stage(tmp_path) as built:
        asyncio.run(scenario(built.ports))
