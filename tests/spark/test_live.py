"""Batch reads of a live overlay with real Spark and real broker processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.integration.brokers import config, wait_until
from tests.spark.counting import CountingProxy
from tests.spark.feeds import publish

import postroad.sync
from postroad.core.protocol.packets import pubend_id
from postroad.runtime.process import BrokerProcess
from postroad.spark import messages
from postroad.testing import free_ports

NEAR, FAR = pubend_id(1), pubend_id(2)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two linked brokers; 4,000 messages at the first, 1,000 at the second."""
    directory = tmp_path_factory.mktemp("brokers")
    ports = free_ports(2)
    near = BrokerProcess(config(1, "near", ports[0], directory, []), directory)
    far = BrokerProcess(config(2, "far", ports[1], directory, [ports[0]]), directory)
    with near, far, postroad.sync.connect(near.url) as client:
        wait_until(lambda: len(client.pubends()) == 2)
        publish(near.url, range(4000), bulk=200)
        publish(far.url, range(4000, 5000), bulk=200)
        yield near.url, far.url


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row["n"] for row in frame.select("n").collect())


def test_messages_of_all_brokers_are_read_through_one(spark: SparkSession, brokers: tuple[str, str]) -> None:
    """Each message once, whichever broker is asked; the schema is inferred from a sample."""
    for url in brokers:
        frame = messages(spark, url=url)
        assert dict(frame.dtypes)["n"] == "bigint"
        assert numbers(frame) == list(range(5000))
    assert numbers(messages(spark, url=brokers[0], pubends=FAR)) == list(range(4000, 5000))
    assert numbers(messages(spark, url=brokers[0], partitionSeconds=0.02)) == list(range(5000))


def test_conditions_go_to_the_broker(spark: SparkSession, brokers: tuple[str, str]) -> None:
    """Less crosses the link when less matches, and explain shows what was pushed."""
    with CountingProxy(brokers[0]) as proxy:
        frame = messages(spark, url=proxy.url, schema="n bigint, even boolean, payload binary")
        crossed = []
        for condition, expected in (("n >= 0", 5000), ("n < 500", 500), ("n >= 20 and n < 120 and even", 50)):
            before = proxy.down
            assert frame.where(condition).count() == expected
            crossed.append(proxy.down - before)
    assert crossed[0] > 5000 * 200
    assert crossed[1] < crossed[0] / 5
    assert crossed[2] < crossed[1] / 5


def test_a_broker_that_is_not_there_is_said_so(spark: SparkSession) -> None:
    """The error names the address."""
    (port,) = free_ports(1)
    with pytest.raises(PySparkException, match=f"NotConnectedError.*127.0.0.1:{port}"):
        messages(spark, url=f"postroad://127.0.0.1:{port}", timeoutSeconds=1)


def test_an_unknown_pubend_is_said_so(spark: SparkSession, brokers: tuple[str, str]) -> None:
    """The error lists those that exist."""
    with pytest.raises(PySparkException, match=f"UnknownPubendError.*pubend 777; there are: {NEAR}, {FAR}"):
        messages(spark, url=brokers[0], pubends=777)
