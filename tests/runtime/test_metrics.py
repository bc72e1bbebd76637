"""The figures a broker shows Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from urllib.request import urlopen

import postroad
from postroad import metric_meanings
from postroad.metrics import MetricsService
from postroad.queues.broker_service import BrokerQueues
from postroad.queues.client import QueueClient
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Congestion, NodeConfig, Tracking

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"


def dashboard_metrics() -> set[str]:
    """Return the metrics that the Grafana dashboard asks for."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {
        name for panel in panels for target in panel.get("targets", ()) for name in re.findall(r"postroad_\w+", target["expr"])
    }


async def until_tracked(node: BrokerServer, entries: int) -> None:
    for _ in range(500):
        if node.stats()["tracking_entries"] == entries:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the tracking thread did not take what was published")


def test_a_broker_shows_its_figures_and_those_of_its_queues(tmp_path: Path) -> None:
    """Messages published and messages that wait in a queue appear in what a scraper reads; other paths do not exist."""

    async def body() -> tuple[str, bytes]:
        queues = BrokerQueues(str(tmp_path / "queues.sqlite"))
        metrics = MetricsService("127.0.0.1:0", queues)
        often = Tracking(persistence_ms=300)
        node = BrokerServer(
            NodeConfig(id=7, data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", tracking=often), [queues, metrics]
        )
        await node.start()
        try:
            async with postroad.connect(node.url) as client:
                publisher = client.publisher()
                for number in range(5):
                    await publisher.publish({"n": number})
                await publisher.flush()
            async with QueueClient.register("127.0.0.1", node.port, name="maker") as maker:
                queue = await maker.create_queue('odd "name"')
                for _ in range(3):
                    await maker.put(queue, b"work")
            await until_tracked(node, 5)
            url = f"http://127.0.0.1:{metrics.port}"
            text = await asyncio.to_thread(lambda: urlopen(f"{url}/metrics").read().decode())
            reader, writer = await asyncio.open_connection("127.0.0.1", metrics.port)
            writer.write(b"GET /other HTTP/1.1\r\n\r\n")
            other = await reader.read()
            writer.close()
        finally:
            await node.stop()
        return text, other

    text, other = asyncio.run(body())
    assert 'postroad_appended_rows{broker="7"} 5.0' in text
    assert 'postroad_queue_waiting{queue="odd \\"name\\""} 3.0' in text
    assert 'postroad_queue_put_total{queue="odd \\"name\\""} 3.0' in text
    assert 'postroad_stream_frontier{pubend="700"}' in text
    assert 'postroad_tracking_entries{broker="7"} 5.0' in text
    assert 'postroad_tracking_dropped{broker="7"} 0.0' in text
    assert other.startswith(b"HTTP/1.1 404")
    missing = dashboard_metrics() - set(re.findall(r"^(postroad_\w+)\{", text, re.MULTILINE))
    assert not missing, f"{DASHBOARD.name} shows what no broker reports"


def test_the_dashboard_is_whole() -> None:
    """Panels have titles, units and a place of their own, and ask the data source that is chosen above them."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 20
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "instance"}
    for panel in panels:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(ids)) == len(set(places)) == len(ids)


def test_every_metric_has_a_meaning_and_every_meaning_a_metric(tmp_path: Path) -> None:
    """What Prometheus reads is on the page of the docs, which is made from the meanings."""

    async def body() -> str:
        queues = BrokerQueues(str(tmp_path / "queues.sqlite"))
        metrics = MetricsService("127.0.0.1:0", queues)
        node = BrokerServer(
            NodeConfig(id=7, data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", congestion=Congestion(rule="improved")),
            [queues, metrics],
            tracking_process=True,
        )
        await node.start()
        try:
            async with postroad.connect(node.url) as client:
                await client.publish({"n": 1})
                await client.queue("jobs").put(b"work")
                return (await metrics.render()).decode()
        finally:
            await node.stop()

    shown = dict(re.findall(r"^# HELP postroad_(\S+) (.*)$", asyncio.run(body()), re.MULTILINE))
    expected = metric_meanings.BROKER | {f"stream_{name}": text for name, text in metric_meanings.STREAM.items()}
    expected |= {"limit": metric_meanings.LIMIT} | {f"identity_{name}": text for name, text in metric_meanings.IDENTITY.items()}
    expected |= {f"queue_{name}": text for name, text in metric_meanings.QUEUE.items()}
    expected |= {f"queue_{name}_total": text for name, text in metric_meanings.QUEUE_TOTALS.items()}
    assert shown == expected
