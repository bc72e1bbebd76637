"""A guarded broker for tests: certificates of a throw-away authority, a file of identities, and their tokens."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import postroad
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, Security
from postroad.runtime.services import Service
from postroad.security.authority import create_authority, issue
from postroad.security.identities import Identity, create_identity
from postroad.security.tls import broker_uri, client_uri
from postroad.wire.codec import decode
from postroad.wire.framing import FrameDecoder


@dataclass
class Guard:
    """The files of one overlay's authority, and the tokens of its clients by name."""

    directory: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        create_authority(self.directory)

    @property
    def authority(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def identities(self) -> Path:
        return self.directory / "identities.toml"

    def identity(self, name: str, **permissions: object) -> str:
        """Create an identity and return its token."""
        token = create_identity(self.identities, Identity(name=name, **permissions))  # type: ignore[arg-type]
        assert token is not None
        self.tokens[name] = token
        return token

    def certificate(self, uri: str, name: str, **options: object) -> tuple[Path, Path]:
        """Issue a certificate for a URI; return its file and that of its key."""
        issued = issue(self.directory, self.directory, name, uri, **options)  # type: ignore[arg-type]
        return issued.certificate, issued.key

    def security(self, broker: int = 1) -> Security:
        certificate, key = self.certificate(broker_uri(broker), f"broker-{broker}")
        identities = str(self.identities) if self.identities.exists() else ""
        return Security(certificate=str(certificate), key=str(key), authority=str(self.authority), identities=identities)

    def client(self, name: str) -> postroad.ClientTls:
        """Return what a client with a certificate of this name connects with."""
        return postroad.ClientTls(self.authority, *self.certificate(client_uri(name), f"client-{name}"))

    def context(self) -> ssl.SSLContext:
        """Return the TLS of a client without a certificate."""
        return postroad.ClientTls(self.authority).context()

    def connect(self, node: BrokerServer, name: str, **options: object) -> postroad.Client:
        return postroad.connect(node.url, tls=self.authority, token=self.tokens[name], **options)  # type: ignore[arg-type]


def guarded_node(guard: Guard, directory: Path, *, services: tuple[Service, ...] = (), **changes: object) -> BrokerServer:
    config = NodeConfig(
        id=1,
        data_dir=str(directory / "data"),
        listen="127.0.0.1:0",
        log_level="error",
        security=guard.security(),
        **changes,  # type: ignore[arg-type]  # a test's own choice of keys
    )
    return BrokerServer(config, services)


async def exchange(port: int, context: ssl.SSLContext | None, *sends: bytes) -> list[msgspec.Struct]:
    """Send raw frames and return the packets that came until the broker closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    decoder, packets = FrameDecoder(), []
    try:
        for each in sends:
            writer.write(each)
        async with asyncio.timeout(5):
            while data := await reader.read(1 << 16):
                packets += [decode(frame)[0] for frame in decoder.feed(data)]
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.transport.abort()
    return packets
