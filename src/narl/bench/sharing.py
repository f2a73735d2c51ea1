"""Several trainings on one GPU: with NVIDIA's MPS they run side by side; without, they take turns and gain nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from narl.errors import NarlWarning, OptionError

_CONTROL = "nvidia-cuda-mps-control"
# Four give 1.7 times one process's throughput (ResNet-32, H200); two more compile meanwhile.
_SIDE_BY_SIDE = 6


@contextlib.contextmanager
def shared_gpus(device: str, at_once: int | None) -> Iterator[list[dict[str, str]]]:
    """Places for trainings on this machine: what each adds to its process's environment.

    Args:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        at_once: trainings on each GPU, or on the CPU; None: as many as gain something.

    Example:
        >>> with shared_gpus("cpu", 2) as slots:
        ...     len(slots), sorted(slots[0])
        (2, ['OMP_NUM_THREADS', 'TORCHINDUCTOR_COMPILE_THREADS'])
    """
    if at_once is not None and at_once < 1:
        raise OptionError(f"{at_once} trainings at once are none: give at least 1")
    gpus = _gpus(device)
    if not gpus:
        yield _slots([{}], at_once or 1)
        return
    if at_once == 1 or shutil.which(_CONTROL) is None:
        if at_once != 1:
            _tell_of_turns(at_once, "is not installed")
        yield _slots(gpus, at_once or 1)
        return
    with _mps() as environment:
        if not environment:
            _tell_of_turns(at_once, "did not start")
        count = at_once or (_SIDE_BY_SIDE if environment else 1)
        yield _slots([{**gpu, **environment} for gpu in gpus], count)


def _tell_of_turns(at_once: int | None, why: str) -> None:
    """Say that trainings gain nothing from each other's company, if several were asked for."""
    if at_once is not None:
        warnings.warn(
            f"{at_once} trainings on a GPU take turns and gain nothing: NVIDIA's MPS ({_CONTROL}) {why}; see to that, "
            "or leave out --at-once",
            NarlWarning,
            stacklevel=3,
        )


def _gpus(device: str) -> list[dict[str, str]]:
    """One entry a GPU that may be used."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    return [{"CUDA_VISIBLE_DEVICES": name.strip()} for name in given.split(",")]


def _slots(places: list[dict[str, str]], each: int) -> list[dict[str, str]]:
    """So many on every place, GPUs in turns; the processor's cores are divided among all."""
    cores = max(1, (os.cpu_count() or 1) // (len(places) * each))
    threads = {"OMP_NUM_THREADS": str(cores), "TORCHINDUCTOR_COMPILE_THREADS": str(2 * cores)}
    return [{**place, **(threads if len(places) * each > 1 else {})} for _ in range(each) for place in places]


@contextlib.contextmanager
def _mps() -> Iterator[dict[str, str]]:
    """A service of our own that lets processes share a GPU; {} where it cannot be started, or one is there already."""
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        yield {name: value for name, value in os.environ.items() if name.startswith("CUDA_MPS")}
        return
    folder = Path(tempfile.mkdtemp(prefix="narl-mps-"))
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for path in own.values():
        Path(path).mkdir()
    environment = {**os.environ, **own}
    try:
        begun = subprocess.run([_CONTROL, "-d"], env=environment, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        begun = False
    try:
        yield own if begun else {}
    finally:
        if begun:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([_CONTROL], input=b"quit\n", env=environment, capture_output=True, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
