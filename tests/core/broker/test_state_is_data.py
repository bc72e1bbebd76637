"""What a broker has to do later is kept as records, so that its state can be printed and compared."""

from __future__ import annotations

from tests.core.broker.machine_state import describe
from tests.core.broker.overlay import Overlay


def _work(*, names: tuple[str, ...] = ("one", "two", "three")) -> Overlay:
    """Let three brokers have something of everything: messages on the way, writes under way, votes, gaps, catching up."""
    overlay = Overlay.line(1, 2, 3)
    publisher = overlay.publisher(1)
    live = overlay.subscriber(3)
    overlay.subscriber(3, name="kept")
    for name in names:
        publisher.publish(name)
    overlay.run(0.5)
    live.pause()
    publisher.publish("a message that waits")
    overlay.run(0.5)
    overlay.writes_finish = False
    overlay.subscriber(3, name="voted for", wait=False)
    overlay.subscriber(2, earliest=True, wait=False)
    publisher.publish("a message that is being written")
    overlay.run(0.2)
    return overlay


def test_a_broker_keeps_no_code_in_its_state() -> None:
    """No closure, no bound method, no generator: whatever waits is a record, dispatched when its fact comes."""
    for node in _work().nodes.values():
        lines = describe(node.broker)
        assert len(lines) > 500
        assert [line for line in lines if "= code " in line] == []


def test_equal_inputs_lead_to_equal_states() -> None:
    """Two overlays that saw the same are the same, in every value that can be reached."""
    first, second = _work(), _work()
    for number, node in first.nodes.items():
        assert describe(node.broker) == describe(second.nodes[number].broker)


def test_other_inputs_lead_to_another_state() -> None:
    """One message less can be seen in every broker that it would have reached."""
    first, second = _work(), _work(names=("one", "two"))
    for number, node in first.nodes.items():
        assert describe(node.broker) != describe(second.nodes[number].broker)
