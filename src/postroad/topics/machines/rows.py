"""What the machines store: one frozen row order per change. SQLite and the in-memory twin carry out the same orders.

Names, ids and addresses are bytes in columns, never parts of paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SaveTopic:
    """`target` and `target_address` are set once a move is committed: from then on the copy must not serve again."""

    topic: bytes
    copy: bytes
    lineage: tuple[bytes, ...]
    target: bytes = b""
    target_address: bytes = b""


@dataclass(frozen=True, slots=True)
class DropTopic:
    """The topic with all its rows."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class SavePublisher:
    topic: bytes
    publisher: bytes
    counter: int
    digest: int
    stamp: int


@dataclass(frozen=True, slots=True)
class DropPublisher:
    topic: bytes
    publisher: bytes


@dataclass(frozen=True, slots=True)
class SaveSubscriber:
    topic: bytes
    client: bytes
    subscribed: bool
    operation: int
    stamp: int
    position: int
    reads: int


@dataclass(frozen=True, slots=True)
class DropSubscriber:
    topic: bytes
    client: bytes


@dataclass(frozen=True, slots=True)
class SetLate:
    """Replace the late list, in delivery order."""

    topic: bytes
    client: bytes
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropLate:
    topic: bytes
    client: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class AddMessage:
    topic: bytes
    sequence: int
    id: bytes
    stamp: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropMessages:
    topic: bytes
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """Keep the bodies of a part until the transfer is complete."""

    topic: bytes
    copy: bytes
    messages: tuple[tuple[bytes, bytes], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TakeStaged:
    """Move one staged body into the log."""

    topic: bytes
    copy: bytes
    id: bytes
    sequence: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Unstage:
    topic: bytes
    copy: bytes


@dataclass(frozen=True, slots=True)
class SaveMoved:
    """This server gave the topic to `target`; `copies` is the lineage that went with it."""

    topic: bytes
    target: bytes
    target_address: bytes
    copies: tuple[bytes, ...]
    stamp: int


@dataclass(frozen=True, slots=True)
class DropMoved:
    topic: bytes


@dataclass(frozen=True, slots=True)
class SetMark:
    """A named number: `clock`, `moved` (server), `stamp` (client), `listed` (proxy)."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class SaveServer:
    """A server that may hold copies. A proxy may give it topics; a server reminds proxies of it."""

    server: bytes
    address: bytes


@dataclass(frozen=True, slots=True)
class DropServer:
    server: bytes


@dataclass(frozen=True, slots=True)
class SaveRoute:
    """Proxy: the topic's server."""

    topic: bytes
    server: bytes


@dataclass(frozen=True, slots=True)
class SaveMemory:
    """Client: what it must not forget about a topic."""

    topic: bytes
    last_message_id: bytes
    counter: int
    operation: int
    home: bytes


@dataclass(frozen=True, slots=True)
class SaveReceived:
    """Client: the last message received, with its content."""

    topic: bytes
    id: bytes
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaveUnfinished:
    """Client: the put that may or may not have happened."""

    topic: bytes
    counter: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropUnfinished:
    topic: bytes


ServerRow = (
    SaveTopic | DropTopic | SavePublisher | DropPublisher | SaveSubscriber | DropSubscriber | SetLate | DropLate | AddMessage
    | DropMessages | Stage | TakeStaged | Unstage | SaveMoved | DropMoved | SetMark | SaveServer | DropServer
)  # fmt: skip
ProxyRow = SaveServer | DropServer | SaveRoute | SetMark
ClientRow = SaveMemory | SaveReceived | SaveUnfinished | DropUnfinished | SetMark
Row = ServerRow | ProxyRow | ClientRow


@dataclass(frozen=True, slots=True)
class StoredMessage:
    topic: bytes
    sequence: int
    id: bytes
    stamp: int
    size: int


@dataclass(frozen=True, slots=True)
class ServerState:
    """Everything a server machine starts from; bodies stay on disk."""

    topics: Sequence[SaveTopic] = ()
    publishers: Sequence[SavePublisher] = ()
    subscribers: Sequence[SaveSubscriber] = ()
    late: Sequence[SetLate] = ()
    messages: Sequence[StoredMessage] = ()
    moved: Sequence[SaveMoved] = ()
    marks: dict[str, int] = field(default_factory=dict)
    servers: Sequence[SaveServer] = ()


@dataclass(frozen=True, slots=True)
class ProxyState:
    servers: Sequence[SaveServer] = ()
    routes: Sequence[SaveRoute] = ()
    marks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientState:
    memories: Sequence[SaveMemory] = ()
    unfinished: Sequence[SaveUnfinished] = ()
    marks: dict[str, int] = field(default_factory=dict)
