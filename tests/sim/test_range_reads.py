"""Reading ranges of pubends through a simulated overlay."""

from __future__ import annotations

import random
from functools import partial

import pytest

from postroad.core.protocol.packets import pubend_id
from postroad.errors import GapError, PubendUnreachableError, UnknownPubendError
from postroad.sim.clients import RangeSeen
from postroad.sim.disk import DiskProfile
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.tracking.tap.tracked_broker import TrackedConfig

PUBEND = pubend_id(1)
LOSSY = CableProfile(latency_s=0.02, backlog_bytes_max=4000, bytes_per_s=40_000.0)


def chain(seed: int = 1, profile: CableProfile | None = None, config: TrackedConfig | None = None) -> Overlay:
    """Three brokers in a row, a writer at the first, a reader at the last."""
    overlay = Overlay(seed, config=config or TrackedConfig(keep_s=3600.0))
    overlay.broker(1, disk=DiskProfile(segment_batches=1))
    overlay.brokers(2, 3)
    overlay.link(1, 2, profile)
    overlay.link(2, 3, profile)
    overlay.client("writer", 1)
    overlay.client("reader", 3)
    return overlay


def publish(overlay: Overlay, count: int, *, begin: float = 1.0, step: float = 0.02, bulk: int = 50) -> None:
    for n in range(count):
        attributes = {"n": n, "even": n % 2 == 0}
        overlay.at(begin + n * step, partial(overlay.clients["writer"].publish, attributes, f"{n} ".encode() + bytes(bulk)))


def numbers(seen: RangeSeen) -> list[int]:
    return [int(payload.split(b" ")[0]) for _, payload in seen.rows]


def horizon(overlay: Overlay, pubend: int = PUBEND) -> int:
    """Ask for the pubends and return how far one is decided."""
    reader = overlay.clients["reader"]
    reader.list_pubends()
    overlay.run(overlay.world.now + 2.0)
    (span,) = [span for span in reader.listed[-1].spans if span.pubend == pubend]
    return span.horizon


def read(overlay: Overlay, lo: int, hi: int, text: str = "", *, bare: bool = False, seconds: float = 20.0) -> RangeSeen:
    seen = overlay.clients["reader"].read(PUBEND, lo, hi, text, bare=bare)
    overlay.run(overlay.world.now + seconds)
    return seen


def test_every_pubend_within_reach_is_listed_with_its_span() -> None:
    """Pubends of other brokers are asked for over the overlay; one that is away is named as unreachable."""
    overlay = chain()
    publish(overlay, 10)
    overlay.run(3.0)
    reader = overlay.clients["reader"]
    reader.list_pubends()
    overlay.run(4.0)
    spans = {span.pubend: span for span in reader.listed[0].spans}
    assert sorted(spans) == [pubend_id(1), pubend_id(2), pubend_id(3)]
    assert spans[PUBEND].released == 0
    assert 0 < spans[PUBEND].last <= spans[PUBEND].horizon
    assert spans[pubend_id(2)].last == 0
    overlay.node(1).crash()
    overlay.run(10.0)
    reader.list_pubends()
    overlay.run(20.0)
    assert reader.listed[1].unreachable == (PUBEND,)
    assert PUBEND not in {span.pubend for span in reader.listed[1].spans}


def test_a_range_is_read_exactly_from_a_remote_log() -> None:
    """All rows of (lo, hi] come once and in order, filtered at the pubend's broker."""
    overlay = chain()
    publish(overlay, 200)
    overlay.run(8.0)
    hi = horizon(overlay)
    whole = read(overlay, 0, hi)
    assert whole.done
    assert numbers(whole) == list(range(200))
    ticks = [tick for tick, _ in whole.rows]
    part = read(overlay, ticks[49], ticks[149], "even")
    assert part.done
    assert numbers(part) == list(range(50, 150, 2))
    bare = read(overlay, 0, hi, bare=True)
    assert [tick for tick, _ in bare.rows] == ticks
    assert {payload for _, payload in bare.rows} == {b""}
    assert overlay.violations() == []


