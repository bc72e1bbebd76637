"""Messages that a broker refuses: their publisher hears of it, whatever happens to the connection."""

from __future__ import annotations

from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.sim.history import Acknowledged, Refused
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.tracking.tap.tracked_broker import TrackedConfig

ADMITTING = TrackedConfig(admission=AdmissionSettings(Criterion(Policy.FULL)))


FAR = CableProfile(latency_s=0.2, drops_data=False)


def finish(overlay: Overlay) -> None:
    """Let the client read nothing while it is refused, and the broker crash then."""
    writer = overlay.clients["writer"]
    overlay.at(2.5, lambda: writer.pause_reading(True))
    overlay.at(3.5, overlay.node(1).crash)
    overlay.at(3.6, overlay.node(1).start)
    overlay.run(5.0)
    overlay.heal()
    assert overlay.settle(60.0)
    assert overlay.violations() == []


def test_a_refusal_that_is_lost_with_its_connection_is_told_again() -> None:
    """What came after it was once durable already, so that the refused message looked durable, too (seed 4000460)."""
    overlay = Overlay(1, config=ADMITTING)
    overlay.brokers(1)
    writer = overlay.client("writer", 1, profile=FAR)
    overlay.at(0.2, lambda: writer.advertise("symbol = 'A'", 100.0))
    overlay.at(2.0, lambda: writer.publish({"symbol": "A"}, b"first"))
    overlay.at(2.1, lambda: writer.publish({"symbol": "B"}, b"outside"))
    overlay.at(2.2, lambda: writer.publish({"symbol": "A"}, b"after it, in one frame"))
    finish(overlay)
    assert [type(event) for event in overlay.history if isinstance(event, Acknowledged | Refused)] == [
        Acknowledged,
        Refused,
        Acknowledged,
    ]


def test_the_refusal_of_a_batch_is_told_again() -> None:
    """The same with columns, of which many frames are under way."""
    overlay = Overlay(1, config=ADMITTING)
    overlay.brokers(1)
    writer = overlay.client("writer", 1, profile=FAR)
    overlay.at(0.2, lambda: writer.advertise("symbol = 'A'", 100.0))
    overlay.at(1.0, lambda: writer.publish({"symbol": "A"}, b"first"))
    overlay.at(2.6, lambda: writer.publish_columns([({"symbol": "B"}, b"outside")]))
    overlay.at(2.7, lambda: writer.publish_columns([({"symbol": "A"}, b"after it")]))
    finish(overlay)
    assert sum(isinstance(event, Refused) for event in overlay.history) == 1
    assert sum(isinstance(event, Acknowledged) for event in overlay.history) == 2


def test_what_a_full_disk_refused_does_not_look_durable_later() -> None:
    """The refusal is on its way when the disk has room again for the next batch."""
    overlay = Overlay(1)
    overlay.brokers(1)
    writer = overlay.client("writer", 1, profile=FAR)
    overlay.at(1.0, lambda: writer.publish({}, b"first"))
    overlay.at(2.6, lambda: writer.publish_columns([({}, b"no room")]))
    overlay.at(2.7, lambda: writer.publish_columns([({}, b"after it")]))
    overlay.at(2.75, lambda: overlay.node(1).disk.fill(0.1))
    finish(overlay)
