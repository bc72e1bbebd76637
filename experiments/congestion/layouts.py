"""Topologies and units of the paper's section 5.

Gryphon's messages were larger than ours on the wire, so limits of links and queues are scaled: by `FACTOR`, such that the offered
load over the capacity is the paper's. The text does not give the size of a message with its header. It follows from E4: above
1.8 tick seconds per second the link of 500 KB/s is saturated by messages that are sent again, and the past holds 500 messages
per tick second; 500 KB/s over (1 + 1.8) 500 messages per second is 366 bytes. That agrees with the other experiments: 250 KB/s
carry 500 messages per second (at most 512 bytes), 150 KB/s do not (at least 307).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from experiments.congestion.load import GROUPS, PERIOD_S, ROWS, batches_of
from postroad.core.protocol.packets import Knowledge
from postroad.sim.frames import to_bytes

KB: Final = 1024
PUBENDS: Final = 4
OFFERED: Final = PUBENDS * ROWS / PERIOD_S
"""Messages per second, over all pubends."""
PAPER_MESSAGE_BYTES: Final = 500 * KB / ((1 + 1.8) * OFFERED)
PAPER_QUEUE_BYTES: Final = 5 << 20


def message_bytes() -> float:
    """Return what one of our messages takes on a link between brokers, with its share of the frame."""
    ids = np.zeros(ROWS, np.dtype((np.void, 16)))
    (batch,) = batches_of(ids)
    return len(to_bytes(Knowledge(1 << 16, 1 << 56, (1 << 56) + ROWS, 1 << 40), 0, batch)) / ROWS


FACTOR: Final = message_bytes() / PAPER_MESSAGE_BYTES
"""Our bytes for one of the paper's."""


@dataclass(frozen=True)
class Layout:
    """Brokers by name, their links, and what part of the messages each broker's subscribers want."""

    links: tuple[tuple[str, str], ...]
    wanted: dict[str, str]  # broker -> filter
    publisher: str = "PB"

    @property
    def brokers(self) -> list[str]:
        return list(dict.fromkeys(name for link in self.links for name in link))


SIMPLE: Final = Layout((("PB", "IB"), ("IB", "SB1"), ("IB", "SB2")), {"SB1": "TRUE", "SB2": "TRUE"})
"""Fig. 1: one publisher-hosting, one intermediate, two subscriber-hosting brokers."""


def _two_fifths(number: int) -> str:
    """Return a filter for 2/5 of the messages; those of five brokers cover all groups."""
    low = (number - 1) * GROUPS // 5
    high = low + 2 * GROUPS // 5
    if high <= GROUPS:
        return f"group >= {low} AND group < {high}"
    return f"group >= {low} OR group < {high - GROUPS}"


COMPLEX: Final = Layout(
    (
        ("PB", "IB1"),
        ("IB1", "SB1"),
        ("IB1", "IB2"),
        ("IB2", "SB2"),
        ("IB2", "SB3"),
        ("IB2", "IB3"),
        ("IB3", "SB4"),
        ("IB3", "SB5"),
    ),
    {f"SB{number}": _two_fifths(number) for number in range(1, 6)},
)
"""Fig. 12: one publisher-hosting, three intermediate, five subscriber-hosting brokers at different distances."""
