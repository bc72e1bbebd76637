"""What the peer at the other end of a link may do. The driver finds out who it is; the machine enforces what follows.

Permissions are filters: what an identity publishes must match `publish`, and `subscribe` is joined with AND to every filter it
asks with, on the parsed tree, so no text can escape from it. The same rights hold on every path of a message to a client:
live, catching up, repaired, read by range, from a queue, or as a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from postroad.core.filters.filter import Filter
from postroad.core.filters.language.ast import And
from postroad.errors import InvalidValueError, PermissionDeniedError
from postroad.types import AttributeValue

EVERYTHING: Final = Filter("")
NAME_MAX: Final = 255


def owner_of(whole: str) -> str:
    """Return the identity in a name as the broker knows it (see `Rights.own_name`); empty for a name without one."""
    head, slash, _ = whole.partition("/")
    return head if slash else ""


@dataclass(frozen=True, slots=True)
class Grant:
    """One action on names: a single name, or with `*` at the end all names that begin like it."""

    action: str
    names: str

    def covers(self, action: str, name: str) -> bool:
        if self.action != action:
            return False
        return name.startswith(self.names[:-1]) if self.names.endswith("*") else name == self.names


@dataclass(frozen=True, slots=True)
class Rights:
    """`owner` is the name of the identity, empty where nobody has to prove who he is. None permits nothing."""

    owner: str = ""
    publish: Filter | None = EVERYTHING
    subscribe: Filter | None = EVERYTHING
    queues: tuple[Grant, ...] = (Grant("put", "*"), Grant("take", "*"), Grant("manage", "*"))
    topics: tuple[Grant, ...] = (Grant("put", "*"), Grant("take", "*"))
    trace: bool = True
    admin: bool = True

    def publishable(self) -> Filter:
        """Return what messages must match, or raise."""
        if self.publish is None:
            raise self.denied("publish")
        return self.publish

    def subscribable(self, wanted: Filter) -> Filter:
        """Return the part of a filter that this identity may see, or raise."""
        if self.subscribe is None:
            raise self.denied("subscribe")
        if self.subscribe is EVERYTHING or self.subscribe.covers(wanted):
            return wanted
        if wanted.covers(self.subscribe):
            return self.subscribe
        return Filter.from_condition(And((self.subscribe.condition, wanted.condition)))

    def filter_key(self, text: str) -> str:
        """Return what stands for the permitted part of a filter where filters are kept by their texts.

        No peer can send it as a text: a lone surrogate is not UTF-8.
        """
        return f"{self.subscribe}\udc00{text}"

    def may_see(self, attributes: Mapping[str, AttributeValue | None]) -> bool:
        """Tell whether a message with these attributes may reach this identity."""
        return self.subscribe is not None and (self.subscribe is EVERYTHING or self.subscribe.matches(attributes) is True)

    def own_name(self, name: str, *, least: int = 1) -> str:
        """Return the name under which a broker knows what this identity calls `name`.

        Everything with a name belongs to the identity that made it: `orders` of the identity `shop` is `shop/orders`. An
        administrator reaches that of others by its whole name, with a slash in front: `/shop/orders`.
        """
        if not self.owner:
            return name
        if name.startswith("/"):
            self.administer()
            whole = name[1:]
        else:
            whole = f"{self.owner}/{name}"
        if not least <= len(whole) <= NAME_MAX:
            raise InvalidValueError(f"a name has 1 to {NAME_MAX} characters together with that of its identity, {self.owner!r}")
        return whole

    def shown_name(self, whole: str) -> str | None:
        """Return what this identity calls something that the broker knows as `whole`; None if it may not know of it."""
        if not self.owner:
            return whole
        head, _, name = whole.partition("/")
        if head == self.owner and name:
            return name
        return f"/{whole}" if self.admin else None

    def use_queue(self, action: str, name: str) -> None:
        if not self.may_use_queue(action, name):
            raise self.denied(f"{action} in queue {name!r}")

    def may_use_queue(self, action: str, name: str) -> bool:
        return any(grant.covers(action, name) for grant in self.queues)

    def knows_queue(self, name: str) -> bool:
        """Tell whether this identity may do anything with a queue."""
        return any(grant.covers(grant.action, name) for grant in self.queues)

    def use_topic(self, action: str, name: str) -> None:
        if not any(grant.covers(action, name) for grant in self.topics):
            raise self.denied(f"{action} in topic {name!r}")

    def traceable(self) -> None:
        if not self.trace:
            raise self.denied("trace messages")

    def administer(self) -> None:
        if not self.admin:
            raise self.denied("administer this broker")

    def denied(self, action: str) -> PermissionDeniedError:
        return PermissionDeniedError(self.owner, action)


OPEN: Final = Rights()
"""Of everybody who reaches a port without identities: all permissions."""
NOTHING: Final = Rights("", None, None, (), (), trace=False, admin=False)
