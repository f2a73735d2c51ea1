"""Where a number was measured: it is written beside every result."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from narl._version import __version__
from narl.errors import OptionError


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


def usable_device(name: str) -> str:
    """The device of that name, tried out.

    Args:
        name: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"``: a GPU where there is one.

    Returns:
        Its name.

    Example:
        >>> usable_device("cpu")
        'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.empty(0, device=name).device.type
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(
            f"device {name!r} cannot be used here ({reason}): use cpu, or auto for a GPU where there is one (on the "
            "command line --device cpu)"
        ) from error
    if kind not in ("cpu", "cuda"):
        raise OptionError(f"device {name!r} is of a kind that narl does not train on: use cpu, cuda or auto")
    return name if kind == "cuda" else kind


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
