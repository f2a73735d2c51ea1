"""How well Forward's transition matrix is read off a classifier that is not trained yet.

    python benchmarks/forward_matrix.py CIFAR10.npz    # x_train, y_train; ten minutes on one core
    python benchmarks/pages.py                         # the table of docs/findings.md

A small convnet learns 10,000 images with wrong labels by cross entropy. Along the way the matrix is estimated on 1,000
further images whose true labels are known, from the surest tenth of each class, the surest three tenths, or all; at
anchors of the training set; and from all given labels (counted). Nothing is tested: the noise is known, and so is the
error of an estimate. A diagonal that is too small says that more labels are wrong than are.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from narl import noise
from narl.bench.tables import Table
from narl.train.environment import environment
from narl.train.methods.forward import anchor_matrix, clean_matrix, counted_matrix

RESULTS = Path(__file__).parent.parent / "results" / "forward-matrix.json"
TRAIN, CLEAN = 10_000, 1_000
EPOCHS = (2, 5, 9, 16)
NOISES = {
    "symmetric 0.6": noise.symmetric_matrix(10, 0.6),
    "symmetric 0.2": noise.symmetric_matrix(10, 0.2),
    "asymmetric 0.4": noise.asymmetric_matrix(10, 0.4, "cifar10"),
}
SHARES = {"surest tenth": 0.1, "surest three tenths": 0.3, "all clean": 1.0}
ANCHORS, COUNTED, USED = "anchors", "counted", "surest tenth"


def main() -> None:
    """Measure and keep it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    arrays = np.load(parser.parse_args().data)
    images = torch.from_numpy(arrays["x_train"][: TRAIN + CLEAN]).float().permute(0, 3, 1, 2) / 255
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    labels = torch.from_numpy(arrays["y_train"][: TRAIN + CLEAN]).long()
    torch.set_num_threads(1)
    rows = [row for name, matrix in NOISES.items() for row in measured(name, torch.from_numpy(matrix), images, labels)]
    found = {"environment": environment("cpu"), "seed": 0, "rows": rows}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for table in tables():
        print(table.markdown())


def measured(name: str, matrix: Tensor, images: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """Train with one kind of noise, and estimate its matrix after some of the epochs."""
    generator = torch.Generator().manual_seed(0)
    given = torch.multinomial(matrix[labels], 1, generator=generator).squeeze(1)
    torch.manual_seed(0)  # of the layers' weights
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    rows: list[dict[str, Any]] = []
    for epoch in range(1, max(EPOCHS) + 1):
        model.train()
        for batch in torch.split(torch.randperm(TRAIN, generator=generator), 100):
            flipped = images[batch].flip(3) if torch.rand((), generator=generator) < 0.5 else images[batch]
            optimizer.zero_grad()
            F.cross_entropy(model(flipped), given[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if epoch in EPOCHS:
            rows.append({"noise": name, "epoch": epoch, **judged(model, matrix, images, given[:TRAIN], labels[TRAIN:])})
            print(rows[-1], flush=True)
    return rows


def convnet() -> nn.Sequential:
    """Three convolutions and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 16, 32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


@torch.no_grad()
def judged(model: nn.Module, matrix: Tensor, images: Tensor, given: Tensor, clean_labels: Tensor) -> dict[str, float]:
    """Accuracy on the clean images, and the error of each estimate: sum of a row's differences, mean over rows."""
    model.eval()
    predictions = torch.cat([model(part).softmax(1) for part in torch.split(images, 500)])
    of_train, of_clean = predictions[:TRAIN], predictions[TRAIN:]
    estimates = {name: clean_matrix(of_clean, clean_labels, share) for name, share in SHARES.items()}
    estimates[ANCHORS] = anchor_matrix(of_train)
    estimates[COUNTED] = counted_matrix(of_train, given, of_clean, clean_labels)
    errors = {name: float((found - matrix).abs().sum(1).mean()) for name, found in estimates.items()}
    diagonals = {f"{name} diagonal": float(estimates[name].diagonal().mean()) for name in (USED, COUNTED)}
    return {"accuracy": float((of_clean.argmax(1) == clean_labels).float().mean()), **errors, **diagonals}


def tables() -> list[Table]:
    """Of ``results/forward-matrix.json``: the table of docs/findings.md."""
    found = json.loads(RESULTS.read_text())
    ways = (*SHARES, ANCHORS, COUNTED)
    titles = [f"{row['noise']}, epoch {row['epoch']}" for row in found["rows"]]
    errors = tuple(
        (title, f"{row['accuracy']:.0%}", *(f"{row[way]:.2f}" for way in ways))
        for title, row in zip(titles, found["rows"], strict=True)
    )
    diagonals = tuple(
        (
            title,
            *(f"{row[f'{name} diagonal']:.2f}" for name in (USED, COUNTED)),
            f"{NOISES[row['noise']].diagonal().mean():.2f}",
        )
        for title, row in zip(titles, found["rows"], strict=True)
    )
    note = f"Sum of the absolute differences of a row, mean over rows; one seed, torch {found['environment']['torch']}."
    return [
        Table("Error of the estimated transition matrix", ("", "right", *ways), errors, (note,)),
        Table("Mean of its diagonal", ("", USED, COUNTED, "of the noise"), diagonals, ()),
    ]


if __name__ == "__main__":
    main()
