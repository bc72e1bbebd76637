"""The rate profile of `postroad pipeline rates`, as a broker reads it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import postroad
from postroad.errors import ConfigError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Admission, NodeConfig
from postroad.runtime.rate_profile import publisher_rates
from postroad.spark.jobs.rates import Entry, Profile, encode
from postroad.testing import free_ports


def entry(broker: int, publisher: int, peak: float, value: str | None = None) -> Entry:
    return Entry(broker, publisher, value, 100, 1000, 0, 1000, 1.0, peak, peak, peak, 1.0, 1.0, 1.0, 0.0, 0.0)


def test_the_peaks_of_a_brokers_own_publishers_are_read(tmp_path: Path) -> None:
    """With `--by`, a publisher has an entry for each value; its rate is their sum."""
    path = tmp_path / "rates.json"
    path.write_bytes(encode(Profile(1, "topic", 0, 1, (entry(1, 5, 20.0, "a"), entry(1, 5, 10.0, "b"), entry(2, 5, 99.0)))))
    assert publisher_rates(path, 1) == ((5, 30.0),)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2, "entries": []}'])
def test_another_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"rates\.json"):
        publisher_rates(path, 1)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        publisher_rates(tmp_path / "none.json", 1)


def test_a_publisher_that_was_measured_is_held_to_its_peak_when_its_broker_starts_with_the_profile(tmp_path: Path) -> None:
    """The client stays connected over the restart: it has the number that the profile knows. Another one gets the default."""
    (port,) = free_ports(1)
    profile = tmp_path / "rates.json"

    def broker(**admission: object) -> BrokerServer:
        settings = Admission(**admission)  # type: ignore[arg-type]  # a test's own choice of keys
        return BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen=f"127.0.0.1:{port}", admission=settings))

    async def scenario() -> None:
        node = broker()
        await node.start()
        async with asyncio.timeout(30), postroad.connect(f"postroad://127.0.0.1:{port}") as client:
            publisher = client.publisher()
            measured = (await publisher.publish({"price": 1.0})).publisher
            await publisher.flush()
            await node.stop()
            profile.write_bytes(encode(Profile(1, None, 0, 1, (entry(1, measured, 12.0),))))
            node = broker(policy="full", rates_file=str(profile), default_rate=70.0)
            await node.start()
            await publisher.publish({"price": 2.0})
            await publisher.flush()
            (everything,) = (await client.admission_state()).nodes
            assert (everything.filter, everything.count, everything.millirate) == ("TRUE", 1, 12_000)
            other = client.publisher()
            await other.publish({"price": 3.0})
            await other.flush()
            (everything,) = (await client.admission_state()).nodes
            assert (everything.count, everything.millirate) == (2, 82_000)
        await node.stop()

    asyncio.run(scenario())
