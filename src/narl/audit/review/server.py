"""The web server of a review: on this machine only."""

from __future__ import annotations

import gc
import secrets
import socket
from typing import Final, final

from narl.audit.review.desk import Desk
from narl.errors import MissingExtraError, OptionError

_HOST: Final = "127.0.0.1"


@final
class Server:
    """Serves a desk until it is stopped. Its port is open from the beginning: who asks early waits.

    Args:
        desk: samples and answers.
        run: the run's name, to be shown.
        labeller: who answers, unless the page says another one.
        port: to listen on; 0: any that is free.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
        OptionError: the port is taken, or is none.
    """

    def __init__(self, desk: Desk, *, run: str, labeller: str, port: int = 0) -> None:
        check_installed()
        import uvicorn

        from narl.audit.review.app import make_app

        self.token = secrets.token_urlsafe(32)
        self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(desk, self.token, run=run, labeller=labeller),
                http="h11",
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_level="error",
                access_log=False,  # paths are dull, and a terminal is for what matters
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=2,
            )
        )

    @property
    def link(self) -> str:
        """What to open in a browser. The token stands behind ``#``: no browser sends that anywhere by itself."""
        return f"http://{_HOST}:{self.port}/#token={self.token}"

    def run(self) -> None:
        """Serve until :meth:`stop` or Ctrl-C."""
        gc.collect()
        gc.freeze()  # what is loaded stays loaded; to look through all of it again would stop everybody for 100 ms
        try:
            with self._socket:
                self._server.run(sockets=[self._socket])
        finally:
            gc.unfreeze()

    def stop(self) -> None:
        """Have :meth:`run` return."""
        self._server.should_exit = True


def check_installed() -> None:
    """Refuse to begin without the packages of a web server."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"a review needs the packages starlette and uvicorn ({error}): pip install 'narl[review]'"
        ) from error


def _listen(port: int) -> socket.socket:
    # The protocol is named because asyncio looks for it: only then are small packets sent without waiting for others.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((_HOST, port))
        made.listen(128)
    except (OSError, OverflowError) as error:
        made.close()
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"--port {port} cannot be used ({reason}): leave it out, or give another one") from error
    return made
