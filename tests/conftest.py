"""What all tests share."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from found_browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from together import Team

# How long a test takes depends on what else the machine does.
settings.register_profile("narl", deadline=None)
settings.load_profile("narl")

# Tests use small tensors: a second thread costs more than it brings, above all on a busy machine.
torch.set_num_threads(1)

# What Ctrl-C does is tested as at a terminal, also where a shell in the background has it ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Nothing cuts the power while tests run: no file has to reach the disk before the next line. A descriptor must be open.
# Processes that tests start, among them those that are killed, do all of it.
os.fsync = os.fstat  # type: ignore[assignment]


@pytest.fixture
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if narl shipped no adjuster."""
    monkeypatch.setattr("narl.adjuster.pretrained.WEIGHTS", tmp_path / "no-weights")


@pytest.fixture(scope="session")
def workers() -> Iterator[Team]:
    """Processes that work together; what makes them takes seconds to start."""
    from together import team

    with team() as made:
        yield made


@pytest.fixture(scope="session")
def worker_server() -> Iterator[str]:
    """Where to ask for a worker that has torch loaded."""
    from warm_workers import server

    with server() as address:
        yield address


@pytest.fixture
def warm_workers(worker_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid's workers begin at once. They are processes as ever, but none begins with importing torch."""
    from warm_workers import starting

    monkeypatch.setattr(subprocess, "Popen", starting(worker_server))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, without a window."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()
