"""A broker with millions of messages starts as quickly as one with few."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.integration.brokers import BrokerProcess, config

import postroad
from postroad.core.batch.batch import Batch
from postroad.core.batch.checks import id_array_of
from postroad.core.batch.schema import layout_of
from postroad.core.protocol.packets import pubend_id
from postroad.storage import open_broker_storage
from postroad.storage.segment.disk import Disk
from postroad.testing import free_ports

MESSAGES, ROWS, PUBLISHERS = 5_000_000, 1000, 100
START_CPU_S_MAX = 5.0


class UnsyncedDisk(Disk):
    """Leaves syncing out: nothing here outlives the machine."""

    def sync(self, descriptor: int) -> None:
        pass


def make_log(directory: Path) -> int:
    """Write a broker's log as if the broker had been killed; return the tick of its first message."""
    storage = open_broker_storage(directory, 1, [pubend_id(1)], disk=UnsyncedDisk())
    log = storage.logs[pubend_id(1)]
    layout = layout_of(("n",), ("int",))
    payloads = pa.array([b"x" * 100] * ROWS, pa.binary())
    first = int(time.time() * 1000) - 3_600_000 << 16
    for number in range(0, MESSAGES, ROWS):
        ticks = np.arange(first + number, first + number + ROWS, dtype=np.uint64)
        ids = np.empty((ROWS, 2), ">u8")
        ids[:, 0], ids[:, 1] = (number // ROWS % PUBLISHERS) << 32 | 1, ticks
        columns = [pa.array(ticks), id_array_of(ids.tobytes()), payloads, pa.array(np.arange(number, number + ROWS))]
        log.append([Batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout)])
    log.abandon()
    storage.close()
    return first


def cpu_s(pid: int) -> float:
    """Return the processor time a process has taken."""
    figures = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(figures[11]) + int(figures[12])) / os.sysconf("SC_CLK_TCK")


def test_a_broker_with_five_million_messages_starts_within_five_seconds(tmp_path: Path) -> None:
    """By its processor time, since others may use the machine; then it serves the newest of them."""
    (port,) = free_ports(1)
    broker = BrokerProcess(config(1, "broker", port, tmp_path, []), tmp_path)
    first = make_log(tmp_path / "broker")

    async def newest() -> int:
        async with postroad.connect(broker.url) as client:
            (span,) = (await client.pubends()).values()
            assert span.last == first + MESSAGES - 1
            rows = 0
            async for batch in client.read(span.pubend, span.last - ROWS, span.last):
                rows += len(batch)
            return rows

    try:
        with broker:
            assert cpu_s(broker.pid) < START_CPU_S_MAX
            assert asyncio.run(newest()) == ROWS
    finally:
        for file in tmp_path.glob("broker/pubends/*/*.segment"):
            file.unlink()  # hundreds of megabytes
