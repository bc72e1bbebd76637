"""What users do in a random run: topologies with cycles, publishers and subscribers that come, go, move and overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.sim.brokers import BrokerNode
from postroad.sim.clients import ClientNode, Habits
from postroad.sim.disk import DiskProfile
from postroad.sim.frames import Release
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import equals, random_attributes, random_predicate
from postroad.sim.workers import WorkerNode
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.tap.tracked_broker import TrackedConfig

BROKERS_MAX: Final = 7
ADDED_MAX: Final = 2  # brokers while it runs
CROWD_ONE_IN: Final = 40  # of the seeds has hundreds of subscriptions
CROWD: Final = (100, 250)
RELEASES_ONE_IN: Final = 4  # of the seeds has brokers of different releases
SLOW_ONE_IN: Final = 10  # of the seeds has links of `SLOW_BYTES_PER_S`
SLOW_BYTES_PER_S: Final = 8e3
SLOW_PAYLOADS: Final = (0, 10, 100)  # there: nobody slows down for a link that is full, so what users ask of it has to fit
PAYLOADS: Final = (0, 10, 100, 1500)
ADMISSION_ONE_IN: Final = 4  # of the seeds has admission control, and too little room for all
CONGESTION_ONE_IN: Final = 4  # of the seeds has congestion control
SHARED_ONE_IN: Final = 4  # of the seeds has shared subscriptions
SHARED_WORK_S: Final = (0.0, 0.0, 0.01, 0.01, 0.05, 0.2, 0.5, 4.0)
QUEUES_ONE_IN: Final = 5  # of the seeds has bound queues, fed by some of the brokers
ASKED_BYTES: Final = 150  # what a subscription that catches up costs a link for each pubend, question and answer
ASKED_AGAIN_S: Final = 4.0  # how long it waits for the answer before it asks again
FAR_ONE_IN: Final = 4  # of the clients is far away: much is on the way when something breaks
FAR_S: Final = (0.05, 0.2)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a run is."""

    busy_s: float = 14.0  # publishing and faults
    faults_per_s: float = 1.6
    messages_per_s: float = 22.0  # over all publishers
    churn_per_s: float = 0.5
    slowest_bytes_per_s: float = 20e3  # of links, but for the seeds that have very slow ones
    strategies: tuple[Strategy, ...] = (Strategy.EXACT, Strategy.BLOOM, Strategy.ASYNC)  # each broker has one of them
    faults: tuple[int, ...] | None = None  # only these strike, by number; None for all
    clients: tuple[str, ...] | None = None  # only these do anything
    omit_one_in: int = 0  # deliveries that tracks leave out, to see that it is found


