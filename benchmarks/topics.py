"""Durable get and put of the topics service: one client and sixteen, through one proxy and one server, all real processes.

`python -m benchmarks.topics [--seconds 3] [--repeat 3] [--json]`. Every put and get is on disk (SQLite, synchronous=FULL) at the
server before it is answered, and at the client before it returns. The last rows ask a proxy with old clients' bytes, without the
clients' own disks: one and sixteen requests under way, which shows the server's group commit alone. A get counts when it received
a message. Each figure is the best of the repeats; the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import zmq

from postroad.topics.drivers import store_role
from postroad.topics.sync import connect

BODY = b"x" * 100
PATIENCE_S = 30.0


def start(kind: str, name: str, data: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process of the service; give its address."""
    command = [sys.executable, "-m", "postroad.cli", "topics", kind, name, "--bind", "127.0.0.1:0", "--data", str(data), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def client(name: str, address: str, data: Path, seconds: float, barrier: Barrier, results: object) -> None:
    """Put for a while, then get for a while; each client on a topic of its own, as its subscriber."""
    with connect(address, name=name, data=data, timeout=PATIENCE_S) as topic:
        topic.subscribe(name)
        rates = []
        for putting in (True, False):
            barrier.wait()
            done, begun = 0, time.perf_counter()
            while time.perf_counter() < begun + seconds:
                if putting:
                    topic.put(name, BODY)
                elif topic.get(name) is None:
                    break
                done += 1
            rates.append(done / (time.perf_counter() - begun))
    results.put(rates)  # type: ignore[attr-defined]


def measure(clients: int, seconds: float, root: Path) -> dict[str, float]:
    """Rates over all clients, in operations per second."""
    proxy, address = start("proxy", "proxy", root)
    server, _ = start("server", "server", root, "--proxy", address, "--period", "0.5")
    context = get_context("spawn")
    barrier, results = context.Barrier(clients), context.Queue()
    workers = [
        context.Process(target=client, args=(f"client{i}", address, root, seconds, barrier, results)) for i in range(clients)
    ]
    try:
        for worker in workers:
            worker.start()
        rates = [results.get(timeout=60 + 10 * seconds) for _ in workers]
        for worker in workers:
            worker.join()
    finally:
        for process in (server, proxy):
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    assert (root / f"{store_role('server', b'server')}.sqlite3").exists()
    return {"put_per_s": sum(rate[0] for rate in rates), "get_per_s": sum(rate[1] for rate in rates)}


def measure_server(window: int, seconds: float, root: Path) -> dict[str, float]:
    """Rates of the server alone, with so many old clients' requests under way."""
    proxy, address = start("proxy", "proxy", root)
    server, _ = start("server", "server", root, "--proxy", address, "--period", "0.5")
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    counters = [0] * window

    def ask(index: int, payload: bytes) -> None:
        socket.send_multipart([b"%d" % index, b"", payload])

    def answer() -> tuple[int, bytes]:
        assert socket.poll(60_000), "no answer"
        index, _, payload = socket.recv_multipart()
        return int(index), payload

    def put(index: int, _: bytes) -> bytes:
        counters[index] += 1
        return b"PUT c%d t%d %d\r\n\r\n" % (index, index, counters[index]) + BODY

    def get(index: int, last: bytes) -> bytes:
        words = last.partition(b"\r\n")[0].split(b" ")
        return b"GET c%d t%d %s\r\n\r\n" % (index, index, words[3] if len(words) > 3 else b"-1")

    def pump(request: Callable[[int, bytes], bytes]) -> float:
        done, begun = 0, time.perf_counter()
        for index in range(window):
            ask(index, request(index, b""))
        under_way = window
        while under_way:
            index, payload = answer()
            if payload.startswith(b"STATUS server OK"):
                done += 1
                if time.perf_counter() < begun + seconds:
                    ask(index, request(index, payload))
                    continue
            under_way -= 1
        return done / (time.perf_counter() - begun)

    try:
        for index in range(window):
            while True:
                ask(index, b"SUBSCRIBE c%d t%d\r\n\r\n" % (index, index))
                if answer()[1].startswith(b"STATUS server OK"):
                    break
                time.sleep(0.1)
        return {"put_per_s": pump(put), "get_per_s": pump(get)}
    finally:
        socket.close(0)
        context.destroy(linger=0)
        for process in (server, proxy):
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def run(seconds: float = 3.0, repeat: int = 3) -> dict[str, dict[str, float]]:
    """Measure both sizes; give the best of the repeats of each figure."""
    kinds = {
        "1 client": (measure, 1),
        "16 clients": (measure, 16),
        "1 request": (measure_server, 1),
        "16 requests": (measure_server, 16),
    }
    figures: dict[str, dict[str, float]] = {}
    for label, (kind, size) in kinds.items():
        best = figures.setdefault(label, {})
        for _ in range(repeat):
            with tempfile.TemporaryDirectory() as root:
                for name, value in kind(size, seconds, Path(root)).items():
                    best[name] = max(best.get(name, 0.0), round(value, 1))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    figures = run(options.seconds, options.repeat)
    if options.json:
        print(json.dumps({"benchmark": "topics", "body_bytes": len(BODY), "figures": figures}))
        return
    for label, best in figures.items():
        print(f"{label:>11}: {best['put_per_s']:8.0f} put/s {best['get_per_s']:8.0f} get/s")
    for many, one in (("16 clients", "1 client"), ("16 requests", "1 request")):
        ratios = [f"{kind[:3]} {figures[many][kind] / figures[one][kind]:.1f}x" for kind in ("put_per_s", "get_per_s")]
        print(f"{many} / {one}: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
