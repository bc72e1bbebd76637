"""What the runtime measures for admission control."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import postroad
from postroad.client.connection import Client
from postroad.core.protocol.admission import CPU, MEMORY
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Admission, NodeConfig
from postroad.runtime.machine_load import available_memory, busy_s


def test_a_thread_is_busy_while_it_runs_and_while_it_waits_for_a_cpu(tmp_path: Path) -> None:
    schedstat = tmp_path / "schedstat"
    schedstat.write_text("1500000000 500000000 77\n")
    assert busy_s(schedstat) == 2.0


def test_without_the_counters_of_linux_the_time_that_a_thread_ran_counts(tmp_path: Path) -> None:
    before = time.thread_time()
    assert before <= busy_s(tmp_path / "none") <= time.thread_time()


def test_a_thread_that_works_is_busy_and_one_that_sleeps_is_not() -> None:
    """On any machine, whatever else runs on it."""
    before = busy_s()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    worked = busy_s() - before
    time.sleep(0.2)
    assert worked >= 0.045
    assert busy_s() - before - worked < 0.2


@pytest.mark.parametrize(
    ("limit", "used", "left"),
    [(None, None, 8_000 * 1024), ("max", "500", 8_000 * 1024), ("4096", "1096", 3_000), ("4096", "5000", 0)],
)
def test_memory_is_what_the_machine_and_the_control_group_have_left(
    tmp_path: Path, limit: str | None, used: str | None, left: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24684084 kB\nMemAvailable:       8000 kB\n")
    if limit is not None and used is not None:
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text(used + "\n")
    assert available_memory(meminfo, tmp_path) == left


def test_memory_is_unknown_where_nobody_tells_it(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path) is None


def test_a_broker_measures_what_nobody_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its CPU can do what it did while it was busy, here all the time; half of the memory that is left may be reserved."""
    monkeypatch.setattr("postroad.runtime.broker_server.busy_s", time.monotonic)
    monkeypatch.setattr("postroad.runtime.broker_server.available_memory", lambda: 6_000)
    monkeypatch.setattr("postroad.runtime.broker_server.CAPACITY_SAMPLE_S", 0.05)

    async def limits(client: Client) -> dict[str, int | None]:
        state = await client.admission_state()
        assert all(each.measured for each in state.resources)
        return {each.resource: each.limit for each in state.resources}

    async def scenario() -> None:
        config = NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", admission=Admission(policy="full"))
        node = BrokerServer(config)
        await node.start()
        async with postroad.connect(f"postroad://127.0.0.1:{node.port}") as client, asyncio.timeout(30):
            assert (await limits(client))[CPU] is None
            publisher = client.publisher()
            while (await limits(client))[CPU] is None:
                await publisher.publish({"price": 1.0})
                await publisher.flush()
            assert (await limits(client))[MEMORY] == 3_000 + 1_080, "with the default of the publisher, which takes memory"
        await node.stop()

    asyncio.run(scenario())
