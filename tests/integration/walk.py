"""The way of one message through three brokers, as the interpreter sees it: `python -m tests.integration.walk`.

A publisher at broker 1, a relay, a subscriber at broker 3, all in this process. Each call of a function of `postroad` between
`publish()` and the arrival of the message is recorded, in all threads.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import postroad
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Neighbour, NodeConfig, Overlay, Tracking
from postroad.testing import free_ports, url_of

SOURCE = str(Path(inspect.getfile(postroad)).parent) + "/"
WAIT_S_MAX = 60.0


@dataclass
class Recorder:
    """Notes the code of each function called while it is on. Functions inside functions count as the outer one."""

    calls: list[CodeType] = field(default_factory=list)
    on: bool = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self.calls.append(frame.f_code)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread and those that start meanwhile."""
        before = sys.getprofile()
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


def trace(directory: Path) -> list[CodeType]:
    """Send one message through three brokers and return the calls."""
    recorder = Recorder()
    with recorder.watching():
        asyncio.run(_send_one(directory, recorder))
    return recorder.calls


async def _send_one(directory: Path, recorder: Recorder) -> None:
    ports = free_ports(3)
    brokers = [BrokerServer(_config(directory, number, ports)) for number in (1, 2, 3)]
    async with asyncio.timeout(WAIT_S_MAX):
        for each in brokers:
            await each.start()
        try:
            async with postroad.connect(url_of(brokers[0])) as first, postroad.connect(url_of(brokers[2])) as last:
                subscription = await last.subscribe("symbol = 'IBM'")
                publisher = first.publisher()
                await publisher.publish({"symbol": "IBM"}, b"the way is known")
                await anext(subscription)
                recorder.on = True
                await publisher.publish({"symbol": "IBM"}, b"walk")
                assert (await anext(subscription)).payload == b"walk"
                recorder.on = False
        finally:
            for each in brokers:
                await each.stop()


def _config(directory: Path, number: int, ports: list[int]) -> NodeConfig:
    return NodeConfig(
        id=number,
        data_dir=str(directory / str(number)),
        listen=f"127.0.0.1:{ports[number - 1]}",
        neighbours=(Neighbour(address=f"127.0.0.1:{ports[number - 2]}"),) if number > 1 else (),
        overlay=Overlay(silence_s=10.0),
        tracking=Tracking(strategy="null"),
        log_level="warning",
    )


def named(code: CodeType) -> tuple[str, str]:
    """Return the file and the name of a function, as the page writes them."""
    return code.co_filename.removeprefix(SOURCE), code.co_qualname


def function_code(path: str, name: str) -> CodeType:
    """Find the function that the page names."""
    found: Any = import_module(f"postroad.{path.removesuffix('.py').replace('/', '.')}")
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    function: Callable[..., Any] = inspect.unwrap(found)
    return function.__code__


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        calls = dict.fromkeys(named(code) for code in trace(Path(directory)) if "<" not in code.co_qualname)
    lines = [f"{path} {name}" for path, name in calls]
    sys.stdout.write("\n".join([*lines, f"{len(calls)} functions in {len({path for path, _ in calls})} modules", ""]))


if __name__ == "__main__":
    main()
