"""Where a number was measured: it is written beside every result."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from narl._version import __version__


def environment(device: str = "cpu") -> dict[str, str | int]:
    """Hardware and versions.

    Args:
        device: where the tensors were, ``"cpu"`` or ``"cuda"``.

    Returns:
        Plain values, for JSON.

    Example:
        >>> sorted(environment())
        ['cores', 'device', 'narl', 'python', 'system', 'threads', 'torch']
    """
    return {
        "device": _processor() if device == "cpu" else torch.cuda.get_device_name(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "narl": __version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch computes with so many threads; how it rounds depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    named = [line for line in facts.read_text().splitlines() if line.startswith("model name")] if facts.exists() else []
    return named[0].split(":")[1].strip() if named else platform.processor() or platform.machine()
