"""What every connection uses: who is there and which protocol both speak (0x0100-0x010f), and Ping, Pong and Error.

The last three have the ids that the Telesto report gives them (0x01, 0x02, 0x05). Of its Error only the id is left: ours
carries a stable code and whether a retry may help, not just a type.

Version rule: Hello states the oldest and the newest version its sender speaks; the receiver answers Welcome with the newest
version both speak, or Error 307 and closes. Within a version, abilities that one side may lack are `features`: plain names;
each side uses only what both named. `frame_bytes_max` is the largest frame its sender accepts, at least 64 KiB: a smaller value
is refused with Error 351. Until it has got Welcome a peer sends no frame above 64 KiB.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Self, TypeAlias

from msgspec import Meta

from postroad.errors import PostroadError, ProtocolVersionError
from postroad.wire.framing import FRAME_BYTES_MAX
from postroad.wire.registry import U16, U32, U63, Direction, Name, Packet, Text, one_way, request, response

PROTOCOL_VERSION: Final = 1
"""The newest version this code speaks."""
PROTOCOL_VERSION_OLDEST: Final = 1
"""The oldest version this code speaks."""

Features: TypeAlias = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=64)]

TEXT_MAX: Final = 2000
"""Characters of an error's text."""


class Role(enum.IntEnum):
    """What a peer is."""

    CLIENT = 1
    BROKER = 2


@request(0x0101, Direction.CLIENT_TO_BROKER | Direction.BROKER_TO_BROKER, needs_identification=False)
class Hello(Packet, frozen=True):
    """Open a session: say who you are and what you speak. `peer_id` is the sender's id, or 0 to be given one."""

    version_oldest: U16
    version_newest: U16
    role: Role
    peer_id: U32
    name: Name
    software: Text = ""
    features: Features = ()
    frame_bytes_max: U32 = FRAME_BYTES_MAX
    incarnation: U63 = 0  # of a broker: grows with each start
    cost: U32 = 0  # of the link, as the broker that dials has it configured
    token: Annotated[str, Meta(max_length=128)] = ""  # of a client; only over TLS

    def __repr__(self) -> str:
        return f"Hello({self.role.name}, {self.peer_id}, {self.name!r})"  # without the token


@response(0x0102, Direction.BROKER_TO_CLIENT | Direction.BROKER_TO_BROKER, needs_identification=False)
class Welcome(Packet, frozen=True):
    """The session is open, in this version. `peer_id` is the id by which the broker knows the sender of Hello."""

    version: U16
    broker_id: U32
    peer_id: U32
    name: Name
    software: Text = ""
    features: Features = ()
    frame_bytes_max: U32 = FRAME_BYTES_MAX
    incarnation: U63 = 0


@one_way(0x0103, Direction.ANY, needs_identification=False)
class Goodbye(Packet, frozen=True):
    """The sender closes the session in good order; nothing follows."""

    reason: Text = ""


@request(0x01, Direction.ANY, needs_identification=False)
class Ping(Packet, frozen=True):
    """Ask whether the other side is alive."""


@response(0x02, Direction.ANY, needs_identification=False)
class Pong(Packet, frozen=True):
    """Say so."""


@response(0x05, Direction.BROKER_TO_CLIENT | Direction.BROKER_TO_BROKER, needs_identification=False)
class Error(Packet, frozen=True):
    """A request failed; the code is one of the errors page. With packet id 0: the connection failed and will be closed."""

    code: U16
    text: Text
    retryable: bool

    @classmethod
    def of(cls, error: PostroadError) -> Self:
        """Describe an exception to the peer."""
        text = str(error).encode(errors="replace").decode()
        return cls(error.code, text[:TEXT_MAX], error.retryable)


def agree_version(hello: Hello) -> int:
    """Return the newest version both sides speak, or raise `ProtocolVersionError`."""
    version = min(hello.version_newest, PROTOCOL_VERSION)
    if version < max(hello.version_oldest, PROTOCOL_VERSION_OLDEST):
        ours, theirs = (PROTOCOL_VERSION_OLDEST, PROTOCOL_VERSION), (hello.version_oldest, hello.version_newest)
        raise ProtocolVersionError(ours, theirs)
    return version
