"""The setting of section 5.1: brokers of random speed, publishers and subscribers at random brokers, who come and go in rounds.

A round of a publisher: pick a message of the fixed set, advertise what it is about, send 100 messages of the set that match,
withdraw. A round of a subscriber: subscribe, receive for a while, unsubscribe. Who is rejected tries another filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from experiments.admission.brokers import QUIET_S, Machines
from experiments.admission.load import Link, Load
from postroad.core.broker.admission_settings import AdmissionSettings, Criterion
from postroad.core.broker.context import BrokerConfig
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import Advertise, AdvertiseAccepted, SubscriptionRejected, Unadvertise
from postroad.core.protocol.packets import Packet, Subscribe, Subscribed, Unsubscribe, pubend_id
from postroad.sim.world import World
from postroad.types import AttributeValue

WARM_S: Final = 2.0  # until all brokers know the routes
CPU_RATES: Final = (100.0, 200.0)
LINK_RATES: Final = (200.0, 300.0)
RATES: Final = (20.0, 30.0)
TOPICS: Final = 10
PRICES: Final = 100


@dataclass(frozen=True)
class Measures:
    """What one run gave, over the time that is measured."""

    discard_per_s: float  # of each broker, on average
    rejection_rate: float
    cpu_utilisation: float
    bandwidth_utilisation: float
    requests: int
    delivered_per_s: float
    control_packets_per_s: float


class Testbed:
    """One run of one policy with a number of subscribers."""

    __test__ = False  # not a test, whatever its name begins with

    def __init__(self, policy: str, subscribers: int, seed: int, values: Mapping[str, Any], *, estimate: bool = False) -> None:
        self.world = world = World(seed)
        self.values = values
        self.policy = policy
        layout = world.chance("layout")
        numbers = range(1, values["brokers"] + 1)
        self.cpus = {number: float(layout.randint(*map(int, CPU_RATES))) for number in numbers}
        edges = {(layout.randint(1, number - 1), number) for number in numbers[1:]}
        while len(edges) < len(numbers) - 1 + values["more_links"]:
            one, two = sorted(layout.sample(numbers, 2))
            edges.add((one, two))
        self.links: dict[Link, float] = {}
        for one, two in sorted(edges):
            self.links[one, two] = self.links[two, one] = float(layout.randint(*map(int, LINK_RATES)))
        self.messages: list[dict[str, AttributeValue]] = [
            {"topic": f"T{layout.randrange(TOPICS)}", "price": layout.randrange(PRICES)} for _ in range(values["messages"])
        ]
        homes = [layout.choice(numbers) for _ in range(values["publishers"])]
        base = BrokerConfig(silence_s=QUIET_S, has_neighbours=True)
        settings = AdmissionSettings(Criterion.parse("off" if policy == "none" else policy), estimate=estimate)
        configs = {
            number: replace(
                base,
                admission=replace(
                    settings,
                    cpu_rate=self.cpus[number],
                    link_rates=tuple((other, rate) for (one, other), rate in self.links.items() if one == number),
                ),
            )
            for number in numbers
        }
        self.machines = Machines(world, configs, set(homes))
        for one, two in sorted(edges):
            self.machines.link(one, two)
        self.load = Load(world, self.cpus, self.links, self.machines.towards)
        self.requests = self.rejected = 0
        world.run(WARM_S)
        self.publishers = [Publisher(self, n, home) for n, home in enumerate(homes)]
        at = world.chance("subscribers")
        self.subscribers = [Subscriber(self, n, at.choice(numbers)) for n in range(subscribers)]

    def measure(self) -> Measures:
        self.world.run(self.world.now + self.values["before_s"])
        before = self._counts()
        self.world.run(self.world.now + self.values["measured_s"])
        span = self.values["measured_s"]
        counts = {name: value - before[name] for name, value in self._counts().items()}
        return Measures(
            round(counts["discarded"] / span / len(self.cpus), 4),
            round(counts["rejected"] / max(counts["requests"], 1), 4),
            round(counts["cpu"] / span / len(self.cpus), 4),
            round(counts["links"] / span / len(self.links), 4),
            int(counts["requests"]),
            round(counts["served"] / span, 1),
            round(counts["packets"] / span, 1),
        )

    def _counts(self) -> dict[str, float]:
        load = self.load
        return {
            "discarded": load.discarded,
            "rejected": self.rejected,
            "requests": self.requests,
            "cpu": sum(cpu.served / cpu.rate for cpu in load.cpus.values()),
            "links": sum(link.served / link.rate for link in load.links.values()),
            "served": load.delivered,
            "packets": self.machines.packets,
        }


class Publisher:
    """Advertises, sends 100 messages, withdraws; again and again."""

    def __init__(self, bed: Testbed, number: int, home: int) -> None:
        self._bed = bed
        self._home = home
        self._chance = bed.world.chance(f"publisher {number}")
        self._handle = 0
        self._link = bed.machines.client(home, self._told)
        self._rate = self._chance.uniform(*RATES)
        self._topic = f"T{self._chance.randrange(TOPICS)}"
        self._matching: list[int] = []
        bed.world.after(self._chance.uniform(0.0, 1.0), self._begin)

    def _begin(self) -> None:
        text = f"topic = '{self._topic}'"
        self._matching = matching(self._bed, text)
        self._handle += 1
        self._give(Advertise(self._handle, text, int(self._rate * 1000) + 1))

    def _told(self, packet: Packet) -> None:
        if isinstance(packet, AdvertiseAccepted):
            self._send(self._bed.values["round_messages"])

    def _send(self, left: int) -> None:
        if not left:
            self._give(Unadvertise(self._handle))
            self._begin()
            return
        message = self._chance.choice(self._matching)
        if not self._bed.machines.passes(self._home, self._link, self._bed.messages[message]):
            raise AssertionError("a publisher within its rate was held")
        self._bed.load.publish(self._home, pubend_id(self._home), message)
        self._bed.world.after(1 / self._rate, self._send, left - 1)

    def _give(self, packet: Packet) -> None:
        self._bed.machines.give(self._home, self._link, packet)


class Subscriber:
    """Subscribes, receives for a while, unsubscribes; again and again."""

    def __init__(self, bed: Testbed, number: int, home: int) -> None:
        self._bed = bed
        self._home = home
        self._chance = bed.world.chance(f"subscriber {number}")
        self._handle = 0
        self._link = bed.machines.client(home, self._told)
        self._matching: list[int] = []
        bed.world.after(self._chance.uniform(2.0, 6.0), self._begin)

    def _begin(self) -> None:
        text = random_filter(self._chance)
        self._matching = matching(self._bed, text)
        self._handle += 1
        self._bed.requests += 1
        self._give(Subscribe(self._handle, text))

    def _told(self, packet: Packet) -> None:
        chance, bed = self._chance, self._bed
        if isinstance(packet, SubscriptionRejected):
            bed.rejected += 1
            bed.world.after(chance.uniform(*bed.values["again_s"]), self._begin)
        elif isinstance(packet, Subscribed):
            bed.load.subscribe(self._home, self._matching)
            bed.world.after(chance.uniform(*bed.values["stay_s"]), self._end)

    def _end(self) -> None:
        self._bed.load.unsubscribe(self._home, self._matching)
        self._give(Unsubscribe(self._handle))
        self._bed.world.after(self._chance.uniform(*self._bed.values["again_s"]), self._begin)

    def _give(self, packet: Packet) -> None:
        self._bed.machines.give(self._home, self._link, packet)


def random_filter(chance: Random) -> str:
    low = chance.randrange(0, PRICES // 2)
    return f"topic = 'T{chance.randrange(TOPICS)}' AND price BETWEEN {low} AND {low + PRICES // 2}"


def matching(bed: Testbed, text: str) -> list[int]:
    wanted = Filter(text)
    return [number for number, message in enumerate(bed.messages) if wanted.matches(message)]
