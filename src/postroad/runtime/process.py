"""Our own programs as processes, and a broker as one, for whoever starts it from Python: the demo, tests, benchmarks."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Final, Self

from postroad.errors import OverlayError
from postroad.runtime.config import NodeConfig, dump_config
from postroad.transport.programs import own_command, own_environment

END_S_MAX: Final = 20.0
POLL_S: Final = 0.005


def with_children(pid: int) -> list[int]:
    """Return a process and those it started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(int(each) for task in tasks for each in task.read_text(encoding="ascii").split())]


class BrokerProcess:
    """One broker that can be killed and started again. Its configuration and log are in `directory`."""

    def __init__(self, config: NodeConfig, directory: Path) -> None:
        self.config: Final = config
        self.url: Final = f"postroad://{config.listen}"
        self.log: Final = directory / f"{config.title}.log"
        self._file: Final = directory / f"{config.title}.toml"
        self._file.write_text(dump_config(config), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start it and wait until it listens."""
        assert self._process is None
        command = own_command("postroad.cli", "broker", "--config", str(self._file), *options)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=own_environment()
            )
        assert self._process.stdout is not None
        if b"listens on" not in self._process.stdout.readline():
            self.kill()
            raise OverlayError(f"{self.config.title} did not start: {self.log.read_text(encoding='utf-8')[-2000:]}")

    def kill(self) -> int:
        """End it as a crash would, and wait until its tracking process has written what it knew."""
        return self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it in good order; return its exit code."""
        return self._end(signal.SIGTERM)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Return its process and those it started."""
        return with_children(self.pid)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def _end(self, number: signal.Signals) -> int:
        others = self.pids[1:] if self.running else []
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.send_signal(number)
        code = process.wait(END_S_MAX)
        process.stdout.close()
        _wait_for_end(others)
        return code


def _wait_for_end(pids: list[int]) -> None:
    """Wait for processes that are no children of ours."""
    until = time.monotonic() + END_S_MAX
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            raise OverlayError(f"processes {pids} did not end")
        time.sleep(POLL_S)
