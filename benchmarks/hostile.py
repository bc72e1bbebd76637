"""What one client notices of another one's attack: `python -m benchmarks.hostile [attack...] [--seconds 4]`.

A broker runs as a process of its own. A good client publishes a message every few milliseconds and receives it; the time between
is what counts. It is measured before an attack and during it. The attacker is a process of its own, too, and runs at the lowest
priority, so that it costs the processors as little as possible: what is measured is what the broker lets it do.

The bound is three times the value before, for p99. `--check` makes a figure above it an error. On a busy machine figures of a few
seconds say little; run it on a quiet one. Floods of announcements (`link-states`) have no bound: ten thousand new pubends cost a
broker more than a second of CPU, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, cast

import msgspec
import numpy as np
import pyarrow as pa

import postroad
from postroad.core.batch.batch import Batch
from postroad.core.protocol import packets
from postroad.core.protocol.packets import pubend_id
from postroad.runtime.config import NodeConfig
from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports
from postroad.transport.programs import own_environment
from postroad.types import MessageId
from postroad.wire.batches import encode_batch
from postroad.wire.codec import encode
from postroad.wire.packets.queues import BindQueue
from postroad.wire.packets.session import Hello, Ping, Role
from postroad.wire.packets.telesto import ClientMode, CreateQueue, GetMessages, RegisterClient
from postroad.wire.registry import REGISTRY

PACE_S: Final = 0.005
SETTLING_S: Final = 0.5
MIB: Final = 1 << 20
P99_RATIO_MAX: Final = 3.0
GROWN_MIB_MAX: Final = 1024  # of the broker's memory: its buffers, 256 MiB, and filters, 512 MiB, at their defaults
UNBOUNDED: Final = frozenset({"link-states"})


def raw(packet: msgspec.Struct, packet_id: int = 1) -> bytes:
    return b"".join(encode(packet, packet_id))


CLIENT: Final = raw(Hello(1, 1, Role.CLIENT, 0, "attacker"))
BROKER: Final = raw(Hello(1, 1, Role.BROKER, 9, "attacker", incarnation=1))


# --- the attacker ----------------------------------------------------------------------------------------------------------


def connect(port: int, hello: bytes, *, reads: bool = True) -> socket.socket:
    """Open a connection and say hello; with `reads`, everything that comes is thrown away."""
    end = socket.create_connection(("127.0.0.1", port))
    end.sendall(hello)
    if reads:
        threading.Thread(target=throw_away, args=(end,), daemon=True).start()
    return end


def throw_away(end: socket.socket) -> None:
    try:
        while end.recv(1 << 20):
            pass
    except OSError:
        pass


def flood(port: int, hello: bytes, data: Iterator[bytes], *, reads: bool = True) -> None:
    """Send as fast as it is taken; come back when the connection is closed."""
    while True:
        try:
            end = connect(port, hello, reads=reads)
            time.sleep(0.05)
            for each in data:
                end.sendall(each)
        except OSError:
            time.sleep(0.01)
        else:
            time.sleep(1.0)


def pings(port: int) -> None:
    """Ping without waiting for answers."""
    flood(port, CLIENT, (raw(Ping(), 2) * 20_000 for _ in count()))


def ors(first: int) -> str:
    return " OR ".join(f"a{first + n} = {n}" for n in range(3_000))


def costly_filters(port: int) -> None:
    """Subscribe twenty filters of 3,000 ORs, then one after the other new."""

    def subscribes() -> Iterator[bytes]:
        for number in count(1):
            if number > 20:
                yield raw(packets.Unsubscribe(number - 20), 1)
            yield raw(packets.Subscribe(number, ors(number * 7)), number)

    flood(port, CLIENT, subscribes())


def conjunctions(port: int) -> None:
    """Subscribe filters of 64 alternatives under one AND with many others, which multiply."""

    def subscribes() -> Iterator[bytes]:
        for number in count(1):
            if number > 20:
                yield raw(packets.Unsubscribe(number - 20), 1)
            parts = [f"(a{n} = {number} OR b{n} > {number} OR c{n} LIKE '%{number}%x%')" for n in range(800)]
            yield raw(packets.Subscribe(number, " AND ".join(parts)), number)

    flood(port, CLIENT, subscribes())


def many_positions(port: int) -> None:
    """Subscribe from 60,000 positions."""
    positions = {pubend_id(1 + n): n for n in range(60_000)}
    flood(port, CLIENT, (raw(packets.Subscribe(n, "x = 1", None, positions), n) for n in count(1)))


def unfinished_frames(port: int) -> None:
    """Promise 16 MiB on each of thirty connections and send all but the end."""
    frame = struct.pack(">IHI", 16 * MIB, 0x0203, 1) + bytes(16 * MIB - 100)
    for _ in range(30):
        threading.Thread(target=flood, args=(port, CLIENT, iter((frame,))), daemon=True).start()
    threading.Event().wait()


def unread_ranges(port: int) -> None:
    """Ask for ranges of the log and read none."""
    ask = raw(packets.ReadRange(pubend_id(1), "", 0, (1 << 63) - 1, bare=False), 2) * 100
    for _ in range(20):
        threading.Thread(target=flood, args=(port, CLIENT, iter([ask] * 20)), kwargs={"reads": False}, daemon=True).start()
    threading.Event().wait()


def unread_peeks(port: int) -> None:
    """Look into a queue again and again and read no answer."""
    hello = raw(RegisterClient(f"attacker {os.getpid()}", 2, existing=True))  # type: ignore[arg-type]
    flood(port, hello, (raw(GetMessages(1), 2) * 1_000 for _ in range(20)), reads=False)


def unread_deliveries(port: int) -> None:
    """Subscribe to everything on twenty connections, publish 2 MB per second, and read nothing."""
    hello = CLIENT + raw(packets.Subscribe(1, ""), 2)
    for _ in range(20):
        threading.Thread(target=flood, args=(port, hello, iter(())), kwargs={"reads": False}, daemon=True).start()

    async def publish() -> None:
        async with postroad.connect(f"postroad://127.0.0.1:{port}") as client:
            publisher = client.publisher()
            while True:
                await publisher.publish({"n": 1}, bytes(10_000))
                await asyncio.sleep(PACE_S)

    asyncio.run(publish())


def costly_bindings(port: int) -> None:
    """Bind a queue to one costly filter after the other; none of them is kept."""
    hello = CLIENT + raw(RegisterClient("attacker", ClientMode.READ_AND_PUT, existing=True), 2) + raw(CreateQueue("bound"), 3)

    def bindings() -> Iterator[bytes]:
        for number in count(1):
            yield raw(BindQueue(1, f"{ors(number * 7)} OR )"), 4)  # parsed to its end, and then refused

    flood(port, hello, bindings())


def tiny_frames(port: int) -> None:
    """Say hello with a maximum that no error fits, and send a bad filter."""
    hello = raw(Hello(1, 1, Role.CLIENT, 0, "tiny", frame_bytes_max=64)) + raw(packets.Subscribe(1, "price >"), 2)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as end:
                end.sendall(hello)
                select.select([end], [], [], 1.0)
        except OSError:
            time.sleep(0.01)


def connections(port: int) -> None:
    """Open 1,100 connections and keep them; open them again when they are closed."""
    ends: list[socket.socket] = []
    while True:
        try:
            ends.append(connect(port, CLIENT, reads=False))
        except OSError:
            time.sleep(0.01)
        if len(ends) > 1_100:
            for end in ends[:100]:
                end.close()
            del ends[:100]


def link_states(port: int) -> None:
    """Flood link states of forty brokers with 256 pubends each."""

    def states() -> Iterator[bytes]:
        others = range(100, 140)
        for sequence in count(1):
            yield raw(packets.LinkState(9, 1, sequence, [(1, 1), *((each, 1) for each in others)], []))
            for each in others:
                pubends = [each << 8 | place for place in range(256)]
                yield raw(packets.LinkState(each, 1, sequence, [(9, 1)], pubends))

    flood(port, BROKER, states())


def forged_knowledge(port: int) -> None:
    """Flood knowledge and interest in another broker's pubend."""

    def forged() -> Iterator[bytes]:
        for n in count(1):
            yield raw(packets.Interest(pubend_id(1), n, True, ["x > 1"], [])) * 100
            yield raw(packets.Released(pubend_id(1), n)) * 1_000

    flood(port, BROKER, forged())


