"""Processes that train together, and what they do. As a script: forks as many as every line of JSON asks for.

Importing torch takes seconds, so one process imports it and forks the others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import narl
from command_line import Answer, done, rings
from methods_problem import CLASSES, FEATURES, SAMPLES, adjusters_of, data
from narl.bilevel import Processes
from narl.cli import main
from narl.errors import NarlError
from narl.train import methods
from narl.train.distributed import even_out
from narl.train.methods import LossMethod, Setting, meta_weight_net

STEPS = 30
SIZES = (17, 16, 5, 3, 12)
"""Batches: uneven ones, one that has too few rows for three processes, one that has too few for two."""


class Team:
    """Makes processes that work together."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, scene: str, count: int, **how: Any) -> list[Any]:
        """What a scene gives in each of so many processes."""
        with tempfile.TemporaryDirectory() as folder:
            self._ask(scene, count, folder, how)
            assert self._answer() == [0] * count
            return [torch.load(Path(folder, str(rank)), weights_only=True) for rank in range(count)]

    @contextmanager
    def commands(self, *commands: tuple[object, ...]) -> Iterator[Running]:
        """The command line in several processes, as torchrun starts it, one command each."""
        with tempfile.TemporaryDirectory() as folder, socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            port = place.getsockname()[1]
            place.close()
            arguments = [[str(argument) for argument in command] for command in commands]
            pids = self._ask("command", len(commands), folder, {"arguments": arguments, "port": port})
            yield Running(pids, Path(folder), self._answer)

    def narl(self, count: int, *command: object) -> list[Answer]:
        """How a command ends in so many processes."""
        with self.commands(*[command] * count) as running:
            return running.answers()

    def _ask(self, scene: str, count: int, folder: str, how: dict[str, Any]) -> list[int]:
        assert self._server.stdin is not None
        print(json.dumps([scene, count, folder, how]), file=self._server.stdin, flush=True)
        return self._answer()

    def _answer(self) -> list[int]:
        assert self._server.stdout is not None
        numbers: list[int] = json.loads(self._server.stdout.readline())
        return numbers


@dataclass(frozen=True)
class Running:
    """Processes that are at work."""

    pids: list[int]
    folder: Path
    codes: Callable[[], list[int]]

    def answers(self) -> list[Answer]:
        """How they ended."""
        texts = [[(self.folder / f"{rank}.{name}") for name in ("out", "err")] for rank in range(len(self.pids))]
        return [
            Answer(code, out.read_text(), err.read_text()) for code, (out, err) in zip(self.codes(), texts, strict=True)
        ]


@contextmanager
def team() -> Iterator[Team]:
    command = [sys.executable, "-W", "error", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        yield Team(server)
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(timeout=20) == 0


def model_of(kind: str, dtype: torch.dtype) -> nn.Module:
    """A classifier without BatchNorm: layers, or convolutions over the features."""
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, CLASSES))
    convolutions = nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(30, CLASSES)
    )
    return {"layers": layers, "convolutions": convolutions}[kind].to(dtype)


def rows_of(steps: int = STEPS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randperm(SAMPLES, generator=generator)[: SIZES[step % len(SIZES)]] for step in range(steps)]


