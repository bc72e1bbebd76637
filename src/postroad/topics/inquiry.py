"""How a topics service is: the reports of its proxies and servers, for `postroad topics status` and the console."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postroad.errors import PostroadError
from postroad.topics.keys import key_of_environment
from postroad.topics.machines import messages as m
from postroad.topics.machines.server import REPORT
from postroad.topics.sockets import Dealer, endpoint, import_zmq


@dataclass(frozen=True, slots=True)
class ServiceReports:
    """What was answered. A report is None where nobody answered in time."""

    proxies: list[tuple[str, Any]]  # address, report
    servers: dict[str, tuple[str, Any]]  # by name: address, report

    @property
    def is_reachable(self) -> bool:
        return any(report is not None for _, report in self.proxies)


def inquire_service(proxies: Sequence[str], timeout_s: float) -> ServiceReports:
    """Ask the proxies, and the servers that they know. It takes up to `timeout_s` for each that is silent."""
    seen = [(address, inquire(address, timeout_s)) for address in proxies]
    addresses: dict[str, str] = {}
    for _, report in seen:
        for entry in (report or {}).get("servers", []):
            addresses[entry["server"]] = entry["address"]
    return ServiceReports(seen, {name: (address, inquire(address, timeout_s)) for name, address in sorted(addresses.items())})


def inquire(address: str, timeout_s: float) -> Any:
    """Ask a proxy or a server for its report; None when it does not answer."""
    zmq = import_zmq()
    context = zmq.Context()
    try:
        dealer = Dealer(context, endpoint(address).encode(), key_of_environment())
        dealer.send(1, m.format_message(m.Status(b"status", REPORT, extensions=m.extend(t=0))))
        if not dealer.socket.poll(int(timeout_s * 1000)):
            return None
        for answer in dealer.receive():
            return json.loads(m.parse_status(answer.payload).body)
    except (PostroadError, ValueError):
        return None
    finally:
        context.destroy(linger=0)
    return None