def long_interests(port: int) -> None:
    """Ask as a neighbour for hundreds of filters of 60 kB."""

    def interests() -> Iterator[bytes]:
        for n in count(1):
            yield raw(packets.Interest(pubend_id(1), n, False, [f"text{n} = '{'x' * 60_000}'"], []))
            if n > 300:
                yield raw(packets.Interest(pubend_id(1), n, False, [], [f"text{n - 300} = '{'x' * 60_000}'"]))

    flood(port, BROKER, interests())


def slow_loris(port: int) -> None:
    """Keep hundreds of connections that send a byte of a Hello every second."""
    ends: list[tuple[socket.socket, int]] = []
    while True:
        while len(ends) < 400:
            try:
                ends.append((socket.create_connection(("127.0.0.1", port)), 0))
            except OSError:
                break
        kept = []
        for end, sent in ends:
            try:
                end.sendall(CLIENT[sent : sent + 1])
            except OSError:
                end.close()
            else:
                kept.append((end, sent + 1))
        ends = kept
        time.sleep(1.0)


def random_frames(port: int) -> None:
    """Send frames of random bytes under the method ids of the protocol, whole and cut."""
    chance = random.Random(1)
    methods = [spec.method for spec in REGISTRY]

    def frames() -> Iterator[bytes]:
        while True:
            body = chance.randbytes(chance.choice((0, 1, 8, 100, 5_000)))
            yield struct.pack(">IHI", 10 + len(body), chance.choice(methods), chance.randrange(1 << 32)) + body

    flood(port, CLIENT, frames())