def method(
    processes: Processes,
    name: str,
    dtype: str = "float32",
    kind: str = "layers",
    clean: int | None = 7,
    trusted: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Thirty steps of a method, each process with its share of every batch."""
    x, noisy, true = data()
    model = model_of(kind, getattr(torch, dtype))
    x = x.to(getattr(torch, dtype))

    def draw() -> tuple[Tensor, Tensor]:
        assert clean is not None
        rows = torch.arange(clean)[processes.share(clean)]
        return x[rows], true[rows]

    setting = Setting(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        class_counts=torch.bincount(noisy, minlength=CLASSES),
        clean=None if clean is None else draw,
        total_steps=STEPS,
        num_samples=SAMPLES,
        generator=torch.Generator().manual_seed(5),
        processes=processes,
        trusted=torch.arange(SAMPLES) < trusted if trusted else None,
    )
    spec = methods.get(name)
    if spec.needs_adjuster:
        options = {**options, "adjusters": adjusters_of(str(spec.loss))}
    if "tangent" in spec.options:
        options = {"tangent": "forward", **options}
    made = spec.build(setting, **options)
    assert made.distributed
    if isinstance(made, meta_weight_net.MetaWeightNet):
        made.net.to(getattr(torch, dtype))
    losses, meta_losses = [], []
    margins = torch.full((SAMPLES,), torch.nan, dtype=torch.float64)
    for rows in rows_of():
        own = rows[processes.share(len(rows))]
        report = made.step(x[own], noisy[own], own)
        losses.append(report.loss)
        if report.meta_loss is not None:
            meta_losses.append(report.meta_loss)
        assert report.margins is not None
        seen, ids = processes.gathered(report.margins.double(), own)
        margins[ids] = seen
        assert all(values.shape == own.shape for values in report.hyperparameters.values())
    return {
        "model": dict(model.state_dict()),
        "method": made.state_dict(),
        "losses": torch.stack(losses),
        "meta_losses": torch.stack(meta_losses) if meta_losses else torch.empty(0),
        "margins": margins,
    }


def wrapped(processes: Processes, dtype: str, kind: str) -> dict[str, Any]:
    """One's own loop, with a model in DistributedDataParallel."""
    x, noisy, true = data()
    x = x.to(getattr(torch, dtype))
    torch.manual_seed(3 + processes.rank)  # the first process's weights count
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, CLASSES))
    adjuster = narl.Adjuster("gce", torch.bincount(noisy), generator=torch.Generator().manual_seed(processes.rank))
    model, adjuster = model.to(x.dtype), adjuster.to(x.dtype)
    if processes.count > 1:
        model = DistributedDataParallel(model)
    rates: dict[str, Any] = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 0.01}}
    optimizer = getattr(torch.optim, kind)(model.parameters(), **rates[kind])
    meta = narl.MetaStep(model, optimizer, adjuster, every=2, tangent="forward")
    assert meta.processes.count == processes.count
    for rows in rows_of():
        own, clean = rows[processes.share(len(rows))], torch.arange(20)[processes.share(20)]
        meta.step(x[own], noisy[own], (x[clean], true[clean]))
    clean = torch.arange(9)[processes.share(9)]
    own = torch.arange(11)[processes.share(11)]
    gradients = narl.hypergradient(model, optimizer, adjuster, (x[own], noisy[own]), (x[clean], true[clean]))
    return {
        "model": dict(meta.model.state_dict()),
        "adjuster": dict(adjuster.state_dict()),
        "gradients": list(gradients),
    }


REFUSING: dict[str, dict[str, Any]] = {
    "CE": {},
    "A-GCE": {},
    "MW-Net": {"normalise": True},
    "Forward": {},
    "T-JS": {"adjusters": narl.Adjuster("js", [5, 5, 5]), "noise_rate": 0.3},
}


def refusals(processes: Processes) -> dict[str, Any]:
    """One process has bad numbers: all refuse alike, and go on with the next batch."""
    x, noisy, true = data()
    found: dict[str, Any] = {}
    for name, options in REFUSING.items():
        model = model_of("layers", torch.float32)
        clean = [x[:12], true[:12]]
        setting = Setting(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            class_counts=torch.bincount(noisy),
            clean=lambda clean=clean: tuple(clean),  # type: ignore[misc]
            total_steps=STEPS,
            num_samples=SAMPLES,
            generator=torch.Generator().manual_seed(5),
            processes=processes,
        )
        made = methods.get(name).build(setting, **options)
        last = processes.rank == processes.count - 1
        bad_x, bad_y = x[:8].clone(), noisy[:8].clone()
        bad_x[3, 1], bad_y[2] = torch.nan, CLASSES
        batches: dict[str, tuple[Tensor, Tensor]] = {
            "inputs": (bad_x if last else x[:8], noisy[:8]),
            "labels": (x[:8], bad_y if last else noisy[:8]),
            "no labels": (x[:8], noisy[:0] if last else noisy[:8]),
        }
        before = {key: value.clone() for key, value in model.state_dict().items()}
        for what, (inputs, labels) in batches.items():
            try:
                made.step(inputs, labels, torch.arange(8))
            except NarlError as error:
                found[f"{name} {what}"] = f"{type(error).__name__}: {error}"
        if methods.get(name).needs_clean:
            clean[0] = bad_x[:8] if last else x[:8]
            clean[1] = true[:8]
            try:
                made.step(x[:8], noisy[:8], torch.arange(8))
            except NarlError as error:
                found[f"{name} clean"] = f"{type(error).__name__}: {error}"
            clean[0] = x[:8]
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        made.step(x[:8], noisy[:8], torch.arange(8))
        found[f"{name} weights"] = dict(model.state_dict())
    return found


