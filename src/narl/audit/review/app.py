"""The review as a web application: a page, and the few requests that it makes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from narl.audit.review.desk import Desk
from narl.audit.review.guard import Guard, Refused, json_body, refusal, reply
from narl.errors import AnswersError, DataError, LabelError, NarlError, OptionError, SampleIdsError, nearest

PAGE: Final = {
    "/": ("review.html", "text/html; charset=utf-8"),
    "/review.js": ("review.js", "text/javascript; charset=utf-8"),
    "/review.css": ("review.css", "text/css; charset=utf-8"),
}
"""The files of the page, all there are, by path."""

_LONGEST_NUMBER: Final = 16
_STATUS: Final[dict[type[NarlError], int]] = {
    SampleIdsError: 404,
    LabelError: 422,
    OptionError: 422,
    DataError: 422,
    AnswersError: 507,
}


def make_app(desk: Desk, token: str, *, run: str, labeller: str) -> ASGIApp:
    """The application for a desk.

    Args:
        desk: samples and answers.
        token: the secret that every request needs but those for the page itself.
        run: the run's name, to be shown.
        labeller: name of who answers, unless the page says another one.

    Returns:
        An ASGI application.
    """

    async def about(request: Request) -> Response:
        return reply(
            {
                "run": run,
                "labeller": labeller,
                "kind": desk.contents.kind,
                "samples": len(desk.contents),
                "classes": list(desk.classes),
            }
        )

    async def next_sample(request: Request) -> Response:
        who = await _fields(request, labeller=str, tab=str)
        return reply(await run_in_threadpool(desk.next, **who))

    async def answer(request: Request) -> Response:
        fields = await _fields(request, labeller=str, tab=str, sample=int, verdict=str, label=(int, type(None)))
        return reply(await run_in_threadpool(desk.answer, **fields))

    async def undo(request: Request) -> Response:
        who = await _fields(request, labeller=str, tab=str)
        return reply(await run_in_threadpool(desk.undo, **who))

    async def image(request: Request) -> Response:
        asked = request.path_params["number"]
        if not (asked.isascii() and asked.isdecimal() and len(asked) < _LONGEST_NUMBER):
            raise SampleIdsError(f"{asked[:80]!r} is no number of a sample: give a whole number")
        number = int(asked)
        desk.check(number)
        return Response(await run_in_threadpool(desk.contents.png, number), media_type="image/png")

    routes = [
        *(Route(path, _file(name, kind)) for path, (name, kind) in PAGE.items()),
        Route("/api/about", about),
        Route("/api/next", next_sample, methods=["POST"]),
        Route("/api/answer", answer, methods=["POST"]),
        Route("/api/undo", undo, methods=["POST"]),
        Route("/api/image/{number}", image),
    ]
    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        NarlError: lambda request, error: refusal(_status(error), str(error)),
        Refused: lambda request, error: refusal(error.status, error.reason),
        HTTPException: lambda request, error: refusal(error.status_code, f"{request.url.path[:200]}: {error.detail}"),
        ClientDisconnect: lambda request, error: refusal(400, "the request ended too early: send it again"),
        Exception: lambda request, error: refusal(500, "narl has a fault here: see the terminal, then try again"),
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a path is one of ours or is none
    return Guard(app, token, PAGE)


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    content = resources.files("narl.audit.review").joinpath(f"page/{name}").read_bytes()

    def give(request: Request) -> Response:
        return Response(content, media_type=kind)

    return give


async def _fields(request: Request, **wanted: Any) -> dict[str, Any]:
    """The fields of a request, no more and no fewer, each of its type; one that may be null may be left out."""
    given = await json_body(request)
    for name in given:
        if name not in wanted:
            raise Refused(400, f"there is no field {name[:80]!r}: {nearest(name[:80], wanted)}")
    for name, kind in wanted.items():
        optional = isinstance(kind, tuple)
        if name not in given and not optional:
            raise Refused(400, f"the field {name} is missing: send it")
        value = given.setdefault(name, None)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise Refused(400, f"the field {name} has the wrong type: send {_TYPES[kind]}")
    return given


_TYPES: Final[dict[Any, str]] = {str: "a text", int: "a whole number", (int, type(None)): "a whole number or null"}


def _status(error: NarlError) -> int:
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