def giant_frames(port: int) -> None:
    """Announce frames of four gigabytes, before and after the hello."""
    giant = struct.pack(">IHI", 0xFFFF_FFFF, 0x0203, 1) + bytes(MIB)
    for hello in (CLIENT, giant):
        threading.Thread(target=flood, args=(port, hello, iter([giant])), daemon=True).start()
    threading.Event().wait()


def msgpack_bombs(port: int) -> None:
    """Send packets of a few bytes that promise billions of elements, and some that nest as deeply as fits."""
    bombs = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 60_000]
    methods = [spec.method for spec in REGISTRY]

    def frames() -> Iterator[bytes]:
        for n in count():
            body = bombs[n % len(bombs)]
            yield struct.pack(">IHI", 10 + len(body), methods[n % len(methods)], n & 0xFFFF) + body

    flood(port, CLIENT, frames())


def arrow_bombs(port: int) -> None:
    """Publish batches whose Arrow metadata promise far more rows and bytes than they carry."""
    ids = np.zeros((1_000, 16), np.uint8)
    batch = Batch.from_columns(ids.tobytes(), [b"x" * 100] * 1_000, {"n": pa.array(range(1_000))})
    good = b"".join(bytes(part) for part in encode_batch(batch))
    chance = random.Random(2)

    def frames() -> Iterator[bytes]:
        while True:
            body = bytearray(good)
            for _ in range(chance.randrange(1, 6)):
                place = chance.randrange(len(body) - 8)
                body[place : place + 8] = struct.pack("<q", chance.choice((-1, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1)))
            yield b"".join(encode(packets.PublishColumns(1), 1, [bytes(body)]))

    flood(port, CLIENT + raw(packets.OpenPublisher(), 2), frames())


def many_subscriptions(port: int) -> None:
    """Subscribe 20,000 filters on one connection, and end them and begin again."""

    def subscribes() -> Iterator[bytes]:
        while True:
            for number in range(20_000):
                yield raw(packets.Subscribe(number, f"symbol = 'S{number}' AND price > {number}"), number)
            for number in range(20_000):
                yield raw(packets.Unsubscribe(number), number)

    flood(port, CLIENT, subscribes())


def churn(port: int) -> None:
    """Connect, subscribe with a new durable name, publish nothing, and go away."""
    for number in count():
        try:
            with socket.create_connection(("127.0.0.1", port)) as end:
                end.sendall(CLIENT + raw(packets.Subscribe(1, "n > 0", f"churn {number}"), 2) + raw(packets.OpenPublisher(), 3))
                select.select([end], [], [], 0.05)
        except OSError:
            time.sleep(0.01)


def forged_hellos(port: int) -> None:
    """Say hello as every broker there might be, and as clients with tokens and names of odd kinds."""

    def hellos() -> Iterator[bytes]:
        for n in count(2):
            yield raw(Hello(1, 1, Role.BROKER, n & 0xFFFF or 1, f"forged {n}", incarnation=n))
            yield raw(Hello(0, 65_535, Role.CLIENT, n, "\r\n" * 50, frame_bytes_max=n))

    for hello in hellos():
        try:
            with socket.create_connection(("127.0.0.1", port)) as end:
                end.sendall(hello + raw(packets.Released(pubend_id(1), 1 << 60)))
                select.select([end], [], [], 0.05)
        except OSError:
            time.sleep(0.01)


def forged_publishers(port: int) -> None:
    """Resume the publishers of others, and publish under ids ahead of theirs."""

    def forged() -> Iterator[bytes]:
        ahead = (1 << 47) - 1
        for n in count():
            yield raw(packets.OpenPublisher(n % 64), n)
            yield raw(packets.Publish(n % 64, [(bytes(MessageId.make(n % 64, 1, ahead, 1)), {"probe": True}, b"")]), n)

    flood(port, CLIENT, forged())


