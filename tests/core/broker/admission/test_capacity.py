"""Capacities that a broker measures, and those that are configured."""

from __future__ import annotations

from tests.core.broker.overlay import Overlay

from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.admission import CPU, MEMORY, AdmissionState, AskAdmission, ResourceUse
from postroad.core.protocol.orders import CpuUsed, MemoryAvailable

BROKER = 1


def broker(**limits: float) -> Overlay:
    settings = AdmissionSettings(Criterion(Policy.FULL), default_rate=1_000.0, **limits)  # type: ignore[arg-type]
    return Overlay.line(BROKER, config=BrokerConfig(admission=settings))


def measure(overlay: Overlay, *, share: float = 0.3, memory: int = 10_000) -> None:
    """Let a second pass, and tell the broker what was measured over it."""
    overlay.run(1.0)
    for fact in (CpuUsed(share), MemoryAvailable(memory)):
        overlay.nodes[BROKER].broker.fact(fact, now=overlay.now)


def resources(overlay: Overlay) -> dict[str, ResourceUse]:
    """Ask as an operator does."""
    operator = overlay.subscriber(BROKER, "FALSE", criterion="off")
    operator.send(AskAdmission())
    overlay.until(lambda: any(isinstance(each, AdmissionState) for each in operator.packets))
    state = next(each for each in operator.packets if isinstance(each, AdmissionState))
    operator.disconnect()
    return {each.resource: each for each in state.resources}


def test_the_cpu_has_no_limit_until_it_was_busy() -> None:
    overlay = broker()
    publisher = overlay.publisher(at=BROKER)
    publisher.publish(*(f"m{number}" for number in range(30)))
    measure(overlay, share=0.5)
    cpu = resources(overlay)[CPU]
    assert (cpu.limit, cpu.measured) == (None, True)


def test_the_cpu_can_do_what_it_did_while_it_was_busy() -> None:
    """The most messages a second that came while the CPU was at its limit; then a broker refuses what exceeds it."""
    overlay = broker()
    publisher = overlay.publisher(at=BROKER)
    measure(overlay)
    publisher.publish(*(f"m{number}" for number in range(30)))
    measure(overlay, share=0.95)
    cpu = resources(overlay)[CPU]
    assert cpu.limit is not None
    assert 25_000 <= cpu.limit <= 30_000
    publisher.advertise("price > 0", 40.0)
    rejected = overlay.subscriber(BROKER, "price > 1").rejected
    assert rejected is not None
    assert [each.resource for each in rejected.refusals] == [CPU]


def test_half_of_the_memory_that_is_left_may_be_reserved() -> None:
    overlay = broker()
    measure(overlay, memory=5_000)
    overlay.publisher(at=BROKER).advertise("price > 0", 4.0)
    assert overlay.subscriber(BROKER, "a").is_subscribed
    rejected = overlay.subscriber(BROKER, "b").rejected
    assert rejected is not None
    assert [each.resource for each in rejected.refusals] == [MEMORY]
    measure(overlay, memory=5_000)
    memory = resources(overlay)[MEMORY]
    assert memory.limit == 1_180 + 1_020 + 2_500, "what is advertised and reserved, and half of the rest"
    assert overlay.subscriber(BROKER, "b").is_subscribed


def test_what_is_configured_is_not_measured() -> None:
    overlay = broker(cpu_rate=7.0, memory_bytes=5_000)
    overlay.publisher(at=BROKER).publish("m")
    measure(overlay, share=1.0, memory=1)
    found = resources(overlay)
    assert (found[CPU].limit, found[CPU].measured) == (7_000, False)
    assert (found[MEMORY].limit, found[MEMORY].measured) == (5_000, False)