def exchanges(processes: Processes) -> dict[str, Any]:
    """What processes can tell each other."""
    rank = processes.rank
    value = torch.tensor([1.0 + rank, 2.0], dtype=torch.float64, requires_grad=True)
    total = processes.sum(value**2)
    (first,) = torch.autograd.grad((total**2).sum() / processes.count, value, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), value)
    ids, names, half = processes.gathered(
        torch.arange(rank + 1) + 10 * rank,
        torch.full((rank + 1, 2), float(rank)),
        torch.full((rank + 1,), rank, dtype=torch.float16),
    )
    numbers = torch.full((processes.count,), torch.nan)
    numbers[rank] = -float(rank)
    shared = torch.full((3,), float(rank))
    processes.same([shared])
    return {
        "sum": total.detach(),
        "first": first.detach(),
        "second": second,
        "ids": ids,
        "names": names,
        "half": half,
        "merged": processes.merged(numbers),
        "any": list(processes.any_of(rank == 1, False)),
        "same": shared,
        "told": processes.told(f"ä {rank}"),
        "texts": processes.texts("" if rank == 0 else "x" * rank),
    }


def tiny(num_classes: int, in_channels: int, generator: torch.Generator) -> nn.Module:
    """A convolutional network without BatchNorm."""
    return _drawn(
        nn.Sequential(
            nn.Conv2d(in_channels, 6, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, num_classes),
        ),
        generator,
    )


def forgetful(num_classes: int, in_features: int, generator: torch.Generator) -> nn.Module:
    """Layers with dropout."""
    layers = nn.Sequential(nn.Linear(in_features, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, num_classes))
    return _drawn(layers, generator)


def _drawn(model: nn.Module, generator: torch.Generator) -> nn.Module:
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.3, 0.3, generator=generator)
    return model


class Remembering(LossMethod):
    """Keeps something of every batch and tells nobody."""

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        return narl.losses.ce(logits, y)

    def observe(self, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        self.seen = ids
        return super().observe(logits, y, ids)


def normalised(processes: Processes) -> dict[str, Any]:
    """A model with BatchNorm: each process has its own statistics until they are evened out."""
    x, noisy, _ = data()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in rows_of(5):
        own = rows[processes.share(len(rows))]
        labels = noisy[own]
        loss = functools.partial(narl.losses.ce, targets=labels)
        methods.descend(model, optimizer, x[own], labels, loss, processes=processes)
    own_mean = model.get_buffer("1.running_mean").clone()
    even_out(model, processes)
    return {"own": own_mean, "model": dict(model.state_dict())}


def guest(processes: Processes, module: str) -> dict[str, Any]:
    """What another library's trainer gives: as torchrun starts it, in ``module.together()``."""
    os.environ |= {"RANK": str(processes.rank), "LOCAL_RANK": str(processes.rank), "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": str(processes.count), "LOCAL_WORLD_SIZE": str(processes.count)}
    os.environ |= {"TORCHELASTIC_RUN_ID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # the libraries', about themselves
        found: dict[str, Any] = importlib.import_module(module).together()
    return found


SCENES: dict[str, Callable[..., Any]] = {
    "guest": guest,
    "method": method,
    "wrapped": wrapped,
    "refusals": refusals,
    "exchanges": exchanges,
    "normalised": normalised,
}


def _command(rank: int, count: int, folder: str, arguments: list[list[str]], port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, f"{rank}.{name}"), os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["narl", *arguments[rank]]
    main()


def _work(scene: str, rank: int, count: int, folder: str, how: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if scene == "command":
        _command(rank, count, folder, **how)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about itself
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=timedelta(seconds=60)
        )
    torch.save(SCENES[scene](Processes.joined(), **how), Path(folder, str(rank)))
    dist.barrier()
    dist.destroy_process_group()


@functools.cache
def _loaded() -> None:
    """What a command that trains loads on its way, once for all that are forked from now on."""
    with tempfile.TemporaryDirectory() as folder:
        data = rings(Path(folder, "rings.csv"), 60)
        done("train", data, "--out", Path(folder, "run"), "--epochs", 1, "--device", "cpu", "--no-tensorboard")


def _serve() -> None:
    method(Processes.alone(), "A-GCE")  # torch loads parts of itself when they are first used
    for line in sys.stdin:
        scene, count, folder, how = json.loads(line)
        if scene == "command":
            _loaded()
        if scene == "guest":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(how["module"])  # once for all of them
        numbers = []
        for rank in range(count):
            number = os.fork()
            if number == 0:
                code = 1
                try:
                    _work(scene, rank, count, folder, how)
                    code = 0
                except SystemExit as ending:
                    code = ending.code if isinstance(ending.code, int) else 1
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            numbers.append(number)
        sys.stdout.write(f"{numbers}\n")
        sys.stdout.flush()
        codes = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]
        sys.stdout.write(f"{codes}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
