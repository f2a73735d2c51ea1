"""What many GPUs would take: a plan from the measured cost of a step and the bytes that are sent.

    python benchmarks/plan.py        # prints the tables of docs/scaling.md; benchmarks/pages.py puts them there

Nothing here is measured with more than one GPU. The step is the compiled one of ``results/cost-gpu-*.json`` on one
H200; to it is added, without overlap, the time of its all-reduces: 2 (k - 1) / k times the bytes over the bandwidth,
and a latency for each. Bandwidths are half of what the hardware is sold with: NVLink 900 GB/s both ways together within
a machine of eight (NVIDIA's H200 data sheet), InfiniBand 400 Gb/s a GPU between machines (NVIDIA's DGX H200 data
sheet). Latencies are round numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from narl import models
from narl.bench.tables import Table

RESULTS = Path(__file__).parent.parent / "results"
GPUS = (1, 8, 64, 1024)
A_MACHINE = 8
NVLINK, INFINIBAND = 225e9, 25e9  # bytes a second, one way
EVERY = 10
SAMPLES = 10**9
BYTES = 4


@dataclass(frozen=True)
class Measured:
    """One model's step on one GPU.

    Args:
        title: for the table.
        parameters: numbers that are sent.
        batch: samples a GPU and step.
        plain: seconds of a plain step.
        adjusted: seconds of a step at ``EVERY``, in the mean.
    """

    title: str
    parameters: int
    batch: int
    plain: float
    adjusted: float


def measured(name: str, title: str, parameters: int) -> Measured:
    """From the results."""
    rows = json.loads((RESULTS / f"cost-gpu-{name}-bfloat16.json").read_text())
    found = [row for row in rows if row["engine"] == "compiled"]
    (plain,) = [row for row in found if row["method"] == "CE"]
    (adjusted,) = [row for row in found if row["kind"] == "run"]
    return Measured(title, parameters, plain["batch"], plain["ms"] / 1000, adjusted["ms"] / 1000)


def exchange_seconds(gpus: int, number_of_bytes: float) -> float:
    """One all-reduce."""
    if gpus == 1:
        return 0.0
    bandwidth = NVLINK if gpus <= A_MACHINE else INFINIBAND
    latency = 20e-6 + (0 if gpus <= A_MACHINE else 10e-6 * math.log2(gpus / A_MACHINE))
    return 2 * (gpus - 1) / gpus * number_of_bytes / bandwidth + latency


def table(model: Measured) -> Table:
    """A line for each number of GPUs."""
    sent = BYTES * model.parameters
    lines = []
    for gpus in GPUS:
        one = exchange_seconds(gpus, sent)
        plain, adjusted = model.plain + one, model.adjusted + one * (EVERY - 1 + 3) / EVERY
        rate = gpus * model.batch / adjusted
        lines.append(
            (
                f"{gpus:,}",
                f"{gpus * model.batch:,}",
                f"{1000 * plain:.2f}",
                f"{1000 * adjusted:.2f}",
                f"{adjusted / plain:.2f}",
                f"{100 * model.adjusted / adjusted:.0f} %",
                f"{rate:,.0f}",
                _duration(SAMPLES / rate),
            )
        )
    heads = ("GPUs", "batch in all", "plain ms", f"every = {EVERY} ms", "ratio", "efficiency", "samples a second")
    note = (
        f"{model.parameters:,} parameters: {sent / 1e6:.1f} MB an all-reduce, one in a plain step, three in a meta one."
    )
    return Table(model.title, (*heads, "10⁹ samples once"), tuple(lines), (note,))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def tables() -> list[Table]:
    """Of the measured models."""
    unused = torch.Generator()
    resnet = models.get("resnet34")(num_classes=10, generator=unused)
    transformer = models.text_transformer(5000, 10, layers=6, generator=unused)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (resnet, transformer)]
    return [
        table(measured("resnet34", "ResNet-34 on 32×32 images, 128 a GPU", sizes[0])),
        table(measured("transformer", "6-layer transformer encoder, 64 words, 100 a GPU", sizes[1])),
    ]


def main() -> None:
    """Print the tables."""
    print("\n\n".join(one.markdown() for one in tables()))


if __name__ == "__main__":
    main()
