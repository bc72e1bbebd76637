"""An overlay of 1,000 brokers with 100,000 subscriptions, as far as the console notices: a client that answers for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final, cast

from postroad.core.broker.status_report import report_subscriptions
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import DurableEntry, pubend_id
from postroad.core.protocol.status import BrokerReport, LinkReport, StreamReport

BROKERS: Final = 1000
SUBSCRIPTIONS: Final = 100_000


def neighbours_of(broker: int) -> list[int]:
    """Give a tree in which each broker has four children, with a link across to the next one."""
    parent, children = [(broker + 2) // 4] * (broker > 1), range(4 * broker - 2, 4 * broker + 2)
    return sorted({*parent, *(each for each in children if each <= BROKERS)})


class LargeOverlay:
    """Broker 1 has all subscriptions. `asked` counts the questions."""

    def __init__(self) -> None:
        self.asked = 0
        self._now_ms = 1_000_000
        filters = [Filter(f"symbol = 'S{number}' AND price > {number % 100}") for number in range(500)]
        self._edge = SimpleNamespace(
            subscriptions={
                number: SimpleNamespace(
                    number=number,
                    link=7,
                    name=f"desk-{number}",
                    filter=filters[number % 500],
                    answered=True,
                    open=True,
                    progress={},
                )
                for number in range(1, SUBSCRIPTIONS + 1)
            },
            streams={},
        )

    async def brokers(self) -> dict[int, list[int]]:
        return {broker: neighbours_of(broker) for broker in range(1, BROKERS + 1)}

    async def durables(self) -> list[DurableEntry]:
        self.asked += 1
        return [DurableEntry(f"desk-{number}", 1, "price > 5", True, number) for number in range(SUBSCRIPTIONS)]

    async def status(self, broker: int, *, after: int = 0, page: int = 0, wanted: str = "") -> BrokerReport:
        self.asked += 1
        self._now_ms += 1
        rows = report_subscriptions(cast("Edge", self._edge), {7: "client"}, after, page, wanted) if broker == 1 else []
        links = [LinkReport(other, f"broker-{other}", 1, 0, self._now_ms, 0, 0) for other in neighbours_of(broker)]
        streams = [StreamReport(pubend_id(broker), True, 0, 0, 0, 0, 0, published_rows=self._now_ms)]
        figures = {"clients": 1.0, "backlog_bytes": 0.0, "cache_bytes": 0.0}
        count = SUBSCRIPTIONS if broker == 1 else 0
        return BrokerReport(
            broker, f"broker-{broker}", "postroad", "127.0.0.1:1", 1, 1, self._now_ms, figures, links, streams, [], rows, count
        )
