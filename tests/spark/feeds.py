"""What is published at brokers for the Spark tests."""

from __future__ import annotations

from collections.abc import Sequence

import postroad.sync


def publish(url: str, numbers: Sequence[int], *, bulk: int = 0) -> None:
    """Publish messages with the attributes `n` and `even`, durably."""
    with postroad.sync.connect(url) as client:
        publisher = client.publisher()
        publisher.publish_many({"n": list(numbers), "even": [n % 2 == 0 for n in numbers]}, [bytes(bulk)] * len(numbers))
        publisher.flush()
