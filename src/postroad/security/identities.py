"""Identities: names with permissions, in one TOML file that the operator owns and `postroad token` edits.

```toml
[[identity]]
name = "shop"
publish = "region = 'EU'"           # true: anything; left out: nothing
subscribe = true
queues = ["put:orders", "take:orders.*"]
expires = 2027-01-01T00:00:00Z
token_sha256 = "9f86d0..."          # left out: only with a certificate
```

A client is recognised by its token, or by a certificate with the URI `postroad://client/NAME`. A broker
reads the file again when it has changed, and closes the connections of identities that are gone. If the
new file cannot be read, the permissions of the last good one stay in force.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from postroad.core.filters.filter import Filter
from postroad.core.protocol.rights import EVERYTHING, Grant, Rights
from postroad.errors import FilterError, IdentitiesError, TokenError
from postroad.security.tokens import CHARACTERS_MAX, digest_of, is_token_of, make_token

IDENTITIES_MAX: Final = 100_000
FILE_MODE: Final = 0o600
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$"
QUEUE_ACTIONS: Final = ("put", "take", "manage")
TOPIC_ACTIONS: Final = ("put", "take")
_GRANT: Final = re.compile(r"(?P<action>[a-z]+):(?P<names>[^*]{1,255}\*?|\*)", re.DOTALL)

Scope = Literal["publish", "subscribe", "queues", "topics", "trace", "admin"]
FilterOrAll = bool | str


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One name and what it may do."""

    name: Annotated[str, Meta(pattern=NAME)]
    publish: FilterOrAll = False
    subscribe: FilterOrAll = False
    queues: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    trace: bool = False
    admin: bool = False
    expires: datetime | None = None
    token_sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    topics_key: Annotated[str, Meta(pattern=r"^([!-~]{40})?$")] = ""  # the public key (Z85) of a client of the topics service

    def rights(self) -> Rights:
        """Return its permissions; raise `IdentitiesError` where the file says something that is none."""
        return Rights(
            self.name,
            self._filter("publish", self.publish),
            self._filter("subscribe", self.subscribe),
            self._grants("queues", self.queues, QUEUE_ACTIONS),
            self._grants("topics", self.topics, TOPIC_ACTIONS),
            trace=self.trace,
            admin=self.admin,
        )

    def expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= _utc(self.expires)

    def _filter(self, scope: Scope, value: FilterOrAll) -> Filter | None:
        if isinstance(value, bool):
            return EVERYTHING if value else None
        try:
            return Filter(value)
        except FilterError as error:
            raise IdentitiesError(f"identity {self.name!r}: `{scope}` is not a filter: {error}") from error

    def _grants(self, scope: Scope, values: Iterable[str], actions: tuple[str, ...]) -> tuple[Grant, ...]:
        grants = []
        for value in values:
            parts = _GRANT.fullmatch(value)
            if parts is None or parts["action"] not in actions:
                known = ", ".join(f"`{action}:NAME`" for action in actions)
                raise IdentitiesError(f"identity {self.name!r}: `{scope}` has {value!r}; known: {known}; NAME may end in *")
            grants.append(Grant(parts["action"], parts["names"]))
        return tuple(grants)


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    identity: Annotated[tuple[Identity, ...], Meta(max_length=IDENTITIES_MAX)] = ()


class Identities:
    """The identities of one file, checked. Immutable: a changed file is read into a new one."""

    def __init__(self, identities: Iterable[Identity] = ()) -> None:
        self.by_name: Final[dict[str, Identity]] = {}
        self._rights: Final[dict[str, Rights]] = {}
        self._by_digest: Final[dict[str, Identity]] = {}
        for each in identities:
            if each.name in self.by_name:
                raise IdentitiesError(f"two identities have the name {each.name!r}")
            if each.token_sha256 and each.token_sha256 in self._by_digest:
                raise IdentitiesError(f"identities {each.name!r} and {self._by_digest[each.token_sha256].name!r} share a token")
            self.by_name[each.name] = each
            self._rights[each.name] = each.rights()
            if each.token_sha256:
                self._by_digest[each.token_sha256] = each

    def __len__(self) -> int:
        return len(self.by_name)

    def of_token(self, token: str, now: datetime) -> Identity:
        """Return whose token it is, or raise the same error for whatever is wrong with it."""
        found = self._by_digest.get(digest_of(token)) if len(token) <= CHARACTERS_MAX else None
        # The look-up is by the hash, so its timing tells nothing of the token; the comparison is constant in time all the same.
        if found is None or not is_token_of(token, found.token_sha256) or found.expired(now):
            raise TokenError
        return found

    def of_name(self, name: str, now: datetime) -> Identity | None:
        """Return the identity a certificate names, if there is one that holds."""
        found = self.by_name.get(name)
        return None if found is None or found.expired(now) else found

    def rights_of(self, name: str) -> Rights:
        return self._rights[name]


def read_identities(path: Path) -> Identities:
    try:
        text = path.read_text(encoding="utf-8")
        return Identities(msgspec.toml.decode(text, type=_Document).identity)
    except FileNotFoundError as error:
        raise IdentitiesError(f"there is no file {path}; `postroad token create` makes it") from error
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise IdentitiesError(f"{path}: {error}") from error


def create_identity(path: Path, identity: Identity, *, with_token: bool = True) -> str | None:
    """Add an identity to a file; return its new token."""
    token = make_token() if with_token else None
    added = msgspec.structs.replace(identity, token_sha256="" if token is None else digest_of(token))
    before = _list_identities(path)
    if any(each.name == identity.name for each in before):
        raise IdentitiesError(f"{path} has an identity {identity.name!r} already; revoke it first")
    _write(path, [*before, added])
    return token


def revoke_identity(path: Path, name: str) -> Identity:
    """Take an identity out of a file."""
    before = _list_identities(path)
    gone = next((each for each in before if each.name == name), None)
    if gone is None:
        raise IdentitiesError(f"{path} has no identity {name!r}")
    _write(path, [each for each in before if each.name != name])
    return gone


def _list_identities(path: Path) -> list[Identity]:
    return list(read_identities(path).by_name.values()) if path.exists() else []


def _write(path: Path, identities: list[Identity]) -> None:
    """Replace the file as a whole, readable by its owner only: a broker that reads it meets the old one or the new one."""
    document = msgspec.toml.encode(_Document(tuple(identities)))
    Identities(identities)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # made with mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(FILE_MODE)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise IdentitiesError(f"{path} cannot be written: {error.strerror or error}") from error


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
