"""The configuration of a broker: one TOML file.

Every key is a field of a struct below, with its description beside it; the reference page is generated from them. An unknown
key is an error, which suggests the most similar known key.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.errors import ConfigError
from postroad.security.gate import Trust
from postroad.security.tls import TlsFiles
from postroad.tracking.histories.settings import Strategy, TrackingSettings

DEFAULT_PORT: Final = 7400

BrokerId = Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Bytes = Annotated[int, Meta(ge=1024, le=1 << 50)]
FrameBytes = Annotated[int, Meta(ge=128 << 10, le=1 << 30)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Cost = Annotated[int, Meta(ge=1, le=1_000_000)]
Address = Annotated[str, Meta(pattern=r"^.+:\d{1,5}$")]


def described(text: str) -> Meta:
    return Meta(description=text)


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Neighbour(_Section, frozen=True):
    """`[[neighbours]]`: a broker to keep a link to. It is enough if one of the two brokers lists the other."""

    address: Annotated[Address, described("The address it listens on, as `host:port`.")]
    cost: Annotated[
        Cost, described("Cost of sending a message over this link. Messages take the path with the lowest total cost.")
    ] = 1
    bandwidth_bytes_per_s: Annotated[
        int,
        Meta(ge=0, le=1 << 50),
        described(
            "The most this broker sends to that one, on average; 0: no limit. `postroad link limit` changes it while the "
            "broker runs. Limit the other direction in the file of the other broker."
        ),
    ] = 0


class Limits(_Section, frozen=True):
    """`[limits]`: how much clients and other brokers may use of this broker."""

    connections_max: Annotated[
        Count, described("Maximum number of connections; lower if the limit of open files (`ulimit -n`) requires it.")
    ] = 10_000
    handshakes_max: Annotated[Count, described("Maximum number of connections that have not identified themselves yet.")] = 1_000
    handshake_s: Annotated[Seconds, described("How long a new connection may take to identify itself.")] = 5.0
    frame_bytes_max: Annotated[FrameBytes, described("The largest frame accepted from an identified peer.")] = 16 << 20
    client_backlog_high_bytes: Annotated[
        Bytes, described("The broker stops sending messages to a client with more unread messages than this.")
    ] = 4 << 20
    client_backlog_low_bytes: Annotated[
        Bytes, described("The broker starts sending to such a client again when fewer unread messages than this are left.")
    ] = 1 << 20
    client_backlog_max_bytes: Annotated[
        Bytes, described("The broker disconnects a client with more unread packets than this.")
    ] = 64 << 20
    buffers_bytes_max: Annotated[
        Bytes,
        described(
            "Memory for the buffers of all connections: incomplete frames, unread responses, requests in progress. A quarter "
            "is reserved for links between brokers."
        ),
    ] = 256 << 20
    publish_window_bytes: Annotated[
        Bytes, described("How much one publisher may send before it must wait for an acknowledgement.")
    ] = 4 << 20
    publish_backlog_rows: Annotated[
        Count, described("The broker stops reading from publishers while more messages than this wait to be written to the log.")
    ] = 200_000
    publish_backlog_bytes: Annotated[Bytes, described("The same limit in bytes.")] = 64 << 20
    subscriptions_max: Annotated[Count, described("Maximum number of subscriptions of all clients together.")] = 200_000
    connections_per_address_max: Annotated[Count, described("Maximum number of connections from one address.")] = 2_000
    handshakes_per_address_max: Annotated[
        Count, described("Maximum number of connections from one address that have not identified themselves yet.")
    ] = 500
    unidentified_bytes_max: Annotated[
        Bytes, described("The most that a connection may send before it has identified itself.")
    ] = 256 << 10
    connections_per_identity_max: Annotated[Count, described("Maximum number of connections of one identity.")] = 1_000
    subscriptions_per_identity_max: Annotated[
        Count, described("Maximum number of subscriptions of one identity, over all its connections.")
    ] = 50_000
    names_per_identity_max: Annotated[
        Count,
        described(
            "Maximum number of durable subscriptions of one identity in the overlay, and of its named writers at this broker. "
            "Administrators have no such limit."
        ),
    ] = 4_096
    queues_per_identity_max: Annotated[
        Count,
        described("Maximum number of queues that one identity creates at this broker from its start on and has not deleted."),
    ] = 1_000
    queue_clients_per_identity_max: Annotated[
        Count, described("The same for clients of the queue service; one connection has one.")
    ] = 10_000
    bindings_per_identity_max: Annotated[Count, described("The same for filters that queues are bound to.")] = 256
    publish_bytes_per_s_per_identity: Annotated[
        Bytes,
        described("How much one identity may publish per second, over all its connections; above it they are read more slowly."),
    ] = 256 << 20


class Links(_Section, frozen=True):
    """`[links]`: connections to other brokers."""

    heartbeat_s: Annotated[Seconds, described("How often the broker sends a ping on an idle link.")] = 1.0
    timeout_s: Annotated[Seconds, described("A link is lost when nothing was received on it for this long.")] = 4.0
    client_heartbeat_s: Annotated[Seconds, described("How often the broker sends a ping to an idle client.")] = 5.0
    client_timeout_s: Annotated[
        Seconds, described("A client is disconnected when nothing was received from it for this long.")
    ] = 20.0
    retry_s: Annotated[
        Seconds, described("Pause before the broker tries to connect a failed link again; doubled after each failure.")
    ] = 0.1
    retry_s_max: Annotated[
        Seconds, described("The longest such pause. In the first ten seconds after a link was lost, no pause exceeds 0.25 s.")
    ] = 5.0
    backlog_data_bytes: Annotated[
        Bytes,
        described("When more data than this waits for a slow link, the rest is dropped; the other side requests it again later."),
    ] = 16 << 20
    backlog_control_bytes: Annotated[Bytes, described("A link is closed when more control packets than this wait for it.")] = (
        64 << 20
    )


class Storage(_Section, frozen=True):
    """`[storage]`: the log of published messages."""

    retention_bytes: Annotated[
        Bytes,
        described(
            "Maximum size of the log. The oldest messages are deleted beyond it, even if a subscriber still needs them (a gap)."
        ),
    ] = 8 << 30
    keep_s: Annotated[
        float, Meta(ge=0), described("How long messages are kept after every subscriber has acknowledged them.")
    ] = 3600.0
    segment_bytes: Annotated[Bytes, described("Size of one file of the log.")] = 64 << 20


def hide_password(store: str) -> str:
    """Return a URL without the password in it; any other text as it is."""
    text = re.sub(r"(?<=://)([^/@?]*):[^/]*@", r"\1:...@", store)
    return re.sub(r"(?i)([?&](?:password|passfile|sslpassword)=)[^&]*", r"\1...", text)


def check_no_password(store: str, option: str) -> None:
    """Refuse a password on a command line: every user of the machine can read it there."""
    if hide_password(store) != store:
        raise ConfigError(
            f"{option} must not contain a password, since others can read a command line; write the URL into the configuration "
            "file, or give the password by PGPASSWORD or PGPASSFILE"
        )


class Queues(_Section, frozen=True):
    """`[queues]`: the queue service on the port of the broker."""

    store: Annotated[
        str,
        described(
            "Where queues are stored: the name of a file in `data_dir` (SQLite), a `postgresql://` URL that several brokers may "
            "share, or empty for a broker without queues."
        ),
    ] = "queues.sqlite"
    profile: Annotated[
        str,
        described("A profiling log: a file in `data_dir` with one line for each call of a queue method; empty for none."),
    ] = ""

    def __repr__(self) -> str:
        return f"Queues(store={hide_password(self.store)!r}, profile={self.profile!r})"


class Tracking(_Section, frozen=True):
    """`[tracking]`: the path of each message, for `postroad trace`. `postroad tracking plan` computes values for blooms."""

    strategy: Annotated[
        typing.Literal["exact", "bloom", "async", "null"],
        described(
            "How message histories are stored: `exact` (compressed ids; those of publishers take about a byte each on disk), "
            "`bloom` (Bloom filters; fewer bits mean more false entries), `async` (plain ids, 16 bytes each) or `null` "
            "(no tracking)."
        ),
    ] = "exact"
    bits: Annotated[int, Meta(ge=64, le=1 << 32), described("Bits of a Bloom filter (m), a multiple of 8.")] = 65_536
    hashes: Annotated[int, Meta(ge=1, le=64), described("Hash functions of a Bloom filter (k).")] = 16
    capacity: Annotated[int, Meta(ge=1, le=1 << 32), described("Messages in a full Bloom filter (n), at most one per bit.")] = (
        2_521
    )
    persistence_ms: Annotated[
        Milliseconds,
        described(
            "T_p: tracks are written to disk after this time at the latest. A crash loses at most the tracks of this time."
        ),
    ] = 10_000
    lifetime_min_ms: Annotated[
        int,
        Meta(ge=0, le=86_400_000),
        described("T_n: an element that is not full stays open for this long; each newly written copy replaces the one before."),
    ] = 0
    skew_tolerance_ms: Annotated[
        Milliseconds,
        described(
            "T_s: the broker refuses a message whose timestamp differs more than this from its clock, and corrects the client."
        ),
    ] = 4_000
    jitter_ms: Annotated[
        Milliseconds, described("T_j: difference in time between the slowest and the fastest path through the overlay.")
    ] = 1_000
    memory_bytes_max: Annotated[
        Bytes, described("Memory for histories that are not written yet; beyond it they are written early.")
    ] = 256 << 20
    retention_s: Annotated[float, Meta(gt=0), described("How long tracks are kept.")] = 30 * 86_400.0
    retention_bytes: Annotated[Bytes, described("Maximum size of all tracks; the oldest are deleted beyond it.")] = 10 << 30
    ids_max: Annotated[int, Meta(ge=1, le=1 << 24), described("Messages in a full element of `exact` or `async`.")] = 65_536
    singletons_max: Annotated[
        int,
        Meta(ge=0, le=1 << 20),
        described("Maximum number of late messages listed in one element; further ones get their own element."),
    ] = 256
    few_as_ids: Annotated[
        bool, described("Store the ids exactly when a Bloom filter has so few messages that this takes less space.")
    ] = True
    per_neighbour: Annotated[
        bool,
        described("Keep one history for each neighbour that messages were forwarded to, so that a trace asks fewer brokers."),
    ] = False
    routing_sets: Annotated[
        bool,
        described(
            "Keep one routing history for each set of neighbours (only with `bloom`). This has no effect at the broker where a "
            "message was published, which keeps no routing history of it: a trace asks all neighbours of that broker."
        ),
    ] = False
    process: Annotated[
        bool,
        described(
            "Run tracking in a separate process (about 80 MB), so that it does not delay messages; otherwise in a thread of the "
            "broker."
        ),
    ] = True
    omit_one_in: Annotated[
        int, Meta(ge=0), described("Only to test audits: leave one delivery in this many out of the tracks; 0 for none.")
    ] = 0

    def __post_init__(self) -> None:
        if self.bits % 8:
            raise ValueError(f"`tracking.bits` must be a multiple of 8, not {self.bits}")
        if self.capacity > self.bits:
            raise ValueError(f"`tracking.bits` must be at least `tracking.capacity` ({self.capacity}), not {self.bits}")

    def settings(self) -> TrackingSettings:
        return TrackingSettings(
            strategy=Strategy(self.strategy),
            m=self.bits,
            k=self.hashes,
            n=self.capacity,
            persistence_ms=self.persistence_ms,
            lifetime_min_ms=self.lifetime_min_ms,
            skew_tolerance_ms=self.skew_tolerance_ms,
            jitter_ms=self.jitter_ms,
            memory_bytes_max=self.memory_bytes_max,
            ids_max=self.ids_max,
            singletons_max=self.singletons_max,
            few_as_ids=self.few_as_ids,
            per_neighbour=self.per_neighbour,
            routing_sets=self.routing_sets,
            omit_one_in=self.omit_one_in,
        )


class Metrics(_Section, frozen=True):
    """`[metrics]`: metrics for Prometheus (needs the extra `metrics`)."""

    listen: Annotated[str, described("Address of the HTTP endpoint `/metrics`, as `host:port`; empty for none.")] = ""


class Security(_Section, frozen=True):
    """`[security]`: who may connect. Without it a broker serves this machine only; `docs/howto/secure.md` sets it up."""

    certificate: Annotated[
        str, described("The broker's certificate (PEM), which names its id; files are relative to the configuration file.")
    ] = ""
    key: Annotated[str, described("The private key of the certificate.")] = ""
    authority: Annotated[
        str, described("The certificate of the authority that issues those of the brokers, and of clients that have one.")
    ] = ""
    identities: Annotated[
        str,
        described("The file of clients and their permissions (`postroad token`); it is read again when it changes."),
    ] = ""
    insecure: Annotated[
        bool, described("Let everybody who reaches the address do everything: only for networks in which everybody is trusted.")
    ] = False

    def __post_init__(self) -> None:
        files = (self.certificate, self.key, self.authority)
        if any(files) and not all(files):
            raise ValueError("`security.certificate`, `security.key` and `security.authority` belong together")
        if self.identities and not all(files):
            raise ValueError("`security.identities` needs `security.certificate`: a token must not travel without TLS")

    def trust(self) -> Trust:
        files = TlsFiles(Path(self.certificate), Path(self.key), Path(self.authority)) if self.certificate else None
        return Trust(files, Path(self.identities) if self.identities else None, self.insecure)

    def below(self, directory: Path) -> Security:
        """Return the same with paths relative to a directory."""
        names = ("certificate", "key", "authority", "identities")
        paths = {name: str(directory / path) for name in names if (path := getattr(self, name))}
        return msgspec.structs.replace(self, **paths)


class Console(_Section, frozen=True):
    """`[console]`: the web console (needs the extra `console`). It serves plain HTTP, so on loopback only."""

    listen: Annotated[
        str, described("Address of the console, as `host:port` on loopback; port 0 chooses a free one; empty for none.")
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        described("Further names under which browsers may reach the console, for example that of a reverse proxy with TLS."),
    ] = ()
    books: Annotated[
        str, described("A file written by `postroad pipeline audit --books FILE`, shown as the last audit; empty for none.")
    ] = ""
    topics: Annotated[
        tuple[str, ...],
        described("Addresses of proxies of a topics service, as `host:port`; their topics are shown. Needs the extra `topics`."),
    ] = ()


class Overlay(_Section, frozen=True):
    """`[overlay]`: how this broker works with the other brokers."""

    cache_bytes: Annotated[
        Bytes, described("Memory for recent messages of each stream; used to answer requests for missing messages.")
    ] = 64 << 20
    silence_s: Annotated[
        Seconds,
        described("How often a broker reports to other brokers that nothing was published; to clients, every fifth time."),
    ] = 1.0
    retired: Annotated[
        tuple[BrokerId, ...],
        described(
            "Ids of brokers that will never return: logs are not kept for them, and durable names do not wait for their answers."
        ),
    ] = ()
    home_query_s: Annotated[
        Seconds, described("How long to wait for the former home broker of a durable subscription that moved to this broker.")
    ] = 3.0
    newcomer_wait_s: Annotated[
        Seconds,
        described(
            "How long a broker that starts with empty files waits for its neighbours to report whether it existed before. It "
            "accepts no messages until then."
        ),
    ] = 3.0
    subscriber_grace_s: Annotated[
        Seconds,
        described("How long logs are kept for a disconnected subscriber without a durable name, which may reconnect."),
    ] = 30.0


class Congestion(_Section, frozen=True):
    """`[congestion]`: how publishers slow down when the overlay cannot carry what they send; the names of Table 1 in brackets."""

    rule: Annotated[
        typing.Literal["none", "paper", "improved"],
        described(
            "`improved` measures what the slowest broker can take, `paper` searches for it as the paper does, `none` leaves "
            "publishers alone."
        ),
    ] = "none"
    query_s: Annotated[Seconds, described("How often a pubend asks the brokers below it whether they can follow.")] = 1.0
    no_alert_s: Annotated[
        Seconds, described("After this time without an alert, the rate of a throttled pubend rises (t_nouca).")
    ] = 2.0
    rate_step: Annotated[
        float, Meta(gt=0), described("The least increase of a rate, and the least rate, in messages per second (r_min).")
    ] = 2.0
    increase: Annotated[
        float, Meta(gt=0, le=10), described("Increase of a rate, as part of its distance to the last decrease (f_incr).")
    ] = 0.05
    decrease: Annotated[float, Meta(gt=0, lt=1), described("Decrease of a rate to this part of it (f_decr1).")] = 0.5
    decrease_near: Annotated[
        float, Meta(gt=0, lt=1), described("The same, relative to the rate at the last decrease (f_decr2).")
    ] = 0.25
    smoothing: Annotated[float, Meta(gt=0, le=1), described("Weight of a new sample in a broker's rate of progress (alpha).")] = (
        0.1
    )
    margin_live: Annotated[
        float,
        Meta(ge=0, lt=1),
        described(
            "A broker alerts when it follows a stream slower than 1 less this, in seconds of the stream per second "
            "(delta t_nonrec)."
        ),
    ] = 0.05
    margin_recovering: Annotated[
        float,
        Meta(ge=-1, le=100),
        described("A recovering broker alerts when it is slower than 1 plus this: it has to catch up (delta t_rec)."),
    ] = 1.0
    lag_ms_max: Annotated[Milliseconds, described("A broker also alerts when it is further behind than this (delta t_s).")] = (
        4_000
    )
    nack_ms: Annotated[
        Milliseconds, described("The part of a stream that one request for missing messages asks for (size_NACK).")
    ] = 100
    nack_window_ms: Annotated[
        Milliseconds, described("The part of a stream that a recovering broker asks for at first (nwnd_0).")
    ] = 100
    nack_increase: Annotated[
        float, Meta(gt=0, le=10), described("The window opens when recovery gets faster by this part (alpha_NACK).")
    ] = 0.1
    nack_decrease: Annotated[
        float, Meta(gt=0, lt=1), described("The window closes when recovery gets slower by this part (beta_NACK).")
    ] = 0.3
    receive_window_ms: Annotated[
        Milliseconds, described("A broker further behind than this is recovering; it asks for no more than this at a time.")
    ] = 10_000
    receive_window_bytes: Annotated[
        Bytes, described("Memory for messages of a stream that cannot be delivered yet because earlier ones are missing.")
    ] = 16 << 20

    def settings(self) -> CongestionSettings:
        """Return the settings of the machine, which have the same names."""
        return CongestionSettings(**{**msgspec.structs.asdict(self), "rule": Rule(self.rule)})


Rate = Annotated[float, Meta(ge=0, le=1e12)]


class Admission(_Section, frozen=True):
    """`[admission]`: which subscriptions the overlay admits, and what publishers may send; rates in messages per second."""

    policy: Annotated[
        typing.Literal["off", "full", "percentage"],
        described(
            "`full` admits a subscription if every broker on its path has enough left, `percentage` if not too many refuse; "
            "`off` asks nobody."
        ),
    ] = "off"
    percentage: Annotated[
        float,
        Meta(ge=0, le=100),
        described("With `percentage`: a subscription is rejected if more than this share of the brokers refuse."),
    ] = 20.0
    overridable: Annotated[bool, described("Whether a subscription may bring its own policy.")] = True
    verdict_s: Annotated[
        Seconds,
        described("How long a subscription waits for the verdicts of other brokers. A broker that is silent then, refuses."),
    ] = 3.0
    cpu_rate: Annotated[
        Rate,
        described(
            "The most that this broker's CPU can handle; 0 to measure it: the highest rate while it was busy, 90% of a second or "
            "more. Until that is seen there is no limit."
        ),
    ] = 0.0
    link_rate: Annotated[Rate, described("The most that each link to a broker can carry; 0 for no limit.")] = 0.0
    link_rates: Annotated[
        tuple[tuple[BrokerId, Rate], ...], described("The same for single links, as pairs of broker and rate.")
    ] = ()
    memory_bytes: Annotated[
        int,
        Meta(ge=0),
        described(
            "Memory for reservations and advertisements, about 1 kB each; 0 to measure it: half of what the machine has left."
        ),
    ] = 0
    default_rate: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e12)],
        described("The rate of a publisher that declares none, if neither the rate profile nor its recent history tells one."),
    ] = 1_000.0
    burst_s: Annotated[
        Seconds, described("A publisher that was quiet may send this many seconds of its rate at once; the rest waits.")
    ] = 1.0
    estimate: Annotated[
        bool,
        described(
            "Sample the numbers in published messages, and reserve what a subscription is expected to bring, not the most. "
            "More is admitted, and the guarantee holds only as long as the values stay as they were."
        ),
    ] = False
    rates_file: Annotated[
        str, described("The rate profile that `postroad pipeline rates --out` wrote: rates of publishers that declare none.")
    ] = ""

    @property
    def measures(self) -> bool:
        """Whether the broker measures a capacity that is not configured."""
        return self.policy != "off" and not (self.cpu_rate and self.memory_bytes)

    def settings(self) -> AdmissionSettings:
        """Return the settings of the machine; without the rates of the profile, which the broker reads at its start."""
        return AdmissionSettings(
            Criterion(Policy(self.policy), self.percentage),
            overridable=self.overridable,
            verdict_s=self.verdict_s,
            cpu_rate=self.cpu_rate or None,
            link_rate=self.link_rate or None,
            link_rates=self.link_rates,
            memory_bytes=self.memory_bytes or None,
            default_rate=self.default_rate,
            burst_s=self.burst_s,
            estimate=self.estimate,
        )


class NodeConfig(_Section, frozen=True):
    """The top of the file."""

    id: Annotated[BrokerId, described("Number of the broker, unique in the overlay; part of every message id.")]
    data_dir: Annotated[
        str,
        Meta(min_length=1),
        described("Directory for the files of the broker; relative to the directory of the configuration file."),
    ]
    name: Annotated[str, Meta(max_length=255), described("Name shown in logs and tools. Default: `broker-` and its id.")] = ""
    listen: Annotated[Address, described("Address for clients and other brokers, as `host:port`.")] = f"127.0.0.1:{DEFAULT_PORT}"
    log_level: Annotated[
        typing.Literal["debug", "info", "warning", "error"],
        described("Least severe messages that are written to standard error."),
    ] = "info"
    pubends: Annotated[
        int,
        Meta(ge=1, le=64),
        described(
            "Number of logs that publishers are spread over. Each has its own order and is slowed down by itself. It may be "
            "changed between two starts: existing publishers stay in their log."
        ),
    ] = 1
    neighbours: Annotated[tuple[Neighbour, ...], described("See below.")] = ()
    limits: Annotated[Limits, described("See below.")] = Limits()
    links: Annotated[Links, described("See below.")] = Links()
    storage: Annotated[Storage, described("See below.")] = Storage()
    overlay: Annotated[Overlay, described("See below.")] = Overlay()
    tracking: Annotated[Tracking, described("See below.")] = Tracking()
    queues: Annotated[Queues, described("See below.")] = Queues()
    metrics: Annotated[Metrics, described("See below.")] = Metrics()
    console: Annotated[Console, described("See below.")] = Console()
    congestion: Annotated[Congestion, described("See below.")] = Congestion()
    admission: Annotated[Admission, described("See below.")] = Admission()
    security: Annotated[Security, described("See below.")] = Security()

    @property
    def title(self) -> str:
        return self.name or f"broker-{self.id}"


class OverlayBroker(_Section, frozen=True):
    """`[[brokers]]`: one broker of the topology."""

    name: Annotated[str, Meta(min_length=1, max_length=255), described("Name of the broker, unique in the file.")]
    id: Annotated[BrokerId, described("Number of the broker, unique in the overlay.")]
    listen: Annotated[Address, described("The address it listens on, as `host:port`.")]
    data_dir: Annotated[str, described("Directory for its files. Default: its name inside the file's `data_dir`.")] = ""
    neighbours: Annotated[
        tuple[str, ...], described("Names of brokers to keep a link to; it is enough if one of the two lists the other.")
    ] = ()
    pubends: Annotated[int, Meta(ge=1, le=64), described("Number of logs, as in the file of a broker.")] = 1


class TopologyConfig(_Section, frozen=True):
    """A topology file: all brokers of one overlay on one machine (`postroad overlay FILE`)."""

    brokers: Annotated[tuple[OverlayBroker, ...], Meta(min_length=1), described("See below.")]
    data_dir: Annotated[str, described("Directory for brokers without their own `data_dir`.")] = "data"
    log_level: Annotated[
        typing.Literal["debug", "info", "warning", "error"],
        described("Least severe messages that each broker writes to its log."),
    ] = "info"
    limits: Annotated[Limits, described("For all brokers, as in the file of a broker.")] = Limits()
    links: Annotated[Links, described("For all brokers, as in the file of a broker.")] = Links()
    storage: Annotated[Storage, described("For all brokers, as in the file of a broker.")] = Storage()
    overlay: Annotated[Overlay, described("For all brokers, as in the file of a broker.")] = Overlay()
    congestion: Annotated[Congestion, described("For all brokers, as in the file of a broker.")] = Congestion()
    admission: Annotated[Admission, described("For all brokers, as in the file of a broker.")] = Admission()
    tracking: Annotated[Tracking, described("For all brokers, as in the file of a broker.")] = Tracking()


ConfigT = TypeVar("ConfigT", NodeConfig, TopologyConfig)


def load_config(path: Path) -> NodeConfig:
    """Read a broker's file; `data_dir` becomes absolute."""
    config = parse_config(_read(path), NodeConfig, str(path))
    base = path.absolute().parent
    return msgspec.structs.replace(config, data_dir=str(base / config.data_dir), security=config.security.below(base))