ATTACKS: Final[dict[str, Callable[[int], None]]] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        pings,
        costly_filters,
        conjunctions,
        many_positions,
        unfinished_frames,
        unread_ranges,
        unread_peeks,
        unread_deliveries,
        costly_bindings,
        tiny_frames,
        connections,
        link_states,
        forged_knowledge,
        long_interests,
        slow_loris,
        random_frames,
        giant_frames,
        msgpack_bombs,
        arrow_bombs,
        many_subscriptions,
        churn,
        forged_hellos,
        forged_publishers,
    )
}


# --- the measurement -------------------------------------------------------------------------------------------------------


async def round_trips(publisher: postroad.Publisher, subscription: postroad.Subscription, seconds: float) -> list[float]:
    """Publish a message every few milliseconds for a while; return how long after its time each one came back."""
    count_sent = round(seconds / PACE_S)

    async def receive() -> float:
        message = await anext(subscription)
        return time.monotonic() - cast("float", message["at"])

    async def receive_all() -> list[float]:
        return [await receive() for _ in range(count_sent)]

    receiving = asyncio.create_task(receive_all())
    due = time.monotonic()
    for _ in range(count_sent):
        due += PACE_S
        while (early_s := due - time.monotonic()) > 0:  # noqa: ASYNC110  # timers may be a little early
            await asyncio.sleep(early_s)
        await publisher.publish({"probe": True, "at": due})
    async with asyncio.timeout(20.0):
        return await receiving


def figures(times: list[float]) -> dict[str, float]:
    p50, p99, most = np.percentile(np.array(times) * 1_000, (50, 99, 100))
    return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2), "max_ms": round(float(most), 2)}


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(attack: str, seconds: float) -> dict[str, object]:
    """Measure a good client before an attack and during it."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        config = NodeConfig(id=1, data_dir=f"{directory}/data", listen=f"127.0.0.1:{port}", name="victim", log_level="error")
        with BrokerProcess(config, Path(directory)) as broker:
            return asyncio.run(_measure(broker, port, attack, seconds))


async def _measure(broker: BrokerProcess, port: int, attack: str, seconds: float) -> dict[str, object]:
    async with postroad.connect(broker.url) as client:
        if attack == "unread-ranges":
            filling = client.publisher()
            for number in range(400):
                await filling.publish({"n": number}, bytes(50_000))
            await filling.flush()
        subscription, publisher = await client.subscribe("probe = TRUE"), client.publisher()
        await round_trips(publisher, subscription, 1.0)
        before = figures(await round_trips(publisher, subscription, seconds))
        memory = resident_bytes(broker.pid)
        command = [sys.executable, "-m", "benchmarks.hostile", "--attack", attack, str(port)]
        with subprocess.Popen(command, env=own_environment(), stdout=subprocess.PIPE) as attacker:  # noqa: ASYNC220
            try:
                assert attacker.stdout is not None
                await asyncio.to_thread(attacker.stdout.readline)
                await asyncio.sleep(SETTLING_S)
                during = figures(await round_trips(publisher, subscription, seconds))
                grown = (resident_bytes(broker.pid) - memory) // MIB
                assert attacker.poll() is None, "the attacker ended"
            finally:
                attacker.kill()
        assert broker.running
    ratio = round(during["p99_ms"] / before["p99_ms"], 1)
    return {"attack": attack, "before": before, "during": during, "p99_ratio": ratio, "grown_mib": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a p99 is above three times the value before")
    parser.add_argument("--attack", nargs=2, metavar=("NAME", "PORT"), help="attack a broker")
    arguments = parser.parse_args()
    if arguments.attack is not None:
        os.nice(19)
        print("attacking", flush=True)
        ATTACKS[arguments.attack[0]](int(arguments.attack[1]))
        return
    above, grown = [], []
    for attack in arguments.attacks:
        found = measure(attack, arguments.seconds)
        print(json.dumps(found), flush=True)
        if attack not in UNBOUNDED and cast("float", found["p99_ratio"]) > P99_RATIO_MAX:
            above.append(attack)
        if cast("int", found["grown_mib"]) > GROWN_MIB_MAX:
            grown.append(attack)
    if arguments.check and above:
        sys.exit(f"p99 is above {P99_RATIO_MAX:g} times its value before: {', '.join(above)}")
    if arguments.check and grown:
        sys.exit(f"the broker took more than {GROWN_MIB_MAX} MiB: {', '.join(grown)}")


if __name__ == "__main__":
    main()
