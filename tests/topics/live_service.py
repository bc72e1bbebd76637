"""Real processes for the live tests: start, kill, restart; nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from postroad.topics.drivers import store_role

SOURCE = Path(__file__).parents[2] / "src"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """Named processes; each is started again from the same command after a kill."""

    def __init__(self, root: Path, *, proxies: int, servers: int, period_s: float = 1.0) -> None:
        self.root = root
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(proxies)]
        self.commands: dict[str, list[str]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        base = [sys.executable, "-m", "postroad.cli", "topics"]
        for index, address in enumerate(self.addresses):
            self.commands[f"proxy{index}"] = [*base, "proxy", f"proxy{index}", "--bind", address, "--data", str(root / "data")]
        known = [word for address in self.addresses for word in ("--proxy", address)]
        self._server = [*base, "server"]
        self._options = [*known, "--data", str(root / "data"), "--period", str(period_s)]
        for index in range(servers):
            self.commands[f"server{index}"] = [*self._server, f"server{index}", *self._options]

    def join(self, name: str) -> None:
        """Start a server that was not there at first."""
        self.add(name, [*self._server, name, *self._options])
        self.start(name)

    def files(self, name: str) -> list[Path]:
        """Return the database files of a server or proxy."""
        role = store_role(name.rstrip("0123456789"), name.encode())
        return list((self.root / "data").glob(f"{role}.sqlite3*"))

    def add(self, name: str, command: list[str]) -> None:
        self.commands[name] = command

    def start(self, name: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(self.commands[name], stdout=log, stderr=log, env=environment, cwd=self.root)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def start_missing(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None and process.returncode == -signal.SIGKILL:
                self.start(name)

    def failed(self) -> list[str]:
        """Name processes that ended by themselves with an error, with the end of their log."""
        bad = [n for n, p in self.processes.items() if p.poll() is not None and p.returncode not in {0, -signal.SIGKILL}]
        return [f"{name}: {(self.root / f'{name}.log').read_text(errors='replace')[-2000:]}" for name in bad]

    def __enter__(self) -> Self:
        for name in self.commands:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def eventually(done: Callable[[], bool], *, within_s: float, tick: Callable[[], None] = lambda: None) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if done():
            return True
        tick()
        time.sleep(0.05)
    return done()