class Workload:
    """Builds the overlay of a seed and plans what its users do."""

    def __init__(self, overlay: Overlay, shape: Shape) -> None:
        self._overlay = overlay
        self._shape = shape
        self._chance = overlay.world.chance("workload")
        self._tracking = overlay.world.chance("tracking")
        self._subscriptions = 0
        self._messages = 0
        self._world = overlay.world.chance("world")  # what brokers' clocks and machines are like
        self._added = 0
        self._crowded = self._world.randrange(CROWD_ONE_IN) == 0
        self._slow_links = overlay.world.chance("slow links")
        self._releases = overlay.world.chance("releases")
        self._releases_differ = self._releases.randrange(RELEASES_ONE_IN) == 0
        self._slow = self._slow_links.randrange(SLOW_ONE_IN) == 0
        self._admission = overlay.world.chance("admission")
        self._admits = self._admission.randrange(ADMISSION_ONE_IN) == 0
        self._congestion = overlay.world.chance("congestion")
        self._controls = self._congestion.randrange(CONGESTION_ONE_IN) == 0
        self._queues = overlay.world.chance("queues")
        self._shared = overlay.world.chance("shared subscriptions")
        self._build_brokers()
        overlay.grow = self._add_broker
        self._subscribers = [self._subscriber(index) for index in range(self._chance.randint(2, 5))]
        self._publishers = [self._publisher(index) for index in range(self._chance.randint(1, 4))]
        self._columns = {client.name: self._world.random() < 0.3 for client in self._publishers}
        if self._crowded:
            self._gather_crowd()
        if self._queues.randrange(QUEUES_ONE_IN) == 0:
            self._bind_queues()
        if self._shared.randrange(SHARED_ONE_IN) == 0:
            self._hire_workers()
        self._plan()

    # --- the overlay

    def _build_brokers(self) -> None:
        chance, overlay = self._chance, self._overlay
        count = chance.choice((2, 3, 3, 4, 4, 5, 6, BROKERS_MAX))
        disk = DiskProfile(
            write_s=chance.choice((0.0003, 0.001, 0.01)),
            segment_batches=chance.choice((1, 2, 8)),
            retention_rows_max=chance.choice((1 << 30, 1 << 30, 1 << 30, 60)),
        )
        config = TrackedConfig(
            cache_bytes=chance.choice((1_500, 20_000, 64 << 20)),
            silence_s=max(chance.choice((0.2, 1.0)), 1.0 if self._slow else 0.0),
            subscriber_grace_s=chance.choice((0.5, 5.0, 30.0)),
            keep_s=chance.choice((0.0, 0.0, 3.0)),
            home_query_s=chance.choice((0.5, 3.0)),
        )
        self._disk, self._config = disk, config
        self._clocks_apart_ms = self._world.choice((0, 0, 200, 2_000))
        self._clocks_differ = self._world.choice((0.0, 0.0, 0.001, 0.02))
        for number in range(1, count + 1):
            self._broker(number)
        edges = {(chance.randint(1, number - 1), number) for number in range(2, count + 1)}
        for _ in range(chance.randint(0, count)):
            a, b = sorted(chance.sample(range(1, count + 1), 2))
            edges.add((a, b))
        for a, b in sorted(edges):
            overlay.link(a, b, self._link_profile())

    def _broker(self, number: int) -> BrokerNode:
        chance, overlay = self._world, self._overlay
        pubends = chance.choice((1, 1, 1, 2, 4))
        config = replace(
            self._config,
            admission=self._admission_settings(),
            congestion=self._congestion_settings(),
            tracking=self._settings(),
            has_neighbours=number > 1,  # each is set up to link to older ones
        )
        node = overlay.broker(number, disk=self._disk, config=config, pubends=pubends)
        node.clock_offset_ms = chance.randint(-self._clocks_apart_ms, self._clocks_apart_ms)
        node.clock_rate = 1.0 + chance.uniform(-self._clocks_differ, self._clocks_differ)
        if self._releases_differ:
            node.release = self._releases.choice(list(Release))
            overlay.traits[f"brokers of the {node.release.value} release"] += 1
        if pubends > 1:
            overlay.traits[f"brokers with {pubends} pubends"] += 1
        return node

    def _add_broker(self) -> BrokerNode | None:
        """Add a broker to the running overlay, beside one or two others."""
        if self._added == ADDED_MAX:
            return None
        self._added += 1
        others = list(self._overlay.nodes)
        node = self._broker(max(*others, *self._overlay.retired) + 1)
        for other in self._world.sample(others, self._world.randint(1, min(2, len(others)))):
            self._overlay.link(other, node.broker, self._link_profile())
        return node

    def _gather_crowd(self) -> None:
        """Let one client follow hundreds of filters, as many as the slowest link can answer before they ask again."""
        client, chance = self._client("crowd"), self._world
        if self._is_left_out(client):
            return
        pubends = sum(len(node.pubends) for node in self._overlay.nodes.values())
        slowest = min(cable.profile.bytes_per_s for cable in self._overlay.links)
        size = min(chance.randint(*CROWD), int(slowest * ASKED_AGAIN_S / (pubends * ASKED_BYTES)))
        self._overlay.traits["crowds"] += 1
        self._overlay.traits["subscriptions in crowds"] += size
        for index in range(size):
            text = self._overlay.filter(equals("symbol", f"{chance.choice('ABC')}{index % 50 or ''}"))
            self._overlay.at(chance.uniform(0.0, 6.0), partial(client.follow, text, subscription=f"c{index}"))

    def _bind_queues(self) -> None:
        """Bind one or two queues of a shared database; one to three brokers are set up to feed them."""
        overlay, chance = self._overlay, self._queues
        for number in chance.sample(list(overlay.nodes), min(chance.randint(1, 3), len(overlay.nodes))):
            overlay.queues.feed_from(overlay.nodes[number])
        for _ in range(chance.randint(1, 2)):
            text = overlay.filter(random_predicate(chance))
            overlay.traits["bound queues"] += 1
            overlay.at(chance.uniform(0.2, 5.0), partial(overlay.queues.bind, text))

    def _hire_workers(self) -> None:
        """Let some workers share one or two subscriptions. The first one stays; the others leave now and then, for a while."""
        overlay, chance = self._overlay, self._shared
        for number in range(chance.choice((1, 1, 2))):
            text, key = overlay.filter(random_predicate(chance)), chance.choice(("", "symbol", "symbol", "price"))
            workers = chance.randint(1, 4)
            overlay.traits["shared subscriptions"] += 1
            overlay.traits["shared subscriptions with a key"] += bool(key)
            begins, credit = chance.uniform(0.2, 4.0), chance.choice((1, 3, 20))
            for index in range(workers):
                brokers = list(overlay.nodes)
                chance.shuffle(brokers)
                profile = CableProfile(latency_s=chance.choice((0.0002, 0.005, 0.08)), drops_data=False)
                worker = overlay.worker(f"worker{number}-{index}", *brokers, profile=profile)
                join = partial(worker.work, text, f"shared{number}", key=key, credit=credit, work_s=SHARED_WORK_S)
                if self._is_left_out(worker):
                    continue
                overlay.at(begins + (chance.uniform(0.0, 3.0) if index else 0.0), join)
                if index:
                    self._plan_breaks(worker)

    def _plan_breaks(self, worker: WorkerNode) -> None:
        """Let a worker leave now and then, and come back."""
        chance, when = self._shared, 1.0
        while (when := when + chance.expovariate(0.15)) < self._shape.busy_s:
            away_s = chance.choice((0.05, 0.5, 2.0))
            self._overlay.at(when, partial(_take_a_break, worker, away_s))

    def _settings(self) -> TrackingSettings:
        """Draw how a broker tracks: small blooms, so that false positives occur, and short intervals, so that crashes cost."""
        chance = self._tracking
        m, k, n = chance.choice(((256, 4, 40), (2_048, 8, 150), (65_536, 16, 2_521)))
        persistence_ms = chance.choice((300, 1_000, 4_000))
        return TrackingSettings(
            strategy=chance.choice(self._shape.strategies),
            m=m,
            k=k,
            n=n,
            ids_max=chance.choice((20, 65_536)),
            persistence_ms=persistence_ms,
            lifetime_min_ms=chance.choice((0, 3 * persistence_ms)),
            skew_tolerance_ms=chance.choice((400, 2_000, 5_000)),
            jitter_ms=chance.choice((100, 1_000)),
            singletons_max=chance.choice((4, 256)),
            memory_bytes_max=chance.choice((40_000, 256 << 20)),
            per_neighbour=chance.random() < 0.3,
            few_as_ids=chance.random() < 0.5,
            routing_sets=chance.random() < 0.3,
            omit_one_in=self._shape.omit_one_in,
        )

    def _admission_settings(self) -> AdmissionSettings:
        """Draw how a broker admits, with limits that some of the subscriptions exceed."""
        if not self._admits:
            return AdmissionSettings()
        chance = self._admission
        self._overlay.traits["brokers with admission control"] += 1
        criterion = chance.choice((Criterion(Policy.FULL), Criterion(Policy.FULL), Criterion(Policy.PERCENTAGE, 40.0)))
        return AdmissionSettings(
            criterion,
            verdict_s=chance.choice((0.3, 1.0, 3.0)),
            cpu_rate=chance.choice((None, 30.0, 60.0, 100.0)),
            link_rate=chance.choice((None, 20.0, 40.0, 80.0)),
            memory_bytes=chance.choice((None, None, 5_000)),
            default_rate=20.0,
        )

    def _congestion_settings(self) -> CongestionSettings:
        """Draw how a broker controls congestion: neighbours may have different rules, and windows so small that they fill."""
        if not self._controls:
            return CongestionSettings()
        chance = self._congestion
        rule = chance.choice((Rule.PAPER, Rule.IMPROVED, Rule.IMPROVED, Rule.NONE))
        self._overlay.traits[f"brokers with the {rule.value} rule of congestion"] += 1
        return CongestionSettings(
            rule,
            query_s=chance.choice((0.3, 1.0)),
            no_alert_s=chance.choice((0.6, 2.0)),
            rate_step=chance.choice((2.0, 10.0)),
            lag_ms_max=chance.choice((500, 4_000)),
            nack_ms=chance.choice((20, 100)),
            receive_window_ms=chance.choice((1_000, 10_000)),
            receive_window_bytes=chance.choice((3_000, 16 << 20)),
        )

    def _link_profile(self) -> CableProfile:
        chance = self._chance
        profile = CableProfile(
            latency_s=chance.choice((0.0005, 0.003, 0.03)),
            jitter_s=chance.choice((0.0, 0.002, 0.02)),
            bytes_per_s=chance.choice((self._shape.slowest_bytes_per_s, 200e3, 5e6)),
            backlog_bytes_max=chance.choice((4_000, 30_000, 200_000)),
        )
        if self._slow and self._slow_links.random() < 0.5:
            self._overlay.traits["very slow links"] += 1
            return replace(profile, bytes_per_s=SLOW_BYTES_PER_S)
        return profile

    def _client(self, name: str) -> ClientNode:
        chance = self._chance
        brokers = list(self._overlay.nodes)
        chance.shuffle(brokers)
        habits = Habits(keeps_file=chance.random() < 0.7, acknowledges_after_s=chance.choice((0.0, 0.0, 0.05, 0.8)))
        latency_s, backlog_bytes_max = chance.choice((0.0002, 0.005)), chance.choice((3_000, 50_000))
        distance = self._overlay.world.chance(f"distance/{name}")
        if distance.randrange(FAR_ONE_IN) == 0:
            latency_s = distance.choice(FAR_S)
        profile = CableProfile(latency_s=latency_s, backlog_bytes_max=backlog_bytes_max, drops_data=False)
        return self._overlay.client(name, *brokers[: chance.randint(1, 3)], habits=habits, profile=profile)

    def _subscriber(self, index: int) -> ClientNode:
        client = self._client(f"reader{index}")
        for _ in range(self._chance.randint(1, 3)):
            self._overlay.world.at(self._chance.uniform(0.0, 6.0), self._follow, client)
        return client

    def _publisher(self, index: int) -> ClientNode:
        client = self._client(f"writer{index}")
        if self._admits and not self._is_left_out(client):
            self._plan_advertisements(client)
        return client

    def _plan_advertisements(self, client: ClientNode) -> None:
        """Let a publisher advertise once or twice, everything it publishes or only a part, perhaps under a name."""
        chance = self._admission
        for number in range(chance.choice((0, 1, 1, 2))):
            text = str(random_predicate(chance).text) if chance.random() < 0.3 else ""
            name = f"{client.name}-{number}" if chance.random() < 0.3 else None
            rate = chance.choice((8.0, 15.0, 30.0))
            self._overlay.at(chance.uniform(0.0, 8.0), partial(client.advertise, text, rate, name))

    # --- what users do

    def _plan(self) -> None:
        world, chance, shape = self._overlay.world, self._chance, self._shape
        when = 0.5
        while (when := when + chance.expovariate(shape.messages_per_s / 3)) < shape.busy_s:
            world.at(when, self._publish, chance.choice(self._publishers), chance.choice((1, 1, 2, 3, 5, 6)))
        when = 1.0
        while (when := when + chance.expovariate(shape.churn_per_s)) < shape.busy_s:
            world.at(when, self._churn, chance.choice(self._subscribers))

    def _follow(self, client: ClientNode) -> None:
        chance = self._chance
        self._subscriptions += 1
        durable = chance.random() < 0.5
        name = f"s{self._subscriptions}"
        text = self._overlay.filter(random_predicate(chance))
        earliest = chance.random() < 0.15
        if self._is_left_out(client):
            return
        client.follow(text, subscription=name, name=f"durable-{name}" if durable else None, earliest=earliest)

    def _publish(self, client: ClientNode, count: int) -> None:
        rows = []
        for _ in range(count):
            self._messages += 1
            payload = f"{self._messages}:".encode() + bytes(self._chance.choice(SLOW_PAYLOADS if self._slow else PAYLOADS))
            rows.append((random_attributes(self._chance), payload))
        if self._is_left_out(client):
            return
        if self._columns[client.name] and count > 1:
            self._overlay.traits["column batches"] += client.publish_columns(rows)
            return
        for attributes, payload in rows:
            client.publish(attributes, payload)

    def _is_left_out(self, client: ClientNode) -> bool:
        return self._shape.clients is not None and client.name not in self._shape.clients

    def _churn(self, client: ClientNode) -> None:
        present = [each for each in client.following if not each.ended]
        if present and self._chance.random() < 0.5:
            client.end(self._chance.choice(present))
        elif len(present) < 5:
            self._follow(client)


def _take_a_break(worker: WorkerNode, away_s: float) -> None:
    for working in worker.working:
        worker.give_up_work(working, away_s)
