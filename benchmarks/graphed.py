"""What a step of boosted methods and systems takes on a GPU: as written, and as CUDA graphs.

    PYTHONPATH=src python3 benchmarks/graphed.py --out results/graphed-h200.json
    PYTHONPATH=src python3 benchmarks/graphed.py --out passes.json --passes --methods A-SL+ --varied
    PYTHONPATH=src python3 benchmarks/graphed.py --out cpu.json --device cpu --rows 8 --steps 2 --rounds 1  # a trial

PreAct ResNet-18 on random 32×32 images that are on the device already; nothing is evaluated, and without ``--varied``
nothing is varied and views are the same images, so it is the steps alone. DivideMix sets half of its labels aside,
boosts have begun, and one step in ten of A-SL and A-SL+ is a meta step. Steps of CE, A-SL and A-SL+ are one graph each,
of the others the networks' passes are, and with ``--passes`` of all. Both forms of a method take turns; times are by
the clock, with the device waited for before and after a round. On a CPU both forms are as written.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from narl import models
from narl.data import augmentation
from narl.train import engine, methods
from narl.train.engine.captured import CapturedEngine
from narl.train.engine.graphed import GraphedEngine, networks_of
from narl.train.engine.prepared import PreparedEngine
from narl.train.environment import environment, usable_device
from narl.train.methods import Setting
from narl.train.methods.divide_mix import DivideMix

METHODS: dict[str, dict[str, Any]] = {
    "CE": {},
    "A-SL": {"every": 10},
    "A-SL+": {"every": 10, "boost_from": 0.0},
    "Co-teaching": {},
    "ELR+": {},
    "DivideMix": {"warmup": 1},
}
CLASSES, BATCHES, WARM = 10, 10, 20
SHORT = 10_000  # steps of a run whose kernels are not worth compiling


class CleanBatch:
    """The same clean batch each time.

    Args:
        x: inputs.
        y: labels.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._batch = x, y

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels."""
        return self._batch

    def example(self) -> tuple[Tensor, Tensor]:
        """The same."""
        return self._batch


class Form:
    """A method's steps by one engine.

    Args:
        name: of the method.
        kind: of the engine: ``"eager"``, ``"auto"``, or ``"passes"`` for a graph a pass of any method.
        device: where.
        precision: ``"float32"`` or ``"bfloat16"``.
        options: of the command line: rows, compiled, varied.
    """

    def __init__(self, name: str, kind: str, device: str, precision: str, options: argparse.Namespace) -> None:
        rows, steps = options.rows, engine.STEPS_WORTH_COMPILING if options.compiled else SHORT
        torch.manual_seed(0)
        spec, samples = methods.get(name), BATCHES * rows
        networks = spec.networks_for(METHODS[name])
        self.model = networks.of(lambda: models.get("preact_resnet18")(CLASSES)).to(device).train()
        if device != "cpu":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.02, momentum=0.9, weight_decay=5e-4, fused=device != "cpu")
        self.x = torch.randn(samples, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
        self.y = torch.arange(samples, device=device) % CLASSES
        clean = CleanBatch(self.x[:rows], self.y[:rows])
        setting = Setting(
            self.model,
            optimizer,
            torch.bincount(self.y).cpu(),
            clean,
            total_steps=steps,
            num_samples=samples,
            generator=torch.Generator().manual_seed(0),
            labels=self.y,
            batch_size=rows,
            epochs=100,
            kind="image",
        )
        self.method = spec.build(setting, **METHODS[name])
        self.method.begin_epoch(1, self._half_right)
        chosen = self.method.rows(1, torch.Generator().manual_seed(0))
        order = torch.split(torch.arange(samples), rows) if chosen is None else chosen
        self.batches = [each.to(device) for each in order]
        self.engine: engine.Engine
        if kind == "passes" and device != "cpu":
            self.engine = GraphedEngine(self.method, self.model, engine.type_of(precision))
        else:
            self.engine = engine.make(
                kind, self.method, self.model, optimizer, clean, rows=rows, steps=steps, precision=precision
            )
        self._at = 0
        views = self.method.views or ("usual",)
        self._views = [augmentation.view(view, "crop+flip") for view in views] if options.varied else []
        self._bytes = (32 * self.x + 128).clamp(0, 255).to(torch.uint8)
        self._draws = torch.Generator().manual_seed(0)

    def _half_right(self, module: nn.Module) -> Tensor:
        """Logits by which every second label is right."""
        right = torch.arange(len(self.y), device=self.y.device) // CLASSES % 2
        return 10.0 * torch.nn.functional.one_hot((self.y + 1 - right) % CLASSES, CLASSES).float()

    def step(self) -> None:
        """The next one."""
        at = self._at % len(self.batches)
        rows = self.batches[at]
        if isinstance(self.method, DivideMix):
            self.method._at = at
        self.engine.step(self._inputs(rows), self.y[rows], rows)
        self._at += 1

    def _inputs(self, rows: Tensor) -> Any:
        """A batch as the training loop brings it, or as it is."""
        if not self._views:
            x = self.x[rows]
            return (x,) * len(self.method.views) or x
        varied = [view(self._bytes[rows], self._draws).float() / 32 - 4 for view in self._views]
        return tuple(varied) if self.method.views else varied[0]

    def milliseconds(self, steps: int) -> float:
        """Of a step, the mean of so many."""
        _wait(self.x.device)
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        _wait(self.x.device)
        return 1000 * (time.perf_counter() - began) / steps

    @property
    def replays(self) -> int:
        """Passes, or whole steps, that have been replayed so far."""
        if isinstance(self.engine, (CapturedEngine, PreparedEngine)):
            return self.engine.steps
        if not isinstance(self.engine, GraphedEngine):
            return 0
        return sum(self.engine.passes.replays(network) for network in networks_of(self.model))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measured(name: str, options: argparse.Namespace, device: str, precision: str) -> dict[str, Any]:
    """A method's row."""
    kinds = ("eager", "passes" if options.passes else "auto")
    forms = {kind: Form(name, kind, device, precision, options) for kind in kinds}
    began = time.perf_counter()
    for form in forms.values():
        form.milliseconds(WARM if device != "cpu" else 1)
    seconds = time.perf_counter() - began
    found: dict[str, list[float]] = {kind: [] for kind in forms}
    for _ in range(options.rounds):
        for kind, form in forms.items():
            found[kind].append(round(form.milliseconds(options.steps), 3))
    written, graphs = (statistics.median(found[kind]) for kind in kinds)
    return {
        "method": name,
        "written_ms": written,
        "graphs_ms": graphs,
        "ratio": round(written / graphs, 3),
        "written_all_ms": found["eager"],
        "graphs_all_ms": found[kinds[1]],
        "replays": forms[kinds[1]].replays,
        "warming_s": round(seconds, 1),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=128, help="samples a step")
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", action="store_true", help="a graph a pass, also where a step can be one graph")
    parser.add_argument("--compiled", action="store_true", help="compile what is captured, as long runs do")
    parser.add_argument("--varied", action="store_true", help="vary every batch, as in training")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    device = usable_device(options.device)
    precision = engine.precision_of("auto", device)
    rows = []
    print(f"{'method':12} {'as written':>20} {'with graphs':>20} {'ratio':>6} {'replays':>8}   (ms a step, range)")
    for name in options.methods:
        row = measured(name, options, device, precision)
        rows.append(row)
        cells = [
            f"{row[f'{form}_ms']:.2f} ({min(row[f'{form}_all_ms']):.2f}–{max(row[f'{form}_all_ms']):.2f})"
            for form in ("written", "graphs")
        ]
        print(f"{name:12} {cells[0]:>20} {cells[1]:>20} {row['ratio']:6.2f} {row['replays']:8}", flush=True)
        gc.collect()
    facts = {"model": "preact_resnet18", "rows": options.rows, "precision": precision, "image": 32}
    sizes = {"steps": options.steps, "rounds": options.rounds}
    forms = {"passes": options.passes, "compiled": options.compiled, "varied": options.varied}
    found = {"environment": environment(device), **facts, **sizes, **forms, "methods": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
