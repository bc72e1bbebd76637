"""The configuration of a broker: one TOML file.

Every key is a field of a struct below and is described beside it; the reference page is generated from here. A key that is
not known is refused, with the name of the nearest known one.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from postroad.core.tracking.settings import Strategy, TrackingSettings
from postroad.errors import ConfigError

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
    """`[[neighbours]]`: a broker this one keeps a link to. One side naming the other is enough."""

    address: Annotated[Address, described("Where it listens, as `host:port`.")]
    cost: Annotated[Cost, described("What a message over this link costs; paths with the lowest sum are used.")] = 1


class Limits(_Section, frozen=True):
    """`[limits]`: what a peer may ask of this broker."""

    connections_max: Annotated[
        Count, described("Connections at a time; more are refused. Fewer, if the limit of open files (`ulimit -n`) asks for it.")
    ] = 10_000
    handshakes_max: Annotated[Count, described("Connections at a time that have not said who they are.")] = 1_000
    handshake_s: Annotated[Seconds, described("Time to say who one is before the connection is closed.")] = 5.0
    frame_bytes_max: Annotated[FrameBytes, described("The largest frame taken from an identified peer.")] = 16 << 20
    client_backlog_high_bytes: Annotated[
        Bytes, described("A client whose unread messages pass this gets no more until it has read most of them.")
    ] = 4 << 20
    client_backlog_low_bytes: Annotated[Bytes, described("Where such a client gets messages again.")] = 1 << 20
    client_backlog_max_bytes: Annotated[Bytes, described("A client whose unread packets pass this is disconnected.")] = 64 << 20
    buffers_bytes_max: Annotated[
        Bytes,
        described(
            "Memory for what waits in all connections: unfinished frames, unread answers, requests under way. A quarter is "
            "reserved for links between brokers."
        ),
    ] = 256 << 20
    publish_window_bytes: Annotated[Bytes, described("What one publisher may send before it waits for an acknowledgement.")] = (
        4 << 20
    )
    publish_backlog_rows: Annotated[
        Count, described("While more messages than this wait to be written to the log, publishers are not read.")
    ] = 200_000
    publish_backlog_bytes: Annotated[Bytes, described("The same in bytes of messages.")] = 64 << 20
    subscriptions_max: Annotated[Count, described("Subscriptions of all clients together.")] = 200_000


class Links(_Section, frozen=True):
    """`[links]`: connections to other brokers."""

    heartbeat_s: Annotated[Seconds, described("How often a quiet link is probed.")] = 1.0
    timeout_s: Annotated[Seconds, described("A link that said nothing for this long is lost.")] = 4.0
    client_heartbeat_s: Annotated[Seconds, described("How often a quiet client is probed.")] = 5.0
    client_timeout_s: Annotated[Seconds, described("A client that said nothing for this long is gone.")] = 20.0
    retry_s: Annotated[Seconds, described("Wait before a failed link is dialled again; doubled at each failure.")] = 0.1
    retry_s_max: Annotated[
        Seconds, described("The longest such wait; in the first ten seconds after a link was lost no wait passes 0.25 s.")
    ] = 5.0
    backlog_data_bytes: Annotated[
        Bytes, described("Data waiting for a slow link beyond this is dropped and asked for again later.")
    ] = 16 << 20
    backlog_control_bytes: Annotated[Bytes, described("A link on which more control packets wait is closed.")] = 64 << 20


class Storage(_Section, frozen=True):
    """`[storage]`: the log of published messages."""

    retention_bytes: Annotated[
        Bytes, described("The log's size; beyond it the oldest messages go, also if a subscriber still needs them (a gap).")
    ] = 8 << 30
    keep_s: Annotated[
        float, Meta(ge=0), described("How long messages are kept though every subscriber has acknowledged them.")
    ] = 3600.0
    segment_bytes: Annotated[Bytes, described("The size of one file of the log.")] = 64 << 20


class Queues(_Section, frozen=True):
    """`[queues]`: the queue service on the broker's port."""

    store: Annotated[
        str,
        described(
            "Where queues are kept: a file name below `data_dir` (SQLite), a `postgresql://` URL that several brokers may share, "
            "or empty for a broker without queues."
        ),
    ] = "queues.sqlite"
    profile: Annotated[
        str,
        described("A profiling log: a file below `data_dir` with a line for each call of a queue method; empty for none."),
    ] = ""


