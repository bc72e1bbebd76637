"""Three real brokers in a line admit what fits and refuse the rest, and the operator sees the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.brokers import BrokerProcess, config

import postroad
from postroad.client.connection import Client
from postroad.errors import AdmissionError, PublishRefusedError
from postroad.runtime.config import Admission
from postroad.testing import free_ports

PHB, IB, SHB = 1, 2, 3
STEP_S = 20.0


async def advertisements_known(client: Client, count: int) -> None:
    async with asyncio.timeout(STEP_S):
        while (await client.admission_state()).advertisements != count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroad.cli", *arguments], capture_output=True, text=True, timeout=STEP_S, check=False
    )


def test_an_overlay_admits_what_fits_and_refuses_the_rest(tmp_path: Path) -> None:
    """The link between the second and the third broker has room for 40 messages a second."""
    asyncio.run(admit_and_refuse(tmp_path))


async def admit_and_refuse(tmp_path: Path) -> None:
    one, two, three = free_ports(3)
    full = Admission(policy="full", cpu_rate=1_000.0)
    narrow = Admission(policy="full", cpu_rate=1_000.0, link_rates=((SHB, 40.0),))
    with contextlib.ExitStack() as stack:
        for number, name, port, neighbours, admission in (
            (PHB, "phb", one, [], full),
            (IB, "ib", two, [one], narrow),
            (SHB, "shb", three, [two], full),
        ):
            stack.enter_context(BrokerProcess(config(number, name, port, tmp_path, neighbours, admission=admission), tmp_path))
        url = f"postroad://127.0.0.1:{three}"
        async with (
            postroad.connect(f"postroad://127.0.0.1:{one}") as producer,
            postroad.connect(url) as reader,
            postroad.connect(f"postroad://127.0.0.1:{two}") as operator,
        ):
            await producer.advertise("symbol = 'IBM'", max_rate=30)
            extra = await producer.advertise("symbol = 'SAP' AND price >= 100", max_rate=25)
            await advertisements_known(reader, 2)

            ibm = await reader.subscribe("symbol = 'IBM'")
            with pytest.raises(AdmissionError) as refused:
                await reader.subscribe("symbol = 'SAP' AND price > 50")
            (reason,) = refused.value.refusals
            assert (reason.broker, reason.resource, reason.neighbour) == (IB, "bandwidth", SHB)
            assert (reason.demanded, reason.available) == (25_000, 10_000)
            assert sorted(refused.value.brokers) == [PHB, IB, SHB]
            assert refused.value.largest_rate == 10.0
            assert refused.value.fitting_filter is not None
            assert (await reader.subscribe(refused.value.fitting_filter)) is not None

            # the operator's view agrees
            state = await operator.admission_state()
            used = {(each.resource, each.neighbour): (each.used, each.limit) for each in state.resources}
            assert used["bandwidth", SHB] == (30_000, 40_000)
            assert used["cpu", 0] == (30_000, 1_000_000)
            assert {(each.filter, each.millirate) for each in state.nodes} == {
                ("symbol = 'IBM'", 30_000),
                ("symbol = 'SAP' AND price >= 100", 25_000),
            }

            # so do the commands
            explained = await asyncio.to_thread(command, "subscribe", "--url", url, "--explain", "symbol = 'SAP' AND price > 50")
            assert explained.returncode == 1, explained.stderr
            assert "broker 2 would have 25 messages/s more on its link to broker 3, which has room for 10" in explained.stdout
            shown = await asyncio.to_thread(command, "admission", "status", "--url", f"postroad://127.0.0.1:{two}", "--json")
            assert json.loads(shown.stdout)["broker"] == IB
            drawn = await asyncio.to_thread(command, "admission", "status", "--url", f"postroad://127.0.0.1:{two}")
            assert "symbol = 'IBM'  count 1, 30/s, broker 1" in drawn.stdout

            # what was admitted is served; what was not advertised is refused
            refusals: list[PublishRefusedError] = []
            publisher = producer.publisher(on_refused=refusals.append)
            await publisher.publish({"symbol": "IBM", "price": 1.0}, b"wanted")
            await publisher.publish({"symbol": "other"}, b"unwanted")
            await publisher.flush()
            async with asyncio.timeout(STEP_S):
                assert (await anext(ibm)).payload == b"wanted"
                while not refusals:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert "outside of what its publisher has advertised" in str(refusals[0])

            # and room that is given back can be had
            await producer.unadvertise(extra)
            await advertisements_known(reader, 1)
            await reader.subscribe("symbol = 'SAP' AND price > 50")
