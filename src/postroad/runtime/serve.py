"""A broker as a process: logging, signals, the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

from postroad.runtime.broker_server import STOP_S_MAX, BrokerServer
from postroad.runtime.config import NodeConfig
from postroad.runtime.connections.descriptors import raise_limit
from postroad.runtime.services import Service
from postroad.transport.loops import run

log = logging.getLogger("postroad.node")

# The machine's state has few cycles; with the default threshold a busy broker looks for them hundreds of times a second.
GC_THRESHOLD: Final = 50_000
# How long a thread that comes back from the disk may wait for the interpreter; the default, 5 ms, is more than a write takes.
SWITCH_INTERVAL_S: Final = 0.0005


def serve(config: NodeConfig, ready: Callable[[int], None], services: Sequence[Service] = (), *, replaces: bool = False) -> None:
    """Run a broker until SIGTERM or SIGINT; `ready` is told the port once it listens.

    `replaces` says that the files of a former life of this broker are known to be lost.
    """
    logging.basicConfig(
        level=config.log_level.upper(),
        format=f"%(asctime)s %(levelname)-7s {config.title} %(name)s: %(message)s",
        stream=sys.stderr,
    )
    gc.set_threshold(GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_limit()
    run(_serve(BrokerServer(config, services, tracking_process=config.tracking.process, replaces=replaces), ready))


async def _serve(node: BrokerServer, ready: Callable[[int], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.request_stop)
    loop.add_signal_handler(signal.SIGHUP, node.reload_certificates)
    if not await _start(node):
        log.info("broker %d stopped during its start", node.config.id)
        return
    gc.freeze()
    ready(node.port)
    await node.run()


async def _start(node: BrokerServer) -> bool:
    """Start a broker; tell whether it serves. A start that was told to stop may finish within a few seconds."""
    starting = asyncio.create_task(node.start())
    told = asyncio.create_task(node.stop_requested())
    try:
        await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await asyncio.wait((starting,), timeout=STOP_S_MAX)
            starting.cancel()
        await starting
    except asyncio.CancelledError:
        if not starting.cancelled():
            raise
        return False
    finally:
        told.cancel()
    return True