def load_topology(path: Path) -> list[NodeConfig]:
    """Read a topology file and return the configuration of each of its brokers."""
    topology = parse_config(_read(path), TopologyConfig, str(path))
    return expand(topology, path.absolute().parent, str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(text: str, kind: type[ConfigT], origin: str) -> ConfigT:
    """Turn TOML into a configuration; `origin` is what errors call the text."""
    try:
        raw = msgspec.toml.decode(text)
        _refuse_unknown(raw, kind, "", origin)
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {_in_toml_words(str(error))}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error


def _in_toml_words(text: str) -> str:
    return text.replace("`$.", "`").replace("Object missing required field", "missing key").replace(" - at `$`", "")


def _refuse_unknown(raw: Any, kind: Any, where: str, origin: str) -> None:
    """Refuse keys no struct knows, and say which one was probably meant."""
    if not isinstance(raw, dict):
        return
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in known:
            near = difflib.get_close_matches(key, list(known), n=1)
            hint = f"; did you mean `{near[0]}`?" if near else f"; known keys: {', '.join(known)}"
            raise ConfigError(f"{origin}: unknown key `{where}{key}`{hint}")
        inner = struct_of(known[key])
        for index, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if inner is not None:
                place = f"{where}{key}." if index is None else f"{where}{key}[{index}]."
                _refuse_unknown(each, inner, place, origin)


def sections(kind: type[_Section]) -> list[type[_Section]]:
    """Return a kind of file and all sections it may have, in the order of its fields."""
    found: dict[type[_Section], None] = {kind: None}
    for field in msgspec.structs.fields(kind):
        inner = struct_of(field.type)
        if inner is not None and inner not in found:
            found.update(dict.fromkeys(sections(inner)))
    return list(found)


def struct_of(annotation: Any) -> type[_Section] | None:
    """Find the section a field holds, itself or as items."""
    if isinstance(annotation, type) and issubclass(annotation, _Section):
        return annotation
    for part in typing.get_args(annotation):
        found = struct_of(part)
        if found is not None:
            return found
    return None


def expand(topology: TopologyConfig, base: Path, origin: str) -> list[NodeConfig]:
    """Return the configuration of every broker of a topology; names, ids and addresses must be unique."""
    _refuse_twice(topology, origin)
    addresses = {broker.name: broker.listen for broker in topology.brokers}
    configs = []
    for broker in topology.brokers:
        for neighbour in broker.neighbours:
            if neighbour not in addresses:
                near = difflib.get_close_matches(neighbour, list(addresses), n=1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                raise ConfigError(f"{origin}: broker `{broker.name}` has the unknown neighbour `{neighbour}`{hint}")
        configs.append(
            NodeConfig(
                id=broker.id,
                name=broker.name,
                data_dir=str(base / (broker.data_dir or Path(topology.data_dir) / broker.name)),
                listen=broker.listen,
                log_level=topology.log_level,
                pubends=broker.pubends,
                neighbours=tuple(Neighbour(address=addresses[each]) for each in broker.neighbours),
                limits=topology.limits,
                links=topology.links,
                storage=topology.storage,
                overlay=topology.overlay,
                congestion=topology.congestion,
                admission=topology.admission,
                tracking=topology.tracking,
            )
        )
    return configs


def _refuse_twice(topology: TopologyConfig, origin: str) -> None:
    for what in ("name", "id", "listen"):
        seen: set[object] = set()
        for broker in topology.brokers:
            value = getattr(broker, what)
            if value in seen:
                raise ConfigError(f"{origin}: two brokers have the {what} `{value}`")
            seen.add(value)


def dump_config(config: NodeConfig) -> str:
    """Write a configuration as TOML that `load_config` reads back."""
    return "\n".join(_toml(msgspec.to_builtins(config), "")) + "\n"


def _toml(table: dict[str, Any], name: str) -> Iterator[str]:
    """Write what configurations hold: scalars first, then tables, then lists of tables."""
    for key, value in table.items():
        if not _holds_tables(value):
            yield f"{key} = {msgspec.json.encode(value).decode()}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield f"[{name}{key}]"
            yield from _toml(value, f"{name}{key}.")
        elif _holds_tables(value):
            for each in value:
                yield f"[[{name}{key}]]"
                yield from _toml(each, f"{name}{key}.")


def _holds_tables(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value))


def split_address(address: str) -> tuple[str, int]:
    """Cut `host:port`; an IPv6 host may stand in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 0xFFFF:
        raise ConfigError(f"an address has the form host:port, not {address!r}")
    return host.strip("[]"), int(port)
