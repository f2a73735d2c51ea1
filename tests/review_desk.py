"""Reviews to try: verdicts made up, a server in a thread, and a client that is no browser."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from narl.audit.review.answers import FILE
from narl.audit.review.contents import Contents
from narl.audit.review.desk import Desk
from narl.audit.review.server import Server
from narl.audit.verdicts import NoiseEstimate, Verdicts
from narl.data.samples import Inputs, Texts

NASTY = (
    "<script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "\"'`&amp;</td></bdi>{{7*7}}${7*7}",
    "\u202eright to left\u202c עברית العربية",
    "🦊👩\u200d💻🏳️\u200d🌈",
    "x" * 10_000,
    "../../etc/passwd",
    "line\nbreak\x00\x1b[31m",
    "name\udcff",
)


def made_up(
    count: int, classes: tuple[str, ...] = ("cat", "dog", "fox"), seed: int = 0, *, calibrated: bool = False
) -> Verdicts:
    """Verdicts about so many samples, the tenth of them wrong or so."""
    rng = np.random.default_rng(seed)
    c = len(classes)
    given = rng.integers(0, c, count)
    score = rng.random(count)
    wrong = score < 0.2
    sure = np.eye(c)
    return Verdicts(
        ids=np.array([f"sample-{number}" for number in range(count)]),
        given=given,
        suggested=np.where(wrong, (given + 1) % c, given),
        confidence=rng.random(count),
        score=score,
        wrong=wrong,
        probability=1 - score if calibrated else None,
        margin=score - 0.2,
        family=np.zeros(count, np.int64),
        class_names=classes,
        noise=NoiseEstimate(0.2, 0.1, 0.3, sure, sure, sure),
    )


def texts(count: int) -> Texts:
    return Texts(np.array([f"text of sample {number}" for number in range(count)], dtype=object))


def desk_in(folder: Path, verdicts: Verdicts | None = None, inputs: Inputs | None = None, **options: Any) -> Desk:
    """A desk whose answers are in a folder; samples are texts unless they are given."""
    verdicts = made_up(30) if verdicts is None else verdicts
    inputs = texts(len(verdicts)) if inputs is None else inputs
    return Desk(verdicts, Contents(inputs, np.arange(len(verdicts))), folder / FILE, **options)


@dataclass(frozen=True)
class Reply:
    """What a server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Asks a server; a connection a request."""

    port: int
    token: str | None
    labeller: str = "Ada"
    tab: str = "tab"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Reply:
        """A request with the token; headers by name, ``_`` for ``-``, None to leave one out."""
        all_headers: dict[str, str | None] = {"x-narl-token": self.token, "host": f"127.0.0.1:{self.port}"}
        if body is not None:
            all_headers |= {"content-type": "application/json", "content-length": str(len(body))}
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in all_headers.items():
                if value is not None:
                    connection.putheader(name, value.encode("latin-1", "replace"))
            connection.endheaders(body)
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def post(self, path: str, **fields: Any) -> Reply:
        """A request with a JSON object."""
        return self.ask("POST", path, json.dumps(fields).encode())

    def next(self) -> Any:
        return self._fine("/api/next")

    def answer(self, sample: int, verdict: str, label: int | None = None) -> Any:
        return self._fine("/api/answer", sample=sample, verdict=verdict, label=label)

    def undo(self) -> Any:
        return self._fine("/api/undo")

    def _fine(self, path: str, **fields: Any) -> Any:
        reply = self.post(path, labeller=self.labeller, tab=self.tab, **fields)
        assert reply.status == 200, reply.body
        return reply.json


@contextmanager
def served(desk: Desk, **options: Any) -> Iterator[Client]:
    """A server for a desk, in a thread; the desk is closed in the end."""
    server = Server(desk, **{"run": "runs/first", "labeller": "Ada", **options})
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Client(server.port, server.token)
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
        desk.close()