def test_reading_costs_the_links_only_what_matches() -> None:
    """The filter is evaluated at the pubend's broker, so less of the stream crosses the overlay."""
    sent = []
    for text in ("", "n = 7"):
        overlay = chain()
        publish(overlay, 300, bulk=500)
        overlay.run(9.0)
        hi = horizon(overlay)
        before = overlay.cable(1, 2).bytes_sent
        seen = read(overlay, 0, hi, text, seconds=5.0)
        assert seen.done
        sent.append(overlay.cable(1, 2).bytes_sent - before)
    assert sent[1] < sent[0] / 10


def test_ticks_not_yet_decided_are_waited_for() -> None:
    """A range that ends in the future ends when its ticks are decided, with the messages published meanwhile."""
    overlay = chain()
    publish(overlay, 50)
    overlay.run(3.0)
    hi = horizon(overlay) + (5000 << 16)
    publish(overlay, 50, begin=6.0)
    seen = overlay.clients["reader"].read(PUBEND, 0, hi)
    overlay.run(6.0)
    unfinished = not seen.done
    overlay.run(20.0)
    assert unfinished
    assert seen.done
    assert len(seen.rows) == 100


@pytest.mark.parametrize("seed", range(6))
def test_lost_pieces_and_crashes_neither_drop_nor_repeat_a_row(seed: int) -> None:
    """Links that drop data, a relay and a pubend's broker that crash, a client whose broker crashes."""
    overlay = chain(seed, LOSSY)
    chosen = random.Random(seed)
    publish(overlay, 400, bulk=200)
    overlay.run(10.0)
    hi = horizon(overlay)
    seen = overlay.clients["reader"].read(PUBEND, 0, hi)
    for crash in range(4):
        node = overlay.node(chosen.choice((1, 2, 3)))
        when = overlay.world.now + 0.3 + crash * 2.5 + chosen.random()
        overlay.at(when, node.crash)
        overlay.at(when + 0.8, lambda node=node: None if node.alive else node.start())  # type: ignore[misc]
    overlay.run(overlay.world.now + 60.0)
    assert seen.done
    assert seen.error is None
    assert numbers(seen) == list(range(400))
    assert overlay.violations() == []


def test_what_was_released_is_a_gap() -> None:
    """The error names the ticks; what is left can still be read from there."""
    overlay = chain(config=TrackedConfig(cache_bytes=1000))
    publish(overlay, 20, step=0.5)
    overlay.run(15.0)
    hi = horizon(overlay)
    seen = read(overlay, 0, hi)
    assert isinstance(seen.error, GapError)
    assert (seen.error.pubend, seen.error.lo) == (PUBEND, 0)
    assert seen.rows == []
    rest = read(overlay, seen.error.hi, hi)
    assert rest.done
    assert rest.error is None


def test_unknown_and_unreachable_pubends_are_told_apart() -> None:
    """One that nobody ever announced will not come; one whose broker is away may."""
    overlay = chain()
    publish(overlay, 10)
    overlay.run(3.0)
    hi = horizon(overlay)
    unknown = overlay.clients["reader"].read(pubend_id(99), 0, 100)
    overlay.run(overlay.world.now + 1.0)
    assert unknown.done
    assert isinstance(unknown.error, UnknownPubendError)
    overlay.node(1).crash()
    overlay.run(overlay.world.now + 5.0)
    away = overlay.clients["reader"].read(PUBEND, 0, hi)
    overlay.run(overlay.world.now + 8.0)
    unfinished, error = not away.done, away.error
    overlay.node(1).start()
    overlay.run(overlay.world.now + 30.0)
    assert unfinished
    assert isinstance(error, PubendUnreachableError)
    assert away.done
    assert numbers(away) == list(range(10))


def test_a_broker_serves_a_bounded_number_of_reads_at_once() -> None:
    """Beyond the bound a read is refused, and none is forgotten."""
    overlay = chain(profile=CableProfile(latency_s=1.0))
    publish(overlay, 5)
    overlay.run(8.0)
    reads = [overlay.clients["reader"].read(PUBEND, 0, 1 << 50) for _ in range(40)]
    overlay.run(overlay.world.now + 20.0)
    assert all(seen.done for seen in reads)
    assert sum(seen.error is not None for seen in reads) == 24
    machine = overlay.node(3).machine
    assert machine is not None
    assert machine.stats()["clients_reads"] == 0
