"""Limits and times of the topics service, all in one place; every one is an option of the command line or documented as fixed."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.topics.machines.messages import BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Section 3 of the seed: answer within 100 ms, three tries. Large payloads get the time their bytes need."""

    timeout_ms: int = 100
    tries: int = 3
    bytes_per_ms: int = 65_536

    def timeout_s(self, size: int) -> float:
        return (self.timeout_ms + size // self.bytes_per_ms) / 1000


@dataclass(frozen=True, slots=True)
class ServerOptions:
    period_s: float = 5.0
    calls: CallOptions = CallOptions()
    skew_ms_max: int = 20
    ahead_ms_max: int = 10_000
    retention_s: float = 7 * 86_400.0
    tombstone_s: float = 3600.0
    move_retry_s: float = 0.5
    body_bytes_max: int = BODY_BYTES_MAX
    part_bytes: int = 4 << 20
    topics_max: int = 100_000
    subscribers_max: int = 100_000
    publishers_max: int = 100_000
    lineage_max: int = 10_000
    backlog_messages_max: int = 1_000_000
    backlog_bytes_max: int = 16 << 30
    stagings_max: int = 64
    staging_s: float = 600.0
    moves_max: int = 16
    servers_max: int = 10_000
    stamps: bool = True  # False: merge as the seed does; only for the simulator, to show the loss it admits
    homes: bool = True  # False: serve any client from any copy; only for the simulator
    settle: bool = True  # False: reclaim without waiting for the horizon; only for the simulator


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    # A little less than the client's: when a server is away, the proxy's word reaches the client before it gives up.
    calls: CallOptions = CallOptions(timeout_ms=90)
    silent_s: float = 15.0  # a server not heard for so long gets no new topics; a new list of servers waits so long for all
    hops_max: int = 3
    patience_max: float = 64.0  # a client that waits longer than 100 ms may stretch the proxy's time-outs this far
    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 512 << 20
    topics_max: int = 1_000_000
    servers_max: int = 10_000


@dataclass(frozen=True, slots=True)
class ClientOptions:
    calls: CallOptions = CallOptions()
    body_bytes_max: int = BODY_BYTES_MAX
