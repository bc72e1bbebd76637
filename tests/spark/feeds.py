"""What is published at brokers for the Spark tests, and what is found there."""

from __future__ import annotations

from collections.abc import Sequence

import postroad.sync
from postroad.core.batch.message import Message


def publish(url: str, numbers: Sequence[int], *, bulk: int = 0) -> None:
    """Publish messages with the attributes `n` and `even`, durably."""
    with postroad.sync.connect(url) as client:
        publisher = client.publisher()
        publisher.publish_many({"n": list(numbers), "even": [n % 2 == 0 for n in numbers]}, [bytes(bulk)] * len(numbers))
        publisher.flush()


def everything(url: str) -> list[Message]:
    """Return every message of every pubend within reach, each pubend in order."""
    with postroad.sync.connect(url) as client:
        spans = client.pubends()
        return [
            message
            for pubend, span in spans.items()
            for batch in client.read(pubend, span.released, span.last)
            for message in batch
        ]


def numbers_of(url: str) -> list[int]:
    """Return the attribute `n` of every message, sorted."""
    return sorted(int(message["n"]) for message in everything(url))
