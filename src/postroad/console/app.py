"""The routes of the console: pages and files for everybody, figures and actions for sessions.

Open without a session are the page itself, its files, `/healthz`, `/readyz` and the way in (`POST /api/session`); every
other route answers 401. Each request must name this console in `Host`; one that changes something must come from the
console's own pages.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import heapq
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from postroad.client.connection import Client
from postroad.console.access import COOKIE
from postroad.console.action_log import ActionLog
from postroad.console.admission import explain_admission
from postroad.console.messages import explain_others, show_explanation, show_whole
from postroad.console.picture import Picture
from postroad.console.queue_actions import QueueActions
from postroad.console.shared import SharedAnswer
from postroad.console.tail import tail
from postroad.core.filters.filter import Filter
from postroad.errors import (
    FilterError,
    FilterSyntaxError,
    InvalidValueError,
    OverlayError,
    PermissionDeniedError,
    PostroadError,
    TokenError,
    UnauthenticatedError,
    UnknownQueueError,
)
from postroad.security.http_sessions import LIFE_S, HttpSession, HttpSessions
from postroad.types import MessageId

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as missing:  # pragma: no cover - depends on what is installed
    raise OverlayError("the console needs starlette and uvicorn: pip install 'postroad[console]'") from missing

STATIC: Final = Path(__file__).parent / "static"
TEXTS: Final = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
KINDS: Final = {**TEXTS, ".woff2": "font/woff2"}
PAGES: Final = ("", "message", "tail", "subscriptions", "publishers", "queues", "topics", "admission", "books")
BODY_BYTES_MAX: Final = 1 << 20
STREAMS_MAX: Final = 32  # pages that are sent live data
PAGE_ROWS: Final = 100
DURABLES_SHOWN_MAX: Final = 500
SAFE_METHODS: Final = ("GET", "HEAD")
_JSON = JSONResponse


@dataclass(slots=True)
class ConsoleParts:
    """What the routes work with. `queues` is None where the broker has none; `more` are further pages' data by name."""

    client: Client
    picture: Picture
    sessions: HttpSessions
    queues: QueueActions | None
    actions: ActionLog
    hosts: frozenset[str]
    is_ready: Callable[[], bool]
    more: dict[str, Callable[[], Awaitable[Any]]]


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the pages. `packed` is its gzip, where that is worth something."""

    content: bytes
    packed: bytes | None
    kind: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> _File:
        content = path.read_bytes()
        packed = gzip.compress(content, mtime=0) if path.suffix in TEXTS else None
        return cls(content, packed, KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


class Console:
    """The routes, over the parts of one console."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        self._streams = 0
        self._shared_durables = SharedAnswer(self._read_durables)
        self._index = (STATIC / "index.html").read_text(encoding="utf-8")
        self._files = {
            path.relative_to(STATIC).as_posix(): _File.read(path) for path in sorted(STATIC.rglob("*")) if path.suffix in KINDS
        }

    def app(self) -> ASGIApp:
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/static/{path:path}", self._file),
            Route("/api/session", self._enter, methods=["POST"]),
            Route("/api/session", self._guard(self._who), methods=["GET"]),
            Route("/api/session", self._guard(self._leave), methods=["DELETE"]),
            Route("/api/events", self._guard(self._events)),
            Route("/api/brokers/{broker:int}", self._guard(self._broker)),
            Route("/api/messages/{id}", self._guard(self._message)),
            Route("/api/messages/{id}/explain", self._guard(self._explain)),
            Route("/api/messages/{id}/others", self._guard(self._others)),
            Route("/api/filter", self._guard(self._filter)),
            Route("/api/tail", self._guard(self._tail)),
            Route("/api/durables", self._guard(self._durables)),
            Route("/api/queues", self._guard(self._queues)),
            Route("/api/queues/{name}/messages", self._guard(self._peek)),
            Route("/api/queues/{name}/{action}", self._guard(self._act_on_queue), methods=["POST"]),
            Route("/api/admission", self._guard(self._explain_admission)),
            Route("/api/more/{page}", self._guard(self._more)),
            *(Route(f"/{page}", self._page) for page in PAGES),
            Route("/message/{id}", self._page),
        ]
        errors = {404: self._not_found, 405: self._not_found, 500: _make_failure}
        return _Checks(Starlette(routes=routes, exception_handlers=errors), self._parts.hosts, self._policy())

    def _policy(self) -> str:
        """Allow the console's own files only; the one inline script is the import map, named by its hash."""
        begin = self._index.index('<script type="importmap">') + len('<script type="importmap">')
        text = self._index[begin : self._index.index("</script>", begin)]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return (
            f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def _guard(self, handle: Callable[[Request, HttpSession], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
        """Let only sessions in, and turn errors into answers."""

        async def guarded(request: Request) -> Response:
            try:
                return await handle(request, self._parts.sessions.session(request.cookies.get(COOKIE)))
            except PostroadError as error:
                return _refusal(error)

        return guarded

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        """Tell only sessions that there is nothing here."""
        try:
            self._parts.sessions.session(request.cookies.get(COOKIE))
        except UnauthenticatedError as error:
            return _refusal(error)
        return _JSON({"error": "there is nothing here"}, 404)

    # --- open to everybody ---

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        ready = self._parts.is_ready()
        return PlainTextResponse("ready\n" if ready else "not connected to the broker\n", 200 if ready else 503)

    async def _page(self, _: Request) -> Response:
        return Response(self._index, media_type="text/html")

    async def _file(self, request: Request) -> Response:
        file = self._files.get(request.path_params["path"])
        if file is None:
            return _JSON({"error": "there is no such file"}, 404)
        headers = {"Cache-Control": "no-cache", "ETag": file.tag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, media_type=file.kind, headers={**headers, "Content-Encoding": "gzip"})
        return Response(file.content, media_type=file.kind, headers=headers)

    async def _enter(self, request: Request) -> Response:
        try:
            body = await _body(request)
            cookie, _ = self._parts.sessions.login(str(body.get("key", "")), encrypted=True)  # it comes over loopback
        except PostroadError as error:
            return _refusal(error)
        response = _JSON({"entered": True})
        response.set_cookie(COOKIE, cookie, max_age=int(LIFE_S), path="/", secure=True, httponly=True, samesite="strict")
        return response

    # --- sessions ---

    async def _who(self, _: Request, session: HttpSession) -> Response:
        rights = session.rights
        may = {"trace": rights.trace, "admin": rights.admin, "subscribe": rights.subscribe is not None}
        return _JSON({"identity": rights.owner, "home": self._parts.picture.home, "may": may})

    async def _leave(self, request: Request, _: HttpSession) -> Response:
        self._parts.sessions.logout(request.cookies.get(COOKIE, ""))
        response = _JSON({"entered": False})
        response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
        return response

    # --- the overlay ---

    async def _events(self, request: Request, session: HttpSession) -> Response:
        """Send pictures to administrators; others learn as little as `client.status()` tells them."""

        async def pictures() -> AsyncIterator[bytes]:
            watched = self._parts.picture.watch() if session.rights.admin else self._parts.picture.watch_nothing()
            async for encoded in watched:
                yield b"data: " + encoded + b"\n\n"

        return self._stream(request, pictures())

    async def _broker(self, request: Request, session: HttpSession) -> Response:
        session.rights.administer()
        after = _number(request, "after")
        wanted = request.query_params.get("wanted", "")[:200]
        page = min(_number(request, "page") if "page" in request.query_params else PAGE_ROWS, PAGE_ROWS)
        report = await self._parts.client.status(request.path_params["broker"], after=after, page=page, wanted=wanted)
        shown = {name: msgspec.to_builtins(getattr(report, name)) for name in report.__struct_fields__}
        for name in ("links", "streams", "clients", "subscriptions"):
            shown[name] = [_fields(each) for each in getattr(report, name)]
        return _JSON(shown)

    async def _durables(self, _: Request, session: HttpSession) -> Response:
        session.rights.administer()
        return _JSON(await self._shared_durables.get())

    async def _read_durables(self) -> dict[str, Any]:
        """Return those furthest behind, and how many there are in all."""
        entries = await self._parts.client.durables()
        shown = heapq.nsmallest(DURABLES_SHOWN_MAX, entries, key=lambda entry: (-entry.behind_ms, entry.name))
        return {"durables": [_fields(each) for each in shown], "count": len(entries)}

    async def _message(self, request: Request, session: HttpSession) -> Response:
        return _JSON(await show_whole(self._parts.client, session.rights, MessageId.parse(request.path_params["id"])))

    async def _explain(self, request: Request, session: HttpSession) -> Response:
        session.rights.traceable()
        wanted = MessageId.parse(request.path_params["id"])
        found = await self._parts.client.explain(wanted, request.query_params.get("subscriber", ""))
        return _JSON(show_explanation(found))

    async def _others(self, request: Request, session: HttpSession) -> Response:
        """Tell why durable subscriptions did not get a message."""
        session.rights.traceable()
        session.rights.administer()
        return _JSON(await explain_others(self._parts.client, MessageId.parse(request.path_params["id"])))

    async def _filter(self, request: Request, session: HttpSession) -> Response:
        """Tell whether a text is a filter, and if not, what is wrong where."""
        try:
            wanted = session.rights.subscribable(Filter(request.query_params.get("text", "")))
        except FilterSyntaxError as error:
            return _JSON({"error": error.reason, "position": error.position})
        except FilterError as error:
            return _JSON({"error": str(error), "position": None})
        return _JSON({"filter": str(wanted)})

    async def _tail(self, request: Request, session: HttpSession) -> Response:
        text = request.query_params.get("filter", "")
        session.rights.subscribable(Filter(text))  # refused before the stream begins

        async def events() -> AsyncIterator[bytes]:
            try:
                async for turn in tail(self._parts.client, session.rights, text):
                    yield b"data: " + json.dumps(turn).encode() + b"\n\n"
            except PostroadError as error:
                yield b"event: failed\ndata: " + json.dumps({"error": str(error)}).encode() + b"\n\n"

        return self._stream(request, events())

    def _stream(self, request: Request, events: AsyncIterator[bytes]) -> Response:
        """Send events as they come, until the session ends: also when its identity is revoked or changed meanwhile."""
        cookie = request.cookies.get(COOKIE)
        if self._streams >= STREAMS_MAX:
            return _JSON({"error": "too many pages are open; close one"}, 503)

        async def counted() -> AsyncIterator[bytes]:
            self._streams += 1
            try:
                async for each in events:
                    if not self._parts.sessions.holds(cookie):
                        break
                    yield each
            finally:
                if isinstance(events, AsyncGenerator):
                    await events.aclose()
                self._streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    # --- queues ---

    async def _queues(self, _: Request, session: HttpSession) -> Response:
        queues = self._parts.queues
        return _JSON({"served": queues is not None, "queues": [] if queues is None else await queues.describe(session.rights)})

    async def _peek(self, request: Request, session: HttpSession) -> Response:
        return _JSON(await self._queue_actions().peek(session.rights, request.path_params["name"], _number(request, "after")))

    async def _act_on_queue(self, request: Request, session: HttpSession) -> Response:
        queues, name, action = self._queue_actions(), request.path_params["name"], request.path_params["action"]
        body = await _body(request)
        details = {"queue": name}
        try:
            match action:
                case "put":
                    priority = body.get("priority", 5)
                    if not isinstance(priority, int):
                        raise InvalidValueError("a priority is a number from 1 to 10")
                    done = await queues.put(session.rights, name, str(body.get("payload", "")).encode(), priority)
                case "redrive":
                    done = await queues.redrive(session.rights, name)
                case "purge":
                    done = await queues.purge(session.rights, name)
                case _:
                    return _JSON({"error": f"there is no action {action!r}"}, 404)
        except PostroadError as error:
            self._parts.actions.write(session.rights.owner, action, details, f"refused: {type(error).__name__}")
            raise
        self._parts.actions.write(session.rights.owner, action, details, json.dumps(done))
        return _JSON(done)

    def _queue_actions(self) -> QueueActions:
        if self._parts.queues is None:
            raise UnknownQueueError("this broker serves no queues")
        return self._parts.queues

    # --- further pages ---

    async def _more(self, request: Request, session: HttpSession) -> Response:
        session.rights.administer()
        read = self._parts.more.get(request.path_params["page"])
        if read is None:
            return _JSON({"served": False})
        return _JSON({"served": True, **await read()})

    async def _explain_admission(self, request: Request, session: HttpSession) -> Response:
        wanted = request.query_params.get("filter", "")
        return _JSON(await explain_admission(self._parts.client, session.rights, wanted))


class _Checks:
    """What holds for every answer: the right `Host` and `Origin` on the way in, the security headers on the way out."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], policy: str) -> None:
        self._app = app
        self._hosts = hosts
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-frame-options", b"DENY"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        headers = dict(scope["headers"])
        refusal = self._refuse(scope["method"], headers)
        app = self._app if refusal is None else refusal
        await app(scope, receive, send_with_headers)

    def _refuse(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host not in self._hosts:
            return _JSON({"error": "this name is not the console's"}, 421)
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin.split("://", 1)[-1] != host:
            return _JSON({"error": "another site must not use the console"}, 403)
        if method not in SAFE_METHODS and not origin and headers.get(b"sec-fetch-site") not in (b"same-origin", None):
            return _JSON({"error": "another site must not use the console"}, 403)
        return None


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return a struct as plain values; ticks and other long numbers as text, because JavaScript would round them."""
    shown: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        is_long = isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 53
        shown[name] = str(value) if is_long else msgspec.to_builtins(value)
    return shown


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not text.isdigit() or len(text) > 19:
        raise InvalidValueError(f"`{name}` is a whole number")
    return int(text)


async def _body(request: Request) -> dict[str, Any]:
    """Read a JSON object of bounded size."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise InvalidValueError("the body is JSON, with that content type")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise InvalidValueError(f"the body has more than {BODY_BYTES_MAX:,} bytes")
        parts.append(part)
    try:
        body = json.loads(b"".join(parts) or b"{}")
    except ValueError as error:
        raise InvalidValueError("the body is not JSON") from error
    if not isinstance(body, dict):
        raise InvalidValueError("the body is a JSON object")
    return body


def _refusal(error: PostroadError) -> Response:
    match error:
        case PermissionDeniedError():
            status = 403
        case TokenError() | UnauthenticatedError():
            status = 401
        case UnknownQueueError():
            status = 404
        case InvalidValueError() | FilterError():
            status = 400
        case _:
            status = 503 if error.retryable else 409
    return _JSON({"error": str(error), "code": error.code}, status)


async def _make_failure(_request: Request, _error: Exception) -> Response:
    return _JSON({"error": "the console failed; see the log of the broker"}, 500)
