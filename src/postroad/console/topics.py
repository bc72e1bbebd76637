"""What the console shows of a topics service: who owns each topic, who subscribes, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from postroad.topics.inquiry import ServiceReports, inquire_service

INQUIRY_S: Final = 1.0
TOPICS_SHOWN_MAX: Final = 1000


def read_topics(proxies: Sequence[str]) -> dict[str, Any]:
    """Ask the service and return its state as plain values. It blocks for as long as silent processes may take to answer."""
    return describe_topics(inquire_service(proxies, INQUIRY_S))


def describe_topics(found: ServiceReports) -> dict[str, Any]:
    topics = [
        {
            "topic": topic["topic"],
            "owner": name,
            "state": topic["state"],
            **{figure: topic[figure] for figure in ("subscribers", "unread", "messages", "bytes")},
        }
        for name, (_, report) in found.servers.items()
        for topic in (report or {}).get("topics", [])
    ]
    topics.sort(key=lambda topic: (-topic["unread"], topic["topic"]))
    return {
        "proxies": [
            {"address": address, "up": report is not None, "name": "" if report is None else report["proxy"]}
            for address, report in found.proxies
        ],
        "servers": [
            {"name": name, "address": address, "up": report is not None, "topics": 0 if report is None else report["count"]}
            for name, (address, report) in found.servers.items()
        ],
        "topics": topics[:TOPICS_SHOWN_MAX],
        "topic_count": len(topics),
    }
