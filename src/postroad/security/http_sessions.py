"""Sessions of people who use a broker by HTTP: a token opens one, a random cookie continues it.

A page never keeps the token. Nobody guesses one (256 random bits), so failed logins are not limited: that would only let a
stranger lock others out. A request that changes something also carries `csrf`, which only our own pages know. A session ends
after `IDLE_S` without a request, after `LIFE_S` at the latest, and as soon as its identity does. What its holder may do is asked
for each request (`rights`), so a change of permissions counts at once.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from postroad.core.protocol.rights import OPEN, Rights
from postroad.errors import TokenError, UnauthenticatedError
from postroad.security.gate import Admitted, Gate
from postroad.security.identities import Identity
from postroad.security.tls import PeerName
from postroad.security.tokens import digest_of

COOKIE: Final = "postroad_session"
COOKIE_ATTRIBUTES: Final = "HttpOnly; SameSite=Strict; Path=/"  # and `Secure`, where the connection is encrypted
IDLE_S: Final = 1800.0
LIFE_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
SESSIONS_OF_IDENTITY_MAX: Final = 100


@dataclass(slots=True)
class HttpSession:
    """One login. `csrf` goes into pages and forms, never into a cookie."""

    rights: Rights
    identity: Identity | None
    csrf: str
    began: float
    used: float


class HttpSessions:
    """The sessions of one broker's pages; `login`, then `rights` for every request, then `logout`.

    With `key`, pages of an open broker need that key in place of a token: other users of the machine, and pages of other sites in
    a browser there, reach loopback ports, too.
    """

    def __init__(self, gate: Gate, clock: Callable[[], float] = monotonic, *, key: str = "") -> None:
        self._gate: Final = gate
        self._clock: Final = clock
        self._key: Final = key
        self._sessions: Final[dict[str, HttpSession]] = {}  # by the hash of the cookie

    @property
    def needed(self) -> bool:
        """Tell whether anybody has to log in: not where the broker is open."""
        return self._gate.guarded or bool(self._key)

    def login(self, token: str, *, encrypted: bool) -> tuple[str, HttpSession]:
        """Return a new cookie and its session; raise what is wrong with the token."""
        now = self._clock()
        admitted = self._admit(token, encrypted=encrypted)
        self._make_room(now, admitted.identity)
        cookie = secrets.token_urlsafe(32)
        session = HttpSession(admitted.rights, admitted.identity, secrets.token_urlsafe(32), now, now)
        self._sessions[digest_of(cookie)] = session
        return cookie, session

    def _admit(self, token: str, *, encrypted: bool) -> Admitted:
        if self._gate.guarded or not self._key:
            return self._gate.admit_client(PeerName(), token, encrypted=encrypted)
        if not hmac.compare_digest(token.encode(), self._key.encode()):
            raise TokenError
        return Admitted(OPEN)

    def session(self, cookie: str | None) -> HttpSession:
        """Return the session of a cookie, or raise."""
        now = self._clock()
        found = self._sessions.get(digest_of(cookie)) if cookie else None
        if found is None or now - found.used > IDLE_S or now - found.began > LIFE_S or not self._holds(found):
            if found is not None and cookie:
                self.logout(cookie)
            raise UnauthenticatedError("log in first")
        found.used = now
        if found.identity is not None:
            found.rights = self._gate.identities.rights_of(found.identity.name)
        return found

    def holds(self, cookie: str | None) -> bool:
        """Tell whether a session goes on, for an answer that lasts; to watch is not counted as a request."""
        if not self.needed:
            return True
        found = self._sessions.get(digest_of(cookie)) if cookie else None
        return found is not None and self._clock() - found.began <= LIFE_S and self._holds(found)

    def rights(self, cookie: str | None) -> Rights:
        """Return what the sender of a request may do; everything where the broker is open."""
        return self.session(cookie).rights if self.needed else OPEN

    def check_change(self, cookie: str | None, csrf: str | None) -> Rights:
        """Do as `rights`, for a request that changes something: its `csrf` must be that of the session."""
        if not self.needed:
            return OPEN
        session = self.session(cookie)
        if not hmac.compare_digest(session.csrf.encode(), (csrf or "").encode()):
            raise UnauthenticatedError("the request does not come from a page of this session; reload the page")
        return session.rights

    def bearer(self, header: str | None, *, encrypted: bool) -> Rights:
        """Return what a program may do that sends `Authorization: Bearer TOKEN` with each request."""
        if not self.needed:
            return OPEN
        kind, _, token = (header or "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        return self._gate.admit_client(PeerName(), token, encrypted=encrypted).rights

    def logout(self, cookie: str) -> None:
        self._sessions.pop(digest_of(cookie), None)

    def _holds(self, session: HttpSession) -> bool:
        return session.identity is None or self._gate.still_holds(session.identity)

    def _make_room(self, now: float, identity: Identity | None) -> None:
        """Forget sessions that have ended, and the one that was unused for longest if there are still too many.

        An identity that logs in again and again ends its own sessions, not those of others.
        """
        for key, each in list(self._sessions.items()):
            if now - each.used > IDLE_S or now - each.began > LIFE_S or not self._holds(each):
                del self._sessions[key]
        own = [key for key, each in self._sessions.items() if identity is not None and each.identity == identity]
        if len(own) >= SESSIONS_OF_IDENTITY_MAX:
            del self._sessions[min(own, key=lambda key: self._sessions[key].used)]
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].used)]
