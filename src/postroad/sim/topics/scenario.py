"""What one simulated run of the topics service is made of. Each seed draws which faults strike and how strongly."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one run is made of; `from_seed` draws it."""

    seed: int
    proxies: int
    servers: int
    clients: int
    topics: int
    safety_s: float
    period_s: float
    loss: float
    double: float
    slow: float
    disk_fail: float
    fault_every_s: float
    pause_s: float
    part_bytes: int
    late_servers: int  # servers that join during the run
    amnesia: float  # chance that a proxy that crashes loses its list of servers and its routes
    away: float  # chance that a server is gone from some moment until everything heals
    leave: int  # how often clients unsubscribe, beside 45 gets and 40 puts
    deaf: float  # chance that a proxy and a server cannot talk for a good part of the safety phase
    deaf_servers: bool  # the same may happen to two servers
    split: bool  # at first each proxy knows servers of its own, so that most topics have several owners
    stamps: bool = True
    homes: bool = True
    settle: bool = True

    @classmethod
    def from_seed(cls, seed: int) -> Scenario:
        rng = random.Random(f"scenario {seed}")  # noqa: S311 - reproducible faults
        return cls(
            seed=seed,
            proxies=rng.choice([1, 2, 2, 2, 3, 3]),
            servers=rng.choice([1, 2, 2, 3, 3, 4]),
            clients=rng.randint(2, 6),
            topics=rng.randint(1, 6),
            safety_s=rng.uniform(6, 14),
            period_s=rng.choice([0.5, 1.0, 2.0, 5.0]),
            loss=rng.choice([0.0, 0.01, 0.05, 0.15]),
            double=rng.choice([0.0, 0.02, 0.1]),
            slow=rng.choice([0.0, 0.02, 0.1]),
            disk_fail=rng.choice([0.0, 0.0, 0.01]),
            fault_every_s=rng.choice([0.3, 0.7, 1.5]),
            pause_s=rng.choice([0.03, 0.1, 0.2]),
            part_bytes=rng.choice([150, 150, 600, 4 << 20]),
            deaf=rng.choice([0.0, 0.3, 0.6, 0.6]),
            deaf_servers=rng.random() < 0.5,
            split=rng.random() < 0.5,
            late_servers=rng.choice([0, 0, 0, 1, 1, 2]),
            amnesia=rng.choice([0.0, 0.3, 1.0]),
            away=rng.choice([0.0, 0.0, 0.3, 0.6]),
            leave=rng.choice([0, 3, 3, 15]),
        )
