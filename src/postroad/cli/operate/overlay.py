"""`postroad overlay`: all brokers of a topology file, one process each."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from postroad.errors import OverlayError
from postroad.runtime.config import NodeConfig, dump_config, load_topology

STOP_S = 10.0


@dataclass(slots=True)
class _Broker:
    config: NodeConfig
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def state(self) -> str:
        code = self.process.poll()
        return "up" if code is None else f"ended with code {code}" if code >= 0 else f"killed by signal {-code}"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--logs", type=click.Path(path_type=Path, file_okay=False), help="Directory for the brokers' logs.  [data_dir/logs]"
)
def overlay(file: Path, logs: Path | None) -> None:
    """Run all brokers of a topology file on this machine, one process each, until Ctrl-C or SIGTERM.

    A broker that ends is not restarted: the command reports it, and the others continue to run. The exit code is 1 if a broker
    ended before it was asked to. docs/howto/run-an-overlay.md describes the file.
    """
    configs = load_topology(file)
    with tempfile.TemporaryDirectory(prefix="postroad-overlay-") as temporary:
        brokers: list[_Broker] = []
        try:
            for config in configs:
                brokers.append(  # noqa: PERF401  # those started so far must be stopped when one fails
                    _start(config, Path(temporary), logs)
                )
            failed = _watch(brokers)
        finally:
            _stop(brokers)
    if failed:
        raise OverlayError(f"brokers that ended unexpectedly: {', '.join(failed)}; see their logs")


def _start(config: NodeConfig, temporary: Path, logs: Path | None) -> _Broker:
    directory = logs or Path(config.data_dir).parent / "logs"
    directory.mkdir(parents=True, exist_ok=True)
    path = temporary / f"{config.id}.toml"
    path.write_text(dump_config(config), encoding="utf-8")
    log = directory / f"{config.title}.log"
    command = [sys.executable, "-m", "postroad.cli", "broker", "--config", str(path)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603  # our own program
    click.echo(f"{config.title}: postroad://{config.listen}, process {process.pid}, log {log}")
    return _Broker(config, log, process)


def _watch(brokers: list[_Broker]) -> list[str]:
    """Show a status line until told to stop; return the names of brokers that ended before."""
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    told: set[str] = set()
    console = Console(stderr=True)
    with console.status("starting") as status:
        while not stopping and len(told) < len(brokers):
            for broker in brokers:
                if broker.process.poll() is not None and broker.config.title not in told:
                    told.add(broker.config.title)
                    console.print(f"{broker.config.title} {broker.state}; its log is {broker.log}")
            status.update("  ".join(f"{broker.config.title}: {broker.state}" for broker in brokers))
            time.sleep(0.2)
    return sorted(told)


def _stop(brokers: list[_Broker]) -> None:
    for broker in brokers:
        if broker.process.poll() is None:
            broker.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    for broker in brokers:
        try:
            broker.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            broker.process.kill()
            broker.process.wait()
        click.echo(f"{broker.config.title}: {broker.state}")
