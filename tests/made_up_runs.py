"""Trainings that never were, shaped like real ones, to draw figures from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl.bench.cells import Cell, Task
from narl.bench.protocols import ADJUSTED, FIXED
from narl.bench.runs import Run

SYMMETRIC = Task("CIFAR-10", "symmetric", 0.4)
MORE_SYMMETRIC = Task("CIFAR-10", "symmetric", 0.6)
ASYMMETRIC = Task("CIFAR-10", "asymmetric", 0.6)
HYPERPARAMETERS = {
    "A-GCE": {"q": (0.01, 1.0)},
    "A-SL": {"gamma1": (1.0, 0.0), "gamma2": (0.3, 0.8)},
    "A-PolySoft": {"lam": (20.0, 0.5), "d": (2.0, 1.1)},
    "A-JS": {"pi1": (0.01, 0.99)},
}
EPOCHS = 60


def made_up(method: str, task: Task = SYMMETRIC, seed: int = 0, schedule: str = "short", **more: Any) -> Run:
    """One training; what it holds follows from its cell alone."""
    rng = np.random.default_rng([*f"{method} {task}".encode(), seed])
    cell = Cell(task, "resnet32", schedule, method, seed, tune=more.pop("tune", False))
    last5 = 0.6 + 0.22 * method.startswith("A-") + 0.02 * float(rng.normal())
    values: dict[str, Any] = {
        "curves": {"loss": _losses(rng, method)},
        "noise_rate": task.rate,
        "settings": {"milestones": [40, 50], "epochs": EPOCHS},
    }
    if method in HYPERPARAMETERS:
        values["samples"] = {name: _samples(rng, *ends) for name, ends in HYPERPARAMETERS[method].items()}
        values["adjuster"] = _adjuster(task, HYPERPARAMETERS[method])
    return Run(cell, last5, last5 + 0.01, **{**values, **more})


def enough(schedule: str = "short") -> list[Run]:
    """Trainings for all figures, three seeds each."""
    symmetric = [
        made_up(method, task, seed, schedule)
        for task, methods in ((SYMMETRIC, ("GCE", "JS", *ADJUSTED)), (MORE_SYMMETRIC, ADJUSTED))
        for method in methods
        for seed in range(3)
    ]
    return symmetric + [made_up(method, ASYMMETRIC, seed, schedule) for method in FIXED + ADJUSTED for seed in range(3)]


def _losses(rng: np.random.Generator, method: str) -> list[float | None]:
    epochs = np.arange(EPOCHS)
    start, end = (1.6, 0.42) if method.startswith("A-") else (1.05, 0.55)
    falls = 0.25 * (epochs >= 40) + 0.08 * (epochs >= 50)
    values = end + (start - end) * np.exp(-epochs / 9) + 0.3 - falls + 0.012 * rng.normal(size=EPOCHS)
    return [float(value) for value in values]


def _samples(rng: np.random.Generator, right: float, wrong: float) -> dict[str, Any]:
    low, high = min(right, wrong), max(right, wrong)
    edges = np.linspace(low, high, 51)
    groups = {
        "right": right + (wrong - right) * rng.beta(0.5, 9, 27000),
        "wrong": wrong + (right - wrong) * rng.beta(0.7, 6, 18000),
    }
    counts = {name: np.histogram(values, edges)[0].tolist() for name, values in groups.items()}
    means = {f"{name}_mean": float(values.mean()) for name, values in groups.items()}
    return {"edges": edges.tolist(), **counts, **means}


def _adjuster(task: Task, ends: dict[str, tuple[float, float]]) -> dict[str, Any]:
    margins = np.linspace(-15, 15, 121)
    centres = [2000.0, 5000.0, 8000.0] if task.noise == "asymmetric" else [4890.0, 4900.0, 4910.0]

    def line(right: float, wrong: float, family: int, sharpness: float) -> list[float]:
        share: NDArray[np.float64] = 1 / (1 + np.exp(-sharpness * (margins + 3 - 2 * family)))
        return [float(value) for value in wrong + (right - wrong) * share]

    return {
        "margins": margins.tolist(),
        "centres": centres,
        "curves": [
            {name: [line(*pair, family, sharpness) for family in range(3)] for name, pair in ends.items()}
            for sharpness in (0.15, 0.3, 0.6)
        ],
    }
