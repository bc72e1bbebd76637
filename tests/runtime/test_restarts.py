"""A broker that was away for a moment is found at once: pauses grow only when it stays away."""

from __future__ import annotations

from postroad.client.addresses import parse_addresses
from postroad.client.connection import Client, ClientConfig
from postroad.runtime.config import Links, Neighbour
from postroad.runtime.connections.links import QUICK_PAUSE_S_MAX, QUICK_S, Dialler


def test_a_lost_neighbour_is_dialled_often_at_first() -> None:
    """However often it failed: within ten seconds of the loss a pause is at most a quarter of a second."""
    dialler = Dialler(Neighbour(address="127.0.0.1:1"), Links(), None, None, None)  # type: ignore[arg-type]
    soon = [dialler._pause(failures, QUICK_S / 2) for failures in range(20)]
    late = [dialler._pause(16, QUICK_S + 1) for _ in range(20)]
    assert max(soon) <= QUICK_PAUSE_S_MAX
    assert min(late) >= Links().retry_s_max / 2


def test_a_client_looks_for_its_broker_often_at_first() -> None:
    """The same for clients; one that is taken and dropped again and again waits longer."""
    client = Client(parse_addresses("postroad://127.0.0.1:1"), ClientConfig())
    assert max(client._pause(rounds, quick=True) for rounds in range(20)) <= QUICK_PAUSE_S_MAX
    assert min(client._pause(16) for _ in range(20)) >= ClientConfig().retry_s_max / 2