class Tracking(_Section, frozen=True):
    """`[tracking]`: which messages went which way, for `postroad trace`. `postroad tracking plan` computes values for blooms."""

    strategy: Annotated[
        typing.Literal["exact", "bloom", "async", "null"],
        described(
            "What histories are made of: `exact` ids in order of time (those of publishers in about a byte each on disk), "
            "`bloom` filters (as many bits as you give them, and as many false entries), `async` plain ids (16 bytes each), "
            "or `null` for none."
        ),
    ] = "exact"
    bits: Annotated[int, Meta(ge=64, le=1 << 32), described("Of a bloom: m, a multiple of 8.")] = 65_536
    hashes: Annotated[int, Meta(ge=1, le=64), described("Hash functions of a bloom: k.")] = 16
    capacity: Annotated[int, Meta(ge=1, le=1 << 32), described("Messages that a bloom takes: n, at most one per bit.")] = 2_521
    persistence_ms: Annotated[
        Milliseconds, described("T_p: what was tracked is on disk after this time; a crash loses at most as much.")
    ] = 10_000
    lifetime_min_ms: Annotated[
        int, Meta(ge=0, le=86_400_000), described("T_n: elements that are not full live this long, their copies are replaced.")
    ] = 0
    skew_tolerance_ms: Annotated[
        Milliseconds,
        described("T_s: a message whose timestamp is further from the broker's clock is refused, and its client corrected."),
    ] = 4_000
    jitter_ms: Annotated[
        Milliseconds, described("T_j: the longest way through the overlay takes this much longer than the shortest.")
    ] = 1_000
    memory_bytes_max: Annotated[Bytes, described("For histories that are not written yet; beyond it they are written early.")] = (
        256 << 20
    )
    retention_s: Annotated[float, Meta(gt=0), described("How long tracks are kept.")] = 30 * 86_400.0
    retention_bytes: Annotated[Bytes, described("The size of all tracks; beyond it the oldest go.")] = 10 << 30
    ids_max: Annotated[int, Meta(ge=1, le=1 << 24), described("Messages that an element of `exact` or `async` takes.")] = 65_536
    singletons_max: Annotated[
        int, Meta(ge=0, le=1 << 20), described("Late messages that an element lists; more of them get an element of their own.")
    ] = 256
    few_as_ids: Annotated[
        bool, described("Write a bloom with so few messages that their ids are shorter as `exact`, without any error.")
    ] = True
    per_neighbour: Annotated[
        bool, described("Keep a history per neighbour that messages were forwarded to: traces ask fewer brokers.")
    ] = False
    routing_sets: Annotated[
        bool,
        described(
            "Make the set of neighbours a part of the key of routing histories (only with `bloom`). The broker where a message "
            "was published keeps no routing history of it, so there this does nothing, and a trace asks all of its neighbours."
        ),
    ] = False
    process: Annotated[
        bool,
        described(
            "Track in a process of its own, so that tracking does not delay messages; it takes about 80 MB. Else in a thread of "
            "the broker."
        ),
    ] = True
    omit_one_in: Annotated[
        int, Meta(ge=0), described("For tests of audits only: leave out of the tracks one delivery in so many; 0 for none.")
    ] = 0

    def __post_init__(self) -> None:
        if self.bits % 8:
            raise ValueError(f"`tracking.bits` must be a multiple of 8, not {self.bits}")
        if self.capacity > self.bits:
            raise ValueError(f"`tracking.capacity` of {self.capacity} messages needs at least as many `bits`, not {self.bits}")

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
    """`[metrics]`: figures for Prometheus (needs the extra `metrics`)."""

    listen: Annotated[str, described("Where `/metrics` is served over HTTP, as `host:port`; empty for nowhere.")] = ""


