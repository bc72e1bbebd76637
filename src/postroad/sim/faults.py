"""What goes wrong, when, and for how long.

A schedule of faults is drawn from the seed before the run begins, so it does not depend on what the overlay does. To add a
fault, write a function `(overlay, chance) -> None` that begins it and plans its end, and put it into `FAULTS` with its weight.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from postroad.core.broker.incarnations import HEARD_KEY
from postroad.sim.admission_faults import admission_fault
from postroad.sim.brokers import BrokerNode
from postroad.sim.clients import ClientNode
from postroad.sim.frames import Release
from postroad.sim.network import Cable
from postroad.sim.overlay import Overlay

RETIRED_OF_MIN: Final = 3
KIND_ON: Final = 0.7  # the chance of a kind to be on in a seed
STRENGTHS: Final = (0.5, 1.0, 1.0, 3.0)
RATES: Final = (0.25, 1.0, 1.0, 1.0, 2.0)
Fault: TypeAlias = Callable[[Overlay, random.Random], str]  # returns what it did, "" for nothing


def broker_crash(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    down = chance.choice((0.05, 0.3, 1.0, 3.0)) * chance.uniform(0.5, 1.5)
    if not node.alive:
        return ""
    node.crash()
    overlay.world.after(down, node.start_if_down)
    return f"broker {node.broker} for {down:.2f} s"


def broker_stop(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    down = chance.uniform(0.05, 1.0)
    if not node.alive:
        return ""
    node.stop()
    overlay.world.after(down, node.start_if_down)
    return f"broker {node.broker} for {down:.2f} s"


def broker_pause(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    seconds = chance.uniform(0.05, 1.5)
    node.pause(seconds)
    return f"broker {node.broker} for {seconds:.2f} s"


def broker_add(overlay: Overlay, chance: random.Random) -> str:
    node = overlay.grow()
    if node is None:
        return ""
    if chance.random() < 0.7:
        _any_client(overlay, chance).move([node, *(each for each in overlay.nodes.values() if each is not node)])
    return f"broker {node.broker} with {len(node.pubends)} pubends"


def broker_outage(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    down = chance.uniform(4.0, 12.0)
    if not node.alive:
        return ""
    node.crash()
    overlay.world.after(down, node.start_if_down)
    return f"broker {node.broker} for {down:.2f} s"


def broker_freeze(overlay: Overlay, chance: random.Random) -> str:
    """Stop a process for so long that its neighbours and clients give up on it; then it goes on."""
    node = _any_broker(overlay, chance)
    seconds = chance.uniform(1.5, 6.0)
    node.pause(seconds)
    for cable in [each for each in overlay.network.cables if node in {each.a, each.b}]:
        overlay.world.after(cable.profile.silence_s_max, cable.cut)
        overlay.world.after(seconds, cable.heal)
    return f"broker {node.broker} for {seconds:.2f} s"


def clock_step(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    milliseconds = chance.choice((-1, -1, 1)) * chance.choice((5, 200, 2_000, 20_000))
    node.step_clock(milliseconds)
    return f"broker {node.broker} by {milliseconds} ms"


def disk_stall(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    seconds = chance.uniform(0.05, 2.0)
    node.disk.stall(seconds)
    return f"broker {node.broker} for {seconds:.2f} s"


def disk_full(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    seconds = chance.uniform(0.05, 3.0)
    node.disk.fill(seconds)
    return f"broker {node.broker} for {seconds:.2f} s"


def disk_slow(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    seconds, factor = chance.uniform(0.5, 5.0), chance.choice((5.0, 50.0, 300.0))
    node.disk.slow_down(factor)
    overlay.world.after(seconds, node.disk.slow_down, 1.0)
    return f"broker {node.broker} {factor:.0f} times for {seconds:.2f} s"


def broker_upgrade(overlay: Overlay, chance: random.Random) -> str:
    """Stop a broker in good order and start it as another release."""
    node = _any_broker(overlay, chance)
    if not node.alive:
        return ""
    node.stop()
    before, node.release = node.release, chance.choice([each for each in Release if each is not node.release])
    overlay.world.after(chance.uniform(0.05, 1.0), node.start_if_down)
    return f"broker {node.broker} from the {before.value} to the {node.release.value} release"


def broker_retire(overlay: Overlay, chance: random.Random) -> str:
    """Let a broker be gone for good, as long as enough others are left to make a majority."""
    node = _any_broker(overlay, chance)
    if len(overlay.nodes) < RETIRED_OF_MIN or _too_few_remember(overlay, node):
        return ""
    overlay.retire(node.broker)
    return f"broker {node.broker} with {len(node.pubends)} pubends"


def disk_loss(overlay: Overlay, chance: random.Random) -> str:
    """Let a broker come back with an empty disk; its operator says so, or does not.

    Some other broker has stored what it was: else nobody can tell it that there was anything, and only its clients know.
    """
    node = _any_broker(overlay, chance)
    replaces, down = chance.random() < 0.5, chance.uniform(0.3, 3.0)
    if not any(other.remembers(node.pubends) for other in overlay.nodes.values() if other is not node):
        return ""
    if _too_few_remember(overlay, node):
        return ""
    node.crash()
    node.lose(replaces=replaces)
    overlay.world.after(down, node.start_if_down)
    return f"broker {node.broker} for {down:.2f} s" + (", said to be replaced" if replaces else "")


def log_damage(overlay: Overlay, chance: random.Random) -> str:
    node = _any_broker(overlay, chance)
    pubend = chance.choice(node.pubends)
    lost = node.spoil_log(pubend)
    return f"broker {node.broker}: {lost[0]}..{lost[1]} of pubend {pubend}" if lost is not None else ""


def record_damage(overlay: Overlay, chance: random.Random) -> str:
    """Flip a byte of a stored record of a broker that is down for a moment: each start checks them all.

    What it remembers of others stays, as long as one of them has lost its files and needs that.
    """
    node = _any_broker(overlay, chance)
    if not node.alive:
        return ""
    node.crash()
    key = node.spoil_record(spared=HEARD_KEY if any(other.awaits_word for other in overlay.nodes.values()) else "")
    overlay.world.after(chance.uniform(0.05, 1.0), node.start_if_down)
    return f"broker {node.broker}: {key}" if key is not None else ""


def link_outage(overlay: Overlay, chance: random.Random) -> str:
    cable = _any_link(overlay, chance)
    seconds = chance.uniform(5.0, 14.0)
    cable.cut()
    overlay.world.after(seconds, cable.heal)
    return f"{cable.name} for {seconds:.2f} s"


def link_half_open(overlay: Overlay, chance: random.Random) -> str:
    cable = chance.choice(overlay.network.cables)
    seconds = chance.uniform(0.1, 6.0)
    cable.break_for_one(seconds)
    return f"{cable.name}: one end hears of it {seconds:.2f} s late"


def link_one_way(overlay: Overlay, chance: random.Random) -> str:
    cable = _any_link(overlay, chance)
    seconds = chance.choice((0.3, 0.8, 3.0))
    cable.stall(seconds)
    return f"{cable.name} for {seconds:.2f} s"


def link_cut(overlay: Overlay, chance: random.Random) -> str:
    cable = _any_link(overlay, chance)
    seconds = chance.choice((0.2, 1.0, 4.0)) * chance.uniform(0.5, 1.5)
    cable.cut()
    overlay.world.after(seconds, cable.heal)
    return f"{cable.name} for {seconds:.2f} s"


def link_flap(overlay: Overlay, chance: random.Random) -> str:
    cable = _any_link(overlay, chance)
    cable.reset()
    return cable.name


def link_removal(overlay: Overlay, chance: random.Random) -> str:
    """Cut a link for good where there is another way, so that the brokers must find it."""
    spare = overlay.spare_links()
    if not spare:
        return ""
    cable = chance.choice(spare)
    cable.remove()
    return cable.name


def link_squeeze(overlay: Overlay, chance: random.Random) -> str:
    cable = _any_link(overlay, chance)
    seconds, factor = chance.uniform(0.5, 4.0), chance.choice((0.2, 0.02, 0.002))
    cable.squeeze(factor)
    overlay.world.after(seconds, cable.squeeze, 1.0)
    return f"{cable.name} to {factor:.1%} for {seconds:.2f} s"


def client_crash(overlay: Overlay, chance: random.Random) -> str:
    client = _any_client(overlay, chance)
    seconds, lose_file = chance.uniform(0.05, 2.0), chance.random() < 0.5
    if not client.alive:
        return ""
    client.crash(lose_file=lose_file)
    overlay.world.after(seconds, client.start_if_down)
    return f"{client.name} for {seconds:.2f} s"


def client_outage(overlay: Overlay, chance: random.Random) -> str:
    client = _any_client(overlay, chance)
    seconds = chance.uniform(4.0, 12.0)
    if not client.alive:
        return ""
    client.crash(lose_file=chance.random() < 0.3)
    overlay.world.after(seconds, client.start_if_down)
    return f"{client.name} for {seconds:.2f} s"


def client_clock(overlay: Overlay, chance: random.Random) -> str:
    client = _any_client(overlay, chance)
    milliseconds = chance.choice((-1, 1)) * chance.choice((300, 3_000, 40_000, 7_200_000))
    client.clock_offset_ms += milliseconds
    return f"{client.name} by {milliseconds} ms"


def client_slow(overlay: Overlay, chance: random.Random) -> str:
    client = _any_client(overlay, chance)
    seconds = chance.uniform(0.2, 4.0)
    client.pause_reading(True)
    overlay.world.after(seconds, client.pause_reading, False)
    return f"{client.name} for {seconds:.2f} s"


def reader_slow(overlay: Overlay, chance: random.Random) -> str:
    client = _any_client(overlay, chance)
    present = [each for each in client.following if not each.ended]
    seconds = chance.uniform(0.2, 4.0)
    if not present:
        return ""
    following = chance.choice(present)
    client.take_rows(following, False)
    overlay.world.after(seconds, client.take_rows, following, True)
    return f"{following.subscription} for {seconds:.2f} s"


def client_cut(overlay: Overlay, chance: random.Random) -> str:
    client, silently = _any_client(overlay, chance), chance.random() < 0.5
    client.cut_off(silently=silently)
    return client.name + (", silently" if silently else "")


def client_move(overlay: Overlay, chance: random.Random) -> str:
    client = _any_client(overlay, chance)
    brokers = list(overlay.nodes.values())
    chance.shuffle(brokers)
    client.move(brokers)
    return f"{client.name} to broker {brokers[0].broker}"


def client_leave(overlay: Overlay, chance: random.Random) -> str:
    client = _any_client(overlay, chance)
    durable = [each for each in client.following if each.durable and not each.ended]
    seconds = chance.uniform(0.1, 3.0)
    if not durable or not client.alive:
        return ""
    following = chance.choice(durable)
    client.leave(following, seconds)
    return f"{following.subscription} for {seconds:.2f} s"


FAULTS: Final[dict[str, tuple[Fault, int]]] = {
    "broker crash": (broker_crash, 6),
    "broker stop": (broker_stop, 2),
    "broker pause": (broker_pause, 2),
    "broker add": (broker_add, 1),
    "broker outage": (broker_outage, 1),
    "broker freeze": (broker_freeze, 2),
    "clock step": (clock_step, 3),
    "disk stall": (disk_stall, 2),
    "disk full": (disk_full, 2),
    "disk slow": (disk_slow, 2),
    "link cut": (link_cut, 4),
    "link flap": (link_flap, 4),
    "link squeeze": (link_squeeze, 3),
    "link outage": (link_outage, 1),
    "link half-open": (link_half_open, 2),
    "link one-way": (link_one_way, 2),
    "client crash": (client_crash, 4),
    "client outage": (client_outage, 1),
    "client clock": (client_clock, 2),
    "client slow": (client_slow, 2),
    "reader slow": (reader_slow, 2),
    "client cut": (client_cut, 3),
    "client move": (client_move, 3),
    "client leave": (client_leave, 2),
}


@dataclass(frozen=True, slots=True)
class Rare:
    """A fault that a run has seldom, and then a few times: each draws by itself, so that they leave the others as they are."""

    strike: Fault
    one_in: int  # of the seeds
    times_max: int = 1


RARE: Final[dict[str, Rare]] = {
    "broker retired": Rare(broker_retire, 8),
    "broker upgrade": Rare(broker_upgrade, 6, 2),
    "disk lost": Rare(disk_loss, 8),
    "log damage": Rare(log_damage, 4, 3),
    "record damage": Rare(record_damage, 4, 2),
    "link removal": Rare(link_removal, 3, 2),
    "admission": Rare(admission_fault, 1, 4),  # where there is admission control
}
RARE_NUMBER: Final = 1_000_000  # theirs begin here
RARE_FROM_S: Final = 3.0  # before that there is little to lose


@dataclass(frozen=True, slots=True)
class Swarm:
    """Which kinds of faults a seed has, and how often they strike: a bug may need one to be frequent, or others to be away."""

    kinds: tuple[str, ...]
    weights: tuple[float, ...]
    rate: float  # times the usual one

    @classmethod
    def draw(cls, chance: random.Random) -> Swarm:
        kinds = [kind for kind in FAULTS if chance.random() < KIND_ON] or list(FAULTS)
        weights = [FAULTS[kind][1] * chance.choice(STRENGTHS) for kind in kinds]
        return cls(tuple(kinds), tuple(weights), chance.choice(RATES))


class Faults:
    """The schedule of one run, and how many of each kind it had."""

    def __init__(self, overlay: Overlay, *, until: float, per_s: float, only: tuple[int, ...] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self.planned: list[str] = []  # kinds
        self.struck: list[int] = []  # numbers of those that did something
        self._overlay = overlay
        chance = overlay.world.chance("faults")
        self.swarm = Swarm.draw(chance)
        per_s *= self.swarm.rate
        when, number = chance.expovariate(per_s), 0
        while when < until:
            (kind,) = chance.choices(self.swarm.kinds, self.swarm.weights)
            self.planned.append(kind)
            if only is None or number in only:
                overlay.world.at(when, self._strike, kind, number)
            when, number = when + chance.expovariate(per_s), number + 1
        self._plan_rare(until, only)

    def _plan_rare(self, until: float, only: tuple[int, ...] | None) -> None:
        number = RARE_NUMBER
        for kind, rare in RARE.items():
            chance = self._overlay.world.chance(f"rare/{kind}")
            times = chance.randint(1, rare.times_max) if chance.randrange(rare.one_in) == 0 else 0
            for _ in range(times):
                when = chance.uniform(min(RARE_FROM_S, until), until)
                self.planned.append(kind)
                if only is None or number in only:
                    self._overlay.world.at(when, self._strike, kind, number)
                number += 1

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def _strike(self, kind: str, number: int) -> None:
        strike = RARE[kind].strike if kind in RARE else FAULTS[kind][0]
        text = strike(self._overlay, self._overlay.world.chance(f"fault/{number}"))
        if text:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.struck.append(number)
            self._overlay.world.note("fault", f"{kind}: {text}")


def _too_few_remember(overlay: Overlay, node: BrokerNode) -> bool:
    """Tell whether a broker may not go as well, because no majority would be left that was there all the time.

    What a majority has stored, such as who creates a name, outlives the loss of one broker, and of more if others are enough.
    """
    gone = {*overlay.retired, *(each.broker for each in overlay.nodes.values() if each.has_lost)}
    return bool(gone) and 2 * len({*gone, node.broker}) >= len(overlay.nodes) + len(overlay.retired)


def _any_broker(overlay: Overlay, chance: random.Random) -> BrokerNode:
    return overlay.nodes[chance.choice(list(overlay.nodes))]


def _any_link(overlay: Overlay, chance: random.Random) -> Cable:
    return chance.choice(overlay.links)


def _any_client(overlay: Overlay, chance: random.Random) -> ClientNode:
    return overlay.clients[chance.choice(list(overlay.clients))]
