"""CURVE keys of the topics service: who may connect, and what each may ask.

Servers and proxies share one pair of keys, the *service key*. Each client has its own pair. The public key stands in
the file of identities (`topics_key`), beside what the client may do with topics. ZeroMQ encrypts with these keys, and
tells for each message by whose key it came. A client sends under its identity's name or below it (`shop`,
`shop/4711`), so nobody gets or puts under the id of another. What servers and proxies say to each other (PERIODIC,
MERGE, TRANSFER), and reports, are refused from clients.

The file of identities is read again when it has changed: an identity that is revoked is refused from its next message
on.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from postroad.core.protocol.rights import Rights
from postroad.errors import CertificateError, ExposedError, PermissionDeniedError, PostroadError, TopicsProtocolError
from postroad.security.gate import host_of, is_loopback
from postroad.security.identities import FILE_MODE, Identity, create_identity, read_identities
from postroad.topics.machines import messages as m
from postroad.topics.sockets import import_zmq

log = logging.getLogger("postroad.topics")

KEY: Final = "POSTROAD_TOPICS_KEY"
SERVICE_FILE: Final = "service.key"
LOOK_S: Final = 1.0
ACTIONS: Final = {b"SUBSCRIBE": "take", b"UNSUBSCRIBE": "take", b"GET": "take", b"PUT": "put"}

Z85 = Annotated[str, Meta(min_length=40, max_length=40)]


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pair of keys, and the public key of the service."""

    public: Z85
    secret: Z85
    service: Z85

    def __repr__(self) -> str:
        return f"KeyFile({self.public!r})"  # without the secret

    @property
    def is_service(self) -> bool:
        return self.public == self.service

    def dial(self, socket: Any) -> None:
        """Let a socket that connects prove who it is, and check that it reaches the service."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_serverkey = self.service.encode()

    def listen(self, socket: Any) -> None:
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_server = True


def read_key(path: Path) -> KeyFile:
    try:
        return msgspec.toml.decode(path.read_text(encoding="utf-8"), type=KeyFile)
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError(f"the key {path} cannot be read: {type(error).__name__}") from error
    except msgspec.DecodeError as error:
        raise CertificateError(f"{path} is no key of the topics service; `postroad topics keys` makes one") from error


def key_of_environment() -> KeyFile | None:
    """Return the key that `POSTROAD_TOPICS_KEY` names; None without it."""
    path = os.environ.get(KEY, "")
    return read_key(Path(path)) if path else None


def create_service_key(directory: Path) -> Path:
    """Make the key of a service; refuse to replace one, since no client would reach the service with its old one."""
    public, secret = _pair()
    return _write(directory / SERVICE_FILE, KeyFile(public, secret, public))


def create_client_key(service: Path, identities: Path, name: str, topics: tuple[str, ...], out: Path) -> Path:
    """Make the key of a new identity and write its public half into the file of identities."""
    public, secret = _pair()
    create_identity(identities, Identity(name=name, topics=topics, topics_key=public), with_token=False)
    return _write(out, KeyFile(public, secret, read_key(service).service))


def _pair() -> tuple[str, str]:
    public, secret = import_zmq().curve_keypair()
    return public.decode("ascii"), secret.decode("ascii")


def _write(path: Path, key: KeyFile) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
            file.write(msgspec.toml.encode(key))
    except OSError as error:
        raise CertificateError(f"cannot write {path}: {error.strerror or error}") from error
    return path


@dataclass
class Door:
    """Whom a server or proxy lets in: its key and the file of identities; both None where everybody may do everything."""

    key: KeyFile | None = None
    identities: Path | None = None
    refused: int = 0
    _rights: dict[str, Rights] = field(default_factory=dict)  # by public key
    _seen: tuple[int, ...] = ()
    _looked_at: float = float("-inf")

    def __post_init__(self) -> None:
        if self.key is not None and not self.key.is_service:
            raise CertificateError("servers and proxies need the key of the service, and this is the key of a client")
        if self.identities is not None and self.key is None:
            raise CertificateError("identities need the key of the service; `postroad topics keys service` makes one")
        if self.identities is not None:
            self._rights = _rights_in(self.identities)

    def check_exposure(self, address: str, *, insecure: bool) -> None:
        """Refuse an address that others can reach, unless this process is guarded or the operator wants it open."""
        if self.key is None and not insecure and not is_loopback(host_of(address)):
            raise ExposedError(
                f"the topics service would listen on {address}, where others can reach it, without keys: give --key and "
                "--identities (docs/howto/secure.md), listen on 127.0.0.1, or give --insecure"
            )

    def knows(self, key: str) -> bool:
        """Tell whether a peer with this public key may connect."""
        self._look()
        return self.key is None or key == self.key.service or key in self._rights

    def check(self, key: str, payload: bytes) -> None:
        """Refuse what the holder of a key may not ask. A message that cannot be read is left to the machine."""
        if self.key is None or key == self.key.service:
            return
        self._look()
        rights = self._rights.get(key)
        try:
            header = m.parse_header(payload)
            sender = m.decode_name(header.fields[0]).decode("utf-8", "surrogateescape")
            topic = m.decode_name(header.fields[1]).decode("utf-8", "surrogateescape") if header.name in ACTIONS else ""
        except TopicsProtocolError:
            return
        try:
            if rights is None:
                raise PermissionDeniedError("", "use the topics service")  # noqa: TRY301
            action = ACTIONS.get(header.name)
            if action is None:
                raise rights.denied(f"send {header.name.decode()}")
            if sender != rights.owner and not sender.startswith(f"{rights.owner}/"):
                raise rights.denied(f"act as {sender!r}")
            rights.use_topic(action, topic)
        except PermissionDeniedError:
            self.refused += 1
            raise

    def _look(self) -> None:
        """Read the identities again if their file has changed; a file that cannot be read changes nothing."""
        if self.identities is None or time.monotonic() < self._looked_at + LOOK_S:
            return
        self._looked_at = time.monotonic()
        try:
            found = self.identities.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._seen = seen
                self._rights = _rights_in(self.identities)
        except (OSError, PostroadError) as error:
            log.error("the identities stay as they are: %s", error)  # noqa: TRY400  # no bug of ours


def _rights_in(path: Path) -> dict[str, Rights]:
    identities = read_identities(path)
    return {each.topics_key: identities.rights_of(each.name) for each in identities.by_name.values() if each.topics_key}


class Handshakes:
    """Answers ZeroMQ's question whether a key may connect (ZAP), in a thread of its own."""

    def __init__(self, context: Any, door: Door) -> None:
        from zmq.auth.thread import ThreadAuthenticator  # noqa: PLC0415  # an extra

        self._door = door
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=self)

    def callback(self, _domain: str, key: bytes) -> bool:
        return self._door.knows(key.decode("ascii"))

    def stop(self) -> None:
        self._authenticator.stop()
