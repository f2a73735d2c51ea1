"""What the review's server refuses, one by one and at random; whatever it is asked, it stays up and loses nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narl.audit.review.guard import LARGEST_BODY
from review_desk import Client, desk_in, made_up, served

API = ["/api/about", "/api/next", "/api/answer", "/api/undo", "/api/image/0"]
WHO = {"labeller": "Ada", "tab": "tab"}
KEEP = {**WHO, "sample": 0, "verdict": "keep"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    (folder / "link").symlink_to("/etc/passwd")
    with served(desk_in(folder, made_up(10))) as client:
        number = client.next()["sample"]["number"]
        client.answer(number, "keep")
        yield client
        assert client.next()["progress"]["keep"] == 1


def error(client: Client, status: int, method: str, path: str, body: bytes | None = None, **headers: Any) -> str:
    reply = client.ask(method, path, body, **headers)
    assert reply.status == status, (reply.status, reply.body)
    assert "script-src 'self'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in reply.headers
    return str(reply.json["error"])


def refused(client: Client, status: int, path: str, value: object) -> str:
    return error(client, status, "POST", path, json.dumps(value).encode())


@pytest.mark.parametrize("path", [*API, "/nothing", "/review.sqlite"])
@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_without_the_token_nothing_is_said(client: Client, path: str, token: str | None) -> None:
    body = json.dumps(KEEP).encode() if path in API[1:4] else None
    stranger = replace(client, token=token)
    assert "open the link" in error(stranger, 401, "POST" if body else "GET", path, body)
    assert "open the link" in error(stranger, 401, "GET", f"{path}?token={client.token}")
    assert "open the link" in error(stranger, 401, "GET", path, cookie=f"token={client.token}")


@pytest.mark.parametrize("path", ["/", "/review.js", "/review.css"])
def test_the_page_itself_holds_nothing_and_needs_no_token(client: Client, path: str) -> None:
    reply = replace(client, token=None).ask("GET", path)
    assert reply.status == 200
    assert reply.headers["cache-control"] == "no-store"
    assert client.token
    assert client.token.encode() not in reply.body
    assert b"http://" not in reply.body
    assert b"https://" not in reply.body
    assert b"innerHTML" not in reply.body


ORIGINS = ["http://evil.example", "https://127.0.0.1", "null", "http://127.0.0.1:1", "http://127.0.0.1", ""]


@pytest.mark.parametrize("path", ["/", *API])
@pytest.mark.parametrize("origin", ORIGINS)
def test_other_pages_are_refused(client: Client, path: str, origin: str) -> None:
    assert "another page" in error(client, 403, "POST", path, b"{}", origin=origin)
    assert "another page" in error(client, 403, "GET", path, origin=origin)


def test_requests_that_browsers_mark_as_foreign_are_refused(client: Client) -> None:
    assert "another page" in error(client, 403, "GET", "/api/about", sec_fetch_site="cross-site")
    assert "another page" in error(client, 403, "GET", "/review.js", sec_fetch_site="same-site")
    assert client.ask("GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200
    assert client.ask("GET", "/api/about", sec_fetch_site="same-origin").status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "0.0.0.0", "localhost.", ""]
)
def test_other_names_of_this_machine_are_refused(client: Client, host: str) -> None:
    assert "use the link" in error(client, 421, "GET", "/", host=host)
    assert "use the link" in error(client, 421, "GET", "/api/about", host=host, origin=f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "LOCALHOST:{}", "[::1]:{}", "localhost:8080"])
def test_its_own_names_are_answered_also_through_a_tunnel(client: Client, host: str) -> None:
    host = host.format(client.port)
    assert client.ask("GET", "/api/about", host=host, origin=f"http://{host}").status == 200


PATHS = [
    "/..",
    "/../review.sqlite",
    "/review.js/../../answers.py",
    "/page/review.js",
    "/./review.js",
    "//review.js",
    "//etc/passwd",
    "/etc/passwd",
    "/link",
    "/config.json",
    "/review.sqlite",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "/%252e%252e%252fetc%252fpasswd",
    "/..%5c..%5cwindows",
    "/review.js%00",
    "/review.js%2f..%2f..%2fanswers.py",
    "/%c0%ae%c0%ae/etc/passwd",
    "/api/image/../about",
    "/api/image/..%2fabout",
    "/api/image/%2e%2e%2flink",
    "/api/image//etc/passwd",
    "/api/image/link",
    "/api/image/0/..",
    "/api/image/-1",
    "/api/image/1e3",
    "/api/image/0x1",
    "/api/image/10",
    "/api/image/" + "9" * 5000,
    "/api/image/%D9%A3",
    "/" + "a/" * 2000,
]


@pytest.mark.parametrize("path", PATHS)
def test_there_is_nothing_but_the_page_and_its_requests(client: Client, path: str) -> None:
    error(client, 404, "GET", path)
    error(replace(client, token=None), 401, "GET", path)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(client: Client, method: str) -> None:
    for path in ("/", *API):
        error(client, 405, method, path)
    error(client, 405, "GET", "/api/answer")
    error(client, 405, "POST", "/api/about", b"{}")


def test_large_bodies_are_refused_before_they_are_read(client: Client) -> None:
    padded = json.dumps(KEEP).encode().ljust(LARGEST_BODY + 1)
    assert "65,536 bytes" in error(client, 413, "POST", "/api/answer", padded)
    assert client.ask("POST", "/api/next", json.dumps(WHO).encode().ljust(LARGEST_BODY)).status == 200
    # A gigabyte that is announced and never sent, and one without an end.
    head = f"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nX-Narl-Token: {client.token}\r\n"
    head += "Content-Type: application/json\r\n"
    for more in (
        f"Content-Length: {10**9}\r\n\r\n".encode(),
        b"Transfer-Encoding: chunked\r\n\r\n"
        + b"8000\r\n"
        + b" " * 0x8000
        + b"\r\n8000\r\n"
        + b" " * 0x8000
        + b"\r\n1\r\n \r\n",
    ):
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
            connection.sendall(head.encode() + more)
            assert b" 413 " in connection.recv(1000).splitlines()[0]


BROKEN = [
    b"",
    b"{",
    b"\xff\xfe{}",
    b'{"labeller": "\xff"}',
    b"[]",
    b"null",
    b'"text"',
    b"[" * 60_000,
    b'{"a":' * 10_000,
    b'{"labeller": [[[[[[[[[[1]]]]]]]]]]}',
    b"1" * 60_000,
    b'{"sample": ' + b"1" * 60_000 + b"}",
    b'{"sample": NaN}',
    b'{"sample": -Infinity}',
    b"{} {}",
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("path", API[1:4])
def test_malformed_json_is_refused(client: Client, path: str, body: bytes) -> None:
    assert "JSON" in error(client, 400, "POST", path, body)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_form_could_send_is_refused(client: Client, kind: str | None) -> None:
    assert "application/json" in error(client, 415, "POST", "/api/answer", json.dumps(KEEP).encode(), content_type=kind)


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"sample": 10}, 404, "0 … 9"),
        ({"sample": -1}, 404, "0 … 9"),
        ({"sample": 10**300}, 404, "0 … 9"),
        ({"sample": "0"}, 400, "whole number"),
        ({"sample": 0.0}, 400, "whole number"),
        ({"sample": True}, 400, "whole number"),
        ({"sample": None}, 400, "whole number"),
        ({"sample": [0]}, 400, "whole number"),
        ({"verdict": "relabel"}, 422, "no label None"),
        ({"verdict": "relabel", "label": 3}, 422, "0 … 2"),
        ({"verdict": "relabel", "label": -1}, 422, "0 … 2"),
        ({"verdict": "relabel", "label": 10**300}, 422, "0 … 2"),
        ({"verdict": "relabel", "label": "cat"}, 400, "whole number or null"),
        ({"verdict": "relabel", "label": False}, 400, "whole number or null"),
        ({"verdict": "keep", "label": 1}, 422, "takes no label"),
        ({"verdict": "unsure", "label": 1}, 422, "takes no label"),
        ({"verdict": "delete"}, 422, "use keep, relabel, unsure, skip"),
        ({"verdict": "x" * 10_000}, 422, "use keep"),
        ({"verdict": 1}, 400, "a text"),
        ({"labeller": ""}, 422, "labeller's name"),
        ({"labeller": " Ada"}, 422, "labeller's name"),
        ({"labeller": "x" * 101}, 422, "labeller's name"),
        ({"labeller": "a\nb"}, 422, "labeller's name"),
        ({"labeller": "\ud800"}, 422, "labeller's name"),
        ({"labeller": "\u202eadA"}, 422, "labeller's name"),
        ({"tab": ""}, 422, "tab's name"),
        ({"tab": 1}, 400, "a text"),
        ({"admin": True}, 400, "no field 'admin'"),
    ],
)
def test_answers_that_mean_nothing_are_refused(
    client: Client, fields: dict[str, Any], status: int, reason: str
) -> None:
    assert reason in refused(client, status, "/api/answer", {**KEEP, **fields})


def test_the_given_label_is_no_correction_and_no_field_may_be_missing(tmp_path: Path) -> None:
    verdicts = made_up(10)
    with served(desk_in(tmp_path, verdicts)) as client:
        given = int(verdicts.given[0])
        assert "answer keep" in refused(client, 422, "/api/answer", {**KEEP, "verdict": "relabel", "label": given})
        for name in KEEP:
            rest = {key: value for key, value in KEEP.items() if key != name}
            assert f"the field {name} is missing" in refused(client, 400, "/api/answer", rest)
        for number in range(64):
            assert client.post("/api/next", labeller=f"labeller {number}", tab="tab").status == 200
        assert "64 labellers" in refused(client, 422, "/api/next", {"labeller": "one more", "tab": "tab"})


def test_half_a_request_and_rubbish_leave_the_server_up(client: Client) -> None:
    for sent in (
        b"",
        b"\x00\x01\x02",
        b"GET",
        b"POST /api/answer HTTP/1.1\r\nContent-Length: 10\r\n\r\n{",
        b"G" * 100_000,
    ):
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
            connection.sendall(sent)
    assert client.ask("GET", "/api/about").status == 200


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=6,
)
nearly = st.fixed_dictionaries(
    {},
    optional={
        "labeller": st.sampled_from(["Eve", ""]) | st.text(max_size=3) | anything,
        "tab": st.just("tab") | anything,
        "sample": st.integers(-2, 12) | anything,
        "verdict": st.sampled_from(["keep", "relabel", "unsure", "skip"]) | anything,
        "label": st.integers(-1, 4) | anything,
    },
)
bodies = st.binary(max_size=50) | (nearly | anything).map(lambda value: json.dumps(value).encode())
odd_paths = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(lambda text: f"/{text}")
paths = st.sampled_from([*API, "/"]) | odd_paths | odd_paths.map(lambda text: f"/api/image{text}")


@given(st.sampled_from(["GET", "POST", "POST", "POST", "HEAD", "PUT"]), paths, bodies)
@example("GET", "/api/image/0/", b"")
@settings(max_examples=150, deadline=None)
def test_whatever_is_asked_gets_an_answer_of_its_kind(client: Client, method: str, path: str, body: bytes) -> None:
    reply = client.ask(method, path, body if method in ("POST", "PUT") else None)
    assert reply.status in (200, 400, 401, 403, 404, 405, 422), (reply.status, reply.body)
    assert "content-security-policy" in reply.headers
    if reply.status != 200 and method != "HEAD":
        assert reply.json["error"]
