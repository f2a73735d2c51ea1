"""Several processes on one run: joining and leaving, and what only the first of them does."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from narl.bilevel import Processes
from narl.errors import NarlError, OptionError, ProcessError
from narl.train.trees import Tree, flatten, unflatten

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_A_MOMENT = timedelta(seconds=3)
_PATIENCE = timedelta(minutes=10)  # the first process writes checkpoints while the others wait


def started_together() -> bool:
    """Whether torchrun, or a program like it, has started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and all(name in os.environ for name in _NEEDED)


def speaks(error: BaseException | None = None) -> bool:
    """Whether this process is the one that prints: the first; of a lost one, the first that notices."""
    if not started_together():
        return True
    return _notices_first() if isinstance(error, ProcessError) else os.environ["RANK"] == "0"


def _notices_first() -> bool:
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=_A_MOMENT, wait_for_workers=False
        )
        return store.add(f"narl lost {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1) == 1
    except (RuntimeError, ValueError):  # it was the process that kept the store
        return True


@contextlib.contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Inside, the processes that torchrun has started know each other; without torchrun there is this one alone.

    Args:
        device: as asked for: ``"auto"``, ``"cpu"`` or ``"cuda"``. On GPUs, every process uses the one with its number
            on its machine.

    Yields:
        Who trains together.

    Raises:
        OptionError: a device that several processes cannot share.
        ProcessError: the others cannot be reached.

    Example:
        >>> with joined("cpu") as processes:
        ...     processes.count
        1
    """
    if not started_together():
        yield Processes.alone()
        return
    on_gpus = device != "cpu" and torch.cuda.is_available()
    if device not in ("auto", "cpu", "cuda"):
        raise OptionError(
            f"--device {device} is one device, and there are {os.environ['WORLD_SIZE']} processes: give cuda, where "
            "each takes the GPU with its number, or cpu"
        )
    if on_gpus:
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about itself
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ProcessError(
            f"process {os.environ['RANK']} does not reach the others at {where} ({str(error).splitlines()[0]}): check "
            "the address, and that all of them are started"
        ) from error
    try:
        yield Processes.joined()
        dist.destroy_process_group()
    except ProcessError:
        raise  # there is nobody left to say goodbye to
    except NarlError:
        dist.destroy_process_group()
        raise


def _take_gpu(number: int) -> None:
    if number >= torch.cuda.device_count():
        raise OptionError(
            f"process {number} of this machine needs a GPU of its own, and there are {torch.cuda.device_count()}: "
            "start as many processes as there are GPUs (torchrun --nproc-per-node), or use --device cpu"
        )
    torch.cuda.set_device(number)


def check_same(processes: Processes, what: dict[str, Any]) -> None:
    """Refuse to train together on different data, or in different ways.

    Args:
        processes: who trains together.
        what: plain values, which must be the same in all of them.
    """
    if processes.count == 1:
        return
    said = [json.loads(text) for text in processes.texts(json.dumps(what))]
    for rank, other in enumerate(said):
        different = sorted(name for name in said[0] if other.get(name) != said[0][name])
        if different:
            raise OptionError(
                f"process {rank} has another {different[0]} than process 0: give all of them the same command, and "
                "every machine the same data and the same version of narl"
            )


def tree_of_first(processes: Processes, tree: Tree | None) -> Tree | None:
    """The first process's tree of tensors and plain values, in all of them; None where it has none."""
    if processes.count == 1:
        return tree
    structure, tensors = flatten(tree)
    structure = json.loads(processes.told(json.dumps(structure)))
    packed = safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
    return unflatten(structure, safetensors.torch.load(processes.sent(packed)))


@torch.no_grad()
def even_out(model: nn.Module, processes: Processes) -> None:
    """Give all processes the same buffers: the mean of the statistics of BatchNorm, of others the first one's.

    BatchNorm normalises by the samples of its own process, so that these statistics differ.

    Args:
        model: the classifier.
        processes: who trains it.
    """
    if processes.count == 1:
        return
    kept = [(m.running_mean, m.running_var) for m in model.modules() if isinstance(m, _NormBase)]
    statistics = [tensor for pair in kept for tensor in pair if tensor is not None]
    averaged = {id(tensor) for tensor in statistics}
    processes.same([buffer for buffer in model.buffers() if id(buffer) not in averaged])
    if statistics:
        total = processes.add(torch.cat([tensor.flatten() for tensor in statistics]))
        parts = torch.split(total / processes.count, [tensor.numel() for tensor in statistics])
        for tensor, part in zip(statistics, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
