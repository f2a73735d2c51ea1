"""Who may ask the server, and how: everything is refused here before anything else looks at it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection
from typing import Any, Final, final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER: Final = "x-narl-token"
LARGEST_BODY: Final = 64 * 1024
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_DEEPEST: Final = 8

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Refused(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        reason: for a person.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def reply(value: object, status: int = 200) -> Response:
    """Plain values as JSON, in ASCII: a file's name need not be a text that UTF-8 can hold."""
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def refusal(status: int, reason: str) -> Response:
    """What a refused request is told."""
    return reply({"error": reason}, status)


@final
class Guard:
    """Lets requests through to an app that come from its own page with its token.

    Args:
        app: what is guarded.
        token: the secret.
        open_paths: what may be fetched without it: the page itself, which holds no data.
    """

    def __init__(self, app: ASGIApp, token: str, open_paths: Collection[str]) -> None:
        self._app, self._token, self._open = app, token.encode(), frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        try:
            self._check(scope)
        except Refused as error:
            await refusal(error.status, error.reason)(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        # A foreign name that leads to this machine is another site's trick to be taken for this one.
        if len(hosts) != 1 or hosts[0].lower().rsplit(":", 1)[0] not in _LOOPBACK:
            raise Refused(421, "this server answers to 127.0.0.1 and localhost only: use the link that narl printed")
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            raise Refused(403, "the request comes from another page: use the link that narl printed")
        # A link on another page may lead to the page itself, which shows nothing without the token.
        followed = scope["path"] in self._open and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not followed:
            raise Refused(403, "the request comes from another page: use the link that narl printed")
        if scope["path"] in self._open:
            return
        tokens = headers.getlist(TOKEN_HEADER)
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0].encode("latin-1"), self._token):
            raise Refused(401, "the token is missing or wrong: open the link that narl printed in the terminal")


async def json_body(request: Request) -> dict[str, Any]:
    """The object that a request holds, read no further than it may be long.

    Raises:
        Refused: for anything else.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the request is not JSON: send it as application/json")
    too_large = Refused(413, f"the request is larger than {LARGEST_BODY:,} bytes: send less")
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or len(announced) > 10 or int(announced) > LARGEST_BODY:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            raise too_large
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # also: no UTF-8, an endless number
        raise Refused(400, "the request is not JSON that can be read: send one object") from error
    if not isinstance(value, dict) or _deeper(value, _DEEPEST):
        raise Refused(400, "the request is no plain JSON object: send one object")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _deeper(value: object, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(part, levels - 1) for part in inside)