class Overlay(_Section, frozen=True):
    """`[overlay]`: how this broker takes part in the network of brokers."""

    cache_bytes: Annotated[Bytes, described("Memory for recent messages of each stream, from which gaps are filled.")] = 64 << 20
    silence_s: Annotated[
        Seconds, described("How often brokers tell each other that nothing was published; clients hear of it every fifth time.")
    ] = 1.0
    retired: Annotated[
        tuple[BrokerId, ...],
        described("Brokers that are gone for good: the logs are not held for them, and durable names are not looked for there."),
    ] = ()
    home_query_s: Annotated[
        Seconds, described("How long to wait for the former home of a durable subscription that came here.")
    ] = 3.0
    newcomer_wait_s: Annotated[
        Seconds,
        described(
            "How long a broker with empty files and with neighbours waits, before it takes messages, for one of them to tell "
            "whether it existed before."
        ),
    ] = 3.0
    subscriber_grace_s: Annotated[
        Seconds,
        described("How long the logs are held for a subscriber without a name that may come back."),
    ] = 30.0


class NodeConfig(_Section, frozen=True):
    """The top of the file."""

    id: Annotated[BrokerId, described("The broker's number, unique in the overlay; it is part of every message id.")]
    data_dir: Annotated[str, Meta(min_length=1), described("Where the broker keeps its files; relative to the file's place.")]
    name: Annotated[str, Meta(max_length=255), described("What people call it. Default: `broker-` and its id.")] = ""
    listen: Annotated[Address, described("Where clients and brokers connect, as `host:port`.")] = f"127.0.0.1:{DEFAULT_PORT}"
    log_level: Annotated[
        typing.Literal["debug", "info", "warning", "error"], described("How much is written to standard error.")
    ] = "info"
    neighbours: Annotated[tuple[Neighbour, ...], described("See below.")] = ()
    limits: Annotated[Limits, described("See below.")] = Limits()
    links: Annotated[Links, described("See below.")] = Links()
    storage: Annotated[Storage, described("See below.")] = Storage()
    overlay: Annotated[Overlay, described("See below.")] = Overlay()
    tracking: Annotated[Tracking, described("See below.")] = Tracking()
    queues: Annotated[Queues, described("See below.")] = Queues()
    metrics: Annotated[Metrics, described("See below.")] = Metrics()

    @property
    def title(self) -> str:
        return self.name or f"broker-{self.id}"


class OverlayBroker(_Section, frozen=True):
    """`[[brokers]]`: one broker of the topology."""

    name: Annotated[str, Meta(min_length=1, max_length=255), described("Its name, unique in the file.")]
    id: Annotated[BrokerId, described("Its number, unique in the overlay.")]
    listen: Annotated[Address, described("Where it listens, as `host:port`.")]
    data_dir: Annotated[str, described("Where it keeps its files. Default: the file's `data_dir` and its name.")] = ""
    neighbours: Annotated[tuple[str, ...], described("Names of brokers it keeps a link to; one side is enough.")] = ()


class TopologyConfig(_Section, frozen=True):
    """A topology file: all brokers of one overlay on one machine (`postroad overlay FILE`)."""

    brokers: Annotated[tuple[OverlayBroker, ...], Meta(min_length=1), described("See below.")]
    data_dir: Annotated[str, described("Where brokers without a `data_dir` of their own keep theirs.")] = "data"
    log_level: Annotated[
        typing.Literal["debug", "info", "warning", "error"], described("How much each broker writes to its log.")
    ] = "info"
    limits: Annotated[Limits, described("For all brokers, as in a broker's file.")] = Limits()
    links: Annotated[Links, described("For all brokers, as in a broker's file.")] = Links()
    storage: Annotated[Storage, described("For all brokers, as in a broker's file.")] = Storage()
    overlay: Annotated[Overlay, described("For all brokers, as in a broker's file.")] = Overlay()
    tracking: Annotated[Tracking, described("For all brokers, as in a broker's file.")] = Tracking()


ConfigT = TypeVar("ConfigT", NodeConfig, TopologyConfig)


def load_config(path: Path) -> NodeConfig:
    """Read a broker's file; `data_dir` becomes absolute."""
    config = parse_config(_read(path), NodeConfig, str(path))
    return msgspec.structs.replace(config, data_dir=str(path.absolute().parent / config.data_dir))


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
        raise ConfigError(f"{origin}: this is not TOML: {error}") from error


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
            hint = f"; did you mean `{near[0]}`?" if near else f"; known here: {', '.join(known)}"
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
                neighbours=tuple(Neighbour(address=addresses[each]) for each in broker.neighbours),
                limits=topology.limits,
                links=topology.links,
                storage=topology.storage,
                overlay=topology.overlay,
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
        raise ConfigError(f"an address is written host:port, not {address!r}")
    return host.strip("[]"), int(port)
